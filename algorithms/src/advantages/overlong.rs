//! DAPO's penalty of long responses.

use crate::error::{Error, parameter};

/// Where a response is too long, and what that costs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OverlongBuffer {
    /// Most tokens of a response, L_max.
    pub response_tokens_max: usize,
    /// The last tokens of these, in which the penalty grows, L_cache; between 1 and L_max.
    pub buffer_tokens: usize,
    /// The penalty at the end of the buffer, in units of the reward; at least 0.
    pub penalty_factor: f64,
}

impl OverlongBuffer {
    /// # Errors
    /// A buffer that is empty or longer than a response, or a penalty that rewards.
    pub fn validate(&self) -> Result<(), Error> {
        let (buffer, most) = (self.buffer_tokens, self.response_tokens_max);
        let fits = (1..=most).contains(&buffer);
        parameter(
            "overlong_buffer.len",
            buffer as f64,
            fits,
            "between 1 and the most tokens of a response",
        )?;
        let factor = self.penalty_factor;
        parameter(
            "overlong_buffer.penalty_factor",
            factor,
            factor.is_finite() && factor >= 0.0,
            "at least 0",
        )
    }

    /// What is added to the reward of a response of so many tokens: 0 up to L_max − L_cache, then
    /// ((L_max − L_cache) − tokens) / L_cache · factor, and −factor beyond L_max.
    ///
    /// Source: soft overlong punishment, DAPO, arXiv:2503.14476 §3.4, eq. 13 (factor 1 there).
    pub fn penalty(&self, tokens: usize) -> f64 {
        let free = self.response_tokens_max - self.buffer_tokens;
        let into = tokens.saturating_sub(free).min(self.buffer_tokens);
        match into {
            0 => 0.0,
            _ => -(into as f64) / self.buffer_tokens as f64 * self.penalty_factor,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand from eq. 13: L_max 20 480, L_cache 4 096, the numbers of the paper's §4.1.
    #[test]
    fn a_response_pays_for_what_it_has_of_the_buffer() {
        let paper = OverlongBuffer {
            response_tokens_max: 20_480,
            buffer_tokens: 4_096,
            penalty_factor: 1.0,
        };
        let penalties =
            [0, 16_384, 16_385, 18_432, 20_480, 30_000].map(|tokens| paper.penalty(tokens));
        assert_eq!(penalties, [0.0, 0.0, -1.0 / 4_096.0, -0.5, -1.0, -1.0]);
        let half = OverlongBuffer {
            penalty_factor: 0.5,
            ..paper
        };
        assert_eq!(half.penalty(18_432), -0.25);
        assert!(paper.validate().is_ok());
        for (buffer_tokens, penalty_factor) in [(0, 1.0), (20_481, 1.0), (1, -1.0), (1, f64::NAN)] {
            let wrong = OverlongBuffer {
                buffer_tokens,
                penalty_factor,
                ..paper
            };
            assert!(wrong.validate().is_err(), "{wrong:?}");
        }
    }
}
