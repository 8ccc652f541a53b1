//! Measures decoding, prefill, scoring, training, and writing and reading weights, on several
//! threads, at the shapes and lengths of `tools/torch_speed.py` for PyTorch. Each rate is printed
//! with its share of the limits of the machine's matrix products and memory.
//! `cargo bench --workspace --bench speed -- [--shape tiny|135m|0.5b|3b|long] [--threads 2]
//! [--seconds 3] [--prompt TOKENS] [--sampled TOKENS] [--sequences COUNT] [--length TOKENS]
//! [--checkpointed] [--json] [--trajectories FILE] [--unit-tokens TOKENS] [CASE…]`; cases are `decode-ROWS`, `prompt`, `score`, `train`, `save`
//! and `load`; `group-N` and `apart-N` prefill and sample N answers to one prompt and to N prompts;
//! `agree-ROWS` compares scored log-probs with those from decoding the same tokens, and fails where
//! one has other bits; `share-KIND`
//! compares training and scoring with common beginnings computed once and for each sequence, and
//! `peak-shared` and `peak-apart` make one training step each (module `sharing`).
//! With `--features cuda`, `--device cuda:0 [--dtype bf16]` measures a GPU, driven by one thread;
//! the shares are then of `--operations` and `--bytes`, its limits per second, and each line says
//! what the case took of its memory (module `device_use`).

use std::error::Error;
use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

use agentgym_model::{
    AdamW, ComputeOptions, Device, DeviceFootprint, Dtype, Engine, EngineOptions, Policy,
    ScoreRequest, TrainSequence, Trainer, Weights, score,
};

use common::{Numbers, coefficients, cpu_seconds, policy, turn, units};
use device_use::Work;
use roofline::{Cost, Machine, Model};
use setting::{Setting, setting};

#[path = "../common/mod.rs"]
mod common;
mod device_use;
mod roofline;
mod setting;
mod sharing;

/// Largest resident size of this process so far.
fn peak_bytes() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    let kib = line.and_then(|l| l.trim().strip_suffix("kB"));
    kib.map_or(0.0, |kib| kib.trim().parse().unwrap_or(0.0) * 1024.0)
}

/// Tokens processed, or bytes for the file cases, and the time that they took.
#[derive(Default)]
struct Measured {
    done: usize,
    wall_s: f64,
    cpu_s: f64,
}

impl Measured {
    /// Repeats `work`, which returns the amount done, for `seconds` after one warm-up call.
    fn repeat(seconds: f64, mut work: impl FnMut() -> usize) -> Self {
        work();
        let (start, cpu) = (Instant::now(), cpu_seconds());
        let mut done = 0;
        while start.elapsed().as_secs_f64() < seconds {
            done += work();
        }
        Measured {
            done,
            wall_s: start.elapsed().as_secs_f64(),
            cpu_s: cpu_seconds() - cpu,
        }
    }
}

/// The engines of `threads`, as a worker has them, for so many sequences; and how many each gets.
fn engines(policy: &Policy, count: usize, threads: usize) -> Vec<(Engine, usize)> {
    let one = EngineOptions {
        prefill_chunk: usize::MAX,
        ..EngineOptions::default()
    };
    let all = one.over(threads, policy);
    let all = &all[..all.len().min(count)];
    let each = |(number, options): (usize, &EngineOptions)| {
        let own = count / all.len() + usize::from(number < count % all.len());
        let options = EngineOptions {
            rows_max: own,
            ..*options
        };
        (Engine::new(policy.clone(), options), own)
    };
    all.iter().enumerate().map(each).collect()
}

