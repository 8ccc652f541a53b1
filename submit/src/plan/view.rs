//! `plan run.yaml`: what the run would do, on one screen, before anything is written or started. ≤
//! marks an upper bound.

use crate::plan::advice::advice;
use crate::plan::device::{Gpu, GpuMemory};
use crate::plan::document::{PlanDocument, SizesDocument};
use crate::plan::measured::Measured;
use crate::plan::memory::Memory;
use crate::plan::model_size::{self, ModelSize};
use crate::plan::moves::{Moves, Rates};
use crate::plan::parts::Counted;
use crate::plan::sizes::{Sizes, narrow, sequences, steps_per_iteration};
use crate::plan::texts::{
    candle_text, chat_text, engine_text, horizons, sessions_text, sft_text, some_of, steps_text,
    tasks_text, template_text,
};
use crate::text::{bytes, count, many};
use agentgym_jobs::config::Pipeline;
use agentgym_jobs::plan::Plan;
use agentgym_model::{Device, Dtype};
use agentgym_text::without_secrets;
use agentgym_worker::{class_made_in, model_folder};
use serde::Serialize;
use serde_json::json;

/// Everything on the screen, as numbers.
#[derive(Debug)]
pub struct PlanView<'a> {
    plan: &'a Plan,
    model: Result<ModelSize, String>,
    threads: u64,
    /// Memory of this machine in bytes.
    machine: u64,
    /// What the workers compute on, if it is no processor.
    gpu: Option<Gpu>,
    /// What `--device` names, where that is no GPU.
    device: String,
    /// What the products of processors read.
    dtype: Dtype,
    store: String,
    queue: String,
    unused: &'a [String],
    /// Keys of AgentGym-RL that behave differently here.
    pub(crate) notes: &'a [String],
    /// What runs of this model took, or why that is not known.
    pub(crate) measured: Result<Measured, String>,
    /// How fast the store is, and what a worker costs where no measured run says it.
    pub(crate) rates: Rates,
}

impl<'a> PlanView<'a> {
    /// Prepares the view; reads the model folder's config if it is on this machine.
    pub fn new(plan: &'a Plan, store: &str, queue: Option<&str>, unused: &'a [String]) -> Self {
        let cores = agentgym_worker::cores();
        Self {
            plan,
            model: model_size::of(&plan.config.actor_rollout_ref.model),
            threads: plan.config.jobs.threads.unwrap_or(cores) as u64,
            machine: agentgym_worker::machine_bytes(),
            gpu: None,
            device: "cpu".to_owned(),
            dtype: Dtype::F32,
            store: store.to_owned(),
            queue: queue.unwrap_or("beside the store").to_owned(),
            unused,
            notes: &[],
            measured: Err("no measured run of this model was found".to_owned()),
            rates: Rates::default(),
        }
    }

    /// What a model that was exported from a run says of how it was made, where a processor would
    /// make it otherwise now.
    fn made_elsewhere(&self) -> Option<String> {
        let path = &self.plan.config.actor_rollout_ref.model.path;
        let class = class_made_in(&model_folder(path).ok()?)?;
        let device = self.processor().unwrap_or_else(|_| Device::cpu());
        let own = device.numeric_class().to_owned();
        let other = format!(
            "; made in numeric class {class}: trained again in {own}, this program's, it has other bytes"
        );
        (class != own).then_some(other)
    }

    /// Counts for workers with this `--device` and `--dtype`: the memory of a GPU too.
    pub fn with_device(mut self, device: &str, dtype: Dtype) -> Self {
        self.gpu = Gpu::of(device, dtype);
        if self.gpu.is_none() {
            (self.device, self.dtype) = (device.to_owned(), dtype);
        }
        self
    }

    /// The peaks of memory by what was measured, where it was of this model.
    fn peaks(&self, bound: &Memory) -> Option<Memory> {
        let measured = self.measured.as_ref().ok()?;
        let peaks = measured.memory(bound);
        (peaks.largest() > 0).then_some(peaks)
    }

