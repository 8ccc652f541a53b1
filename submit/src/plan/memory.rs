//! Estimated peak memory of a worker in each stage, from a plan and its model's dimensions.
//! `cargo bench --workspace --bench memory` compares these estimates with measurements.
//!
//! They assume sequences of the maximum length; shorter ones need less. Where a formula says
//! *live*, it counts what exists at the same time in `model`'s code.

use crate::plan::model_size::{self, ModelSize};
use crate::plan::parts::Counted;
use crate::plan::sizes::{evaluated_sequences, narrow, sequences};
use crate::text::{bytes, count};
use agentgym_jobs::config::{Pipeline, SaveDtype};
use agentgym_jobs::pipeline::Stage;
use agentgym_jobs::plan::Plan;
use agentgym_model::Dtype;

const F32: u128 = 4;

/// A worker process without models and computation: code, runtime and environments (between the
/// stages of the quickstart a process with its three policies takes 54 to 72 MB).
const PROGRAM_BYTES: u128 = 50_000_000;

/// Memory of a tokenizer per id; every loaded model has its own tokenizer. Measured: 66 to 69 MB
/// with 151 646 ids of ten letters on average.
const TOKENIZER_BYTES_PER_ID: u128 = 450;

/// Policies that a worker keeps in memory.
const RESIDENT_POLICIES: u128 = agentgym_worker::RESIDENT_POLICIES as u128;

/// Decoded records: ids, masks, float streams and their encoded form.
const RECORD_BYTES_PER_TOKEN: u128 = 64;

/// A KV cache is allocated in blocks of positions.
const CACHE_BLOCK: u128 = agentgym_model::CACHE_BLOCK as u128;

/// Prefill tokens that a decoding step processes in addition to its rows.
const PREFILL_TOKENS: u128 = agentgym_worker::PREFILL_CHUNK_TOKENS as u128;

/// Episodes in flight per row of the decoder.
const EPISODES_PER_ROW: u128 = agentgym_worker::stages::EPISODES_PER_ROW as u128;

/// Stages with an estimate, in the order in which `plan` names them.
pub(super) const ESTIMATED: [Stage; 7] = [
    Stage::Sft,
    Stage::Dpo,
    Stage::Rollout,
    Stage::LogProbs,
    Stage::Update,
    Stage::CriticUpdate,
    Stage::Evaluate,
];

/// Bytes of a process in a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bytes {
    /// Whatever the sequences are like: programs, policies, gradients, moments.
    pub(crate) fixed: u64,
    /// What grows with the lengths of sequences.
    pub(crate) by_lengths: u64,
}

impl Bytes {
    /// All of it.
    pub(crate) fn all(self) -> u64 {
        self.fixed.saturating_add(self.by_lengths)
    }
}

/// Peak bytes of the whole process in the estimated stages that the plan has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Memory(Vec<(Stage, Bytes)>);

impl Memory {
    /// The largest over all stages.
    pub(crate) fn largest(&self) -> u64 {
        let each = self.0.iter().map(|(_, most)| most.all());
        each.max().unwrap_or(0)
    }

    /// Of one stage; `None` where there is no estimate.
    pub(crate) fn of(&self, stage: Stage) -> Option<Bytes> {
        let mut each = self.0.iter();
        each.find_map(|(known, most)| (*known == stage).then_some(*most))
    }

    /// Other bytes for these stages; without those that have none.
    pub(crate) fn map(&self, bytes: impl Fn(Stage, Bytes) -> Option<Bytes>) -> Self {
        let each = self.0.iter();
        Self(
            each.filter_map(|(stage, most)| Some((*stage, bytes(*stage, *most)?)))
                .collect(),
        )
    }

    /// The stage that needs the most, and the keys that lower it.
    pub(crate) fn largest_stage(&self, plan: &Plan) -> (&'static str, &'static str) {
        let largest = self.largest();
        let found = self.0.iter().find(|(_, most)| most.all() == largest);
        let stage = found.map_or(Stage::Update, |(stage, _)| *stage);
        let limit = plan.config.jobs.unit_tokens;
        let episode = plan.context_tokens() > limit;
        let (sft, dpo) = (&plan.config.sft, &plan.config.dpo);
        // A unit is at least one sequence, or one pair.
        let keys = match stage {
            Stage::Sft if sft.max_length > limit => {
                "sft.max_length, jobs.threads or enable_gradient_checkpointing"
            }
            Stage::Dpo if 2 * dpo.max_length > limit => {
                "dpo.max_length, jobs.threads or enable_gradient_checkpointing"
            }
            Stage::Update | Stage::CriticUpdate if episode => {
                "data.max_response_length, jobs.threads or enable_gradient_checkpointing"
            }
            Stage::LogProbs => "jobs.pack_tokens or jobs.threads",
            Stage::Rollout | Stage::Evaluate => "jobs.cache_tokens or jobs.threads",
            _ => "jobs.unit_tokens, jobs.threads or enable_gradient_checkpointing",
        };
        (stage.name(), keys)
    }

