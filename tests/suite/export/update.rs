//! An update recomputed only from an exported folder: the losses as the papers define them, the
//! tensor library's gradients, AdamW as in PyTorch's documentation, all in f64.

use super::qwen2::{Qwen2, tensors};
use super::{json_of, lines_of};
use candle_core::{DType, Device, Result, Tensor};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// Numbers of each parameter, by name.
pub(super) type Numbers = BTreeMap<String, Vec<f64>>;

/// The exported description of one model's update, apart from its weights.
pub(super) struct Files {
    pub(super) update: Value,
    /// Lines of `trajectories.jsonl`, or of the examples.
    pub(super) sequences: Vec<Value>,
    /// The keys by which minibatches list the lines: `slots` or `examples`, and the lines' own key.
    names: (&'static str, &'static str),
    optimizer: Optimizer,
    loss: Loss,
}

/// The loss of some sequences under the settings of the update, with its metrics and gradients.
pub(super) type Loss = fn(&Qwen2, &[&Value], &Value) -> Result<(Step, Numbers)>;

/// AdamW's moments and the number of steps so far.
#[derive(Clone)]
pub(super) struct Optimizer {
    step: i32,
    first: Numbers,
    second: Numbers,
}

/// The metrics of one optimizer step that `update.json` contains, by their names there.
pub(super) type Step = BTreeMap<&'static str, f64>;

impl Files {
    /// For the policy, or its adapter.
    pub(super) fn of_policy(folder: &Path) -> Self {
        Self::read(folder, "", policy_loss)
    }

    pub(super) fn of_critic(folder: &Path) -> Self {
        Self::read(folder, "critic_", value_loss)
    }

    /// For supervised steps, which start with a fresh optimizer.
    pub(super) fn of_lessons(folder: &Path, phase: &str, loss: Loss) -> Self {
        Self {
            update: json_of(&folder.join(format!("{phase}_update.json"))),
            sequences: lines_of(&folder.join(format!("{phase}_examples.jsonl"))),
            names: ("examples", "example"),
            optimizer: Optimizer {
                step: 0,
                first: Numbers::new(),
                second: Numbers::new(),
            },
            loss,
        }
    }

    fn read(folder: &Path, model: &str, loss: Loss) -> Self {
        let text = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
        let file = folder.join(format!("{model}optimizer_before/state.safetensors"));
        let (mut first, mut second) = (Numbers::new(), Numbers::new());
        for (name, tensor) in tensors(&file).unwrap() {
            let (kind, name) = name.split_once('.').unwrap();
            let moments = match kind {
                "exp_avg" => &mut first,
                "exp_avg_sq" => &mut second,
                other => panic!("unknown state {other}"),
            };
            moments.insert(name.to_owned(), numbers(&tensor));
        }
        Self {
            update: serde_json::from_str(&text(&format!("{model}update.json"))).unwrap(),
            sequences: lines_of(&folder.join("trajectories.jsonl")),
            names: ("slots", "slot"),
            optimizer: Optimizer {
                step: steps_made(&file),
                first,
                second,
            },
            loss,
        }
    }

    /// Performs the first `steps` optimizer steps of the update on `model`.
    pub(super) fn replay(&self, model: &Qwen2, steps: usize) -> Result<Vec<Step>> {
        let (listed, named) = self.names;
        let mut optimizer = self.optimizer.clone();
        let all = self.update["minibatches"].as_array().unwrap();
        all.iter()
            .take(steps)
            .map(|minibatch| {
                let members: Vec<&Value> = minibatch[listed]
                    .as_array()
                    .unwrap()
                    .iter()
                    .flat_map(|number| self.sequences.iter().filter(move |s| s[named] == *number))
                    .collect();
                // Each supervised step has its own learning rate.
                let mut settings = self.update["settings"].clone();
                if let Some(lr) = minibatch.get("lr") {
                    settings["lr"] = lr.clone();
                }
                let (mut step, gradients) = (self.loss)(model, &members, &settings)?;
                optimizer.step(model, &gradients, &settings, &mut step)?;
                Ok(step)
            })
            .collect()
    }
}

