//! Credit assignment: which episodes take part, the reward of each of their tokens, and the
//! advantages that the plan's estimator computes from them.
//!
//! The sequences of an episode are concatenated in time order for the estimator and split again for
//! the batch.

use crate::documents::KlState;
use crate::iteration::{Given, Scored};
use crate::rewards::{Rewards, turn_tokens};
use crate::weights::wide;
use crate::{Error, Result};
use agentgym_algorithms::advantages::{AdvantageOptions, EpisodeTokens, TurnTokens, estimate};
use agentgym_algorithms::groups::{Group, collect, has_company};
use agentgym_algorithms::importance::behaviour_log_probs;
use agentgym_algorithms::kl::{masked_mean, penalty};
use agentgym_algorithms::stats::explained_variance;
use agentgym_jobs::config::Overlong;
use agentgym_jobs::episode::{Episode, Outcome, Sequence};
use agentgym_jobs::plan::Plan;
use agentgym_jobs::random::{Purpose, StreamKey, permuted};
use agentgym_jobs::records::{Batch, BatchEpisode, BatchSequence, CriticSequence, CriticTargets};

/// The training data of an iteration's update.
pub struct Credit {
    pub batch: Batch,
    pub targets: Option<CriticTargets>,
    /// The groups that were compared.
    pub groups: Vec<Group>,
    pub kl: Option<KlState>,
    /// Of the critic before its update, over the loss tokens.
    pub explained_variance: Option<f64>,
    /// Importance weights of the sampler correction, over the loss tokens.
    pub importance_weights: Vec<f64>,
}

/// An episode's streams with its sequences concatenated.
pub(super) struct Joined {
    pub(super) loss_mask: Vec<bool>,
    /// With the KL penalty, if there is one.
    pub(super) rewards: Vec<f64>,
    pub(super) old_log_probs: Vec<f64>,
    /// Log-probs under the distribution that its tokens were sampled from.
    behaviour_log_probs: Vec<f64>,
    pub(super) ref_log_probs: Option<Vec<f64>>,
    pub(super) values: Option<Vec<f64>>,
}

impl Joined {
    fn of(scored: &Scored, rewards: &Rewards) -> Result<Self> {
        let episode = &scored.episode;
        let join = |rows: &[Vec<f32>]| wide(&rows.concat());
        let own = || episode.sequences.iter();
        let loss_mask: Vec<bool> = own().flat_map(|s| s.loss_mask.iter().copied()).collect();
        let behaviour = own().map(behaviour).collect::<Result<Vec<_>>>()?;
        Ok(Self {
            rewards: rewards.tokens(episode, &loss_mask)?,
            loss_mask,
            old_log_probs: join(&scored.streams.old),
            behaviour_log_probs: behaviour.concat(),
            ref_log_probs: scored.streams.reference.as_ref().map(|rows| join(rows)),
            values: scored.values.as_ref().map(|rows| join(rows)),
        })
    }
}

/// Log-probs of a sequence under the distribution that its tokens were sampled from.
pub fn behaviour(sequence: &Sequence) -> Result<Vec<f64>> {
    let masses = sequence.log_kept_mass.as_deref().map(wide);
    let sampled = wide(&sequence.sampled_log_probs);
    Ok(behaviour_log_probs(&sampled, masses.as_deref())?)
}

/// The episodes that the estimator compares, with the rewards that it reads.
pub(super) struct Prepared<'a> {
    /// In the order of `all`.
    pub(super) members: Vec<&'a Scored>,
    /// Their scores before a KL penalty.
    scores: Vec<f64>,
    pub(super) joined: Vec<Joined>,
    turns: Vec<Vec<TurnTokens<'a>>>,
    kl: Option<KlState>,
}

impl<'a> Prepared<'a> {
    /// `all` is sorted by (group, sample).
    pub(super) fn of(plan: &Plan, all: &'a [Scored], given: &Given) -> Result<Self> {
        let members = members(plan, all, given);
        let rewards = Rewards::of(plan)?;
        let scores: Vec<f64> = members.iter().map(|s| rewards.score(&s.episode)).collect();
        let mut joined = members
            .iter()
            .map(|s| Joined::of(s, &rewards))
            .collect::<Result<Vec<Joined>>>()?;
        let kl = match given.kl_coef {
            Some(kl_coef) => Some(take_penalty(plan, &mut joined, kl_coef)?),
            None => None,
        };
        Ok(Self {
            turns: members.iter().map(|s| turns(&s.episode)).collect(),
            members,
            scores,
            joined,
            kl,
        })
    }

