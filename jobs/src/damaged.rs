//! Damaged or malicious configs, plans and payloads: readers either refuse them or read them; they
//! neither panic nor allocate without bound.

use crate::codec::{Payload, decode, encode};
use crate::config::ResolvedConfig;
use crate::episode::{
    AVAILABLE_ACTIONS, Episode, Episodes, Finish, Outcome, Parse, SUMMARIES, Sequence, Task, Turn,
};
use crate::mutations::survives;
use crate::pipeline::parts;
use crate::plan::Plan;
use crate::records::{
    Batch, BatchEpisode, BatchSequence, CriticSequence, CriticTargets, EpisodeLogProbs,
    GradientShard, LogProbs, Values,
};
use std::path::{Path, PathBuf};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// The shipped configs, and one with references.
fn configs() -> Vec<Vec<u8>> {
    let mut paths: Vec<PathBuf> = ["configs", "configs/agentgym-rl"]
        .iter()
        .flat_map(|folder| std::fs::read_dir(Path::new(ROOT).join(folder)).unwrap())
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "yaml"))
        .collect();
    paths.sort();
    assert!(paths.len() > 10);
    let references = "data: {train_batch_size: 4, tasks: [{env: textcraft, ids: 0..9}]}\n\
                      actor_rollout_ref: {rollout: {n: '${data.train_batch_size}'}, agentgym: {style: '${run.pipeline}'}}\n";
    let files = paths.iter().map(|path| std::fs::read(path).unwrap());
    files.chain([references.into()]).collect()
}

/// Everything that the `plan` command computes from a config, except its model.
fn plan(config: ResolvedConfig) {
    let Ok(plan) = Plan::new(config, Path::new(ROOT)) else {
        return;
    };
    let last = plan.iterations;
    for iteration in [0, 1.min(last), last] {
        for part in parts(&plan, iteration) {
            assert!(part.id.iteration == iteration);
        }
    }
    let bytes = plan.to_bytes();
    let read = Plan::from_bytes(&bytes).expect("what a plan writes, a plan reads");
    assert!(read.to_bytes() == bytes);
}

#[test]
fn run_configs() {
    survives("config", &configs(), 1500, 200 << 20, |bytes| {
        let Ok(text) = std::str::from_utf8(bytes) else {
            return;
        };
        let path = Path::new("x.yaml");
        if let Ok(config) = ResolvedConfig::parse("x", path, text, &[]) {
            plan(config);
        }
        let _ = ResolvedConfig::parse_stored(path, text, &["jobs.hold=false".to_owned()]);
    });
}

#[test]
fn stored_plans() {
    let plans: Vec<Vec<u8>> = configs()
        .into_iter()
        .filter_map(|text| {
            let text = String::from_utf8(text).ok()?;
            let config = ResolvedConfig::parse("x", Path::new("x.yaml"), &text, &[]).ok()?;
            Some(Plan::new(config, Path::new(ROOT)).ok()?.to_bytes())
        })
        .collect();
    assert!(plans.len() > 5);
    survives("plan", &plans, 1500, 200 << 20, |bytes| {
        if let Ok(plan) = Plan::from_bytes(bytes) {
            parts(&plan, plan.iterations);
        }
        // Anyone who can write to a store can also write a matching hash.
        let file = serde_json::from_slice::<serde_json::Value>(bytes);
        if let Some(tree) = file
            .ok()
            .and_then(|mut file| Some(file.get_mut("config")?.take()))
        {
            let _ = ResolvedConfig::from_tree(tree);
        }
    });
}

/// Bytes of the envelope: magic, kind, version, length, hash.
const HEADER: usize = 50;

/// Payloads with a valid header, as an attacker would write them.
fn payloads<T: Payload>(valid: &T, mut reader: impl FnMut(T)) {
    let whole = encode(valid).unwrap();
    let what = String::from_utf8_lossy(&T::KIND).into_owned();
    let (header, body) = whole.split_at(HEADER);
    survives(&what, &[body.to_vec()], 2000, 8 << 20, |body| {
        let mut bytes = header.to_vec();
        bytes[10..18].copy_from_slice(&(body.len() as u64).to_le_bytes());
        bytes[18..50].copy_from_slice(blake3::hash(body).as_bytes());
        bytes.extend_from_slice(body);
        if let Ok(read) = decode::<T>(&bytes) {
            reader(read);
        }
    });
    survives(&what, std::slice::from_ref(&whole), 500, 8 << 20, |bytes| {
        let _ = decode::<T>(bytes);
    });
}

