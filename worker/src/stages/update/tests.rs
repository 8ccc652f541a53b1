use super::steps::Place;
use super::*;
use crate::stages::testing::{episode, fixture, plan, policy};
use agentgym_algorithms::KlEstimator;
use agentgym_algorithms::losses::{ClipRange, KlLoss};
use agentgym_jobs::episode::{Outcome, Sequence};
use agentgym_jobs::records::{BatchEpisode, BatchSequence};
use agentgym_model::{ComputeOptions, ScoreRequest, score};
use serde_json::Value;

fn entry(group: u32, sample: u32, sequence: Sequence, advantages: Vec<f64>) -> BatchEpisode {
    let made = episode(group, sample, Outcome::Solved, 1.0);
    BatchEpisode {
        task: made.task,
        group,
        sample,
        outcome: made.outcome,
        success: true,
        reward: 1.0,
        advantage: advantages
            .iter()
            .copied()
            .find(|a| *a != 0.0)
            .unwrap_or(0.0),
        sequences: vec![BatchSequence {
            old_log_probs: sequence.sampled_log_probs.clone(),
            ref_log_probs: None,
            sequence,
            advantages,
        }],
    }
}

fn small(group: u32, sample: u32, advantage: f64) -> Option<BatchEpisode> {
    let sequence = episode(group, sample, Outcome::Solved, 1.0)
        .sequences
        .remove(0);
    let advantages = sequence
        .loss_mask
        .iter()
        .map(|kept| if *kept { advantage } else { 0.0 })
        .collect();
    Some(entry(group, sample, sequence, advantages))
}

fn options(threads: usize) -> ComputeOptions<'static> {
    ComputeOptions {
        threads,
        pack_tokens: 4096,
        beat: &|| {},
        ..Default::default()
    }
}

fn place(minibatch: usize) -> Place {
    Place {
        epoch: 0,
        minibatch,
        slots: 0..0,
    }
}

#[test]
fn empty_slots_and_flat_groups_move_nothing() {
    let mut settings = settings(&plan(&["actor_rollout_ref.actor.entropy_coeff=0"]), 1).unwrap();
    (settings.units.unit_tokens, settings.units.share_prefixes) = (12, false);
    let batch = [
        small(0, 0, 0.7),
        small(0, 1, -0.7),
        None,
        small(1, 1, 0.0),
        small(2, 0, 1.0),
        None,
    ];
    let minibatch = Minibatch::new(&batch, 0..6, &settings).unwrap();
    assert_eq!(minibatch.slots, [0, 1, 3, 4]);
    assert_eq!(
        minibatch
            .members
            .iter()
            .map(|(slot, _)| *slot)
            .collect::<Vec<_>>(),
        [0, 1, 4]
    );
    assert!(minibatch.units.iter().eq([[0, 1].as_slice(), &[2]]));
    // The uniform group counts in the denominator although it is not computed.
    assert_eq!(minibatch.denominator.loss_tokens, 12);

    settings.loss.entropy_coeff = 0.01;
    let minibatch = Minibatch::new(&batch, 0..6, &settings).unwrap();
    assert_eq!(
        minibatch.members.len(),
        4,
        "an entropy bonus pulls on every token"
    );
}

#[test]
fn a_minibatch_without_gradient_takes_no_step() {
    let settings = settings(&plan(&["actor_rollout_ref.actor.entropy_coeff=0"]), 1).unwrap();
    let policy = policy();
    let mut trainer = trainer(&policy, &settings, None).unwrap();
    let batch = [small(0, 0, 0.0), None];
    let minibatch = Minibatch::new(&batch, 0..2, &settings).unwrap();
    let step = minibatch
        .train(&mut trainer, &settings, &place(0), &options(1))
        .unwrap();
    assert!(step.skipped && step.units.is_empty());
    let folder = tempfile::tempdir().unwrap();
    policy.save(&folder.path().join("before")).unwrap();
    trainer
        .model()
        .unwrap()
        .save(&folder.path().join("after"))
        .unwrap();
    let read =
        |name: &str| std::fs::read(folder.path().join(name).join("model.safetensors")).unwrap();
    assert!(read("before") == read("after"));
}

