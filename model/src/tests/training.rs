//! Optimizer steps: equal bytes for any number of threads and across a resume.

use super::{SHAPES, random_policy, sequences};
use crate::{
    AdamW, Adapter, ComputeOptions, Dtype, LoraOptions, OptimizerState, Policy, StepReport,
    Trainer, Unit, UnitCoefficients, UnitStreams, Weights,
};
use std::collections::BTreeMap;
use std::path::Path;

fn units(policy: &Policy, seed: u64) -> Vec<Unit> {
    let sequences = sequences(
        policy.config().vocab_size,
        &[20, 70, 5, 33, 64, 2, 90],
        seed,
    );
    sequences
        .chunks(2)
        .enumerate()
        .map(|(number, sequences)| Unit {
            sequences: sequences.to_vec(),
            skip: number == 1,
            share_prefixes: false,
        })
        .collect()
}

/// Cross-entropy with a little entropy bonus; unit 2 contributes nothing.
fn coefficients(unit: usize, streams: &UnitStreams) -> UnitCoefficients {
    let scale = if unit == 2 { 0.0 } else { 0.01 };
    let fill = |value: f64| {
        streams
            .log_probs
            .iter()
            .map(|s| vec![value; s.len()])
            .collect()
    };
    UnitCoefficients {
        log_probs: fill(-scale),
        entropies: fill(-0.1 * scale),
    }
}

fn step(trainer: &mut Trainer, seed: u64, threads: usize) -> StepReport {
    // Checkpointing must not change results either.
    let options = ComputeOptions {
        threads,
        checkpointed: matches!(threads, 2 | 7),
        ..ComputeOptions::default()
    };
    let units = units(&trainer.model().unwrap(), seed);
    trainer
        .step(&units, 0.7, 1e-2, &coefficients, &options)
        .unwrap()
}

#[test]
fn threads_never_show_and_training_learns() {
    let policies = [SHAPES[0], SHAPES[1], SHAPES[4]].map(|shape| random_policy(shape, 5));
    let halved = policies[0].on(&crate::Device::cpu_bf16()).unwrap();
    for policy in policies.into_iter().chain([halved]) {
        let mut trainers: Vec<Trainer> = (0..4)
            .map(|_| Trainer::new(policy.clone(), AdamW::default()))
            .collect();
        let mut norms = Vec::new();
        for round in 0..3 {
            let reports: Vec<StepReport> = trainers
                .iter_mut()
                .zip([1, 2, 3, 7])
                .map(|(trainer, threads)| step(trainer, round, threads))
                .collect();
            assert!(reports.iter().all(|report| *report == reports[0]));
            let first = trainers[0].model().unwrap();
            assert!(
                trainers
                    .iter_mut()
                    .all(|t| t.model().unwrap().weights() == first.weights())
            );
            assert!(first.weights() != policy.weights());
            norms.push(reports[0].grad_norm);
        }
        assert!(norms.iter().all(|norm| norm.is_finite() && *norm > 0.0));
    }
}

#[test]
fn a_skipped_unit_equals_one_without_coefficients() {
    let policy = random_policy(SHAPES[0], 6);
    let trainer = Trainer::new(policy.clone(), AdamW::default());
    let mut skipped = units(&policy, 1);
    let options = ComputeOptions::default();
    let gradients = |units: &[Unit]| {
        trainer
            .gradients(units, 1.0, &coefficients, &options)
            .unwrap()
    };
    let (before, tokens) = gradients(&skipped);
    assert_eq!(tokens, 20 + 70 + 64 + 2 + 90);
    skipped[2].skip = true;
    let (after, tokens) = gradients(&skipped);
    assert_eq!(tokens, 20 + 70 + 90);
    assert_eq!(before, after);
}

/// How many files a state has; its bytes are those of the files that were saved.
fn pieces_are_of(state: &OptimizerState, folder: &Path) -> usize {
    let mut files: BTreeMap<&str, Vec<u8>> = BTreeMap::new();
    let take = |name, piece: &[u8]| files.entry(name).or_default().extend_from_slice(piece);
    state.each_piece(take).unwrap();
    for (name, bytes) in &files {
        assert!(
            *bytes == std::fs::read(folder.join(name)).unwrap(),
            "{name}"
        );
    }
    files.len()
}

