//! Every object key, both ways: [`Key::path`] writes it, [`Key::parse`] reads
//! it, and a property test holds them together. The layout is for ever: a
//! change here orphans every run that exists.
//!
//! Numbers are zero-padded, so that the lexical order of a listing is the
//! order of iterations, parts and attempts.

use crate::{Error, Result};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// Longest artifact name in bytes; S3 allows 1 024 for the whole key.
const NAME_BYTES_MAX: usize = 512;

/// Name of a run: unique in its store, part of every key and of file names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunId(String);

impl RunId {
    /// Longest run id in bytes.
    pub const BYTES_MAX: usize = 80;

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for RunId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let lower = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        let fits = (1..=Self::BYTES_MAX).contains(&text.len())
            && lower(text.as_bytes()[0])
            && text.bytes().all(|b| lower(b) || b"._-".contains(&b));
        if fits {
            return Ok(Self(text.to_owned()));
        }
        const RULE: &str = "1 to 80 of a-z, 0-9, `.`, `_`, `-`, beginning with a letter or digit";
        Err(Error::BadName {
            what: "run id",
            value: text.to_owned(),
            rule: RULE,
        })
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Where one part's commit, attempts, files and journal live.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot {
    /// The run.
    pub run: RunId,
    /// Its iteration.
    pub iteration: u32,
    /// Name of the stage; unknown stages of newer programs are fine.
    pub stage: String,
    /// Part of the stage.
    pub part: u32,
}

impl Slot {
    /// `iteration/stage/part`, as in keys.
    fn tail(&self) -> String {
        format!("{:08}/{}/{:06}", self.iteration, self.stage, self.part)
    }

    pub(crate) fn attempts_prefix(&self) -> String {
        format!("runs/{}/attempts/{}", self.run, self.tail())
    }

    pub(crate) fn journal_prefix(&self) -> String {
        format!("runs/{}/journal/{}", self.run, self.tail())
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}/{}/{}/{}",
            self.run, self.iteration, self.stage, self.part
        )
    }
}

/// One execution of a part. The nonce keeps the folders of two attempts apart
/// even if a store lost the record that gave out the number.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptId {
    /// From 1.
    pub number: u32,
    /// 8 lower-case hexadecimal digits.
    pub nonce: String,
}

impl AttemptId {
    /// Attempt `number` with a fresh nonce.
    pub fn new(number: u32) -> Self {
        Self {
            number,
            nonce: nonce(),
        }
    }
}

impl fmt::Display for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a{:04}-{}", self.number, self.nonce)
    }
}

impl FromStr for AttemptId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        let parsed = text
            .strip_prefix('a')
            .and_then(|rest| rest.split_once('-'))
            .and_then(|(number, nonce)| {
                let number = number.parse().ok()?;
                (nonce.len() == 8 && nonce.bytes().all(hex)).then(|| Self {
                    number,
                    nonce: nonce.to_owned(),
                })
            });
        const RULE: &str = "a number of 4 digits after `a`, then `-` and 8 hexadecimal digits";
        parsed.ok_or_else(|| Error::BadName {
            what: "attempt folder",
            value: text.to_owned(),
            rule: RULE,
        })
    }
}

