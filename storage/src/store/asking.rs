//! How a store is asked again: while it does not answer, refuses or is full, as long as its caller
//! waits; and where an object seems to be wrong, before the object is blamed.

use super::Store;
use super::counters::add;
use super::patience::Patience;
use crate::{Error, Result};
use object_store::path::Path as ObjectPath;
use std::any::Any;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// First and longest pause before a failed request is repeated.
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// A patient store gives a request this time, and a second for each so many bytes: a connection may
/// hang for ever. The next try of a request without an answer has twice the time.
const SILENCE_MAX: Duration = Duration::from_secs(15);
const BYTES_PER_S_MIN: u64 = 128 << 10;

impl Store {
    /// The same store for callers that prefer waiting to failing: while it does not answer, refuses
    /// or is full, requests are repeated, with growing pauses, as long as `patience` waits.
    pub fn patient(&self, patience: impl Patience + 'static) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
            patience: Some(Arc::new(patience)),
        }
    }

    /// Repeats a request, of up to so many `bytes`, until it succeeds or the patience is over.
    pub(crate) async fn persist<T, F: Future<Output = Result<T>>>(
        &self,
        (doing, path, bytes): (&'static str, &ObjectPath, u64),
        request: impl Fn() -> F,
    ) -> Result<T> {
        let Some(patience) = &self.patience else {
            return request().await;
        };
        let _asking = patience.asking();
        let mut limit = SILENCE_MAX + Duration::from_secs(bytes / BYTES_PER_S_MIN);
        let (begun, mut pause) = (Instant::now(), PAUSE_MIN);
        loop {
            let answer = tokio::time::timeout(limit, request()).await;
            let is_silent = answer.is_err();
            let error = match answer {
                Ok(Err(e)) if e.may_pass() => e,
                Ok(answer) => {
                    patience.answered();
                    return answer;
                }
                Err(_) => Error::Unavailable {
                    url: self.url().to_owned(),
                    doing,
                    key: path.to_string(),
                    why: format!("no answer within {} s", limit.as_secs()),
                },
            };
            if !patience.waits(&error, begun.elapsed()) {
                return Err(error);
            }
            if is_silent {
                limit = limit.saturating_mul(2);
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Notes a request that is made without the store's client, until the returned value is dropped.
    pub(crate) fn asking(&self) -> Option<Box<dyn Any + Send + Sync>> {
        self.patience.as_ref().map(|patience| patience.asking())
    }

    pub(crate) fn count_put(&self, bytes: usize) {
        add(&self.inner.counters.puts, 1);
        add(&self.inner.counters.bytes_in, bytes as u64);
        if let Some(patience) = &self.patience {
            patience.moved(bytes as u64, 0);
        }
    }

    pub(super) fn count_got(&self, bytes: usize) {
        add(&self.inner.counters.bytes_out, bytes as u64);
        if let Some(patience) = &self.patience {
            patience.moved(0, bytes as u64);
        }
    }

    /// Reads up to three times before an object is blamed: the connection may have damaged the
    /// answer.
    pub(crate) async fn read_again<T, F: Future<Output = Result<T>>>(
        &self,
        read: impl Fn() -> F,
    ) -> Result<T> {
        for pause in [PAUSE_MIN / 2, PAUSE_MIN] {
            match read().await {
                Err(e) if e.blames_object() => tokio::time::sleep(pause).await,
                answer => return answer,
            }
        }
        read().await
    }
}