/// The step count is in the header's metadata: 8 bytes of length, then JSON.
fn steps_made(file: &Path) -> i32 {
    let bytes = std::fs::read(file).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let step = header["__metadata__"]["step"].as_str().unwrap();
    step.parse().unwrap()
}

pub(super) fn numbers(tensor: &Tensor) -> Vec<f64> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

/// A per-token list of a trajectory without its first token, which is not predicted.
pub(super) fn stream(sequence: &Value, name: &str) -> Result<Tensor> {
    let all = sequence[name].as_array().unwrap();
    let numbers: Vec<f64> = all[1..].iter().map(|x| x.as_f64().unwrap()).collect();
    let length = numbers.len();
    Tensor::from_vec(numbers, length, &Device::Cpu)
}

pub(super) fn sum(x: &Tensor) -> Result<f64> {
    x.sum_all()?.to_scalar()
}

/// Adds the sum of the elements of `x`.
fn add(step: &mut Step, name: &'static str, x: &Tensor) -> Result<()> {
    *step.entry(name).or_default() += sum(x)?;
    Ok(())
}

pub(super) fn number(value: &Value) -> f64 {
    value.as_f64().unwrap()
}

/// Token weights of every sequence: a mean over tokens, or a mean over sequences of their token
/// means. Observation tokens have weight 0.
fn weights(masks: &[Tensor], loss: &Value) -> Result<Vec<Tensor>> {
    let all = masks.iter().map(sum).sum::<Result<f64>>()?;
    let of = |mask: &Tensor| match loss["aggregation"].as_str().unwrap() {
        "token_mean" => mask / all,
        "seq_mean_token_mean" => mask / (sum(mask)? * masks.len() as f64),
        other => panic!("this test does not know {other}"),
    };
    masks.iter().map(of).collect()
}

/// Adds the gradient of one sequence or pair for a parameter.
pub(super) fn add_gradient(gradients: &mut Numbers, name: &str, own: Option<&Tensor>) {
    let own = numbers(own.expect("every parameter is used"));
    let sums = gradients
        .entry(name.to_owned())
        .or_insert_with(|| vec![0.0; own.len()]);
    sums.iter_mut().zip(own).for_each(|(s, g)| *s += g);
}

/// Sums the contributions of the sequences of a minibatch: the metrics, and the gradients of the
/// loss.
pub(super) fn backward(
    model: &Qwen2,
    members: &[&Value],
    loss: &Value,
    of: impl Fn(&Value, &Tensor, &Tensor, &mut Step) -> Result<Tensor>,
) -> Result<(Step, Numbers)> {
    let masks = members.iter().map(|m| stream(m, "loss_mask"));
    let masks = masks.collect::<Result<Vec<_>>>()?;
    let weights = weights(&masks, loss)?;
    let mut step = Step::default();
    let mut gradients = Numbers::new();
    for ((member, mask), weight) in members.iter().zip(&masks).zip(&weights) {
        let store = of(member, mask, weight, &mut step)?.backward()?;
        for (name, parameter) in &model.parameters {
            add_gradient(&mut gradients, name, store.get(parameter));
        }
    }
    let tokens = masks.iter().map(sum).sum::<Result<f64>>()?;
    for name in ["clip_fraction", "value_mean"] {
        step.entry(name).and_modify(|total| *total /= tokens);
    }
    Ok((step, gradients))
}

