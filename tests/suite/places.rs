//! The files that a typical change touches: CONTRIBUTING.md lists them, and here the list is
//! compared with the registries and with the contents of the files.

use agentgym_algorithms::advantages::AdvantageEstimator;
use agentgym_algorithms::losses::{Aggregation, PolicyLoss};
use agentgym_jobs::pipeline::Stage;
use agentgym_model::Architecture;
use agentgym_tests::files::files_below;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// A row of the table, which is keyed by the kind of thing that is added.
struct Row {
    example: String,
    own: Vec<String>,
    shared: BTreeSet<String>,
}

/// The texts between backticks.
fn quoted(cell: &str) -> Vec<String> {
    let parts = cell.split('`').skip(1).step_by(2);
    parts.map(str::to_owned).collect()
}

fn table() -> BTreeMap<String, Row> {
    let text = std::fs::read_to_string(Path::new(ROOT).join("CONTRIBUTING.md")).unwrap();
    let (_, table) = text.split_once("| A new | Such as |").expect("the table");
    let rows = table
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with('|'));
    let row = |line: &str| {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").collect();
        let [what, example, own, shared] = cells[..] else {
            panic!("four columns: {line}");
        };
        let row = Row {
            example: quoted(example).remove(0),
            own: quoted(own),
            shared: quoted(shared).into_iter().collect(),
        };
        (what.trim().to_owned(), row)
    };
    rows.map(row).collect()
}

/// The sources by path, without comments and unit tests.
fn sources() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for name in super::modules::CRATES {
        for path in files_below(&Path::new(ROOT).join(name).join("src")) {
            let path = path
                .strip_prefix(ROOT)
                .unwrap()
                .to_str()
                .unwrap()
                .to_owned();
            let is_test = ["tests", "testing", "damaged", "playback"];
            let parts = path.split(['/', '.']);
            if !path.ends_with(".rs") || parts.into_iter().any(|part| is_test.contains(&part)) {
                continue;
            }
            let text = std::fs::read_to_string(Path::new(ROOT).join(&path)).unwrap();
            let code = text.split("#[cfg(test)]").next().unwrap().lines();
            let code: Vec<&str> = code
                .filter(|line| !line.trim_start().starts_with("//"))
                .collect();
            found.insert(path, code.join("\n"));
        }
    }
    for path in files_below(&Path::new(ROOT).join("view/assets")) {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let path = path.strip_prefix(ROOT).unwrap().to_str().unwrap();
        found.insert(path.to_owned(), text);
    }
    found
}

/// Whether a letter is part of a name.
fn is_part(letter: Option<char>) -> bool {
    letter.is_some_and(|l| l.is_alphanumeric() || l == '_')
}

/// Whether a text names this variant of any enum.
fn names_variant(text: &str, variant: &str) -> bool {
    let word = format!("::{variant}");
    text.match_indices(&word)
        .any(|(at, _)| !is_part(text[at + word.len()..].chars().next()))
}

/// Whether a text contains one of these words as a whole.
fn names(text: &str, words: &[String]) -> bool {
    words.iter().any(|word| {
        text.match_indices(word.as_str()).any(|(at, _)| {
            let behind = text[at + word.len()..].chars().next();
            !is_part(text[..at].chars().next_back()) && !is_part(behind)
        })
    })
}

/// Converts `critic_update` to `CriticUpdate`.
fn camel(name: &str) -> String {
    let capital = |part: &str| part[..1].to_uppercase() + &part[1..];
    name.split('_').map(capital).collect()
}

#[test]
fn a_usual_change_touches_the_places_that_contributing_lists() {
    let members: [(&str, Vec<String>); 7] = [
        (
            "environment",
            agentgym_games::ALL
                .iter()
                .map(|row| row.spec.name.to_owned())
                .collect(),
        ),
        (
            "advantage estimator",
            AdvantageEstimator::ALL
                .iter()
                .map(|estimator| estimator.name().to_owned())
                .collect(),
        ),
        ("term of a reward", vec!["overlong_buffer".to_owned()]),
        (
            "policy loss",
            PolicyLoss::ALL
                .iter()
                .map(|loss| loss.name().to_owned())
                .collect(),
        ),
        (
            "loss aggregation",
            Aggregation::ALL
                .iter()
                .map(|aggregation| aggregation.name().to_owned())
                .collect(),
        ),
        (
            "family of models",
            Architecture::ALL
                .iter()
                .map(|family| family.model_type().to_owned())
                .collect(),
        ),
        (
            "stage",
            Stage::ALL
                .iter()
                .map(|stage| stage.facts().name.to_owned())
                .collect(),
        ),
    ];
    let (table, sources) = (table(), sources());
    assert_eq!(table.len(), members.len());
    for (what, members) in members {
        let row = table.get(what).unwrap_or_else(|| panic!("no row: {what}"));
        assert!(members.contains(&row.example), "{what}: {}", row.example);
        for path in row.own.iter().chain(&row.shared) {
            assert!(Path::new(ROOT).join(path).exists(), "{what}: {path}");
        }
        // The files that name all members; a member's own files do not name the others.
        let of_all = sources.iter().filter(|(_, text)| {
            members.iter().all(|member| {
                let variant = camel(member);
                let words = match what {
                    "stage" => vec![format!("Stage::{variant}"), format!("Self::{variant}")],
                    _ => vec![member.clone(), format!("Self::{variant}")],
                };
                // Another enum by the same names is one more place, and so is a page.
                let by_variant = matches!(
                    what,
                    "advantage estimator" | "policy loss" | "loss aggregation"
                );
                names(text, &words) || by_variant && names_variant(text, &variant)
            })
        });
        let of_all: BTreeSet<String> = of_all.map(|(path, _)| path.clone()).collect();
        let own: BTreeSet<String> = row.own.iter().cloned().collect();
        let of_all = &of_all - &own;
        let (documents, listed): (BTreeSet<String>, BTreeSet<String>) = row
            .shared
            .iter()
            .cloned()
            .partition(|path| !path.ends_with(".rs"));
        assert_eq!(
            of_all, listed,
            "{what}: where every one of {members:?} is named"
        );
        for document in documents {
            let text = std::fs::read_to_string(Path::new(ROOT).join(&document)).unwrap();
            for member in &members {
                assert!(text.contains(member.as_str()), "{document} lacks {member}");
            }
        }
    }
}
