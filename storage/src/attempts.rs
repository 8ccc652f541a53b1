//! The history of attempts: which worker started when, and how it ended. An attempt whose worker
//! vanished has a start and no end. Times are for people only; nothing here is compared with
//! another machine's clock, and nothing reaches an artifact.

use crate::keys::nonce;
use crate::manifest::{from_json, to_json};
use crate::{AttemptId, Created, Error, Key, PartKey, Result, RunId, Store};
use futures::{StreamExt, TryStreamExt, stream};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

const VERSION: u32 = 1;
/// Records read concurrently.
const READS_AT_ONCE: usize = 16;
/// Longest failure message kept, in bytes.
const MESSAGE_BYTES_MAX: usize = 16 << 10;

/// What a worker runs on and what that costs, as its operator says. Records of older programs say
/// nothing.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct MachineFacts {
    /// `cpu` or `cuda:N`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub device: String,
    /// Of the operator's choice.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Price of an hour, in the operator's currency.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price: Option<f64>,
}

/// The start record of an attempt.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct AttemptStart {
    /// Name of the worker process.
    pub worker: String,
    /// The worker's clock, for people.
    pub started_unix_s: u64,
    /// The same in milliseconds; records of older programs have whole seconds alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_unix_ms: Option<u64>,
    /// Version of the program.
    pub code_version: String,
    /// Plan revision in force.
    pub plan_revision: u32,
    /// Its machine.
    #[serde(default, flatten)]
    pub machine: MachineFacts,
}

impl AttemptStart {
    /// When it began, in seconds since 1970 on the worker's clock, as exactly as it is known.
    pub fn began_unix_s(&self) -> f64 {
        let exact = self.started_unix_ms.map(|ms| ms as f64 / 1000.0);
        exact.unwrap_or(self.started_unix_s as f64)
    }
}

/// Stands in for a damaged start record.
fn unknown_start() -> AttemptStart {
    AttemptStart {
        worker: NOBODY_KNOWN.to_owned(),
        ..AttemptStart::default()
    }
}

/// How an attempt ended. A committed attempt has no end record: its commit is its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttemptOutcome {
    /// Its manifest is the commit. Written only by older programs.
    Committed,
    /// Another attempt's manifest is the commit.
    Superseded,
    /// An error; counts towards the limit of attempts unless excused.
    Failed,
    /// Its worker was asked to stop.
    Drained,
    /// It was cancelled.
    Cancelled,
}

impl AttemptOutcome {
    /// As in records and documents.
    pub fn name(self) -> &'static str {
        match self {
            Self::Committed => "committed",
            Self::Superseded => "superseded",
            Self::Failed => "failed",
            Self::Drained => "drained",
            Self::Cancelled => "cancelled",
        }
    }
}

/// The end record of an attempt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AttemptEnd {
    /// How it ended.
    pub outcome: AttemptOutcome,
    /// Why, if it failed.
    pub message: String,
    /// How long it took.
    pub wall_s: f64,
    /// What it measured: rates and times, which no artifact may hold.
    pub stats: serde_json::Map<String, serde_json::Value>,
    /// It failed because of the store or the queue, so it does not count towards the limit.
    #[serde(default, skip_serializing_if = "is_false")]
    pub excused: bool,
    /// It failed in a way in which every attempt on any worker would fail.
    #[serde(default, skip_serializing_if = "is_false")]
    pub for_good: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_false(flag: &bool) -> bool {
    !flag
}

/// One attempt of a part.
#[derive(Debug, Clone, PartialEq)]
pub struct AttemptRecord {
    /// From 1.
    pub number: u32,
    /// Nonce of its folders; empty if its start record is damaged.
    pub nonce: String,
    /// How it started. If that record is damaged, worker and time are unknown, and the attempt
    /// counts under the plan revision of the attempt before it.
    pub start: AttemptStart,
    /// How it ended. None while it runs, if its worker vanished, if its end record is damaged, or
    /// if it committed: then its commit says how it went.
    pub end: Option<AttemptEnd>,
    /// Which of its records cannot be read, and why. The attempt has started; how it went is
    /// unknown.
    pub damage: Option<String>,
}

/// The worker name of an attempt whose start record cannot be read.
const NOBODY_KNOWN: &str = "a worker that nobody knows";

#[derive(Serialize, Deserialize)]
struct StartFile {
    version: u32,
    nonce: String,
    #[serde(flatten)]
    start: AttemptStart,
}

#[derive(Serialize, Deserialize)]
struct EndFile {
    version: u32,
    #[serde(flatten)]
    end: AttemptEnd,
}

/// One record of an attempt.
pub(crate) enum Record {
    /// Its start, with the nonce of the attempt's folders.
    Start(String),
    /// Its end.
    End,
}

impl Store {
    /// Reads the attempt record at a key.
    pub(crate) async fn attempt_record(&self, key: &Key) -> Result<Record> {
        const WHAT: &str = "an attempt record";
        let (path, content) = (key.path(), self.get(key).await?);
        if matches!(key, Key::AttemptEnd { .. }) {
            from_json::<EndFile>(&path, WHAT, VERSION, &content)?;
            return Ok(Record::End);
        }
        let file: StartFile = from_json(&path, WHAT, VERSION, &content)?;
        Ok(Record::Start(file.nonce))
    }

