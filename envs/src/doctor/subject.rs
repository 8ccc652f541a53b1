//! The server under examination.

use super::report::Check;
use crate::client::EnvClient;
use crate::spec::EnvSpec;

/// Number of items whose first observation is requested twice.
pub(super) const REPEATED: i64 = 4;

pub(super) struct Doctor<'a> {
    /// Called before each step of the examination.
    pub(super) tell: &'a (dyn Fn(&str) + Sync),
    pub(super) spec: &'static EnvSpec,
    pub(super) url: &'a str,
    pub(super) http: reqwest::Client,
    pub(super) client: EnvClient,
    pub(super) checks: Vec<Check>,
}
