//! Which tasks are drawn: files, sources and their ids.

use crate::config::keys::limits::TASKS_MAX;
use crate::{Error, Result};
use agentgym_envs::builtin;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One file or several.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Files {
    One(String),
    Many(Vec<String>),
}

impl Files {
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        match self {
            Self::One(file) => std::slice::from_ref(file),
            Self::Many(files) => files.as_slice(),
        }
        .iter()
        .map(String::as_str)
    }
}

/// Task ids: `A..B`, `A..B:STEP` (end excluded), or a list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Ids {
    Range(String),
    List(Vec<i64>),
}

impl Default for Ids {
    fn default() -> Self {
        Self::List(Vec::new())
    }
}

/// Ids that are counted without being made.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Items {
    /// `from`, `from + step`, …: so many.
    Range { from: i64, step: i64, len: usize },
    /// These.
    List(Vec<i64>),
}

impl Items {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Range { len, .. } => *len,
            Self::List(ids) => ids.len(),
        }
    }

    /// The id at a place before `len`.
    pub(crate) fn at(&self, place: usize) -> i64 {
        match self {
            // Between the ends of the range, however far these are from 0.
            Self::Range { from, step, .. } => from.wrapping_add(step.wrapping_mul(place as i64)),
            Self::List(ids) => ids[place],
        }
    }
}

impl Ids {
    /// How many there are.
    ///
    /// # Errors
    /// As [`Ids::resolve`].
    pub fn count(&self, key: &str) -> Result<usize> {
        match self {
            Self::List(ids) => Ok(ids.len()),
            Self::Range(_) => Ok(self.items(key)?.len()),
        }
    }

    /// The ids in order.
    ///
    /// # Errors
    /// Text that is no range, or one that is too long.
    pub fn resolve(&self, key: &str) -> Result<Vec<i64>> {
        let items = self.items(key)?;
        Ok((0..items.len()).map(|place| items.at(place)).collect())
    }

    pub(crate) fn items(&self, key: &str) -> Result<Items> {
        let text = match self {
            Self::List(ids) => return Ok(Items::List(ids.clone())),
            Self::Range(text) => text,
        };
        let (from, to, step) = parse_range(text).ok_or_else(|| {
            Error::value(
                key,
                format!(
                    "`{text}` is not a range of task ids; write A..B or A..B:STEP, the end excluded"
                ),
            )
        })?;
        let len = to.abs_diff(from).div_ceil(step.unsigned_abs());
        match usize::try_from(len) {
            Ok(len) if len <= TASKS_MAX => Ok(Items::Range { from, step, len }),
            _ => Err(Error::value(
                key,
                format!(
                    "`{text}` is a range of {len} task ids, at most {TASKS_MAX} can be drawn from; give fewer"
                ),
            )),
        }
    }
}

/// Bounds and step: from < to, step > 0.
fn parse_range(text: &str) -> Option<(i64, i64, i64)> {
    let (range, step) = text
        .split_once(':')
        .map_or((text, Some(1)), |(r, s)| (r, s.trim().parse().ok()));
    let (from, to) = range.split_once("..")?;
    let (from, to, step): (i64, i64, i64) =
        (from.trim().parse().ok()?, to.trim().parse().ok()?, step?);
    (step > 0 && from < to).then_some((from, to, step))
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskSource {
    pub env: String,
    /// Of a file of questions all, if none are given.
    #[serde(default)]
    pub ids: Ids,
    /// A file of questions, which is the environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// How replies to them are graded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grade: Option<String>,
    /// Which of its columns are `prompt`, `answer` and `id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub columns: Option<BTreeMap<String, String>>,
    /// BLAKE3 of the file; a plan holds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Share of every batch; all sources give one or none does.
    #[serde(default)]
    pub share: Option<f64>,
}

impl TaskSource {
    /// The kind of environment that a file of questions is.
    pub(crate) const QUESTIONS: &str = "dataset";

    /// The address of the server by which one is played.
    pub(crate) fn address(&self) -> Option<String> {
        let file = self.file.as_deref()?;
        let mut options = vec![("file", file)];
        options.extend(self.grade.as_deref().map(|grade| ("grade", grade)));
        options.extend(self.digest.as_deref().map(|digest| ("digest", digest)));
        let columns = self.columns.iter().flatten();
        options.extend(columns.map(|(name, column)| (name.as_str(), column.as_str())));
        Some(builtin::address(Self::QUESTIONS, &options))
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Data {
    pub train_file: Option<Files>,
    pub tasks: Vec<TaskSource>,
    pub train_batch_size: usize,
    pub max_prompt_length: usize,
    pub max_response_length: usize,
    pub shuffle: bool,
    pub seed: u64,
    pub curriculum: CurriculumCtrl,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CurriculumCtrl {
    /// Share of episodes to solve before another source enters; `None` without a curriculum.
    pub solved: Option<f64>,
    /// Iterations that the share is taken over.
    pub iterations: u32,
}
