//! The evidence that a run must have committed before comparing two of its digests is meaningful.
//! Runs without rewards are equal even if rewards are lost, mixed up or counted twice. Every test
//! that compares bytes therefore checks this first: actions were taken, rewards differed, gradients
//! were not zero, parameters changed. It only reads the store.

use agentgym_jobs::config::{Overlong, Pipeline};
use agentgym_jobs::episode::{Episode, Episodes};
use agentgym_jobs::pipeline::{PartId, Stage};
use agentgym_jobs::records::{Batch, BatchEpisode};
use agentgym_storage::{Manifest, PartKey, Store};
use agentgym_submit::runs::RunView;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

/// A gradient below this counts as zero.
const GRAD_NORM_MIN: f64 = 1e-6;

/// The evidence of a run, to be printed or checked further.
#[derive(Debug, Default)]
pub(crate) struct Evidence {
    /// Turns of all rollouts, and the number of those with a non-empty action.
    pub(crate) turns: usize,
    pub(crate) acted: usize,
    /// Distinct actions.
    pub(crate) actions: BTreeSet<String>,
    /// Rewards of the episodes of each iteration.
    pub(crate) rewards: BTreeMap<u32, Vec<f64>>,
    /// Groups of each iteration's batch whose rewards differ.
    pub(crate) groups_mixed: BTreeMap<u32, usize>,
    /// Optimizer parts, by stage.
    pub(crate) trained: BTreeMap<Stage, usize>,
    /// The coefficient that the last iteration computed for the next.
    next_kl_coef: Option<f64>,
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (acted, turns, kinds) = (self.acted, self.turns, self.actions.len());
        write!(f, "{acted} of {turns} turns acted in {kinds} ways; ")?;
        for (iteration, rewards) in &self.rewards {
            let mean = rewards.iter().sum::<f64>() / rewards.len().max(1) as f64;
            let mixed = self.groups_mixed.get(iteration).copied().unwrap_or(0);
            write!(f, "{iteration}: reward {mean:.2}, {mixed} mixed; ")?;
        }
        write!(f, "trained {:?}", self.trained)
    }
}

