//! An explanation is the stage's result bit for bit, whatever the estimator and the shaping; and a
//! batch that is not this result is told apart from it, down to one bit.

use super::*;
use crate::iteration::join;
use crate::testing::{episode, plan};
use agentgym_jobs::records::EpisodeLogProbs;
use proptest::prelude::*;

/// What is drawn for an episode: its outcome and reward, and values for its streams.
type Drawn = (usize, f64, Vec<(f32, f32, f32, f32)>);

/// The iteration under this penalty and this choice of groups.
fn played(plan: &Plan, drawn: &[Drawn], with_masses: bool, given: Given) -> PlayedIteration {
    let (mut episodes, mut log_probs, mut values) = (Vec::new(), Vec::new(), Vec::new());
    let outcomes = [
        Outcome::Solved,
        Outcome::Failed,
        Outcome::Horizon,
        Outcome::Length,
        Outcome::EnvFault,
    ];
    for (at, (outcome, reward, streams)) in drawn.iter().enumerate() {
        let (group, sample) = (at as u32 / 2, at as u32 % 2);
        let mut one = episode(group, sample, outcomes[*outcome], *reward);
        for sequence in &mut one.sequences {
            let masked = |value: fn(&(f32, f32, f32, f32)) -> f32| -> Vec<f32> {
                let both = sequence.loss_mask.iter().zip(streams);
                both.map(|(kept, v)| if *kept { value(v) } else { 0.0 })
                    .collect()
            };
            let (sampled, masses) = (masked(|v| -v.0), masked(|v| -v.1 / 8.0));
            sequence.sampled_log_probs = sampled;
            sequence.log_kept_mass = with_masses.then_some(masses);
        }
        let rows = |value: fn(&(f32, f32, f32, f32)) -> f32| -> Vec<Vec<f32>> {
            let row = || streams.iter().map(value).collect();
            one.sequences.iter().map(|_| row()).collect()
        };
        log_probs.push(EpisodeLogProbs {
            old: rows(|v| -v.1),
            entropies: rows(|v| v.0),
            reference: Some(rows(|v| -v.2)),
        });
        values.push(rows(|v| v.3));
        episodes.push(one);
    }
    // The greedy episode of the last task was spoiled.
    let tasks = (0..drawn.len() as u32 / 2).filter(|group| *group != 3);
    let given = Given {
        iteration: 1,
        baselines: tasks.map(|group| (group, f64::from(group) / 3.0)).collect(),
        ..given
    };
    let episodes = join(0, episodes, log_probs, Some(values)).unwrap();
    PlayedIteration::new(plan, Iteration { episodes, given }).unwrap()
}

fn drawn() -> impl Strategy<Value = Vec<Drawn>> {
    let stream = (0.01..4.0f32, 0.01..4.0f32, 0.01..4.0f32, -1.0..1.0f32);
    let streams = prop::collection::vec(stream, 6);
    prop::collection::vec((0usize..5, -1.0..1.0f64, streams), 8)
}

