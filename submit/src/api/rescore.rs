//! What another policy of the run makes of tokens that were trained on: their log-probs under it,
//! scored here and now, and how they compare with those of the policy that the iteration began
//! with. Only where both policies are kept, and small enough for one machine that also draws pages.

use super::episode::{Places, one, places};
use super::known::Known;
use super::rows::RowCache;
use crate::credit::load_policy;
use crate::runs::RunView;
use crate::{Error, Result, text};
use agentgym_jobs::artifact_names;
use agentgym_jobs::episode::Sequence;
use agentgym_jobs::pipeline::{PartId, Stage, batch_of, policy_of};
use agentgym_jobs::records::Batch;
use agentgym_model::{ComputeOptions, ScoreRequest, score};
use agentgym_record::iteration::{Slot, slots};
use serde::Serialize;

/// Largest policy that is scored with, in bytes of its files.
const BYTES_MAX: u64 = 4 << 30;
/// Bars of a histogram.
const BARS: usize = 61;
/// |ln ratio| beyond which tokens share the outermost bar.
const REACH_MAX: f64 = 2.0;
/// Tokens listed.
const TOKENS: usize = 20;

/// What iteration `n` trains on.
pub(super) async fn batch(known: &Known, n: u32) -> Result<(RunView, Batch)> {
    let view = known.view().await;
    view.iteration_parts(n)?;
    let manifest = known.committed(batch_of(n)).await?;
    let batch = view.payload(&manifest, artifact_names::BATCH).await?;
    Ok((view, batch))
}

/// The log-probs of sequences under the policy that iteration `n` made.
async fn scored(known: &Known, n: u32, sequences: Vec<Sequence>) -> Result<Vec<Vec<f32>>> {
    let view = known.view().await;
    view.iteration_parts(n)?;
    let manifest = known.committed(policy_of(&view.plan, n)).await?;
    let files = manifest.outputs.iter();
    let files = files.filter(|o| o.name.starts_with("policy/") || o.name.starts_with("adapter/"));
    let bytes: u64 = files.map(|o| o.size).sum();
    if bytes > BYTES_MAX {
        return Err(Error::Usage(format!(
            "the policy of iteration {n} has {}, and the viewer scores with at most {}; \
             `agentgym-submit export` writes policy and batch for a larger machine",
            text::bytes(bytes),
            text::bytes(BYTES_MAX)
        )));
    }
    let policy = load_policy(&view, &manifest).await?;
    let temperature = view.plan.config.actor_rollout_ref.rollout.temperature;
    let scoring = move || {
        let requests: Vec<ScoreRequest<'_>> = sequences
            .iter()
            .map(|s| ScoreRequest {
                token_ids: &s.token_ids,
                loss_mask: &s.loss_mask,
            })
            .collect();
        let options = ComputeOptions {
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            ..ComputeOptions::default()
        };
        score(&policy, &requests, temperature, &options)
    };
    let done = tokio::task::spawn_blocking(scoring).await;
    let done = done.map_err(|e| Error::Usage(format!("scoring under iteration {n}: {e}")))?;
    let scores = done.map_err(|e| Error::Usage(format!("scoring under iteration {n}: {e}")))?;
    Ok(scores.into_iter().map(|s| s.log_probs).collect())
}

/// An episode's log-probs under the policy that iteration `policy` made.
#[derive(Debug, Serialize)]
pub(crate) struct Rescored {
    run: String,
    part: String,
    k: u32,
    policy: u32,
    log_probs: Vec<Vec<f32>>,
}

pub(super) async fn episode(known: &Known, id: PartId, k: u32, policy: u32) -> Result<Rescored> {
    if !matches!(id.stage, Stage::Rollout | Stage::Reward) {
        return Err(Error::Missing(format!(
            "{id} is not trained on, so there is no log-prob to compare with"
        )));
    }
    let run = known.plan().await.run.to_string();
    let (_, _, e) = one(known, id, k).await?;
    Ok(Rescored {
        run,
        part: id.to_string(),
        k,
        policy,
        log_probs: scored(known, policy, e.sequences).await?,
    })
}

#[derive(Debug, Serialize)]
struct ChangedToken {
    #[serde(flatten)]
    place: TokenPlace,
    ratio: f64,
    advantage: f64,
    id: u32,
    piece: Option<String>,
}

/// The ratios of new to old probability over the batch of an iteration, under the policy that its
/// update made.
#[derive(Debug, Serialize)]
pub(crate) struct Ratios {
    run: String,
    iteration: u32,
    histogram: Histogram,
    clip_low: f64,
    clip_high: f64,
    tokens: Vec<ChangedToken>,
}

pub(super) async fn ratios(known: &Known, rows: &RowCache, n: u32) -> Result<Ratios> {
    let (view, batch) = batch(known, n).await?;
    let filled = slots(batch, None);
    let sequences = filled.iter().flat_map(|slot| &slot.episode.sequences);
    let sequences = sequences.map(|s| s.sequence.clone()).collect();
    let new = scored(known, n, sequences).await?;
    let all = compared(&filled, &new);
    let clip = &view.plan.config.actor_rollout_ref.actor;
    let places = places(known, rows, n).await?;
    let pieces = known.pieces().await?;
    let mut largest: Vec<&Token<'_>> = all.iter().collect();
    largest.sort_by(|a, b| b.log_ratio.abs().total_cmp(&a.log_ratio.abs()));
    largest.truncate(TOKENS);
    let tokens = largest.iter().map(|token| {
        let id = token.id();
        ChangedToken {
            place: TokenPlace::of(&places, token.slot, token.sequence, token.token),
            ratio: token.log_ratio.exp(),
            advantage: token.advantage(),
            id,
            piece: pieces.texts(&[id]).pop(),
        }
    });
    let ratios: Vec<f64> = all.iter().map(|token| token.log_ratio).collect();
    Ok(Ratios {
        run: view.plan.run.to_string(),
        iteration: n,
        histogram: Histogram::of(&ratios),
        clip_low: clip.clip_ratio_low,
        clip_high: clip.clip_ratio_high,
        tokens: tokens.collect(),
    })
}

