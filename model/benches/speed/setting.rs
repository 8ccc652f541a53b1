//! The cases and sizes that are measured.

use std::error::Error;

use agentgym_model::TinyShape;

/// A model's sizes and the batch sizes of each case; `tools/torch_speed.py` has the same table.
pub(crate) struct Setting {
    pub(crate) shape: TinyShape,
    /// Tokens of each prompt, and tokens sampled after it.
    pub(crate) decode: (usize, usize),
    /// Sequences of a scoring pass or a training step, and tokens of each.
    pub(crate) sequences: (usize, usize),
    /// Most tokens of the sequences that are computed together, where that was asked for.
    pub(crate) unit_tokens: Option<usize>,
    pub(crate) cases: &'static [&'static str],
}

/// The setting of this name.
///
/// # Errors
/// There is no such setting.
pub(crate) fn setting(name: &str) -> Result<Setting, Box<dyn Error>> {
    Ok(match name {
        "tiny" => Setting {
            shape: TinyShape::default(),
            decode: (160, 190),
            sequences: (16, 160),
            unit_tokens: None,
            cases: &[
                "decode-1",
                "decode-8",
                "decode-32",
                "decode-64",
                "prompt",
                "score",
                "train",
                "save",
                "load",
            ],
        },
        "0.5b" => Setting {
            shape: TinyShape::half_billion(),
            decode: (64, 16),
            sequences: (2, 256),
            unit_tokens: None,
            cases: &[
                "decode-1",
                "decode-8",
                "decode-32",
                "prompt",
                "score",
                "train",
                "save",
                "load",
            ],
        },
        // SmolLM2-135M's sizes, behind prompts as long as a game's.
        "135m" => Setting {
            shape: TinyShape {
                hidden: 576,
                layers: 30,
                heads: 9,
                kv_heads: 3,
                intermediate: 1536,
                vocab: 49_152,
                tokens_max: 8192,
                ..TinyShape::default()
            },
            decode: (300, 16),
            sequences: (8, 256),
            unit_tokens: None,
            cases: &[
                "decode-1",
                "decode-8",
                "decode-32",
                "decode-64",
                "prompt",
                "score",
                "train",
            ],
        },
        // For a GPU: 12 GB of weights in f32.
        "3b" => Setting {
            shape: TinyShape {
                hidden: 2048,
                layers: 36,
                heads: 16,
                intermediate: 11_008,
                ..TinyShape::half_billion()
            },
            decode: (512, 128),
            sequences: (16, 1024),
            unit_tokens: None,
            cases: &["decode-1", "decode-64", "prompt", "score", "train"],
        },
        // Two layers as wide as those of half a billion parameters, on one long sequence.
        "long" => Setting {
            shape: TinyShape {
                layers: 2,
                vocab: TinyShape::default().vocab,
                tokens_max: 32_768,
                ..TinyShape::half_billion()
            },
            decode: (64, 16),
            sequences: (1, 8192),
            unit_tokens: None,
            cases: &["score", "train"],
        },
        other => {
            return Err(format!(
                "--shape {other} is not known; known are tiny, 135m, 0.5b, 3b and long"
            )
            .into());
        }
    })
}