fn episode() -> Episode {
    let turn = |at: u32| Turn {
        sequence: 0,
        context: (at, at + 2),
        policy: (at + 2, at + 4),
        text: "get 1 planks".to_owned(),
        action: Some("get 1 planks".to_owned()),
        parse: Parse::Clean,
        observation: "Got 1 planks".to_owned(),
        reward: Some(0.5),
        done: false,
        finish: Finish::Eos,
        policy_iteration: 3,
    };
    Episode {
        task: Task {
            env: "textcraft".to_owned(),
            item_id: -7,
        },
        group: 1,
        sample: 2,
        outcome: Outcome::Solved,
        success: true,
        reward: 1.0,
        prompt: "Goal: craft planks".to_owned(),
        sequences: vec![Sequence {
            token_ids: vec![1, 200, 70_000, 3, 4, 5, 6, 7],
            loss_mask: [false, false, true, true].repeat(2),
            sampled_log_probs: [0.0, 0.0, -0.5, -1.5].repeat(2),
            log_kept_mass: Some(vec![-0.25; 8]),
            entropies: None,
        }],
        turns: vec![turn(0), turn(4)],
        fault: Some("none".to_owned()),
        extra: vec![
            (AVAILABLE_ACTIONS.to_owned(), "[[\"go\"], null]".to_owned()),
            (
                SUMMARIES.to_owned(),
                "[{\"turns\": 1, \"sequence\": 0, \"policy\": [2, 4], \"text\": \"a\"}]".to_owned(),
            ),
        ],
    }
}

#[test]
fn records() {
    let episode = episode();
    let streams = || vec![vec![0.5f32; 8]];
    let episodes = vec![episode.clone(); 2];
    let read = |read: Episodes| {
        for episode in read.into_vec() {
            let sound = episode.check().is_ok();
            episode.turn_rewards(true);
            episode.available_actions();
            episode.summaries();
            for turn in episode.turns.iter().filter(|_| sound) {
                // Accesses that a reader may make on a checked episode.
                let ids = &episode.sequences[turn.sequence as usize].token_ids;
                for (start, end) in [turn.context, turn.policy] {
                    assert!(ids[start as usize..end as usize].len() <= ids.len());
                }
            }
        }
    };
    payloads(&Episodes::V1(episodes.clone()), read);
    payloads(&Episodes::of(episodes.clone()), read);
    let mut entropies = episodes;
    entropies[1].sequences[0].entropies = Some(vec![0.75; 8]);
    payloads(&Episodes::of(entropies), read);
    let log_probs = EpisodeLogProbs {
        old: streams(),
        entropies: streams(),
        reference: Some(streams()),
    };
    payloads(&LogProbs::V1(vec![log_probs]), drop);
    payloads(&Values::V1(vec![streams()]), drop);
    let sequence = CriticSequence {
        values: vec![0.5; 8],
        returns: vec![1.5; 8],
    };
    payloads(&CriticTargets::V1(vec![None, Some(vec![sequence])]), drop);
    let batch = BatchEpisode {
        task: episode.task.clone(),
        group: 1,
        sample: 2,
        outcome: episode.outcome,
        success: true,
        reward: 1.0,
        advantage: -0.5,
        sequences: vec![BatchSequence {
            sequence: episode.sequences[0].clone(),
            old_log_probs: vec![-0.5; 8],
            ref_log_probs: Some(vec![-0.25; 8]),
            advantages: vec![0.125; 8],
        }],
    };
    payloads(&Batch::V1(vec![Some(batch), None]), drop);
    payloads(
        &GradientShard::V1 {
            units: vec![Default::default(); 2],
        },
        drop,
    );
}