/// Divides the rows over the threads as a worker does. Prefill and each row's first token run before
/// the clock starts.
fn decode(
    policy: &Policy,
    rows: usize,
    lengths: (usize, usize),
    threads: usize,
    seconds: f64,
) -> Measured {
    let (context, sampled) = lengths;
    let mut all = Measured::default();
    let mut warm = false;
    while all.wall_s < seconds {
        let engines = engines(policy, rows, threads);
        let ready = &Barrier::new(engines.len() + 1);
        let mut start = (Instant::now(), 0.0);
        let tokens: usize = std::thread::scope(|scope| {
            let engines: Vec<_> = engines
                .into_iter()
                .map(|(mut engine, own)| {
                    scope.spawn(move || {
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
            all.done += tokens;
            all.wall_s += start.0.elapsed().as_secs_f64();
            all.cpu_s += cpu_seconds() - start.1;
        }
    }
    all
}

/// The requests that are divided over the threads' engines.
#[derive(Clone, Copy)]
struct Answers {
    count: usize,
    /// Tokens of each prompt, and tokens sampled after it.
    lengths: (usize, usize),
    /// Whether all share one prompt.
    alike: bool,
}

/// Measures prefill and sampling, from the first forward pass to the last.
fn answered(policy: &Policy, answers: Answers, threads: usize, seconds: f64) -> Measured {
    let Answers {
        count,
        lengths: (prompt, sampled),
        alike,
    } = answers;
    Measured::repeat(seconds, || {
        let engines = engines(policy, count, threads).into_iter().enumerate();
        std::thread::scope(|scope| {
            for (number, (mut engine, own)) in engines {
                scope.spawn(move || {
                    // An engine runs a common prompt prefix only once, so prompts must differ.
                    let mut numbers = Numbers(5 + number as u32);
                    let mut ids = numbers.ids(prompt);
                    for row in 0..own {
                        let turn = turn(row as u64, ids.clone(), sampled);
                        engine.submit(turn).expect("valid turn");
                        if !alike {
                            ids = numbers.ids(prompt);
                        }
                    }
                    while !engine.is_idle() {
                        black_box(engine.step().expect("runs"));
                    }
                });
            }
        });
        match sampled {
            1 => count * prompt,
            _ => count * sampled,
        }
    })
}

/// Measures writing weights to a file in the temporary folder, or reading them back.
fn written(policy: &Policy, model: &Model, is_read: bool, seconds: f64) -> Measured {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let weights = policy.weights();
    weights.save(folder.path()).expect("it can be written");
    Measured::repeat(seconds, || {
        if is_read {
            let weights = Weights::load(folder.path(), policy.config());
            black_box(weights.expect("it was written"));
        } else {
            weights.save(folder.path()).expect("it can be written");
        }
        // The file holds them in f32.
        4 * model.numbers() as usize
    })
}

/// Sequences in which every token but the first is predicted.
fn sequences((count, length): (usize, usize)) -> Vec<TrainSequence> {
    let mut numbers = Numbers(4);
    (0..count)
        .map(|_| TrainSequence {
            token_ids: numbers.ids(length),
            loss_mask: (0..length).map(|t| t > 0).collect(),
        })
        .collect()
}

/// Sequences that are computed together: those that fit into `--unit-tokens`, else up to eight.
fn together(setting: &Setting, threads: usize) -> usize {
    let (count, length) = setting.sequences;
    match setting.unit_tokens {
        Some(tokens) => (tokens / length).max(1),
        None => (count / threads).clamp(1, 8),
    }
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
        pack_tokens: together(setting, threads) * length,
        ..ComputeOptions::default()
    };
    Measured::repeat(seconds, || {
        black_box(score(policy, &requests, 1.0, &options).expect("runs"));
        count * length
    })
}

/// Forward, backward, clipping and AdamW, with one step per pass over the sequences.
fn trained(
    policy: &Policy,
    setting: &Setting,
    threads: usize,
    checkpointed: bool,
    seconds: f64,
) -> Measured {
    let sequences = sequences(setting.sequences);
    let units = units(&sequences, together(setting, threads));
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

/// How far sampled log-probabilities are from scored ones.
struct Agreement {
    /// Nats.
    largest: f64,
    mean: f64,
    /// How many have other bits, of how many.
    differing: usize,
    of: usize,
}

fn agreement(policy: &Policy, rows: usize, (prompt, sampled): (usize, usize)) -> Agreement {
    let options = EngineOptions {
        rows_max: rows,
        ..EngineOptions::default()
    };
    let mut engine = Engine::new(policy.clone(), options);
    let mut numbers = Numbers(7);
    let mut ids: Vec<Vec<u32>> = (0..rows).map(|_| numbers.ids(prompt)).collect();
    for (row, ids) in ids.iter().enumerate() {
        let turn = turn(row as u64, ids.clone(), sampled);
        engine.submit(turn).expect("valid turn");
    }
    let mut drawn = vec![Vec::new(); rows];
    while !engine.is_idle() {
        for turn in engine.step().expect("runs") {
            let row = turn.sequence as usize;
            ids[row].extend(turn.token_ids);
            drawn[row] = turn.log_probs;
        }
    }
    let masks: Vec<Vec<bool>> = (ids.iter())
        .map(|ids| (0..ids.len()).map(|t| t >= prompt).collect())
        .collect();
    let requests: Vec<_> = (ids.iter().zip(&masks))
        .map(|(token_ids, loss_mask)| ScoreRequest {
            token_ids,
            loss_mask,
        })
        .collect();
    let scored = score(policy, &requests, 1.0, &ComputeOptions::default()).expect("runs");
    let pairs: Vec<(f32, f32)> = (scored.iter().zip(&drawn))
        .flat_map(|(scored, drawn)| scored.log_probs[prompt..].iter().zip(drawn))
        .map(|(scored, drawn)| (*scored, *drawn))
        .collect();
    let difference = |(scored, drawn): &(f32, f32)| f64::from((scored - drawn).abs());
    let differences: Vec<f64> = pairs.iter().map(difference).collect();
    let differ = |(scored, drawn): &&(f32, f32)| scored.to_bits() != drawn.to_bits();
    // `total_cmp` orders NaN as the largest.
    let largest = (differences.iter().copied().max_by(f64::total_cmp)).expect("some are sampled");
    assert!(largest.is_finite(), "a log-probability is no number");
    Agreement {
        largest,
        mean: differences.iter().sum::<f64>() / differences.len() as f64,
        differing: pairs.iter().filter(differ).count(),
        of: pairs.len(),
    }
}

/// Starts anew with an allocator that keeps what is freed, as a worker's does while it scores or trains
/// with a large model.
fn keep_freed() -> std::io::Result<()> {
    const SETTINGS: &str = "_RJEM_MALLOC_CONF";
    if std::env::var_os(SETTINGS).is_some() {
        return Ok(());
    }
    let mut again = std::process::Command::new(std::env::current_exe()?);
    again.args(std::env::args_os().skip(1));
    again.env(SETTINGS, "dirty_decay_ms:-1");
    Err(std::os::unix::process::CommandExt::exec(&mut again))
}

fn main() -> Result<(), Box<dyn Error>> {
    // `cargo test --benches` only checks that it starts.
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if !arguments.iter().any(|argument| argument == "--bench") {
        return Ok(());
    }
    let (mut shape, mut threads, mut seconds, mut json) = ("tiny".to_owned(), 2, 3.0, false);
    let mut checkpointed = false;
    let [mut prompt, mut sampled, mut count, mut length] = [None; 4];
    let (mut device, mut dtype) = ("cpu".to_owned(), Dtype::F32);
    let (mut trajectories, mut unit_tokens) = (None, None);
    let mut limits = (None, None);
    let mut cases: Vec<String> = Vec::new();
    let mut rest = arguments.into_iter().filter(|a| a != "--bench");
    while let Some(argument) = rest.next() {
        let mut value = || rest.next().unwrap_or_default();
        match argument.as_str() {
            "--shape" => shape = value(),
            "--threads" => threads = value().parse().expect("--threads takes a number"),
            "--seconds" => seconds = value().parse().expect("--seconds takes a number"),
            "--prompt" => prompt = Some(value().parse().expect("--prompt takes a number")),
            "--sampled" => sampled = Some(value().parse().expect("--sampled takes a number")),
            "--sequences" => count = Some(value().parse().expect("--sequences takes a number")),
            "--length" => length = Some(value().parse().expect("--length takes a number")),
            "--device" => device = value(),
            "--dtype" => dtype = value().parse::<Dtype>()?,
            "--operations" => {
                limits.0 = Some(value().parse().expect("--operations takes a number"))
            }
            "--bytes" => limits.1 = Some(value().parse().expect("--bytes takes a number")),
            "--trajectories" => trajectories = Some(value()),
            "--unit-tokens" => unit_tokens = Some(value().parse().expect("it takes a number")),
            "--checkpointed" => checkpointed = true,
            "--json" => json = true,
            _ => cases.push(argument),
        }
    }
    if matches!(shape.as_str(), "135m" | "0.5b")
        && cases.iter().all(|case| case == "score" || case == "train")
    {
        keep_freed()?;
    }
    let mut setting = setting(&shape)?;
    setting.unit_tokens = unit_tokens;
    for (size, given) in [
        (&mut setting.decode.0, prompt),
        (&mut setting.decode.1, sampled),
        (&mut setting.sequences.0, count),
        (&mut setting.sequences.1, length),
    ] {
        *size = given.unwrap_or(*size);
    }
    if cases.is_empty() {
        cases = setting.cases.iter().map(|&case| case.to_owned()).collect();
    }
    let device = Device::parse(&device, dtype)?;
    if !json {
        for file in device_use::libraries() {
            println!("opened {file}");
        }
    }
    let policy = policy(setting.shape.config()?, 0.07).on(&device)?;
    let footprint = DeviceFootprint::of(policy.config(), None, dtype);
    let threads = device.threads(threads);
    let model = Model::of(policy.config(), dtype);
    let machine = match limits {
        (Some(operations), Some(bytes)) => Machine { operations, bytes },
        _ => Machine::measure(threads),
    };
    if !json {
        println!(
            "{threads} threads: {:.0} billion operations and {:.1} GB read from memory a second at most",
            machine.operations / 1e9,
            machine.bytes / 1e9
        );
    }
    let (prompt, sampled) = setting.decode;
    let mut disagreeing = 0;
    // Tokens that a token attends to on average: those before it and itself.
    let (decoding, packed) = (prompt + sampled / 2, setting.sequences.1 / 2);
    for case in cases {
        let (name, kind) = case.split_once('-').unwrap_or((&case, ""));
        let rows: usize = kind.parse().unwrap_or(0);
        if name == "agree" && rows > 0 {
            let Agreement {
                largest,
                mean,
                differing,
                of,
            } = agreement(&policy, rows, setting.decode);
            disagreeing += differing;
            match json {
                true => println!(
                    "{}",
                    serde_json::json!({"case": case, "shape": shape, "largest": largest,
                        "mean": mean, "differing": differing, "of": of})
                ),
                false => {
                    println!(
                        "{shape:<5} {case:<10} {differing} of {of} differ, largest {largest:.2e}, mean \
                         {mean:.2e} nats"
                    )
                }
            }
            continue;
        }
        if name == "share" && sharing::KINDS.contains(&kind) {
            let recorded = match &trajectories {
                Some(file) => sharing::recorded(file)?,
                None => sharing::sequences(kind),
            };
            let timing = (threads, seconds);
            sharing::compare(
                &policy,
                (kind, &recorded),
                unit_tokens.unwrap_or(2048),
                timing,
            );
            continue;
        }
        if let ("peak", "shared" | "apart") = (name, kind) {
            sharing::one_step(&policy, kind == "shared");
            println!("{shape:<5} {case:<10} peak {:.0} MB", peak_bytes() / 1e6);
            continue;
        }
        let engines = EngineOptions::default().over(threads, &policy).len();
        device_use::forget(&device)?;
        let (measured, cost) = match name {
            "decode" if rows > 0 => (
                decode(&policy, rows, setting.decode, threads, seconds),
                model.decoded(decoding as f64, rows.div_ceil(engines) as f64),
            ),
            "group" | "apart" if rows > 0 => {
                let answers = Answers {
                    count: rows,
                    lengths: setting.decode,
                    alike: name == "group",
                };
                let measured = answered(&policy, answers, threads, seconds);
                (measured, Cost::default())
            }
            "prompt" => {
                let (count, length) = setting.sequences;
                let answers = Answers {
                    count,
                    lengths: (length, 1),
                    alike: false,
                };
                (
                    answered(&policy, answers, threads, seconds),
                    model.forward(packed as f64, false),
                )
            }
            "score" => (
                scored(&policy, &setting, threads, seconds),
                model.forward(packed as f64, true),
            ),
            "train" => (
                trained(&policy, &setting, threads, checkpointed, seconds),
                model.trained(packed as f64),
            ),
            "save" | "load" => (
                written(&policy, &model, case == "load", seconds),
                Cost::default(),
            ),
            _ => {
                return Err(format!(
                    "`{case}` is no case; cases are decode-ROWS, group-N, apart-N, agree-ROWS, \
                     share-turns, share-one-turn, share-apart, peak-shared, peak-apart, prompt, score, \
                     train, save and load"
                )
                .into());
            }
        };
        let Measured {
            done,
            wall_s,
            cpu_s,
        } = measured;
        let rate = done as f64 / wall_s;
        let unit = together(&setting, threads) * setting.sequences.1;
        let work = match name {
            "score" => Work::Scores { tokens: unit },
            "train" => Work::Trains {
                tokens: unit,
                checkpointed,
            },
            _ => Work::Generates {
                rows,
                prefill: (rows * prompt).min(4096),
                cached: rows * (prompt + sampled),
            },
        };
        let of_device = device_use::said(&device, &footprint, &work)?;
        let of_operations = cost.operations * rate / machine.operations;
        let of_bandwidth = cost.bytes * rate / machine.bytes;
        let is_file = matches!(case.as_str(), "save" | "load");
        if json {
            let unit = if is_file { "bytes" } else { "tokens" };
            let line = serde_json::json!({"case": case, "shape": shape, "threads": threads,
                unit: done, "wall_s": wall_s, "cpu_s": cpu_s, "peak_bytes": peak_bytes(),
                "model_flop_utilisation": of_operations, "bandwidth_share": of_bandwidth,
                "machine_flops": machine.operations, "machine_bytes_s": machine.bytes});
            println!("{line}");
        } else if is_file {
            println!(
                "{shape:<5} {case:<10} {:>9.0} MB/s, peak {:.0} MB",
                rate / 1e6,
                peak_bytes() / 1e6
            );
        } else {
            let of_operations = match cost.operations > 0.0 {
                true => format!(" {:>3.0} % of the operations,", 100.0 * of_operations),
                false => String::new(),
            };
            let bandwidth = match cost.bytes > 0.0 {
                true => format!(" {:>3.0} % of the bandwidth,", 100.0 * of_bandwidth),
                false => String::new(),
            };
            println!(
                "{shape:<5} {case:<10} {rate:>9.0} tokens/s {:>9.0} per CPU-second,\
                 {of_operations}{bandwidth} peak {:.0} MB{of_device}",
                done as f64 / cpu_s,
                peak_bytes() / 1e6
            );
        }
    }
    match disagreeing {
        0 => Ok(()),
        _ => Err(format!("{disagreeing} sampled log-probabilities are not the scored ones").into()),
    }
}
