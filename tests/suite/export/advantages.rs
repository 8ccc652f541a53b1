//! Advantages recomputed only from `episodes.jsonl` and `export.json`: rewards, the KL penalty, the
//! estimators as the papers define them, and the importance weights of the rollout correction.

use super::{Exported, json_of, lines_of};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// f64 sums in a different order; weights come from f32 values that are written exactly.
const ERROR_MAX: f64 = 1e-9;

fn numbers(value: &Value) -> Vec<f64> {
    let all = value.as_array().unwrap().iter();
    all.map(|x| x.as_f64().unwrap()).collect()
}

/// An episode that the estimator reads, its sequences concatenated; only tokens that the policy
/// sampled.
struct Member<'a> {
    line: &'a Value,
    /// The place of each token: sequence, position.
    places: Vec<(usize, usize)>,
    rewards: Vec<f64>,
    advantages: Vec<f64>,
    returns: Vec<f64>,
}

impl<'a> Member<'a> {
    fn of(line: &'a Value) -> Self {
        let sequences = line["sequences"].as_array().unwrap();
        let places: Vec<(usize, usize)> = (sequences.iter().enumerate())
            .flat_map(|(at, s)| {
                let mask = numbers(&s["loss_mask"]).into_iter().enumerate();
                mask.filter(|(_, m)| *m == 1.0).map(move |(t, _)| (at, t))
            })
            .collect();
        let mut rewards = vec![0.0; places.len()];
        match line["turn_rewards"].as_array() {
            None => *rewards.last_mut().unwrap() = line["score"].as_f64().unwrap(),
            Some(earned) => {
                for (turn, earned) in line["turns"].as_array().unwrap().iter().zip(earned) {
                    let sequence = turn["sequence"].as_u64().unwrap() as usize;
                    let last = (sequence, turn["policy"][1].as_u64().unwrap() as usize - 1);
                    let at = places.iter().position(|place| *place == last).unwrap();
                    rewards[at] += earned.as_f64().unwrap();
                }
            }
        }
        Self {
            line,
            rewards,
            advantages: Vec::new(),
            returns: Vec::new(),
            places,
        }
    }

    /// A per-token list at the sampled tokens.
    fn stream(&self, name: &str) -> Vec<f64> {
        let rows: Vec<Vec<f64>> = (self.line["sequences"].as_array().unwrap().iter())
            .map(|s| numbers(&s[name]))
            .collect();
        self.places.iter().map(|&(s, t)| rows[s][t]).collect()
    }

    /// The behaviour policy's log-probs: of the distribution that truncation leaves.
    fn behaviour(&self) -> Vec<f64> {
        let sampled = self.stream("sampled_log_probs");
        match self.line["sequences"][0].get("log_kept_mass") {
            None => sampled,
            Some(_) => (sampled.iter().zip(self.stream("log_kept_mass")))
                .map(|(p, kept)| p - kept)
                .collect(),
        }
    }

    /// Discounted sums of rewards.
    fn sums(&self, gamma: f64) -> Vec<f64> {
        let mut running = 0.0;
        let back = self.rewards.iter().rev().map(|reward| {
            running = reward + gamma * running;
            running
        });
        let mut sums: Vec<f64> = back.collect();
        sums.reverse();
        sums
    }

    fn score(&self) -> f64 {
        self.rewards.iter().sum()
    }
}

/// `d = ln π − ln π_ref`, in the form of the named estimator.
fn divergence(name: &str, d: f64) -> f64 {
    match name {
        "kl" | "k1" => d,
        "low_var_kl" | "k3" => ((-d).exp() + d - 1.0).min(10.0),
        other => panic!("this test does not know {other}"),
    }
}