/// The clipped surrogate, entropy and KL loss of a minibatch.
fn policy_loss(policy: &Qwen2, members: &[&Value], settings: &Value) -> Result<(Step, Numbers)> {
    let loss = &settings["loss"];
    let (low, high) = (number(&loss["clip"]["low"]), number(&loss["clip"]["high"]));
    assert!(loss["dual_clip"].is_null(), "this test has no dual clip");
    backward(policy, members, loss, |member, mask, weight, step| {
        let streams = policy.streams(&ids(member), number(&settings["temperature"]))?;
        let advantages = stream(member, "advantages")?;
        let ratio = (&streams.log_probs - stream(member, "old_log_probs")?)?.exp()?;
        let free = (&ratio * &advantages)?;
        let clipped = (ratio.clamp(1.0 - low, 1.0 + high)? * &advantages)?;
        let is_clipped = clipped.lt(&free)?.to_dtype(DType::F64)?;
        let policy_loss = (free.minimum(&clipped)?.neg()? * weight)?.sum_all()?;
        let entropy = (&streams.entropies * weight)?.sum_all()?;
        add(step, "policy_loss", &policy_loss)?;
        add(step, "entropy", &entropy)?;
        add(step, "clip_fraction", &(is_clipped * mask)?)?;
        let total = (&policy_loss - (&entropy * number(&loss["entropy_coeff"]))?)?;
        if loss["kl"].is_null() {
            return Ok(total);
        }
        assert_eq!(loss["kl"]["estimator"], "k3");
        let d = (stream(member, "ref_log_probs")? - &streams.log_probs)?;
        // Clamped at 10 nats, as in AgentGym-RL.
        let k3 = ((d.exp()? - &d)? - 1.0)?.clamp(-10.0, 10.0)?;
        let kl = (k3 * weight)?.sum_all()?;
        add(step, "kl_loss", &kl)?;
        total + (&kl * number(&loss["kl"]["coef"]))?
    })
}

/// Half of the larger of the squared error against the returns and the squared error of the value
/// clipped to its range.
fn value_loss(critic: &Qwen2, members: &[&Value], settings: &Value) -> Result<(Step, Numbers)> {
    let loss = &settings["loss"];
    let range = number(&loss["clip"]);
    backward(critic, members, loss, |member, mask, weight, step| {
        let values = critic.values(&ids(member))?;
        let (old, returns) = (stream(member, "values")?, stream(member, "returns")?);
        let free = (&values - &returns)?.sqr()?;
        let moved = (&values - &old)?.clamp(-range, range)?;
        let clipped = ((old + moved)? - &returns)?.sqr()?;
        // Within the range both are equal except for rounding.
        let is_clipped = clipped.gt(&(&free * (1.0 + 1e-12))?)?;
        let total = ((free.maximum(&clipped)? * 0.5)? * weight)?.sum_all()?;
        add(step, "loss", &total)?;
        add(
            step,
            "clip_fraction",
            &(is_clipped.to_dtype(DType::F64)? * mask)?,
        )?;
        add(step, "value_mean", &(values * mask)?)?;
        Ok(total)
    })
}

pub(super) fn ids(sequence: &Value) -> Vec<u32> {
    serde_json::from_value(sequence["token_ids"].clone()).unwrap()
}

impl Optimizer {
    /// `clip_grad_norm_`, then `AdamW.step`.
    fn step(
        &mut self,
        model: &Qwen2,
        gradients: &Numbers,
        settings: &Value,
        report: &mut Step,
    ) -> Result<()> {
        let setting = |key: &str| number(&settings[key]);
        let (lr, eps, decay) = (setting("lr"), setting("eps"), setting("weight_decay"));
        let beta = |index: usize| number(&settings["betas"][index]);
        let (beta1, beta2) = (beta(0), beta(1));
        let squares: f64 = gradients.values().flatten().map(|g| g * g).sum();
        let norm = squares.sqrt();
        let scale = (setting("grad_clip") / (norm + 1e-6)).min(1.0);
        report.extend([("grad_norm", norm), ("clip_scale", scale)]);
        self.step += 1;
        for (name, parameter) in &model.parameters {
            let mut weights = numbers(parameter);
            let zeros = || vec![0.0; weights.len()];
            let first = self.first.entry(name.clone()).or_insert_with(zeros);
            let second = self.second.entry(name.clone()).or_insert_with(zeros);
            for (i, weight) in weights.iter_mut().enumerate() {
                let g = gradients[name][i] * scale;
                first[i] = beta1 * first[i] + (1.0 - beta1) * g;
                second[i] = beta2 * second[i] + (1.0 - beta2) * g * g;
                let mean = first[i] / (1.0 - beta1.powi(self.step));
                let square = second[i] / (1.0 - beta2.powi(self.step));
                *weight -= lr * decay * *weight;
                *weight -= lr * mean / (square.sqrt() + eps);
            }
            parameter.set(&Tensor::from_vec(weights, parameter.shape(), &Device::Cpu)?)?;
        }
        Ok(())
    }
}
