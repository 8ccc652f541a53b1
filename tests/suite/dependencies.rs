//! The rules of `deny.toml` without cargo-deny: it allows the licence of every dependency, every
//! dependency comes from crates.io, and banned crates are used only by their permitted dependents.
//! Advisories need the network: `cargo deny check advisories`.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

fn said(command: &mut Command) -> String {
    let output = command.current_dir(ROOT).output().unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complaint}");
    String::from_utf8(output.stdout).unwrap()
}

/// The locked dependencies of this machine's build.
fn metadata() -> Value {
    let version = said(Command::new("rustc").arg("-vV"));
    let host = version.lines().find_map(|l| l.strip_prefix("host: "));
    let mut command = Command::new(env!("CARGO"));
    command.args(["metadata", "--offline", "--locked", "--format-version=1"]);
    command.args(["--filter-platform", host.unwrap()]);
    serde_json::from_str(&said(&mut command)).unwrap()
}

fn deny() -> String {
    std::fs::read_to_string(Path::new(ROOT).join("deny.toml")).unwrap()
}

/// The strings of the list after `name = ` in a text.
fn list(text: &str, name: &str) -> BTreeSet<String> {
    let (_, rest) = text.split_once(&format!("{name} = [")).unwrap();
    let (inside, _) = rest.split_once(']').unwrap();
    serde_json::from_str(&format!("[{inside}]")).unwrap()
}

type Words = std::iter::Peekable<std::vec::IntoIter<String>>;

/// Whether an SPDX expression holds: `OR` needs one side, `AND` both; `/` is an old form of `OR`.
fn holds(expression: &str, allowed: &BTreeSet<String>) -> bool {
    fn any(words: &mut Words, allowed: &BTreeSet<String>) -> bool {
        let mut value = all(words, allowed);
        while words.next_if(|w| w == "OR").is_some() {
            value |= all(words, allowed);
        }
        value
    }
    fn all(words: &mut Words, allowed: &BTreeSet<String>) -> bool {
        let mut value = one(words, allowed);
        while words.next_if(|w| w == "AND").is_some() {
            value &= one(words, allowed);
        }
        value
    }
    fn one(words: &mut Words, allowed: &BTreeSet<String>) -> bool {
        let mut name = words.next().unwrap();
        if name == "(" {
            let value = any(words, allowed);
            assert_eq!(words.next().as_deref(), Some(")"));
            return value;
        }
        if words.next_if(|w| w == "WITH").is_some() {
            name = format!("{name} WITH {}", words.next().unwrap());
        }
        allowed.contains(&name)
    }
    let spaced = expression
        .replace('(', " ( ")
        .replace(')', " ) ")
        .replace('/', " OR ");
    let words: Vec<String> = spaced.split_whitespace().map(str::to_owned).collect();
    let mut words = words.into_iter().peekable();
    any(&mut words, allowed) && words.next().is_none()
}

#[test]
fn licences_are_read_as_they_are_meant() {
    let allowed: BTreeSet<String> = ["A", "B", "C WITH D"].map(str::to_owned).into();
    for (expression, value) in [
        ("A", true),
        ("X", false),
        ("X OR A", true),
        ("A/X", true),
        ("A AND X", false),
        ("A AND (X OR B)", true),
        ("(A OR X) AND X", false),
        ("C WITH D OR X", true),
        ("C", false),
    ] {
        assert_eq!(holds(expression, &allowed), value, "{expression}");
    }
}

#[test]
fn dependencies_are_as_deny_toml_wants_them() {
    let (metadata, deny) = (metadata(), deny());
    let allowed = list(&deny, "allow");
    let mut wrong = Vec::new();
    let mut names = BTreeMap::new();
    for package in metadata["packages"].as_array().unwrap() {
        let name = package["name"].as_str().unwrap();
        names.insert(package["id"].as_str().unwrap(), name);
        let licence = package["license"].as_str().unwrap_or_default();
        if licence.trim().is_empty() || !holds(licence, &allowed) {
            wrong.push(format!("{name} has the licence `{licence}`"));
        }
        let source = &package["source"];
        if !(source.is_null() && name.starts_with("agentgym-")) && source != CRATES_IO {
            wrong.push(format!("{name} comes from {source}"));
        }
    }
    let bans: Vec<&str> = deny
        .lines()
        .filter(|l| l.contains("wrappers = ["))
        .collect();
    assert!(
        bans.len() > 3,
        "deny.toml bans nothing that this test can read"
    );
    for ban in bans {
        let (_, banned) = ban.split_once("crate = \"").unwrap();
        let banned = banned.split('"').next().unwrap();
        let wrappers = list(ban, "wrappers");
        for node in metadata["resolve"]["nodes"].as_array().unwrap() {
            let user = names[node["id"].as_str().unwrap()];
            let uses = node["deps"].as_array().unwrap().iter();
            let mut uses = uses.map(|d| names[d["pkg"].as_str().unwrap()]);
            if uses.any(|name| name == banned) && !wrappers.contains(user) {
                wrong.push(format!("{user} depends on {banned}"));
            }
        }
    }
    assert_eq!(wrong, [""; 0]);
}