/// The fixture's three AdamW steps on a PPO-clip + k3 + entropy loss.
#[test]
fn golden_steps() {
    let text = std::fs::read_to_string(fixture("qwen2-tiny/golden.json")).unwrap();
    let golden: Value = serde_json::from_str(&text).unwrap();
    let number = |v: &Value| v.as_f64().unwrap();
    let numbers = |v: &Value| {
        v.as_array()
            .unwrap()
            .iter()
            .map(number)
            .collect::<Vec<f64>>()
    };
    let update = &golden["update"];
    // The file's streams start at the second token.
    let shifted = |v: &Value| [vec![0.0], numbers(v)].concat();
    let batch: Vec<Option<BatchEpisode>> = golden["sequences"]
        .as_array()
        .unwrap()
        .iter()
        .enumerate()
        .map(|(i, ids)| {
            let narrow = |row: Vec<f64>| row.into_iter().map(|v| v as f32).collect::<Vec<f32>>();
            let sequence = Sequence {
                token_ids: numbers(ids).into_iter().map(|v| v as u32).collect(),
                loss_mask: golden["loss_mask"][i]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|m| m.as_f64() == Some(1.0) || m.as_bool() == Some(true))
                    .collect(),
                sampled_log_probs: narrow(shifted(&update["old_log_prob"][i])),
                log_kept_mass: None,
                entropies: None,
            };
            let mut entry = entry(0, i as u32, sequence, shifted(&update["advantages"][i]));
            entry.sequences[0].ref_log_probs = Some(narrow(shifted(&update["ref_log_prob"][i])));
            Some(entry)
        })
        .collect();
    let optimizer = &update["optimizer"];
    let mut settings = settings(&plan(&[]), 1).unwrap();
    settings.lr = number(&optimizer["lr"]);
    settings.betas = (
        number(&optimizer["betas"][0]),
        number(&optimizer["betas"][1]),
    );
    settings.eps = number(&optimizer["eps"]);
    settings.weight_decay = number(&optimizer["weight_decay"]);
    settings.grad_clip = number(&optimizer["grad_clip"]);
    settings.loss.clip = ClipRange::symmetric(number(&update["clip_ratio"]));
    settings.loss.entropy_coeff = number(&update["entropy_coeff"]);
    let estimator: KlEstimator = update["kl_loss_type"].as_str().unwrap().parse().unwrap();
    settings.loss.kl = Some(KlLoss {
        estimator,
        coef: number(&update["kl_loss_coef"]),
    });

    let mut finals = Vec::new();
    let cuts = [
        (10_000, 1, false),
        (16, 2, false),
        (16, 1, false),
        (10_000, 1, true),
        (16, 2, true),
    ];
    for (unit_tokens, threads, share_prefixes) in cuts {
        settings.units.unit_tokens = unit_tokens;
        settings.units.share_prefixes = share_prefixes;
        let mut trainer = trainer(&policy(), &settings, None).unwrap();
        for (index, expected) in update["steps"].as_array().unwrap().iter().enumerate() {
            let minibatch = Minibatch::new(&batch, 0..batch.len(), &settings).unwrap();
            let step = minibatch
                .train(&mut trainer, &settings, &place(index), &options(threads))
                .unwrap();
            for (name, found) in [
                ("loss", step.metrics.loss),
                ("pg_loss", step.metrics.policy_loss),
                ("entropy", step.metrics.entropy),
                ("kl_loss", step.metrics.kl_loss),
                ("grad_norm", step.grad_norm),
            ] {
                let wanted = number(&expected[name]);
                assert!(
                    (found - wanted).abs() <= 1e-4 * (wanted.abs() + 1.0),
                    "step {index}: {name} {found} against {wanted}"
                );
            }
        }
        let folder = tempfile::tempdir().unwrap();
        trainer.model().unwrap().save(folder.path()).unwrap();
        finals.push(std::fs::read(folder.path().join("model.safetensors")).unwrap());
    }
    assert!(finals[1] == finals[2], "threads show in the weights");
}

