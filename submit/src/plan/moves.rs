//! What an iteration moves between its workers and the store, at most: every part reads the trained
//! models and states that its inputs name, as a worker does that holds none of them, and writes what its
//! stage leaves. What never changes, a base or a reference, a worker reads once.

use super::model_size::ModelSize;
use super::sizes::{F32, Sizes, narrow};
use crate::text::{self, bytes, many};
use agentgym_jobs::pipeline::{BASE_PART, Part, Stage, parts, reference_of};
use agentgym_jobs::plan::Plan;
use clap::Args;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// A gigabit a second.
const GIGABIT: &str = "125MB";

/// How fast a store is, and what a worker costs.
#[derive(Debug, Clone, Args)]
pub(crate) struct Rates {
    /// Bytes that a worker moves to or from the store in a second; the default is a gigabit
    #[arg(long, value_name = "SIZE", default_value = GIGABIT, value_parser = text::bytes_of)]
    pub store_rate: usize,
    /// What an hour of a worker costs, where no measured run says it
    #[arg(long, value_name = "PER HOUR", value_parser = text::price, allow_negative_numbers = true)]
    pub price: Option<f64>,
}

impl Default for Rates {
    fn default() -> Self {
        Self {
            store_rate: text::bytes_of(GIGABIT).expect("it is a size"),
            price: None,
        }
    }
}

/// Bytes of all parts of a stage in one iteration.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct StageMoves {
    parts: u64,
    put_bytes: u64,
    got_bytes: u64,
    /// Of states of which nobody waits: written after the commit, and read where they were made.
    #[serde(skip)]
    beside_bytes: u64,
}

/// Bytes by stage.
pub(crate) struct Moves<'a> {
    plan: &'a Plan,
    of: BTreeMap<Stage, StageMoves>,
    /// What never changes.
    pub(crate) once: u64,
    /// The trained policy.
    policy: u64,
}

impl<'a> Moves<'a> {
    /// Of the second iteration that the run makes itself: its update has an optimizer's state to read.
    pub(crate) fn new(plan: &'a Plan, model: &ModelSize) -> Self {
        let first = plan.forked_at().map_or(1, |last| last.saturating_add(1));
        let iteration = first.saturating_add(1).min(plan.iterations);
        let sizes = Sizes::new(plan, model);
        let mut of = BTreeMap::<Stage, StageMoves>::new();
        for part in parts(plan, iteration) {
            let all = of.entry(part.id.stage).or_default();
            all.parts += 1;
            let state = state(&sizes, model, part.id.stage);
            let stored = state / u64::from(plan.config.trainer.state_freq);
            let read = got(&sizes, model, &part);
            all.put_bytes += put(&sizes, model, part.id.stage) + stored;
            all.got_bytes += read;
            if plan.gradient_shards(iteration) == 0 {
                all.beside_bytes += stored + state.min(read);
            }
        }
        // All records count with the rollouts, which begin them.
        if let Some(rollouts) = of.get_mut(&Stage::Rollout) {
            rollouts.put_bytes += sizes.records;
        }
        let reference = plan.needs_reference().then(|| reference_of(plan));
        let base = plan.has_adapter().then_some(BASE_PART);
        let models: BTreeSet<_> = reference.into_iter().chain(base).collect();
        let once = models.len() as u64 * sizes.weights;
        let policy = sizes.policy;
        Self {
            plan,
            of,
            once,
            policy,
        }
    }

