//! A row per episode: the figures by which episodes are found. Rows are read from a commit once and
//! kept under its artifacts' digest, in memory and in the cache folder. They are never an output of
//! a run.

use super::known::Known;
use super::refusals::refusal;
use crate::records::{episodes, slots};
use crate::runs::{RunView, cache_dir};
use crate::{Result, text};
use agentgym_jobs::artifact_names;
use agentgym_jobs::episode::{Episode, Finish, Outcome, Parse};
use agentgym_jobs::pipeline::{PartId, Records, Stage};
use agentgym_record::iteration::Slot;
use agentgym_storage::Manifest;
use agentgym_view::RefusalKind;
use futures::{StreamExt, stream};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use tokio::sync::Mutex;

/// Changes with the form of the rows.
const FORM: &str = "rows-1";
/// Parts read at the same time. Each is whole in memory while it is.
pub(super) const PARTS_AT_ONCE: usize = 12;
/// Turns in a row that say the same, from which on an episode loops.
const LOOP_TURNS: usize = 3;

/// What one episode's record says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Row {
    /// Place in the part.
    pub(crate) k: u32,
    pub(crate) env: String,
    pub(crate) item: i64,
    pub(crate) group: u32,
    pub(crate) sample: u32,
    #[cfg_attr(test, schemars(with = "String"))]
    pub(crate) outcome: Outcome,
    pub(crate) success: bool,
    pub(crate) reward: f64,
    pub(crate) turns: u32,
    /// Sampled tokens.
    pub(crate) length: u32,
    /// Turns without an action, and with one found after normalisation.
    pub(crate) invalid: u32,
    pub(crate) normalised: u32,
    /// Turns that were cut.
    pub(crate) cut: u32,
    /// Longest run of turns with the same action.
    pub(crate) repeats: u32,
    /// Log-prob of the least likely sampled token.
    pub(crate) surprise: Option<f32>,
}

/// What the batch says of an episode.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Trained {
    pub(super) slot: usize,
    pub(super) advantage: f64,
    /// Largest |old − sampled log-prob|.
    pub(super) mismatch: f32,
}

/// A row with where it was played and what became of it.
#[derive(Debug, Clone)]
pub(super) struct Listed {
    pub(super) part: PartId,
    pub(super) row: Arc<Row>,
    pub(super) worker: Arc<str>,
    pub(super) trained: Option<Trained>,
}

/// The episodes of some parts.
#[derive(Debug, Default)]
pub(super) struct Index {
    pub(super) rows: Vec<Listed>,
    /// What is damaged and therefore not among them.
    pub(super) unreadable: Vec<String>,
}

/// The rows of a part; lists share them.
type Rows = Arc<Vec<Arc<Row>>>;

/// Trained episodes of an iteration, by group and sample.
type Slots = BTreeMap<(u32, u32), Trained>;

/// Rows by digest.
#[derive(Default)]
pub(super) struct RowCache {
    rows: Mutex<HashMap<String, Rows>>,
    slots: Mutex<HashMap<String, Arc<Slots>>>,
}

impl Row {
    fn of(k: usize, e: &Episode) -> Self {
        let turns = |wanted: Parse| e.turns.iter().filter(|t| t.parse == wanted).count() as u32;
        let sampled = e.sequences.iter().flat_map(|s| {
            let both = s.sampled_log_probs.iter().zip(&s.loss_mask);
            both.filter_map(|(p, kept)| kept.then_some(*p))
        });
        // A chat API gives none.
        let known = sampled.clone().filter(|p| !p.is_nan());
        let said = |t: &agentgym_jobs::episode::Turn| t.action.clone().unwrap_or(t.text.clone());
        let same = e.turns.chunk_by(|a, b| said(a) == said(b)).map(<[_]>::len);
        Self {
            k: k as u32,
            env: e.task.env.clone(),
            item: e.task.item_id,
            group: e.group,
            sample: e.sample,
            outcome: e.outcome,
            success: e.success,
            reward: e.reward,
            turns: e.turns.len() as u32,
            length: sampled.count() as u32,
            invalid: turns(Parse::Invalid),
            normalised: turns(Parse::Normalised),
            cut: e
                .turns
                .iter()
                .filter(|t| t.finish == Finish::Length)
                .count() as u32,
            repeats: same.max().unwrap_or(0) as u32,
            surprise: known.reduce(f32::min),
        }
    }

    pub(super) fn loops(&self) -> bool {
        self.repeats as usize >= LOOP_TURNS
    }
}

fn trained(slot: &Slot) -> ((u32, u32), Trained) {
    let e = &slot.episode;
    let tokens = e.sequences.iter().flat_map(|s| {
        let own = s.old_log_probs.iter().zip(&s.sequence.sampled_log_probs);
        own.zip(&s.sequence.loss_mask)
    });
    let differences = tokens.filter(|(_, kept)| **kept);
    let found = Trained {
        slot: slot.slot,
        advantage: e.advantage,
        mismatch: differences
            .map(|((a, b), _)| (a - b).abs())
            .fold(0.0, f32::max),
    };
    ((e.group, e.sample), found)
}

impl Index {
    /// What was read; what is damaged is noted, and does not hide the rest.
    fn read<T>(&mut self, read: Result<T>) -> Result<Option<T>> {
        match read {
            Ok(found) => Ok(Some(found)),
            Err(e) if refusal(&e).kind == RefusalKind::Damaged => {
                let message = e.to_string();
                if !self.unreadable.contains(&message) {
                    self.unreadable.push(message);
                }
                Ok(None)
            }
            Err(e) => Err(e),
        }
    }
}

