//! What `agentgym-submit export` adds to the artifacts of a supervised phase, so that its steps can be
//! made again elsewhere: the examples of each step, by the functions that the stages use.

use super::sft::mixture::Mixture;
use super::training::ADAM_EPS;
use super::{dpo, sft};
use crate::Result;
use crate::demonstrations::Encoded;
use agentgym_jobs::plan::Plan;
use agentgym_model::Policy;
use agentgym_storage::Inputs;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The training examples of the steps of a supervised phase.
#[derive(Debug, Serialize)]
pub struct Lessons {
    /// The settings of all steps.
    pub settings: Value,
    /// By number: tokens and mask, or those of both answers of a pair.
    #[serde(skip)]
    pub examples: Vec<Value>,
    /// In step order.
    pub minibatches: Vec<Lesson>,
}

/// One optimizer step.
#[derive(Debug, Serialize)]
pub struct Lesson {
    /// 1-based.
    pub step: u32,
    /// Learning rate.
    pub lr: f64,
    /// Numbers of the examples, in order.
    pub examples: Vec<usize>,
}

fn tokens(encoded: &Encoded) -> Value {
    let mask: Vec<u8> = encoded.loss_mask.iter().map(|m| u8::from(*m)).collect();
    json!({"token_ids": encoded.token_ids, "loss_mask": mask})
}

/// The supervised steps of an iteration. `inputs` hold the commits `init` and, in an AgentEvol
/// iteration, `kept`; `policy` provides the tokenizer and the template.
///
/// # Errors
/// The errors of the stage: demonstrations that cannot be read.
pub async fn sft_lessons(
    plan: &Plan,
    iteration: u32,
    inputs: &Inputs,
    policy: &Policy,
) -> Result<Lessons> {
    let config = &plan.config.sft;
    let mut mixture = Mixture::open(inputs, plan, iteration).await?;
    let steps = mixture.steps().unwrap_or(plan.sft_steps_of(iteration));
    let rate = sft::schedule(plan, steps);
    rate.validate()?;
    let mut numbers: BTreeMap<(Vec<u32>, Vec<bool>), usize> = BTreeMap::new();
    let (mut examples, mut minibatches) = (Vec::new(), Vec::new());
    for step in 0..steps {
        let mut own = Vec::new();
        for example in mixture.batch(policy, config.max_length)? {
            let shown = tokens(&example);
            let number = numbers.entry((example.token_ids, example.loss_mask));
            own.push(*number.or_insert_with(|| {
                examples.push(shown);
                examples.len() - 1
            }));
        }
        minibatches.push(Lesson {
            step: step + 1,
            lr: rate.at(step + 1),
            examples: own,
        });
    }
    Ok(Lessons {
        settings: json!({
            "temperature": 1.0,
            "betas": config.betas,
            "eps": ADAM_EPS,
            "weight_decay": config.weight_decay,
            "grad_clip": config.grad_clip,
            "decay_excludes_norms_and_biases": false,
            "loss": {"name": "cross_entropy", "aggregation": "token_mean"},
        }),
        examples,
        minibatches,
    })
}

/// The steps of a preference run, whose pairs are in the input `init`.
///
/// # Errors
/// The errors of the stage: pairs that cannot be read.
pub async fn dpo_lessons(plan: &Plan, inputs: &Inputs, policy: &Policy) -> Result<Lessons> {
    let config = &plan.config.dpo;
    let pairs = dpo::pairs(inputs).await?;
    let (loss, rate) = (config.loss()?, config.learning_rate()?);
    let mut examples = Vec::new();
    for pair in &pairs {
        let [chosen, rejected] = dpo::encoded(plan, pair, policy)?;
        examples.push(json!({
            "item_id": pair.item_id,
            "chosen": tokens(&chosen),
            "rejected": tokens(&rejected),
            "chosen_reward": pair.chosen_reward,
            "rejected_reward": pair.rejected_reward,
        }));
    }
    let minibatches = (0..config.steps).map(|step| Lesson {
        step: step + 1,
        lr: rate.at(step + 1),
        examples: dpo::picks(plan, pairs.len(), step),
    });
    Ok(Lessons {
        settings: json!({
            "temperature": dpo::TEMPERATURE,
            "betas": config.betas,
            "eps": ADAM_EPS,
            "weight_decay": config.weight_decay,
            "grad_clip": config.grad_clip,
            "decay_excludes_norms_and_biases": false,
            "loss": loss,
        }),
        examples,
        minibatches: minibatches.collect(),
    })
}
