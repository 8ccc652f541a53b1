//! All object keys, in both directions: [`Key::path`] formats a key, [`Key::parse`] reads it, and a
//! property test checks that they agree. The layout must never change: a change would orphan every
//! existing run.
//!
//! Numbers are zero-padded, so that the lexical order of a listing is the
//! order of iterations, parts and attempts.

mod names;

pub use names::{AttemptId, PartKey, RunId, nonce};
pub(crate) use names::{check_name, serde_as_text};

use crate::{Error, Result};
use names::{check_stage, number};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// An object of a run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// A resolved plan.
    Plan {
        /// The run.
        run: RunId,
        /// From 0; the highest is in force.
        revision: u32,
    },
    /// The manifest that completes a part.
    Commit(PartKey),
    /// The start of an attempt.
    AttemptStart {
        /// The part.
        slot: PartKey,
        /// From 1.
        attempt: u32,
    },
    /// The end of an attempt.
    AttemptEnd {
        /// The part.
        slot: PartKey,
        /// From 1.
        attempt: u32,
    },
    /// A file that an attempt wrote.
    File {
        /// The part.
        slot: PartKey,
        /// The attempt.
        attempt: AttemptId,
        /// Name inside the attempt's folder, e.g. `policy/config.json`.
        name: String,
    },
    /// A segment of unfinished work.
    JournalSegment {
        /// The part.
        slot: PartKey,
        /// The attempt.
        attempt: AttemptId,
        /// From 0.
        segment: u32,
    },
    /// Objects of this run that a fork needs.
    Pin {
        /// The run whose objects are needed.
        run: RunId,
        /// The run that needs them.
        child: RunId,
    },
    /// Tombstone: what retention removed after an iteration.
    Expired {
        /// The run.
        run: RunId,
        /// The iteration whose update allowed the removal.
        iteration: u32,
    },
}

impl Key {
    /// The run that the object belongs to.
    pub fn run(&self) -> &RunId {
        match self {
            Self::Plan { run, .. } | Self::Pin { run, .. } | Self::Expired { run, .. } => run,
            Self::Commit(slot)
            | Self::AttemptStart { slot, .. }
            | Self::AttemptEnd { slot, .. }
            | Self::File { slot, .. }
            | Self::JournalSegment { slot, .. } => &slot.run,
        }
    }

    /// The object's name in the store, relative to the store's root.
    pub fn path(&self) -> String {
        let run = self.run();
        match self {
            Self::Plan { revision, .. } => format!("runs/{run}/plan/{revision:04}.json"),
            Self::Commit(slot) => format!("runs/{run}/commits/{}.json", slot.tail()),
            Self::AttemptStart { slot, attempt } => {
                format!("{}/{attempt:04}/start.json", slot.attempts_prefix())
            }
            Self::AttemptEnd { slot, attempt } => {
                format!("{}/{attempt:04}/end.json", slot.attempts_prefix())
            }
            Self::File {
                slot,
                attempt,
                name,
            } => format!("runs/{run}/files/{}/{attempt}/{name}", slot.tail()),
            Self::JournalSegment {
                slot,
                attempt,
                segment,
            } => {
                format!("{}/{attempt}/{segment:06}.bin", slot.journal_prefix())
            }
            Self::Pin { child, .. } => format!("runs/{run}/pins/{child}.json"),
            Self::Expired { iteration, .. } => format!("runs/{run}/expired/{iteration:08}.json"),
        }
    }

    /// Parses a path.
    ///
    /// # Errors
    /// Any path that [`Key::path`] does not produce.
    pub fn parse(path: &str) -> Result<Self> {
        let bad = |why: String| Error::BadKey {
            path: path.to_owned(),
            why,
        };
        let key = Self::read(path).map_err(|e| bad(e.to_string()))?;
        match key {
            Some(key) if key.path() == path => Ok(key),
            Some(key) => Err(bad(format!("it would be written {}", key.path()))),
            None => Err(bad("no object has this shape".to_owned())),
        }
    }

    fn read(path: &str) -> Result<Option<Self>> {
        let pieces: Vec<&str> = path.split('/').collect();
        let ["runs", run, folder, rest @ ..] = pieces.as_slice() else {
            return Ok(None);
        };
        let run = RunId::from_str(run)?;
        let slot = |iteration: &str, stage: &str, part: &str| -> Result<PartKey> {
            check_stage(stage)?;
            Ok(PartKey {
                run: run.clone(),
                iteration: number(iteration)?,
                stage: stage.to_owned(),
                part: number(part)?,
            })
        };
        let json = |file: &'_ str| {
            file.strip_suffix(".json")
                .map(str::to_owned)
                .unwrap_or_default()
        };
        Ok(Some(match (*folder, rest) {
            ("plan", [file]) => Self::Plan {
                revision: number(&json(file))?,
                run,
            },
            ("commits", [i, s, file]) => Self::Commit(slot(i, s, &json(file))?),
            ("attempts", [i, s, p, attempt, "start.json"]) => Self::AttemptStart {
                slot: slot(i, s, p)?,
                attempt: number(attempt)?,
            },
            ("attempts", [i, s, p, attempt, "end.json"]) => Self::AttemptEnd {
                slot: slot(i, s, p)?,
                attempt: number(attempt)?,
            },
            ("files", [i, s, p, attempt, name @ ..]) => {
                let name = name.join("/");
                check_name(&name)?;
                Self::File {
                    slot: slot(i, s, p)?,
                    attempt: attempt.parse()?,
                    name,
                }
            }
            ("journal", [i, s, p, attempt, file]) => Self::JournalSegment {
                slot: slot(i, s, p)?,
                attempt: attempt.parse()?,
                segment: number(file.strip_suffix(".bin").unwrap_or_default())?,
            },
            ("pins", [file]) => Self::Pin {
                child: json(file).parse()?,
                run,
            },
            ("expired", [file]) => Self::Expired {
                iteration: number(&json(file))?,
                run,
            },
            _ => return Ok(None),
        }))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path())
    }
}

/// Prefix of all objects of a run in `folder`.
pub(crate) fn run_prefix(run: &RunId, folder: &str) -> String {
    format!("runs/{run}/{folder}")
}

/// Sorts before every key of `folder` for iteration `first` or later, and after those of all
/// earlier iterations.
pub(crate) fn before_iteration(run: &RunId, folder: &str, first: u32) -> String {
    format!("runs/{run}/{folder}/{first:08}")
}

/// Prefix of the commits of one iteration.
pub(crate) fn commits_prefix(run: &RunId, iteration: u32) -> String {
    format!("runs/{run}/commits/{iteration:08}")
}

/// The one object outside `runs/`: the probe creates it, checks that a second create is refused,
/// and deletes it.
pub(crate) fn probe_path(nonce: &str) -> String {
    format!("probe-{nonce}")
}

serde_as_text!(Key, Key::parse);

#[cfg(test)]
mod tests;
