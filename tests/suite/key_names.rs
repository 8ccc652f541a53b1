//! Every config key that a document or a message names is in the table of keys: a remedy with a
//! nonexistent key is useless.

use agentgym_jobs::config::keys::KEYS;
use agentgym_tests::files::files_below;
use agentgym_tests::program::workspace;
use std::collections::BTreeSet;
use std::path::Path;

/// Words that look like keys but are none: files, and two keys in one word.
const OTHERS: [&str; 4] = ["run.yaml", "queue.rs", "queue.sqlite", "data.max_*_length"];

/// Files about the keys of the original's scripts.
const ORIGINAL: [&str; 2] = ["docs/from-agentgym-rl.md", "jobs/src/config/upstream.rs"];

/// First words of keys, in full or as documents abbreviate them.
fn heads() -> BTreeSet<&'static str> {
    let first = |path: &'static str| path.split('.').next().unwrap_or(path);
    let mut heads: BTreeSet<&str> = KEYS.iter().map(|key| first(key.path)).collect();
    heads.extend(["rollout", "agentgym", "actor"]);
    heads
}

/// Whether a name is a key, a key without its first words, a prefix of keys (`guard.*`), or
/// something inside a key that holds a map.
fn is_key(name: &str) -> bool {
    let name = name.trim_end_matches(['.', '*']);
    let inside = |long: &str, short: &str| format!(".{long}.").contains(&format!(".{short}."));
    let begins = |path: &str| {
        let words: Vec<&str> = name.split('.').collect();
        (2..words.len())
            .any(|n| format!(".{path}").ends_with(&format!(".{}", words[..n].join("."))))
    };
    KEYS.iter()
        .any(|key| inside(key.path, name) || begins(key.path))
}

/// Words of a text that begin like keys but are none.
fn unknown(text: &str) -> Vec<String> {
    let heads = heads();
    let is_part = |c: char| c.is_ascii_alphanumeric() || "._*".contains(c);
    let words = text.split(|c: char| !is_part(c) && !"/:-$".contains(c));
    words
        .map(|word| word.trim_end_matches(['.', ':']))
        .map(|word| word.split(['=', ':']).next().unwrap_or(word))
        .filter(|word| word.chars().all(is_part) && word.contains('.'))
        .filter(|word| {
            word.split('.')
                .next()
                .is_some_and(|head| heads.contains(head))
        })
        .filter(|word| !OTHERS.contains(word) && !is_key(word))
        .map(str::to_owned)
        .collect()
}

/// The texts between backticks.
fn quoted(document: &str) -> Vec<String> {
    let lines = document.lines();
    lines
        .flat_map(|line| line.split('`').skip(1).step_by(2).map(str::to_owned))
        .collect()
}

/// The string literals of a source without its tests.
pub(crate) fn literals(source: &str) -> Vec<String> {
    let source = source.split("#[cfg(test)]").next().unwrap_or(source);
    let (mut found, mut rest) = (Vec::new(), source);
    while let Some(at) = rest.find(['"', '/', '\'']) {
        let (before, after) = rest.split_at(at);
        if after.starts_with("//") {
            rest = after.split_once('\n').map_or("", |(_, rest)| rest);
        } else if let Some(after) = after.strip_prefix("'\"'") {
            rest = after;
        } else if let Some(text) = after.strip_prefix('"') {
            let is_raw = before.ends_with('#') || before.ends_with('r');
            let mut escaped = false;
            let end = text.find(|c: char| {
                let ends = c == '"' && (!escaped || is_raw);
                escaped = c == '\\' && !escaped;
                ends
            });
            let (text, after) = text.split_at(end.unwrap_or(text.len()));
            found.push(text.to_owned());
            rest = after.get(1..).unwrap_or_default();
        } else {
            rest = &after[1..];
        }
    }
    found
}

#[test]
fn every_key_that_is_named_is_there() {
    let root = workspace();
    let mut documents = files_below(&root.join("docs"));
    documents.extend(["README.md", "ARCHITECTURE.md", "SECURITY.md"].map(|name| root.join(name)));
    let mut sources = Vec::new();
    for name in ["algorithms", "envs", "jobs", "storage", "submit", "worker"] {
        sources.extend(files_below(&root.join(name).join("src")));
    }
    let mut wrong = Vec::new();
    let mut look = |path: &Path, texts: fn(&str) -> Vec<String>| {
        if ORIGINAL.iter().any(|original| path.ends_with(original)) {
            return;
        }
        let content = std::fs::read_to_string(path).unwrap();
        for text in texts(&content) {
            let strange = unknown(&text).into_iter();
            wrong.extend(strange.map(|word| format!("{}: {word}", path.display())));
        }
    };
    for path in documents
        .iter()
        .filter(|p| p.extension().is_some_and(|e| e == "md"))
    {
        look(path, quoted);
    }
    for path in sources
        .iter()
        .filter(|p| p.extension().is_some_and(|e| e == "rs"))
    {
        if !path.display().to_string().contains("tests") {
            look(path, literals);
        }
    }
    assert_eq!(wrong, [""; 0]);
}

/// Documents refer by name to the tests that prove their claims.
#[test]
fn every_test_that_a_document_names_is_there() {
    let root = workspace();
    let mut tests = BTreeSet::new();
    let mut sources = files_below(&root.join("tests/suite"));
    for name in [
        "algorithms",
        "envs",
        "jobs",
        "model",
        "storage",
        "submit",
        "worker",
    ] {
        sources.extend(files_below(&root.join(name).join("src")));
    }
    sources.retain(|path| path.extension().is_some_and(|e| e == "rs"));
    for path in sources {
        let source = std::fs::read_to_string(path).unwrap();
        let names = source.split("fn ").skip(1);
        tests.extend(names.filter_map(|rest| rest.split('(').next().map(str::to_owned)));
    }
    let is_name = |word: &String| {
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        word.chars().all(fits) && word.matches('_').count() > 3
    };
    for name in ["SECURITY.md", "docs/reliability.md"] {
        let document = std::fs::read_to_string(root.join(name)).unwrap();
        let named: Vec<String> = quoted(&document).into_iter().filter(is_name).collect();
        assert!(named.len() > 5, "{name} names {named:?}");
        for test in named {
            // A prefix of test names is allowed too, as in a test filter.
            assert!(
                tests.iter().any(|known| known.starts_with(&test)),
                "{name} names `{test}`, which is not there"
            );
        }
    }
}

#[test]
fn names_that_are_no_keys_are_found() {
    assert_eq!(
        unknown("set queue.name_prefix, or jobs.thraeds=2"),
        ["queue.name_prefix", "jobs.thraeds"]
    );
    assert_eq!(
        unknown("rollout.max_tokens, guard.*, trainer.save_freq. run.seed=1"),
        [""; 0]
    );
    assert_eq!(
        literals("a(\"x.y\") // \"no\"\n b('\"', \"z\\\"w\")"),
        ["x.y", "z\\\"w"]
    );
    assert_eq!(quoted("say `jobs.x` and `y`"), ["jobs.x", "y"]);
}