    pub(crate) fn document(&self) -> BTreeMap<&'static str, StageMoves> {
        let stages = self.of.iter().map(|(stage, moves)| (stage.name(), *moves));
        stages.collect()
    }

    fn all(&self, value: impl Fn(&StageMoves) -> u64) -> u64 {
        self.of.values().map(value).sum()
    }

    /// Bytes on the way from one policy to the next that nothing computes beside: a worker reads the
    /// policy, and every part of an update waits for the one before. Shards are read and written side by
    /// side.
    fn in_turn(&self) -> u64 {
        self.of.keys().map(|stage| self.in_turn_of(*stage)).sum()
    }

    fn in_turn_of(&self, stage: Stage) -> u64 {
        let moves = self.of.get(&stage).copied().unwrap_or_default();
        let at_once = match stage {
            Stage::Rollout => return moves.got_bytes / moves.parts.max(1),
            Stage::Gradient => u64::from(self.plan.config.jobs.update_shards),
            Stage::Update | Stage::Sft => 1,
            _ => return 0,
        };
        (moves.got_bytes + moves.put_bytes - moves.beside_bytes) / at_once.max(1)
    }

    /// Seconds of an iteration in which the next policy waits for the store.
    pub(crate) fn waited_s(&self, rates: &Rates) -> f64 {
        self.in_turn() as f64 / rates.store_rate.max(1) as f64
    }

    /// What shards of an update cost and what takes their place, where that is a tenth of an iteration of
    /// so many seconds, or takes long where none was measured. Nothing is refused for it.
    pub(crate) fn shards_advice(&self, rates: &Rates, iteration_s: Option<f64>) -> Option<String> {
        const SHARE: f64 = 0.1;
        const LONG_S: f64 = 60.0;
        self.of.get(&Stage::Gradient)?;
        let shards = self.plan.config.jobs.update_shards;
        let sharded = self.in_turn_of(Stage::Gradient) + self.in_turn_of(Stage::Update);
        // One part reads a policy and writes one; its state is in memory.
        let longer = sharded.saturating_sub(2 * self.policy);
        let longer_s = longer as f64 / rates.store_rate.max(1) as f64;
        let share = iteration_s.map(|s| longer_s / (s + longer_s));
        let is_much = share.map_or(longer_s >= LONG_S, |share| share >= SHARE);
        let of_all = share.map(|share| format!(", {:.0} % of an iteration", 100.0 * share));
        is_much.then(|| {
            format!(
                "jobs.update_shards=1: gradients and states of {shards} shards go through the store at every step, for which \
                 the next policy waits {} longer at {} a second{}; those of an adapter (actor_rollout_ref.model.lora_rank) are small",
                text::seconds(longer_s),
                bytes(rates.store_rate as u64),
                of_all.unwrap_or_default()
            )
        })
    }

    /// One line; none where nothing of a model moves.
    pub(crate) fn text(&self, rates: &Rates) -> Option<String> {
        let by_stage = |value: fn(&StageMoves) -> u64| {
            let mut stages: Vec<_> = self.of.iter().map(|(s, moves)| (value(moves), s)).collect();
            stages.retain(|(bytes, _)| *bytes > 0);
            stages.sort_unstable_by(|a, b| b.cmp(a));
            let stages = stages
                .iter()
                .map(|(of, stage)| format!("{stage} {}", bytes(*of)));
            stages.collect::<Vec<_>>().join(", ")
        };
        let (put, got) = (self.all(|of| of.put_bytes), self.all(|of| of.got_bytes));
        if put + got == 0 {
            return None;
        }
        let mut out = format!(
            "an iteration puts ≤ {} ({}) and gets ≤ {} ({})",
            bytes(put),
            by_stage(|of| of.put_bytes),
            bytes(got),
            by_stage(|of| of.got_bytes)
        );
        if self.of.contains_key(&Stage::Gradient) {
            // Its units may be no whole branch of the sum; their number is known in the run alone.
            out += ", a shard counted as one sum of gradients, of which it may leave several";
        }
        let every = self.plan.config.trainer.state_freq;
        if self.of.values().any(|of| of.beside_bytes > 0) {
            out += &match every {
                1 => ", optimizer states after the commits that name them".to_owned(),
                n => format!(
                    ", the optimizer's state of one update in {n} alone; where a worker dies, ≤ {} are made again",
                    many(u64::from(n), "update")
                ),
            };
        }
        let rhythm = self.plan.config.trainer.full_policy_freq;
        if rhythm > 1 && !self.plan.has_adapter() {
            out += &format!(
                ", each policy counted whole, though all but one in {rhythm} may be differences, of some 1 % of it at a learning rate of 1e-6"
            );
        }
        if self.once > 0 {
            out += &format!(", and what stays, {}, once a worker", bytes(self.once));
        }
        let waited_s = self.waited_s(rates);
        if waited_s >= 1.0 {
            let whole_s = waited_s * f64::from(self.plan.iterations);
            out += &format!(
                "; at {} a second (--store-rate) the next policy waits {} of each for it, {} in all",
                bytes(rates.store_rate as u64),
                text::seconds(waited_s),
                text::seconds(whole_s)
            );
            if let Some(price) = rates.price {
                let cost = text::cost(price, whole_s);
                out += &format!(
                    ", {cost:.2} in money for each worker that waits, at {price:.2} an hour"
                );
            }
        }
        Some(out)
    }
}