/// Reads JSON from the cache folder; what is not there or not readable is made anew.
fn cached<T: DeserializeOwned>(digest: &str) -> Option<T> {
    let bytes = std::fs::read(cache_dir().join(FORM).join(digest)).ok()?;
    serde_json::from_slice(&bytes).ok()
}

fn keep<T: Serialize>(digest: &str, value: &T) {
    // A cache that cannot be written only costs time.
    if let Ok(bytes) = serde_json::to_vec(value) {
        let _ = text::replace(&cache_dir().join(FORM).join(digest), &bytes);
    }
}

impl RowCache {
    /// The rows of a commit with episodes.
    pub(super) async fn rows(&self, view: &RunView, manifest: &Manifest) -> Result<Rows> {
        let artifact = manifest.output(artifact_names::EPISODES)?;
        let digest = artifact.digest.to_string();
        if let Some(rows) = self.rows.lock().await.get(&digest) {
            return Ok(Arc::clone(rows));
        }
        let rows = match cached::<Vec<Row>>(&digest) {
            Some(rows) => rows,
            None => {
                let all = episodes(view, manifest).await?;
                let rows: Vec<Row> = all.iter().enumerate().map(|(k, e)| Row::of(k, e)).collect();
                keep(&digest, &rows);
                rows
            }
        };
        let rows: Rows = Arc::new(rows.into_iter().map(Arc::new).collect());
        let mut known = self.rows.lock().await;
        Ok(Arc::clone(known.entry(digest).or_insert(rows)))
    }

    /// The episodes that an iteration trains on; none before its batch is there.
    async fn slots(&self, view: &RunView, manifest: &Manifest) -> Result<Arc<Slots>> {
        let digest = manifest.output(artifact_names::BATCH)?.digest.to_string();
        if let Some(slots) = self.slots.lock().await.get(&digest) {
            return Ok(Arc::clone(slots));
        }
        let pairs: Vec<((u32, u32), Trained)> = match cached(&digest) {
            Some(pairs) => pairs,
            None => {
                let slots = slots(view, manifest).await?;
                let pairs = slots.iter().map(trained).collect();
                keep(&digest, &pairs);
                pairs
            }
        };
        let slots = Arc::new(Slots::from_iter(pairs));
        let mut known = self.slots.lock().await;
        Ok(Arc::clone(known.entry(digest).or_insert(slots)))
    }

    /// Every episode of a run, in the order of the run, for the parts that `wanted` names.
    pub(super) async fn of_run(
        &self,
        known: &Known,
        wanted: impl Fn(PartId) -> bool,
    ) -> Result<Index> {
        let view = known.view().await;
        let all = known.manifests().await;
        // A reward function writes the episodes anew.
        let rewarded = all.iter().any(|(id, _)| id.stage == Stage::Reward);
        let batches: BTreeMap<u32, Arc<Manifest>> = all
            .iter()
            .filter(|(id, _)| id.stage == Stage::Advantage && id.part == 0)
            .map(|(id, batch)| (id.iteration, Arc::clone(batch)))
            .collect();
        let parts = all.into_iter().filter(|(id, _)| {
            let has_episodes = id.stage.facts().records == Records::Episodes;
            has_episodes && !(rewarded && id.stage == Stage::Rollout) && wanted(*id)
        });
        let parts: Vec<(PartId, Arc<Manifest>)> = parts.collect();
        let reading = known.reading.begin("parts with episodes", parts.len());
        let read = |(id, manifest): (PartId, Arc<Manifest>)| {
            let (view, reading) = (&view, &reading);
            let batch = batches.get(&id.iteration);
            let batch = batch.filter(|_| !id.stage.facts().evaluates);
            async move {
                let slots = match batch {
                    Some(batch) => Some(self.slots(view, batch).await),
                    None => None,
                };
                let rows = self.rows(view, &manifest).await;
                reading.step();
                (id, manifest, slots, rows)
            }
        };
        let parts = stream::iter(parts).map(read).buffered(PARTS_AT_ONCE);
        let parts: Vec<_> = parts.collect().await;
        let mut out = Index::default();
        for (id, manifest, slots, rows) in parts {
            let slots = slots.map(|slots| out.read(slots)).transpose()?.flatten();
            let work = manifest.work.as_ref();
            let worker: Arc<str> = work.map_or("", |work| &work.worker).into();
            let Some(rows) = out.read(rows)? else {
                continue;
            };
            for row in rows.iter() {
                let place = (row.group, row.sample);
                out.rows.push(Listed {
                    part: id,
                    trained: slots.as_ref().and_then(|slots| slots.get(&place).copied()),
                    worker: Arc::clone(&worker),
                    row: Arc::clone(row),
                });
            }
        }
        Ok(out)
    }
}

/// Counted from 1, and of how many.
#[derive(Debug, Clone, Copy, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Rank {
    place: u32,
    places: u32,
}

/// Which of its iteration's episodes, or evaluations, an episode is.
pub(super) struct Ranks {
    /// Those before the first of each part.
    before: BTreeMap<PartId, u32>,
    all: BTreeMap<(u32, Stage), u32>,
}

impl Ranks {
    pub(super) fn of(rows: &[Listed]) -> Self {
        let (mut before, mut all) = (BTreeMap::new(), BTreeMap::new());
        for l in rows {
            let count = all.entry((l.part.iteration, l.part.stage)).or_default();
            before.entry(l.part).or_insert(*count);
            *count += 1;
        }
        Self { before, all }
    }

    pub(super) fn get(&self, l: &Listed) -> Rank {
        let before = self.before.get(&l.part).copied().unwrap_or_default();
        let all = self.all.get(&(l.part.iteration, l.part.stage)).copied();
        Rank {
            place: before + l.row.k + 1,
            places: all.unwrap_or_default(),
        }
    }
}
