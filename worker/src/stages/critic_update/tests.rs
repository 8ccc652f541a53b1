//! Minibatches of the critic, and that it learns its targets.

use super::*;
use crate::stages::testing::{episode, plan, policy};
use agentgym_algorithms::losses::Aggregation;
use agentgym_jobs::episode::Outcome;
use agentgym_jobs::records::BatchSequence;

type Slot = (Option<BatchEpisode>, Option<Vec<CriticSequence>>);

fn slot(group: u32, sample: u32, target: f64) -> Slot {
    let made = episode(group, sample, Outcome::Solved, 1.0);
    let sequence = made.sequences[0].clone();
    let on_mask = |value: f64| {
        let mask = sequence.loss_mask.iter();
        mask.map(|kept| if *kept { value } else { 0.0 })
            .collect::<Vec<f64>>()
    };
    let targets = CriticSequence {
        values: vec![0.0; sequence.token_ids.len()],
        returns: on_mask(target),
    };
    let entry = BatchEpisode {
        task: made.task,
        group,
        sample,
        outcome: made.outcome,
        success: true,
        reward: 1.0,
        advantage: 0.0,
        sequences: vec![BatchSequence {
            old_log_probs: sequence.sampled_log_probs.clone(),
            ref_log_probs: None,
            advantages: on_mask(0.0),
            sequence,
        }],
    };
    (Some(entry), Some(vec![targets]))
}

fn gae(overrides: &[&str]) -> Plan {
    let mut all = vec!["algorithm.adv_estimator=gae", "critic.optim.lr=1e-2"];
    all.extend(overrides);
    plan(&all)
}

fn options(threads: usize) -> ComputeOptions<'static> {
    ComputeOptions {
        threads,
        pack_tokens: 4096,
        beat: &|| {},
        ..Default::default()
    }
}

#[test]
fn the_critic_learns_its_targets_on_any_number_of_threads() {
    let (batch, targets): (Vec<_>, Vec<_>) = [
        slot(0, 0, 1.0),
        slot(0, 1, 1.0),
        (None, None),
        slot(1, 1, 1.0),
    ]
    .into_iter()
    .unzip();
    let mut settings = settings(&gae(&["critic.cliprange_value=null"]), 1).unwrap();
    settings.units.unit_tokens = 7;
    settings.units.share_prefixes = false;
    let weights = [1, 3].map(|threads| {
        let critic = Arc::new(Critic::new(&policy()).unwrap());
        let mut trainer = trainer(&critic, &settings, None).unwrap();
        let minibatch = Minibatch::new(&batch, &targets, 0..4, &settings).unwrap();
        assert_eq!(minibatch.slots, [0, 1, 3]);
        assert_eq!(
            (minibatch.units.len(), minibatch.denominator.loss_tokens),
            (3, 9)
        );
        let mut losses = Vec::new();
        for index in 0..12 {
            let step = minibatch
                .train(&mut trainer, &settings, (0, index), &options(threads))
                .unwrap();
            losses.push(step.metrics.loss);
        }
        assert_eq!(losses[0], 0.5, "a new critic says 0, the target is 1");
        assert!(losses[11] < 0.3, "{losses:?}");
        trainer.into_model().unwrap().weights().clone()
    });
    assert!(weights[0] == weights[1]);
}

#[test]
fn missing_targets_are_named() {
    let (batch, _) = slot(0, 0, 1.0);
    let settings = settings(&gae(&[]), 1).unwrap();
    let (batch, targets) = ([batch], [None]);
    let refused = Minibatch::new(&batch, &targets, 0..1, &settings);
    let message = refused.err().unwrap().to_string();
    assert!(
        message.contains("slot 0") && message.contains("textcraft_0"),
        "{message}"
    );
}

#[test]
fn keys_of_its_own_and_the_actors_where_none_is_given() {
    let own = gae(&[
        "critic.ppo_epochs=3",
        "critic.optim.lr_warmup_steps_ratio=0.5",
        "critic.optim.decay_excludes_norms_and_biases=true",
        "trainer.total_training_steps=4",
        "actor_rollout_ref.actor.loss_agg_mode=seq_mean_token_mean",
    ]);
    let settings = settings(&own, 1).unwrap();
    assert_eq!((settings.ppo_epochs, settings.lr), (3, 5e-3));
    assert!(settings.decay_excludes_norms_and_biases);
    assert_eq!(settings.loss.aggregation, Aggregation::SeqMeanTokenMean);
    assert_eq!(settings.loss.clip, Some(0.5));
}
