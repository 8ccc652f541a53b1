//! Operands in bf16: near the processor's f32 numbers, with the same promises among
//! themselves, and training that changes f32 weights.

use super::policies::{
    LENGTHS, TEMPERATURE, coefficients, flat, generate, gradients, policies, scores, trained, turn,
    turns,
};
use super::{ORDERS, gpu, on_gpu};
use crate::gpu::emulator::Order;
use crate::tests::{requests, sequences, tiny_policy};
use crate::{
    AdamW, ComputeOptions, Device, Dtype, EngineOptions, Policy, Sampling, ScoreRequest,
    TrainSequence, Trainer, Unit,
};

/// Norm of the difference to the processor's f32, over the norm of its numbers. An operand
/// is rounded by up to 2⁻⁹ of itself, several times in each layer.
const SCORES_TOLERANCE: f64 = 0.005;
const GRADIENTS_TOLERANCE: f64 = 0.04;

fn distance(found: &[f32], expected: &[f32]) -> f64 {
    let square = |x: f32| f64::from(x) * f64::from(x);
    let pairs = found.iter().zip(expected);
    let apart: f64 = pairs.map(|(a, b)| square(a - b)).sum();
    (apart / expected.iter().map(|&x| square(x)).sum::<f64>()).sqrt()
}

fn in_bf16(policy: &Policy) -> Policy {
    on_gpu(policy, Order::Ascending, Dtype::Bf16)
}

#[test]
fn numbers_are_rounded_to_the_nearest_and_ties_to_even() {
    let numbers = [
        (0.0, 0.0),
        (-1.0, -1.0),
        // Halfway between 1 and 1 + 2⁻⁷, and between that and the next.
        (1.0 + 2f32.powi(-8), 1.0),
        (1.0 + 3.0 * 2f32.powi(-8), 1.0 + 2f32.powi(-6)),
        (1.0 + 2f32.powi(-8) + 2f32.powi(-20), 1.0 + 2f32.powi(-7)),
        // The nearest multiple of the smallest number, 2⁻¹³³.
        (2f32.powi(-133) * 5.4, 2f32.powi(-133) * 5.0),
        (f32::MAX, f32::INFINITY),
        (f32::NEG_INFINITY, f32::NEG_INFINITY),
    ];
    let gpu = gpu(Order::Ascending, Dtype::Bf16);
    let (from, expected): (Vec<f32>, Vec<f32>) = numbers.into_iter().unzip();
    let round = |x: &[f32]| {
        let matrix = gpu.upload_matrix(x, x.len()).unwrap();
        matrix.operands().unwrap().download().unwrap()
    };
    assert_eq!(round(&from), expected);
    assert!(round(&[f32::NAN])[0].is_nan());
}

#[test]
fn scores_are_near_the_processors_and_do_not_depend_on_packing() {
    for policy in policies() {
        let sequences = sequences(policy.config().vocab_size, &LENGTHS, 1);
        let requests = requests(&sequences);
        let expected = flat(&scores(&policy, &requests, 1024));
        let alone = ORDERS.map(|order| scores(&on_gpu(&policy, order, Dtype::Bf16), &requests, 1));
        assert!(alone[0] == alone[1], "a barrier is missing");
        for (found, expected) in flat(&alone[0]).iter().zip(&expected) {
            let error = distance(found, expected);
            println!("scores {error:.4}");
            assert!(error < SCORES_TOLERANCE, "{error}");
        }
        let together = scores(&in_bf16(&policy), &requests, usize::MAX);
        assert!(together == alone[0], "packing shows");
    }
}

#[test]
fn generation_does_not_depend_on_what_runs_beside() {
    for policy in policies() {
        let turns = turns(policy.config().vocab_size);
        let orders = ORDERS.map(|order| {
            let policy = on_gpu(&policy, order, Dtype::Bf16);
            generate(&policy, &turns, EngineOptions::default())
        });
        assert!(orders[0] == orders[1], "a barrier is missing");
        let narrow = EngineOptions {
            rows_max: 1,
            cache_tokens_max: 1,
            prefill_chunk: 7,
        };
        let found = generate(&in_bf16(&policy), &turns, narrow);
        assert!(found == orders[0], "batching shows");
    }
}

