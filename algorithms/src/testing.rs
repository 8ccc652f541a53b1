//! Helpers of the unit tests: golden files (of any seeds and shapes) and numerical comparison.

use std::path::PathBuf;

use serde_json::Value;

/// A golden file.
pub(crate) struct Golden(Value);

/// Reads `golden/<name>.json` below `AGENTGYM_FIXTURES`, or below the
/// workspace's own fixtures.
pub(crate) fn golden(name: &str) -> Golden {
    let root = std::env::var_os("AGENTGYM_FIXTURES").map_or_else(
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures")),
        PathBuf::from,
    );
    let path = root.join("golden").join(format!("{name}.json"));
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    Golden(serde_json::from_str(&text).unwrap())
}

impl Golden {
    /// The cases: the file's `cases`, or the file itself where it is a list.
    /// Never empty, so that no test passes without testing anything.
    pub(crate) fn cases(&self) -> &[Value] {
        let cases = self.0.get("cases").unwrap_or(&self.0).as_array().unwrap();
        assert!(!cases.is_empty());
        cases
    }
}

/// The rows of a list of lists.
pub(crate) fn rows(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().unwrap().iter()
}

/// A list of numbers.
pub(crate) fn numbers(value: &Value) -> Vec<f64> {
    rows(value).map(|number| number.as_f64().unwrap()).collect()
}

/// A list of lists of numbers.
pub(crate) fn matrix(value: &Value) -> Vec<Vec<f64>> {
    rows(value).map(numbers).collect()
}

/// A loss mask written as 0 and 1.
pub(crate) fn mask_of(value: &Value) -> Vec<bool> {
    rows(value)
        .map(|entry| entry.as_u64().unwrap() == 1)
        .collect()
}

/// Golden tolerance: 1e-10, relative above 1.
pub(crate) fn assert_close(found: f64, expected: f64, what: &str) {
    assert!(
        (found - expected).abs() <= 1e-10 * expected.abs().max(1.0),
        "{what}: {found} is not {expected}"
    );
}

/// Compares `derivative` with central differences of `f` around `at`.
pub(crate) fn assert_is_gradient(
    f: impl Fn(&[f64]) -> f64,
    at: &[f64],
    derivative: &[f64],
    what: &str,
) {
    assert_eq!(at.len(), derivative.len());
    let h = 1e-5;
    for i in 0..at.len() {
        let mut moved = at.to_vec();
        moved[i] = at[i] + h;
        let above = f(&moved);
        moved[i] = at[i] - h;
        let slope = (above - f(&moved)) / (2.0 * h);
        let found = derivative[i];
        assert!(
            (found - slope).abs() <= 1e-7 * (1.0 + slope.abs()),
            "{what}[{i}]: {found} against {slope}"
        );
    }
}