/// The evidence of the run in a folder, for tests that are synchronous or that block inside an
/// asynchronous test.
pub(crate) fn learnt_now(folder: &Path, run: &str) -> Evidence {
    std::thread::scope(|scope| {
        let look = scope.spawn(|| {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_all().build().unwrap();
            runtime.block_on(async {
                let store = Store::open(&folder.display().to_string()).await.unwrap();
                learnt(&store, run).await
            })
        });
        let looked = look.join();
        looked.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Panics unless a finished run has seen rewards and learnt from them.
///
/// Every training part has a gradient and changes its parameters; rewards differ in every
/// iteration, within a group if advantages are relative to one, and at least half of all turns have
/// an action. AgentEvol keeps some episodes and not others.
pub(crate) async fn learnt(store: &Store, run: &str) -> Evidence {
    let view = RunView::open(store, run).await.unwrap();
    let mut evidence = Evidence::default();
    let begun = view.plan.forked_at().map_or(0, |last| last + 1);
    for iteration in begun..=view.plan.iterations {
        for id in view.iteration_parts(iteration).unwrap() {
            let manifest = view.committed(id).await.unwrap();
            match id.stage {
                Stage::Rollout => evidence.played(iteration, &episodes(&view, &manifest).await),
                Stage::Sft | Stage::Dpo | Stage::Update | Stage::CriticUpdate => {
                    evidence.trained(&view, id, &manifest).await;
                }
                Stage::Advantage => evidence.batch(&view, id, &manifest).await,
                Stage::Filter => evidence.filtered(&view, id, &manifest).await,
                _ => {}
            }
        }
    }
    assert!(!evidence.trained.is_empty(), "{run} trains nothing");
    let (acted, turns) = (evidence.acted, evidence.turns);
    assert!(
        2 * acted >= turns,
        "{acted} of {turns} turns have an action"
    );
    for (iteration, rewards) in &evidence.rewards {
        let differ = rewards.iter().any(|reward| *reward != rewards[0]);
        assert!(
            differ,
            "every reward of iteration {iteration} is {}",
            rewards[0]
        );
    }
    if matches!(
        view.plan.config.run.pipeline,
        Pipeline::Rl | Pipeline::AgentEvol
    ) {
        assert!(turns > 0 && evidence.actions.len() > 4, "{evidence}");
    }
    evidence
}

async fn episodes(view: &RunView, manifest: &Manifest) -> Vec<Episode> {
    let episodes: Episodes = view.payload(manifest, "episodes.bin").await.unwrap();
    episodes.into_vec()
}

/// The digests of the parameters, by file, in the part's input of this name.
async fn weights_before(view: &RunView, manifest: &Manifest, id: PartId) -> Weights {
    let name = match id.stage {
        Stage::CriticUpdate => "critic",
        _ => "policy",
    };
    let input = manifest.inputs.iter().find(|input| input.name == name);
    let input = input.unwrap_or_else(|| panic!("{id} reads no {name}"));
    let slot = PartKey {
        run: view.plan.run.clone(),
        iteration: input.iteration,
        stage: input.stage.clone(),
        part: input.part,
    };
    weights(&view.store.manifest(&slot).await.unwrap().unwrap())
}

type Weights = BTreeMap<String, String>;

fn weights(manifest: &Manifest) -> Weights {
    let models = ["policy/", "adapter/", "critic/"];
    let outputs = manifest.outputs.iter().filter(|output| {
        let name = &output.name;
        name.ends_with(".safetensors") && models.iter().any(|model| name.starts_with(model))
    });
    outputs
        .map(|output| (output.name.clone(), output.digest.to_string()))
        .collect()
}

/// Recomputes relative advantages from the rewards of the rollouts: `(r − mean) / (std + 1e-6)` of
/// the group (GRPO), `r` minus the mean of the others (RLOO), `r` minus the greedy episode's
/// (ReMax). The rewards in the batch are those of the rollouts, or of the reward function.
async fn credited(view: &RunView, id: PartId, members: &[&BatchEpisode]) {
    let config = &view.plan.config;
    // Not applicable if rewards have other terms or members are missing here.
    let algorithm = &config.algorithm;
    if algorithm.use_kl_in_reward || algorithm.turn_rewards || algorithm.overlong == Overlong::Mask
    {
        return;
    }
    let (mut rewards, mut greedy) = (BTreeMap::new(), BTreeMap::new());
    let rewarded = match view.plan.has_reward_function() {
        true => Stage::Reward,
        false => Stage::Rollout,
    };
    for part in view.stage_parts(id.iteration, rewarded).unwrap() {
        let manifest = view.committed(part).await.unwrap();
        for episode in episodes(view, &manifest).await {
            rewards.insert((episode.group, episode.sample), episode.reward);
        }
        if config.algorithm.adv_estimator.needs_baseline() {
            let played: Episodes = view.payload(&manifest, "baseline.bin").await.unwrap();
            let played = played.into_vec().into_iter();
            greedy.extend(played.map(|episode| (episode.group, episode.reward)));
        }
    }
    let estimator = config.algorithm.adv_estimator.name();
    let neighbours = greedy.values().zip(greedy.values().skip(1));
    assert!(
        greedy.is_empty() || neighbours.into_iter().any(|(one, other)| one != other),
        "{id}: every greedy episode earns the same"
    );
    for member in members {
        let own = member.reward;
        let place = (member.group, member.sample);
        assert_eq!(Some(&own), rewards.get(&place), "{id}: reward of {place:?}");
        let of_group = members.iter().filter(|other| other.group == member.group);
        let all: Vec<f64> = of_group.map(|other| other.reward).collect();
        let n = all.len() as f64;
        let mean = all.iter().sum::<f64>() / n;
        let expected = match estimator {
            "grpo" if config.algorithm.norm_adv_by_std_in_grpo => {
                let squares: f64 = all.iter().map(|reward| (reward - mean).powi(2)).sum();
                (own - mean) / ((squares / (n - 1.0)).sqrt() + 1e-6)
            }
            "rloo" => own - (all.iter().sum::<f64>() - own) / (n - 1.0),
            "remax" => own - greedy[&member.group],
            _ => continue,
        };
        let found = member.advantage;
        assert!(
            (found - expected).abs() < 1e-9,
            "{id}: {place:?} has advantage {found}, its rewards say {expected}"
        );
    }
}

impl Evidence {
    fn played(&mut self, iteration: u32, episodes: &[Episode]) {
        let usable = episodes.iter().filter(|episode| episode.usable());
        for episode in usable {
            self.rewards
                .entry(iteration)
                .or_default()
                .push(episode.reward);
            for turn in &episode.turns {
                self.turns += 1;
                let action = turn.action.as_deref().unwrap_or_default();
                self.acted += usize::from(!action.is_empty());
                self.actions.insert(action.to_owned());
            }
        }
    }

    async fn trained(&mut self, view: &RunView, id: PartId, manifest: &Manifest) {
        // During the critic's warm-up the policy is passed on unchanged.
        if id.stage == Stage::Update && id.iteration <= view.plan.config.trainer.critic_warmup {
            return;
        }
        let metrics = view.json(manifest, "metrics.json").await.unwrap();
        let norm = metrics["grad_norm"].as_f64().unwrap();
        assert!(
            norm.is_finite() && norm > GRAD_NORM_MIN,
            "{id}: the gradient's norm is {norm}"
        );
        let (before, after) = (weights_before(view, manifest, id).await, weights(manifest));
        assert!(!after.is_empty(), "{id} writes no parameters");
        for (name, digest) in &after {
            assert_ne!(before.get(name), Some(digest), "{id}: {name} did not move");
        }
        *self.trained.entry(id.stage).or_default() += 1;
    }

    async fn batch(&mut self, view: &RunView, id: PartId, manifest: &Manifest) {
        let Batch::V1(slots) = view.payload(manifest, "batch.bin").await.unwrap();
        let members: Vec<&BatchEpisode> = slots.iter().flatten().collect();
        credited(view, id, &members).await;
        let mut groups: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
        let mut advantages = BTreeSet::new();
        for member in members {
            groups.entry(member.group).or_default().push(member.reward);
            let tokens = member.sequences.iter().flat_map(|s| &s.advantages);
            advantages.extend(tokens.map(|advantage| advantage.to_bits()));
        }
        let mixed = groups.values().filter(|rewards| {
            let first = rewards[0];
            rewards.iter().any(|reward| *reward != first)
        });
        let mixed = mixed.count();
        self.groups_mixed.insert(id.iteration, mixed);
        let estimator = view.plan.config.algorithm.adv_estimator;
        assert!(
            mixed > 0 || !estimator.needs_groups(),
            "{id}: no group is mixed: {groups:?}"
        );
        assert!(
            advantages.iter().any(|bits| f64::from_bits(*bits) != 0.0),
            "{id}: every advantage is 0"
        );
        self.kl_coefficient(view, id, manifest).await;
    }

    /// The KL coefficient is the one that the previous iteration computed.
    async fn kl_coefficient(&mut self, view: &RunView, id: PartId, manifest: &Manifest) {
        if !manifest
            .outputs
            .iter()
            .any(|output| output.name == "kl.json")
        {
            return;
        }
        let state = view.json(manifest, "kl.json").await.unwrap();
        let number = |name: &str| state[name].as_f64().unwrap();
        if let Some(next) = self.next_kl_coef {
            assert_eq!(number("kl_coef"), next, "{id}: the KL coefficient");
        }
        self.next_kl_coef = Some(number("next_kl_coef"));
    }

    async fn filtered(&mut self, view: &RunView, id: PartId, manifest: &Manifest) {
        let kept = episodes(view, manifest).await.len();
        let metrics = view.json(manifest, "metrics.json").await.unwrap();
        let below = metrics["below_threshold"].as_u64().unwrap();
        assert!(
            kept > 0 && below > 0,
            "{id} keeps {kept} and leaves {below} out"
        );
    }
}
