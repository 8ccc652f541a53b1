//! Decoding, scoring and training in tokens per second, on several threads, at shapes and
//! lengths that `tools/torch_speed.py` gives PyTorch too.
//! `cargo bench --workspace --bench speed -- [--shape tiny|0.5b|long] [--threads 2]
//! [--seconds 3] [--length TOKENS] [--checkpointed] [--json] [CASE…]`; cases are
//! `decode-ROWS`, `score` and `train`. With `--features cuda`, `--device cuda:0` measures a
//! GPU, which one thread feeds.

use std::error::Error;
use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

use agentgym_model::{
    AdamW, ComputeOptions, Device, Engine, EngineOptions, Policy, ScoreRequest, TinyShape,
    TrainSequence, Trainer, keep_freed_memory, score,
};

use common::{Numbers, coefficients, cpu_seconds, policy, turn, units};

mod common;

/// A model's sizes and how much of each work is done at once: `tools/torch_speed.py` has
/// the same table.
struct Setting {
    shape: TinyShape,
    /// Tokens of each prompt, and tokens sampled after it.
    decode: (usize, usize),
    /// Sequences of a scoring pass or a training step, and tokens of each.
    sequences: (usize, usize),
    cases: &'static [&'static str],
}

fn setting(name: &str) -> Result<Setting, Box<dyn Error>> {
    Ok(match name {
        "tiny" => Setting {
            shape: TinyShape::default(),
            decode: (160, 190),
            sequences: (16, 160),
            cases: &[
                "decode-1",
                "decode-8",
                "decode-32",
                "decode-64",
                "score",
                "train",
            ],
        },
        "0.5b" => Setting {
            shape: TinyShape {
                hidden: 896,
                layers: 24,
                heads: 14,
                kv_heads: 2,
                intermediate: 4864,
                vocab: 151_936,
                ..TinyShape::default()
            },
            decode: (64, 16),
            sequences: (2, 256),
            cases: &["decode-1", "decode-8", "decode-32", "score", "train"],
        },
        // Two layers as wide as those of half a billion parameters, on one long sequence.
        "long" => Setting {
            shape: TinyShape {
                hidden: 896,
                layers: 2,
                heads: 14,
                kv_heads: 2,
                intermediate: 4864,
                tokens_max: 32_768,
                ..TinyShape::default()
            },
            decode: (64, 16),
            sequences: (1, 8192),
            cases: &["score", "train"],
        },
        other => {
            return Err(
                format!("--shape {other} is not known; known are tiny, 0.5b and long").into(),
            );
        }
    })
}

/// Largest resident size of this process so far.
fn peak_bytes() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    let kib = line.and_then(|l| l.trim().strip_suffix("kB"));
    kib.map_or(0.0, |kib| kib.trim().parse().unwrap_or(0.0) * 1024.0)
}

/// Tokens done and what they took.
#[derive(Default)]
struct Measured {
    tokens: usize,
    wall_s: f64,
    cpu_s: f64,
}

impl Measured {
    /// Repeats `work`, which returns its tokens, for so many seconds after a first time.
    fn repeat(seconds: f64, mut work: impl FnMut() -> usize) -> Self {
        work();
        let (start, cpu) = (Instant::now(), cpu_seconds());
        let mut tokens = 0;
        while start.elapsed().as_secs_f64() < seconds {
            tokens += work();
        }
        Measured {
            tokens,
            wall_s: start.elapsed().as_secs_f64(),
            cpu_s: cpu_seconds() - cpu,
        }
    }
}

/// Rows divided over the threads, an engine on each, as a worker does it. What follows a
/// row's first token is measured: the prompts are run before the clock starts.
fn decode(
    policy: &Policy,
    rows: usize,
    lengths: (usize, usize),
    threads: usize,
    seconds: f64,
) -> Measured {
    let (context, sampled) = lengths;
    let threads = threads.min(rows);
    let mut all = Measured::default();
    let mut warm = false;
    while all.wall_s < seconds {
        let ready = Barrier::new(threads + 1);
        let mut start = (Instant::now(), 0.0);
        let tokens: usize = std::thread::scope(|scope| {
            let engines: Vec<_> = (0..threads)
                .map(|thread| {
                    let ready = &ready;
                    scope.spawn(move || {
                        let own = rows / threads + usize::from(thread < rows % threads);
                        let options = EngineOptions {
                            rows_max: own,
                            prefill_chunk: usize::MAX,
                            ..EngineOptions::default()
                        };
                        let mut engine = Engine::new(policy.clone(), options);
                        let mut numbers = Numbers(2);
                        for row in 0..own {
                            let turn = turn(row as u64, numbers.ids(context), sampled);
                            engine.submit(turn).expect("valid turn");
                        }
                        engine.step().expect("runs");
                        let before = engine.stats().tokens_sampled;
                        ready.wait();
                        while !engine.is_idle() {
                            black_box(engine.step().expect("runs"));
                        }
                        (engine.stats().tokens_sampled - before) as usize
                    })
                })
                .collect();
            ready.wait();
            start = (Instant::now(), cpu_seconds());
            engines
                .into_iter()
                .map(|engine| engine.join().expect("no panic"))
                .sum()
        });
        if std::mem::replace(&mut warm, true) {
            all.tokens += tokens;
            all.wall_s += start.0.elapsed().as_secs_f64();
            all.cpu_s += cpu_seconds() - start.1;
        }
    }
    all
}

