//! Slots, advantages by estimator, the KL penalty, targets and metrics.

use super::summary::summarise;
use super::*;
use crate::iteration::{Given, Iteration, Scored, join};
use crate::metrics::AdvantageMetrics;
use crate::testing::{episode, plan};
use agentgym_jobs::episode::{Episode, Outcome};
use agentgym_jobs::plan::Plan;
use agentgym_jobs::records::EpisodeLogProbs;
use agentgym_jobs::records::{Batch, BatchEpisode, CriticTargets};
use std::collections::BTreeMap;

fn assign(plan: &Plan, all: &[Scored]) -> Credit {
    Credit::assign(plan, all, &Given::default()).unwrap()
}

fn figures(plan: &Plan, iteration: u32, all: &[Scored], credit: &Credit) -> AdvantageMetrics {
    let iteration = Iteration {
        episodes: all.to_vec(),
        given: Given {
            iteration,
            ..Given::default()
        },
    };
    summarise(plan, &iteration, credit).unwrap()
}

fn batch_of(credit: &Credit) -> &[Option<BatchEpisode>] {
    let Batch::V1(slots) = &credit.batch;
    slots
}

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
            values: None,
            episode: e,
        })
        .collect()
}

/// Four groups of two: one mixed, one uniform, one with a single member left after a fault, one
/// with no member left.
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

fn penalised() -> Given {
    Given {
        kl_coef: Some(0.1),
        ..Given::default()
    }
}

fn slots(plan: &Plan) -> Vec<Option<BatchEpisode>> {
    batch_of(&assign(plan, &iteration())).to_vec()
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

/// A summarized context makes several sequences of an episode. The episode still counts as one
/// member of its group, and each of its sequences has its advantage.
#[test]
fn an_episode_of_several_sequences_counts_once() {
    let plan = plan(&[]);
    let whole = iteration();
    let mut parted = iteration()
        .into_iter()
        .map(|s| s.episode)
        .collect::<Vec<_>>();
    for _ in 0..2 {
        let again = parted[0].sequences[0].clone();
        parted[0].sequences.push(again);
    }
    let (whole, parted) = (assign(&plan, &whole), assign(&plan, &scored(parted)));
    let told = |credit: &Credit| -> Vec<Option<f64>> {
        let slots = batch_of(credit).iter();
        slots.map(|s| s.as_ref().map(|e| e.advantage)).collect()
    };
    assert_eq!(told(&parted), told(&whole));
    let first = batch_of(&parted)[0].as_ref().unwrap();
    assert_eq!(first.sequences.len(), 3);
    for sequence in &first.sequences {
        assert_eq!(sequence.advantages, first.sequences[0].advantages);
        assert!(sequence.advantages.iter().any(|a| *a != 0.0));
    }
}

#[test]
fn a_masked_overlong_episode_still_sets_the_baseline() {
    let plan = plan(&["algorithm.overlong=mask"]);
    let mut all = iteration();
    all[1].episode.outcome = Outcome::Length;
    let credit = assign(&plan, &all);
    let slots = batch_of(&credit);
    assert!(slots[1].is_none() && slots[2].is_none() && slots[3].is_some());
    assert!(
        slots[0].as_ref().unwrap().advantage > 0.7,
        "compared with the masked one"
    );
}

#[test]
fn metrics_count_every_group_once() {
    let plan = plan(&["algorithm.rounds_ctrl.rounds=7", SCORED]);
    let all = iteration();
    let credit = assign(&plan, &all);
    let metrics = figures(&plan, 3, &all, &credit);
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
        (1.5, Some(0.25))
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
    let message = join(2, episodes.clone(), vec![short.clone()], None)
        .err()
        .unwrap()
        .to_string();
    assert!(
        message.contains("part 2") && message.contains("textcraft_0"),
        "{message}"
    );
    assert!(join(2, episodes.clone(), vec![], None).is_err());
    let whole = EpisodeLogProbs {
        old: vec![vec![0.0; 6]],
        ..short
    };
    let join = |values| join(2, episodes.clone(), vec![whole.clone()], values);
    assert!(join(Some(vec![vec![vec![0.0; 6]]])).is_ok());
    assert!(join(Some(vec![vec![vec![0.0; 4]]])).is_err());
    assert!(join(Some(vec![])).is_err());
}

/// Two groups of two: rewards 1, 0 and 1, 1.
fn four() -> Vec<Scored> {
    scored(vec![
        episode(0, 0, Outcome::Solved, 1.0),
        episode(0, 1, Outcome::Failed, 0.0),
        episode(1, 0, Outcome::Solved, 1.0),
        episode(1, 1, Outcome::Solved, 1.0),
    ])
}

fn shown(slots: &[Option<BatchEpisode>]) -> Vec<f64> {
    let shown = slots.iter().flatten().map(|e| e.advantage);
    shown.collect()
}

const SCORED: &str = "actor_rollout_ref.rollout.record_entropies=false";

fn with(overrides: &[&str], estimator: &str) -> Plan {
    let estimator = format!("algorithm.adv_estimator={estimator}");
    // The streams of these tests were not sampled by the policy that scored them.
    let mut all = vec![SCORED, estimator.as_str()];
    all.extend(overrides);
    plan(&all)
}

fn near(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len(), "{found:?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() < 1e-9, "{found} is not {expected}");
    }
}

