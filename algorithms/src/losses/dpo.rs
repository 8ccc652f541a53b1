//! Direct preference optimisation: of two answers to one prompt, make the chosen
//! one more likely than the rejected one, measured against a reference policy.
//! The scope of the loss is a pair, so both answers belong to one gradient unit.

use serde::{Deserialize, Serialize};

use crate::error::{Error, all_finite, parameter};
use crate::names::named;

named! {
    /// The loss as a function of Δ: by how many nats more than the reference the
    /// policy prefers the chosen answer.
    #[derive(Default)]
    pub enum DpoLoss, called "preference loss" {
        /// `−ln σ(β·Δ)`: arXiv:2305.18290 eq. 7.
        #[default]
        Sigmoid = "sigmoid",
        /// `max(0, 1 − β·Δ)`: arXiv:2305.10425 §2.
        Hinge = "hinge",
        /// `(Δ − 1/(2β))²`: arXiv:2310.12036 eq. 17.
        Ipo = "ipo",
    }
}

/// Log-probs of whole answers, nats ([`super::sequence_log_prob`]).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DpoPair {
    /// The chosen answer under the policy being updated.
    pub policy_chosen: f64,
    /// The rejected answer under the policy being updated.
    pub policy_rejected: f64,
    /// The chosen answer under the reference policy.
    pub ref_chosen: f64,
    /// The rejected answer under the reference policy.
    pub ref_rejected: f64,
}

/// A preference loss.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Dpo {
    /// β: the reward of one nat of difference to the reference.
    pub beta: f64,
    /// Which preference loss.
    pub loss: DpoLoss,
}

/// One pair's share of a minibatch's loss.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DpoTerm {
    /// The pair's loss / pairs.
    pub loss: f64,
    /// d minibatch loss / d log_prob of every loss token of the chosen answer.
    pub chosen_coefficient: f64,
    /// The same for the rejected answer: its negative.
    pub rejected_coefficient: f64,
    /// `β · (policy − reference)` of the chosen answer.
    pub chosen_reward: f64,
    /// `β · (policy − reference)` of the rejected answer.
    pub rejected_reward: f64,
}

impl Dpo {
    /// Refuses a β that is not positive and finite.
    pub fn validate(&self) -> Result<(), Error> {
        parameter(
            "dpo.beta",
            self.beta,
            self.beta > 0.0 && self.beta.is_finite(),
            "greater than 0",
        )
    }

    /// Evaluates one pair of a minibatch of `pairs`. The answer's log-prob is
    /// the sum of its tokens', so the coefficient is the same for all of them:
    /// spread it with [`crate::advantages::broadcast`].
    pub fn evaluate(&self, pair: &DpoPair, pairs: usize) -> Result<DpoTerm, Error> {
        self.validate()?;
        parameter("pairs", pairs as f64, pairs > 0, "at least 1")?;
        all_finite(
            "policy log-prob (chosen, rejected)",
            &[pair.policy_chosen, pair.policy_rejected],
        )?;
        all_finite(
            "reference log-prob (chosen, rejected)",
            &[pair.ref_chosen, pair.ref_rejected],
        )?;
        let chosen_reward = self.beta * (pair.policy_chosen - pair.ref_chosen);
        let rejected_reward = self.beta * (pair.policy_rejected - pair.ref_rejected);
        let margin = chosen_reward - rejected_reward;
        let (loss, by_margin) = self.of_margin(margin);
        let slope = -self.beta * by_margin / pairs as f64;
        Ok(DpoTerm {
            loss: loss / pairs as f64,
            chosen_coefficient: -slope,
            rejected_coefficient: slope,
            chosen_reward,
            rejected_reward,
        })
    }

    /// The loss at β·Δ = `margin`, and its derivative by the margin.
    fn of_margin(&self, margin: f64) -> (f64, f64) {
        match self.loss {
            DpoLoss::Sigmoid => {
                // Neither −ln σ(m) nor σ(−m) may overflow for a large |m|.
                let tail = (-margin.abs()).exp();
                let loss = (-margin).max(0.0) + tail.ln_1p();
                let doubt = match margin >= 0.0 {
                    true => tail / (1.0 + tail),
                    false => 1.0 / (1.0 + tail),
                };
                (loss, -doubt)
            }
            DpoLoss::Hinge if margin < 1.0 => (1.0 - margin, -1.0),
            DpoLoss::Hinge => (0.0, 0.0),
            DpoLoss::Ipo => {
                let error = margin / self.beta - 0.5 / self.beta;
                (error * error, 2.0 * error / self.beta)
            }
        }
    }
}

/// Sums over the pairs of a minibatch, in the order of their index.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct DpoSums {
    /// Pairs added.
    pub pairs: usize,
    /// The minibatch's loss.
    pub loss: f64,
    /// `Σ chosen_reward`.
    pub chosen_reward: f64,
    /// `Σ rejected_reward`.
    pub rejected_reward: f64,
    /// Pairs whose chosen answer has the larger reward.
    pub correct: usize,
}

