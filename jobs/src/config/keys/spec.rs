//! What there is to know of a key.

use super::limits::Limit;

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
    /// Hashed into the plan only where it is not what plans from before the key
    /// do: runs that never heard of it keep their identity.
    pub hashed_if_set: bool,
    /// Its value in plans from before the key, where that is not the default.
    pub older: Option<&'static str>,
    /// Of an unused key: the values that change nothing, as a YAML list. Others
    /// are refused, since they would change what is learnt. Empty: any value.
    pub only: &'static str,
    /// The range of its number.
    pub limit: Option<Limit>,
}

impl KeySpec {
    pub(super) const fn within(self, limit: Limit) -> Self {
        let limit = Some(limit);
        Self { limit, ..self }
    }

    pub(super) const fn older(self, value: &'static str) -> Self {
        let older = Some(value);
        Self { older, ..self }
    }

    /// What plans from before the key do, as YAML.
    pub fn before(&self) -> &'static str {
        match self.older {
            Some(value) => value,
            None => self.default,
        }
    }
}
