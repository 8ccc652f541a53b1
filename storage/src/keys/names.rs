//! The names that keys consist of: runs, parts, attempts, artifacts. They are checked here, before
//! anything is written.

use crate::{Error, Result};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// Longest artifact name in bytes; S3 allows 1 024 for the whole key.
const NAME_BYTES_MAX: usize = 512;

/// Name of a run: unique in its store; part of every key and of file names.
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

/// Identifies a part: where its commit, attempts, files and journal are stored.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartKey {
    /// The run.
    pub run: RunId,
    /// Its iteration.
    pub iteration: u32,
    /// Name of the stage; unknown stages of newer programs are accepted.
    pub stage: String,
    /// Part of the stage.
    pub part: u32,
}

impl PartKey {
    /// `iteration/stage/part`, as in keys.
    pub(super) fn tail(&self) -> String {
        format!("{:08}/{}/{:06}", self.iteration, self.stage, self.part)
    }

    pub(crate) fn attempts_prefix(&self) -> String {
        format!("runs/{}/attempts/{}", self.run, self.tail())
    }

    pub(crate) fn journal_prefix(&self) -> String {
        format!("runs/{}/journal/{}", self.run, self.tail())
    }
}

impl fmt::Display for PartKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}/{}/{}/{}",
            self.run, self.iteration, self.stage, self.part
        )
    }
}

/// One execution of a part. The nonce keeps the folders of two attempts apart even if a store has
/// lost the record that assigned the number.
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

/// 8 random hexadecimal digits from the operating system's generator. They only make names unique
/// and never reach an artifact's bytes.
pub fn nonce() -> String {
    let mut bytes = [0u8; 4];
    getrandom::fill(&mut bytes).expect("every supported system has a random generator");
    format!("{:08x}", u32::from_le_bytes(bytes))
}

pub(super) fn number(text: &str) -> Result<u32> {
    const RULE: &str = "a zero-padded decimal number belongs here";
    text.parse().map_err(|_| Error::BadName {
        what: "number",
        value: text.to_owned(),
        rule: RULE,
    })
}

pub(super) fn check_stage(stage: &str) -> Result<()> {
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

/// Artifact names become local file names, and every store must keep them unchanged; hence the
/// restricted alphabet.
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