#[test]
fn sampled_log_probs_are_scored_again_bit_for_bit() {
    for policy in policies() {
        let policy = in_bf16(&policy);
        let sampling = Sampling {
            temperature: TEMPERATURE,
            ..Sampling::default()
        };
        let prompt = &sequences(policy.config().vocab_size, &[61], 9)[0].token_ids;
        let turns = [turn(5, prompt, 8, sampling)];
        let done = generate(&policy, &turns, EngineOptions::default());
        let ids = [prompt.as_slice(), &done[0].token_ids].concat();
        let mask: Vec<bool> = (0..ids.len()).map(|t| t >= prompt.len()).collect();
        let request = ScoreRequest {
            token_ids: &ids,
            loss_mask: &mask,
        };
        let scored = &scores(&policy, &[request], 1024)[0];
        assert_eq!(scored.log_probs[prompt.len()..], done[0].log_probs);
    }
}

#[test]
fn gradients_are_near_the_processors() {
    for policy in trained() {
        let expected = gradients(&policy, false);
        let orders = ORDERS.map(|order| gradients(&on_gpu(&policy, order, Dtype::Bf16), false));
        assert!(orders[0] == orders[1], "a barrier is missing");
        for ((name, found), (other, expected)) in orders[0].iter().zip(expected.iter()) {
            assert_eq!(name, other);
            let error = distance(found, expected);
            println!("{name} {error:.4}");
            assert!(error < GRADIENTS_TOLERANCE, "{name}: {error}");
        }
        let twice = gradients(&in_bf16(&policy), true);
        assert!(twice == orders[0], "checkpoints show");
    }
}

/// A weight of which bf16 keeps 8 bits would not move by steps of this size, however many.
#[test]
fn many_tiny_steps_add_up_in_the_f32_weights() {
    const STEPS: usize = 40;
    const RATE: f64 = 1e-5;
    let policy = tiny_policy();
    let sequence = &sequences(policy.config().vocab_size, &[6], 4)[0];
    let units = [Unit {
        sequences: vec![sequence.clone()],
        skip: false,
    }];
    let adamw = AdamW {
        weight_decay: 0.0,
        ..AdamW::default()
    };
    let options = ComputeOptions::default();
    let mut trainer = Trainer::new(in_bf16(&policy), adamw);
    let step = |trainer: &mut Trainer| {
        let report = trainer.step(&units, TEMPERATURE, RATE, &coefficients, &options);
        assert!(!report.unwrap().skipped_non_finite);
        trainer.policy().unwrap()
    };
    let name = "model.layers.0.mlp.up_proj.weight";
    let numbers = |policy: &Policy| policy.weights().get(name).unwrap().numbers().to_vec();
    let rounded = |numbers: &[f32]| -> Vec<u32> {
        let nearest = |x: &f32| (x.to_bits() + 0x7fff + (x.to_bits() >> 16 & 1)) >> 16;
        numbers.iter().map(nearest).collect()
    };
    let before = numbers(&policy);
    let once = numbers(&step(&mut trainer));
    let moved = before.iter().zip(&once).filter(|(a, b)| a != b).count();
    let seen = rounded(&before).into_iter().zip(rounded(&once));
    let seen = seen.filter(|(a, b)| a != b).count();
    assert!(
        moved > before.len() / 2 && seen < before.len() / 8,
        "{moved} {seen}"
    );
    let mut last = None;
    for _ in 1..STEPS {
        last = Some(step(&mut trainer));
    }
    let last = last.unwrap();
    let after = numbers(&last);
    let moves = before
        .iter()
        .zip(&after)
        .map(|(a, b)| f64::from((a - b).abs()));
    let mean = moves.sum::<f64>() / before.len() as f64;
    assert!(mean > 0.5 * STEPS as f64 * RATE, "{mean}");
    let seen = rounded(&before).into_iter().zip(rounded(&after));
    assert!(seen.filter(|(a, b)| a != b).count() > before.len() / 4);
    // What is saved is the f32 weights, and loaded again it computes the same.
    let folder = tempfile::tempdir().unwrap();
    last.save(folder.path()).unwrap();
    let device = Device::of(gpu(Order::Ascending, Dtype::Bf16));
    let loaded = Policy::load(folder.path(), &device).unwrap();
    assert_eq!(numbers(&loaded), after);
    let request = [TrainSequence::request(sequence)];
    assert!(scores(&loaded, &request, 64) == scores(&last, &request, 64));
}
