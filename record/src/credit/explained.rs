//! Why each token of an episode has its advantage, computed anew from the plan, the episodes and
//! their log-probs, and never read from `batch.bin`: with the functions of the stage itself, so
//! that the result is the stage's bit for bit, which [`PlayedIteration::differences`] checks.

use super::assign::{
    Credit, Joined, Prepared, compared, episode_advantage, is_masked, options, weighed,
};
use super::differences::{Difference, differences};
use crate::iteration::{Given, Iteration, Scored};
use crate::rewards::{RewardTerm, Rewards};
use crate::weights::{loss_tokens, minibatch_slots, token_weights};
use crate::{Error, Result};
use agentgym_algorithms::advantages::{Explanation, explain};
use agentgym_algorithms::kl::{masked_mean, penalty};
use agentgym_jobs::episode::{Episode, Outcome};
use agentgym_jobs::plan::Plan;
use agentgym_jobs::records::{Batch, CriticTargets};
use serde::Serialize;
use std::collections::BTreeMap;

/// An iteration's episodes, as the estimator sees them.
pub struct PlayedIteration {
    all: Vec<Scored>,
    given: Given,
    credit: Credit,
}

/// The credit of one episode.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EpisodeCredit {
    /// The task played.
    pub task: String,
    /// Draw index.
    pub group: u32,
    /// Index in the group.
    pub sample: u32,
    /// Its place in the batch, if it is trained on.
    pub slot: Option<usize>,
    /// Why it is not trained on.
    pub left_out: Option<&'static str>,
    /// The reward that counts, before a KL penalty.
    pub score: f64,
    /// The reward of each turn, if turns are rewarded.
    pub turn_rewards: Option<Vec<f64>>,
    /// What the run added to the reward; in the score.
    pub reward_terms: Vec<RewardTerm>,
    /// All episodes of its group.
    pub members: Vec<Member>,
    /// Reward per token, KL penalty included; sequences joined in time order.
    pub rewards: Vec<f64>,
    /// Whether the token was sampled, likewise.
    pub loss_mask: Vec<bool>,
    /// The critic's value per token, likewise.
    pub values: Option<Vec<f64>>,
    /// The KL penalty in these rewards.
    pub kl: Option<KlShare>,
    /// The estimator's formula; none for an episode that is not compared.
    pub explanation: Option<Explanation>,
    /// Whether a control has exchanged the advantages among episodes.
    pub scrambled: bool,
    /// The sampler correction.
    pub importance: Option<Importance>,
    /// The episode's advantage, as shown to people.
    pub advantage: Option<f64>,
    /// What each token trains with, by sequence; empty if not trained on.
    pub advantages: Vec<Vec<f64>>,
    /// The optimizer steps that read it.
    pub minibatch: Option<MinibatchPlace>,
}

/// An episode's credit in one line.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EpisodeLine {
    /// The task played.
    pub task: String,
    /// Draw index.
    pub group: u32,
    /// Index in the group.
    pub sample: u32,
    /// Why it ended.
    pub outcome: Outcome,
    /// The reward that counts.
    pub score: f64,
    /// Its place in the batch.
    pub slot: Option<usize>,
    /// As shown to people.
    pub advantage: Option<f64>,
    /// Why it is not trained on.
    pub left_out: Option<&'static str>,
}

/// An episode of the same group.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Member {
    /// Index in the group.
    pub sample: u32,
    /// Its reward.
    pub score: f64,
    /// Whether the estimator uses it.
    pub compared: bool,
}

/// A KL penalty.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct KlShare {
    /// Estimator of the divergence.
    pub estimator: String,
    /// Coefficient β of this iteration.
    pub kl_coef: f64,
    /// Mean over the episode's policy tokens, nats.
    pub kl: Option<f64>,
    /// What was added to each token's reward.
    pub penalties: Vec<f64>,
}

/// Importance weights.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Importance {
    /// By token or by episode.
    pub level: String,
    /// The largest weight.
    pub threshold: f64,
    /// One per policy token.
    pub weights: Vec<f64>,
}

/// Which minibatch reads a slot.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MinibatchPlace {
    /// 0-based.
    pub minibatch: usize,
    /// Minibatches of an epoch.
    pub of: usize,
    /// First slot and the one after the last.
    pub slots: (usize, usize),
    /// `loss_agg_mode`.
    pub aggregation: String,
    /// Policy tokens of the minibatch.
    pub loss_tokens: usize,
    /// Sequences of the minibatch that have any.
    pub sequences: usize,
    /// What each token of the episode weighs in the loss, by sequence.
    pub weights: Vec<f64>,
}

