//! Every load and store of the kernels, looked at one by one (`emulator/accesses.cpp`), at the smallest
//! shapes that reach every branch of the tiles.

use super::attention::one_layer;
use super::policies::{TEMPERATURE, coefficients, generate, scores, turn};
use crate::gpu::emulator::{Order, emulated};
use crate::tests::{random_adapter, related, requests, sequences};
use crate::{
    ALL_LINEAR, AdamW, ComputeOptions, Device, Dtype, EngineOptions, LoraOptions, Policy, Sampling,
    Trainer, Unit,
};

/// In a process of its own, since the kernels are compiled once in each. Types alternate between the shapes;
/// `tools/gpu_mutants.py` looks at each shape in both.
#[test]
fn every_access_is_inside_and_raced_by_none() {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "gpu::tests::accesses::small_shapes_compute"]);
    command.args(["--ignored", "--nocapture"]);
    let output = command
        .env("AGENTGYM_EMULATOR_ACCESSES", "some")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("1 passed"), "{text}");
}

/// Heads of 64 and of 128 numbers, and of a width that is no multiple of four; a group with more
/// heads than a block of few rows has pairs.
#[test]
#[ignore = "the other process of the test above, and of tools/gpu_mutants.py"]
fn small_shapes_compute() {
    let mut policies: Vec<Policy> = [(7, 1, 64), (10, 1, 12), (2, 1, 6), (2, 1, 128)]
        .map(one_layer)
        .into();
    let adapter = LoraOptions::new(2, 4.0, [ALL_LINEAR]).unwrap();
    let adapter = random_adapter(&policies[2], adapter, 9);
    policies.push(policies[2].with_adapter(adapter).unwrap());
    let looked = std::env::var_os("AGENTGYM_EMULATOR_ACCESSES");
    let all = (policies.iter()).flat_map(|policy| Dtype::ALL.map(|dtype| (policy, dtype)));
    for (at, (policy, dtype)) in all.enumerate() {
        if at / 2 % 2 != at % 2 && looked.as_ref().is_some_and(|how| how == "some") {
            continue;
        }
        let one = computed(policy, Order::Ascending, dtype);
        // The other order shows what accesses show too.
        if looked.is_none() {
            let other = computed(policy, Order::Shuffled, dtype);
            assert!(one == other, "{dtype}: a barrier is missing");
        }
    }
}

/// Log-probabilities of scoring and of generation, and the weights after a step.
fn computed(policy: &Policy, order: Order, dtype: Dtype) -> (Vec<f32>, Vec<f32>) {
    let gpu = policy.on(&Device::of(emulated(order, dtype))).unwrap();
    let vocabulary = policy.config().vocab_size;
    // A tree whose nodes begin inside of pages, and rows across three pages.
    let mut tree = related(vocabulary, 3);
    tree.truncate(3);
    let mut found: Vec<f32> = scores(&gpu, &requests(&tree), 10_000)
        .into_iter()
        .flat_map(|scores| scores.log_probs)
        .collect();
    // More positions than a span, in a few rows.
    let prompt = &sequences(vocabulary, &[258], 5)[0].token_ids;
    let turns = [turn(1, prompt, 3, Sampling::default())];
    let options = EngineOptions::default();
    found.extend(generate(&gpu, &turns, options).remove(0).log_probs);
    let unit = Unit {
        sequences: tree,
        share_prefixes: true,
        ..Unit::default()
    };
    let mut trainer = Trainer::new(gpu, AdamW::default());
    let options = ComputeOptions::default();
    let step = trainer.step(&[unit], TEMPERATURE, 1e-2, &coefficients, &options);
    step.unwrap();
    let model = trainer.into_model().unwrap();
    let weights = model.trained_weights().iter();
    (
        found,
        weights.flat_map(|(_, p)| p.numbers().to_vec()).collect(),
    )
}