    /// `65 MB in rollout, 99 MB in log_probs`.
    pub(crate) fn text(&self) -> String {
        let each = self.0.iter();
        let each: Vec<String> = each
            .map(|(stage, most)| format!("{} in {}", bytes(most.all()), stage.name()))
            .collect();
        each.join(", ")
    }

    /// `<stage>_memory_bytes`; 0 for a stage that the plan does not have.
    pub(crate) fn json(&self) -> impl Iterator<Item = (String, u64)> {
        ESTIMATED.iter().map(|stage| {
            let most = self.of(*stage).map_or(0, Bytes::all);
            (format!("{}_memory_bytes", stage.name()), most)
        })
    }

    /// For a worker of this machine.
    ///
    /// # Errors
    /// Why the size of the plan's model is not known here.
    pub(crate) fn here(plan: &Plan, dtype: Dtype) -> Result<Self, String> {
        let model = model_size::of(&plan.config.actor_rollout_ref.model)?;
        let threads = plan.config.jobs.threads.unwrap_or(agentgym_worker::cores());
        Ok(Self::new(plan, &model, threads as u64, dtype))
    }

    /// For workers with `threads` compute threads of a processor whose products read `dtype`.
    pub(crate) fn new(plan: &Plan, model: &ModelSize, threads: u64, dtype: Dtype) -> Self {
        let work = Work {
            plan,
            model,
            threads: threads.into(),
            dtype,
        };
        // The policy that a warm start began with is one more.
        let made = u128::from(plan.iterations) + u128::from(plan.warms_up());
        let evolves = plan.config.run.pipeline == Pipeline::AgentEvol;
        let resident = |stage| {
            work.resident(match stage {
                Stage::Sft | Stage::Dpo if !evolves => 1,
                // The last iteration's policy in addition to those before it.
                Stage::Evaluate => made + 1,
                _ => made.max(1),
            })
        };
        // Bytes of a stage beside the resident ones: fixed, and by lengths.
        let trains = |model: &Trained, batch: u128| {
            let (fixed, under_way) = work.training(model);
            (F32 * fixed, F32 * under_way + batch)
        };
        let decodes = |sequences| (F32 * model.head_copy, F32 * work.decoding(sequences));
        let most = |stage| match stage {
            Stage::Sft => trains(&work.taught(), 0),
            Stage::Dpo => trains(&work.preferring(), 0),
            Stage::Rollout => decodes(work.part_sequences()),
            Stage::LogProbs => (0, F32 * work.scoring()),
            Stage::Update => trains(&work.policy(), work.batch()),
            Stage::CriticUpdate => trains(&work.value_model(), work.batch()),
            _ => decodes(evaluated_sequences(plan).into()),
        };
        let stages = ESTIMATED.into_iter().filter(|stage| has(plan, *stage));
        let each = stages.map(|stage| {
            let (fixed, by_lengths) = most(stage);
            let bytes = Bytes {
                fixed: narrow(resident(stage) + work.states(stage) + fixed),
                by_lengths: narrow(by_lengths),
            };
            (stage, bytes)
        });
        Self(each.collect())
    }
}

/// Whether the plan has an estimated stage.
pub(super) fn has(plan: &Plan, stage: Stage) -> bool {
    match stage {
        Stage::Evaluate => evaluated_sequences(plan) > 0 && !plan.evaluates_by_chat(),
        _ => Counted::of(plan).has(stage),
    }
}

