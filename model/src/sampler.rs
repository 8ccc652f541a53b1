//! Drawing one id from a row of logits. The random number is a function of the episode's key, the
//! turn and the token's index, so a draw does not depend on anything else that the engine does.

use crate::kernels::distribution::Distribution;
use crate::kernels::head::inverse_temperature;
use crate::kernels::ln;

/// How the next id is chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 means greedy.
    pub temperature: f64,
    /// Only this many most probable ids may be drawn; 0 disables this.
    pub top_k: usize,
    /// Only the smallest set of ids that holds this probability may be drawn; 1 disables this.
    pub top_p: f64,
    /// Always the most probable id, the lowest of equals.
    pub greedy: bool,
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            greedy: false,
        }
    }
}

impl Sampling {
    /// Checks the numbers; the error says what is wrong.
    pub(crate) fn check(&self) -> Result<(), String> {
        if !(self.temperature.is_finite() && self.temperature >= 0.0) {
            return Err(format!(
                "temperature {} must be 0 or a positive number",
                self.temperature
            ));
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return Err(format!("top_p {} must lie in (0, 1]", self.top_p));
        }
        Ok(())
    }

    /// Whether top_k or top_p leaves ids out.
    pub(crate) fn cuts(&self) -> bool {
        !self.is_greedy() && (self.top_k > 0 || self.top_p < 1.0)
    }

    fn is_greedy(&self) -> bool {
        self.greedy || self.temperature == 0.0
    }

    /// 1 / temperature; 1 for temperature 0.
    fn inverse_temperature(&self) -> f32 {
        inverse_temperature(match self.temperature {
            0.0 => 1.0,
            temperature => temperature,
        })
    }

    fn draw(&self, logits: &[f32], uniform: impl FnOnce() -> f64) -> Drawn {
        let distribution = Distribution::of(logits, self.inverse_temperature());
        let mut log_kept_mass = 0.0;
        let id = if self.is_greedy() {
            most_probable(logits)
        } else {
            let weights = distribution.weights(logits);
            if self.cuts() {
                let all = total(weights.iter().copied());
                let kept = self.kept(weights);
                let share = total(kept.iter().map(|&(_, weight)| weight)) / all;
                log_kept_mass = ln(share.min(1.0) as f32) as f32;
                pick(kept.into_iter(), uniform())
            } else {
                pick(weights.iter().copied().enumerate(), uniform())
            }
        };
        Drawn {
            id: id as u32,
            log_prob: distribution.log_prob(logits[id]),
            entropy: distribution.entropy,
            log_kept_mass,
        }
    }

    /// The ids that top_k and then top_p keep, in id order, with their weights.
    fn kept(&self, weights: Vec<f32>) -> Vec<(usize, f32)> {
        let mut kept: Vec<(usize, f32)> = weights.into_iter().enumerate().collect();
        kept.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        if self.top_k > 0 {
            kept.truncate(self.top_k);
        }
        let total: f64 = kept.iter().map(|&(_, weight)| f64::from(weight)).sum();
        let mut sum = 0.0;
        let enough = kept.iter().position(|&(_, weight)| {
            sum += f64::from(weight);
            sum >= self.top_p * total
        });
        kept.truncate(enough.map_or(kept.len(), |last| last + 1));
        kept.sort_unstable_by_key(|&(id, _)| id);
        kept
    }
}

/// An id that was drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Drawn {
    pub(crate) id: u32,
    /// Over the whole vocabulary at the temperature (1 for temperature 0), before top_k and top_p.
    pub(crate) log_prob: f32,
    /// Entropy of the same distribution, nats.
    pub(crate) entropy: f32,
    /// Log of the probability mass that top_k and top_p keep, nats; 0 where nothing is cut.
    pub(crate) log_kept_mass: f32,
}

/// One id to be drawn: the sampling, and the key of its random number.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Draw<'a> {
    pub(crate) sampling: &'a Sampling,
    /// Random key of the episode.
    pub(crate) stream: &'a [u8; 32],
    pub(crate) turn: u32,
    /// Index of the token in its message.
    pub(crate) token: u32,
}

impl Draw<'_> {
    /// Draws from a row of logits.
    pub(crate) fn of(&self, logits: &[f32]) -> Drawn {
        let number = || uniform(self.stream, self.turn, self.token);
        self.sampling.draw(logits, number)
    }

    /// The random number in [0, 1); `None` where sampling is greedy.
    pub(crate) fn uniform(&self) -> Option<f64> {
        let draws = !self.sampling.is_greedy();
        draws.then(|| uniform(self.stream, self.turn, self.token))
    }

    /// 1 / temperature.
    pub(crate) fn inverse_temperature(&self) -> f32 {
        self.sampling.inverse_temperature()
    }

    /// Whether top_k or top_p leaves ids out.
    pub(crate) fn cuts(&self) -> bool {
        self.sampling.cuts()
    }
}

/// Sums in the order given, so that equal sets have equal sums.
fn total(weights: impl Iterator<Item = f32>) -> f64 {
    weights.map(f64::from).sum()
}

fn most_probable(logits: &[f32]) -> usize {
    let mut best = 0;
    for (id, &logit) in logits.iter().enumerate() {
        if logit > logits[best] {
            best = id;
        }
    }
    best
}