impl DpoSums {
    /// Adds one pair.
    pub fn add(&mut self, term: &DpoTerm) {
        self.pairs += 1;
        self.loss += term.loss;
        self.chosen_reward += term.chosen_reward;
        self.rejected_reward += term.rejected_reward;
        self.correct += usize::from(term.chosen_reward > term.rejected_reward);
    }

    /// Adds the sums of later pairs.
    pub fn merge(&mut self, next: &Self) {
        self.pairs += next.pairs;
        self.loss += next.loss;
        self.chosen_reward += next.chosen_reward;
        self.rejected_reward += next.rejected_reward;
        self.correct += next.correct;
    }

    /// Share of pairs ranked right; 0 without pairs.
    pub fn accuracy(&self) -> f64 {
        self.correct as f64 / self.pairs.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_close, assert_is_gradient, golden, numbers};

    #[test]
    fn golden_pairs_and_their_derivatives() {
        for case in golden("dpo").cases() {
            let dpo = Dpo {
                beta: case["beta"].as_f64().unwrap(),
                loss: DpoLoss::Sigmoid,
            };
            let names = [
                "policy_chosen",
                "policy_rejected",
                "ref_chosen",
                "ref_rejected",
            ];
            let [chosen, rejected, ref_chosen, ref_rejected] =
                names.map(|name| numbers(&case[name]));
            let [chosen_rewards, rejected_rewards] =
                ["chosen_rewards", "rejected_rewards"].map(|name| numbers(&case[name]));
            let mut sums = DpoSums::default();
            for i in 0..chosen.len() {
                let term_at = |policy: &[f64]| {
                    let pair = DpoPair {
                        policy_chosen: policy[0],
                        policy_rejected: policy[1],
                        ref_chosen: ref_chosen[i],
                        ref_rejected: ref_rejected[i],
                    };
                    dpo.evaluate(&pair, chosen.len()).unwrap()
                };
                let policy = [chosen[i], rejected[i]];
                let term = term_at(&policy);
                assert_close(term.chosen_reward, chosen_rewards[i], "chosen reward");
                assert_close(term.rejected_reward, rejected_rewards[i], "rejected reward");
                let slopes = [term.chosen_coefficient, term.rejected_coefficient];
                assert_is_gradient(|moved| term_at(moved).loss, &policy, &slopes, "dpo");
                sums.add(&term);
            }
            assert_close(sums.loss, case["loss"].as_f64().unwrap(), "loss");
            assert_close(
                sums.accuracy(),
                case["accuracy"].as_f64().unwrap(),
                "accuracy",
            );
        }
    }

    #[test]
    fn extreme_margins_stay_numbers() {
        let at = |policy_chosen| {
            let pair = DpoPair {
                policy_chosen,
                policy_rejected: 0.0,
                ref_chosen: 0.0,
                ref_rejected: 0.0,
            };
            Dpo {
                beta: 1.0,
                loss: DpoLoss::Sigmoid,
            }
            .evaluate(&pair, 1)
            .unwrap()
        };
        assert_eq!((at(-1e4).loss, at(-1e4).chosen_coefficient), (1e4, -1.0));
        assert_eq!((at(1e4).loss, at(1e4).rejected_coefficient), (0.0, 0.0));
        assert_close(at(0.0).loss, 2f64.ln(), "no preference yet");
    }

    #[test]
    fn every_loss_follows_its_formula_and_finite_differences() {
        for &loss in DpoLoss::ALL {
            let dpo = Dpo { beta: 0.4, loss };
            let at = |policy: &[f64]| {
                let pair = DpoPair {
                    policy_chosen: policy[0],
                    policy_rejected: policy[1],
                    ref_chosen: -4.0,
                    ref_rejected: -5.0,
                };
                dpo.evaluate(&pair, 3).unwrap()
            };
            // Δ = (−3.5 + 4) − (−6 + 5) = 1.5.
            let expected = match loss {
                DpoLoss::Sigmoid => -(1.0 / (1.0 + (-0.6f64).exp())).ln(),
                DpoLoss::Hinge => 0.4,
                DpoLoss::Ipo => (1.5 - 1.25f64).powi(2),
            };
            assert_close(at(&[-3.5, -6.0]).loss, expected / 3.0, loss.name());
            for policy in [[-3.5, -6.0], [-1.0, -9.0], [-9.0, -1.0]] {
                let slopes = [
                    at(&policy).chosen_coefficient,
                    at(&policy).rejected_coefficient,
                ];
                assert_is_gradient(|moved| at(moved).loss, &policy, &slopes, loss.name());
                assert!(at(&policy).loss >= 0.0, "{} {policy:?}", loss.name());
            }
        }
        let error = "kto".parse::<DpoLoss>().unwrap_err().to_string();
        assert!(error.contains("sigmoid, hinge, ipo"), "{error}");
    }
}
