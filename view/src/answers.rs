//! Where answers come from.

use crate::ask::Ask;
use crate::refusal::Refusal;
use bytes::Bytes;

/// Answers questions about runs.
#[async_trait::async_trait]
pub trait Answers: Send + Sync + 'static {
    /// The JSON document that answers a question.
    ///
    /// # Errors
    /// What cannot be answered.
    async fn answer(&self, ask: &Ask) -> Result<Bytes, Refusal>;

    /// A text that changes whenever something new has been committed or started in a run, or in
    /// any run: one listing of the store.
    ///
    /// # Errors
    /// As `answer`.
    async fn pulse(&self, run: Option<&str>) -> Result<String, Refusal>;
}