/// 8 random hexadecimal digits, from the system's generator. They only keep
/// names apart and never reach an artifact's bytes.
pub fn nonce() -> String {
    let mut bytes = [0u8; 4];
    getrandom::fill(&mut bytes).expect("every supported system has a random generator");
    format!("{:08x}", u32::from_le_bytes(bytes))
}

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
    /// The manifest that makes a part done.
    Commit(Slot),
    /// An attempt began.
    AttemptStart {
        /// The part.
        slot: Slot,
        /// From 1.
        attempt: u32,
    },
    /// An attempt ended, and how.
    AttemptEnd {
        /// The part.
        slot: Slot,
        /// From 1.
        attempt: u32,
    },
    /// A file that an attempt wrote.
    File {
        /// The part.
        slot: Slot,
        /// The attempt.
        attempt: AttemptId,
        /// Name inside the attempt's folder, e.g. `policy/config.json`.
        name: String,
    },
    /// A piece of unfinished work.
    JournalSegment {
        /// The part.
        slot: Slot,
        /// The attempt.
        attempt: AttemptId,
        /// From 0.
        segment: u32,
    },
    /// A fork needs objects of this run.
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
        /// The iteration whose update allowed it.
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

    /// Reads a path back.
    ///
    /// # Errors
    /// Anything that [`Key::path`] would not have written.
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
        let slot = |iteration: &str, stage: &str, part: &str| -> Result<Slot> {
            check_stage(stage)?;
            Ok(Slot {
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

/// Everything of a run lies under this prefix.
pub(crate) fn run_prefix(run: &RunId, folder: &str) -> String {
    format!("runs/{run}/{folder}")
}

/// The commits of one iteration: one listing.
pub(crate) fn commits_prefix(run: &RunId, iteration: u32) -> String {
    format!("runs/{run}/commits/{iteration:08}")
}

/// The one object outside of `runs/`: written, refused, and deleted when a
/// store is opened.
pub(crate) fn probe_path(nonce: &str) -> String {
    format!("probe-{nonce}")
}

fn number(text: &str) -> Result<u32> {
    const RULE: &str = "a zero-padded decimal number belongs here";
    text.parse().map_err(|_| Error::BadName {
        what: "number",
        value: text.to_owned(),
        rule: RULE,
    })
}

fn check_stage(stage: &str) -> Result<()> {
    let fits = (1..=32).contains(&stage.len())
        && stage.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
    const RULE: &str = "1 to 32 of a-z and `_`";
    if fits {
        Ok(())
    } else {
        Err(Error::BadName {
            what: "stage",
            value: stage.to_owned(),
            rule: RULE,
        })
    }
}

/// Artifact names become local file names, and every store must keep them
/// unchanged; hence the narrow alphabet.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let piece_fits = |piece: &str| {
        !matches!(piece, "" | "." | "..")
            && piece
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
    };
    const RULE: &str = "pieces of A-Z, a-z, 0-9, `.`, `_`, `-` divided by single `/`, no `.` or `..`, 512 bytes at most";
    if name.len() <= NAME_BYTES_MAX && name.split('/').all(piece_fits) {
        return Ok(());
    }
    Err(Error::BadName {
        what: "artifact name",
        value: name.to_owned(),
        rule: RULE,
    })
}

macro_rules! serde_as_text {
    ($type:ty, $parse:expr) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(
                &self,
                serializer: S,
            ) -> std::result::Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(
                deserializer: D,
            ) -> std::result::Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                $parse(&text).map_err(serde::de::Error::custom)
            }
        }
    };
}
pub(crate) use serde_as_text;

