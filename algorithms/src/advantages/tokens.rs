//! Operations on token rows that several estimators share.

use crate::error::{Error, finite_where, same_length};
use serde::Serialize;

/// Added to the variance by [`whiten`].
const WHITEN_EPSILON: f64 = 1e-8;

/// The advantage of an episode on each of its policy tokens, 0 elsewhere.
pub fn broadcast(advantage: f64, loss_mask: &[bool]) -> Vec<f64> {
    loss_mask
        .iter()
        .map(|&kept| if kept { advantage } else { 0.0 })
        .collect()
}

/// Returns of one episode, `R_t = r_t + γ·R_t'` over policy tokens (`t'` the
/// next one), 0 outside the loss mask. Slices `[tokens]`.
pub fn discounted_returns(
    rewards: &[f64],
    loss_mask: &[bool],
    gamma: f64,
) -> Result<Vec<f64>, Error> {
    same_length("loss_mask", loss_mask.len(), rewards.len())?;
    finite_where("reward", rewards, loss_mask)?;
    let mut returns = vec![0.0; rewards.len()];
    let mut running = 0.0;
    for t in (0..rewards.len()).rev().filter(|&t| loss_mask[t]) {
        running = rewards[t] + gamma * running;
        returns[t] = running;
    }
    Ok(returns)
}

/// How [`whiten`] shifts and scales: `(x − mean) · scale`, scale `1 / √(var + 1e-8)`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Whitening {
    /// Policy tokens of all rows.
    pub tokens: usize,
    /// Their mean.
    pub mean: f64,
    /// Their unbiased variance; 0 for a single token.
    pub variance: f64,
    /// What is added to the variance.
    pub epsilon: f64,
    /// `1 / √(variance + epsilon)`.
    pub scale: f64,
}

impl Whitening {
    /// Measures the tokens of all rows that their masks keep.
    pub fn of(rows: &[Vec<f64>], loss_masks: &[&[bool]]) -> Result<Self, Error> {
        same_length("loss_masks", loss_masks.len(), rows.len())?;
        for (row, mask) in rows.iter().zip(loss_masks) {
            same_length("loss_mask", mask.len(), row.len())?;
            finite_where("advantage", row, mask)?;
        }
        let tokens = || {
            let pairs = rows
                .iter()
                .zip(loss_masks)
                .flat_map(|(row, mask)| row.iter().zip(*mask));
            pairs.filter(|&(_, &kept)| kept).map(|(&value, _)| value)
        };
        let policy_tokens = tokens().count();
        let count = policy_tokens as f64;
        let mean = if count > 0.0 {
            tokens().sum::<f64>() / count
        } else {
            0.0
        };
        let squares = tokens().map(|value| (value - mean).powi(2)).sum::<f64>();
        let variance = if count > 1.0 {
            squares / (count - 1.0)
        } else {
            0.0
        };
        Ok(Self {
            tokens: policy_tokens,
            mean,
            variance,
            epsilon: WHITEN_EPSILON,
            scale: (variance + WHITEN_EPSILON).sqrt().recip(),
        })
    }

    /// Whitens one row; tokens outside its mask become 0.
    pub fn apply(&self, row: &mut [f64], loss_mask: &[bool]) {
        for (value, &kept) in row.iter_mut().zip(loss_mask) {
            *value = if kept {
                (*value - self.mean) * self.scale
            } else {
                0.0
            };
        }
    }
}

/// Shifts and scales the policy tokens of all rows to mean 0 and variance 1:
/// `(x − mean) / √(var + 1e-8)`, var unbiased; tokens outside the masks become 0.
/// One token has no variance and becomes 0.
pub fn whiten(rows: &mut [Vec<f64>], loss_masks: &[&[bool]]) -> Result<(), Error> {
    let whitening = Whitening::of(rows, loss_masks)?;
    for (row, mask) in rows.iter_mut().zip(loss_masks) {
        whitening.apply(row, mask);
    }
    Ok(())
}