/// A loss token with how its probability changed.
struct Token<'a> {
    slot: &'a Slot,
    sequence: usize,
    token: usize,
    log_ratio: f64,
}

impl Token<'_> {
    fn id(&self) -> u32 {
        self.slot.episode.sequences[self.sequence]
            .sequence
            .token_ids[self.token]
    }

    fn advantage(&self) -> f64 {
        self.slot.episode.sequences[self.sequence].advantages[self.token]
    }
}

fn compared<'a>(filled: &'a [Slot], new: &[Vec<f32>]) -> Vec<Token<'a>> {
    let mut out = Vec::new();
    let mut new = new.iter();
    for slot in filled {
        for (sequence, s) in slot.episode.sequences.iter().enumerate() {
            let Some(new) = new.next() else { return out };
            for (token, kept) in s.sequence.loss_mask.iter().enumerate() {
                if *kept {
                    let log_ratio = f64::from(new[token]) - f64::from(s.old_log_probs[token]);
                    out.push(Token {
                        slot,
                        sequence,
                        token,
                        log_ratio,
                    });
                }
            }
        }
    }
    out
}

/// Where a token of a slot is: its episode's place in the run, and its place there.
#[derive(Debug, Clone, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct TokenPlace {
    pub(crate) slot: usize,
    pub(crate) sequence: usize,
    pub(crate) token: usize,
    /// Among the tokens of all sequences.
    pub(crate) index: usize,
    pub(crate) group: u32,
    pub(crate) sample: u32,
    pub(crate) part: Option<String>,
    pub(crate) k: Option<u32>,
}

impl TokenPlace {
    pub(super) fn of(places: &Places, slot: &Slot, sequence: usize, token: usize) -> Self {
        let before = slot.episode.sequences.iter().take(sequence);
        let before: usize = before.map(|s| s.sequence.token_ids.len()).sum();
        let place = places.get(&(slot.episode.group, slot.episode.sample));
        Self {
            slot: slot.slot,
            sequence,
            token,
            index: before + token,
            group: slot.episode.group,
            sample: slot.episode.sample,
            part: place.map(|(part, _)| part.to_string()),
            k: place.map(|(_, k)| *k),
        }
    }
}

/// Counts of ln ratios in bars of one width around 0, the share of each side of 1, and the k3
/// estimate of the divergence, mean over tokens of r − 1 − ln r. Source: Schulman, "Approximating
/// KL Divergence", 2020.
#[derive(Debug, Serialize)]
pub(crate) struct Histogram {
    counts: Vec<u32>,
    reach: f64,
    largest: f64,
    tokens: usize,
    risen: f64,
    fallen: f64,
    kl: f64,
}

impl Histogram {
    pub(super) fn of(log_ratios: &[f64]) -> Self {
        let largest = log_ratios.iter().fold(0.0_f64, |most, r| most.max(r.abs()));
        let reach = largest.min(REACH_MAX);
        let mut counts = vec![0u32; BARS];
        for r in log_ratios {
            let place = match reach > 0.0 {
                true => (r.clamp(-reach, reach) / reach + 1.0) / 2.0 * BARS as f64,
                false => BARS as f64 / 2.0,
            };
            counts[(place as usize).min(BARS - 1)] += 1;
        }
        let all = log_ratios.len().max(1) as f64;
        let share = |of: fn(&f64) -> bool| log_ratios.iter().filter(|r| of(r)).count() as f64 / all;
        let k3: f64 = log_ratios.iter().map(|r| r.exp() - 1.0 - r).sum();
        Self {
            counts,
            reach,
            largest,
            tokens: log_ratios.len(),
            risen: share(|r| *r > 0.0),
            fallen: share(|r| *r < 0.0),
            kl: k3 / all,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_token_is_in_one_bar_and_equal_ones_stand_in_the_middle() {
        let found = Histogram::of(&[0.0, 0.1, -0.1, 0.05, 9.0]);
        assert_eq!(found.counts.iter().sum::<u32>(), 5);
        assert_eq!((found.reach, found.counts[BARS - 1]), (2.0, 1));
        assert_eq!(found.largest, 9.0);
        assert_eq!((found.risen, found.fallen), (0.6, 0.2));
        let same = Histogram::of(&[0.0; 4]);
        assert_eq!((same.counts[BARS / 2], same.kl), (4, 0.0));
        let two = Histogram::of(&[-0.5, 0.5]);
        assert_eq!((two.counts[0], two.counts[BARS - 1]), (1, 1));
        let kl = (0.5_f64.exp() + (-0.5_f64).exp()) / 2.0 - 1.0;
        assert!((two.kl - kl).abs() < 1e-12);
        assert_eq!(Histogram::of(&[]).tokens, 0);
    }
}
