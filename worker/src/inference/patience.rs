//! How long a server is asked again before an attempt fails, and what is said meanwhile.

use super::http::Failure;
use crate::{Beat, Error, Result};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// Between two looks at a server that is away or serves another policy; doubles.
const PAUSE_FIRST: Duration = Duration::from_millis(250);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// The patience with one server.
pub(super) struct Patience {
    /// The server, for messages.
    name: String,
    most: Duration,
    beat: Beat,
    cancel: CancellationToken,
}

impl Patience {
    /// `rollout.server.patience_s` with a server of this name.
    pub(super) fn new(name: String, seconds: f64, beat: &Beat, cancel: CancellationToken) -> Self {
        Self {
            name,
            most: Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX),
            beat: beat.clone(),
            cancel,
        }
    }

    /// Asks as long as there is patience.
    pub(super) async fn ask<T, F: Future<Output = Result<T, Failure>>>(
        &self,
        mut ask: impl FnMut() -> F,
    ) -> Result<T> {
        let mut waits = self.waits();
        loop {
            match ask().await {
                Ok(answer) => return Ok(answer),
                Err(Failure::Lasting(why)) => return Err(self.failed(&why)),
                Err(Failure::Passing(why, pause)) => {
                    // A pause of none would ask without end.
                    waits.pause = pause.map_or(waits.pause, |pause| pause.max(PAUSE_FIRST));
                    waits.next(&why).await?;
                }
            }
        }
    }

    /// Ticks while a request is under way: its own limit is `server.timeout_s`.
    pub(super) async fn alive_during<T>(&self, work: impl Future<Output = T>) -> T {
        const EVERY: Duration = Duration::from_secs(1);
        tokio::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return done,
                () = tokio::time::sleep(EVERY) => self.beat.tick(),
            }
        }
    }

    pub(super) fn waits(&self) -> Waits<'_> {
        Waits {
            patience: self,
            since: Instant::now(),
            pause: PAUSE_FIRST,
        }
    }

    pub(super) fn failed(&self, why: &str) -> Error {
        Error::Server(format!("{}: {why}", self.name))
    }
}

/// The waits for a server, until the patience is over.
pub(super) struct Waits<'a> {
    patience: &'a Patience,
    since: Instant,
    pause: Duration,
}

impl Waits<'_> {
    pub(super) async fn next(&mut self, why: &str) -> Result<()> {
        let patience = self.patience;
        if self.since.elapsed() + self.pause > patience.most {
            return Err(patience.failed(&format!(
                "{why}; waited {:.0} s (actor_rollout_ref.rollout.server.patience_s, which \
                 `agentgym-submit resume` may change, as the address)",
                self.since.elapsed().as_secs_f64()
            )));
        }
        patience.beat.tick();
        let told = format!("{}: {why}; it is asked again", patience.name);
        patience.beat.waiting(told);
        tokio::select! {
            () = patience.cancel.cancelled() => return Err(Error::Cancelled),
            () = tokio::time::sleep(self.pause) => {}
        }
        self.pause = PAUSE_MAX.min(self.pause * 2);
        Ok(())
    }
}
