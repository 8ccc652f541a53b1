//! The number formats that a GPU computes with, and in which weights are written for other programs.

use std::fmt;
use std::str::FromStr;

/// The format of the operands of a GPU's matrix products: weights, what is multiplied with
/// them, keys and values. Sums, and everything that is not such an operand, are always f32:
/// the residual stream, norms, softmax, log-probabilities, gradients of weights, the weights
/// that training changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Dtype {
    /// As on the CPU.
    #[default]
    F32,
    /// The upper half of an f32: half the memory, and fast on matrix units.
    Bf16,
}

impl Dtype {
    /// All formats.
    pub const ALL: [Dtype; 2] = [Dtype::F32, Dtype::Bf16];

    /// Its name in a `config.json`.
    pub(crate) fn in_full(self) -> &'static str {
        match self {
            Dtype::F32 => "float32",
            Dtype::Bf16 => "bfloat16",
        }
    }

    /// The same in a file of safetensors.
    pub(crate) fn in_files(self) -> safetensors::Dtype {
        match self {
            Dtype::F32 => safetensors::Dtype::F32,
            Dtype::Bf16 => safetensors::Dtype::BF16,
        }
    }

    /// Bytes of a number.
    pub fn bytes(self) -> usize {
        match self {
            Dtype::F32 => 4,
            Dtype::Bf16 => 2,
        }
    }
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
