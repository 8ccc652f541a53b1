//! Every key of a `run.yaml`, once: its path, what kind of key it is, its
//! default and what it means. AgentGym-RL's own paths are used wherever the
//! key has a meaning here, so that an existing script's overrides carry over.

pub(crate) mod limits;
mod spec;
mod table;

pub use limits::{LIMITS, Limit, limit_of};
pub use spec::{KeySpec, Kind};
pub use table::KEYS;

/// The key that holds `path`: the key itself, or the key above it whose value
/// is a list or a map.
pub fn find(path: &str) -> Option<&'static KeySpec> {
    KEYS.iter().find(|key| {
        path == key.path
            || path
                .strip_prefix(key.path)
                .is_some_and(|rest| rest.starts_with('.'))
    })
}

/// The existing key that looks most like `path`.
pub fn nearest(path: &str) -> Option<&'static str> {
    /// Comparing takes as many steps as both have letters, multiplied.
    const BYTES_MAX: usize = 200;
    if path.len() > BYTES_MAX {
        return None;
    }
    KEYS.iter()
        .filter(|key| key.kind != Kind::Unused)
        .map(|key| {
            let whole = strsim::jaro_winkler(path, key.path);
            let last = |p: &'_ str| p.rsplit('.').next().unwrap_or_default().to_owned();
            (
                whole.max(0.97 * strsim::jaro_winkler(&last(path), &last(key.path))),
                key.path,
            )
        })
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .filter(|(likeness, _)| *likeness > 0.8)
        .map(|(_, path)| path)
}
