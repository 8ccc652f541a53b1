//! A request for a generation, and its result.

use crate::Sampling;
use crate::sampler::Drawn;

/// One message that the policy is to generate.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerationRequest {
    /// Which sequence it continues; a new number starts one.
    pub sequence: u64,
    /// Ids that come before the message: the prompt, or the last observation.
    pub append: Vec<u32>,
    /// Random key of the episode.
    pub stream: [u8; 32],
    /// Number of the turn in the episode; with the token's index it selects the
    /// random number.
    pub turn: u32,
    /// How ids are chosen.
    pub sampling: Sampling,
    /// Longest message.
    pub tokens_max: usize,
    /// Ids that end the message.
    pub stop_ids: Vec<u32>,
}

/// Why a message ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// One of the stop ids was sampled.
    Eos,
    /// `tokens_max` ids were sampled, or the model's last position is reached.
    Length,
}

/// A finished message.
#[derive(Debug, Clone, PartialEq)]
pub struct Generation {
    /// The sequence it belongs to.
    pub sequence: u64,
    /// The sampled ids, a sampled stop id included.
    pub token_ids: Vec<u32>,
    /// Their log-probabilities, as [`crate::score()`] gives them.
    pub log_probs: Vec<f32>,
    /// By token, the entropy of the distribution that it was drawn from, before any cut, nats; as
    /// [`crate::score()`] gives it.
    pub entropies: Vec<f32>,
    /// With a top_k or top_p cut: by token, the log of the probability mass that it kept,
    /// nats. The ids were drawn with the log-probs `log_probs` minus this.
    pub log_kept_masses: Option<Vec<f32>>,
    /// Why it ended.
    pub finish: FinishReason,
}

impl Generation {
    /// The answer to `request` by what was drawn for it.
    pub(crate) fn of(request: &GenerationRequest, drawn: &[Drawn], finish: FinishReason) -> Self {
        let each = |of: fn(&Drawn) -> f32| drawn.iter().map(of).collect();
        Self {
            sequence: request.sequence,
            token_ids: drawn.iter().map(|drawn| drawn.id).collect(),
            log_probs: each(|drawn| drawn.log_prob),
            entropies: each(|drawn| drawn.entropy),
            log_kept_masses: (request.sampling.cuts()).then(|| each(|drawn| drawn.log_kept_mass)),
            finish,
        }
    }
}
