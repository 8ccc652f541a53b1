//! The reward of an episode in training: the environment's last reward, or with
//! `algorithm.turn_rewards` the reward of each turn, and the terms that shape it. Whoever asks for a
//! reward asks here, so a new term stands in [`Rewards::terms`] and nowhere else.

use crate::{Error, Result};
use agentgym_algorithms::advantages::{OverlongBuffer, place_score, place_turn_rewards};
use agentgym_jobs::episode::Episode;
use agentgym_jobs::plan::Plan;
use serde::Serialize;
use std::collections::BTreeMap;
use std::ops::Range;

/// The plan's reward rule.
pub struct Rewards {
    /// Where turns are rewarded: whether each environment reports a running total.
    totals: Option<BTreeMap<String, bool>>,
    overlong: Option<OverlongBuffer>,
}

/// What is added to the reward of an episode before an estimator reads it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RewardTerm {
    /// On the last sampled token.
    pub value: f64,
    /// Its formula with its numbers.
    pub formula: String,
}

impl Rewards {
    /// # Errors
    /// An environment without a spec.
    pub fn of(plan: &Plan) -> Result<Self> {
        let environments = plan.config.environments().into_iter();
        let totals = environments.map(|(name, environment)| {
            let spec = plan.config.spec(&environment.task_name);
            let spec = spec.map_err(|e| Error::Stage(e.to_string()))?;
            Ok((name, spec.reward_is_total))
        });
        Ok(Self {
            totals: match plan.config.algorithm.turn_rewards {
                true => Some(totals.collect::<Result<_>>()?),
                false => None,
            },
            overlong: plan.config.overlong_buffer()?,
        })
    }

    /// What is added to the reward that was earned.
    pub fn terms(&self, episode: &Episode) -> Vec<RewardTerm> {
        let overlong = self.overlong.iter().map(|buffer| {
            let tokens = response_tokens(episode);
            RewardTerm {
                value: buffer.penalty(tokens),
                formula: format!(
                    "overlong penalty (DAPO): {tokens} tokens after the prompt, of at most {}, of which the last {} cost up to {}",
                    buffer.response_tokens_max, buffer.buffer_tokens, buffer.penalty_factor
                ),
            }
        });
        overlong.collect()
    }

    /// The episode's score, which group estimators compare.
    pub fn score(&self, episode: &Episode) -> f64 {
        let terms = self.terms(episode);
        terms
            .iter()
            .fold(self.earned(episode), |score, term| score + term.value)
    }

    /// The score without the terms: the filter of groups compares it, since a term of its own would
    /// make every group differ.
    pub fn earned(&self, episode: &Episode) -> f64 {
        self.turns(episode)
            .map_or(episode.reward, |turns| turns.iter().sum())
    }

    /// The reward of each turn, if turns are rewarded.
    pub fn turns(&self, episode: &Episode) -> Option<Vec<f64>> {
        let totals = self.totals.as_ref()?;
        let total = totals.get(&episode.task.env).copied().unwrap_or(false);
        Some(episode.turn_rewards(total))
    }

    /// Reward per token of the episode's sequences, concatenated in time order.
    ///
    /// # Errors
    /// A turn that points outside its sequence.
    pub fn tokens(&self, episode: &Episode, loss_mask: &[bool]) -> Result<Vec<f64>> {
        let mut rewards = match self.turns(episode) {
            None => place_score(episode.reward, loss_mask),
            Some(turns) => place_turns(episode, &turns, loss_mask)?,
        };
        for term in self.terms(episode) {
            let added = place_score(term.value, loss_mask);
            rewards.iter_mut().zip(added).for_each(|(to, by)| *to += by);
        }
        Ok(rewards)
    }
}

/// Tokens after the first prompt, observations included; of its longest sequence where its context was
/// rewritten.
fn response_tokens(episode: &Episode) -> usize {
    let after = episode.sequences.iter().map(|sequence| {
        let mask = &sequence.loss_mask;
        let prompt = mask.iter().position(|&sampled| sampled);
        mask.len() - prompt.unwrap_or(mask.len())
    });
    after.max().unwrap_or(0)
}

