//! Every key can be parsed back, and nothing else can be parsed.

use super::*;
use proptest::prelude::*;

fn run() -> impl Strategy<Value = RunId> {
    "[a-z0-9][a-z0-9._-]{0,79}".prop_map(|text| text.parse().unwrap())
}

fn slot() -> impl Strategy<Value = PartKey> {
    (run(), any::<u32>(), "[a-z_]{1,32}", any::<u32>()).prop_map(|(run, iteration, stage, part)| {
        PartKey {
            run,
            iteration,
            stage,
            part,
        }
    })
}

fn attempt() -> impl Strategy<Value = AttemptId> {
    (any::<u32>(), "[0-9a-f]{8}").prop_map(|(number, nonce)| AttemptId { number, nonce })
}

fn name() -> impl Strategy<Value = String> {
    "[A-Za-z0-9_-][A-Za-z0-9._-]{0,40}(/[A-Za-z0-9_-][A-Za-z0-9._-]{0,40}){0,3}"
}

fn key() -> impl Strategy<Value = Key> {
    prop_oneof![
        (run(), any::<u32>()).prop_map(|(run, revision)| Key::Plan { run, revision }),
        slot().prop_map(Key::Commit),
        (slot(), any::<u32>()).prop_map(|(slot, attempt)| Key::AttemptStart { slot, attempt }),
        (slot(), any::<u32>()).prop_map(|(slot, attempt)| Key::AttemptEnd { slot, attempt }),
        (slot(), attempt(), name()).prop_map(|(slot, attempt, name)| Key::File {
            slot,
            attempt,
            name
        }),
        (slot(), attempt(), any::<u32>()).prop_map(|(slot, attempt, segment)| {
            Key::JournalSegment {
                slot,
                attempt,
                segment,
            }
        }),
        (run(), run()).prop_map(|(run, child)| Key::Pin { run, child }),
        (run(), any::<u32>()).prop_map(|(run, iteration)| Key::Expired { run, iteration }),
    ]
}

proptest! {
    #[test]
    fn a_key_survives_the_round_trip(key in key()) {
        prop_assert_eq!(Key::parse(&key.path()).unwrap(), key);
    }

    #[test]
    fn what_parses_is_canonical(path in "runs/[a-z]{1,3}/(plan|pins|expired|commits)/[0-9a-z/]{0,20}(\\.json)?") {
        if let Ok(key) = Key::parse(&path) {
            prop_assert_eq!(key.path(), path);
        }
    }

    #[test]
    fn listings_are_in_order(mut parts in proptest::collection::vec((0u32..100_000_000, 0u32..1_000_000), 2..20)) {
        let path = |(iteration, part): &(u32, u32)| {
            Key::Commit(PartKey { run: "r".parse().unwrap(), iteration: *iteration, stage: "s".into(), part: *part }).path()
        };
        let mut paths: Vec<_> = parts.iter().map(path).collect();
        parts.sort();
        paths.sort();
        prop_assert_eq!(paths, parts.iter().map(path).collect::<Vec<_>>());
    }
}

#[test]
fn the_layout_is_the_documented_one() {
    let run: RunId = "maze-1".parse().unwrap();
    let slot = PartKey {
        run: run.clone(),
        iteration: 7,
        stage: "rollout".into(),
        part: 3,
    };
    let attempt = AttemptId {
        number: 2,
        nonce: "00c0ffee".into(),
    };
    let paths = [
        Key::Plan {
            run: run.clone(),
            revision: 1,
        },
        Key::Commit(slot.clone()),
        Key::AttemptStart {
            slot: slot.clone(),
            attempt: 2,
        },
        Key::AttemptEnd {
            slot: slot.clone(),
            attempt: 2,
        },
        Key::File {
            slot: slot.clone(),
            attempt: attempt.clone(),
            name: "policy/config.json".into(),
        },
        Key::JournalSegment {
            slot,
            attempt,
            segment: 5,
        },
        Key::Pin {
            run: run.clone(),
            child: "fork".parse().unwrap(),
        },
        Key::Expired { run, iteration: 7 },
    ]
    .map(|key| key.path());
    assert_eq!(
        paths,
        [
            "runs/maze-1/plan/0001.json",
            "runs/maze-1/commits/00000007/rollout/000003.json",
            "runs/maze-1/attempts/00000007/rollout/000003/0002/start.json",
            "runs/maze-1/attempts/00000007/rollout/000003/0002/end.json",
            "runs/maze-1/files/00000007/rollout/000003/a0002-00c0ffee/policy/config.json",
            "runs/maze-1/journal/00000007/rollout/000003/a0002-00c0ffee/000005.bin",
            "runs/maze-1/pins/fork.json",
            "runs/maze-1/expired/00000007.json",
        ]
    );
}

#[test]
fn foreign_paths_are_refused() {
    let file = |name: &str| format!("runs/r/files/00000001/update/000000/a0001-00000000/{name}");
    assert!(Key::parse(&file("policy/model.safetensors")).is_ok());
    let names = [
        "",
        "/etc/passwd",
        "a/../b",
        "..",
        ".",
        "a//b",
        "a/",
        "a b",
        "a#1",
        "ä",
        "a%2fb",
        "a\\b",
    ];
    let bad = names.map(file);
    let others = [
        "",
        "runs",
        "runs/R/plan/0000.json",
        "/runs/r/plan/0000.json",
        "runs/r/plan/0.json",
        "runs/r/plan/0000",
        "runs/r/plan/+001.json",
        "runs/r/commits/1/s/000000.json",
        "runs/r/pins/..json",
        "runs/r/commits/00000001/Stage/000000.json",
        "runs/r/plan/4294967296.json",
    ];
    for path in bad.iter().map(String::as_str).chain(others) {
        assert!(
            matches!(Key::parse(path), Err(Error::BadKey { .. })),
            "{path}"
        );
    }
    for run in ["", ".", "..", "A", "-a", "a/b", "a b", &"a".repeat(81)] {
        assert!(run.parse::<RunId>().is_err(), "{run}");
    }
}