/// Subtracts the penalty from the rewards, and checks the controller's new coefficient.
fn penalise(members: &mut [Member<'_>], export: &Value) {
    let algorithm = &export["algorithm"];
    assert_eq!(
        algorithm["use_kl_in_reward"].as_bool(),
        Some(!export["kl"].is_null())
    );
    let Some(coef) = export["kl"]["kl_coef"].as_f64() else {
        return;
    };
    let name = algorithm["kl_penalty"].as_str().unwrap();
    let mut means = Vec::new();
    for member in members.iter_mut() {
        let both = member.stream("old_log_probs").into_iter();
        let terms: Vec<f64> = both
            .zip(member.stream("ref_log_probs"))
            .map(|(old, reference)| divergence(name, old - reference))
            .collect();
        means.push(terms.iter().sum::<f64>() / terms.len() as f64);
        for (reward, term) in member.rewards.iter_mut().zip(terms) {
            *reward -= coef * term;
        }
    }
    let count = means.len() as f64;
    let kl = means.iter().sum::<f64>() / count;
    let control = &algorithm["kl_ctrl"];
    let next = match control["type"].as_str().unwrap() {
        "fixed" => coef,
        _ => {
            let setting = |key: &str| control[key].as_f64().unwrap();
            let error = (kl / setting("target_kl") - 1.0).clamp(-0.2, 0.2);
            // It has changed since the first iteration.
            assert_ne!(coef, setting("kl_coef"));
            coef * (1.0 + error * count / setting("horizon"))
        }
    };
    near("kl", kl, export["kl"]["kl"].as_f64().unwrap());
    near(
        "next kl_coef",
        next,
        export["kl"]["next_kl_coef"].as_f64().unwrap(),
    );
}

fn near(what: &str, recomputed: f64, recorded: f64) {
    let error = (recomputed - recorded).abs();
    assert!(
        error <= ERROR_MAX * recorded.abs().max(1.0),
        "{what}: exported {recorded}, recomputed {recomputed}"
    );
}

/// The mean and the unbiased standard deviation.
fn moments(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|x| (x - mean).powi(2)).sum();
    (mean, (squares / (count - 1.0)).sqrt())
}