/// The reward of each turn on its last sampled token.
fn place_turns(episode: &Episode, rewards: &[f64], loss_mask: &[bool]) -> Result<Vec<f64>> {
    let turns = turn_tokens(episode).zip(rewards.iter().copied());
    Ok(place_turn_rewards(&turns.collect::<Vec<_>>(), loss_mask)?)
}

/// The policy's tokens of each turn, among those of all sequences in time order.
pub(crate) fn turn_tokens(episode: &Episode) -> impl Iterator<Item = Range<usize>> {
    let mut starts = vec![0];
    for sequence in &episode.sequences {
        starts.push(starts.last().copied().unwrap_or(0) + sequence.token_ids.len());
    }
    episode.turns.iter().map(move |turn| {
        // A sequence that is not there maps beyond all tokens, which is rejected.
        let last = starts.last().copied();
        let start = starts.get(turn.sequence as usize).copied().or(last);
        let start = start.unwrap_or(0);
        start + turn.policy.0 as usize..start + turn.policy.1 as usize
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{episode, plan};
    use agentgym_jobs::episode::{Finish, Outcome, Parse, Turn};

    fn turn(policy: (u32, u32), reward: Option<f64>) -> Turn {
        Turn {
            sequence: 0,
            context: (0, policy.0),
            policy,
            text: String::new(),
            action: None,
            parse: Parse::Clean,
            observation: String::new(),
            reward,
            done: false,
            finish: Finish::Eos,
            policy_iteration: 0,
        }
    }

    #[test]
    fn a_turn_is_rewarded_on_its_last_token_and_a_total_by_its_growth() {
        // Tokens: prompt, prompt, turn 1, turn 1, observation, turn 2.
        let mut played = episode(0, 0, Outcome::Horizon, 0.75);
        played.turns = vec![turn((2, 4), Some(0.5)), turn((5, 6), Some(0.75))];
        let mask = played.sequences[0].loss_mask.clone();
        let last = Rewards::of(&plan(&[])).unwrap();
        assert_eq!(last.score(&played), 0.75);
        assert_eq!(
            last.tokens(&played, &mask).unwrap(),
            [0.0, 0.0, 0.0, 0.0, 0.0, 0.75]
        );
        let own = Rewards::of(&plan(&["algorithm.turn_rewards=true"])).unwrap();
        assert_eq!(own.score(&played), 1.25);
        assert_eq!(
            own.tokens(&played, &mask).unwrap(),
            [0.0, 0.0, 0.0, 0.5, 0.0, 0.75]
        );
        let sciworld = "actor_rollout_ref.agentgym.envs={textcraft: {task_name: sciworld, env_addr: 'http://h:1'}}";
        let total = plan(&["algorithm.turn_rewards=true", sciworld]);
        let total = Rewards::of(&total).unwrap();
        assert_eq!(total.score(&played), 0.75);
        assert_eq!(
            total.tokens(&played, &mask).unwrap(),
            [0.0, 0.0, 0.0, 0.5, 0.0, 0.25]
        );
        // What the run adds is on the last sampled token, and in the score.
        let most = plan(&[]).config.response_tokens_max();
        let long = format!("reward.overlong_buffer.len={}", most - 1);
        let long = Rewards::of(&plan(&[&long, "reward.overlong_buffer.penalty_factor=2"])).unwrap();
        let [term] = &long.terms(&played)[..] else {
            panic!("one term")
        };
        // Of the four tokens after the prompt three are in the buffer.
        let penalty = -3.0 / (most - 1) as f64 * 2.0;
        assert_eq!(term.value, penalty);
        assert!(term.formula.contains("4 tokens after the prompt"));
        assert_eq!(
            (long.earned(&played), long.score(&played)),
            (0.75, 0.75 + penalty)
        );
        assert_eq!(long.tokens(&played, &mask).unwrap()[5], 0.75 + penalty);
        // A turn that was answered without the environment earns and loses nothing.
        played.turns[1].reward = None;
        assert_eq!(total.score(&played), 0.5);
    }
}
