//! The same names in a program without candle: no folder can be read, so that there is neither a
//! policy nor a conversation.

use super::ForeignModel;
use crate::{Device, Error, Generation, GenerationRequest, PolicyText, Result};
use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;

/// A model and its text side.
#[derive(Debug)]
pub struct ForeignPolicy(Infallible);

/// What to do.
const UNBUILT: &str = "this program was built without it; build it with --features \
                       agentgym-submit/candle (a worker with --features agentgym-worker/candle)";

impl ForeignPolicy {
    /// # Errors
    /// Always: this program was built without candle.
    pub fn check(dir: &Path, _context: usize) -> Result<(ForeignModel, PolicyText)> {
        Err(Error::Candle {
            path: dir.to_owned(),
            message: UNBUILT.to_owned(),
        })
    }

    /// # Errors
    /// Always: this program was built without candle.
    pub fn check_device(_device: &Device) -> std::result::Result<(), String> {
        Err(UNBUILT.to_owned())
    }

    /// # Errors
    /// Always: this program was built without candle.
    pub fn load(dir: &Path, context: usize, _device: &Device) -> Result<Self> {
        Self::check(dir, context).map(|_| unreachable!("a folder was read without candle"))
    }

    /// What the folder says of text.
    pub fn text(&self) -> &PolicyText {
        match self.0 {}
    }

    /// A conversation in which nothing was said.
    pub fn begin(self: &Arc<Self>) -> Conversation {
        match self.0 {}
    }
}

/// A conversation, with what the network keeps of it.
pub struct Conversation(Infallible);

impl Conversation {
    /// The message behind `request.append`.
    ///
    /// # Errors
    /// None; there is no conversation.
    pub fn turn(
        &mut self,
        _request: &GenerationRequest,
        _sampled: &[bool],
        _wanted: impl FnMut() -> bool,
    ) -> Result<Option<Generation>> {
        match self.0 {}
    }
}