#[test]
fn a_resumed_training_equals_an_uninterrupted_one() {
    let policy = random_policy(SHAPES[1], 7);
    let mut whole = Trainer::new(policy.clone(), AdamW::default());
    step(&mut whole, 1, 1);
    let dir = tempfile::tempdir().unwrap();
    whole.model().unwrap().save(dir.path()).unwrap();
    whole.save_optimizer(&dir.path().join("optimizer")).unwrap();
    let resumed = Policy::load(dir.path(), &crate::Device::cpu()).unwrap();
    let mut resumed = Trainer::resume(
        resumed,
        AdamW::default(),
        Some(&dir.path().join("optimizer")),
    )
    .unwrap();
    assert_eq!(resumed.optimizer_steps(), 1);
    // In memory it is the same, and so are the bytes without a file.
    let (model, state) = whole.into_parts().unwrap();
    assert_eq!(pieces_are_of(&state, &dir.path().join("optimizer")), 1);
    let mut whole = Trainer::go_on(model, AdamW::default(), state).unwrap();
    step(&mut whole, 2, 1);
    step(&mut resumed, 2, 2);
    assert!(whole.model().unwrap().weights() == resumed.model().unwrap().weights());
    // The state matters: a fresh one gives other weights.
    let mut fresh = Trainer::new(
        Policy::load(dir.path(), &crate::Device::cpu()).unwrap(),
        AdamW::default(),
    );
    step(&mut fresh, 2, 1);
    assert!(whole.model().unwrap().weights() != fresh.model().unwrap().weights());
}

/// A trainer of billions of parameters holds one copy of its start policy: rounding changes numbers in
/// place, and an adapter that changes nothing yet shares its base's. What a clone holds stays as it is.
#[test]
fn a_start_policy_is_in_memory_once() {
    let options = ComputeOptions::default();
    let places = |policy: &Policy| -> Vec<*const f32> {
        let all = policy.weights().iter();
        all.map(|(_, parameter)| parameter.numbers().as_ptr())
            .collect()
    };
    let policy = random_policy(SHAPES[1], 7);
    let before = places(&policy);
    let rounded = policy.rounded(&options).unwrap();
    assert!(places(&rounded) == before);

    let lora = LoraOptions::new(2, 4.0, ["q_proj", "down_proj"]).unwrap();
    let adapter = Adapter::new(rounded.config(), lora, "start", 1);
    let adapted = rounded.with_adapter(adapter).unwrap();
    assert!(places(&adapted) == before);
    assert!(*adapted.weights() == rounded.weights().clone().in_f32());

    let (kept, policy) = (random_policy(SHAPES[1], 7), random_policy(SHAPES[1], 7));
    let shared = policy.clone();
    let rounded = policy.rounded(&options).unwrap();
    assert!(shared.weights() == kept.weights() && rounded.weights() != kept.weights());
}

