//! How long a run will take, what it will cost and what memory it needs, from what runs of the same
//! model took in the same store, or a trial just now: seconds of work by stage, in proportion to the
//! work that the plan asks for; and the peaks of memory, with the share of what sequences of the
//! maximum length need that the sequences of those runs needed.

use crate::Result;
use crate::plan::document::MeasuredDocument;
use crate::plan::memory::{Bytes, Memory};
use crate::plan::parts::Counted;
use crate::plan::sizes::sequences;
use crate::runs::RunView;
use crate::text;
use agentgym_jobs::pipeline::{PartId, Stage};
use agentgym_jobs::plan::Plan;
use agentgym_model::Dtype;
use agentgym_record::Stats;
use agentgym_storage::{Manifest, Store};
use std::collections::BTreeMap;

/// Runs that are looked at, of those with the same model.
const RUNS_MAX: usize = 5;
/// Commits read of each stage of a run: its newest ones.
const COMMITS_MAX: usize = 8;
/// Share of the groups whose rewards differ, and teach an estimator by groups; in a trial all train.
const TEACHING: f64 = 0.5;

/// What a plan will take.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// Seconds of a worker by stage.
    by_stage: BTreeMap<Stage, f64>,
    /// Stages of the plan that no run has had.
    unmeasured: Vec<Stage>,
    /// The runs that were measured.
    runs: Vec<String>,
    /// The class of their workers.
    numeric_class: String,
    /// Price of an hour of these workers, where they said it.
    price: Option<f64>,
    /// Seconds of the trial that was measured, in place of runs.
    trial_s: Option<f64>,
    /// What sequences needed of memory, as a share of what they may need by their maximum length.
    lengths: BTreeMap<Stage, f64>,
}

/// What commits of a stage took.
#[derive(Debug, Clone, Copy, Default)]
struct Spent {
    /// Seconds that grow with the work, and the work.
    seconds: f64,
    work: f64,
    /// Seconds that each part takes whatever its work, and the parts.
    apart_s: f64,
    parts: f64,
}

/// Seconds and work of commits, by numeric class and stage.
#[derive(Debug, Default)]
struct Seen {
    spent: BTreeMap<(String, Stage), Spent>,
    lengths: BTreeMap<(String, Stage), f64>,
    runs: Vec<String>,
    /// Prices, weighed by seconds.
    priced: (f64, f64),
}

/// The work of one part of a stage, in units of that stage: what is sampled or trained on grows with
/// episodes and their horizon.
fn work(plan: &Plan, stage: Stage, rounds: f64, parts: u64) -> f64 {
    let config = &plan.config;
    let epochs = match stage {
        Stage::Update | Stage::Gradient | Stage::CriticUpdate => {
            f64::from(config.actor_rollout_ref.actor.ppo_epochs)
        }
        _ => 1.0,
    };
    let whole = match stage {
        Stage::Init | Stage::Expire => return 1.0,
        Stage::Sft => f64::from(plan.sft_steps_of(0).max(1)) * config.sft.batch_size as f64,
        Stage::Dpo => f64::from(config.dpo.steps) * config.dpo.batch_size as f64,
        Stage::Evaluate | Stage::EvaluateInit => {
            let evaluation = &config.evaluation;
            let tasks = evaluation
                .sets
                .iter()
                .map(|set| set.ids.count("evaluation.sets"));
            let tasks: usize = tasks.map(|count| count.unwrap_or(0)).sum();
            let each = f64::from(evaluation.samples) + f64::from(evaluation.greedy_beside());
            tasks as f64 * each * f64::from(evaluation.max_rounds)
        }
        _ => sequences(plan) as f64 * rounds * epochs,
    };
    whole / parts.max(1) as f64
}

/// Parts of every stage, and in how many iterations.
fn stages(plan: &Plan) -> BTreeMap<Stage, (u64, u64)> {
    let counted = Counted::of(plan);
    let start = counted
        .start
        .iter()
        .map(|(stage, parts)| (*stage, (*parts, 0)));
    let mut all: BTreeMap<Stage, (u64, u64)> = start.collect();
    for (stage, (parts, iterations)) in &counted.each {
        let entry = all.entry(*stage).or_insert((*parts, 0));
        entry.0 = entry.0.max(*parts);
        entry.1 += iterations;
    }
    // What iteration 0 has is made once more than the iterations after it have it.
    for stage in counted.start.keys() {
        if let Some(entry) = all.get_mut(stage) {
            entry.1 += 1;
        }
    }
    all
}

