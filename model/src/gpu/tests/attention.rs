//! Attention over several spans of keys, with heads and groups as in real models, and wider: a
//! row's result is the same in a block of its own and among many.

use super::policies::{TEMPERATURE, coefficients, flat, generate, scores, turn};
use super::{ORDERS, on_gpu};
use crate::gpu::emulator::Order;
use crate::tests::{SHAPES, Shape, random_policy, relative_error, requests, sequences};
use crate::{
    AdamW, ComputeOptions, Dtype, EngineOptions, Policy, Sampling, ScoreRequest, Trainer, Unit,
};

/// Seven query heads per key head, as in Qwen2.5-0.5B; more query heads per key head than a block
/// of few rows has pairs; heads of 128.
pub(super) fn policies() -> [Policy; 3] {
    [(7, 1, 64), (10, 1, 12), (4, 2, 128)].map(one_layer)
}

/// A policy of one layer with these heads, key heads and head width.
pub(super) fn one_layer((heads, kv_heads, width): (usize, usize, usize)) -> Policy {
    let shape = Shape {
        heads,
        kv_heads,
        width,
        layers: 1,
        hidden: Some(32),
        ..SHAPES[4]
    };
    random_policy(shape, 3)
}

#[test]
fn scores_over_spans_are_the_processors() {
    for policy in policies() {
        let sequences = sequences(policy.config().vocab_size, &[300, 2, 40], 6);
        let requests = requests(&sequences);
        let expected = flat(&scores(&policy, &requests, 1024));
        let orders = ORDERS.map(|order| {
            let policy = on_gpu(&policy, order, Dtype::F32);
            flat(&scores(&policy, &requests, 1024))
        });
        assert!(orders[0] == orders[1], "a barrier is missing");
        for (found, expected) in orders[0].iter().zip(&expected) {
            let error = relative_error(found, expected);
            assert!(error < 2e-5, "{error}");
        }
    }
}

/// One row over three spans while decoding, among many rows while scoring; long prompts are
/// prefilled in pieces of few and of many rows.
#[test]
fn rows_alone_and_among_many_get_the_same_bits() {
    let dtypes = [Dtype::Bf16, Dtype::F32, Dtype::Bf16];
    for (policy, dtype) in policies().into_iter().zip(dtypes) {
        let policy = on_gpu(&policy, Order::Shuffled, dtype);
        let sampling = Sampling {
            temperature: TEMPERATURE,
            ..Sampling::default()
        };
        let vocabulary = policy.config().vocab_size;
        let prompts = [255, 509, 30].map(|length| {
            let sequence = sequences(vocabulary, &[length], length as u64);
            sequence[0].token_ids.clone()
        });
        let turns: Vec<_> = prompts
            .iter()
            .zip(1..)
            .map(|(prompt, number)| turn(number, prompt, 3, sampling))
            .collect();
        let done = [512, 1].map(|prefill_chunk| {
            // Long prompts would take too long in steps of one token.
            let short = if prefill_chunk == 1 {
                &turns[2..]
            } else {
                &turns
            };
            let options = EngineOptions {
                prefill_chunk,
                ..EngineOptions::default()
            };
            generate(&policy, short, options)
        });
        assert!(done[0][2..] == done[1], "chunks show");
        for (prompt, done) in prompts.iter().zip(&done[0]) {
            let ids = [prompt.as_slice(), &done.token_ids].concat();
            let mask: Vec<bool> = (0..ids.len()).map(|t| t >= prompt.len()).collect();
            let request = ScoreRequest {
                token_ids: &ids,
                loss_mask: &mask,
            };
            let scored = &scores(&policy, &[request], 1024)[0];
            assert_eq!(scored.log_probs[prompt.len()..], done.log_probs, "{dtype}");
        }
    }
}

#[test]
fn gradients_over_spans_are_the_processors() {
    for policy in policies() {
        let sequences = sequences(policy.config().vocab_size, &[270, 40], 7);
        let units = [Unit {
            sequences,
            skip: false,
            share_prefixes: false,
        }];
        let gradients = |policy: Policy| {
            let trainer = Trainer::new(policy, AdamW::default());
            let options = ComputeOptions::default();
            let found = trainer.gradients(&units, TEMPERATURE, &coefficients, &options);
            found.unwrap().0
        };
        let expected = gradients(policy.clone());
        let orders = ORDERS.map(|order| gradients(on_gpu(&policy, order, Dtype::F32)));
        assert!(orders[0] == orders[1], "a barrier is missing");
        for ((name, found), (_, expected)) in orders[0].iter().zip(expected.iter()) {
            let error = relative_error(found, expected);
            assert!(error < 2e-4, "{name}: {error}");
        }
    }
}
