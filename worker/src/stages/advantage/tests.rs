use super::*;
use crate::stages::testing::{episode, plan};

fn scored(episodes: Vec<Episode>) -> Vec<Scored> {
    let row = |s: &agentgym_jobs::episode::Sequence, value: f32| {
        s.loss_mask
            .iter()
            .map(|kept| if *kept { value } else { 0.0 })
            .collect::<Vec<f32>>()
    };
    let streams = |e: &Episode| EpisodeLogProbs {
        old: e.sequences.iter().map(|s| row(s, -0.75)).collect(),
        entropies: e.sequences.iter().map(|s| row(s, 1.5)).collect(),
        reference: None,
    };
    episodes
        .into_iter()
        .map(|e| Scored {
            streams: streams(&e),
            episode: e,
        })
        .collect()
}

/// Four groups of two: one mixed, one uniform, one left alone by a fault, one
/// gone altogether.
fn iteration() -> Vec<Scored> {
    scored(vec![
        episode(0, 0, Outcome::Solved, 1.0),
        episode(0, 1, Outcome::Failed, 0.0),
        episode(1, 0, Outcome::Horizon, 0.0),
        episode(1, 1, Outcome::Failed, 0.0),
        episode(2, 0, Outcome::Solved, 1.0),
        episode(2, 1, Outcome::EnvFault, 0.0),
        episode(3, 0, Outcome::EnvFault, 0.0),
        episode(3, 1, Outcome::EnvFault, 0.0),
    ])
}

fn slots(plan: &Plan) -> Vec<Option<BatchEpisode>> {
    let (Batch::V1(slots), _) = batch(plan, &iteration()).unwrap();
    slots
}

#[test]
fn excluded_members_leave_their_slots_empty() {
    let slots = slots(&plan(&[]));
    let filled: Vec<bool> = slots.iter().map(Option::is_some).collect();
    assert_eq!(filled, [true, true, true, true, false, false, false, false]);
    for (slot, entry) in slots.iter().enumerate() {
        if let Some(entry) = entry {
            assert_eq!((entry.group * 2 + entry.sample) as usize, slot);
        }
    }
}

#[test]
fn advantages_stand_on_sampled_tokens_only() {
    let slots = slots(&plan(&[]));
    // Rewards 1 and 0: mean 0.5, unbiased std √0.5.
    let expected = 0.5 / (0.5f64.sqrt() + 1e-6);
    let first = slots[0].as_ref().unwrap();
    assert!((first.advantage - expected).abs() < 1e-12);
    let row = &first.sequences[0].advantages;
    let shown: Vec<bool> = row.iter().map(|a| *a != 0.0).collect();
    assert_eq!(shown, first.sequences[0].sequence.loss_mask);
    assert_eq!(slots[1].as_ref().unwrap().advantage, -first.advantage);
    assert_eq!(slots[2].as_ref().unwrap().advantage, 0.0);
}

#[test]
fn a_masked_overlong_episode_still_sets_the_baseline() {
    let plan = plan(&["algorithm.overlong=mask"]);
    let mut all = iteration();
    all[1].episode.outcome = Outcome::Length;
    let (Batch::V1(slots), _) = batch(&plan, &all).unwrap();
    assert!(slots[1].is_none() && slots[2].is_none() && slots[3].is_some());
    assert!(
        slots[0].as_ref().unwrap().advantage > 0.7,
        "compared with the masked one"
    );
}

#[test]
fn metrics_count_every_group_once() {
    let plan = plan(&["algorithm.rounds_ctrl.rounds=7"]);
    let all = iteration();
    let (_, groups) = batch(&plan, &all).unwrap();
    let metrics = summarise(&plan, 3, &all, &groups).unwrap();
    let counted = [
        metrics.groups_all_zero,
        metrics.groups_all_one,
        metrics.groups_mixed,
        metrics.groups_excluded,
    ];
    assert_eq!(counted, [1, 0, 1, 2]);
    assert_eq!(
        (
            metrics.episodes.episodes,
            metrics.episodes.env_faults,
            metrics.horizon
        ),
        (8, 3, 7)
    );
    assert_eq!(metrics.episodes.success, 2.0 / 5.0, "a fault is no failure");
    assert_eq!(metrics.episodes.loss_tokens, 15);
    assert_eq!(
        (metrics.entropy, metrics.log_prob_mismatch_max),
        (1.5, 0.25)
    );
    assert_eq!(metrics.success_by_env["textcraft"], 0.4);
}

#[test]
fn streams_of_other_tokens_are_refused() {
    let episodes = vec![episode(0, 0, Outcome::Solved, 1.0)];
    let short = EpisodeLogProbs {
        old: vec![vec![0.0; 5]],
        entropies: vec![vec![0.0; 6]],
        reference: None,
    };
    let message = join(2, episodes.clone(), vec![short])
        .err()
        .unwrap()
        .to_string();
    assert!(
        message.contains("part 2") && message.contains("textcraft_0"),
        "{message}"
    );
    assert!(join(2, episodes, vec![]).is_err());
}
