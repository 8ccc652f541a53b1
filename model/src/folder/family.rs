//! The families of models that this crate computes: what is known of each, in one place.

/// A family of models that this crate computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Architecture {
    /// Qwen2 and Qwen2.5: biases on queries, keys and values.
    Qwen2,
    /// Qwen3, dense: no biases; queries and keys are normed per head.
    Qwen3,
}

impl Architecture {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Qwen2, Self::Qwen3];

    /// `model_type` of a `config.json`.
    pub fn model_type(self) -> &'static str {
        match self {
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
        }
    }

    /// The `architectures` entry of a language model.
    pub fn causal_lm(self) -> &'static str {
        match self {
            Self::Qwen2 => "Qwen2ForCausalLM",
            Self::Qwen3 => "Qwen3ForCausalLM",
        }
    }

    /// The `architectures` entry of a critic.
    pub(crate) fn token_classification(self) -> &'static str {
        match self {
            Self::Qwen2 => "Qwen2ForTokenClassification",
            Self::Qwen3 => "Qwen3ForTokenClassification",
        }
    }

    /// `head_dim` where the file gives none: what `transformers` takes.
    pub(crate) fn default_head_width(self, hidden_size: usize, heads: usize) -> usize {
        match self {
            Self::Qwen2 => hidden_size / heads,
            Self::Qwen3 => 128,
        }
    }

    /// What is supported, for messages.
    pub(crate) fn known() -> String {
        let names = Self::ALL.map(|a| {
            let (model, critic) = (a.causal_lm(), a.token_classification());
            format!(
                "{model} (model_type {:?}; as a critic {critic})",
                a.model_type()
            )
        });
        names.join(", ")
    }
}
