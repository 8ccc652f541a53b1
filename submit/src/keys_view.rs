//! `keys`: the table of config keys, generated from its definition in the code, so that it is never
//! out of date.

use agentgym_jobs::config::keys::{KEYS, KeySpec, Kind};
use serde::Serialize;

fn matching(filter: Option<&str>) -> impl Iterator<Item = &'static KeySpec> {
    let filter = filter.unwrap_or_default().to_owned();
    KEYS.iter()
        .filter(move |key| key.path.contains(&filter) || key.doc.contains(&filter))
}

fn kind(key: &KeySpec) -> &'static str {
    match key.kind {
        Kind::Identity => "identity",
        Kind::Binding => "binding",
        Kind::Unused => "unused",
    }
}

/// Text, by section; keys without effect here are listed in one paragraph.
pub fn render(filter: Option<&str>) -> String {
    let mut out = String::from(
        "identity keys decide results and are part of the run; bindings may change at every resume\n\
         [default]  what a number, or each number of a list, may be\n",
    );
    let mut section = "";
    let used = || matching(filter).filter(|k| k.kind != Kind::Unused);
    let width = used().map(|k| k.path.len()).max().unwrap_or(0);
    for key in used() {
        let head = key.path.split('.').next().unwrap_or_default();
        if head != section {
            section = head;
            out += &format!("\n{section}\n");
        }
        let limit = (key.limit).map_or_else(String::new, |limit| format!("  {limit}"));
        out += &format!(
            "  {:<width$}  {:<8}  {}  [{}]{limit}\n",
            key.path,
            kind(key),
            key.doc,
            key.default
        );
    }
    let unused: Vec<_> = matching(filter)
        .filter(|k| k.kind == Kind::Unused)
        .map(|k| match k.only {
            "" => k.path.to_owned(),
            only => format!("{} (only {only})", k.path),
        })
        .collect();
    if !unused.is_empty() {
        out += &format!("\nread and not used here: {}\n", unused.join(", "));
    }
    out
}

/// A config key.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct KeyDocument {
    path: &'static str,
    kind: &'static str,
    default: &'static str,
    doc: &'static str,
    only: &'static str,
    range: Option<String>,
    range_why: Option<&'static str>,
}

/// `keys [TEXT]`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct KeysDocument {
    keys: Vec<KeyDocument>,
}

/// The same as a document.
pub fn document(filter: Option<&str>) -> KeysDocument {
    let keys = matching(filter).map(|k| KeyDocument {
        path: k.path,
        kind: kind(k),
        default: k.default,
        doc: k.doc,
        only: k.only,
        range: k.limit.map(|l| l.to_string()),
        range_why: k.limit.map(|l| l.why),
    });
    KeysDocument {
        keys: keys.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_listed_once() {
        let text = render(None);
        for key in KEYS {
            assert!(text.contains(key.path), "{}", key.path);
        }
        assert_eq!(document(None).keys.len(), KEYS.len());
    }

    #[test]
    fn a_section() {
        insta::assert_snapshot!(render(Some("rounds_ctrl")), @"
            identity keys decide results and are part of the run; bindings may change at every resume
            [default]  what a number, or each number of a list, may be

            algorithm
              algorithm.rounds_ctrl.type                 identity  fixed or scaling_inter_stepwise  [fixed]
              algorithm.rounds_ctrl.rounds               identity  rounds, or the list of stages  [15]  1 to 1000000
              algorithm.rounds_ctrl.steps_scaling_inter  identity  iterations per stage  [100]  1 to 1000000000
        ");
    }
}