/// Two groups whose episodes begin alike; old and reference log-probs are off the policy's by up to
/// half a nat, so that some tokens are clipped.
fn related(policy: &Policy) -> Vec<Option<BatchEpisode>> {
    let answers: [&[u32]; 8] = [
        &[7, 8, 9],
        &[7, 8, 9, 10, 11],
        &[7, 8, 12],
        &[7, 8, 9, 10, 11],
        &[20],
        &[21, 22, 23, 24],
        &[21, 22, 25],
        &[26, 27, 28, 29, 30, 31],
    ];
    let episode = |(number, answer): (usize, &&[u32])| {
        let group = (number / 4) as u32;
        let prompt = [1, 2, 3, 4, 5 + group];
        let token_ids = [prompt.as_slice(), answer].concat();
        let loss_mask: Vec<bool> = (0..token_ids.len()).map(|t| t >= prompt.len()).collect();
        let request = ScoreRequest {
            token_ids: &token_ids,
            loss_mask: &loss_mask,
        };
        let scores = score(policy, &[request], 1.0, &options(1))
            .unwrap()
            .remove(0);
        let off = |by: usize| -> Vec<f32> {
            let own = scores.log_probs.iter().enumerate();
            let off = own.map(|(t, p)| p + ((number * by + t) % 5) as f32 * 0.25 - 0.5);
            off.collect()
        };
        let (old, reference) = (off(3), off(7));
        let advantages = loss_mask.iter().enumerate();
        let advantages = advantages
            .map(|(t, kept)| f64::from(u8::from(*kept)) * ((number * 3 + t) % 7) as f64 / 3.0 - 1.0)
            .collect();
        let sequence = Sequence {
            token_ids,
            loss_mask,
            sampled_log_probs: old.clone(),
            log_kept_mass: None,
            entropies: None,
        };
        let mut entry = entry(group, number as u32 % 4, sequence, advantages);
        entry.sequences[0].ref_log_probs = Some(reference);
        Some(entry)
    };
    answers.iter().enumerate().map(episode).collect()
}

/// Every loss, aggregation and KL term: with shared prefixes the same step as with sequences apart,
/// whatever the cut.
#[test]
fn a_step_on_shared_prefixes_is_the_step_on_sequences_apart() {
    let policy = policy();
    let batch = related(&policy);
    let trained = policy.weights();
    let mut kinds = 0;
    for loss in ["vanilla", "gspo", "cispo"] {
        for mode in [
            "token_mean",
            "seq_mean_token_sum",
            "seq_mean_token_mean",
            "micro_batch_mean",
        ] {
            for (kl, entropy) in [("k1", 0.0), ("k3", 0.01), ("none", -0.02)] {
                let mut keys = vec![
                    format!("actor_rollout_ref.actor.policy_loss.loss_mode={loss}"),
                    format!("actor_rollout_ref.actor.loss_agg_mode={mode}"),
                    "actor_rollout_ref.actor.ppo_micro_batch_size=2".to_owned(),
                    format!("actor_rollout_ref.actor.entropy_coeff={entropy}"),
                    "actor_rollout_ref.actor.optim.lr=1.0".to_owned(),
                ];
                if kl != "none" {
                    keys.push("actor_rollout_ref.actor.use_kl_loss=true".to_owned());
                    keys.push(format!("actor_rollout_ref.actor.kl_loss_type={kl}"));
                }
                let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
                let mut settings = settings(&plan(&keys), 1).unwrap();
                // Far above a gradient's error, which division by a root of that size would
                // amplify.
                settings.eps = 1.0;
                let moved =
                    [(false, 4096), (true, 4096), (true, 14)].map(|(share, unit_tokens)| {
                        settings.units.share_prefixes = share;
                        settings.units.unit_tokens = unit_tokens;
                        let minibatch = Minibatch::new(&batch, 0..8, &settings).unwrap();
                        assert_eq!(minibatch.units.len() > 1, unit_tokens == 14);
                        let size = minibatch.size();
                        assert_eq!(size.nodes < size.tokens * 3 / 4, share, "{size:?}");
                        let mut trainer = trainer(&policy, &settings, None).unwrap();
                        let step = minibatch.train(&mut trainer, &settings, &place(0), &options(2));
                        assert!(step.unwrap().grad_norm > 0.0);
                        let after = trainer.into_model().unwrap();
                        let numbers = after.weights().iter().zip(trained.iter());
                        let change = numbers.flat_map(|((_, new), (_, old))| {
                            let pairs = new.numbers().iter().zip(old.numbers());
                            pairs
                                .map(|(new, old)| f64::from(new - old))
                                .collect::<Vec<f64>>()
                        });
                        change.collect::<Vec<f64>>()
                    });
                let norm = |numbers: &mut dyn Iterator<Item = f64>| -> f64 {
                    numbers.map(|x| x * x).sum::<f64>().sqrt()
                };
                let whole = norm(&mut moved[0].iter().copied());
                assert!(whole > 0.0);
                for shared in &moved[1..] {
                    let apart = moved[0].iter().zip(shared).map(|(a, b)| a - b);
                    let error = norm(&mut { apart }) / whole;
                    assert!(error < 1e-5, "{keys:?}: {error}");
                }
                kinds += 1;
            }
        }
    }
    assert_eq!(kinds, 36);
}

