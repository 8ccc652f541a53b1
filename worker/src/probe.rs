//! Which policy does a server serve? A policy's commit holds a probe: fixed prompts, and the log-probs
//! that the policy, and the policy before it, give to the likeliest ids after each. A server that is
//! asked for the likeliest id after each prompt gives numbers that lie somewhere between the two.
//!
//! Let v be the server's log-probs minus this policy's, and w those of the policy before minus this
//! policy's. The least-squares estimate of where the server stands is t = v·w / w·w: 0 for this policy,
//! 1 for the one before. What v has beside w is the server's own noise; spread over the remaining
//! prompts it gives the standard error of t, by the usual formula of a regression through the origin:
//! sqrt(|v − t·w|² / (n − 1)) / |w|. Where that error is small the two policies are told apart, and a
//! server at the wrong one is refused. Where it is not, the probe says so instead of guessing.

use crate::Result;
use agentgym_jobs::artifact_names::PROBE;
use agentgym_model::{
    ComputeOptions, Engine, EngineOptions, GenerationRequest, Policy, Sampling, ScoreRequest, score,
};
use serde::{Deserialize, Serialize};

/// Prompts of a probe, and ids of each.
const PROMPTS: u64 = 16;
const PROMPT_IDS: u64 = 16;

/// Of the prompts, as many must be answered with an id that the probe knows.
const KNOWN_LEAST: usize = 12;

/// The largest standard error of t with which policies are told apart: five of them are halfway from
/// one policy to the other.
const ERROR_MAX: f64 = 0.1;

/// Nearer to this policy than to the one before.
const HALFWAY: f64 = 0.5;

/// `probe.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Probe {
    prompts: Vec<Prompt>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Prompt {
    ids: Vec<u32>,
    likeliest: Vec<Likely>,
}

/// An id that one of the two policies finds the likeliest.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Likely {
    id: u32,
    log_prob: f32,
    /// Under the policy before, where there is one.
    before: Option<f32>,
}

/// What a server's answers say.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Reading {
    /// Largest difference of its log-probs and this policy's, nats.
    pub(crate) distance: f64,
    /// Root mean square of the differences of the policy before and this one, nats. `None` for the
    /// first policy.
    pub(crate) separation: Option<f64>,
    /// t and its standard error, where the two policies differ at all.
    place: Option<(f64, f64)>,
}

impl Reading {
    /// Whether this policy and the one before are told apart; `None` where there is nothing to tell.
    pub(crate) fn tells_apart(&self) -> Option<bool> {
        self.place.map(|(_, error)| error <= ERROR_MAX)
    }

    /// Why the server serves another policy, if it does.
    pub(crate) fn other(&self, distance_max: f64) -> Option<String> {
        let distance = self.distance;
        if distance > distance_max {
            return Some(format!(
                "its log-probs are up to {distance:.3} nats away from this policy's (guard.mismatch_max = \
                 {distance_max})"
            ));
        }
        let (place, error) = self.place?;
        (error <= ERROR_MAX && place.abs() > HALFWAY).then(|| {
            format!(
                "its log-probs stand at {place:.2} ± {error:.2} on the way from this policy (0) to the one \
                 before (1)"
            )
        })
    }
}

impl Probe {
    /// The probe of a policy that is committed.
    pub(crate) fn of(policy: &Policy, before: Option<&Policy>, threads: usize) -> Result<Self> {
        let prompts = prompts(policy);
        let mut candidates = likeliest(policy, &prompts)?;
        if let Some(before) = before {
            for (all, other) in candidates.iter_mut().zip(likeliest(before, &prompts)?) {
                all.extend(other);
                all.dedup();
            }
        }
        let own = log_probs(policy, &prompts, &candidates, threads)?;
        let others = before.map(|before| log_probs(before, &prompts, &candidates, threads));
        let others = others.transpose()?;
        let mut at = 0;
        let prompts = prompts
            .into_iter()
            .zip(candidates)
            .map(|(ids, candidates)| {
                let likeliest = candidates.into_iter().map(|id| {
                    at += 1;
                    Likely {
                        id,
                        log_prob: own[at - 1],
                        before: others.as_ref().map(|others| others[at - 1]),
                    }
                });
                let likeliest = likeliest.collect();
                Prompt { ids, likeliest }
            });
        Ok(Self {
            prompts: prompts.collect(),
        })
    }

