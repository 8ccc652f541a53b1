//! The numbers that a GPU computes with.

use std::fmt;
use std::str::FromStr;

/// The numbers that a GPU's products read: weights, what is multiplied with them, keys and
/// values. Sums, and all that is no operand of a product, are f32 in any case: the residual
/// stream, norms, softmax, log-probabilities, gradients of weights, the weights that
/// training changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Dtype {
    /// As on the processor.
    #[default]
    F32,
    /// The upper half of an f32: half the memory, and what matrix units are fast at.
    Bf16,
}

impl Dtype {
    /// All that there are.
    pub const ALL: [Dtype; 2] = [Dtype::F32, Dtype::Bf16];
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Dtype::F32 => "f32",
            Dtype::Bf16 => "bf16",
        })
    }
}

impl FromStr for Dtype {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = Dtype::ALL.into_iter().find(|d| d.to_string() == name);
        known.ok_or_else(|| format!("{name:?} is none of \"f32\" and \"bf16\""))
    }
}