#[test]
fn every_estimator_is_reached_by_its_name() {
    let all = four();
    let found = |estimator: &str, overrides: &[&str]| {
        shown(batch_of(&assign(&with(overrides, estimator), &all)))
    };
    near(&found("rloo", &[]), &[1.0, -1.0, 0.0, 0.0]);
    let plain = "algorithm.norm_adv_by_std_in_grpo=false";
    near(&found("grpo", &[plain]), &[0.5, -0.5, 0.0, 0.0]);
    // Every token's return is its episode's reward: mean 0.75 over 12 tokens.
    let scale = (12.0 * 0.75 * 0.25 / 11.0 + 1e-8f64).sqrt();
    let (up, down) = (0.25 / scale, -0.75 / scale);
    near(&found("reinforce_plus_plus", &[]), &[up, down, up, up]);
}

#[test]
fn remax_compares_with_the_greedy_episode_of_the_task() {
    let (plan, all) = (with(&[], "remax"), four());
    let given = Given {
        baselines: BTreeMap::from([(0, 1.0)]),
        ..Given::default()
    };
    let credit = Credit::assign(&plan, &all, &given).unwrap();
    near(&shown(batch_of(&credit)), &[0.0, -1.0]);
    let iteration = Iteration {
        episodes: all.clone(),
        given,
    };
    let metrics = summarise(&plan, &iteration, &credit).unwrap();
    assert_eq!(
        metrics.baseline_reward,
        Some(1.0),
        "the second task's greedy episode was spoiled, its group is left out"
    );
}

#[test]
fn a_penalty_is_taken_off_every_token_and_the_controller_moves() {
    let reference = |all: &mut Vec<Scored>| {
        for s in all {
            let rows = s.streams.old.iter();
            let lower = |row: &Vec<f32>| row.iter().map(|v| v - 0.5).collect();
            s.streams.reference = Some(rows.map(lower).collect());
        }
    };
    let mut all = four();
    reference(&mut all);
    let kl = [
        "algorithm.use_kl_in_reward=true",
        "algorithm.kl_ctrl.type=adaptive",
        "algorithm.kl_ctrl.kl_coef=0.1",
        "algorithm.kl_ctrl.target_kl=0.25",
        "algorithm.kl_ctrl.horizon=100",
    ];
    let plan = with(&kl, "rloo");
    let credit = Credit::assign(&plan, &all, &penalised()).unwrap();
    // The same 3 × 0.1 × 0.5 is subtracted from each score: differences stay.
    near(&shown(batch_of(&credit)), &[1.0, -1.0, 0.0, 0.0]);
    let state = credit.kl.clone().unwrap();
    assert_eq!((state.kl, state.episodes), (0.5, 4));
    near(&[state.next_kl_coef], &[0.1 * (1.0 + 0.2 * 4.0 / 100.0)]);
    let plan = with(&kl, "reinforce_plus_plus");
    let credit = Credit::assign(&plan, &all, &penalised()).unwrap();
    let row = &batch_of(&credit)[0].as_ref().unwrap().sequences[0].advantages;
    assert!(
        row[2] < row[3] && row[3] < row[5],
        "less penalty ahead: {row:?}"
    );

    let without = Credit::assign(&plan, &four(), &penalised());
    assert!(without.is_err(), "a penalty needs reference log-probs");
}

