//! Properties of bf16 alone: how numbers are rounded, and training that changes f32 weights.

use super::policies::{TEMPERATURE, coefficients, scores};
use super::{gpu, on_gpu};
use crate::gpu::emulator::Order;
use crate::tests::{sequences, tiny_policy};
use crate::{AdamW, ComputeOptions, Device, Dtype, Policy, TrainSequence, Trainer, Unit};

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

/// A weight of 8 significant bits, as in bf16, would not move by any number of such steps.
#[test]
fn many_tiny_steps_add_up_in_the_f32_weights() {
    const STEPS: usize = 40;
    const RATE: f64 = 1e-5;
    let policy = tiny_policy();
    let sequence = &sequences(policy.config().vocab_size, &[6], 4)[0];
    let units = [Unit {
        sequences: vec![sequence.clone()],
        skip: false,
        share_prefixes: false,
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
        trainer.model().unwrap()
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
    // The f32 weights are saved, and a policy loaded from them computes the same.
    let folder = tempfile::tempdir().unwrap();
    last.save(folder.path()).unwrap();
    let device = Device::of(gpu(Order::Ascending, Dtype::Bf16));
    let loaded = Policy::load(folder.path(), &device).unwrap();
    assert_eq!(numbers(&loaded), after);
    let request = [TrainSequence::request(sequence)];
    assert!(scores(&loaded, &request, 64) == scores(&last, &request, 64));
}