    /// Records a start under the first free number and returns it.
    ///
    /// # Errors
    /// The store fails.
    pub async fn start_attempt(&self, slot: &PartKey, start: &AttemptStart) -> Result<AttemptId> {
        // Another worker may take a number first; each such loss means one more recorded attempt,
        // so the loop ends.
        for number in 1.. {
            if let Some(attempt) = self.start_attempt_as(slot, start, number).await? {
                return Ok(attempt);
            }
        }
        Err(Error::Conflict {
            key: slot.attempts_prefix(),
            hint: "every attempt number is taken",
        })
    }

    /// Records a start under exactly this number; none if the number is taken.
    ///
    /// Numbers are taken in order, so a worker that gets number 1 knows that no other attempt has
    /// started, hence that the part has no commit.
    ///
    /// # Errors
    /// The store fails.
    pub async fn start_attempt_as(
        &self,
        slot: &PartKey,
        start: &AttemptStart,
        number: u32,
    ) -> Result<Option<AttemptId>> {
        let nonce = nonce();
        let file = StartFile {
            version: VERSION,
            nonce: nonce.clone(),
            start: start.clone(),
        };
        let key = Key::AttemptStart {
            slot: slot.clone(),
            attempt: number,
        };
        let content = to_json(&key.path(), "an attempt record", &file)?;
        let won = self.create(&key, content).await? == Created::Won;
        Ok(won.then_some(AttemptId { number, nonce }))
    }

    /// The number after `taken`, the highest recorded one (0 if none).
    ///
    /// # Errors
    /// There is no higher number. No program starts a part that often: the record is not one of
    /// ours.
    pub fn next_attempt(slot: &PartKey, taken: u32) -> Result<u32> {
        taken.checked_add(1).ok_or_else(|| {
            let last = Key::AttemptStart {
                slot: slot.clone(),
                attempt: taken,
            };
            Error::BadKey {
                path: last.path(),
                why: "no attempt can follow one of this number, so no program has written it; \
                      delete the object, then resume"
                    .to_owned(),
            }
        })
    }

    /// Records the end of an attempt; the first record wins.
    ///
    /// # Errors
    /// The store fails.
    pub async fn end_attempt(&self, slot: &PartKey, number: u32, end: &AttemptEnd) -> Result<()> {
        let mut end = end.clone();
        end.message
            .truncate(end.message.floor_char_boundary(MESSAGE_BYTES_MAX));
        let key = Key::AttemptEnd {
            slot: slot.clone(),
            attempt: number,
        };
        let content = to_json(
            &key.path(),
            "an attempt record",
            &EndFile {
                version: VERSION,
                end,
            },
        )?;
        match self.create(&key, content).await? {
            Created::Won => Ok(()),
            Created::Exists => Err(Error::Conflict {
                key: key.path(),
                hint: "an attempt ends once",
            }),
        }
    }

    /// The attempts of a part, by number.
    ///
    /// # Errors
    /// The store fails, or a record cannot be read.
    pub async fn attempts(&self, slot: &PartKey) -> Result<Vec<AttemptRecord>> {
        let listed = self.list(&slot.attempts_prefix()).await?;
        Ok(self
            .read_attempts(listed, BTreeMap::new())
            .await?
            .into_values()
            .next()
            .unwrap_or_default())
    }

    /// The attempts of some parts of one run: one listing, and one read of each record of those
    /// parts that is not in `known`. Records never change, so a record once read stays valid; only
    /// an attempt that had no end may have one now.
    ///
    /// # Errors
    /// The store fails, or a record cannot be read.
    pub async fn attempts_of(
        &self,
        wanted: &BTreeSet<PartKey>,
        known: BTreeMap<PartKey, Vec<AttemptRecord>>,
    ) -> Result<BTreeMap<PartKey, Vec<AttemptRecord>>> {
        let Some(first) = wanted.first() else {
            return Ok(BTreeMap::new());
        };
        let mut listed = self
            .list_iterations(&first.run, "attempts", first.iteration)
            .await?;
        listed.retain(|(key, _)| attempted(key).is_some_and(|slot| wanted.contains(slot)));
        self.read_attempts(listed, known).await
    }

    /// The attempts of all parts of a run.
    ///
    /// # Errors
    /// The store fails, or a record cannot be read.
    pub async fn all_attempts(&self, run: &RunId) -> Result<BTreeMap<PartKey, Vec<AttemptRecord>>> {
        self.all_attempts_beside(run, BTreeMap::new()).await
    }

    /// The attempts of all parts of a run, with those `known` from an earlier call read only where
    /// they may have changed, as in [`Store::attempts_of`].
    ///
    /// # Errors
    /// The store fails, or a record cannot be read.
    pub async fn all_attempts_beside(
        &self,
        run: &RunId,
        known: BTreeMap<PartKey, Vec<AttemptRecord>>,
    ) -> Result<BTreeMap<PartKey, Vec<AttemptRecord>>> {
        let listed = self.list_run(run, "attempts").await?;
        self.read_attempts(listed, known).await
    }