    /// Reads `probe.json`.
    ///
    /// # Errors
    /// It is damaged.
    pub(crate) fn read_from(bytes: &[u8]) -> Result<Self> {
        let read = serde_json::from_slice(bytes).map_err(|e| agentgym_jobs::Error::Payload {
            what: PROBE.to_owned(),
            message: e.to_string(),
        });
        Ok(read?)
    }

    /// What a server is asked to continue by one id, the likeliest.
    pub(crate) fn prompts(&self) -> impl Iterator<Item = &[u32]> {
        self.prompts.iter().map(|prompt| prompt.ids.as_slice())
    }

    /// What answers to [`Probe::prompts`], an id and its log-prob each, say; an error where they are
    /// those of quite another policy.
    pub(crate) fn read(&self, answers: &[(u32, f32)]) -> std::result::Result<Reading, String> {
        let known: Vec<(f64, Likely)> = (self.prompts.iter())
            .zip(answers)
            .filter_map(|(prompt, (id, log_prob))| {
                let likely = prompt.likeliest.iter().find(|likely| likely.id == *id)?;
                Some((f64::from(*log_prob), *likely))
            })
            .collect();
        if known.len() < KNOWN_LEAST.min(self.prompts.len()) {
            return Err(format!(
                "for {} of {} prompts it finds another id the likeliest",
                self.prompts.len() - known.len(),
                self.prompts.len()
            ));
        }
        let v: Vec<f64> = (known.iter())
            .map(|(found, likely)| found - f64::from(likely.log_prob))
            .collect();
        let w: Option<Vec<f64>> = (known.iter())
            .map(|(_, likely)| Some(f64::from(likely.before?) - f64::from(likely.log_prob)))
            .collect();
        let squares = |of: &[f64]| of.iter().map(|x| x * x).sum::<f64>();
        let count = known.len() as f64;
        let place = w.as_ref().filter(|w| squares(w) > 0.0).map(|w| {
            let dot: f64 = v.iter().zip(w).map(|(v, w)| v * w).sum();
            let place = dot / squares(w);
            let beside: Vec<f64> = v.iter().zip(w).map(|(v, w)| v - place * w).collect();
            let error = (squares(&beside) / (count - 1.0) / squares(w)).sqrt();
            (place, error)
        });
        Ok(Reading {
            distance: v.iter().fold(0.0, |most: f64, v| most.max(v.abs())),
            separation: w.map(|w| (squares(&w) / count).sqrt()),
            place,
        })
    }
}

/// Ids that no text has in this order: after them a policy is unsure of itself, so that small changes
/// of its weights show.
fn prompts(policy: &Policy) -> Vec<Vec<u32>> {
    let tokenizer = policy.tokenizer();
    let special: Vec<u32> = tokenizer.special_tokens().values().copied().collect();
    let ordinary = |id: &u32| !special.contains(id);
    let ordinary: Vec<u32> = (0..tokenizer.vocab_size() as u32)
        .filter(ordinary)
        .collect();
    let id = |prompt: u64, at: u64| {
        let hash = blake3::hash(format!("probe {prompt} {at}").as_bytes());
        let head: [u8; 8] = std::array::from_fn(|byte| hash.as_bytes()[byte]);
        ordinary[(u64::from_le_bytes(head) % ordinary.len() as u64) as usize]
    };
    (0..PROMPTS)
        .map(|prompt| (0..PROMPT_IDS).map(|at| id(prompt, at)).collect())
        .collect()
}

