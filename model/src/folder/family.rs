//! The families of models that this crate computes, with one row of facts for each.

/// A family of models that this crate computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Architecture {
    /// Qwen2 and Qwen2.5: biases on queries, keys and values.
    Qwen2,
    /// Qwen3, dense: no biases; queries and keys are normed per head.
    Qwen3,
    /// Llama 2 and 3, and models built like them: no biases.
    Llama,
    /// Mistral: as Llama, with other defaults for missing keys.
    Mistral,
}

/// The families that are not computed here, and that the engine candle evaluates, by `model_type`.
pub const CANDLE_FAMILIES: [&str; 6] = [
    "gemma",
    "gemma2",
    "gemma3_text",
    "phi3",
    "qwen2_moe",
    "qwen3_moe",
];

/// The differences of a family. Defaults for missing keys are those of `transformers`.
pub(crate) struct Facts {
    /// `model_type` of a `config.json`.
    model_type: &'static str,
    /// The `architectures` entry of a language model.
    causal_lm: &'static str,
    /// The `architectures` entry of a critic.
    pub(crate) token_classification: &'static str,
    /// Whether queries, keys and values have biases.
    pub(crate) biases: bool,
    /// Whether every head of queries and keys is normed before its rotation.
    pub(crate) head_norms: bool,
    /// `head_dim` where the file gives none; `None`: hidden size over heads.
    pub(crate) head_dim: Option<usize>,
    /// `num_key_value_heads` where the file does not have the key; `None`: as many as query heads.
    pub(crate) key_value_heads: Option<usize>,
    /// `sliding_window` where the file does not have the key; `None`: the key is not read.
    pub(crate) sliding_window: Option<usize>,
    /// Switches that add parameters which are not computed here.
    pub(crate) refused: &'static [&'static str],
}

const QWEN2: Facts = Facts {
    model_type: "qwen2",
    causal_lm: "Qwen2ForCausalLM",
    token_classification: "Qwen2ForTokenClassification",
    biases: true,
    head_norms: false,
    head_dim: None,
    key_value_heads: Some(32),
    sliding_window: None,
    refused: &[],
};

const QWEN3: Facts = Facts {
    model_type: "qwen3",
    causal_lm: "Qwen3ForCausalLM",
    token_classification: "Qwen3ForTokenClassification",
    biases: false,
    head_norms: true,
    head_dim: Some(128),
    refused: &["attention_bias"],
    ..QWEN2
};

const LLAMA: Facts = Facts {
    model_type: "llama",
    causal_lm: "LlamaForCausalLM",
    token_classification: "LlamaForTokenClassification",
    biases: false,
    head_norms: false,
    head_dim: None,
    key_value_heads: None,
    sliding_window: None,
    refused: &["attention_bias", "mlp_bias"],
};

const MISTRAL: Facts = Facts {
    model_type: "mistral",
    causal_lm: "MistralForCausalLM",
    token_classification: "MistralForTokenClassification",
    key_value_heads: Some(8),
    sliding_window: Some(4096),
    refused: &[],
    ..LLAMA
};

impl Architecture {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Qwen2, Self::Qwen3, Self::Llama, Self::Mistral];

    pub(crate) fn facts(self) -> &'static Facts {
        match self {
            Self::Qwen2 => &QWEN2,
            Self::Qwen3 => &QWEN3,
            Self::Llama => &LLAMA,
            Self::Mistral => &MISTRAL,
        }
    }

    /// `model_type` of a `config.json`.
    pub fn model_type(self) -> &'static str {
        self.facts().model_type
    }

    /// The `architectures` entry of a language model.
    pub fn causal_lm(self) -> &'static str {
        self.facts().causal_lm
    }

    /// What is supported, for messages.
    pub(crate) fn known() -> String {
        let names = Self::ALL.map(|architecture| {
            let facts = architecture.facts();
            format!(
                "{} (model_type {:?}; as a critic {})",
                facts.causal_lm, facts.model_type, facts.token_classification
            )
        });
        names.join(", ")
    }
}