/// Rounds that an episode may have, over all iterations.
fn mean_rounds(plan: &Plan) -> f64 {
    let all = (1..=plan.iterations).map(|n| f64::from(plan.rounds_max(n)));
    all.sum::<f64>() / f64::from(plan.iterations.max(1))
}

impl Seen {
    fn add(&mut self, plan: &Plan, id: PartId, manifest: &Manifest, parts: u64) {
        let Some(done) = manifest.work.as_ref().filter(|_| manifest.origin.is_none()) else {
            return;
        };
        let rounds = f64::from(plan.rounds_max(id.iteration.max(1)));
        let key = (manifest.numeric_class.clone(), id.stage);
        let entry = self.spent.entry(key).or_default();
        // A part reads, and makes its demonstrations, before it computes, and then writes.
        let busy_s = Stats::read(id, &done.stats).unwrap_or_default().busy_s;
        let seconds = busy_s.map_or(done.wall_s, |busy_s| busy_s.min(done.wall_s));
        entry.seconds += seconds;
        entry.work += work(plan, id.stage, rounds, parts);
        entry.apart_s += done.wall_s - seconds;
        entry.parts += 1.0;
        let run = plan.run.to_string();
        if !self.runs.contains(&run) {
            self.runs.push(run);
        }
    }

    /// Remembers the peak of a commit, beside what its run's plan is told.
    fn add_peak(&mut self, bound: &Memory, id: PartId, manifest: &Manifest) {
        let done = manifest.work.as_ref();
        let measured = done.and_then(|done| Stats::read(id, &done.stats).ok());
        let peak = measured.and_then(|measured| measured.peak_memory_bytes);
        // Not every system tells a peak.
        let (Some(peak @ 1..), Some(most)) = (peak, bound.of(id.stage)) else {
            return;
        };
        let share = (peak as f64 - most.fixed as f64) / most.by_lengths.max(1) as f64;
        let key = (manifest.numeric_class.clone(), id.stage);
        let largest = self.lengths.entry(key).or_insert(share);
        *largest = share.max(*largest);
    }

    /// What the plan takes at these rates; the class that worked longest counts.
    fn scaled(self, plan: &Plan) -> Option<Measured> {
        let mut classes: BTreeMap<&str, f64> = BTreeMap::new();
        for ((class, _), spent) in &self.spent {
            *classes.entry(class).or_default() += spent.seconds + spent.apart_s;
        }
        let (class, _) = classes.into_iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
        let class = class.to_owned();
        let rounds = mean_rounds(plan);
        let (mut by_stage, mut unmeasured) = (BTreeMap::new(), Vec::new());
        for (stage, (parts, times)) in stages(plan) {
            match self.spent.get(&(class.clone(), stage)) {
                Some(spent) if spent.work > 0.0 => {
                    let count = (parts * times) as f64;
                    let todo = work(plan, stage, rounds, parts) * count;
                    let apart_s = spent.apart_s / spent.parts * count;
                    by_stage.insert(stage, spent.seconds / spent.work * todo + apart_s);
                }
                _ => unmeasured.push(stage),
            }
        }
        let (paid, priced_s) = self.priced;
        let of_class = self
            .lengths
            .into_iter()
            .filter(|((own, _), _)| *own == class);
        Some(Measured {
            lengths: of_class.map(|((_, stage), share)| (stage, share)).collect(),
            by_stage,
            unmeasured,
            runs: self.runs,
            numeric_class: class,
            price: (priced_s > 0.0).then(|| paid / priced_s),
            trial_s: None,
        })
    }
}

impl Measured {
    /// Reads what runs of the plan's model took in a store; `None` if there are none.
    ///
    /// # Errors
    /// The store cannot be read. A run that cannot is left out.
    pub(crate) async fn of(store: &Store, plan: &Plan, dtype: Dtype) -> Result<Option<Self>> {
        let mut seen = Seen::default();
        for run in store.runs().await? {
            if seen.runs.len() == RUNS_MAX {
                break;
            }
            let Ok(view) = RunView::open(store, run.as_str()).await else {
                continue;
            };
            // What plays: a model, or one of a chat API.
            let played = |plan: &Plan| {
                let actor = &plan.config.actor_rollout_ref;
                let api = plan
                    .evaluates_by_chat()
                    .then(|| actor.rollout.server.model.clone());
                (actor.model.path.clone(), api)
            };
            if played(&view.plan) == played(plan) {
                look(&view, dtype, &mut seen).await?;
            }
        }
        Ok(seen.scaled(plan))
    }