serde_as_text!(RunId, RunId::from_str);
serde_as_text!(Key, Key::parse);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run() -> impl Strategy<Value = RunId> {
        "[a-z0-9][a-z0-9._-]{0,79}".prop_map(|text| text.parse().unwrap())
    }

    fn slot() -> impl Strategy<Value = Slot> {
        (run(), any::<u32>(), "[a-z_]{1,32}", any::<u32>()).prop_map(
            |(run, iteration, stage, part)| Slot {
                run,
                iteration,
                stage,
                part,
            },
        )
    }

    fn attempt() -> impl Strategy<Value = AttemptId> {
        (any::<u32>(), "[0-9a-f]{8}").prop_map(|(number, nonce)| AttemptId { number, nonce })
    }

    fn name() -> impl Strategy<Value = String> {
        "[A-Za-z0-9_-][A-Za-z0-9._-]{0,40}(/[A-Za-z0-9_-][A-Za-z0-9._-]{0,40}){0,3}"
    }

    fn key() -> impl Strategy<Value = Key> {
        prop_oneof![
            (run(), any::<u32>()).prop_map(|(run, revision)| Key::Plan { run, revision }),
            slot().prop_map(Key::Commit),
            (slot(), any::<u32>()).prop_map(|(slot, attempt)| Key::AttemptStart { slot, attempt }),
            (slot(), any::<u32>()).prop_map(|(slot, attempt)| Key::AttemptEnd { slot, attempt }),
            (slot(), attempt(), name()).prop_map(|(slot, attempt, name)| Key::File {
                slot,
                attempt,
                name
            }),
            (slot(), attempt(), any::<u32>()).prop_map(|(slot, attempt, segment)| {
                Key::JournalSegment {
                    slot,
                    attempt,
                    segment,
                }
            }),
            (run(), run()).prop_map(|(run, child)| Key::Pin { run, child }),
            (run(), any::<u32>()).prop_map(|(run, iteration)| Key::Expired { run, iteration }),
        ]
    }

    proptest! {
        #[test]
        fn a_key_survives_the_round_trip(key in key()) {
            prop_assert_eq!(Key::parse(&key.path()).unwrap(), key);
        }

        #[test]
        fn what_parses_is_canonical(path in "runs/[a-z]{1,3}/(plan|pins|expired|commits)/[0-9a-z/]{0,20}(\\.json)?") {
            if let Ok(key) = Key::parse(&path) {
                prop_assert_eq!(key.path(), path);
            }
        }

        #[test]
        fn listings_are_in_order(mut parts in proptest::collection::vec((0u32..100_000_000, 0u32..1_000_000), 2..20)) {
            let path = |(iteration, part): &(u32, u32)| {
                Key::Commit(Slot { run: "r".parse().unwrap(), iteration: *iteration, stage: "s".into(), part: *part }).path()
            };
            let mut paths: Vec<_> = parts.iter().map(path).collect();
            parts.sort();
            paths.sort();
            prop_assert_eq!(paths, parts.iter().map(path).collect::<Vec<_>>());
        }
    }

    #[test]
    fn the_layout_is_the_documented_one() {
        let run: RunId = "maze-1".parse().unwrap();
        let slot = Slot {
            run: run.clone(),
            iteration: 7,
            stage: "rollout".into(),
            part: 3,
        };
        let attempt = AttemptId {
            number: 2,
            nonce: "00c0ffee".into(),
        };
        let paths = [
            Key::Plan {
                run: run.clone(),
                revision: 1,
            },
            Key::Commit(slot.clone()),
            Key::AttemptStart {
                slot: slot.clone(),
                attempt: 2,
            },
            Key::AttemptEnd {
                slot: slot.clone(),
                attempt: 2,
            },
            Key::File {
                slot: slot.clone(),
                attempt: attempt.clone(),
                name: "policy/config.json".into(),
            },
            Key::JournalSegment {
                slot,
                attempt,
                segment: 5,
            },
            Key::Pin {
                run: run.clone(),
                child: "fork".parse().unwrap(),
            },
            Key::Expired { run, iteration: 7 },
        ]
        .map(|key| key.path());
        assert_eq!(
            paths,
            [
                "runs/maze-1/plan/0001.json",
                "runs/maze-1/commits/00000007/rollout/000003.json",
                "runs/maze-1/attempts/00000007/rollout/000003/0002/start.json",
                "runs/maze-1/attempts/00000007/rollout/000003/0002/end.json",
                "runs/maze-1/files/00000007/rollout/000003/a0002-00c0ffee/policy/config.json",
                "runs/maze-1/journal/00000007/rollout/000003/a0002-00c0ffee/000005.bin",
                "runs/maze-1/pins/fork.json",
                "runs/maze-1/expired/00000007.json",
            ]
        );
    }

    #[test]
    fn foreign_paths_are_refused() {
        let file =
            |name: &str| format!("runs/r/files/00000001/update/000000/a0001-00000000/{name}");
        assert!(Key::parse(&file("policy/model.safetensors")).is_ok());
        let names = [
            "",
            "/etc/passwd",
            "a/../b",
            "..",
            ".",
            "a//b",
            "a/",
            "a b",
            "a#1",
            "ä",
            "a%2fb",
            "a\\b",
        ];
        let bad = names.map(file);
        let others = [
            "",
            "runs",
            "runs/R/plan/0000.json",
            "/runs/r/plan/0000.json",
            "runs/r/plan/0.json",
            "runs/r/plan/0000",
            "runs/r/plan/+001.json",
            "runs/r/commits/1/s/000000.json",
            "runs/r/pins/..json",
            "runs/r/commits/00000001/Stage/000000.json",
            "runs/r/plan/4294967296.json",
        ];
        for path in bad.iter().map(String::as_str).chain(others) {
            assert!(
                matches!(Key::parse(path), Err(Error::BadKey { .. })),
                "{path}"
            );
        }
        for run in ["", ".", "..", "A", "-a", "a/b", "a b", &"a".repeat(81)] {
            assert!(run.parse::<RunId>().is_err(), "{run}");
        }
    }
}
