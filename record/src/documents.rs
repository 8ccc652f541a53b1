//! Documents that a stage writes for the stages after it, and for whoever explains a run.

use crate::numbers::number;
use crate::{Error, Result};
use agentgym_algorithms::losses::{ActorLoss, ActorMetrics, Denominator, ValueLoss, ValueMetrics};
use agentgym_jobs::artifact_names as names;
use agentgym_jobs::codec::{Payload, decode};
use agentgym_jobs::config::Config;
use agentgym_jobs::curriculum::Curriculum;
use agentgym_jobs::trajectory::Lineage;
use agentgym_storage::Inputs;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt::Display;

/// A JSON document with a name of its own.
pub trait Document: Serialize + DeserializeOwned {
    /// Name of the artifact.
    const FILE: &'static str;

    /// Reads the document of `of`, a part or an input, from its bytes.
    ///
    /// # Errors
    /// It is not such a document.
    fn parse(of: &dyn Display, bytes: &[u8]) -> Result<Self> {
        serde_json::from_slice(bytes).map_err(|e| Error::Unreadable {
            file: Self::FILE,
            of: of.to_string(),
            why: e.to_string(),
        })
    }
}

/// Reads the document that an input of a part wrote.
///
/// # Errors
/// The store fails, or it is not such a document.
pub async fn read<T: Document>(inputs: &Inputs, input: &str) -> Result<T> {
    let bytes = inputs.bytes(input, T::FILE).await?;
    T::parse(&format_args!("the input `{input}`"), &bytes)
}

/// Reads a binary payload of an input.
///
/// # Errors
/// The store fails, or it is no such payload.
pub async fn payload<T: Payload>(inputs: &Inputs, input: &str, artifact: &str) -> Result<T> {
    Ok(decode(&inputs.bytes(input, artifact).await?)?)
}

/// The state of the KL penalty's controller, carried from one iteration to the next.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KlState {
    /// Coefficient of this iteration's penalty.
    pub kl_coef: f64,
    /// Mean over episodes of the estimate per token, nats.
    pub kl: f64,
    /// Episodes in that mean.
    pub episodes: usize,
    /// Coefficient of the next iteration.
    pub next_kl_coef: f64,
}

/// The groups of an iteration that are trained on, after a round of a filter.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Selection {
    /// In the order of their slots in the batch.
    pub groups: Vec<u32>,
    /// Groups that the batch still lacks.
    pub missing: usize,
}

/// How a minibatch is cut into gradient units.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitRule {
    /// Most tokens of a unit of several sequences; where prefixes are shared, most nodes of its tree.
    pub unit_tokens: usize,
    /// Whether what sequences have in common is computed once.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub share_prefixes: bool,
}

impl UnitRule {
    pub fn of(config: &Config) -> Self {
        UnitRule {
            unit_tokens: config.jobs.unit_tokens,
            share_prefixes: config.actor_rollout_ref.actor.share_prefixes,
        }
    }
}

/// `update.json`: with the batch enough to make every optimizer step of the policy again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UpdateSteps {
    pub settings: UpdateSettings,
    /// In step order.
    pub minibatches: Vec<UpdateStep>,
}

/// The settings of all optimizer steps of an update.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UpdateSettings {
    pub iteration: u32,
    pub lr: f64,
    pub temperature: f64,
    pub betas: (f64, f64),
    pub eps: f64,
    pub weight_decay: f64,
    pub grad_clip: f64,
    pub loss: ActorLoss,
    pub ppo_epochs: u32,
    #[serde(flatten)]
    pub units: UnitRule,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub decay_excludes_norms_and_biases: bool,
    /// Slots per micro-batch, if the loss averages over micro-batches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub micro_batch_size: Option<usize>,
}

/// One optimizer step of the policy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UpdateStep {
    pub epoch: u32,
    pub minibatch: usize,
    /// Slots of the batch that hold an episode, in order.
    pub slots: Vec<usize>,
    /// Slots per gradient unit, of the sequences that have a gradient.
    pub units: Vec<Vec<usize>>,
    pub denominator: Denominator,
    /// True if no sequence had a gradient, or if the gradient was not finite: weights and moments are
    /// unchanged.
    pub skipped: bool,
    /// True if the gradient was not finite.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub non_finite: bool,
    /// Norm before clipping.
    #[serde(deserialize_with = "number")]
    pub grad_norm: f64,
    #[serde(deserialize_with = "number")]
    pub clip_scale: f64,
    pub metrics: ActorMetrics,
}

/// `critic_update.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CriticSteps {
    pub settings: CriticSettings,
    /// In step order.
    pub minibatches: Vec<CriticStep>,
}