    /// As the estimator reads them.
    pub(super) fn episodes(&self, given: &Given) -> Vec<EpisodeTokens<'_>> {
        let all = self.joined.iter().zip(&self.members).zip(&self.turns);
        all.map(|((joined, member), turns)| EpisodeTokens {
            group: u64::from(member.episode.group),
            loss_mask: &joined.loss_mask,
            rewards: &joined.rewards,
            values: joined.values.as_deref(),
            turns,
            baseline: given.baselines.get(&member.episode.group).copied(),
        })
        .collect()
    }
}

/// The turns of an episode, each with what the policy answers in it.
fn turns(episode: &Episode) -> Vec<TurnTokens<'_>> {
    let seen = episode.turns.iter().map(|turn| turn.observation.as_str());
    let states = std::iter::once(episode.prompt.as_str()).chain(seen);
    let turns = states.zip(turn_tokens(episode));
    turns
        .map(|(state, tokens)| TurnTokens { state, tokens })
        .collect()
}

/// The constants of the plan's estimator.
pub(super) fn options(plan: &Plan) -> AdvantageOptions {
    let algorithm = &plan.config.algorithm;
    AdvantageOptions {
        gamma: algorithm.gamma,
        lam: algorithm.lam,
        norm_by_std: algorithm.norm_adv_by_std_in_grpo,
        step_advantage_weight: algorithm.gigpo.step_advantage_w,
    }
}

/// The advantages of an episode's tokens, times the importance weights if there is a correction;
/// also returns the weights of its policy tokens.
pub(super) fn weighed(
    plan: &Plan,
    joined: &Joined,
    advantages: &[f64],
) -> Result<(Vec<f64>, Vec<f64>)> {
    let (mut tokens, mut used) = (advantages.to_vec(), Vec::new());
    if let Some(correction) = plan.config.importance_correction()? {
        let weights = correction.weights(
            &joined.old_log_probs,
            &joined.behaviour_log_probs,
            &joined.loss_mask,
        )?;
        for ((token, weight), _) in tokens
            .iter_mut()
            .zip(weights)
            .zip(&joined.loss_mask)
            .filter(|(_, kept)| **kept)
        {
            *token *= weight;
            used.push(weight);
        }
    }
    Ok((tokens, used))
}

impl Credit {
    /// Credits the iteration's episodes, `all` sorted by (group, sample).
    pub fn assign(plan: &Plan, all: &[Scored], given: &Given) -> Result<Self> {
        Self::of(plan, &Prepared::of(plan, all, given)?, given)
    }

    /// Credits the episodes that are compared.
    pub(super) fn of(plan: &Plan, prepared: &Prepared<'_>, given: &Given) -> Result<Self> {
        let config = &plan.config;
        let Prepared {
            members,
            scores,
            joined,
            kl,
            ..
        } = prepared;
        let ids: Vec<u64> = members.iter().map(|s| u64::from(s.episode.group)).collect();
        let estimator = config.algorithm.adv_estimator;
        let mut found = estimate(estimator, &prepared.episodes(given), &options(plan))?;
        if config.algorithm.scramble_advantages {
            let trained = |index: &usize| !is_masked(plan, &members[*index].episode);
            let trained: Vec<usize> = (0..members.len()).filter(trained).collect();
            let key = scramble_key(config.run.seed, given.iteration);
            scramble(&mut found.advantages, joined, &trained, &key);
        }

        let slots = config.data.train_batch_size * config.actor_rollout_ref.rollout.n as usize;
        let mut batch: Vec<Option<BatchEpisode>> = vec![None; slots];
        let mut targets: Vec<Option<Vec<CriticSequence>>> = vec![None; slots];
        let mut importance_weights = Vec::new();
        for ((member, joined), (advantages, returns)) in members
            .iter()
            .zip(joined)
            .zip(found.advantages.iter().zip(&found.returns))
        {
            // Its reward counts in the group's baseline; it is not trained on.
            if is_masked(plan, &member.episode) {
                continue;
            }
            let slot = slot_of(plan, member, given, &batch)?;
            let (tokens, weights) = weighed(plan, joined, advantages)?;
            importance_weights.extend(weights);
            let advantage = episode_advantage(plan, advantages, &joined.loss_mask);
            batch[slot] = Some(entry(member, advantage, &tokens));
            targets[slot] = member.values.as_ref().map(|values| {
                let mut start = 0;
                let cut = values.iter().map(|row| {
                    let returns = returns[start..start + row.len()].to_vec();
                    start += row.len();
                    CriticSequence {
                        values: row.clone(),
                        returns,
                    }
                });
                cut.collect()
            });
        }
        Ok(Self {
            batch: Batch::V1(batch),
            explained_variance: explained(joined, &found.returns)?,
            targets: config.has_critic().then_some(CriticTargets::V1(targets)),
            groups: collect(scores, &ids)?,
            kl: kl.clone(),
            importance_weights,
        })
    }
}

