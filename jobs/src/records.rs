//! Records passed between the training stages: recomputed log-probs, and the batch that holds
//! everything an update needs, so that the update can be recomputed from one artifact.

use crate::codec::Payload;
use crate::episode::{Outcome, Sequence, Task};
use agentgym_algorithms::losses::ActorSums;
use serde::{Deserialize, Serialize};

/// `log_probs.bin`: one entry per episode of the rollout part, in the same order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum LogProbs {
    /// The first wire form.
    V1(Vec<EpisodeLogProbs>),
}

impl Payload for LogProbs {
    const KIND: [u8; 4] = *b"LOGP";
}

/// Teacher-forced streams of one episode: one vector per sequence, one value per token (0 where the
/// loss mask is false), in nats.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EpisodeLogProbs {
    /// Log-probs under the policy at the start of the update.
    pub old: Vec<Vec<f32>>,
    /// Entropy of the same policy's next-token distribution.
    pub entropies: Vec<Vec<f32>>,
    /// Log-probs under the reference policy, if a KL term needs them.
    pub reference: Option<Vec<Vec<f32>>>,
}

/// `values.bin`: the critic's values, one entry per episode of the rollout part, in the same order;
/// one vector per sequence, one number per token (0 where the loss mask is false): the expected
/// return of the state in which the token is sampled.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Values {
    /// The first wire form.
    V1(Vec<Vec<Vec<f32>>>),
}

impl Payload for Values {
    const KIND: [u8; 4] = *b"VALS";
}

/// `targets.bin`: the critic's training targets, by slot of the batch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum CriticTargets {
    /// The first wire form.
    V1(Vec<Option<Vec<CriticSequence>>>),
}

impl Payload for CriticTargets {
    const KIND: [u8; 4] = *b"TRGT";
}

/// The critic's data of one training sequence; one entry per token, 0 where the loss mask is false.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CriticSequence {
    /// Values of the critic at the start of the update.
    pub values: Vec<f32>,
    /// Advantage before whitening, plus value.
    pub returns: Vec<f64>,
}

/// `batch.bin`: the iteration's training batch by slot (draw × n + sample).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Batch {
    /// The first wire form.
    V1(Vec<Option<BatchEpisode>>),
}

impl Payload for Batch {
    const KIND: [u8; 4] = *b"BTCH";
}

/// An episode as the update reads it. An empty slot (excluded episode) contributes nothing and
/// moves no other slot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BatchEpisode {
    /// The task played.
    pub task: Task,
    /// Draw index.
    pub group: u32,
    /// Index in the group.
    pub sample: u32,
    /// Why it ended.
    pub outcome: Outcome,
    /// Pass or fail.
    pub success: bool,
    /// The environment's last reward.
    pub reward: f64,
    /// The episode's advantage under a per-episode estimator.
    pub advantage: f64,
    /// Tokens and streams.
    pub sequences: Vec<BatchSequence>,
}

/// One packed training sequence; every vector has one entry per token.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BatchSequence {
    /// Ids, mask and sampled log-probs, as rolled out.
    pub sequence: Sequence,
    /// Old log-probs.
    pub old_log_probs: Vec<f32>,
    /// Reference log-probs, if a KL term needs them.
    pub ref_log_probs: Option<Vec<f32>>,
    /// Advantage of each token; 0 where the mask is false.
    pub advantages: Vec<f64>,
}

/// `gradient.bin`: the losses of a gradient shard, stored with its gradients.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum GradientShard {
    /// The first wire form.
    V1 {
        /// The loss of each of the shard's gradient units, in order.
        units: Vec<ActorSums>,
    },
}

impl Payload for GradientShard {
    const KIND: [u8; 4] = *b"GRAD";
}
