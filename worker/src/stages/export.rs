//! What `agentgym-submit export` adds to the artifacts of an iteration, so that everything can be
//! recomputed elsewhere: how the estimator used each episode, and which examples each supervised
//! step trained on. Both are computed from the plan and the artifacts, by the same functions that
//! the stages use.

use super::advantage::Given;
use super::sft::mixture::Mixture;
use super::training::{ADAM_EPS, wide};
use super::{advantage, dpo, sft};
use crate::Result;
use crate::demonstrations::Encoded;
use crate::rewards::Rewards;
use agentgym_jobs::episode::Episode;
use agentgym_jobs::plan::Plan;
use agentgym_model::Policy;
use agentgym_storage::Inputs;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// How an episode takes part in its iteration's advantages.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Standing {
    /// Whether the estimator uses it, for baselines, groups and whitening.
    pub compared: bool,
    /// Whether it is compared but not trained on (`algorithm.overlong: mask`).
    pub masked: bool,
    /// Its score, as group estimators compare it.
    pub score: f64,
    /// The reward of each turn, if turns are rewarded separately (`algorithm.turn_rewards`), placed
    /// on the turn's last token. Otherwise the score is placed on the last token of the episode's
    /// loss mask.
    pub turn_rewards: Option<Vec<f64>>,
    /// The reward of the greedy episode of its task, if the estimator uses it as baseline.
    pub baseline: Option<f64>,
}

/// The standing of each episode of an iteration; `episodes` are sorted by (group, sample). `greedy`
/// are the baseline episodes, `selected` the chosen groups in slot order.
///
/// # Errors
/// An environment without a spec.
pub fn standings(
    plan: &Plan,
    episodes: &[&Episode],
    greedy: &[Episode],
    selected: Option<Vec<u32>>,
) -> Result<Vec<Standing>> {
    let rewards = Rewards::of(plan)?;
    let usable = greedy.iter().filter(|e| e.usable());
    let given = Given {
        baselines: usable.map(|e| (e.group, rewards.score(e))).collect(),
        selected,
        ..Given::default()
    };
    let compared = advantage::compared(plan, episodes, &given);
    let all = episodes.iter().zip(compared);
    Ok(all
        .map(|(episode, compared)| Standing {
            compared,
            masked: compared && advantage::is_masked(plan, episode),
            score: rewards.score(episode),
            turn_rewards: rewards.turns(episode),
            baseline: given.baselines.get(&episode.group).copied(),
        })
        .collect())
}

/// Importance weights by which the sampler correction multiplies the advantages, by sequence and
/// token; `None` if the correction is off. `old` are the log-probs of the policy at the start of
/// the update.
///
/// # Errors
/// Streams of different lengths.
pub fn importance_weights(
    plan: &Plan,
    episode: &Episode,
    old: &[Vec<f32>],
) -> Result<Option<Vec<Vec<f64>>>> {
    let Some(correction) = plan.config.importance_correction()? else {
        return Ok(None);
    };
    let (mut behaviour, mut mask) = (Vec::new(), Vec::new());
    for sequence in &episode.sequences {
        behaviour.extend(advantage::behaviour(sequence)?);
        mask.extend_from_slice(&sequence.loss_mask);
    }
    let mut weights = correction
        .weights(&wide(&old.concat()), &behaviour, &mask)?
        .into_iter();
    let own = |s: &Vec<f32>| weights.by_ref().take(s.len()).collect();
    Ok(Some(old.iter().map(own).collect()))
}

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
