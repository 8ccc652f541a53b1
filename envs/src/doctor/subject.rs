//! The server that is examined.

use super::report::Check;
use crate::client::EnvClient;
use crate::parser::Parser;
use crate::spec::EnvSpec;

/// Items whose first observation is asked for twice.
pub(super) const REPEATED: i64 = 4;

pub(super) struct Doctor<'a> {
    /// Hears what is done next.
    pub(super) tell: &'a (dyn Fn(&str) + Sync),
    pub(super) spec: &'static EnvSpec,
    pub(super) url: &'a str,
    pub(super) http: reqwest::Client,
    pub(super) client: EnvClient,
    pub(super) checks: Vec<Check>,
}

/// A model's text that any state of the environment takes.
pub(super) fn probe(spec: &EnvSpec) -> String {
    match spec.parser {
        Parser::ActionLine | Parser::LastAction | Parser::FirstAction => {
            format!("Action: {}", spec.probe)
        }
        _ => spec.probe.to_owned(),
    }
}