/// The likeliest id after each prompt.
fn likeliest(policy: &Policy, prompts: &[Vec<u32>]) -> Result<Vec<Vec<u32>>> {
    let mut engine = Engine::new(policy.clone(), EngineOptions::default());
    for (number, prompt) in prompts.iter().enumerate() {
        engine.submit(GenerationRequest {
            sequence: number as u64,
            append: prompt.clone(),
            stream: [0; 32],
            turn: 0,
            sampling: Sampling {
                greedy: true,
                ..Sampling::default()
            },
            tokens_max: 1,
            stop_ids: Vec::new(),
        })?;
    }
    let mut all = vec![Vec::new(); prompts.len()];
    while !engine.is_idle() {
        for done in engine.step()? {
            all[done.sequence as usize] = done.token_ids;
        }
    }
    Ok(all)
}

/// The log-prob of each candidate after its prompt, one after another.
fn log_probs(
    policy: &Policy,
    prompts: &[Vec<u32>],
    candidates: &[Vec<u32>],
    threads: usize,
) -> Result<Vec<f32>> {
    let rows: Vec<Vec<u32>> = (prompts.iter().zip(candidates))
        .flat_map(|(prompt, ids)| ids.iter().map(|id| [&prompt[..], &[*id]].concat()))
        .collect();
    let masks: Vec<Vec<bool>> = (rows.iter())
        .map(|row| (1..=row.len()).map(|at| at == row.len()).collect())
        .collect();
    let requests: Vec<ScoreRequest<'_>> = (rows.iter().zip(&masks))
        .map(|(token_ids, loss_mask)| ScoreRequest {
            token_ids,
            loss_mask,
        })
        .collect();
    let options = ComputeOptions {
        threads,
        ..ComputeOptions::default()
    };
    let scores = score(policy, &requests, 1.0, &options)?;
    let last = |row: &agentgym_model::Scores| row.log_probs.last().copied().unwrap_or(0.0);
    Ok(scores.iter().map(last).collect())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::stages::testing::policy;
    use agentgym_model::{Parameter, Weights};

    /// The policy after a step of this size in a direction of its own.
    fn moved(policy: &Policy, seed: usize, size: f32) -> Policy {
        let parameters = policy.weights().iter().map(|(name, parameter)| {
            let values = parameter.numbers().iter().enumerate();
            let step = |at: usize| {
                if (at * 31 + at / 7 + seed * 13).is_multiple_of(3) {
                    size
                } else {
                    -size
                }
            };
            let values = values.map(|(at, value)| value + step(at)).collect();
            let shape = parameter.shape().to_vec();
            (name.to_owned(), Parameter::new(shape, values))
        });
        let weights = Weights::new(parameters.collect());
        let (tokenizer, chat) = (policy.tokenizer().clone(), policy.chat().clone());
        Policy::new(policy.config().clone(), weights, tokenizer, chat).unwrap()
    }

    /// What a server of `policy` with noise of this size answers.
    fn answers(probe: &Probe, policy: &Policy, noise: f32) -> Vec<(u32, f32)> {
        let prompts: Vec<Vec<u32>> = probe.prompts().map(<[u32]>::to_vec).collect();
        let ids = likeliest(policy, &prompts).unwrap();
        let log_probs = log_probs(policy, &prompts, &ids, 1).unwrap();
        let noise = |at: usize| noise * [1.0, -0.4, 0.7, -1.0, 0.2][at % 5];
        (ids.iter().zip(log_probs).enumerate())
            .map(|(at, (ids, log_prob))| (ids[0], log_prob + noise(at)))
            .collect()
    }

    /// Log-probs of `ids` behind a prompt.
    pub(crate) fn scored(policy: &Policy, prompt: &[u32], ids: &[u32]) -> Vec<f32> {
        let row = |at: usize| [prompt, &ids[..at]].concat();
        let prompts: Vec<Vec<u32>> = (0..ids.len()).map(row).collect();
        let ids: Vec<Vec<u32>> = ids.iter().map(|id| vec![*id]).collect();
        log_probs(policy, &prompts, &ids, 1).unwrap()
    }

    const FAR: f64 = 0.5;

    #[test]
    fn a_server_with_yesterdays_policy_is_found_out() {
        let before = policy();
        let now = moved(&before, 1, 1e-4);
        let probe = Probe::of(&now, Some(&before), 1).unwrap();
        let read =
            |policy: &Policy, noise: f32| probe.read(&answers(&probe, policy, noise)).unwrap();
        let right = read(&now, 0.0);
        assert_eq!(right.distance, 0.0);
        assert_eq!((right.tells_apart(), right.other(FAR)), (Some(true), None));
        let separation = right.separation.unwrap();
        assert!((1e-5..0.1).contains(&separation), "{separation}");
        // Far below any absolute limit, and found all the same.
        let wrong = read(&before, 0.0);
        let said = wrong.other(FAR).unwrap();
        assert!(said.contains("stand at 1.00"), "{said}");
        assert_eq!(right.separation, wrong.separation);
        // The policy before that one.
        let older = moved(&before, 1, -1e-4);
        assert!(read(&older, 0.0).other(FAR).is_some());
        // A server with noise of its own, a tenth of the difference.
        let noise = separation as f32 / 10.0;
        assert_eq!(read(&now, noise).other(FAR), None);
        assert!(read(&before, noise).other(FAR).is_some());
        // With noise far beyond it nothing can be told, and nothing is claimed.
        let drowned = read(&before, separation as f32 * 20.0);
        assert_eq!(
            (drowned.tells_apart(), drowned.other(FAR)),
            (Some(false), None)
        );
        assert!(drowned.other(drowned.distance / 2.0).is_some());
    }

    #[test]
    fn the_first_policy_has_nothing_to_be_told_from_and_equal_ones_are_the_same() {
        let policy = policy();
        let first = Probe::of(&policy, None, 2).unwrap();
        let reading = first.read(&answers(&first, &policy, 0.0)).unwrap();
        assert_eq!((reading.tells_apart(), reading.separation), (None, None));
        assert_eq!(reading.other(FAR), None);
        let same = Probe::of(&policy, Some(&policy), 1).unwrap();
        let reading = same.read(&answers(&same, &policy, 0.0)).unwrap();
        assert_eq!(
            (reading.tells_apart(), reading.separation),
            (None, Some(0.0))
        );
    }

    #[test]
    fn quite_another_policy_is_told_by_its_ids() {
        let policy = policy();
        let probe = Probe::of(&policy, None, 1).unwrap();
        let mut all = answers(&probe, &policy, 0.0);
        for (id, _) in &mut all[..4] {
            *id = (*id + 1) % 50;
        }
        assert!(probe.read(&all).is_ok(), "near ties are no other policy");
        all[4].0 = (all[4].0 + 1) % 50;
        let said = probe.read(&all).unwrap_err();
        assert!(said.contains("5 of 16"), "{said}");
    }

    /// The artifact reads back as it was, and holds no prompt that means something to a tokenizer.
    #[test]
    fn a_probe_is_kept_as_it_is() {
        let policy = policy();
        let probe = Probe::of(&policy, Some(&moved(&policy, 2, 1e-3)), 1).unwrap();
        let text = serde_json::to_string(&probe).unwrap();
        assert_eq!(serde_json::from_str::<Probe>(&text).unwrap(), probe);
        let special = policy.tokenizer().special_tokens();
        let mut ids = probe.prompts().flatten();
        assert!(ids.all(|id| !special.values().any(|other| other == id)));
        assert_eq!(
            Probe::of(&policy, None, 1).unwrap(),
            Probe::of(&policy, None, 2).unwrap()
        );
    }
}
