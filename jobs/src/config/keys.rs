//! Every key of a `run.yaml`, defined once: its path, kind, default, meaning and the range of its
//! number. The paths are AgentGym-RL's own wherever the key has a meaning here, so that an existing
//! script's overrides carry over.

pub(crate) mod limits;
mod spec;
mod table;

pub use limits::Limit;
pub use spec::{KeySpec, Kind};
pub use table::KEYS;

use super::tree::get;
use crate::{Error, Result};
use serde_json::Value;

/// The key that covers `path`: the key itself, or the key above it whose value is a list or a map.
pub fn find(path: &str) -> Option<&'static KeySpec> {
    KEYS.iter().find(|key| {
        path == key.path
            || path
                .strip_prefix(key.path)
                .is_some_and(|rest| rest.starts_with('.'))
    })
}

/// The existing key most similar to `path`.
pub fn nearest(path: &str) -> Option<&'static str> {
    /// Comparison takes time proportional to the product of both lengths.
    const BYTES_MAX: usize = 200;
    if path.len() > BYTES_MAX {
        return None;
    }
    let last = |p: &'_ str| p.rsplit('.').next().unwrap_or_default().to_owned();
    let likeness = |key: &str| match key.strip_suffix(path) {
        Some(head) if head.ends_with('.') => 1.0,
        _ => strsim::jaro_winkler(path, key)
            .max(0.97 * strsim::jaro_winkler(&last(path), &last(key))),
    };
    let known = KEYS.iter().filter(|key| key.kind != Kind::Unused);
    // Of equally similar ones the first: the actor's come before the critic's and those of other
    // pipelines.
    let mut best = (0.8, None);
    for (likeness, path) in known.map(|key| (likeness(key.path), key.path)) {
        if likeness > best.0 {
            best = (likeness, Some(path));
        }
    }
    best.1
}

/// Checks every number of a resolved tree; of a stored plan only those that would hang or
/// exhaust its reader.
pub(crate) fn check_numbers(tree: &Value, stored: bool) -> Result<()> {
    let mut wrong = Vec::new();
    for key in KEYS {
        let limit = key.limit.filter(|limit| limit.stored || !stored);
        let (Some(limit), Some(value)) = (limit, get(tree, key.path)) else {
            continue;
        };
        let numbers = match value {
            Value::Array(list) => list.as_slice(),
            one => std::slice::from_ref(one),
        };
        for (index, number) in numbers.iter().enumerate() {
            let Some(found) = number.as_f64().filter(|found| !limit.holds(*found)) else {
                continue;
            };
            let path = match value.is_array() {
                true => format!("{}[{index}]", key.path),
                false => key.path.to_owned(),
            };
            let found = if number.is_f64() {
                format!("{found}")
            } else {
                number.to_string()
            };
            wrong.push(Error::value(
                path,
                format!("must be {limit}, found {found} ({})", limit.why),
            ));
        }
    }
    Error::all(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// A new key with a number gets a range, or a reason here to have none.
    #[test]
    fn every_number_has_a_limit() {
        const ANYTHING: [&str; 3] = ["run.seed", "data.seed", "jobs.priority"];
        for key in KEYS.iter().filter(|key| key.kind != Kind::Unused) {
            let default: Value = serde_saphyr::from_str(key.default).unwrap();
            let holds_numbers = match &default {
                Value::Array(list) => list.iter().any(Value::is_number),
                one => one.is_number(),
            };
            if holds_numbers && !ANYTHING.contains(&key.path) {
                assert!(key.limit.is_some(), "{} has no limit", key.path);
            }
        }
        for (key, limit) in KEYS.iter().filter_map(|key| Some((key, key.limit?))) {
            assert!(limit.least < limit.most, "{}", key.path);
        }
        let paths: BTreeSet<&str> = KEYS.iter().map(|key| key.path).collect();
        assert_eq!(paths.len(), KEYS.len(), "a key stands twice");
    }

    /// A run that began under an older program can be looked at and carried on, whatever its
    /// rates were; what would keep its reader busy for ever is refused all the same.
    #[test]
    fn stored_plans_are_asked_for_sizes_alone() {
        use crate::config::ResolvedConfig;
        use std::path::Path;
        let text = |given: &str| {
            format!(
                "{{data: {{tasks: [{{env: mygame, ids: 0..9}}]}}, actor_rollout_ref: {{agentgym: {{task_name: mygame}}, rollout: {{n: 2}}}}, {given}}}"
            )
        };
        let path = Path::new("x.yaml");
        let old = text("sft: {betas: [1.5, -1], lr: 1e38, weight_decay: -1}");
        assert!(ResolvedConfig::parse_stored(path, &old, &[]).is_ok());
        assert!(ResolvedConfig::parse("x", path, &old, &[]).is_err());
        for (given, key) in [
            (
                "trainer: {total_training_steps: 4294967295}",
                "trainer.total_training_steps",
            ),
            (
                "jobs: {decode_rows: 4611686018427387904}",
                "jobs.decode_rows",
            ),
        ] {
            let read = ResolvedConfig::parse_stored(path, &text(given), &[]);
            let said = read.unwrap_err().to_string();
            assert!(said.contains(key), "{said}");
        }
    }
}
