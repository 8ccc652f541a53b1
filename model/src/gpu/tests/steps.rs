//! Decode steps that a device replays from a recording.

use super::attention;
use super::policies::{TEMPERATURE, scores, turn};
use super::{ORDERS, on_gpu};
use crate::tests::sequences;
use crate::{
    Dtype, Engine, EngineOptions, EngineStats, Generation, Policy, Sampling, ScoreRequest,
};

/// Runs until every turn is done. After the first of them its sequence continues, so that prefill
/// happens between decode steps.
fn converse(policy: &Policy, prompts: &[Vec<u32>]) -> (Vec<Generation>, EngineStats) {
    let sampling = Sampling {
        temperature: TEMPERATURE,
        ..Sampling::default()
    };
    let mut engine = Engine::new(policy.clone(), EngineOptions::default());
    for (number, prompt) in prompts.iter().enumerate() {
        let mut turn = turn(number as u64, prompt, 6 + 3 * number, sampling);
        turn.stop_ids.clear();
        engine.submit(turn).unwrap();
    }
    let mut done: Vec<Generation> = Vec::new();
    while !engine.is_idle() {
        let more = engine.step().unwrap();
        if done.is_empty()
            && let Some(first) = more.first()
        {
            let mut next = turn(first.sequence, &[3, 4, 5], 9, sampling);
            (next.turn, next.stop_ids) = (1, Vec::new());
            engine.submit(next).unwrap();
        }
        done.extend(more);
    }
    (done, engine.stats())
}

/// Rows leave and come back, and new pages and spans begin during decoding. Groups of heads need
/// one block per row, two, or a block for many rows.
#[test]
fn steps_done_again_draw_what_is_scored() {
    let dtypes = [Dtype::F32, Dtype::Bf16, Dtype::F32, Dtype::Bf16];
    let more = [attention::one_layer((20, 1, 8))];
    for (policy, dtype) in attention::policies().into_iter().chain(more).zip(dtypes) {
        let prompts = [253, 250, 60, 3, 124].map(|length| {
            let sequence = sequences(policy.config().vocab_size, &[length], length as u64);
            sequence[0].token_ids.clone()
        });
        let [(done, stats), (other, _)] =
            ORDERS.map(|order| converse(&on_gpu(&policy, order, dtype), &prompts));
        assert!(done == other, "a barrier is missing");
        // Most steps have sizes that occurred twice before.
        assert!(stats.steps_replayed > stats.steps / 3, "{stats:?}");
        assert!(stats.steps_replayed < stats.steps, "{stats:?}");
        let policy = on_gpu(&policy, ORDERS[0], dtype);
        for (number, prompt) in prompts.iter().enumerate() {
            let mut ids = prompt.clone();
            let mut mask = vec![false; ids.len()];
            let mut sampled: Vec<f32> = Vec::new();
            let own = done.iter().filter(|turn| turn.sequence == number as u64);
            for (later, turn) in own.enumerate() {
                if later > 0 {
                    ids.extend([3, 4, 5]);
                    mask.resize(ids.len(), false);
                }
                ids.extend(&turn.token_ids);
                mask.resize(ids.len(), true);
                sampled.extend(&turn.log_probs);
            }
            let request = ScoreRequest {
                token_ids: &ids,
                loss_mask: &mask,
            };
            let scored = &scores(&policy, &[request], 1024)[0].log_probs;
            let trained = scored.iter().zip(&mask).filter(|(_, trained)| **trained);
            let scored: Vec<f32> = trained.map(|(log_prob, _)| *log_prob).collect();
            assert_eq!(scored, sampled, "{dtype}: sequence {number}");
        }
    }
}
