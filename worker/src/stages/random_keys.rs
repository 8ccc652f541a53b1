//! Checks every random stream of a whole run, as the stages request it: no two are equal, and none
//! depends on how the run is cut into parts. They cannot depend on a worker, a thread or an
//! attempt: the functions that make the requests do not receive these.

use super::sft::held_out::split_key;
use super::sft::mixture::{pass_key, pick_key, source_key};
use super::testing::plan_of;
use super::{dpo, evaluate, init, rollout};
use crate::episode::Request;
use agentgym_jobs::episode::Task;
use agentgym_jobs::pipeline::{PartId, Stage, parts};
use agentgym_jobs::plan::Plan;
use agentgym_jobs::random::{head, permutation_key};
use agentgym_record::credit::scramble_key;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// How many passes over a source of tasks or demonstrations are checked.
const PASSES: u64 = 50;

/// An episode of a run, identified by what is played, not by its part.
type Episode = (Stage, u32, Task, u32, u32);

fn plan(seed: u64, sizes: &Sizes, part_tasks: usize, part_steps: u32) -> Plan {
    let Sizes {
        batch,
        samples,
        sets,
        held_out,
        steps,
        baselines,
    } = sizes;
    let algorithm = match baselines {
        true => "adv_estimator: remax",
        false => "filter_groups: {enable: true, max_num_gen_batches: 3}",
    };
    let sets: Vec<String> = (0..*sets)
        .map(|set| format!("{{name: s{set}, env: textcraft, ids: 0..{held_out}}}"))
        .collect();
    // Every task is also played greedily, or later rounds play other tasks. Tasks repeat within an
    // iteration, and the sets hold the training tasks: none of these may share a stream.
    let text = format!(
        "
run: {{seed: {seed}}}
actor_rollout_ref: {{rollout: {{n: {samples}}}, actor: {{ppo_mini_batch_size: {batch}}}}}
data:
  train_batch_size: {batch}
  seed: {seed}
  tasks: [{{env: textcraft, ids: 0..5, share: 0.5}}, {{env: textcraft, ids: 0..3, share: 0.5}}]
sft: {{steps: {steps}, batch_size: 3, sources: [{{env: textcraft, ids: 0..9}}, {{env: textcraft, ids: 3..7}}]}}
evaluation: {{samples: {samples}, sets: [{}]}}
algorithm: {{{algorithm}}}
trainer: {{total_training_steps: 300, test_freq: 20}}
jobs: {{rollout_part_tasks: {part_tasks}, sft_part_steps: {part_steps}}}
",
        sets.join(", ")
    );
    plan_of(&text, &[])
}

#[derive(Debug, Clone)]
struct Sizes {
    batch: usize,
    samples: u32,
    sets: u32,
    held_out: u32,
    steps: u32,
    /// Greedy baseline episodes in addition to the sampled ones; otherwise a group filter with its
    /// rounds.
    baselines: bool,
}

fn sizes() -> impl Strategy<Value = Sizes> {
    (
        2usize..7,
        2u32..4,
        1u32..4,
        1u32..6,
        1u32..40,
        any::<bool>(),
    )
        .prop_map(|(batch, samples, sets, held_out, steps, baselines)| Sizes {
            batch,
            samples,
            sets,
            held_out,
            steps,
            baselines,
        })
}

fn requests(plan: &Plan, id: PartId) -> Vec<Request> {
    match id.stage {
        Stage::Rollout => {
            let all = plan.config.data.train_batch_size;
            rollout::requests(plan, id, all, None)
        }
        Stage::Evaluate | Stage::EvaluateInit => {
            let set = &plan.config.evaluation.sets[id.part as usize];
            evaluate::requests(plan, set, id).unwrap()
        }
        _ => Vec::new(),
    }
}

/// The streams of all episodes, in the order of the pipeline.
fn episodes(plan: &Plan) -> Vec<(Episode, [u8; 32])> {
    let all = (0..=plan.iterations).flat_map(|iteration| parts(plan, iteration));
    all.flat_map(|part| {
        let id = part.id;
        // A part of an evaluation is a set; a part of a rollout is a slice.
        let set = if id.stage == Stage::Rollout {
            0
        } else {
            id.part
        };
        requests(plan, id).into_iter().map(move |request| {
            let group = set << 16 | request.group;
            let episode = (id.stage, id.iteration, request.task, group, request.sample);
            (episode, request.stream)
        })
    })
    .collect()
}

/// The streams that are not an episode's.
fn others(plan: &Plan) -> Vec<[u8; 32]> {
    let seed = plan.config.run.seed;
    let picks = u64::from(plan.config.sft.steps) * plan.config.sft.batch_size as u64;
    let sources = plan.config.sft.sources.len();
    let pairs = dpo::order_key(seed).stream();
    let passes = pass_key(seed).stream();
    let splits = (0..sources).map(|index| split_key(seed, index).stream());
    let orders = (0..sources)
        .map(|index| head(&source_key(seed, 0, index).stream()))
        .chain(splits.clone().map(|split| head(&split)))
        .chain([head(&pairs), head(&passes)]);
    let shuffles = (0..plan.config.data.tasks.len())
        .map(|source| plan.tasks.shuffle_seed(source))
        .chain(orders)
        .flat_map(|seed| (0..PASSES).map(move |pass| permutation_key(seed, pass).stream()));
    let picks = (0..picks).map(|k| pick_key(seed, 0, k).stream());
    let sources = (0..sources).map(|index| source_key(seed, 0, index).stream());
    let weights = init::weights_key(seed).stream();
    let scrambles = (1..=plan.iterations).map(|n| scramble_key(seed, n).stream());
    picks
        .chain(scrambles)
        .chain(sources)
        .chain(shuffles)
        .chain(splits)
        .chain([weights, pairs, passes])
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn no_two_streams_of_300_iterations_are_equal(seed in 0u64..1 << 40, sizes in sizes()) {
        let plan = plan(seed, &sizes, 2, 7);
        let episodes = episodes(&plan);
        let owners: BTreeSet<&Episode> = episodes.iter().map(|(episode, _)| episode).collect();
        prop_assert_eq!(owners.len(), episodes.len(), "an episode is asked for twice");
        let evaluated = episodes.iter().filter(|(e, _)| e.0 == Stage::EvaluateInit).count();
        prop_assert!(evaluated > 0 && episodes.len() > 300 * sizes.batch);
        let mut seen = BTreeMap::new();
        for (episode, stream) in &episodes {
            if let Some(other) = seen.insert(*stream, Some(episode)) {
                prop_assert!(false, "{episode:?} and {other:?} share a stream");
            }
        }
        for stream in others(&plan) {
            let other = seen.insert(stream, None);
            prop_assert!(other.is_none(), "something shares the stream of {other:?}");
        }
    }

    #[test]
    fn streams_do_not_know_how_a_run_is_cut_into_parts(
        seed in any::<u64>(),
        sizes in sizes(),
        cut in (1usize..9, 1u32..50),
    ) {
        let one = plan(seed & u64::from(u32::MAX), &sizes, 1, 1);
        let other = plan(seed & u64::from(u32::MAX), &sizes, cut.0, cut.1);
        prop_assert_eq!(episodes(&one), episodes(&other));
    }
}