    /// The same of a trial that took so many seconds and evaluated nothing: playing for an evaluation
    /// takes what playing to train took, and its sequences are as long.
    pub(crate) fn by_trial(mut self, plan: &Plan, took_s: f64) -> Self {
        let rounds = mean_rounds(plan);
        let all = stages(plan);
        let whole = |stage: Stage| {
            let (parts, times) = all.get(&stage).copied().unwrap_or_default();
            work(plan, stage, rounds, parts) * (parts * times) as f64
        };
        let played = self.by_stage.get(&Stage::Rollout).copied();
        if let Some(played) = played.filter(|_| whole(Stage::Rollout) > 0.0) {
            let rate = played / whole(Stage::Rollout);
            for stage in [Stage::Evaluate, Stage::EvaluateInit] {
                if let Some(at) = self.unmeasured.iter().position(|of| *of == stage) {
                    self.unmeasured.remove(at);
                    self.by_stage.insert(stage, rate * whole(stage));
                }
            }
        }
        let actor = &plan.config.actor_rollout_ref.actor;
        let by_rewards_alone = actor.entropy_coeff == 0.0 && !actor.use_kl_loss;
        if by_rewards_alone && plan.config.algorithm.adv_estimator.needs_groups() {
            for stage in [Stage::Update, Stage::Gradient] {
                self.by_stage.entry(stage).and_modify(|s| *s *= TEACHING);
            }
        }
        if let Some(&share) = self.lengths.get(&Stage::Rollout) {
            self.lengths.entry(Stage::Evaluate).or_insert(share);
        }
        self.runs.clear();
        self.trial_s = Some(took_s);
        self
    }

    /// The peaks of a plan with these bounds.
    pub(crate) fn memory(&self, bound: &Memory) -> Memory {
        bound.map(|stage, most| {
            let share = self.lengths.get(&stage)?;
            let peak = most.fixed as f64 + share * most.by_lengths as f64;
            Some(Bytes {
                fixed: peak.max(0.0) as u64,
                by_lengths: 0,
            })
        })
    }

    /// Seconds of a worker in all.
    pub(crate) fn worker_s(&self) -> f64 {
        self.by_stage.values().sum()
    }

    /// What an hour of these workers costs, where they said it.
    pub(crate) fn price(&self) -> Option<f64> {
        self.price
    }

    fn cost(&self) -> Option<f64> {
        self.price.map(|price| text::cost(price, self.worker_s()))
    }

    /// One line.
    pub(crate) fn text(&self, workers: usize) -> String {
        const SHARE_MIN: f64 = 0.01;
        let all = self.worker_s();
        let mut shares: Vec<(&Stage, f64)> = self
            .by_stage
            .iter()
            .map(|(stage, s)| (stage, s / all.max(1e-9)))
            .collect();
        shares.sort_by(|a, b| b.1.total_cmp(&a.1));
        shares.retain(|(_, share)| *share >= SHARE_MIN);
        let shares = shares
            .iter()
            .map(|(stage, share)| format!("{stage} {:.0} %", 100.0 * share));
        let mut out = format!("about {} of a worker", text::seconds(all));
        if workers > 1 {
            let least = text::seconds(all / workers as f64);
            out += &format!(", at least {least} with {workers}");
        }
        if let Some(cost) = self.cost() {
            let price = self.price.unwrap_or_default();
            out += &format!(", {cost:.2} in money at {price:.2} an hour");
        }
        let shares = shares.collect::<Vec<_>>().join(", ");
        let (by, none) = match self.trial_s {
            Some(took_s) => (
                format!(
                    "an estimate by a small first iteration, which took {} on this machine just now",
                    text::seconds(took_s)
                ),
                "it had not",
            ),
            None => (
                format!(
                    "by what {} of this model took in this store on {}",
                    text::many(self.runs.len() as u64, "run"),
                    self.numeric_class
                ),
                "none of them had",
            ),
        };
        out += &format!(" ({shares}), {by}");
        if !self.unmeasured.is_empty() {
            let names: Vec<&str> = self.unmeasured.iter().map(|stage| stage.name()).collect();
            out += &format!("; without {}, which {none}", names.join(", "));
        }
        out
    }

    pub(crate) fn document(&self) -> MeasuredDocument {
        let by_stage = self.by_stage.iter().map(|(stage, s)| (stage.name(), *s));
        MeasuredDocument {
            worker_s: self.worker_s(),
            by_stage_s: by_stage.collect(),
            unmeasured: self.unmeasured.iter().map(|stage| stage.name()).collect(),
            runs: self.runs.clone(),
            numeric_class: self.numeric_class.clone(),
            price: self.price,
            cost: self.cost(),
            trial_s: self.trial_s,
        }
    }
}

