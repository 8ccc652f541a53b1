//! Shared by the benches: a policy of random weights, random numbers for weights and inputs,
//! and a clock that other processes do not affect.

use std::collections::BTreeMap;
use std::path::PathBuf;

use agentgym_model::{
    Chat, GenerationRequest, ModelConfig, Parameter, Policy, Sampling, Tokenizer, TrainSequence,
    Unit, UnitCoefficients, UnitStreams, Weights, parameter_shapes,
};

/// The programs' allocator: glibc's returns large blocks to the kernel at once, which costs a
/// third of a training step.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Numbers in [-0.5, 0.5) from a linear congruential generator.
pub(crate) struct Numbers(pub(crate) u32);

impl Numbers {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.0 >> 8) as f32 / (1 << 24) as f32 - 0.5
    }

    /// Ids below 1024, which are in the vocabulary of every measured shape.
    pub(crate) fn ids(&mut self, count: usize) -> Vec<u32> {
        (0..count)
            .map(|_| ((self.next() + 0.5) * 1024.0) as u32)
            .collect()
    }
}

/// A policy whose weights are uniform in an interval of width `spread`, with the tokenizer of
/// the fixture, from the folder that `AGENTGYM_FIXTURES` names or the checkout's.
pub(crate) fn policy(config: ModelConfig, spread: f32) -> Policy {
    let fixtures = match std::env::var_os("AGENTGYM_FIXTURES") {
        Some(path) => PathBuf::from(path),
        None => concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures").into(),
    };
    let fixtures = fixtures.join("qwen2-tiny");
    let mut numbers = Numbers(1);
    let parameters: BTreeMap<_, _> = parameter_shapes(&config)
        .into_iter()
        .map(|(name, shape)| {
            let norm = name.contains("norm");
            let data: Vec<f32> = (0..shape.iter().product())
                .map(|_| if norm { 1.0 } else { numbers.next() * spread })
                .collect();
            (name, Parameter::new(shape, data))
        })
        .collect();
    let complain = |e: agentgym_model::Error| -> ! {
        panic!("AGENTGYM_FIXTURES names no folder with a tokenizer in qwen2-tiny: {e}")
    };
    let tokenizer = Tokenizer::load(&fixtures).unwrap_or_else(|e| complain(e));
    let chat = Chat::load(&fixtures).unwrap_or_else(|e| complain(e));
    let chat = chat.expect("the fixture has a template");
    Policy::new(config, Weights::new(parameters), tokenizer, chat).expect("complete")
}

/// CPU seconds of this process, excluding all others.
pub(crate) fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux");
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .expect("name")
        .split_whitespace()
        .collect();
    let ticks = |i: usize| fields[i].parse::<f64>().expect("number");
    (ticks(11) + ticks(12)) / 100.0
}

pub(crate) fn turn(sequence: u64, append: Vec<u32>, tokens_max: usize) -> GenerationRequest {
    GenerationRequest {
        sequence,
        append,
        stream: [3; 32],
        turn: 0,
        sampling: Sampling::default(),
        tokens_max,
        stop_ids: Vec::new(),
    }
}

/// Gradient units of `per_unit` sequences each.
pub(crate) fn units(sequences: &[TrainSequence], per_unit: usize) -> Vec<Unit> {
    let unit = |sequences: &[TrainSequence]| Unit {
        sequences: sequences.to_vec(),
        skip: false,
        share_prefixes: false,
    };
    sequences.chunks(per_unit).map(unit).collect()
}

/// A loss with the same derivative by every log-prob.
pub(crate) fn coefficients(_: usize, streams: &UnitStreams) -> UnitCoefficients {
    let each = |all: &[Vec<f32>], by: f64| all.iter().map(|s| vec![by; s.len()]).collect();
    UnitCoefficients {
        log_probs: each(&streams.log_probs, 1e-4),
        entropies: each(&streams.entropies, 0.0),
    }
}
