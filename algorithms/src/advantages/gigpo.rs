//! GiGPO: the episode compared with its group, and each turn with the turns of that group that
//! answered the same observation.

use super::episode::{AdvantageOptions, EpisodeTokens, TokenAdvantages};
use super::explain::Reasons;
use super::group::{Against, compared, grpo, scores};
use crate::error::{Error, finite_where, same_length};
use crate::groups;
use std::collections::BTreeMap;

pub(super) fn estimate(
    episodes: &[EpisodeTokens<'_>],
    options: &AdvantageOptions,
) -> Result<TokenAdvantages, Error> {
    let ids: Vec<u64> = episodes.iter().map(|episode| episode.group).collect();
    let whole = grpo(&scores(episodes)?, &ids, options.norm_by_std)?;
    let turns = turns(episodes, options)?;
    let rows = episodes.iter().zip(whole).zip(&turns);
    let advantages: Vec<_> = rows
        .map(|((episode, whole), turns)| {
            on_tokens(episode, |turn| {
                let own = turn.map_or(0.0, |turn| turns[turn].advantage);
                whole + options.step_advantage_weight * own
            })
        })
        .collect();
    Ok(TokenAdvantages {
        returns: advantages.clone(),
        advantages,
    })
}

pub(super) fn explain(
    episodes: &[EpisodeTokens<'_>],
    options: &AdvantageOptions,
    index: usize,
) -> Result<Reasons, Error> {
    let (score, group, mut reasons) = compared("GiGPO", episodes, index)?;
    let against = Against::grpo(&group, options.norm_by_std)?;
    let whole = against.explain(score, &mut reasons);
    let weight = options.step_advantage_weight;
    reasons.number([("step_advantage_w", weight)]);
    let turns = turns(episodes, options)?.swap_remove(index);
    for (number, turn) in turns.iter().enumerate() {
        let (own, count) = (turn.advantage, turn.answers);
        let start = format!("turn {}: return {}", number + 1, turn.value);
        reasons.say(match &turn.against {
            None => format!("{start}, no other turn of the group answered the same: {whole}"),
            Some(against) => format!(
                "{start}, mean {} of the {count} that answered the same{}: {whole} + {weight} · {own} = {}",
                against.mean,
                match against.std {
                    Some(std) => format!(", standard deviation {std}"),
                    None => String::new(),
                },
                whole + weight * own
            ),
        });
    }
    let stream = |value: fn(&Turn) -> f64| {
        on_tokens(&episodes[index], |turn| {
            turn.map_or(0.0, |turn| value(&turns[turn]))
        })
    };
    reasons.stream("R of the turn", stream(|turn| turn.value));
    reasons.stream("A of the turn", stream(|turn| turn.advantage));
    Ok(reasons)
}

/// What a turn is compared with.
struct Turn {
    /// Its discounted return.
    value: f64,
    /// Turns of the group that answered the same, itself among them.
    answers: usize,
    /// None if it is alone.
    against: Option<Against>,
    advantage: f64,
}

/// Every turn of every episode.
///
/// R_k = Σ_{j ≥ k} γ^(j−k)·r_j over the turns j of the episode, r_j the rewards on its tokens; the
/// turns of a group with the same state s form G(s), and A_k = (R_k − mean of G(s)) / F, where F is
/// the unbiased standard deviation of G(s) + 1e-6, or 1 without `norm_by_std`. A turn that is alone
/// in G(s) has A_k = 0: nothing is known of other answers. All in units of the reward (with F = 1).
///
/// Source: GiGPO, arXiv:2505.10978 §4; `estimate` adds ω·A_k to the episode's advantage.
fn turns(
    episodes: &[EpisodeTokens<'_>],
    options: &AdvantageOptions,
) -> Result<Vec<Vec<Turn>>, Error> {
    let (mut returns, mut ids, mut states) = (Vec::new(), Vec::new(), BTreeMap::new());
    for episode in episodes {
        returns.extend(returns_of(episode, options.gamma)?);
        for turn in episode.turns {
            let next = states.len() as u64;
            ids.push(*states.entry((episode.group, turn.state)).or_insert(next));
        }
    }
    let mut all: Vec<Turn> = (returns.iter())
        .map(|&value| Turn {
            value,
            answers: 1,
            against: None,
            advantage: 0.0,
        })
        .collect();
    for group in groups::collect(&returns, &ids)? {
        let answers = group.members.len();
        if answers > 1 {
            let against = Against::grpo(&group, options.norm_by_std)?;
            for member in group.members {
                let value = returns[member];
                let advantage = against.advantage(value);
                all[member] = Turn {
                    value,
                    answers,
                    against: Some(against),
                    advantage,
                };
            }
        }
    }
    let mut all = all.into_iter();
    let rows = episodes
        .iter()
        .map(|episode| all.by_ref().take(episode.turns.len()).collect());
    Ok(rows.collect())
}

/// The return of each turn of an episode.
fn returns_of(episode: &EpisodeTokens<'_>, gamma: f64) -> Result<Vec<f64>, Error> {
    same_length("loss_mask", episode.loss_mask.len(), episode.rewards.len())?;
    finite_where("reward", episode.rewards, episode.loss_mask)?;
    let mut returns = vec![0.0; episode.turns.len()];
    for (at, reward) in episode.rewards.iter().enumerate() {
        if let Some(turn) = turn_of(episode, at).filter(|_| episode.loss_mask[at]) {
            returns[turn] += reward;
        }
    }
    let mut later = 0.0;
    for own in returns.iter_mut().rev() {
        *own += gamma * later;
        later = *own;
    }
    Ok(returns)
}

/// The turn of a token. One that was sampled between turns, of a summary, belongs to the next turn.
fn turn_of(episode: &EpisodeTokens<'_>, at: usize) -> Option<usize> {
    let turn = episode.turns.partition_point(|turn| turn.tokens.end <= at);
    let last = episode.turns.len().checked_sub(1)?;
    Some(turn.min(last))
}

/// A value for each sampled token by its turn, 0 elsewhere.
fn on_tokens(episode: &EpisodeTokens<'_>, value: impl Fn(Option<usize>) -> f64) -> Vec<f64> {
    let tokens = episode.loss_mask.iter().enumerate();
    tokens
        .map(|(at, &kept)| {
            if kept {
                value(turn_of(episode, at))
            } else {
                0.0
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::episode::TurnTokens;
    use super::super::{AdvantageEstimator, estimate, explain};
    use super::*;
    use crate::testing::{assert_close, matrix, numbers, rows};
    use serde_json::Value;

    const GOLDEN: &str = include_str!("gigpo.json");

    /// The tokens of one golden episode: before each turn an observation, the reward of the turn on its
    /// last token.
    struct Tokens<'a> {
        mask: Vec<bool>,
        rewards: Vec<f64>,
        turns: Vec<TurnTokens<'a>>,
    }

    fn tokens(episode: &Value) -> Tokens<'_> {
        let (mut mask, mut token_rewards, mut turns) = (Vec::new(), Vec::new(), Vec::new());
        let states = rows(&episode["states"]).map(|state| state.as_str().unwrap());
        let rewards = numbers(&episode["rewards"]);
        for ((state, lengths), reward) in states.zip(matrix(&episode["lengths"])).zip(rewards) {
            let (seen, said) = (lengths[0] as usize, lengths[1] as usize);
            mask.extend(vec![false; seen]);
            let start = mask.len();
            mask.extend(vec![true; said]);
            token_rewards.resize(mask.len() - 1, 0.0);
            token_rewards.push(reward);
            turns.push(TurnTokens {
                state,
                tokens: start..mask.len(),
            });
        }
        Tokens {
            mask,
            rewards: token_rewards,
            turns,
        }
    }

    #[test]
    fn golden_gigpo() {
        let golden: Value = serde_json::from_str(GOLDEN).unwrap();
        for case in rows(&golden["cases"]) {
            let options = AdvantageOptions {
                gamma: case["gamma"].as_f64().unwrap(),
                norm_by_std: case["norm_by_std"].as_bool().unwrap(),
                step_advantage_weight: case["weight"].as_f64().unwrap(),
                ..AdvantageOptions::default()
            };
            let all: Vec<Tokens<'_>> = rows(&case["episodes"]).map(tokens).collect();
            let groups = rows(&case["episodes"]).map(|e| e["group"].as_u64().unwrap());
            let episodes: Vec<EpisodeTokens<'_>> = groups
                .zip(&all)
                .map(|(group, own)| EpisodeTokens {
                    group,
                    loss_mask: &own.mask,
                    rewards: &own.rewards,
                    values: None,
                    turns: &own.turns,
                    baseline: None,
                })
                .collect();
            let found = estimate(AdvantageEstimator::Gigpo, &episodes, &options).unwrap();
            for (index, golden) in rows(&case["episodes"]).enumerate() {
                let (row, wanted) = (&found.advantages[index], numbers(&golden["advantages"]));
                for (at, value) in row.iter().enumerate() {
                    match turn_of(&episodes[index], at).filter(|_| all[index].mask[at]) {
                        Some(turn) => assert_close(*value, wanted[turn], "advantage"),
                        None => assert_eq!(*value, 0.0),
                    }
                }
                let told = explain(AdvantageEstimator::Gigpo, &episodes, &options, index).unwrap();
                assert_eq!(&told.advantages, row);
                assert_eq!(told.reasons.formula.len(), 2 + wanted.len());
            }
        }
    }

    /// A summary is sampled between two turns: it belongs to the one that follows, and what is sampled
    /// after the last turn to that one. An episode without a turn has its own advantage alone.
    #[test]
    fn every_sampled_token_has_a_turn() {
        let turn = |tokens| TurnTokens {
            state: "here",
            tokens,
        };
        let turns = [turn(1..2), turn(3..4)];
        let mut episode = EpisodeTokens {
            group: 0,
            loss_mask: &[true; 5],
            rewards: &[1.0, 2.0, 4.0, 8.0, 16.0],
            values: None,
            turns: &turns,
            baseline: None,
        };
        assert_eq!(
            [0, 1, 2, 3, 4].map(|at| turn_of(&episode, at)),
            [0, 0, 1, 1, 1].map(Some)
        );
        assert_eq!(returns_of(&episode, 0.5).unwrap(), [3.0 + 0.5 * 28.0, 28.0]);
        episode.turns = &[];
        let other = EpisodeTokens {
            rewards: &[0.0; 5],
            ..episode
        };
        let options = AdvantageOptions {
            norm_by_std: false,
            ..AdvantageOptions::default()
        };
        let found = estimate(AdvantageEstimator::Gigpo, &[episode, other], &options).unwrap();
        assert_eq!(found.advantages, [vec![15.5; 5], vec![-15.5; 5]]);
    }
}
