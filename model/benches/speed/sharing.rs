//! What it saves to compute common beginnings once: CPU seconds of a training step and of scoring,
//! in turns with the same sequences apart, for groups of 8 samples: `turns` (episodes of several
//! turns whose samples part one after another), `one-turn`, and `apart` (nothing in common); or for
//! the sequences of an iteration, as `export` writes them (`--trajectories FILE`).

use crate::common::{Numbers, coefficients, cpu_seconds};
use agentgym_model::{
    AdamW, ComputeOptions, Policy, ScoreRequest, TrainSequence, Trainer, Unit, cut_tree, score,
    tree_nodes,
};
use std::time::Instant;

/// The kinds of groups.
pub(crate) const KINDS: [&str; 3] = ["turns", "one-turn", "apart"];

/// Groups of a training step.
const GROUPS: usize = 16;
const SAMPLES: usize = 8;

/// A group of samples: `prompt` tokens, then `turns` turns of a reply and an observation. Sample s
/// follows the one before it for as many turns as `common` says, then goes its own way.
fn group(
    numbers: &mut Numbers,
    prompt: usize,
    turns: usize,
    (reply, observation): (usize, usize),
    common: impl Fn(usize) -> usize,
) -> Vec<TrainSequence> {
    let turn = reply + observation;
    let first = numbers.ids(prompt);
    let mut samples: Vec<TrainSequence> = Vec::new();
    for sample in 0..SAMPLES {
        let kept = match samples.last() {
            Some(before) => before.token_ids[..prompt + common(sample) * turn].to_vec(),
            None => first.clone(),
        };
        let rest = prompt + turns * turn - kept.len();
        let token_ids = [kept, numbers.ids(rest)].concat();
        let mask = (0..token_ids.len()).map(|t| t >= prompt && (t - prompt) % turn < reply);
        samples.push(TrainSequence {
            loss_mask: mask.collect(),
            token_ids,
        });
    }
    samples
}

/// The sequences of `trajectories.jsonl`.
///
/// # Errors
/// The file cannot be read, or is another one.
pub(crate) fn recorded(path: &str) -> Result<Vec<TrainSequence>, Box<dyn std::error::Error>> {
    let mut all = Vec::new();
    for line in std::fs::read_to_string(path)?.lines() {
        let row: serde_json::Value = serde_json::from_str(line)?;
        let list = |name: &str| row[name].as_array().cloned().ok_or(format!("no {name}"));
        let id = |id: &serde_json::Value| id.as_u64().unwrap_or_default() as u32;
        all.push(TrainSequence {
            token_ids: list("token_ids")?.iter().map(id).collect(),
            loss_mask: list("loss_mask")?.iter().map(|m| id(m) == 1).collect(),
        });
    }
    Ok(all)
}

pub(crate) fn sequences(case: &str) -> Vec<TrainSequence> {
    sequences_of(case, GROUPS)
}

fn sequences_of(case: &str, groups: usize) -> Vec<TrainSequence> {
    let mut numbers = Numbers(11);
    let mut all = Vec::new();
    for number in 0..groups {
        all.extend(match case {
            // Half of the tokens are nodes, as in the quickstart's fourth iteration.
            "turns" => group(&mut numbers, 210, 10, (11, 21), |sample| {
                (sample * 3 + number) % 6
            }),
            "one-turn" => group(&mut numbers, 130, 1, (34, 0), |_| 0),
            _ => {
                let mut own = group(&mut numbers, 130, 1, (34, 0), |_| 0);
                for (sample, own) in own.iter_mut().enumerate() {
                    own.token_ids[0] = (number * SAMPLES + sample) as u32;
                }
                own
            }
        });
    }
    all
}

fn requests(sequences: &[TrainSequence]) -> Vec<ScoreRequest<'_>> {
    let all = sequences.iter().map(|s| ScoreRequest {
        token_ids: &s.token_ids,
        loss_mask: &s.loss_mask,
    });
    all.collect()
}

