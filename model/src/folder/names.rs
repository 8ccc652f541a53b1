//! Names of tensors and files in a model folder.

/// Names of the embedding and of a head that is not tied to it.
pub(crate) const EMBEDDING: &str = "model.embed_tokens.weight";

pub(crate) const HEAD: &str = "lm_head.weight";

/// Hugging Face's names of the value head, `[1, hidden]` and `[1]`.
pub(crate) const HEAD_WEIGHT: &str = "score.weight";

pub(crate) const HEAD_BIAS: &str = "score.bias";

/// The weights in one file; or the index of several.
pub(crate) const MODEL: &str = "model.safetensors";

pub(crate) const INDEX: &str = "model.safetensors.index.json";

pub(crate) const CONFIG: &str = "config.json";

pub(crate) const ADAPTER_CONFIG: &str = "adapter_config.json";

pub(crate) const FACTOR_A: &str = ".lora_A.weight";

pub(crate) const FACTOR_B: &str = ".lora_B.weight";
