//! Tokens per second of one thread at the quickstart's shape: decoding, scoring,
//! training, and for comparison training by the tensor library's autograd
//! (*composed*). `cargo bench --workspace --bench tiny`.

use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

use agentgym_model::{
    AdamW, ComputeOptions, Engine, EngineOptions, ModelConfig, Policy, ScoreRequest, TrainSequence,
    Trainer, score,
};

use common::{Numbers, coefficients, cpu_seconds, turn, units};

mod common;

/// The oracle of the tests, which refers to its imports as `crate::…`.
#[path = "../src/tests/composed.rs"]
mod composed;

/// Hidden 128, four layers, 4/2 heads, inner 384, 1024 ids, tied.
const CONFIG: &str = r#"{"model_type": "qwen2", "hidden_size": 128, "intermediate_size": 384,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": 1024, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0, "tie_word_embeddings": true}"#;

fn policy() -> Policy {
    let raw = serde_json::from_str(CONFIG).expect("valid JSON");
    let config = ModelConfig::from_json(raw, Path::new("bench")).expect("valid config");
    common::policy(config, 0.2)
}

/// Runs `work` (which returns tokens) for about two seconds; tokens per CPU-second.
fn rate(what: &str, mut work: impl FnMut() -> usize) -> Option<f64> {
    // The first argument that is not an option selects by substring, as in cargo's benches.
    let filter = std::env::args()
        .skip(1)
        .find(|argument| !argument.starts_with('-'));
    if filter.is_some_and(|filter| !what.contains(&filter)) {
        return None;
    }
    work();
    let (start, cpu) = (Instant::now(), cpu_seconds());
    let mut tokens = 0;
    while start.elapsed().as_secs_f64() < 2.0 {
        tokens += work();
    }
    let seconds = cpu_seconds() - cpu;
    println!(
        "{what:<44} {:>8.0} tokens per CPU-second",
        tokens as f64 / seconds
    );
    Some(tokens as f64 / seconds)
}

/// Tokens sampled after each prompt.
const SAMPLED: usize = 190;

fn decode(policy: &Policy, rows: usize, context: usize) {
    let mut numbers = Numbers(2);
    let mut engine = Engine::new(
        policy.clone(),
        EngineOptions {
            rows_max: rows,
            ..EngineOptions::default()
        },
    );
    let mut next = 0;
    for _ in 0..rows {
        engine
            .submit(turn(next, numbers.ids(context), SAMPLED))
            .expect("valid turn");
        next += 1;
    }
    while engine.stats().tokens_sampled < rows as u64 {
        engine.step().expect("runs");
    }
    rate(
        &format!(
            "decode, {rows} rows, context {context} to {}",
            context + SAMPLED
        ),
        || {
            let done = engine.step().expect("runs");
            for done in done {
                engine.release(done.sequence);
                engine
                    .submit(turn(next, numbers.ids(context), SAMPLED))
                    .expect("valid turn");
                next += 1;
            }
            rows
        },
    );
}

/// The tensor library's threads busy-wait on work as small as this, which would count as
/// ten times the CPU time. The library reads this variable when it starts.
const THREADS: (&str, &str) = ("RAYON_NUM_THREADS", "1");

fn main() {
    if std::env::var_os(THREADS.0).is_none() {
        let program = std::env::current_exe().expect("a program knows its path");
        let mut again = std::process::Command::new(program);
        again
            .args(std::env::args().skip(1))
            .env(THREADS.0, THREADS.1);
        let ended = again.status().expect("a program can be started");
        assert!(ended.success(), "{ended}");
        return;
    }
    let policy = policy();
    let mut numbers = Numbers(4);
    for rows in [1, 8, 32, 64] {
        decode(&policy, rows, 160);
    }
    for length in [160, 350] {
        let sequences: Vec<TrainSequence> = (0..16)
            .map(|_| TrainSequence {
                token_ids: numbers.ids(length),
                loss_mask: (0..length).map(|t| t > length / 2).collect(),
            })
            .collect();
        let requests: Vec<_> = sequences
            .iter()
            .map(|s| ScoreRequest {
                token_ids: &s.token_ids,
                loss_mask: &s.loss_mask,
            })
            .collect();
        rate(&format!("score, sequences of {length}"), || {
            black_box(score(&policy, &requests, 1.0, &ComputeOptions::default()).expect("runs"));
            16 * length
        });
        let mut trainer = Trainer::new(policy.clone(), AdamW::default());
        let composed = composed::Composed::new(&policy).expect("a copy of the policy");
        let by_library = rate(&format!("train, composed, sequences of {length}"), || {
            let mut tokens = 0;
            for sequence in &sequences[..2] {
                black_box(
                    composed
                        .gradients(sequence, 1.0, |_| (1e-4, 0.0))
                        .expect("runs"),
                );
                tokens += sequence.token_ids.len();
            }
            tokens
        });
        for per_unit in [2, 8] {
            let units = units(&sequences, per_unit);
            let by_kernels = rate(
                &format!("train, sequences of {length}, {per_unit} per unit"),
                || {
                    let options = ComputeOptions::default();
                    let report = trainer.step(&units, 1.0, 1e-4, &coefficients, &options);
                    report.expect("runs").tokens
                },
            );
            if let Some((kernels, library)) = by_kernels.zip(by_library) {
                println!("{:<44} {:>8.1} times composed", "", kernels / library);
            }
        }
    }
}
