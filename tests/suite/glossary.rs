//! The types in the glossary exist, and each name denotes one thing.

use crate::modules::{CRATES, read};
use agentgym_tests::program::workspace;
use std::collections::BTreeMap;

fn glossary() -> String {
    std::fs::read_to_string(workspace().join("docs/glossary.md")).unwrap()
}

/// The texts between backticks.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn every_type_of_the_glossary_is_in_its_crate() {
    let text = glossary();
    let rows = text
        .lines()
        .filter(|line| line.starts_with("| ") && line.contains('`'));
    let mut seen = 0;
    for row in rows {
        let (crate_name, name) = code(row).last().unwrap().split_once("::").expect(row);
        let types = read(crate_name).public_types();
        assert!(types.contains(name), "{row}: {crate_name} has no {name}");
        seen += 1;
    }
    assert!(seen > 30, "{seen} rows");
}

/// A name that two crates use must be explained there.
#[test]
fn one_name_is_one_thing() {
    let text = glossary();
    let (_, shared) = text.split_once("## Names that two crates share").unwrap();
    let mut owners: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for name in CRATES {
        for found in read(name).public_types() {
            owners.entry(found).or_default().push(name);
        }
    }
    owners.retain(|_, crates| crates.len() > 1);
    let shared: Vec<&str> = code(shared).collect();
    for (name, crates) in &owners {
        assert!(shared.contains(&name.as_str()), "{name} is in {crates:?}");
    }
    for name in shared {
        assert!(owners.contains_key(name), "{name} is shared no more");
    }
}