    fn processor(&self) -> agentgym_model::Result<Device> {
        Device::parse(&self.device, self.dtype)
    }

    /// What would be better, a key with its value and the reason each.
    fn better(&self) -> Vec<String> {
        let Ok(model) = &self.model else {
            return Vec::new();
        };
        let mut lines = advice(self.plan, model);
        let iteration_s = self.measured.as_ref().ok().map(|measured| {
            let workers = self.plan.config.jobs.workers.max(1);
            measured.worker_s() / f64::from(self.plan.iterations.max(1)) / workers as f64
        });
        let moves = Moves::new(self.plan, model);
        lines.extend(moves.shards_advice(&self.rates, iteration_s));
        lines
    }

    fn evaluations(&self) -> Vec<u32> {
        if self.plan.config.evaluation.sets.is_empty() {
            return Vec::new();
        }
        (0..=self.plan.iterations)
            .filter(|n| self.plan.evaluates(*n))
            .collect()
    }

    /// One screen of text.
    pub fn render(&self) -> String {
        let plan = self.plan;
        let config = &plan.config;
        let mut out = String::new();
        let mut line = |name: &str, text: String| out += &format!("{name:<11} {text}\n");
        let (pipeline, numerics) = (word(config.run.pipeline), word(config.run.numerics));
        line(
            "run",
            format!(
                "{}  pipeline {pipeline}, seed {}, numerics {numerics}",
                plan.run, config.run.seed
            ),
        );
        let path = &config.actor_rollout_ref.model.path;
        line(
            "model",
            match &self.model {
                Ok(m) => {
                    let adapter = m.adapter_rank.map(|rank| {
                        let trained = count(narrow(m.trained));
                        format!("; trained is an adapter of rank {rank}, {trained} parameters")
                    });
                    let parameters = count(narrow(m.parameters));
                    format!(
                        "{path}, {parameters} parameters ({} in f32){}{}",
                        bytes(narrow(m.parameters * 4)),
                        adapter.unwrap_or_default(),
                        self.made_elsewhere().unwrap_or_default()
                    )
                }
                Err(_) if plan.evaluates_by_candle() => candle_text(plan),
                Err(why) => format!("{path}: {why}"),
            },
        );
        if let Some(said) = template_text(plan) {
            line("template", said);
        }
        if plan.sft_parts(0) > 0 {
            let name = match config.run.pipeline {
                Pipeline::Rl | Pipeline::Dpo | Pipeline::AgentEvol | Pipeline::Eval => "warm start",
                Pipeline::Sft => "sft",
            };
            line(name, sft_text(plan));
        }
        if config.run.pipeline == Pipeline::Dpo {
            let dpo = &config.dpo;
            line(
                "dpo",
                format!(
                    "{} optimizer steps × {} pairs, {} with beta {}, lr {:e}, in {} parts",
                    dpo.steps,
                    dpo.batch_size,
                    dpo.loss_type,
                    dpo.beta,
                    dpo.lr,
                    plan.dpo_parts()
                ),
            );
        }
        if plan.iterations > 0 {
            self.render_training(&mut line);
        }
        self.render_evaluation(&mut line);
        line("parts", Counted::of(plan).text(plan));
        match &self.model {
            // What an API takes is not this machine's.
            Ok(_) if plan.evaluates_by_chat() => {}
            _ if plan.evaluates_by_candle() => {}
            Ok(model) => {
                let s = Sizes::new(plan, model);
                let (policy, optimizer) = (bytes(s.policy), bytes(s.optimizer));
                let critic = match s.critic {
                    0 => String::new(),
                    critic => format!("critic with optimizer {}, ", bytes(critic)),
                };
                let per_iteration = format!(
                    "policy {policy}, optimizer {optimizer}, {critic}records ≤ {}",
                    bytes(s.records)
                );
                line(
                    "bytes",
                    format!("each iteration {per_iteration}; kept ≤ {}", bytes(s.kept)),
                );
                let of_run = self.measured.as_ref().ok().and_then(Measured::price);
                let rates = Rates {
                    price: of_run.or(self.rates.price),
                    ..self.rates
                };
                let moves = Moves::new(plan, model).text(&rates);
                if let Some(moved) = moves {
                    line("store", moved);
                }
                let memory = Memory::new(plan, model, self.threads, self.dtype);
                let here = config.jobs.workers as u64;
                let beyond = match memory.largest().saturating_mul(here) > self.machine {
                    true => {
                        let (stage, keys) = memory.largest_stage(plan);
                        format!(
                            "; {} here may need more than the {} of this machine in {stage}, where sequences are as long as they may be: lower {keys}",
                            many(here, "worker"),
                            bytes(self.machine)
                        )
                    }
                    false => String::new(),
                };
                line(
                    "memory",
                    format!(
                        "each worker, {} threads: ≤ {}{beyond}",
                        self.threads,
                        memory.text()
                    ),
                );
                if let Some(peaks) = self.peaks(&memory) {
                    line("", format!("as measured, about {}", peaks.text()));
                }
                if let Some(gpu) = self.gpu {
                    let memory = GpuMemory::new(plan, model, gpu.dtype);
                    line("gpu memory", memory.text(plan, gpu));
                }
            }
            Err(_) => line("bytes", "unknown without the model".into()),
        }
        if let Err(why) = self.processor() {
            line("processor", why.to_string());
        }
        line(
            "time",
            match &self.measured {
                Ok(measured) => measured.text(config.jobs.workers),
                Err(why) => {
                    format!("not measured: {why}; a store that is no folder is asked with --store")
                }
            },
        );
        let sessions = sessions_text(plan);
        if !sessions.is_empty() {
            line("sessions", sessions);
        }
        line(
            "place",
            format!(
                "store {}, queue {}, {} in this process",
                self.store,
                self.queue,
                many(config.jobs.workers as u64, "worker")
            ),
        );
        if !self.unused.is_empty() {
            line("not used", self.unused.join(", "));
        }
        for advice in self.better() {
            line("better", advice);
        }
        for note in self.notes {
            line("note", note.clone());
        }
        out
    }