/// What a part of this stage leaves of models and gradients.
fn put(sizes: &Sizes, model: &ModelSize, stage: Stage) -> u64 {
    match stage {
        Stage::Sft | Stage::Dpo | Stage::Update => sizes.policy,
        Stage::Gradient => narrow(model.trained * F32),
        Stage::CriticUpdate => narrow(model.parameters * F32),
        _ => 0,
    }
}

/// The optimizer state that a part of this stage leaves.
fn state(sizes: &Sizes, model: &ModelSize, stage: Stage) -> u64 {
    match stage {
        Stage::Sft | Stage::Dpo | Stage::Update => sizes.optimizer,
        Stage::CriticUpdate => sizes.critic - put(sizes, model, stage),
        _ => 0,
    }
}

/// The trained models, states and gradients that a part reads.
fn got(sizes: &Sizes, model: &ModelSize, part: &Part) -> u64 {
    let stage = part.id.stage;
    let read = |name: &str, from: Stage| match name {
        // A chain of steps goes on with the optimizer's state of the step before.
        "policy" if from == stage => sizes.policy + sizes.optimizer,
        "policy" => sizes.policy,
        "critic" if stage == Stage::CriticUpdate && from == stage => sizes.critic,
        "critic" => narrow(model.parameters * F32),
        name if name.starts_with("gradient.") => narrow(model.trained * F32),
        _ => 0,
    };
    let inputs = part.inputs.iter();
    inputs
        .map(|input| read(&input.name, input.from.stage))
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::model_size;
    use agentgym_jobs::config::ResolvedConfig;
    use std::path::Path;

    const RATE: f64 = 125e6;

    /// Four optimizer steps of a model of 3B's shape.
    fn plan(overrides: &[&str]) -> Plan {
        const TEXT: &str = "
run: {id: r}
data: {tasks: [{env: textcraft, ids: 0..8}], train_batch_size: 8}
actor_rollout_ref:
  model: {path: 'tiny?hidden=2048&layers=36&heads=16&kv_heads=2&intermediate=11008&vocab=151936'}
  actor: {ppo_mini_batch_size: 2}
  rollout: {n: 2}
trainer: {total_training_steps: 3}
";
        let overrides: Vec<String> = overrides.iter().map(|o| (*o).to_owned()).collect();
        let config = ResolvedConfig::parse("x", Path::new("x.yaml"), TEXT, &overrides).unwrap();
        Plan::new(config, Path::new("")).unwrap()
    }

    /// By stage, seconds, and the line.
    fn moved(overrides: &[&str]) -> (BTreeMap<&'static str, StageMoves>, f64, String) {
        let plan = plan(overrides);
        let model = model_size::of(&plan.config.actor_rollout_ref.model).unwrap();
        let moves = Moves::new(&plan, &model);
        let rates = Rates {
            price: Some(2.0),
            ..Rates::default()
        };
        let text = moves.text(&rates).unwrap();
        (moves.document(), moves.waited_s(&rates), text)
    }

    /// Every step of a sharded update leaves a policy and a state, and every shard a gradient: where
    /// one part puts 37 GB, four steps of four shards put 345.
    #[test]
    fn shards_of_an_update_are_counted() {
        let (whole, waited_s, text) = moved(&[]);
        assert!(
            text.contains("in money") && !text.contains("stays"),
            "{text}"
        );
        let policy = whole["rollout"].got_bytes / whole["rollout"].parts;
        assert!(
            (12_000_000_000..13_000_000_000).contains(&policy),
            "{policy}"
        );
        let update = whole["update"];
        assert_eq!((update.parts, update.put_bytes), (1, 3 * policy));
        // A worker that has neither reads the policy and its state.
        assert_eq!(update.got_bytes, 3 * policy);
        // What was made here is read here, and its state is written beside the next rollouts.
        assert_eq!(waited_s, (3 * policy) as f64 / RATE);
        assert!(text.contains("after the commits"), "{text}");
        let (seldom, as_long_s, text) = moved(&["trainer.state_freq=4"]);
        assert_eq!(seldom["update"].put_bytes, policy + policy / 2);
        assert_eq!(as_long_s, waited_s);
        assert!(
            text.contains("one update in 4 alone") && text.contains("≤ 4 updates"),
            "{text}"
        );
        let (_, _, text) = moved(&["trainer.full_policy_freq=8"]);
        assert!(text.contains("all but one in 8"), "{text}");
        let (sharded, longer_s, _) = moved(&["jobs.update_shards=4"]);
        let (update, gradient) = (sharded["update"], sharded["gradient"]);
        assert_eq!((update.parts, gradient.parts), (4, 16));
        assert_eq!(
            update.put_bytes + gradient.put_bytes,
            4 * 3 * policy + 16 * policy
        );
        assert_eq!(update.got_bytes, 4 * (3 + 4) * policy);
        assert_eq!(gradient.got_bytes, 16 * policy);
        let in_turn = 1 + 4 * (3 + 3 + 4) + 4 * 2;
        assert_eq!(longer_s, (in_turn * policy) as f64 / RATE);
    }

    #[test]
    fn shards_that_take_long_are_named_with_what_to_use() {
        let said = |shards: &str, more: &str, iteration_s| {
            let plan = plan(&[shards, more]);
            let model = model_size::of(&plan.config.actor_rollout_ref.model).unwrap();
            Moves::new(&plan, &model).shards_advice(&Rates::default(), iteration_s)
        };
        let (four, full) = ("jobs.update_shards=4", "data.train_batch_size=8");
        let long = said(four, full, None).unwrap();
        assert!(
            long.starts_with("jobs.update_shards=1: ") && long.contains("4 shards"),
            "{long}"
        );
        let share = said(four, full, Some(10_000.0)).unwrap();
        assert!(share.contains("125 MB a second, 31 %"), "{share}");
        assert_eq!(said(four, full, Some(1e6)), None);
        assert_eq!(said("jobs.update_shards=1", full, None), None);
        assert_eq!(
            said(four, "actor_rollout_ref.model.lora_rank=8", None),
            None
        );
    }

    /// The base is read once, and what is trained is all that an iteration moves.
    #[test]
    fn an_adapter_moves_little_but_its_base() {
        let (moved, waited_s, text) = moved(&["actor_rollout_ref.model.lora_rank=8"]);
        let (update, rollout) = (moved["update"], moved["rollout"]);
        assert!(update.put_bytes < 300_000_000, "{update:?}");
        assert_eq!(rollout.got_bytes / rollout.parts, update.put_bytes / 3);
        assert!(
            waited_s < 5.0 && text.contains("what stays, 12 GB, once a worker"),
            "{text}"
        );
    }
}