/// Reads the newest commits of every stage of a run, whose workers are taken to have been like this
/// machine's.
async fn look(view: &RunView, dtype: Dtype, seen: &mut Seen) -> Result<()> {
    let plan = &view.plan;
    let bound = Memory::here(plan, dtype).ok();
    let parts = stages(plan);
    let mut newest: BTreeMap<Stage, Vec<PartId>> = BTreeMap::new();
    for id in view.commits().await? {
        newest.entry(id.stage).or_default().push(id);
    }
    for (stage, mut ids) in newest {
        ids.sort_unstable();
        let of_stage = parts.get(&stage).map_or(1, |(parts, _)| *parts);
        for (at, id) in ids.into_iter().rev().take(COMMITS_MAX).enumerate() {
            let Some(manifest) = view.manifest(id).await? else {
                continue;
            };
            seen.add(plan, id, &manifest, of_stage);
            if let Some(bound) = &bound {
                seen.add_peak(bound, id, &manifest);
            }
            if at > 0 {
                continue;
            }
            // Prices of a stage's workers hardly differ: one record of each.
            let attempts = view.store.attempts(&view.slot(id)).await?;
            let own = attempts
                .iter()
                .find(|attempt| attempt.number == manifest.attempt);
            if let (Some(price), Some(done)) =
                (own.and_then(|own| own.start.machine.price), &manifest.work)
            {
                seen.priced.0 += price * done.wall_s;
                seen.priced.1 += done.wall_s;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use agentgym_jobs::config::ResolvedConfig;
    use agentgym_storage::{AttemptId, Work};
    use serde_json::{Value, json};
    use std::path::Path;

    fn plan(overrides: &[&str]) -> Plan {
        let text = "
run: {id: r}
data: {tasks: [{env: textcraft, ids: 0..8}], train_batch_size: 4}
actor_rollout_ref: {rollout: {n: 2}}
trainer: {total_training_steps: 10}
";
        let overrides: Vec<String> = overrides.iter().map(|o| (*o).to_owned()).collect();
        let config = ResolvedConfig::parse("x", Path::new("x.yaml"), text, &overrides).unwrap();
        Plan::new(config, Path::new("")).unwrap()
    }

    /// The commit of a part that took so long, with these stats.
    fn manifest(plan: &Plan, id: PartId, wall_s: f64, stats: Value) -> Manifest {
        let key = agentgym_storage::PartKey {
            run: plan.run.clone(),
            iteration: id.iteration,
            stage: id.stage.name().to_owned(),
            part: id.part,
        };
        let work = Work {
            worker: "w".into(),
            started_unix_s: 0,
            wall_s,
            stats: stats.as_object().unwrap().clone(),
        };
        Manifest {
            work: Some(work),
            numeric_class: "cpu".into(),
            ..Manifest::new(key, AttemptId::new(1), vec![])
        }
    }

    /// Every part of the first two iterations took `seconds`.
    fn seen(plan: &Plan, seconds: f64) -> Seen {
        let mut seen = Seen::default();
        let parts = stages(plan);
        for n in 0..=2 {
            for part in agentgym_jobs::pipeline::parts(plan, n) {
                let manifest = manifest(plan, part.id, seconds, json!({}));
                seen.add(plan, part.id, &manifest, parts[&part.id.stage].0);
            }
        }
        seen
    }

    #[test]
    fn a_run_like_the_measured_one_takes_what_that_took() {
        let plan = plan(&[]);
        let made = 1
            + (1..=10)
                .map(|n| agentgym_jobs::pipeline::parts(&plan, n).len())
                .sum::<usize>();
        let measured = seen(&plan, 3.0).scaled(&plan).unwrap();
        assert_eq!(measured.unmeasured, []);
        let expected = 3.0 * made as f64;
        let off = (measured.worker_s() - expected).abs();
        assert!(
            off < 1e-6,
            "{} for {expected}: {measured:?}",
            measured.worker_s()
        );
        assert_eq!(measured.cost(), None);
    }

    #[test]
    fn more_samples_take_longer_and_what_nobody_did_is_named() {
        let (small, mut large) = (plan(&[]), plan(&["actor_rollout_ref.rollout.n=4"]));
        let once = seen(&small, 3.0).scaled(&small).unwrap();
        let mut twice = seen(&small, 3.0);
        twice.priced = (4.0, 2.0);
        let twice = twice.scaled(&large).unwrap();
        let ratio = |stage| twice.by_stage[&stage] / once.by_stage[&stage];
        assert!((ratio(Stage::Rollout) - 2.0).abs() < 1e-9);
        assert!((ratio(Stage::Update) - 2.0).abs() < 1e-9);
        let cost = twice.worker_s() / 3600.0 * 2.0;
        assert!((twice.cost().unwrap() - cost).abs() < 1e-9);
        large = plan(&["evaluation.sets=[{name: s, env: textcraft, ids: 8..9}]"]);
        let told = seen(&small, 3.0).scaled(&large).unwrap();
        assert!(told.unmeasured.contains(&Stage::Evaluate), "{told:?}");
        assert!(
            told.text(2).contains("without evaluate"),
            "{}",
            told.text(2)
        );
        assert_eq!(Seen::default().scaled(&small), None);
    }

    #[test]
    fn a_trial_evaluates_as_it_plays_and_says_that_it_was_one() {
        let (small, large) = (
            plan(&[]),
            plan(&["evaluation={sets: [{name: s, env: textcraft, ids: 8..16}], samples: 4}"]),
        );
        let tried = seen(&small, 3.0)
            .scaled(&large)
            .unwrap()
            .by_trial(&large, 2.0);
        assert_eq!(tried.unmeasured, []);
        // The rate of a round of an episode is the rollouts', whose parts took 3 s for 2 × 4 episodes.
        let rounds = f64::from(large.rounds_max(1));
        let second = f64::from(large.config.evaluation.max_rounds) * (8.0 * 5.0);
        let times = stages(&large)[&Stage::Evaluate].1 as f64;
        let expected = 3.0 / (rounds * 8.0) * second * times;
        let parts = stages(&small)[&Stage::Rollout].0 as f64;
        let off = tried.by_stage[&Stage::Evaluate] - expected * parts;
        assert!(off.abs() < 1e-6, "{off}: {tried:?}");
        let said = tried.text(1);
        assert!(
            said.contains("a small first iteration, which took 2.0 s on this machine"),
            "{said}"
        );
        assert_eq!(tried.document().trial_s, Some(2.0));
        assert_eq!(tried.document().runs, [""; 0]);
    }

    /// Half of what lengths may need was needed: so it is of a plan with longer sequences.
    #[test]
    fn a_peak_is_scaled_by_lengths_alone() {
        let bound = |context: &str| {
            let model = "actor_rollout_ref.model.path=tiny?hidden=64&layers=2&vocab=512";
            let plan = plan(&[model, &format!("data.max_response_length={context}")]);
            Memory::here(&plan, Dtype::F32).unwrap()
        };
        let (short, long) = (bound("1000"), bound("3000"));
        let [had, expected] = [&short, &long].map(|of| of.of(Stage::Rollout).unwrap());
        assert!(had.by_lengths < expected.by_lengths, "{had:?} {expected:?}");
        assert_eq!(had.fixed, expected.fixed);
        let id = PartId {
            iteration: 1,
            stage: Stage::Rollout,
            part: 0,
        };
        let stats = json!({"peak_memory_bytes": had.fixed + had.by_lengths / 2});
        let manifest = manifest(&plan(&[]), id, 1.0, stats);
        let mut seen = seen(&plan(&[]), 3.0);
        seen.add_peak(&short, id, &manifest);
        let measured = seen.scaled(&plan(&[])).unwrap();
        let peaks = measured.memory(&long);
        let peak = peaks.of(Stage::Rollout).unwrap().all();
        let half = expected.fixed + expected.by_lengths / 2;
        assert!(peak.abs_diff(half) < 3, "{peak} {half}");
        assert_eq!(peaks.of(Stage::Update), None, "nobody has measured it");
    }

    #[test]
    fn what_a_part_of_lessons_reads_first_does_not_grow_with_its_steps() {
        let lessons = "sft={steps: 1, sources: [{env: textcraft, ids: 0..4}], batch_size: 2}";
        let small = plan(&[lessons]);
        let mut seen = Seen::default();
        let id = PartId {
            iteration: 0,
            stage: Stage::Sft,
            part: 0,
        };
        let manifest = manifest(&small, id, 2.5, json!({"busy_s": 0.5}));
        seen.add(&small, id, &manifest, 1);
        let large = plan(&[lessons, "sft.steps=100"]);
        let found = seen.scaled(&large).unwrap().by_stage[&Stage::Sft];
        assert!((found - (0.5 * 100.0 + 2.0)).abs() < 1e-9, "{found}");
    }
}
