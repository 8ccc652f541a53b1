//! Which environment a server is, by what it says of itself.
//!
//! A port may belong to another game than the config says, and such a game answers every call: only
//! its rewards would be low. What no known environment says passes, and so do servers of a person's
//! spec, of which nothing is known.

use super::{EnvSpec, all};

/// The environments that a server is instead, as messages name them, if `GET /` says so.
pub(crate) fn greeted_as_another(spec: &EnvSpec, greeting: &str) -> Option<String> {
    let greets = |known: &&EnvSpec| known.signs.greeting == greeting;
    if greeting.is_empty() {
        return None;
    }
    another(spec, greets)
}

/// The same by the first observation of a task.
pub(crate) fn begins_as_another(spec: &EnvSpec, first: &str) -> Option<String> {
    // Of servers whose texts may be anything, such as web pages, nothing is known.
    if spec.signs.first.is_empty() {
        return None;
    }
    another(spec, |known| {
        let signs = known.signs.first;
        !signs.is_empty() && signs.iter().all(|sign| first.contains(sign))
    })
}

fn another(spec: &EnvSpec, matches: impl Fn(&&EnvSpec) -> bool) -> Option<String> {
    let is_known = all().any(|known| known.name == spec.name);
    let found: Vec<&EnvSpec> = all().filter(matches).collect();
    let is_own = found.iter().any(|known| known.name == spec.name);
    let names: Vec<String> = found
        .iter()
        .map(|known| format!("`{}`", known.name))
        .collect();
    (is_known && !is_own && !names.is_empty()).then(|| names.join(" or "))
}

#[cfg(test)]
mod tests;