#[test]
fn gae_whitens_advantages_and_hands_the_critic_its_targets() {
    let (plan, mut all) = (with(&[], "gae"), four());
    for s in &mut all {
        s.values = Some(vec![vec![0.0, 0.0, 0.25, 0.25, 0.0, 0.25]]);
    }
    let credit = assign(&plan, &all);
    let Some(CriticTargets::V1(targets)) = &credit.targets else {
        panic!("a critic has targets");
    };
    let first = &targets[0].as_ref().unwrap()[0];
    // γ = λ = 1: every return is the reward, and 0 on observations.
    near(&first.returns, &[0.0, 0.0, 1.0, 1.0, 0.0, 1.0]);
    assert_eq!(first.values, [0.0, 0.0, 0.25, 0.25, 0.0, 0.25]);
    let advantages: Vec<f64> = batch_of(&credit)
        .iter()
        .flatten()
        .flat_map(|e| &e.sequences[0].advantages)
        .copied()
        .collect();
    assert!(advantages.iter().sum::<f64>().abs() < 1e-9);
    // A constant explains nothing.
    assert!(credit.explained_variance.unwrap().abs() < 1e-3);
    let metrics = figures(&plan, 1, &all, &credit);
    assert_eq!(metrics.explained_variance, credit.explained_variance);
    assert!(Credit::assign(&plan, &four(), &Given::default()).is_err());
}

#[test]
fn tokens_of_another_sampler_are_weighed() {
    let correction = [
        "algorithm.rollout_correction.rollout_is=token",
        "algorithm.rollout_correction.rollout_is_threshold=0.7",
    ];
    let (plan, all) = (with(&correction, "rloo"), four());
    let credit = assign(&plan, &all);
    // Sampled at −0.5, scored at −0.75: e^−0.25 = 0.78, cut to 0.7.
    let row = &batch_of(&credit)[0].as_ref().unwrap().sequences[0].advantages;
    near(row, &[0.0, 0.0, 0.7, 0.7, 0.0, 0.7]);
    let metrics = figures(&plan, 1, &all, &credit);
    assert_eq!(metrics.importance_weight_cut, Some(1.0));
    assert_eq!(metrics.log_prob_mismatch_max, Some(0.25));
    let kl = (-0.25f64).exp() - 1.0 + 0.25;
    near(&[metrics.log_prob_mismatch_kl.unwrap()], &[kl]);
}

#[test]
fn tokens_of_a_cut_distribution_are_weighed_by_what_was_left() {
    let plan = with(&["algorithm.rollout_correction.rollout_is=token"], "rloo");
    let mut all = four();
    for scored in &mut all {
        scored.streams.old = vec![scored.episode.sequences[0].sampled_log_probs.clone()];
        let mask = scored.episode.sequences[0].loss_mask.iter();
        let masses = mask.map(|kept| if *kept { -0.25 } else { 0.0 });
        scored.episode.sequences[0].log_kept_mass = Some(masses.collect());
    }
    let credit = assign(&plan, &all);
    let row = &batch_of(&credit)[0].as_ref().unwrap().sequences[0].advantages;
    let weight = (-0.25f64).exp();
    near(row, &[0.0, 0.0, weight, weight, 0.0, weight]);
    let metrics = figures(&plan, 1, &all, &credit);
    assert_eq!(metrics.log_prob_mismatch_max, Some(0.25));
    near(&[metrics.importance_weight_mean.unwrap()], &[weight]);
}