/// The units of a minibatch, as a worker cuts them.
fn units(sequences: &[TrainSequence], unit_tokens: usize, share_prefixes: bool) -> Vec<Unit> {
    let unit = |sequences: Vec<TrainSequence>| Unit {
        sequences,
        skip: false,
        share_prefixes,
    };
    if share_prefixes {
        let requests = requests(sequences);
        let paths: Vec<Vec<&[u32]>> = requests.iter().map(|r| vec![r.path()]).collect();
        let cuts = cut_tree(&paths, unit_tokens).expect("a limit");
        let of = |cut: Vec<usize>| cut.iter().map(|&at| sequences[at].clone()).collect();
        return cuts.into_iter().map(|cut| unit(of(cut))).collect();
    }
    let (mut units, mut own, mut tokens) = (Vec::new(), Vec::new(), 0);
    for sequence in sequences {
        tokens += sequence.token_ids.len();
        if tokens > unit_tokens && !own.is_empty() {
            units.push(unit(std::mem::take(&mut own)));
            tokens = sequence.token_ids.len();
        }
        own.push(sequence.clone());
    }
    units.push(unit(own));
    units
}

/// The same sequences with nothing in common.
fn parted(sequences: &[TrainSequence]) -> Vec<TrainSequence> {
    let mut parted = sequences.to_vec();
    for (number, sequence) in parted.iter_mut().enumerate() {
        sequence.token_ids[0] = number as u32;
    }
    parted
}

/// CPU seconds of each call of `first` and of `second`, in turns.
fn in_turns(seconds: f64, mut first: impl FnMut(), mut second: impl FnMut()) -> [f64; 2] {
    first();
    second();
    let (start, mut spent, mut rounds) = (Instant::now(), [0.0; 2], 0.0);
    while start.elapsed().as_secs_f64() < seconds {
        let works: [&mut dyn FnMut(); 2] = [&mut first, &mut second];
        for (spent, work) in spent.iter_mut().zip(works) {
            let before = cpu_seconds();
            work();
            *spent += cpu_seconds() - before;
        }
        rounds += 1.0;
    }
    spent.map(|total| total / rounds)
}

/// Prints both figures for a training step on `sequences`, which `kind` names.
pub(crate) fn compare(
    policy: &Policy,
    (kind, sequences): (&str, &[TrainSequence]),
    unit_tokens: usize,
    (threads, seconds): (usize, f64),
) {
    let options = ComputeOptions {
        threads,
        pack_tokens: unit_tokens,
        ..ComputeOptions::default()
    };
    let all = requests(sequences);
    let tokens: usize = sequences.iter().map(|s| s.token_ids.len()).sum();
    let nodes = tree_nodes(&all.iter().map(ScoreRequest::path).collect::<Vec<_>>());
    let cut = [true, false].map(|share| units(sequences, unit_tokens, share));
    let with_repeats: usize = (cut[0].iter())
        .map(|unit| {
            let own = requests(&unit.sequences);
            tree_nodes(&own.iter().map(ScoreRequest::path).collect::<Vec<_>>())
        })
        .sum();
    let mut trainers = [0; 2].map(|_| Trainer::new(policy.clone(), AdamW::default()));
    let [one, two] = &mut trainers;
    let step = |trainer: &mut Trainer, units: &[Unit]| {
        let report = trainer.step(units, 1.0, 1e-5, &coefficients, &options);
        report.expect("runs");
    };
    let train = in_turns(seconds, || step(one, &cut[0]), || step(two, &cut[1]));
    let apart = parted(sequences);
    let scored = |all: &[ScoreRequest<'_>]| {
        score(policy, all, 1.0, &options).expect("runs");
    };
    let apart = requests(&apart);
    let score = in_turns(seconds, || scored(&all), || scored(&apart));
    println!(
        "share-{kind}: {nodes} nodes of {tokens} tokens ({:.2}), in units {with_repeats} ({:.2}); CPU seconds shared and apart: \
         train {:.3} and {:.3} ({:.3}), score {:.3} and {:.3} ({:.3})",
        nodes as f64 / tokens as f64,
        with_repeats as f64 / tokens as f64,
        train[0],
        train[1],
        train[0] / train[1],
        score[0],
        score[1],
        score[0] / score[1],
    );
}

/// One training step on a group in one unit, its prompt of 1 000 tokens and its answers of 200
/// shared or apart: for the largest resident size.
pub(crate) fn one_step(policy: &Policy, share_prefixes: bool) {
    let unit = Unit {
        sequences: group(&mut Numbers(11), 1000, 1, (200, 0), |_| 0),
        skip: false,
        share_prefixes,
    };
    let mut trainer = Trainer::new(policy.clone(), AdamW::default());
    let options = ComputeOptions::default();
    let report = trainer.step(&[unit], 1.0, 1e-5, &coefficients, &options);
    println!("{} tokens computed", report.expect("runs").tokens);
}