    fn render_training(&self, line: &mut dyn FnMut(&str, String)) {
        let plan = self.plan;
        let config = &plan.config;
        let rollout = &config.actor_rollout_ref.rollout;
        line(
            "batch",
            format!(
                "{} tasks × {} samples = {} sequences per iteration, of {} different tasks",
                config.data.train_batch_size,
                rollout.n,
                count(sequences(plan)),
                count(plan.tasks.len() as u64)
            ),
        );
        line("tasks", tasks_text(plan));
        line("steps", steps_text(plan));
        if let (Some(function), Some(url)) = (&config.reward.function, &config.reward.url) {
            line(
                "rewards",
                format!("from {function} at {}", without_secrets(url)),
            );
        }
        if plan.generates_by_server() {
            line("engine", engine_text(plan));
        }
        if config.run.pipeline == Pipeline::Rl {
            line("kl", self.kl_text());
        }
        line(
            "tokens",
            format!(
                "prompt ≤ {}, response ≤ {}, turn ≤ {}, context ≤ {}; units of {}{}",
                config.data.max_prompt_length,
                config.data.max_response_length,
                rollout.max_tokens,
                rollout.max_model_len,
                config.jobs.unit_tokens,
                match config.actor_rollout_ref.actor.share_prefixes {
                    true => ", common beginnings counted once",
                    false => "",
                }
            ),
        );
        line("horizon", horizons(plan));
    }

