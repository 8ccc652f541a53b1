//! The size of a plan's policy, from its config alone: no weights are read. The count comes from
//! the model's own table of parameters.

use agentgym_jobs::config::Model;
use agentgym_model::{
    DeviceFootprint, Dtype, Footprint, LoraOptions, ModelConfig, TinyShape, factor_names,
    parameter_shapes,
};
use agentgym_worker::model_folder;

/// Dimensions from which sizes are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelSize {
    /// Parameters, without those of an adapter.
    pub parameters: u128,
    /// Trained parameters: all of them, or those of an adapter.
    pub trained: u128,
    /// Rank of the adapter, if one is trained.
    pub adapter_rank: Option<usize>,
    /// What computations add.
    pub footprint: Footprint,
    /// The same with everything else on a GPU, in each type of operands: of the policy, and of a critic
    /// on its trunk.
    on_gpu: [[DeviceFootprint; Dtype::ALL.len()]; 2],
    /// Number of token ids.
    pub vocabulary: u128,
    /// Numbers in the transposed copy of a tied head, which exists next to the embedding while the
    /// model generates; 0 for a separate head, which is among the parameters.
    pub head_copy: u128,
    /// Numbers of the rotary table.
    pub rotary: u128,
    /// Numbers in the weights that the adapter is merged into; 0 without an adapter.
    pub merged: u128,
    /// Parameters without the output head: a critic has one more column.
    pub trunk: u128,
}

impl ModelSize {
    /// What the policy takes on a GPU.
    pub fn on_gpu(&self, dtype: Dtype) -> DeviceFootprint {
        self.on_gpu[0][dtype as usize]
    }

    /// What a critic takes there; a head of one column counts as the policy's.
    pub fn critic_on_gpu(&self, dtype: Dtype) -> DeviceFootprint {
        self.on_gpu[1][dtype as usize]
    }
}

/// The size of `actor_rollout_ref.model`, or why it cannot be determined here.
pub fn of(model: &Model) -> Result<ModelSize, String> {
    let config = config(&model.path)?;
    let adapter = adapter_of(model)?;
    let shapes = parameter_shapes(&config);
    let factors = adapter.as_ref().map(|adapter| adapter.shapes(&config));
    let is_merged = |name: &str| {
        let module = name.strip_suffix(".weight").unwrap_or(name);
        let [factor, _] = factor_names(module);
        factors
            .as_ref()
            .is_some_and(|factors| factors.contains_key(&factor))
    };
    let merged = count(shapes.iter().filter(|(name, _)| is_merged(name)));
    let parameters = count(&shapes);
    let head = config.vocab_size as u128 * config.hidden_size as u128;
    let tied = config.tie_word_embeddings;
    let on_gpu = [adapter.as_ref(), None]
        .map(|adapter| Dtype::ALL.map(|dtype| DeviceFootprint::of(&config, adapter, dtype)));
    Ok(ModelSize {
        on_gpu,
        parameters,
        trained: factors.as_ref().map_or(parameters, count),
        adapter_rank: adapter.map(|adapter| adapter.rank()),
        footprint: Footprint::of(&config),
        vocabulary: config.vocab_size as u128,
        head_copy: if tied { head } else { 0 },
        rotary: config.max_position_embeddings as u128 * config.head_dim as u128,
        merged,
        trunk: parameters - if tied { 0 } else { head },
    })
}

/// The adapter that is trained instead of the model, or why it cannot be determined here.
pub fn adapter_of(model: &Model) -> Result<Option<LoraOptions>, String> {
    match &model.lora_adapter_path {
        Some(path) => {
            let options = LoraOptions::load(&model_folder(path)?).map_err(|e| {
                format!(
                    "{e}; an adapter folder holds adapter_config.json and adapter_model.safetensors"
                )
            })?;
            Ok(Some(options))
        }
        None if !model.has_adapter() => Ok(None),
        None => {
            let modules = model.target_modules.iter();
            LoraOptions::new(model.lora_rank, model.lora_alpha, modules).map(Some)
        }
    }
}

/// The shape of the model at `path`, or why it cannot be used.
pub(crate) fn config(path: &str) -> Result<ModelConfig, String> {
    if let Some(shape) = TinyShape::preset(path)? {
        return shape.config().map_err(|e| e.to_string());
    }
    let folder = model_folder(path)?;
    ModelConfig::load(&folder).map_err(|e| told(&e))
}

/// The error of a model folder; if a file is missing, with the files that belong there.
pub(crate) fn told(error: &agentgym_model::Error) -> String {
    match error {
        agentgym_model::Error::Io { .. } => format!(
            "{error}; a model folder holds config.json, model.safetensors, tokenizer.json and a chat template"
        ),
        other => other.to_string(),
    }
}

fn count<'a>(shapes: impl IntoIterator<Item = (&'a String, &'a Vec<usize>)>) -> u128 {
    let shapes = shapes.into_iter();
    shapes
        .map(|(_, shape)| shape.iter().map(|&size| size as u128).product::<u128>())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(path: &str) -> Result<ModelSize, String> {
        super::of(&model(path, 0))
    }

    fn model(path: &str, lora_rank: i64) -> Model {
        Model {
            path: path.to_owned(),
            dtype: agentgym_jobs::config::SaveDtype::F32,
            lora_rank,
            lora_alpha: 16.0,
            template_date: None,
            template_variables: Default::default(),
            target_modules: agentgym_jobs::config::Files::One("q_proj".to_owned()),
            lora_adapter_path: None,
            enable_gradient_checkpointing: false,
        }
    }

    #[test]
    fn an_adapter_counts_its_factors() {
        let path = "tiny?hidden=32&layers=3&heads=2&kv_heads=1&vocab=400";
        let (all, size) = (of(path).unwrap(), super::of(&model(path, 4)).unwrap());
        assert_eq!((all.trained, all.adapter_rank), (all.parameters, None));
        assert_eq!(
            (size.parameters, size.adapter_rank),
            (all.parameters, Some(4))
        );
        assert_eq!(size.trained, 3 * 4 * (32 + 32));
        assert_eq!((all.merged, size.merged), (0, 3 * 32 * 32));
    }

    #[test]
    fn the_fixture_model_has_as_many_parameters_as_its_weights() {
        let fixtures = std::env::var("AGENTGYM_FIXTURES").unwrap_or_else(|_| {
            concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures").to_owned()
        });
        let folder = std::path::Path::new(&fixtures).join("qwen2-tiny");
        let size = of(&folder.to_string_lossy()).unwrap();
        // A safetensors file starts with the length of its JSON header.
        let file = std::fs::read(folder.join("model.safetensors")).unwrap();
        let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
        let header: serde_json::Value = serde_json::from_slice(&file[8..8 + length]).unwrap();
        let stored: u64 = header
            .as_object()
            .unwrap()
            .iter()
            .filter(|(name, _)| *name != "__metadata__")
            .map(|(_, t)| {
                let shape = t["shape"].as_array().unwrap();
                shape.iter().map(|d| d.as_u64().unwrap()).product::<u64>()
            })
            .sum();
        assert_eq!(size.parameters, u128::from(stored));
    }

    #[test]
    fn what_is_not_here_says_how_to_get_it() {
        assert!(of("no/such/folder").unwrap_err().contains("no folder"));
        assert!(
            of("someorg/no-such-model")
                .unwrap_err()
                .contains("hf download someorg/no-such-model")
        );
    }
}