impl PlayedIteration {
    /// Credits the episodes of an iteration.
    ///
    /// # Errors
    /// The stage's errors.
    pub fn new(plan: &Plan, iteration: Iteration) -> Result<Self> {
        let Iteration { episodes, given } = iteration;
        let credit = Credit::assign(plan, &episodes, &given)?;
        Ok(Self {
            all: episodes,
            given,
            credit,
        })
    }

    /// Group and sample of every episode, in that order.
    pub fn episodes(&self) -> impl Iterator<Item = &Episode> {
        self.all.iter().map(|s| &s.episode)
    }

    /// The credit of an episode; none if the iteration has no such episode.
    ///
    /// # Errors
    /// The stage's errors.
    pub fn explain(&self, plan: &Plan, group: u32, sample: u32) -> Result<Option<EpisodeCredit>> {
        let own = |s: &&Scored| (s.episode.group, s.episode.sample) == (group, sample);
        let Some(scored) = self.all.iter().find(own) else {
            return Ok(None);
        };
        let (episode, config) = (&scored.episode, &plan.config);
        let prepared = Prepared::of(plan, &self.all, &self.given)?;
        let index = (prepared.members.iter())
            .position(|m| (m.episode.group, m.episode.sample) == (group, sample));
        let rewards = Rewards::of(plan)?;
        let left_out = self.left_out(plan, episode, index.is_some());
        let mut out = EpisodeCredit {
            task: episode.task.to_string(),
            group,
            sample,
            slot: None,
            left_out,
            score: rewards.score(episode),
            turn_rewards: rewards.turns(episode),
            reward_terms: rewards.terms(episode),
            members: self.members(plan, group, &rewards),
            rewards: Vec::new(),
            loss_mask: Vec::new(),
            values: None,
            kl: None,
            explanation: None,
            scrambled: config.algorithm.scramble_advantages,
            importance: None,
            advantage: None,
            advantages: Vec::new(),
            minibatch: None,
        };
        let Some(index) = index else {
            return Ok(Some(out));
        };
        let joined = &prepared.joined[index];
        out.rewards.clone_from(&joined.rewards);
        out.loss_mask.clone_from(&joined.loss_mask);
        out.values.clone_from(&joined.values);
        out.kl = self.kl_share(plan, joined)?;
        let estimator = config.algorithm.adv_estimator;
        let episodes = prepared.episodes(&self.given);
        let explanation = explain(estimator, &episodes, &options(plan), index)?;
        if left_out.is_none() {
            let (tokens, weights) = weighed(plan, joined, &explanation.advantages)?;
            out.importance = config.importance_correction()?.map(|c| Importance {
                level: c.level.to_string(),
                threshold: c.threshold,
                weights,
            });
            let mut rest = tokens.as_slice();
            let cut = |length: usize| {
                let (own, next) = rest.split_at(length);
                rest = next;
                own.to_vec()
            };
            let lengths = episode.sequences.iter().map(|s| s.token_ids.len());
            out.advantages = lengths.map(cut).collect();
            out.advantage = Some(episode_advantage(
                plan,
                &explanation.advantages,
                &joined.loss_mask,
            ));
            self.place(plan, &mut out)?;
        }
        out.explanation = Some(explanation);
        Ok(Some(out))
    }

    /// A line for every episode, by group and sample.
    ///
    /// # Errors
    /// An environment without a spec.
    pub fn overview(&self, plan: &Plan) -> Result<Vec<EpisodeLine>> {
        let Batch::V1(batch) = &self.credit.batch;
        let slots = batch.iter().enumerate();
        let slots: BTreeMap<(u32, u32), (usize, f64)> = slots
            .filter_map(|(slot, e)| {
                e.as_ref()
                    .map(|e| ((e.group, e.sample), (slot, e.advantage)))
            })
            .collect();
        let rewards = Rewards::of(plan)?;
        let all: Vec<&Episode> = self.episodes().collect();
        let both = all.iter().zip(compared(plan, &all, &self.given));
        let line = |(e, is_compared): (&&Episode, bool)| {
            let place = slots.get(&(e.group, e.sample));
            EpisodeLine {
                task: e.task.to_string(),
                group: e.group,
                sample: e.sample,
                outcome: e.outcome,
                score: rewards.score(e),
                slot: place.map(|(slot, _)| *slot),
                advantage: place.map(|(_, advantage)| *advantage),
                left_out: self.left_out(plan, e, is_compared),
            }
        };
        Ok(both.map(line).collect())
    }

