//! The next-token distribution of one row of logits: log-probability, entropy and
//! their derivative. Sampling and scoring both call [`Distribution::of`], so the
//! log-probability recorded while sampling equals the scored one bit for bit.

use super::{LANES, Lanes, exp, ln, max_lanes, sum_lanes, vectorised};

/// Softmax of logits / temperature, represented by its normalising constants.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Distribution {
    inverse_temperature: f32,
    max: f32,
    inverse_sum: f32,
    log_sum: f32,
    /// Entropy in nats.
    pub(crate) entropy: f32,
}

impl Distribution {
    /// The distribution of a row of raw logits at a temperature given as 1/T.
    pub(crate) fn of(logits: &[f32], inverse_temperature: f32) -> Self {
        let (max, sum, weighted) = vectorised(
            #[inline(always)]
            || {
                let (chunks, tail) = logits.as_chunks::<LANES>();
                let mut last: Lanes = [f32::NEG_INFINITY; LANES];
                last[..tail.len()].copy_from_slice(tail);
                let mut max = [f32::NEG_INFINITY; LANES];
                for chunk in chunks.iter().chain(std::iter::once(&last)) {
                    for lane in 0..LANES {
                        let z = chunk[lane] * inverse_temperature;
                        max[lane] = if z > max[lane] { z } else { max[lane] };
                    }
                }
                let max = max_lanes(&max);
                let mut sums = [0.0; LANES];
                let mut weighted = [0.0; LANES];
                for chunk in chunks {
                    for lane in 0..LANES {
                        let z = chunk[lane] * inverse_temperature - max;
                        let e = exp(z);
                        sums[lane] += e;
                        weighted[lane] = e.mul_add(z, weighted[lane]);
                    }
                }
                for (lane, logit) in tail.iter().enumerate() {
                    let z = logit * inverse_temperature - max;
                    let e = exp(z);
                    sums[lane] += e;
                    weighted[lane] = e.mul_add(z, weighted[lane]);
                }
                (max, sum_lanes(&sums), sum_lanes(&weighted))
            },
        );
        let log_sum = ln(sum) as f32;
        Distribution {
            inverse_temperature,
            max,
            inverse_sum: 1.0 / sum,
            log_sum,
            entropy: log_sum - weighted / sum,
        }
    }

    /// Log-probability of an id with this raw logit.
    #[inline(always)]
    pub(crate) fn log_prob(&self, logit: f32) -> f32 {
        (logit * self.inverse_temperature - self.max) - self.log_sum
    }

    /// exp(z − max) of every logit: the probabilities up to a common factor.
    pub(crate) fn weights(&self, logits: &[f32]) -> Vec<f32> {
        let mut weights = vec![0.0; logits.len()];
        vectorised(
            #[inline(always)]
            || {
                for (weight, logit) in weights.iter_mut().zip(logits) {
                    *weight = exp(logit * self.inverse_temperature - self.max);
                }
            },
        );
        weights
    }

    /// Turns a row of logits into ∂(a·log_prob(target) + b·entropy)/∂logits.
    pub(crate) fn derivative(&self, logits: &mut [f32], target: usize, a: f32, b: f32) {
        vectorised(
            #[inline(always)]
            || {
                for logit in logits.iter_mut() {
                    let z = *logit * self.inverse_temperature - self.max;
                    let p = exp(z) * self.inverse_sum;
                    let inner = b.mul_add((z - self.log_sum) + self.entropy, a);
                    *logit = -p * inner * self.inverse_temperature;
                }
            },
        );
        logits[target] += a * self.inverse_temperature;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exact(logits: &[f64], target: usize) -> (f64, f64) {
        let sum: f64 = logits.iter().map(|z| z.exp()).sum();
        let log = |z: f64| z - sum.ln();
        (
            log(logits[target]),
            -logits.iter().map(|&z| log(z).exp() * log(z)).sum::<f64>(),
        )
    }

    #[test]
    fn value_and_derivative_agree_with_f64_differences() {
        let raw: Vec<f32> = (0..37)
            .map(|i| ((i * 31) % 17) as f32 * 0.3 - 2.0)
            .collect();
        let (temperature, target, a, b) = (0.7, 5, 0.8, -0.3);
        let at = |index: usize, step: f64| {
            let mut z: Vec<f64> = raw.iter().map(|&x| f64::from(x) / temperature).collect();
            z[index] += step / temperature;
            let (log_prob, entropy) = exact(&z, target);
            (log_prob, entropy, a * log_prob + b * entropy)
        };
        let found = Distribution::of(&raw, (1.0 / temperature) as f32);
        let (log_prob, entropy, _) = at(0, 0.0);
        assert!((f64::from(found.log_prob(raw[target])) - log_prob).abs() < 2e-6);
        assert!((f64::from(found.entropy) - entropy).abs() < 2e-6);
        let mut derivative = raw.clone();
        found.derivative(&mut derivative, target, a as f32, b as f32);
        for (index, found) in derivative.iter().enumerate() {
            let expected = (at(index, 1e-5).2 - at(index, -1e-5).2) / 2e-5;
            assert!((f64::from(*found) - expected).abs() < 1e-6, "logit {index}");
        }
    }
}