/// Sequences whose every token but the first is predicted.
fn sequences((count, length): (usize, usize)) -> Vec<TrainSequence> {
    let mut numbers = Numbers(4);
    (0..count)
        .map(|_| TrainSequence {
            token_ids: numbers.ids(length),
            loss_mask: (0..length).map(|t| t > 0).collect(),
        })
        .collect()
}

fn scored(policy: &Policy, setting: &Setting, threads: usize, seconds: f64) -> Measured {
    let sequences = sequences(setting.sequences);
    let requests: Vec<_> = sequences
        .iter()
        .map(|s| ScoreRequest {
            token_ids: &s.token_ids,
            loss_mask: &s.loss_mask,
        })
        .collect();
    let (count, length) = setting.sequences;
    let options = ComputeOptions {
        threads,
        pack_tokens: (count / threads).clamp(1, 8) * length,
        ..ComputeOptions::default()
    };
    Measured::repeat(seconds, || {
        black_box(score(policy, &requests, 1.0, &options).expect("runs"));
        count * length
    })
}

/// Forward, backward, clipping and AdamW, a step after every pass over the sequences.
fn trained(
    policy: &Policy,
    setting: &Setting,
    threads: usize,
    checkpointed: bool,
    seconds: f64,
) -> Measured {
    let sequences = sequences(setting.sequences);
    let units = units(&sequences, (sequences.len() / threads).clamp(1, 8));
    let options = ComputeOptions {
        threads,
        checkpointed,
        ..ComputeOptions::default()
    };
    let mut trainer = Trainer::new(policy.clone(), AdamW::default());
    Measured::repeat(seconds, || {
        let report = trainer.step(&units, 1.0, 1e-4, &coefficients, &options);
        report.expect("runs").tokens
    })
}

fn main() -> Result<(), Box<dyn Error>> {
    // `cargo test --benches` only wants to see it run.
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if !arguments.iter().any(|argument| argument == "--bench") {
        return Ok(());
    }
    keep_freed_memory();
    let (mut shape, mut threads, mut seconds, mut json) = ("tiny".to_owned(), 2, 3.0, false);
    let (mut length, mut checkpointed, mut device) = (None, false, Device::cpu());
    let mut cases: Vec<String> = Vec::new();
    let mut rest = arguments.into_iter().filter(|a| a != "--bench");
    while let Some(argument) = rest.next() {
        let mut value = || rest.next().unwrap_or_default();
        match argument.as_str() {
            "--shape" => shape = value(),
            "--threads" => threads = value().parse().expect("--threads takes a number"),
            "--seconds" => seconds = value().parse().expect("--seconds takes a number"),
            "--length" => length = Some(value().parse().expect("--length takes a number")),
            "--device" => device = Device::parse(&value())?,
            "--checkpointed" => checkpointed = true,
            "--json" => json = true,
            _ => cases.push(argument),
        }
    }
    let mut setting = setting(&shape)?;
    if let Some(length) = length {
        setting.sequences.1 = length;
    }
    if cases.is_empty() {
        cases = setting.cases.iter().map(|&case| case.to_owned()).collect();
    }
    let policy = policy(setting.shape.config()?, 0.07).on(&device)?;
    let threads = device.threads(threads);
    for case in cases {
        let rows = case.strip_prefix("decode-").and_then(|r| r.parse().ok());
        let measured = match (case.as_str(), rows) {
            (_, Some(rows)) if rows > 0 => decode(&policy, rows, setting.decode, threads, seconds),
            ("score", _) => scored(&policy, &setting, threads, seconds),
            ("train", _) => trained(&policy, &setting, threads, checkpointed, seconds),
            _ => {
                return Err(
                    format!("`{case}` is no case; cases are decode-ROWS, score and train").into(),
                );
            }
        };
        let Measured {
            tokens,
            wall_s,
            cpu_s,
        } = measured;
        if json {
            let line = serde_json::json!({"case": case, "shape": shape, "threads": threads,
                "tokens": tokens, "wall_s": wall_s, "cpu_s": cpu_s});
            println!("{line}");
        } else {
            println!(
                "{shape:<5} {case:<10} {threads} threads {:>9.0} tokens/s {:>9.0} tokens per CPU-second, \
                 peak {:.0} MB",
                tokens as f64 / wall_s,
                tokens as f64 / cpu_s,
                peak_bytes() / 1e6
            );
        }
    }
    Ok(())
}