    /// Where the KL divergence from the reference policy is used.
    fn kl_text(&self) -> String {
        let config = &self.plan.config;
        let (algorithm, actor) = (&config.algorithm, &config.actor_rollout_ref.actor);
        let mut places = Vec::new();
        if config.run.pipeline == Pipeline::Rl && actor.use_kl_loss {
            places.push(format!(
                "in the loss, {} × {}",
                actor.kl_loss_coef, actor.kl_loss_type
            ));
        }
        let (penalty, control) = (&algorithm.kl_penalty, &algorithm.kl_ctrl);
        if config.run.pipeline == Pipeline::Rl && algorithm.use_kl_in_reward {
            places.push(format!(
                "off the reward, {} × {penalty}, {} coefficient",
                control.kl_coef, control.kind
            ));
        }
        match places.is_empty() {
            false => places.join("; "),
            true if self.unused.is_empty() => "nowhere".into(),
            // A config with unused keys comes from AgentGym-RL.
            true => format!(
                "nowhere; AgentGym-RL takes {} × {penalty} off the reward where use_kl_loss is false: here that is \
                 algorithm.use_kl_in_reward=true",
                control.kl_coef
            ),
        }
    }

    fn render_evaluation(&self, line: &mut dyn FnMut(&str, String)) {
        let evaluation = &self.plan.config.evaluation;
        if evaluation.sets.is_empty() {
            return;
        }
        let sets: Vec<String> = evaluation
            .sets
            .iter()
            .map(|set| {
                let tasks = set.ids.count("evaluation.sets").unwrap_or(0);
                let categories = match set.categories.as_ref().map_or(0, |c| c.len() as u64) {
                    0 => String::new(),
                    1 => " in 1 category".to_owned(),
                    n => format!(" in {n} categories"),
                };
                format!("{} ({tasks} tasks{categories})", set.name)
            })
            .collect();
        if self.plan.evaluates_by_chat() {
            line("engine", chat_text(self.plan));
        }
        line("evaluate", sets.join(", "));
        let greedy = match evaluation.greedy_beside() {
            0 => "",
            _ => " + 1 greedy",
        };
        if crate::metrics::is_all(self.plan) {
            let ks: Vec<String> = evaluation
                .ks()
                .iter()
                .map(|k| format!("pass@{k}"))
                .collect();
            line(
                "",
                format!(
                    "{} at T={}{greedy}, {} rounds; avg@{}, {}",
                    many(evaluation.samples.into(), "sample"),
                    evaluation.temperature,
                    evaluation.max_rounds,
                    evaluation.samples,
                    ks.join(", ")
                ),
            );
            return;
        }
        let at = self.evaluations();
        let when = some_of(at.iter().map(ToString::to_string));
        let before = if self.plan.warms_up() {
            "before the warm start and "
        } else {
            ""
        };
        line(
            "",
            format!(
                "{} samples at T={}{greedy}, {} rounds; {before}after iterations {when}",
                evaluation.samples, evaluation.temperature, evaluation.max_rounds
            ),
        );
    }

    /// The same as a document.
    pub fn document(&self) -> PlanDocument {
        let plan = self.plan;
        let counted = Counted::of(plan);
        let names = counted.start.keys().chain(counted.each.keys());
        PlanDocument {
            run: plan.run.to_string(),
            identity: plan.identity.clone(),
            iterations: plan.iterations,
            tasks: plan.tasks.len(),
            sequences_per_iteration: sequences(plan),
            tokens_per_sequence_max: plan.context_tokens(),
            minibatches: plan.minibatches(),
            optimizer_steps_per_iteration: steps_per_iteration(plan),
            parts: counted.all,
            stages: names.map(|stage| stage.name()).collect(),
            horizon: (1..=plan.iterations).map(|n| plan.rounds_max(n)).collect(),
            evaluations: self.evaluations(),
            sizes: self.model.as_ref().ok().map(|model| self.sizes(model)),
            measured: self.measured.as_ref().ok().map(Measured::document),
            unmeasured_why: self.measured.as_ref().err().cloned(),
            not_used: self.unused.to_vec(),
            notes: self.notes.to_vec(),
            better: self.better(),
            template: template_text(plan),
            kl: self.kl_text(),
            fork: None,
        }
    }

