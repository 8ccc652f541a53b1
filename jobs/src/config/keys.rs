//! Every key of a `run.yaml`, once: its path, what kind of key it is, its
//! default and what it means. AgentGym-RL's own paths are used wherever the
//! key has a meaning here, so that an existing script's overrides carry over.

pub(crate) mod limits;
mod table;

pub use limits::{LIMITS, Limit, limit_of};
pub use table::KEYS;

/// What changing a key does to a run that exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Decides results; hashed into the plan. Changing it makes another run.
    Identity,
    /// Says where and how fast; may change at every resume.
    Binding,
    /// AgentGym-RL machinery that does not exist here; accepted and reported.
    Unused,
}

/// One key.
#[derive(Debug, Clone, Copy)]
pub struct KeySpec {
    /// Dotted path.
    pub path: &'static str,
    /// Identity, binding or unused.
    pub kind: Kind,
    /// Default as YAML; may refer to other keys with `${a.b}`.
    pub default: &'static str,
    /// One line for people.
    pub doc: &'static str,
    /// Hashed into the plan only where it is not its default: such a key came
    /// later, and runs that never heard of it keep their identity.
    pub hashed_if_set: bool,
    /// Of an unused key: the values that change nothing, as a YAML list. Others
    /// are refused, since they would change what is learnt. Empty: any value.
    pub only: &'static str,
}

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
