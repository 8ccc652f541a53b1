//! Places the reward of an episode, or of each turn, on one of its tokens.

use crate::error::{Error, all_finite, same_length};
use std::ops::Range;

/// Token rewards `[tokens]` with `score` on the last token of the loss mask; all
/// zeros for an empty mask.
pub fn place_score(score: f64, loss_mask: &[bool]) -> Vec<f64> {
    let mut rewards = vec![0.0; loss_mask.len()];
    if let Some(last) = loss_mask.iter().rposition(|&kept| kept) {
        rewards[last] = score;
    }
    rewards
}

/// Token rewards `[tokens]` with the reward of each turn on the last token of the
/// loss mask within the turn's range. Where a range holds no such token, the reward
/// goes to the last one before it, or else to the first one after it, so that the
/// sum of the rewards is kept; an empty mask gives zeros. Turns are in time order.
///
/// # Errors
/// A range that reaches beyond the mask, or a reward that is not finite.
pub fn place_turn_rewards(
    turns: &[(Range<usize>, f64)],
    loss_mask: &[bool],
) -> Result<Vec<f64>, Error> {
    let mut rewards = vec![0.0; loss_mask.len()];
    for (range, reward) in turns {
        all_finite("turn reward", &[*reward])?;
        if range.end > loss_mask.len() {
            same_length("loss_mask", loss_mask.len(), range.end)?;
        }
        let own = loss_mask[..range.end].iter().rposition(|&kept| kept);
        let place = own.or_else(|| loss_mask.iter().position(|&kept| kept));
        if let Some(place) = place {
            rewards[place] += reward;
        }
    }
    Ok(rewards)
}