/// The settings of all optimizer steps of a critic.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CriticSettings {
    pub iteration: u32,
    pub lr: f64,
    pub betas: (f64, f64),
    pub eps: f64,
    pub weight_decay: f64,
    pub decay_excludes_norms_and_biases: bool,
    pub grad_clip: f64,
    pub loss: ValueLoss,
    pub ppo_epochs: u32,
    #[serde(flatten)]
    pub units: UnitRule,
    /// Slots per micro-batch, if the loss averages over micro-batches.
    pub micro_batch_size: Option<usize>,
}

/// One optimizer step of the critic.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CriticStep {
    pub epoch: u32,
    pub minibatch: usize,
    /// Slots of the batch that hold an episode, in order.
    pub slots: Vec<usize>,
    pub denominator: Denominator,
    /// True if there was no loss token, or if the gradient was not finite.
    pub skipped: bool,
    pub non_finite: bool,
    /// Norm before clipping.
    #[serde(deserialize_with = "number")]
    pub grad_norm: f64,
    #[serde(deserialize_with = "number")]
    pub clip_scale: f64,
    pub metrics: ValueMetrics,
}

impl Document for KlState {
    const FILE: &'static str = names::KL;
}

impl Document for Curriculum {
    const FILE: &'static str = names::CURRICULUM;
}

impl Document for Selection {
    const FILE: &'static str = names::SELECTION;
}

impl Document for Vec<Lineage> {
    const FILE: &'static str = names::LINEAGE;
}

impl Document for UpdateSteps {
    const FILE: &'static str = names::UPDATE;
}

impl Document for CriticSteps {
    const FILE: &'static str = names::CRITIC_UPDATE;
}

#[cfg(test)]
mod tests {
    use super::*;

    const KL: &str = r#"{"kl_coef":0.1,"kl":0.01,"episodes":8,"next_kl_coef":0.2}"#;

    fn same<T: Document>(text: &str) {
        let read = T::parse(&"1/x/0", text.as_bytes()).unwrap();
        let file = T::FILE;
        assert_eq!(serde_json::to_string(&read).unwrap(), text, "{file}");
    }

    /// What programs of all versions write: names, order, and what is left out.
    #[test]
    fn documents_keep_their_bytes() {
        same::<KlState>(KL);
        same::<Selection>(r#"{"groups":[2,0],"missing":1}"#);
        same::<Vec<Lineage>>(
            r#"[{"iteration":1,"part":0,"episode":2,"group":1,"sample":0,"item_id":"maze_3","reward":1.0,"success":true,"turns":4}]"#,
        );
        same::<Curriculum>(r#"{"entered":2,"recent":[[[3,4]],[]]}"#);
        let settings = r#""betas":[0.9,0.95],"eps":1e-8,"weight_decay":0.0"#;
        for (of, rest) in [
            ("", ""),
            (
                r#","share_prefixes":true"#,
                r#","decay_excludes_norms_and_biases":true,"micro_batch_size":4"#,
            ),
        ] {
            let step = r#"{"epoch":0,"minibatch":0,"slots":[0,1],"units":[[0,1]],"denominator":{"loss_tokens":9,"sequences":2},"skipped":false,"grad_norm":2.0,"clip_scale":0.5,"metrics":{"loss":0.5,"policy_loss":0.25,"entropy":0.5,"kl_loss":0.0,"clip_fraction":0.0,"approx_kl":0.0,"ratio_max":1.0}}"#;
            same::<UpdateSteps>(&format!(
                r#"{{"settings":{{"iteration":1,"lr":0.5,"temperature":1.0,{settings},"grad_clip":1.0,"loss":{{"clip":{{"low":0.2,"high":0.2}},"entropy_coeff":0.0,"kl":null,"aggregation":"token_mean"}},"ppo_epochs":1,"unit_tokens":2048{of}{rest}}},"minibatches":[{step}]}}"#
            ));
        }
        let step = r#"{"epoch":0,"minibatch":0,"slots":[0],"denominator":{"loss_tokens":9,"sequences":2},"skipped":true,"non_finite":true,"grad_norm":null,"clip_scale":0.5,"metrics":{"loss":0.5,"clip_fraction":0.0,"value_mean":0.25}}"#;
        same::<CriticSteps>(&format!(
            r#"{{"settings":{{"iteration":1,"lr":0.5,{settings},"decay_excludes_norms_and_biases":false,"grad_clip":1.0,"loss":{{"clip":0.5,"aggregation":"token_mean"}},"ppo_epochs":1,"unit_tokens":2048,"micro_batch_size":null}},"minibatches":[{step}]}}"#
        ));
    }

    #[test]
    fn a_document_that_cannot_be_read_is_named() {
        let text = KL.replace("next_", "");
        let why = KlState::parse(&"2/advantage/0", text.as_bytes()).unwrap_err();
        let why = why.to_string();
        for word in ["kl.json of 2/advantage/0", "duplicate field `kl_coef`"] {
            assert!(why.contains(word), "{word}: {why}");
        }
    }
}