/// Refuses a model that would not fit even into the otherwise empty memory of a machine. [`Memory`]
/// cannot decide this: it assumes sequences of the maximum length.
///
/// # Errors
/// The numbers, and the remedy.
pub(crate) fn check_fits(plan: &Plan, model: &ModelSize, machine: u64) -> Result<(), String> {
    let generating = ("weights", model.parameters + model.head_copy);
    // A gradient and two moments of each number that is trained.
    let training = (
        "weights, their gradient and AdamW's moments",
        model.parameters + 3 * model.trained,
    );
    let (what, numbers) = match plan.config.run.pipeline {
        Pipeline::Eval => generating,
        _ if generating.1 > training.1 => generating,
        _ => training,
    };
    let least = narrow(F32 * numbers);
    if least <= machine {
        return Ok(());
    }
    Err(format!(
        "a model of {} parameters takes at least {} of memory ({what}, in f32), and this machine has {}; \
         take a smaller model, train an adapter (actor_rollout_ref.model.lora_rank), or set jobs.workers=0 \
         and start agentgym-worker on a larger machine",
        count(narrow(model.parameters)),
        bytes(least),
        bytes(machine)
    ))
}

/// A model that is trained.
pub(super) struct Trained {
    /// Parameters of one copy in memory, without what copies share.
    copy: u128,
    /// Parameters that the optimizer updates.
    learned: u128,
    /// What the units of a minibatch are made of, at most, and the tokens that one of them computes.
    pieces: (u128, u128),
    steps: u128,
    checkpointed: bool,
    /// Its numbers are in bf16.
    is_rounded: bool,
}

/// All counts are numbers of f32 values, except where a function says bytes.
pub(super) struct Work<'a> {
    pub(super) plan: &'a Plan,
    pub(super) model: &'a ModelSize,
    pub(super) threads: u128,
    /// What the processor's products read.
    pub(super) dtype: Dtype,
}

