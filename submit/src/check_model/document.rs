//! What a model's folder holds, as a document.

use serde::Serialize;
use std::collections::BTreeMap;

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct WeightFiles {
    pub(super) files: Vec<String>,
    pub(super) bytes: u64,
    /// Numbers by format.
    pub(super) numbers: BTreeMap<String, u64>,
}

/// What `actor_rollout_ref.rollout.engine=candle` evaluates of a model that is not computed here.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Candle {
    pub(super) family: String,
    pub(super) gguf: bool,
    pub(super) parameters: u64,
    pub(super) positions: usize,
}

/// Bytes of memory at least, without what sequences add.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Least {
    /// `cpu`, `cuda f32` or `cuda bf16`.
    pub(super) device: &'static str,
    pub(super) generate: u64,
    pub(super) train: u64,
    pub(super) lora: u64,
}

/// Of a worker on the processor, by the keys' defaults.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct MemoryDocument {
    pub(super) threads: u64,
    pub(super) machine_bytes: u64,
    pub(super) stages: BTreeMap<String, u64>,
    pub(super) lora_stages: BTreeMap<String, u64>,
    pub(super) lora_rank: i64,
    pub(super) least_bytes: Vec<Least>,
}

/// `check-model FOLDER`; printed too where the command ends with 2, for a model that is whole and cannot
/// be used.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ModelDocument {
    pub(super) folder: String,
    pub(super) model_type: Option<String>,
    pub(super) architecture: Option<String>,
    /// `policy` or `critic`; none for a model that is not computed here.
    pub(super) role: Option<&'static str>,
    pub(super) sizes: BTreeMap<&'static str, Option<u64>>,
    pub(super) parameters: u64,
    pub(super) weights: WeightFiles,
    pub(super) tokenizer_ids: Option<usize>,
    pub(super) chat_template: bool,
    pub(super) notes: Vec<String>,
    /// Whether it can `generate`, `score`, `train` and `lora`.
    pub(super) supported: BTreeMap<&'static str, bool>,
    pub(super) why_not: Vec<String>,
    pub(super) families: Vec<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) candle: Option<Candle>,
    pub(super) memory: Option<MemoryDocument>,
}