#[test]
fn whitening_leaves_masked_episodes_out() {
    let plan = with(&["algorithm.overlong=mask"], "reinforce_plus_plus");
    let mut all = four();
    all[1].episode.outcome = Outcome::Horizon;
    let credit = assign(&plan, &all);
    assert_eq!(batch_of(&credit).iter().flatten().count(), 3);
    // The remaining episodes have the same reward.
    near(&shown(batch_of(&credit)), &[0.0; 3]);
}

#[test]
fn selected_groups_move_up_and_the_others_are_left_out() {
    let (plan, mut all) = (with(&[], "grpo"), four());
    // The group number of a later round is beyond the batch size.
    for s in &mut all[..2] {
        s.episode.group = 6;
    }
    let given = Given {
        selected: Some(vec![6]),
        ..Given::default()
    };
    let credit = Credit::assign(&plan, &all, &given).unwrap();
    let filled: Vec<_> = batch_of(&credit).iter().map(Option::is_some).collect();
    assert_eq!(filled[..4], [true, true, false, false]);
    assert_eq!(batch_of(&credit)[1].as_ref().unwrap().group, 6);
    let refused = Credit::assign(&plan, &all, &Given::default());
    let message = refused.err().unwrap().to_string();
    assert!(message.contains("group 6"), "{message}");
}

/// A control: what is trained on stays, with advantages that say nothing of it.
#[test]
fn scrambled_advantages_are_those_of_other_episodes_of_the_iteration() {
    let many = || {
        let all =
            (0..40).map(|at| episode(at / 8, at % 8, Outcome::Failed, f64::from(at * at % 41)));
        scored(all.collect())
    };
    let sizes = ["actor_rollout_ref.rollout.n=8", "data.train_batch_size=5"];
    let scramble = "algorithm.scramble_advantages=true";
    let sorted = |mut all: Vec<f64>| {
        all.sort_by(f64::total_cmp);
        all
    };
    for estimator in ["grpo", "reinforce_plus_plus"] {
        let plain = shown(batch_of(&assign(&with(&sizes, estimator), &many())));
        let plan = with(&[&sizes[..], &[scramble]].concat(), estimator);
        let of = |iteration| {
            let given = Given {
                iteration,
                ..Given::default()
            };
            Credit::assign(&plan, &many(), &given).unwrap()
        };
        let (one, two) = (of(1), of(2));
        let found = shown(batch_of(&one));
        near(&sorted(found.clone()), &sorted(plain.clone()));
        let moved = found.iter().zip(&plain).filter(|(a, b)| a != b).count();
        assert!(moved > 30, "{moved} of 40: {found:?}");
        assert_ne!(found, shown(batch_of(&two)), "anew in each iteration");
        assert_eq!(found, shown(batch_of(&of(1))));
        for episode in batch_of(&one).iter().flatten() {
            let row = &episode.sequences[0];
            for (advantage, kept) in row.advantages.iter().zip(&row.sequence.loss_mask) {
                let expected = if *kept { episode.advantage } else { 0.0 };
                // The mean over an episode's tokens is shown.
                assert!(
                    (advantage - expected).abs() < 1e-12,
                    "{advantage} {expected}"
                );
            }
        }
    }
}

#[test]
fn a_scrambled_episode_without_sampled_tokens_gives_nothing() {
    let plan = with(
        &["algorithm.scramble_advantages=true"],
        "reinforce_plus_plus",
    );
    let mut all = four();
    all[3].episode.sequences[0].loss_mask.fill(false);
    let credit = assign(&plan, &all);
    let rows = batch_of(&credit).iter().flatten();
    let silent = rows
        .filter(|e| e.sequences[0].advantages.iter().all(|a| *a == 0.0))
        .count();
    assert!((1..=2).contains(&silent), "{silent}");
}