    fn members(&self, plan: &Plan, group: u32, rewards: &Rewards) -> Vec<Member> {
        let episodes: Vec<&Episode> = self.episodes().collect();
        let both = episodes
            .iter()
            .zip(compared(plan, &episodes, &self.given))
            .filter(|(e, _)| e.group == group);
        both.map(|(e, compared)| Member {
            sample: e.sample,
            score: rewards.score(e),
            compared,
        })
        .collect()
    }

    fn left_out(&self, plan: &Plan, episode: &Episode, is_compared: bool) -> Option<&'static str> {
        let estimator = plan.config.algorithm.adv_estimator;
        let chosen = self.given.selected.as_ref();
        if !episode.usable() {
            Some(match episode.outcome {
                Outcome::NoRoom => "its first prompt left no room for a reply",
                Outcome::NoTurn => "it was over before its first turn",
                _ => "the environment failed, so there is no reward",
            })
        } else if chosen.is_some_and(|groups| !groups.contains(&episode.group)) {
            Some("its group was not selected (algorithm.filter_groups)")
        } else if !is_compared && estimator.needs_baseline() {
            Some("the greedy episode of its task failed, so there is no baseline")
        } else if !is_compared {
            Some("it is the only one left in its group, so there is nothing to compare with")
        } else if is_masked(plan, episode) {
            Some(
                "it ran out of rounds or tokens (algorithm.overlong: mask); it only counts in what others are compared with",
            )
        } else {
            None
        }
    }

    fn kl_share(&self, plan: &Plan, joined: &Joined) -> Result<Option<KlShare>> {
        let (Some(kl_coef), Some(reference)) = (self.given.kl_coef, &joined.ref_log_probs) else {
            return Ok(None);
        };
        let estimator = plan.config.algorithm.kl_penalty.value;
        let (old, mask) = (&joined.old_log_probs, &joined.loss_mask);
        Ok(Some(KlShare {
            estimator: estimator.to_string(),
            kl_coef,
            kl: masked_mean(old, reference, mask, estimator)?,
            penalties: penalty(old, reference, mask, estimator, kl_coef)?,
        }))
    }

    /// Slot and minibatch; where a control has scrambled the advantages, also those.
    fn place(&self, plan: &Plan, out: &mut EpisodeCredit) -> Result<()> {
        let Batch::V1(batch) = &self.credit.batch;
        let own = |entry: &Option<_>| {
            let entry: &Option<agentgym_jobs::records::BatchEpisode> = entry;
            (entry.as_ref()).is_some_and(|e| (e.group, e.sample) == (out.group, out.sample))
        };
        let Some(slot) = batch.iter().position(own) else {
            return Err(Error::Stage(format!(
                "group {} sample {} is trained on but has no slot",
                out.group, out.sample
            )));
        };
        if let (true, Some(entry)) = (out.scrambled, &batch[slot]) {
            out.advantage = Some(entry.advantage);
            let rows = entry.sequences.iter();
            out.advantages = rows.map(|s| s.advantages.clone()).collect();
        }
        let config = &plan.config;
        let tasks = config.actor_rollout_ref.actor.ppo_mini_batch_size;
        let minibatches = minibatch_slots(plan, tasks)?;
        let found = minibatches.iter().position(|slots| slots.contains(&slot));
        let weights = token_weights(plan, &self.credit.batch)?.swap_remove(slot);
        let aggregation = config.actor_loss()?.aggregation.to_string();
        out.minibatch = found.map(|minibatch| {
            let slots = minibatches[minibatch].clone();
            let counts = loss_tokens(batch, slots.clone()).concat();
            MinibatchPlace {
                minibatch,
                of: minibatches.len(),
                slots: (slots.start, slots.end),
                aggregation,
                loss_tokens: counts.iter().sum(),
                sequences: counts.iter().filter(|count| **count > 0).count(),
                weights,
            }
        });
        out.slot = Some(slot);
        Ok(())
    }

    /// Where the recorded batch (and the critic's targets) is not the computed one, bit for bit;
    /// at most `limit` differences.
    pub fn differences(
        &self,
        recorded: &Batch,
        targets: Option<&CriticTargets>,
        limit: usize,
    ) -> Vec<Difference> {
        let computed = (&self.credit.batch, self.credit.targets.as_ref());
        differences(computed, (recorded, targets), limit)
    }
}

#[cfg(test)]
mod tests;