/// The id at which the running sum of weights passes `uniform` of the whole.
fn pick(weights: impl Iterator<Item = (usize, f32)> + Clone, uniform: f64) -> usize {
    let total: f64 = weights.clone().map(|(_, weight)| f64::from(weight)).sum();
    let goal = uniform * total;
    let mut sum = 0.0;
    let mut last = 0;
    for (id, weight) in weights {
        if weight > 0.0 {
            last = id;
        }
        sum += f64::from(weight);
        if sum > goal {
            return id;
        }
    }
    // Rounding kept the sum from passing the goal: the last possible id.
    last
}

/// A uniform number in [0, 1), a function of (stream, turn, token index).
fn uniform(stream: &[u8; 32], turn: u32, token: u32) -> f64 {
    let mut message = [0; 8];
    message[..4].copy_from_slice(&turn.to_le_bytes());
    message[4..].copy_from_slice(&token.to_le_bytes());
    let digest = blake3::keyed_hash(stream, &message);
    let first = digest
        .as_bytes()
        .first_chunk()
        .expect("a digest has 32 bytes");
    // 53 bits fill an f64's mantissa.
    (u64::from_le_bytes(*first) >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 5] = [0.0, 2.0, -1.0, 2.0, 1.0];

    #[test]
    fn frequencies_follow_the_distribution_and_cuts_are_kept() {
        let count = |sampling: Sampling| {
            let mut counts = [0usize; 5];
            for token in 0..20_000 {
                let drawn = sampling.draw(&LOGITS, || uniform(&[7; 32], 3, token));
                counts[drawn.id as usize] += 1;
            }
            counts
        };
        let warm = Sampling {
            temperature: 0.8,
            ..Sampling::default()
        };
        let weights = LOGITS.map(|z| (f64::from(z) / 0.8).exp());
        let total: f64 = weights.iter().sum();
        for (count, weight) in count(warm).into_iter().zip(weights) {
            assert!((count as f64 / 20_000.0 - weight / total).abs() < 0.015);
        }
        let two = count(Sampling { top_k: 2, ..warm });
        assert_eq!(two[1] + two[3], 20_000);
        assert!(two[1] > 9_000 && two[3] > 9_000);
        let three = count(Sampling { top_p: 0.9, ..warm });
        assert_eq!((three[0], three[2]), (0, 0));
        assert!(three[4] > 0);
    }

    #[test]
    fn turns_and_tokens_share_no_number() {
        let mut seen = std::collections::BTreeSet::new();
        for stream in [[7; 32], [8; 32]] {
            for turn in 0..64 {
                for token in 0..512 {
                    let number = uniform(&stream, turn, token);
                    assert!((0.0..1.0).contains(&number));
                    assert!(seen.insert(number.to_bits()), "turn {turn}, token {token}");
                }
            }
        }
    }

    #[test]
    fn greedy_takes_the_lowest_of_equals_and_reports_the_whole_vocabulary() {
        let greedy = Sampling {
            greedy: true,
            ..Sampling::default()
        };
        let drawn = greedy.draw(&LOGITS, || panic!("greedy draws no number"));
        assert_eq!((drawn.id, drawn.log_kept_mass), (1, 0.0));
        let total: f64 = LOGITS.iter().map(|&z| f64::from(z).exp()).sum();
        assert!((f64::from(drawn.log_prob) - (2.0 - total.ln())).abs() < 1e-6);
        let cold = Sampling {
            temperature: 0.0,
            ..Sampling::default()
        };
        assert_eq!(cold.draw(&LOGITS, || panic!("zero is greedy")), drawn);
    }

    /// An id is drawn with its probability over the whole vocabulary, divided by the
    /// mass that the cut keeps.
    #[test]
    fn what_a_cut_leaves_turns_log_probs_into_those_that_were_drawn_from() {
        let all = Sampling {
            temperature: 0.8,
            ..Sampling::default()
        };
        let weights = LOGITS.map(|z| (f64::from(z) / 0.8).exp());
        let mass = |ids: &[usize]| {
            let kept: f64 = ids.iter().map(|&id| weights[id]).sum();
            (kept / weights.iter().sum::<f64>()).ln()
        };
        for (sampling, kept) in [
            (all, &[0, 1, 2, 3, 4][..]),
            (Sampling { top_k: 2, ..all }, &[1, 3]),
            (Sampling { top_k: 9, ..all }, &[0, 1, 2, 3, 4]),
            (Sampling { top_p: 0.9, ..all }, &[1, 3, 4]),
            // Of the 3 ids that top_k keeps, top_p keeps the two that reach 0.8.
            (
                Sampling {
                    top_k: 3,
                    top_p: 0.8,
                    ..all
                },
                &[1, 3],
            ),
        ] {
            let mut shares = [0.0; 5];
            for token in 0..20_000 {
                let drawn = sampling.draw(&LOGITS, || uniform(&[7; 32], 3, token));
                let expected = mass(kept);
                assert!((f64::from(drawn.log_kept_mass) - expected).abs() < 1e-6);
                let behaviour = f64::from(drawn.log_prob - drawn.log_kept_mass).exp();
                shares[drawn.id as usize] += 1.0 / behaviour / 20_000.0;
            }
            // Counts over probabilities: 1 for each id that can be drawn.
            for id in 0..5 {
                let expected = f64::from(u8::from(kept.contains(&id)));
                assert!(
                    (shares[id] - expected).abs() < 0.15,
                    "{sampling:?} {id} {shares:?}"
                );
            }
        }
        let whole = all.draw(&LOGITS, || 0.5);
        assert_eq!(whole.log_kept_mass.to_bits(), 0);
    }
}