/// The random key of a control's permutation.
pub fn scramble_key(seed: u64, iteration: u32) -> StreamKey {
    StreamKey {
        seed,
        purpose: Purpose::Scramble,
        iteration,
        draw: 0,
        sample: 0,
    }
}

/// Gives each of the `trained` episodes the advantages of another one, by a permutation: the n-th
/// sampled token gets that of the other's n-th, counted around where the other is shorter.
fn scramble(advantages: &mut [Vec<f64>], joined: &[Joined], trained: &[usize], key: &StreamKey) {
    let sampled = |index: usize| {
        let mask = joined[index].loss_mask.iter().enumerate();
        mask.filter_map(|(at, kept)| kept.then_some(at))
    };
    let of = |index: usize| sampled(index).map(|at| advantages[index][at]).collect();
    let own: Vec<Vec<f64>> = trained.iter().map(|index| of(*index)).collect();
    for (to, from) in trained.iter().zip(permuted(key, trained.len())) {
        let others = own[from as usize].iter().copied().cycle();
        // An episode without sampled tokens teaches nothing.
        let others = others.chain(std::iter::repeat(0.0));
        for (at, advantage) in sampled(*to).zip(others) {
            advantages[*to][at] = advantage;
        }
    }
}

/// The episodes that the estimator compares.
fn members<'a>(plan: &Plan, all: &'a [Scored], given: &Given) -> Vec<&'a Scored> {
    let episodes: Vec<&Episode> = all.iter().map(|s| &s.episode).collect();
    let both = all.iter().zip(compared(plan, &episodes, given));
    both.filter_map(|(s, compared)| compared.then_some(s))
        .collect()
}

/// For each episode, whether the estimator compares it.
pub(super) fn compared(plan: &Plan, all: &[&Episode], given: &Given) -> Vec<bool> {
    let estimator = plan.config.algorithm.adv_estimator;
    let chosen = |e: &Episode| {
        let groups = given.selected.as_ref();
        e.usable() && groups.is_none_or(|all| all.contains(&e.group))
    };
    if estimator.needs_groups() {
        let usable = all.iter().filter(|e| chosen(e));
        let ids: Vec<u64> = usable.map(|e| u64::from(e.group)).collect();
        let mut company = has_company(&ids, 2).into_iter();
        let kept = |e: &&Episode| chosen(e) && company.next().unwrap_or(false);
        return all.iter().map(kept).collect();
    }
    let compared = |e: &&Episode| match estimator.needs_baseline() {
        _ if !chosen(e) => false,
        true => given.baselines.contains_key(&e.group),
        // Whitening covers only what is trained on.
        false => !is_masked(plan, e),
    };
    all.iter().map(compared).collect()
}

pub(super) fn is_masked(plan: &Plan, episode: &Episode) -> bool {
    plan.config.algorithm.overlong == Overlong::Mask
        && matches!(episode.outcome, Outcome::Horizon | Outcome::Length)
}