/// The same minibatch with the mean over micro-batches of two slots.
#[test]
fn a_micro_batch_weighs_its_own_tokens() {
    let plan = plan(&[
        "actor_rollout_ref.actor.loss_agg_mode=micro_batch_mean",
        "actor_rollout_ref.actor.ppo_micro_batch_size=2",
    ]);
    let settings = settings(&plan, 1).unwrap();
    let batch = [
        small(0, 0, 1.0),
        small(0, 1, 1.0),
        small(1, 0, 1.0),
        None,
        None,
        None,
    ];
    let minibatch = Minibatch::new(&batch, 0..6, &settings).unwrap();
    assert_eq!(minibatch.denominator.loss_tokens, 9);
    let own: Vec<_> = minibatch
        .denominators
        .iter()
        .map(|d| (d.loss_tokens, d.micro_batches))
        .collect();
    assert_eq!(own, [(6, 2), (6, 2), (3, 2)]);
}

#[test]
fn a_gradient_that_is_not_finite_changes_nothing_and_is_counted() {
    let mut settings = settings(&plan(&[]), 1).unwrap();
    // Coefficients beyond the f32 range overflow in the backward pass.
    settings.loss.entropy_coeff = 1e300;
    let policy = policy();
    let mut trainer = trainer(&policy, &settings, None).unwrap();
    let batch = [small(0, 0, 1.0)];
    let minibatch = Minibatch::new(&batch, 0..1, &settings).unwrap();
    let step = minibatch
        .train(&mut trainer, &settings, &place(0), &options(1))
        .unwrap();
    assert!(step.skipped && step.non_finite, "{step:?}");
    assert_eq!(step.grad_norm, 0.0);
    assert!(trainer.model().unwrap().weights() == policy.weights());
    let record = UpdateSteps {
        settings,
        minibatches: vec![step],
    };
    let metrics = summarise(&record, Size::default());
    assert_eq!((metrics.skipped_steps, metrics.non_finite_steps), (1, 1));
}

#[test]
fn a_warm_up_of_the_critic_leaves_the_policy() {
    let plan = plan(&["algorithm.adv_estimator=gae", "trainer.critic_warmup=2"]);
    let epochs: Vec<u32> = [1, 2, 3]
        .map(|i| settings(&plan, i).unwrap().ppo_epochs)
        .to_vec();
    assert_eq!(epochs, [0, 0, 1]);
}

#[test]
fn learning_rate_counts_iterations() {
    let plan = plan(&[
        "trainer.total_training_steps=10",
        "actor_rollout_ref.actor.optim.lr=1.0",
        "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0.4",
    ]);
    let rates: Vec<f64> = [1, 2, 4, 5, 10]
        .map(|i| settings(&plan, i).unwrap().lr)
        .to_vec();
    assert_eq!(rates, [0.25, 0.5, 1.0, 1.0, 1.0]);
}