/// The first step's gradient is that of the same numbers in f32, so what it leaves is known: the nearest
/// of what f32 training leaves. Later ones are those of a training that was never interrupted, and
/// forget neither the moments nor what the nearest numbers lack.
#[test]
fn a_policy_in_bf16_has_the_nearest_numbers_of_what_training_changes() {
    let options = ComputeOptions::default();
    let rounded = random_policy(SHAPES[1], 7).rounded(&options).unwrap();
    let nearest = |policy: &Policy| policy.weights().clone().rounded(&options).unwrap();
    let (mut plain, mut whole) = (
        Trainer::new(rounded.clone().in_f32(), AdamW::default()),
        Trainer::new(rounded, AdamW::default()),
    );
    assert_eq!(step(&mut plain, 1, 1), step(&mut whole, 1, 3));
    let exact = plain.model().unwrap();
    assert!(nearest(&exact) == *whole.model().unwrap().weights());
    assert!(nearest(&exact).in_f32() != *exact.weights());

    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("optimizer");
    whole.model().unwrap().save(dir.path()).unwrap();
    whole.save_optimizer(&state).unwrap();
    let load = || Policy::load(dir.path(), &crate::Device::cpu()).unwrap();
    assert_eq!(load().weights().dtype(), Dtype::Bf16);
    let says = load().config().raw("torch_dtype").cloned();
    assert_eq!(says, Some("bfloat16".into()));
    let weights = dir.path().join("model.safetensors");
    let bytes = |path: &std::path::Path| std::fs::metadata(path).unwrap().len() as f64;
    let halved = bytes(&weights) / bytes(&state.join("master.safetensors"));
    assert!(halved < 0.6, "{halved}");

    let mut resumed = Trainer::resume(load(), AdamW::default(), Some(&state)).unwrap();
    for seed in 2..5 {
        step(&mut whole, seed, 1);
        step(&mut resumed, seed, 2);
    }
    assert!(whole.model().unwrap().weights() == resumed.model().unwrap().weights());
    let saved = |trainer: &Trainer| {
        let dir = tempfile::tempdir().unwrap();
        trainer.save_optimizer(dir.path()).unwrap();
        ["state", "master"]
            .map(|of| std::fs::read(dir.path().join(format!("{of}.safetensors"))).unwrap())
    };
    assert!(saved(&whole) == saved(&resumed));
    // Many a step is less than half of what lies between two numbers of bf16.
    whole.save_optimizer(&state).unwrap();
    let model = whole.model().unwrap();
    let file = state.join("master.safetensors");
    let master = Weights::load_one(file, model.trained_shapes(), "policy", "is missing").unwrap();
    assert!(master.clone().rounded(&options).unwrap() == *model.weights());
    assert!(master != model.weights().clone().in_f32());
    let (_, in_memory) = whole.into_parts().unwrap();
    assert_eq!(pieces_are_of(&in_memory, &state), 2);
    // Its numbers belong to a policy in bf16.
    assert!(Trainer::go_on(load().in_f32(), AdamW::default(), in_memory).is_err());
    // Neither another dtype nor a state without the numbers is taken.
    let refused = Trainer::resume(load().in_f32(), AdamW::default(), Some(&state)).unwrap_err();
    assert!(refused.to_string().contains("trained in f32"), "{refused}");
    std::fs::remove_file(state.join("master.safetensors")).unwrap();
    let refused = Trainer::resume(load(), AdamW::default(), Some(&state)).unwrap_err();
    assert!(
        refused.to_string().contains("master.safetensors"),
        "{refused}"
    );
}

#[test]
fn a_gradient_that_is_not_finite_changes_nothing() {
    let policy = random_policy(SHAPES[0], 8);
    let mut trainer = Trainer::new(policy.clone(), AdamW::default());
    let units = units(&policy, 1);
    let endless = |_: usize, streams: &UnitStreams| UnitCoefficients {
        log_probs: streams
            .log_probs
            .iter()
            .map(|s| vec![f64::NAN; s.len()])
            .collect(),
        entropies: streams
            .log_probs
            .iter()
            .map(|s| vec![0.0; s.len()])
            .collect(),
    };
    let options = ComputeOptions::default();
    let report = trainer.step(&units, 1.0, 1e-2, &endless, &options).unwrap();
    assert!(report.skipped_non_finite);
    assert!(trainer.model().unwrap().weights() == policy.weights());
    assert_eq!(trainer.optimizer_steps(), 0);
}

#[test]
fn wrong_coefficients_are_an_error_that_names_the_unit() {
    let policy = random_policy(SHAPES[0], 9);
    let trainer = Trainer::new(policy.clone(), AdamW::default());
    let short = |_: usize, _: &UnitStreams| UnitCoefficients::default();
    let units = units(&policy, 1);
    let error = trainer
        .gradients(&units, 1.0, &short, &ComputeOptions::default())
        .unwrap_err();
    assert!(error.to_string().contains("unit 0"), "{error}");
}
