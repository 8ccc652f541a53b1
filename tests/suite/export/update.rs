//! An update computed again from an exported folder and nothing else: the
//! losses as the papers write them, the tensor library's gradients, AdamW as
//! PyTorch's documentation states it, all in f64.

use super::qwen2::{Qwen2, tensors};
use candle_core::{DType, Device, Result, Tensor};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// Numbers of each parameter, by name.
pub(super) type Numbers = BTreeMap<String, Vec<f64>>;

/// What the exported files say, apart from the policies.
pub(super) struct Files {
    pub(super) update: Value,
    /// Lines of `trajectories.jsonl`.
    pub(super) sequences: Vec<Value>,
    optimizer: Optimizer,
}

/// AdamW's moments and the number of steps behind them.
#[derive(Clone)]
pub(super) struct Optimizer {
    step: i32,
    first: Numbers,
    second: Numbers,
}

/// What one optimizer step looked like.
#[derive(Debug, Default)]
pub(super) struct Step {
    pub(super) policy_loss: f64,
    pub(super) entropy: f64,
    pub(super) kl_loss: f64,
    pub(super) clip_fraction: f64,
    pub(super) grad_norm: f64,
    pub(super) clip_scale: f64,
}

impl Files {
    pub(super) fn read(folder: &Path) -> Self {
        let text = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
        let file = folder.join("optimizer_before/state.safetensors");
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
            update: serde_json::from_str(&text("update.json")).unwrap(),
            sequences: text("trajectories.jsonl")
                .lines()
                .map(|line| serde_json::from_str(line).unwrap())
                .collect(),
            optimizer: Optimizer {
                step: steps_made(&file),
                first,
                second,
            },
        }
    }

    /// Takes the first `steps` optimizer steps of the update on `policy`.
    pub(super) fn replay(&self, policy: &Qwen2, steps: usize) -> Result<Vec<Step>> {
        let settings = &self.update["settings"];
        let mut optimizer = self.optimizer.clone();
        let all = self.update["minibatches"].as_array().unwrap();
        all.iter()
            .take(steps)
            .map(|minibatch| {
                let members: Vec<&Value> = minibatch["slots"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .flat_map(|slot| self.sequences.iter().filter(move |s| s["slot"] == *slot))
                    .collect();
                let (mut step, gradients) = backward(policy, &members, settings)?;
                optimizer.step(policy, &gradients, settings, &mut step)?;
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

fn numbers(tensor: &Tensor) -> Vec<f64> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

/// A per-token list of a trajectory without its first token, which nothing
/// predicts.
fn stream(sequence: &Value, name: &str) -> Result<Tensor> {
    let all = sequence[name].as_array().unwrap();
    let numbers: Vec<f64> = all[1..].iter().map(|x| x.as_f64().unwrap()).collect();
    let length = numbers.len();
    Tensor::from_vec(numbers, length, &Device::Cpu)
}

fn sum(x: &Tensor) -> Result<f64> {
    x.sum_all()?.to_scalar()
}

/// Metrics and gradients of a minibatch.
fn backward(policy: &Qwen2, members: &[&Value], settings: &Value) -> Result<(Step, Numbers)> {
    let loss = &settings["loss"];
    let number = |value: &Value| value.as_f64().unwrap();
    let (low, high) = (number(&loss["clip"]["low"]), number(&loss["clip"]["high"]));
    let masks = members
        .iter()
        .map(|m| stream(m, "loss_mask"))
        .collect::<Result<Vec<_>>>()?;
    assert!(loss["dual_clip"].is_null(), "this test has no dual clip");
    let loss_tokens = masks.iter().map(sum).sum::<Result<f64>>()?;
    let mut step = Step::default();
    let mut gradients = Numbers::new();
    for (member, mask) in members.iter().zip(masks) {
        let ids: Vec<u32> = serde_json::from_value(member["token_ids"].clone()).unwrap();
        let streams = policy.streams(&ids, number(&settings["temperature"]))?;
        // Weight of each token: a mean over tokens, or over sequences of means.
        let weight = match loss["aggregation"].as_str().unwrap() {
            "token_mean" => (&mask / loss_tokens)?,
            "seq_mean_token_mean" => (&mask / (sum(&mask)? * members.len() as f64))?,
            other => panic!("this test does not know {other}"),
        };
        let advantages = stream(member, "advantages")?;
        let ratio = (&streams.log_probs - stream(member, "old_log_probs")?)?.exp()?;
        let free = (&ratio * &advantages)?;
        let clipped = (ratio.clamp(1.0 - low, 1.0 + high)? * &advantages)?;
        let is_clipped = clipped.lt(&free)?.to_dtype(DType::F64)?;
        let policy_loss = (free.minimum(&clipped)?.neg()? * &weight)?.sum_all()?;
        let entropy = (&streams.entropies * &weight)?.sum_all()?;
        let mut total = (&policy_loss - (&entropy * number(&loss["entropy_coeff"]))?)?;
        if !loss["kl"].is_null() {
            assert_eq!(loss["kl"]["estimator"], "k3");
            let d = (stream(member, "ref_log_probs")? - &streams.log_probs)?;
            // Cut at 10 nats, as AgentGym-RL does.
            let k3 = ((d.exp()? - &d)? - 1.0)?.clamp(-10.0, 10.0)?;
            let kl = (k3 * &weight)?.sum_all()?;
            total = (total + (&kl * number(&loss["kl"]["coef"]))?)?;
            step.kl_loss += kl.to_scalar::<f64>()?;
        }
        step.policy_loss += policy_loss.to_scalar::<f64>()?;
        step.entropy += entropy.to_scalar::<f64>()?;
        step.clip_fraction += sum(&(is_clipped * &mask)?)? / loss_tokens;
        let store = total.backward()?;
        for (name, parameter) in &policy.parameters {
            let gradient = numbers(store.get(parameter).expect("every parameter is used"));
            let sums = gradients
                .entry(name.clone())
                .or_insert_with(|| vec![0.0; gradient.len()]);
            sums.iter_mut().zip(gradient).for_each(|(s, g)| *s += g);
        }
    }
    Ok((step, gradients))
}

impl Optimizer {
    /// `clip_grad_norm_`, then `AdamW.step`.
    fn step(
        &mut self,
        policy: &Qwen2,
        gradients: &Numbers,
        settings: &Value,
        report: &mut Step,
    ) -> Result<()> {
        let number = |key: &str| settings[key].as_f64().unwrap();
        let (lr, eps, decay) = (number("lr"), number("eps"), number("weight_decay"));
        let beta = |index: usize| settings["betas"][index].as_f64().unwrap();
        let (beta1, beta2) = (beta(0), beta(1));
        let squares: f64 = gradients.values().flatten().map(|g| g * g).sum();
        report.grad_norm = squares.sqrt();
        report.clip_scale = (number("grad_clip") / (report.grad_norm + 1e-6)).min(1.0);
        self.step += 1;
        for (name, parameter) in &policy.parameters {
            let first = self.first.get_mut(name).unwrap();
            let second = self.second.get_mut(name).unwrap();
            let mut weights = numbers(parameter);
            for (i, weight) in weights.iter_mut().enumerate() {
                let g = gradients[name][i] * report.clip_scale;
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
