//! The reward of an episode in training: the environment's last reward, or with
//! `algorithm.turn_rewards` the reward of each turn.

use crate::{Error, Result};
use agentgym_algorithms::advantages::{place_score, place_turn_rewards};
use agentgym_jobs::episode::Episode;
use agentgym_jobs::plan::Plan;
use std::collections::BTreeMap;
use std::ops::Range;

/// The plan's reward rule.
pub enum Rewards {
    /// The last reward, for the whole episode.
    Last,
    /// A reward per turn. Maps each environment to whether it reports a running total.
    Turns(BTreeMap<String, bool>),
}

impl Rewards {
    /// # Errors
    /// An environment without a spec.
    pub fn of(plan: &Plan) -> Result<Self> {
        if !plan.config.algorithm.turn_rewards {
            return Ok(Self::Last);
        }
        let environments = plan.config.environments().into_iter();
        let totals = environments.map(|(name, environment)| {
            let spec = plan.config.spec(&environment.task_name);
            let spec = spec.map_err(|e| Error::Stage(e.to_string()))?;
            Ok((name, spec.reward_is_total))
        });
        Ok(Self::Turns(totals.collect::<Result<_>>()?))
    }

    /// The episode's score, which group estimators compare.
    pub fn score(&self, episode: &Episode) -> f64 {
        match self {
            Self::Last => episode.reward,
            Self::Turns(totals) => turns(totals, episode).iter().sum(),
        }
    }

    /// The reward of each turn, if turns are rewarded.
    pub fn turns(&self, episode: &Episode) -> Option<Vec<f64>> {
        match self {
            Self::Last => None,
            Self::Turns(totals) => Some(turns(totals, episode)),
        }
    }

    /// Reward per token of the episode's sequences, concatenated in time order.
    ///
    /// # Errors
    /// A turn that points outside its sequence.
    pub fn tokens(&self, episode: &Episode, loss_mask: &[bool]) -> Result<Vec<f64>> {
        let Self::Turns(totals) = self else {
            return Ok(place_score(episode.reward, loss_mask));
        };
        let mut starts = vec![0];
        for sequence in &episode.sequences {
            starts.push(starts.last().copied().unwrap_or(0) + sequence.token_ids.len());
        }
        let spans = episode.turns.iter().map(|turn| {
            // A missing start maps beyond the mask, which is rejected.
            let start = starts.get(turn.sequence as usize);
            let start = start.copied().unwrap_or(loss_mask.len());
            start + turn.policy.0 as usize..start + turn.policy.1 as usize
        });
        let rewards: Vec<(Range<usize>, f64)> = spans.zip(turns(totals, episode)).collect();
        Ok(place_turn_rewards(&rewards, loss_mask)?)
    }
}

fn turns(totals: &BTreeMap<String, bool>, episode: &Episode) -> Vec<f64> {
    let total = totals.get(&episode.task.env).copied().unwrap_or(false);
    episode.turn_rewards(total)
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
        // A turn that was answered without the environment earns and loses nothing.
        played.turns[1].reward = None;
        assert_eq!(total.score(&played), 0.5);
    }
}