/// Subtracts the KL penalty from the token rewards; returns the controller's next state.
fn take_penalty(plan: &Plan, joined: &mut [Joined], kl_coef: f64) -> Result<KlState> {
    let estimator = plan.config.algorithm.kl_penalty.value;
    let mut divergences = Vec::new();
    for episode in joined {
        let reference = episode.ref_log_probs.as_deref().ok_or_else(|| {
            Error::Stage(
                "log_probs.bin holds no reference log-probs, which a KL penalty needs".into(),
            )
        })?;
        let (old, mask) = (&episode.old_log_probs, &episode.loss_mask);
        divergences.extend(masked_mean(old, reference, mask, estimator)?);
        let taken = penalty(old, reference, mask, estimator, kl_coef)?;
        for (reward, penalty) in episode.rewards.iter_mut().zip(taken) {
            *reward += penalty;
        }
    }
    let episodes = divergences.len();
    let kl = divergences.iter().sum::<f64>() / episodes.max(1) as f64;
    let controller = plan.config.kl_controller()?;
    let next_kl_coef = match controller.filter(|_| episodes > 0) {
        Some(controller) => controller.next(kl_coef, kl, episodes)?,
        None => kl_coef,
    };
    Ok(KlState {
        kl_coef,
        kl,
        episodes,
        next_kl_coef,
    })
}

/// The slot of an episode, which must be free.
fn slot_of(
    plan: &Plan,
    member: &Scored,
    given: &Given,
    batch: &[Option<BatchEpisode>],
) -> Result<usize> {
    let (episode, n) = (&member.episode, plan.config.actor_rollout_ref.rollout.n);
    let place = match &given.selected {
        None => Some(episode.group as usize),
        Some(groups) => groups.iter().position(|group| *group == episode.group),
    };
    let slot = place.map(|place| place * n as usize + episode.sample as usize);
    slot.filter(|slot| batch.get(*slot).is_some_and(Option::is_none) && episode.sample < n)
        .ok_or_else(|| {
            Error::Stage(format!(
                "group {} sample {} (task {}) is outside the batch or there twice",
                episode.group, episode.sample, episode.task
            ))
        })
}

/// The episode's advantage as shown to users: the common one of all its tokens, or the mean over
/// them.
pub(super) fn episode_advantage(plan: &Plan, advantages: &[f64], loss_mask: &[bool]) -> f64 {
    let own: Vec<f64> = advantages
        .iter()
        .zip(loss_mask)
        .filter_map(|(advantage, kept)| kept.then_some(*advantage))
        .collect();
    match plan.config.algorithm.adv_estimator.is_by_episode() {
        true => own.first().copied().unwrap_or(0.0),
        false => own.iter().sum::<f64>() / own.len().max(1) as f64,
    }
}

fn entry(member: &Scored, advantage: f64, tokens: &[f64]) -> BatchEpisode {
    let Scored {
        episode, streams, ..
    } = member;
    let mut start = 0;
    let sequences = episode
        .sequences
        .iter()
        .enumerate()
        .map(|(index, sequence)| {
            let end = start + sequence.token_ids.len();
            let advantages = tokens[start..end].to_vec();
            start = end;
            BatchSequence {
                sequence: sequence.clone(),
                old_log_probs: streams.old[index].clone(),
                ref_log_probs: streams.reference.as_ref().map(|rows| rows[index].clone()),
                advantages,
            }
        })
        .collect();
    BatchEpisode {
        task: episode.task.clone(),
        group: episode.group,
        sample: episode.sample,
        outcome: episode.outcome,
        success: episode.success,
        reward: episode.reward,
        advantage,
        sequences,
    }
}

/// Explained variance: how well the critic predicted the returns.
fn explained(joined: &[Joined], returns: &[Vec<f64>]) -> Result<Option<f64>> {
    let (mut all_values, mut all_returns) = (Vec::new(), Vec::new());
    for (episode, returns) in joined.iter().zip(returns) {
        let Some(values) = &episode.values else {
            return Ok(None);
        };
        let tokens = values.iter().zip(returns).zip(&episode.loss_mask);
        for ((value, target), _) in tokens.filter(|(_, kept)| **kept) {
            all_values.push(*value);
            all_returns.push(*target);
        }
    }
    Ok(explained_variance(&all_values, &all_returns)?)
}
