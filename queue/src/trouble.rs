//! Workers that step back because their store or their queue fails them: what they report to the
//! fleet, for whoever asks what a run waits for. Through the queue, since their store may refuse. One
//! that the queue refuses cannot report; its silence is noticed.

use crate::driver::since_1970;
use crate::error::Result;
use crate::holder::is_gone;
use crate::names::trouble_name;
use crate::queue::Queue;
use std::time::Duration;

/// How long a report of trouble stands.
const TROUBLE_TTL: Duration = Duration::from_secs(60);
/// The board of workers that have reported trouble.
const TROUBLED: &str = "troubled";

/// A worker says at least this often that it is alive.
pub const PRESENCE_EVERY: Duration = Duration::from_secs(15);
/// A worker not heard of for this long is named.
const SILENT_AFTER: Duration = Duration::from_secs(40);
const SILENT: &str = "the queue no longer hears of it: it ended without saying so, or the queue refuses \
                      what it writes; its log and /health say which";

/// Why a worker steps back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// Since when, by the worker's clock.
    pub since_unix_s: u64,
    /// The error: cause and cure.
    pub why: String,
}

impl Trouble {
    fn to_text(&self) -> String {
        format!("{}\n{}", self.since_unix_s, self.why)
    }

    fn read(text: String) -> Option<Self> {
        let (since, why) = text.split_once('\n')?;
        Some(Self {
            since_unix_s: since.parse().ok()?,
            why: why.to_owned(),
        })
    }
}

impl Queue {
    /// Reports to the fleet why a worker steps back. The report expires, so it is repeated.
    pub async fn report_trouble(&self, worker: &str, trouble: &Trouble) -> Result<()> {
        let (name, text) = (trouble_name(worker), trouble.to_text());
        if let Some(other) = self.driver.lease(&name, &text, TROUBLE_TTL).await? {
            if other == text {
                self.driver.renew(&name, &text, TROUBLE_TTL).await?;
            } else {
                self.driver.release(&name, &other).await?;
                self.driver.lease(&name, &text, TROUBLE_TTL).await?;
            }
        }
        // One rank for all: ranks by a clock would let a wrong clock hide the other workers.
        let note = Some((0, worker));
        self.driver.post(TROUBLED, note, u32::MAX).await.map(|_| ())
    }

    /// Takes the report back.
    pub async fn trouble_is_over(&self, worker: &str) -> Result<()> {
        let name = trouble_name(worker);
        match self.driver.holder(&name).await? {
            Some(text) => self.driver.release(&name, &text).await,
            None => Ok(()),
        }
    }

    /// Says that a worker is alive, or that it ends. To be repeated every [`PRESENCE_EVERY`].
    pub async fn note_presence(&self, worker: &str, is_here: bool) -> Result<()> {
        self.driver.note_presence(worker, is_here).await
    }

    /// The workers that step back, by name, and after them the silent ones, the last heard of first.
    pub async fn in_trouble(&self) -> Result<Vec<(String, Trouble)>> {
        self.in_trouble_or_silent(SILENT_AFTER).await
    }

    /// [`Self::in_trouble`] with another limit of silence, for tests.
    #[doc(hidden)]
    pub async fn in_trouble_or_silent(&self, after: Duration) -> Result<Vec<(String, Trouble)>> {
        let mut found = Vec::new();
        for worker in self.driver.post(TROUBLED, None, 0).await? {
            let text = self.driver.holder(&trouble_name(&worker)).await?;
            if let Some(trouble) = text.filter(|_| !is_gone(&worker)).and_then(Trouble::read) {
                found.push((worker, trouble));
            }
        }
        found.sort_by(|a, b| a.0.cmp(&b.0));
        let mut silent = self.driver.last_noted().await?;
        silent.retain(|(worker, ago)| {
            *ago >= after && !is_gone(worker) && found.iter().all(|(named, _)| named != worker)
        });
        silent.sort_by_key(|(_, ago)| *ago);
        let now = since_1970();
        found.extend(silent.into_iter().map(|(worker, ago)| {
            let since_unix_s = now.saturating_sub(ago).as_secs();
            let why = SILENT.to_owned();
            (worker, Trouble { since_unix_s, why })
        }));
        Ok(found)
    }

    /// Tests that the queue takes writes of this worker.
    pub async fn probe(&self, worker: &str) -> Result<()> {
        let name = format!("probe/{worker}");
        self.driver.lease(&name, "probe", TROUBLE_TTL).await?;
        self.driver.release(&name, "probe").await
    }
}