/// Overrides, the coefficient of a KL penalty, selected groups.
type Shaping<'a> = (&'a [&'a str], Option<f64>, Option<Vec<u32>>);

/// A plan with its overrides, and what is given to it.
type Shaped = (String, Plan, Option<f64>, Option<Vec<u32>>);

/// Every estimator under every shaping that it can be combined with.
fn plans() -> Vec<Shaped> {
    let shapings: [Shaping<'_>; 6] = [
        (&[], None, None),
        (&["algorithm.overlong=mask"], None, None),
        (
            &[
                "algorithm.use_kl_in_reward=true",
                "algorithm.kl_penalty=low_var_kl",
            ],
            Some(0.25),
            None,
        ),
        (
            &[
                "algorithm.rollout_correction.rollout_is=sequence",
                "algorithm.rollout_correction.rollout_is_threshold=1.5",
            ],
            None,
            None,
        ),
        (
            &[
                "algorithm.rollout_correction.rollout_is=token",
                "algorithm.overlong=mask",
                "algorithm.use_kl_in_reward=true",
            ],
            Some(0.5),
            None,
        ),
        (
            &["algorithm.norm_adv_by_std_in_grpo=false"],
            None,
            Some(vec![2, 0]),
        ),
    ];
    let mut out = Vec::new();
    for estimator in agentgym_algorithms::AdvantageEstimator::ALL {
        for (overrides, kl_coef, selected) in &shapings {
            let name = format!("algorithm.adv_estimator={estimator}");
            let tokens = "algorithm.gamma=0.9";
            let lam = "algorithm.lam=0.8";
            let scored = "actor_rollout_ref.rollout.record_entropies=false";
            let mut all = vec![scored, name.as_str()];
            if !estimator.is_by_episode() {
                all.push(tokens);
            }
            if estimator.needs_values() {
                all.push(lam);
            }
            all.extend(*overrides);
            out.push((all.join(" "), plan(&all), *kl_coef, selected.clone()));
        }
    }
    out
}

fn bits(rows: &[Vec<f64>]) -> Vec<Vec<u64>> {
    let row = |row: &Vec<f64>| row.iter().map(|x| x.to_bits()).collect();
    rows.iter().map(row).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn explanations_are_the_batch_bit_for_bit(drawn in drawn(), with_masses in any::<bool>()) {
        for (name, plan, kl_coef, selected) in plans() {
            let given = Given { kl_coef, selected, ..Given::default() };
            let played = played(&plan, &drawn, with_masses, given);
            // The stage's own way, from which `batch.bin` is written.
            let recorded = Credit::assign(&plan, &played.all, &played.given).unwrap();
            let Batch::V1(slots) = &recorded.batch;
            prop_assert_eq!(played.differences(&recorded.batch, recorded.targets.as_ref(), 9), vec![]);
            let mut trained = 0;
            for at in 0..8u32 {
                let found = played.explain(&plan, at / 2, at % 2).unwrap().unwrap();
                let entry = slots.iter().flatten().find(|e| (e.group, e.sample) == (at / 2, at % 2));
                prop_assert_eq!(found.left_out.is_none(), entry.is_some(), "{} {:?}", name, found);
                let Some(entry) = entry else { continue };
                trained += 1;
                let theirs: Vec<_> = entry.sequences.iter().map(|s| s.advantages.clone()).collect();
                prop_assert_eq!(bits(&found.advantages), bits(&theirs), "{}", name);
                prop_assert_eq!(found.advantage.map(f64::to_bits), Some(entry.advantage.to_bits()));
                prop_assert!(slots[found.slot.unwrap()].as_ref() == Some(entry));
            }
            let overview = played.overview(&plan).unwrap();
            prop_assert_eq!(overview.iter().filter(|line| line.slot.is_some()).count(), trained);
        }
    }

    /// One bit of one number, anywhere in a copy of the batch.
    #[test]
    fn a_changed_bit_is_reported(drawn in drawn(), which in any::<prop::sample::Index>(), bit in 0u32..32, field in 0usize..4) {
        let plan = plan(&["algorithm.adv_estimator=gae", "actor_rollout_ref.rollout.record_entropies=false"]);
        let played = played(&plan, &drawn, false, Given::default());
        let mut copy = played.credit.batch.clone();
        let Batch::V1(slots) = &mut copy;
        let mut filled: Vec<_> = slots.iter_mut().enumerate().filter(|(_, e)| e.is_some()).collect();
        prop_assume!(!filled.is_empty());
        let at = which.index(filled.len());
        let (slot, entry) = &mut filled[at];
        let (slot, entry) = (*slot, entry.as_mut().unwrap());
        let row = &mut entry.sequences[0];
        match field {
            0 => row.advantages[3] = f64::from_bits(row.advantages[3].to_bits() ^ 1 << bit),
            1 => row.old_log_probs[3] = f32::from_bits(row.old_log_probs[3].to_bits() ^ 1 << bit),
            2 => entry.reward = f64::from_bits(entry.reward.to_bits() ^ 1 << bit),
            _ => row.sequence.token_ids[1] ^= 1 << bit,
        }
        let found = played.differences(&copy, None, 9);
        prop_assert_eq!(found.len(), 1, "{:?}", found);
        prop_assert_eq!(found[0].slot, slot);
        let Some(mut targets) = played.credit.targets.clone() else { panic!("gae has a critic") };
        let CriticTargets::V1(rows) = &mut targets;
        let row = rows.iter_mut().flatten().next().unwrap();
        row[0].returns[2] = f64::from_bits(row[0].returns[2].to_bits() ^ 1);
        let found = played.differences(&played.credit.batch, Some(&targets), 9);
        prop_assert_eq!(found.len(), 1, "{:?}", found);
    }
}

#[test]
fn what_is_left_out_says_why_and_the_rest_ends_in_its_advantage() {
    let plan = plan(&[
        "algorithm.overlong=mask",
        "actor_rollout_ref.rollout.record_entropies=false",
    ]);
    let streams = || vec![(0.5, 0.5, 0.5, 0.0); 6];
    let drawn = [
        (0, 1.0, streams()),
        (1, 0.0, streams()),
        (0, 1.0, streams()),
        (2, 0.0, streams()),
        (0, 1.0, streams()),
        (4, 0.0, streams()),
    ];
    let played = played(&plan, &drawn, false, Given::default());
    let say = |group, sample| {
        let found = played.explain(&plan, group, sample).unwrap().unwrap();
        found.lines().join("\n")
    };
    let solved = say(0, 0);
    assert!(solved.contains("GRPO: group scores 1 0"), "{solved}");
    assert!(
        solved.contains("(1 − 0.5) / (0.7071067811865476 + 0.000001) = 0.7071057811"),
        "{solved}"
    );
    assert!(solved.contains("(bits 3fe6a09c"), "{solved}");
    assert!(say(1, 1).contains("ran out of rounds or tokens"));
    assert!(say(2, 0).contains("the only one left in its group"));
    assert!(say(2, 1).contains("the environment failed"));
    assert!(played.explain(&plan, 9, 0).unwrap().is_none());
}