fn whiten(members: &mut [Member<'_>]) {
    let all: Vec<f64> = members.iter().flat_map(|m| m.advantages.clone()).collect();
    let (mean, std) = moments(&all);
    for advantage in members.iter_mut().flat_map(|m| &mut m.advantages) {
        *advantage = (*advantage - mean) / (std * std + 1e-8).sqrt();
    }
}

fn estimate(members: &mut [Member<'_>], algorithm: &Value) {
    let setting = |key: &str| algorithm[key].as_f64().unwrap();
    let mut groups: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    for member in members.iter() {
        let group = member.line["group"].as_u64().unwrap();
        groups.entry(group).or_default().push(member.score());
    }
    let name = algorithm["adv_estimator"].as_str().unwrap();
    for member in members.iter_mut() {
        let own = &groups[&member.line["group"].as_u64().unwrap()];
        let size = own.len() as f64;
        let same = |advantage: f64| vec![advantage; member.places.len()];
        match name {
            "grpo" => {
                let (mean, std) = moments(own);
                assert_eq!(algorithm["norm_adv_by_std_in_grpo"], true);
                member.advantages = same((member.score() - mean) / (std + 1e-6));
            }
            "rloo" => {
                let others = own.iter().sum::<f64>() - member.score();
                member.advantages = same(member.score() - others / (size - 1.0));
            }
            "remax" => {
                let baseline = member.line["baseline"].as_f64().unwrap();
                let sums = member.sums(1.0);
                member.advantages = sums.iter().map(|sum| sum - baseline).collect();
            }
            "reinforce_plus_plus" => member.advantages = member.sums(setting("gamma")),
            "gae" => {
                let values = member.stream("values");
                let (mut value, mut advantage) = (0.0, 0.0);
                for t in (0..values.len()).rev() {
                    let delta = member.rewards[t] + setting("gamma") * value - values[t];
                    advantage = delta + setting("gamma") * setting("lam") * advantage;
                    value = values[t];
                    member.advantages.push(advantage);
                    member.returns.push(advantage + value);
                }
                member.advantages.reverse();
                member.returns.reverse();
            }
            other => panic!("this test does not know {other}"),
        }
    }
    if matches!(name, "reinforce_plus_plus" | "gae") {
        whiten(members);
    }
}

/// Ratio of the policy to the behaviour policy, truncated.
fn weights(member: &Member<'_>, algorithm: &Value) -> Option<Vec<f64>> {
    let correction = &algorithm["rollout_correction"];
    let level = correction["rollout_is"].as_str()?;
    let cut = correction["rollout_is_threshold"].as_f64().unwrap();
    let both = member.stream("old_log_probs").into_iter();
    let logs: Vec<f64> = both
        .zip(member.behaviour())
        .map(|(old, behaviour)| old - behaviour)
        .collect();
    Some(match level {
        "token" => logs.iter().map(|log| log.exp().min(cut)).collect(),
        "sequence" => vec![logs.iter().sum::<f64>().exp().min(cut); logs.len()],
        other => panic!("this test does not know {other}"),
    })
}

/// Properties that the runs of a test must have, so that nothing is equal by chance.
#[derive(Default)]
pub(super) struct Shown {
    pub(super) masked: usize,
    pub(super) left_out: usize,
    pub(super) weighed: bool,
}

/// Checks every advantage and return of the batch; returns what occurred in it.
pub(super) fn assert_recomputed(folder: &Path) -> Shown {
    let export = json_of(&folder.join("export.json"));
    let algorithm = &export["algorithm"];
    let episodes = lines_of(&folder.join("episodes.jsonl"));
    let n = export["rollout"]["n"].as_u64().unwrap();
    let size = export["train_batch_size"].as_u64().unwrap();
    assert_eq!(episodes.len() as u64, n * size);
    let compared = episodes.iter().filter(|line| line["compared"] == true);
    let mut members: Vec<Member<'_>> = compared.map(Member::of).collect();
    penalise(&mut members, &export);
    estimate(&mut members, algorithm);
    let batch = lines_of(&folder.join("trajectories.jsonl"));
    let mut shown = Shown::default();
    let mut seen = 0;
    let (mut least, mut most) = (f64::MAX, f64::MIN);
    for member in &members {
        let slot = &member.line["slot"];
        assert_eq!(slot.is_null(), member.line["masked"] == true);
        if slot.is_null() {
            shown.masked += 1;
            continue;
        }
        let group = member.line["group"].as_u64().unwrap();
        let sample = member.line["sample"].as_u64().unwrap();
        assert_eq!(slot.as_u64(), Some(group * n + sample));
        let weights = weights(member, algorithm);
        let own: Vec<&Value> = batch.iter().filter(|s| s["slot"] == *slot).collect();
        assert_eq!(
            own.len(),
            member.line["sequences"].as_array().unwrap().len()
        );
        seen += own.len();
        for (at, &(sequence, token)) in member.places.iter().enumerate() {
            let recorded = |name: &str| own[sequence][name][token].as_f64().unwrap();
            let mut advantage = member.advantages[at];
            (least, most) = (least.min(advantage), most.max(advantage));
            if let Some(weights) = &weights {
                near("weight", weights[at], recorded("importance_weights"));
                shown.weighed |= (weights[at] - 1.0).abs() > 0.01;
                advantage *= weights[at];
            }
            near("advantage", advantage, recorded("advantages"));
            if let Some(target) = member.returns.get(at) {
                near("return", *target, recorded("returns"));
            }
        }
    }
    assert_eq!(seen, batch.len());
    assert!(
        least < 0.0 && most > 0.0,
        "advantages from {least} to {most}"
    );
    shown.left_out = episodes.len() - members.len();
    shown
}

/// Texts and spans of turns match the tokens next to them.
#[test]
fn turns_say_which_tokens_are_whose() {
    let exported = Exported::make("");
    assert_recomputed(&exported.folder);
    let model = agentgym_model::Policy::load(
        &exported.folder.join("policy_before"),
        &agentgym_model::Device::cpu(),
    )
    .unwrap();
    for line in lines_of(&exported.folder.join("trajectories.jsonl")) {
        let ids: Vec<u32> = serde_json::from_value(line["token_ids"].clone()).unwrap();
        let mut mask = vec![0.0; ids.len()];
        for turn in line["turns"].as_array().unwrap() {
            let end = |at: usize| turn["policy"][at].as_u64().unwrap() as usize;
            mask[end(0)..end(1)].fill(1.0);
            let own = &ids[end(0)..end(1) - usize::from(turn["finish"] == "eos")];
            assert_eq!(turn["text"], model.tokenizer().decode(own, true));
        }
        assert_eq!(mask, numbers(&line["loss_mask"]));
    }
}