    fn sizes(&self, model: &ModelSize) -> SizesDocument {
        let sizes = Sizes::new(self.plan, model);
        let moves = Moves::new(self.plan, model);
        let memory = Memory::new(self.plan, model, self.threads, self.dtype);
        let gpu = self
            .gpu
            .as_ref()
            .map(|gpu| GpuMemory::new(self.plan, model, gpu.dtype));
        let on_gpu = gpu.iter().flat_map(GpuMemory::json);
        SizesDocument {
            parameters: narrow(model.parameters),
            trained_parameters: narrow(model.trained),
            policy_bytes: sizes.policy,
            optimizer_bytes: sizes.optimizer,
            critic_bytes: sizes.critic,
            records_bytes_max: sizes.records,
            kept_bytes_max: sizes.kept,
            got_once_bytes: moves.once,
            moves: moves.document(),
            store_waited_s: moves.waited_s(&self.rates),
            store_rate: self.rates.store_rate as u64,
            by_stage: memory.json().chain(on_gpu).collect(),
            measured_memory: self.peaks(&memory).map(|peaks| peaks.json().collect()),
        }
    }
}

/// A choice as a config spells it.
fn word(choice: impl Serialize) -> String {
    json!(choice).as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::memory::check_fits;
    use agentgym_jobs::config::ResolvedConfig;
    use agentgym_jobs::pipeline::{Stage, parts};
    use std::collections::BTreeSet;
    use std::path::Path;

    fn plan(text: &str, overrides: &[&str]) -> (Plan, Vec<String>) {
        agentgym_games::provide();
        let overrides: Vec<String> = overrides.iter().map(|o| (*o).to_owned()).collect();
        let config =
            ResolvedConfig::parse("quick", Path::new("quick.yaml"), text, &overrides).unwrap();
        let unused = config.unused.clone();
        (Plan::new(config, Path::new("")).unwrap(), unused)
    }

    const TEXT: &str = "
run: {id: quick}
actor_rollout_ref:
  model: {path: 'tiny?hidden=64&layers=2&vocab=512'}
  actor: {ppo_mini_batch_size: 4, ppo_epochs: 2}
  rollout: {n: 4, max_tokens: 32, max_model_len: 1024}
data:
  train_batch_size: 8
  max_prompt_length: 512
  max_response_length: 256
  tasks: [{env: textcraft, ids: 0..400}]
algorithm:
  rounds_ctrl: {type: scaling_inter_stepwise, rounds: [4, 6, 8], steps_scaling_inter: 10}
sft: {steps: 300, sources: [{env: textcraft, ids: 0..40}]}
evaluation: {sets: [{name: held_out, env: textcraft, ids: 400..440}]}
trainer: {nnodes: 2, total_training_steps: 25}
jobs: {rollout_part_tasks: 2}
";

    #[test]
    fn one_screen() {
        let (plan, unused) = plan(TEXT, &[]);
        let mut view = PlanView::new(&plan, "data", Some("redis://h"), &unused);
        (view.threads, view.machine) = (2, 1 << 30);
        insta::assert_snapshot!(view.render(), @"
            run         quick  pipeline rl, seed 1, numerics exact
            model       tiny?hidden=64&layers=2&vocab=512, 205 376 parameters (822 kB in f32)
            warm start  300 optimizer steps × 8 conversations = 2 400, lr 1e-3, in 2 parts
            batch       8 tasks × 4 samples = 32 sequences per iteration, of 400 different tasks
            tasks       8 of textcraft at builtin
            steps       2 minibatches × 2 epochs = 4 optimizer steps; × 25 iterations = 100, lr 1e-6
            kl          nowhere; AgentGym-RL takes 0.001 × kl off the reward where use_kl_loss is false: here that is algorithm.use_kl_in_reward=true
            tokens      prompt ≤ 512, response ≤ 256, turn ≤ 32, context ≤ 1024; units of 2048, common beginnings counted once
            horizon     rounds by iteration 1–10: 4, 11–20: 6, 21–25: 8
            evaluate    held_out (40 tasks)
                        8 samples at T=1 + 1 greedy, 15 rounds; before the warm start and after iterations 0, 10, 20, 25
            parts       283 jobs in all; at the start 1 init, 1 evaluate_init, 2 sft, 1 evaluate; each iteration 4 rollout (2 tasks each), 4 log_probs, 1 advantage, 1 update, ≤ 1 evaluate, 1 expire
            bytes       each iteration policy 822 kB, optimizer 1.6 MB, records ≤ 1.0 MB; kept ≤ 35 MB
            store       an iteration puts ≤ 3.5 MB (update 2.5 MB, rollout 1.0 MB) and gets ≤ 9.0 MB (log_probs 3.3 MB, rollout 3.3 MB, update 2.5 MB), optimizer states after the commits that name them
            memory      each worker, 2 threads: ≤ 213 MB in sft, 66 MB in rollout, 101 MB in log_probs, 139 MB in update, 165 MB in evaluate
            time        not measured: no measured run of this model was found; a store that is no folder is asked with --store
            place       store data, queue redis://h, 1 worker in this process
            not used    trainer.nnodes
        ");
    }

    #[test]
    fn a_server_and_what_corrects_for_it_are_said() {
        let given = [
            "actor_rollout_ref.rollout.engine=server",
            "actor_rollout_ref.rollout.server={url: 'http://host:8000', dialect: vllm}",
            "run.numerics=any",
            "algorithm.rollout_correction.rollout_is=token",
            "guard.mismatch_max=0.25",
        ];
        let (plan, unused) = plan(TEXT, &given);
        let screen = PlanView::new(&plan, "data", None, &unused).render();
        let line = screen.lines().find(|line| line.starts_with("engine"));
        assert_eq!(
            line.unwrap(),
            "engine      rollouts by the vllm server at http://host:8000, whose policy is probed; tokens weighed \
             (token), paused beyond a difference of 0.25 nats; evaluations by our own engine"
        );
    }

    #[test]
    fn a_chat_api_and_what_it_costs_are_said() {
        let given = [
            "run.pipeline=eval",
            "actor_rollout_ref.rollout.engine=chat",
            "actor_rollout_ref.rollout.server={url: 'https://host/v1', model: m, price_input: 0.5, price_output: 2}",
        ];
        let (plan, unused) = plan(TEXT, &given);
        let screen = PlanView::new(&plan, "data", None, &unused).render();
        let line = screen.lines().find(|line| line.starts_with("engine"));
        assert_eq!(
            line.unwrap(),
            "engine      m of the chat API at https://host/v1, ≤ 8 requests at once; 0.5 per million tokens in, 2 per \
             million out; its texts are recorded as ids of tiny?hidden=64&layers=2&vocab=512, without log-probs"
        );
        assert!(!screen.contains("memory"), "{screen}");
    }

    #[test]
    fn a_start_of_another_numeric_class_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/qwen2-tiny");
        std::fs::copy(
            fixture.join("config.json"),
            folder.path().join("config.json"),
        )
        .unwrap();
        let path = format!("actor_rollout_ref.model.path={}", folder.path().display());
        let (plan, _) = plan(TEXT, &[&path]);
        let screen = |made: &str| {
            std::fs::write(folder.path().join(agentgym_worker::MADE), made).unwrap();
            PlanView::new(&plan, "data", None, &[]).render()
        };
        let own = format!(
            "{{\"numeric_class\": \"{}\"}}",
            Device::cpu().numeric_class()
        );
        let other = screen("{\"numeric_class\": \"cpu-f32-0\"}");
        assert!(other.contains("made in numeric class cpu-f32-0"), "{other}");
        for silent in [own.as_str(), "{}", "no json"] {
            let said = screen(silent);
            assert!(!said.contains("made in"), "{silent}: {said}");
        }
    }

    #[test]
    fn a_device_that_computes_nothing_is_said() {
        let (plan, _) = plan(TEXT, &[]);
        for (device, dtype, reason) in [
            ("banana", Dtype::F32, "is none of"),
            ("cuda:x", Dtype::Bf16, "is none of"),
            ("cpu:avx512", Dtype::F32, "it is for products in bf16"),
            ("cpu", Dtype::F32, ""),
            ("cuda:0", Dtype::F32, ""),
        ] {
            let view = PlanView::new(&plan, "data", None, &[]).with_device(device, dtype);
            let screen = view.render();
            let said = screen.lines().find(|line| line.starts_with("processor"));
            let is_said = said.is_some_and(|line| line.contains(reason) && !reason.is_empty());
            assert_eq!(is_said, !reason.is_empty(), "{device}: {screen}");
            assert_eq!(screen.contains("gpu memory"), device == "cuda:0");
        }
    }

    #[test]
    fn too_little_memory_is_said() {
        let (small, _) = plan(TEXT, &[]);
        let screen = |memory: u64| {
            let mut view = PlanView::new(&small, "data", None, &[]);
            (view.threads, view.machine) = (2, memory);
            let size = model_size::of(&small.config.actor_rollout_ref.model).unwrap();
            (view.render(), check_fits(&small, &size, memory))
        };
        let (whole, fits) = screen(1 << 30);
        assert!(!whole.contains("may need more"), "{whole}");
        assert!(fits.is_ok());
        let (tight, fits) = screen(120_000_000);
        assert!(
            tight.contains("1 worker here may need more than the 120 MB of this machine"),
            "{tight}"
        );
        assert!(fits.is_ok(), "shorter sequences may fit");
        let keys = |overrides: &[&str]| {
            let (plan, _) = plan(TEXT, overrides);
            let mut view = PlanView::new(&plan, "data", None, &[]);
            (view.threads, view.machine) = (2, 120_000_000);
            let screen = view.render();
            let (_, said) = screen.split_once("of this machine in ").unwrap();
            said.lines().next().unwrap().to_owned()
        };
        for (overrides, stage, key) in [
            (&[][..], "sft", "sft.max_length"),
            (&["sft.steps=0"], "evaluate", "jobs.cache_tokens"),
            (
                &["sft.steps=0", "evaluation.sets=[]"],
                "update",
                "jobs.unit_tokens",
            ),
            (
                &[
                    "sft.steps=0",
                    "evaluation.sets=[]",
                    "data.max_response_length=60000",
                    "actor_rollout_ref.rollout.max_model_len=61000",
                ],
                "update",
                "data.max_response_length",
            ),
        ] {
            let said = keys(overrides);
            assert!(
                said.starts_with(stage) && said.contains(key),
                "{overrides:?}: {said}"
            );
        }
        let (_, fits) = screen(1_000_000);
        // The key is named where the model is checked (run/local.rs).
        let why = fits.unwrap_err();
        assert!(why.contains("this machine has 1.0 MB"), "{why}");
    }

    #[test]
    fn a_model_that_is_not_here_leaves_the_rest_readable() {
        let (plan, _) = plan(TEXT, &["actor_rollout_ref.model.path=no/such/folder"]);
        let view = PlanView::new(&plan, "data", None, &[]);
        let screen = view.with_device("banana", Dtype::F32).render();
        assert!(screen.contains("is none of"), "{screen}");
        assert!(screen.contains("there is no folder"), "{screen}");
        assert!(screen.contains("unknown without the model"), "{screen}");
        assert!(
            screen.contains("8 tasks × 4 samples = 32 sequences"),
            "{screen}"
        );
    }

    #[test]
    fn numbers_for_programs_agree_with_the_arithmetic() {
        let (plan, _) = plan(TEXT, &[]);
        let json = json!(PlanView::new(&plan, "data", None, &[]).document());
        assert_eq!(json["sequences_per_iteration"], 32);
        assert_eq!(json["optimizer_steps_per_iteration"], 4);
        assert_eq!(json["horizon"].as_array().map(Vec::len), Some(25));
        assert_eq!(json["evaluations"], json!([0, 10, 20, 25]));
        let p = json["sizes"]["parameters"].as_u64().unwrap();
        assert_eq!(json["sizes"]["optimizer_bytes"], p * 8);
    }

    /// For every pipeline with every option that adds or removes a stage: the screen names the
    /// stages that `parts` yields in any iteration, and counts all of their parts.
    #[test]
    fn every_stage_of_every_pipeline_is_listed() {
        let pipelines: [&[&str]; 7] = [
            &[],
            &["run.pipeline=sft"],
            &["run.pipeline=eval"],
            &["run.pipeline=agentevol", "agentevol.steps=3"],
            &[
                "run.pipeline=dpo",
                "dpo.steps=3",
                "dpo.expert_file=a",
                "dpo.experience_file=b",
            ],
            &["algorithm.adv_estimator=gae", "trainer.critic_warmup=2"],
            &["algorithm.filter_groups.enable=true"],
        ];
        let options: [&[&str]; 8] = [
            &[],
            &["reward.function=judge-2", "reward.url=http://127.0.0.1:9"],
            &["jobs.update_shards=2"],
            &["sft.steps=0"],
            &[
                "evaluation.sets=[]",
                "actor_rollout_ref.actor.use_kl_loss=true",
            ],
            &["trainer.test_freq=0", "actor_rollout_ref.model.lora_rank=2"],
            &["algorithm.adv_estimator=remax"],
            &["run.fork.run=parent", "run.fork.iteration=3"],
        ];
        let mut seen = BTreeSet::new();
        for pipeline in pipelines {
            for option in options {
                let given: Vec<String> = [pipeline, option, &["run.id=x"]]
                    .concat()
                    .into_iter()
                    .map(str::to_owned)
                    .collect();
                let config = ResolvedConfig::parse("x", Path::new("x.yaml"), TEXT, &given);
                // Some options exclude each other; the error names the key.
                let Ok(plan) = config.and_then(|config| Plan::new(config, Path::new(""))) else {
                    continue;
                };
                if plan.forked_at().is_some() && plan.iterations == 0 {
                    // Nothing to fork.
                    continue;
                }
                let all: Vec<_> = (0..=plan.iterations)
                    .flat_map(|n| parts(&plan, n))
                    .collect();
                let own = all.iter().filter(|part| {
                    let last = plan.forked_at();
                    last.is_none_or(|last| part.id.iteration > last)
                });
                let yielded: BTreeSet<&str> = own.map(|part| part.id.stage.name()).collect();
                let view = PlanView::new(&plan, "data", None, &[]);
                let screen = view.render();
                let line = screen.lines().find(|l| l.starts_with("parts ")).unwrap();
                let words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
                let known = Stage::ALL.map(Stage::name);
                let named: BTreeSet<&str> = words.filter(|word| known.contains(word)).collect();
                assert_eq!(named, yielded, "{given:?}: {line}");
                let json = json!(view.document());
                assert_eq!(json["parts"], all.len(), "{given:?}");
                assert!(line.contains(&count(all.len() as u64)), "{line}");
                seen.extend(yielded.into_iter().map(str::to_owned));
            }
        }
        let all: BTreeSet<String> = Stage::ALL.iter().map(|s| s.name().to_owned()).collect();
        assert_eq!(seen, all, "a stage that no case has");
    }
}