    async fn read_attempts(
        &self,
        listed: Vec<(Key, u64)>,
        known: BTreeMap<PartKey, Vec<AttemptRecord>>,
    ) -> Result<BTreeMap<PartKey, Vec<AttemptRecord>>> {
        let mut begun: BTreeMap<(PartKey, u32), bool> = BTreeMap::new();
        for (key, _) in listed {
            match key {
                Key::AttemptStart { slot, attempt } => {
                    _ = begun.entry((slot, attempt)).or_insert(false)
                }
                Key::AttemptEnd { slot, attempt } => _ = begun.insert((slot, attempt), true),
                _ => {}
            }
        }
        let known = &known;
        let read = |((slot, attempt), ended): ((PartKey, u32), bool)| async move {
            let record = known.get(&slot).into_iter().flatten();
            let mut of_number = record.filter(|r| r.number == attempt && r.damage.is_none());
            let known = of_number.next().cloned();
            let record = match known {
                Some(record) if record.end.is_some() || !ended => record,
                known => self.read_attempt(&slot, attempt, known, ended).await?,
            };
            Ok::<_, Error>((slot, record))
        };
        let records: Vec<_> = stream::iter(begun)
            .map(read)
            .buffered(READS_AT_ONCE)
            .try_collect()
            .await?;
        let mut by_slot: BTreeMap<PartKey, Vec<AttemptRecord>> = BTreeMap::new();
        for (slot, mut record) in records {
            let earlier = by_slot.entry(slot).or_default();
            if record.nonce.is_empty() {
                // Plan revisions never decrease over attempts.
                let before = earlier.last().map(|record| record.start.plan_revision);
                record.start.plan_revision = before.unwrap_or(0);
            }
            earlier.push(record);
        }
        Ok(by_slot)
    }

    /// Reads the records of an attempt that are not in `known`. A torn, empty or missing record
    /// does not prevent reading the others: its attempt has started, and how it went is unknown.
    async fn read_attempt(
        &self,
        slot: &PartKey,
        attempt: u32,
        known: Option<AttemptRecord>,
        ended: bool,
    ) -> Result<AttemptRecord> {
        let mut damage = None;
        let mut record = match known {
            Some(record) => record,
            None => {
                let key = Key::AttemptStart {
                    slot: slot.clone(),
                    attempt,
                };
                let read = self.read_record::<StartFile>(&key).await;
                let file = damaged(read, &mut damage)?;
                let (nonce, start) = file.map_or_else(
                    || (String::new(), unknown_start()),
                    |file| (file.nonce, file.start),
                );
                AttemptRecord {
                    number: attempt,
                    nonce,
                    start,
                    end: None,
                    damage: None,
                }
            }
        };
        if ended {
            let key = Key::AttemptEnd {
                slot: slot.clone(),
                attempt,
            };
            let read = self.read_record::<EndFile>(&key).await;
            record.end = damaged(read, &mut damage)?.map(|file| file.end);
        }
        record.damage = damage;
        Ok(record)
    }

    async fn read_record<T: for<'de> Deserialize<'de>>(&self, key: &Key) -> Result<T> {
        let content = self.get(key).await?;
        from_json(&key.path(), "an attempt record", VERSION, &content)
    }
}

/// The record; if it is damaged, `None` and the reason in `damage`. Other errors are the store's.
fn damaged<T>(read: Result<T>, damage: &mut Option<String>) -> Result<Option<T>> {
    match read {
        Ok(record) => Ok(Some(record)),
        Err(e @ (Error::Malformed { .. } | Error::TooLarge { .. } | Error::NotFound { .. })) => {
            damage.get_or_insert_with(|| e.to_string());
            Ok(None)
        }
        Err(e) => Err(e),
    }
}

fn attempted(key: &Key) -> Option<&PartKey> {
    match key {
        Key::AttemptStart { slot, .. } | Key::AttemptEnd { slot, .. } => Some(slot),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = r#"{"version":1,"nonce":"n","worker":"w","started_unix_s":7,"code_version":"0.3.0","plan_revision":2}"#;

    #[test]
    fn records_of_older_programs_are_read_and_say_nothing_of_the_machine() {
        let old: StartFile = serde_json::from_str(OLD).unwrap();
        assert_eq!(old.start.machine, MachineFacts::default());
        assert_eq!(old.start.began_unix_s(), 7.0);
        assert_eq!(serde_json::to_string(&old).unwrap(), OLD);
    }

    #[test]
    fn a_record_says_where_and_for_how_much() {
        let mut file: StartFile = serde_json::from_str(OLD).unwrap();
        file.start.started_unix_ms = Some(7_250);
        file.start.machine = MachineFacts {
            device: "cuda:0".into(),
            labels: [("gpu".to_owned(), "H100".to_owned())].into(),
            price: Some(2.1),
        };
        let text = serde_json::to_string(&file).unwrap();
        let read: StartFile = serde_json::from_str(&text).unwrap();
        assert_eq!(read.start, file.start);
        assert_eq!(read.start.began_unix_s(), 7.25);
    }
}