impl Work<'_> {
    /// Bytes present in every stage: the program, the policies (of the `made` ones, the last few
    /// stay resident) and a critic.
    fn resident(&self, made: u128) -> u128 {
        let config = &self.plan.config;
        let reference = config.actor_rollout_ref.reference.model.path.is_some();
        let kept = (made + u128::from(reference)).min(RESIDENT_POLICIES);
        let models = kept + u128::from(config.has_critic());
        let tokenizers = models * self.model.vocabulary * TOKENIZER_BYTES_PER_ID;
        PROGRAM_BYTES + tokenizers + F32 * (self.policies(kept) + self.critic())
    }

    /// Each policy has its parameters and the rotary table, and once it has generated in bf16, the
    /// rounded parameters. With an adapter the base counts as one more, and each policy holds its
    /// adapter and the weights it is merged into.
    fn policies(&self, kept: u128) -> u128 {
        let m = self.model;
        let halves = match self.dtype {
            Dtype::F32 => 0,
            Dtype::Bf16 => m.parameters.div_ceil(2),
        };
        match m.adapter_rank {
            None => kept * (m.parameters + halves + m.rotary),
            Some(_) => m.parameters + m.rotary + kept * (self.policy().copy + halves),
        }
    }

    /// Bytes of the optimizer states that stay in memory beside a stage which does not go on with them,
    /// and an eighth for what the allocator keeps between their tensors.
    fn states(&self, stage: Stage) -> u128 {
        let plan = self.plan;
        if plan.config.run.pipeline == Pipeline::Eval || plan.gradient_shards(1) > 0 {
            return 0;
        }
        let trains_policy = matches!(stage, Stage::Sft | Stage::Dpo | Stage::Update);
        let has_other_critic = plan.config.has_critic() && stage != Stage::CriticUpdate;
        let policy = (!trains_policy).then(|| self.policy());
        let critic = has_other_critic.then(|| self.value_model());
        let bytes = |of: Trained| F32 * (2 + u128::from(of.is_rounded)) * of.learned;
        let states = policy.into_iter().chain(critic).map(bytes);
        let held = states.filter(|bytes| agentgym_worker::stays_in_memory(narrow(*bytes)));
        held.sum::<u128>() * 9 / 8
    }

    pub(super) fn policy(&self) -> Trained {
        let actor = &self.plan.config.actor_rollout_ref.actor;
        let steps = u128::from(self.plan.minibatches()) * u128::from(actor.ppo_epochs);
        self.policy_on(self.episodes(actor.ppo_mini_batch_size), steps)
    }

    /// The policy in the supervised steps.
    pub(super) fn taught(&self) -> Trained {
        let (config, evol) = (&self.plan.config, Pipeline::AgentEvol);
        let sft = &config.sft;
        let steps = match config.run.pipeline == evol {
            true => sft.steps_planned().max(config.agentevol.steps),
            false => sft.steps_planned(),
        };
        self.policy_on(
            (sft.batch_size as u128, sft.max_length as u128),
            steps.into(),
        )
    }

    /// The policy in DPO's steps: the answers of a pair stay together.
    pub(super) fn preferring(&self) -> Trained {
        let dpo = &self.plan.config.dpo;
        let pieces = (dpo.batch_size as u128, 2 * dpo.max_length as u128);
        self.policy_on(pieces, dpo.steps.into())
    }

    fn policy_on(&self, pieces: (u128, u128), steps: u128) -> Trained {
        let (m, model) = (self.model, &self.plan.config.actor_rollout_ref.model);
        Trained {
            copy: match m.adapter_rank {
                None => m.parameters,
                Some(_) => m.merged + m.trained,
            },
            learned: m.trained,
            pieces,
            steps,
            checkpointed: model.enable_gradient_checkpointing,
            is_rounded: model.dtype == SaveDtype::Bf16 && m.adapter_rank.is_none(),
        }
    }

    /// The critic, assumed to be the policy's trunk with a head of one column; a critic with its
    /// own model may differ.
    pub(super) fn value_model(&self) -> Trained {
        let config = &self.plan.config;
        let size = config.critic.ppo_mini_batch_size;
        let batches = config.data.train_batch_size.div_ceil(size);
        let trunk = self.model.trunk;
        Trained {
            copy: trunk,
            learned: trunk,
            pieces: self.episodes(size),
            steps: batches as u128 * u128::from(config.critic.ppo_epochs),
            checkpointed: config.critic.model.enable_gradient_checkpointing,
            is_rounded: false,
        }
    }

    /// The one resident critic.
    fn critic(&self) -> u128 {
        match self.plan.config.has_critic() {
            true => self.model.trunk + self.model.rotary,
            false => 0,
        }
    }

    /// Sequences of a rollout part.
    pub(super) fn part_sequences(&self) -> u128 {
        let config = &self.plan.config;
        let tasks = config
            .jobs
            .rollout_part_tasks
            .min(config.data.train_batch_size) as u128;
        let baselines = u128::from(self.plan.plays_baselines());
        tasks * (u128::from(config.actor_rollout_ref.rollout.n) + baselines)
    }

    /// KV caches of the episodes in flight on every thread, one step of the rows, and their logits,
    /// beside the transposed copy of a tied head, which all threads share.
    fn decoding(&self, sequences: u128) -> u128 {
        let m = self.model;
        let (rows, tokens) = self.rows(sequences);
        let cache = tokens * m.footprint.cache();
        let step = (PREFILL_TOKENS + rows) * m.footprint.forward();
        self.threads * (cache + step + rows * m.vocabulary)
    }

    /// The rows that a thread decodes at once, and the tokens of its caches.
    pub(super) fn rows(&self, sequences: u128) -> (u128, u128) {
        let jobs = &self.plan.config.jobs;
        let own = sequences.div_ceil(self.threads);
        let rows = own.min(jobs.decode_rows as u128);
        let episodes = own.min(rows * EPISODES_PER_ROW);
        let longest = (self.plan.context_tokens() as u128).next_multiple_of(CACHE_BLOCK);
        let tokens = (episodes * longest).min(jobs.cache_tokens as u128 + longest);
        (rows, tokens)
    }

    /// One pack per thread, one layer at a time, and a chunk of logits.
    fn scoring(&self) -> u128 {
        let all = self.part_sequences() * self.plan.context_tokens() as u128;
        let footprint = self.model.footprint;
        self.threads * (self.pack() * footprint.forward() + footprint.head_chunk())
            + all * RECORD_BYTES_PER_TOKEN / F32
    }

    /// Tokens that a thread scores together.
    pub(super) fn pack(&self) -> u128 {
        let longest = self.plan.context_tokens() as u128;
        let pack = (self.plan.config.jobs.pack_tokens as u128).max(longest);
        let all = self.part_sequences() * longest;
        pack.min(all.div_ceil(self.threads).max(longest))
    }

    /// Tokens of the largest unit, and whether its layers are computed twice.
    pub(super) fn unit(&self, trained: &Trained) -> (u128, bool) {
        let limit = self.plan.config.jobs.unit_tokens as u128;
        let (pieces, piece) = trained.pieces;
        let tokens = limit.max(piece).min(pieces * piece);
        (tokens, trained.checkpointed)
    }

    /// AdamW's moments, the policy of the previous step, one gradient per thread and per level of
    /// the tree that sums them (their memory is reused between steps); and, by lengths, the larger of
    /// two phases: units in progress, or the optimizer step, where the new weights reuse a
    /// gradient's memory.
    fn training(&self, trained: &Trained) -> (u128, u128) {
        let limit = self.plan.config.jobs.unit_tokens as u128;
        let (pieces, piece) = trained.pieces;
        let (unit, _) = self.unit(trained);
        let units = pieces.div_ceil((limit / piece.max(1)).max(1)).max(1);
        let threads = self.threads.min(units);
        let levels = u128::from(units.next_power_of_two().trailing_zeros());
        let gradients = units.min(threads + levels) * trained.learned;
        let under_way = threads * self.model.footprint.unit(unit, trained.checkpointed);
        let step = trained.copy - trained.learned;
        let before = match trained.steps {
            0 | 1 => 0,
            _ => trained.copy,
        };
        // The f32 numbers behind a policy in bf16, before and after a step.
        let masters = match trained.is_rounded {
            true => 2 * trained.learned,
            false => 0,
        };
        let fixed = 2 * trained.learned + masters + before + gradients;
        (fixed, under_way.max(step))
    }

    /// What the units of a minibatch of so many tasks are made of, at most: as many samples of a task
    /// as a unit has room for beside their prompt, else sequences; and the tokens that one of them
    /// computes.
    fn episodes(&self, tasks: usize) -> (u128, u128) {
        let minibatch = tasks as u128 * u128::from(self.plan.config.actor_rollout_ref.rollout.n);
        let longest = self.plan.context_tokens() as u128;
        let Some((samples, prompt, response)) = self.group() else {
            return (minibatch, longest);
        };
        let room = (self.plan.config.jobs.unit_tokens as u128).saturating_sub(prompt);
        let together = (room / response).clamp(1, samples);
        let nodes = (prompt + together * response).min(together * longest);
        (minibatch / samples * samples.div_ceil(together), nodes)
    }

    /// Samples of a task, and the longest prompt and response. `None` where prefixes are not shared,
    /// or an episode has several sequences, which begin in their own ways.
    fn group(&self) -> Option<(u128, u128, u128)> {
        let config = &self.plan.config;
        let (actor, gym) = (
            &config.actor_rollout_ref.actor,
            &config.actor_rollout_ref.agentgym,
        );
        let one_sequence = gym.context_turns.is_none() && gym.summary.is_none();
        if !(actor.share_prefixes && one_sequence && config.run.pipeline == Pipeline::Rl) {
            return None;
        }
        let rollout = &config.actor_rollout_ref.rollout;
        let prompt = config.data.max_prompt_length.min(rollout.prompt_length);
        let response = config.data.max_response_length.min(rollout.response_length);
        Some((rollout.n as u128, prompt as u128, response as u128))
    }

    /// Bytes of an iteration's records, which a training stage reads at once.
    fn batch(&self) -> u128 {
        match self.plan.config.run.pipeline {
            Pipeline::Rl => {
                u128::from(sequences(self.plan))
                    * self.plan.context_tokens() as u128
                    * RECORD_BYTES_PER_TOKEN
            }
            Pipeline::Sft | Pipeline::Dpo | Pipeline::AgentEvol | Pipeline::Eval => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::model_size;
    use agentgym_jobs::config::ResolvedConfig;
    use std::collections::BTreeMap;
    use std::path::Path;

    fn plan(overrides: &[&str]) -> Plan {
        let overrides: Vec<String> = overrides.iter().map(|&o| o.to_owned()).collect();
        let text = "
            run: {id: fits}
            actor_rollout_ref:
              model: {path: 'tiny?hidden=64&layers=2&vocab=512'}
              actor: {ppo_mini_batch_size: 8}
              rollout: {n: 4}
              agentgym: {task_name: textcraft, env_addr: builtin}
            data: {train_batch_size: 8, tasks: [{env: textcraft, ids: 0..8}]}
            evaluation: {sets: [{name: all, env: textcraft, ids: 0..8}]}
            trainer: {total_training_steps: 1}
        ";
        let config =
            ResolvedConfig::parse("fits", Path::new("fits.yaml"), text, &overrides).unwrap();
        Plan::new(config, Path::new("")).unwrap()
    }

    #[test]
    fn a_model_fits_to_the_byte_or_is_refused_with_numbers() {
        for (overrides, copies, head) in [(&[][..], 4, 0), (&["run.pipeline=eval"][..], 1, 1)] {
            let plan = plan(overrides);
            let size = model_size::of(&plan.config.actor_rollout_ref.model).unwrap();
            let least = narrow(4 * (copies * size.parameters + head * size.head_copy));
            assert_eq!(check_fits(&plan, &size, least), Ok(()));
            let why = check_fits(&plan, &size, least - 1).unwrap_err();
            for word in [
                &count(narrow(size.parameters)),
                &bytes(least - 1),
                "lora_rank",
            ] {
                assert!(why.contains(word), "{word}: {why}");
            }
        }
    }

    #[test]
    fn a_group_is_counted_as_it_is_cut() {
        let group = [
            "actor_rollout_ref.rollout.n=8",
            "actor_rollout_ref.actor.ppo_mini_batch_size=2",
            "data.max_prompt_length=1000",
            "data.max_response_length=200",
        ];
        for (more, expected) in [
            // All eight, 1 000 + 8 × 200; five and three; each alone; each alone.
            ("jobs.unit_tokens=2600", (2, 2600)),
            ("jobs.unit_tokens=2048", (4, 2000)),
            ("jobs.unit_tokens=1000", (16, 1200)),
            ("actor_rollout_ref.actor.share_prefixes=false", (16, 1200)),
        ] {
            let plan = plan(&[&group[..], &[more]].concat());
            let model = &model_size::of(&plan.config.actor_rollout_ref.model).unwrap();
            let work = Work {
                plan: &plan,
                model,
                threads: 2,
                dtype: Dtype::F32,
            };
            assert_eq!(work.policy().pieces, expected, "{more}");
        }
    }

    #[test]
    fn supervised_steps_are_counted_by_their_own_batch_and_length() {
        let most = |overrides: &[&str], stage: &str| {
            let plan = plan(overrides);
            let model = &model_size::of(&plan.config.actor_rollout_ref.model).unwrap();
            let memory = Memory::new(&plan, model, 2, Dtype::F32);
            let rows: BTreeMap<String, u64> = memory.json().collect();
            (
                rows[&format!("{stage}_memory_bytes")],
                memory.largest_stage(&plan),
            )
        };
        assert_eq!(most(&[], "sft").0, 0, "no warm start");
        let taught = |more: &str| {
            let sft = "sft={steps: 2, max_length: 5000, sources: [{env: textcraft, ids: 8..80}]}";
            let small = "actor_rollout_ref.actor.ppo_mini_batch_size=1";
            most(&[sft, small, "jobs.unit_tokens=100000", more], "sft")
        };
        let (sixteen, named) = taught("sft.batch_size=16");
        assert_eq!(named.0, "sft");
        assert!(named.1.contains("jobs.unit_tokens"), "{}", named.1);
        let (eight, _) = taught("sft.batch_size=8");
        // Units of 80 000 and of 40 000 tokens: that of 40 000 is one, so one thread has work.
        assert!(sixteen > eight, "{sixteen} {eight}");
        let (cut, _) = taught("jobs.unit_tokens=400");
        assert!(cut < eight / 2, "{cut} {eight}");
    }

    /// Whatever is kept for products in bf16 is kept beside the numbers that it was rounded from.
    #[test]
    fn rounded_weights_are_counted_in_every_stage_that_holds_a_policy() {
        for more in ["run.seed=1", "actor_rollout_ref.model.lora_rank=4"] {
            let plan = plan(&[more]);
            let model = &model_size::of(&plan.config.actor_rollout_ref.model).unwrap();
            let rows = |dtype| -> BTreeMap<String, u64> {
                Memory::new(&plan, model, 2, dtype).json().collect()
            };
            let (exact, rounded) = (rows(Dtype::F32), rows(Dtype::Bf16));
            let halves = narrow(4 * model.parameters.div_ceil(2));
            for stage in ["rollout", "log_probs", "update"] {
                let row = format!("{stage}_memory_bytes");
                let beside = rounded[&row] - exact[&row];
                assert!(
                    beside > 0 && beside.is_multiple_of(halves),
                    "{stage}: {beside} of {halves}"
                );
            }
        }
    }

    #[test]
    fn an_adapter_needs_less() {
        let plan = plan(&["actor_rollout_ref.model.lora_rank=4"]);
        let size = model_size::of(&plan.config.actor_rollout_ref.model).unwrap();
        let trains = size.parameters + 3 * size.trained;
        let least = narrow(4 * trains.max(size.parameters + size.head_copy));
        assert!(size.trained < size.parameters);
        assert_eq!(check_fits(&plan, &size, least), Ok(()));
    }
}
