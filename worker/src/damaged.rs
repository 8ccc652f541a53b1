//! Damaged or malicious training files, and answers of inference servers: readers reject them or read
//! them, and do nothing else.

use crate::demonstrations::parse_file;
use crate::inference::dialect::tests::{are_refused_or_read, good_answers};
use crate::mutations::survives;
use crate::pairs;
use std::path::Path;

fn shipped(name: &str) -> Vec<u8> {
    let configs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs");
    std::fs::read(configs.join(name)).unwrap()
}

#[test]
fn demonstrations() {
    let array = shipped("dpo/expert.json");
    survives("demonstrations", &[array], 2000, 64 << 20, |bytes| {
        for row in parse_file("rows.json", bytes, None).unwrap_or_default() {
            assert!(!row.name().is_empty() || row.item_id.is_some());
        }
    });
}

#[test]
fn trajectories() {
    let options = crate::stages::testing::plan(&[]).config.dpo;
    let (expert, experience) = (shipped("dpo/expert.json"), shipped("dpo/experience.jsonl"));
    let corpus = [expert.clone(), experience.clone()];
    survives("trajectories", &corpus, 1500, 64 << 20, |bytes| {
        for (better, worse) in [(bytes, &experience[..]), (&expert[..], bytes)] {
            if let Ok((pairs, counts)) = pairs::build(&options, ("a", better), ("b", worse)) {
                assert_eq!(pairs.len(), counts.pairs);
            }
        }
    });
}

#[test]
fn answers_of_servers() {
    survives("answers", &good_answers(), 4000, 64 << 20, |bytes| {
        assert!(are_refused_or_read(bytes));
    });
}
