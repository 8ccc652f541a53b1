//! How large the policy of a plan is, from its config alone: no weights are
//! read. The count is that of a Qwen2 model: biases on q, k and v, two norms
//! per layer, the head shared with the embedding where tied.

use agentgym_model::TinyShape;
use agentgym_worker::model_folder;

/// What sizes are computed from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelSize {
    /// Trained parameters.
    pub parameters: u64,
    /// Transformer layers.
    pub layers: u64,
    /// Width of the residual stream.
    pub hidden: u64,
    /// Inner width of the MLP.
    pub intermediate: u64,
    /// Key (or value) width of a layer: key-value heads × head size.
    pub kv_width: u64,
}

/// Dimensions, named as in `config.json`.
#[derive(Debug, Clone, Copy)]
struct Shape {
    vocab: u64,
    hidden: u64,
    intermediate: u64,
    layers: u64,
    heads: u64,
    kv_heads: u64,
    tied: bool,
}

impl Shape {
    fn size(self) -> ModelSize {
        let head = self.hidden / self.heads.max(1);
        let (q, kv) = (self.heads * head, self.kv_heads * head);
        let attention = self.hidden * (q + 2 * kv) + q + 2 * kv + q * self.hidden;
        let layer = attention + 3 * self.hidden * self.intermediate + 2 * self.hidden;
        let tables = self.vocab * self.hidden * if self.tied { 1 } else { 2 };
        ModelSize {
            parameters: tables + self.layers * layer + self.hidden,
            layers: self.layers,
            hidden: self.hidden,
            intermediate: self.intermediate,
            kv_width: kv,
        }
    }
}

/// The size of `actor_rollout_ref.model.path`, or why it is not known here.
pub fn of(path: &str) -> Result<ModelSize, String> {
    if path == "tiny" || path.starts_with("tiny?") {
        return tiny(path.strip_prefix("tiny").unwrap_or_default());
    }
    let folder = model_folder(path)?;
    let file = folder.join("config.json");
    let text = std::fs::read_to_string(&file).map_err(|e| {
        format!(
            "cannot read {}: {e}; a model folder holds config.json, model.safetensors, tokenizer.json and a chat template",
            file.display()
        )
    })?;
    from_config(&text).map_err(|e| format!("{}: {e}", file.display()))
}

fn from_config(text: &str) -> Result<ModelSize, String> {
    let config: serde_json::Value =
        serde_json::from_str(text).map_err(|e| format!("is not JSON: {e}"))?;
    let number = |name: &str| {
        let value = config.get(name).and_then(serde_json::Value::as_u64);
        value.ok_or_else(|| format!("has no number `{name}`"))
    };
    let heads = number("num_attention_heads")?;
    Ok(Shape {
        vocab: number("vocab_size")?,
        hidden: number("hidden_size")?,
        intermediate: number("intermediate_size")?,
        layers: number("num_hidden_layers")?,
        heads,
        kv_heads: number("num_key_value_heads").unwrap_or(heads),
        tied: config
            .get("tie_word_embeddings")
            .and_then(serde_json::Value::as_bool)
            .unwrap_or(false),
    }
    .size())
}

fn tiny(options: &str) -> Result<ModelSize, String> {
    let preset = TinyShape::default();
    let mut shape = Shape {
        vocab: preset.vocab as u64,
        hidden: preset.hidden as u64,
        intermediate: preset.intermediate as u64,
        layers: preset.layers as u64,
        heads: preset.heads as u64,
        kv_heads: preset.kv_heads as u64,
        tied: preset.tied,
    };
    for (name, value) in url::form_urlencoded::parse(options.trim_start_matches('?').as_bytes()) {
        let number = || {
            let parsed = value.parse::<u64>().ok().filter(|n| *n > 0);
            parsed.ok_or_else(|| format!("`{name}={value}` is not a positive whole number"))
        };
        match name.as_ref() {
            "vocab" => shape.vocab = number()?,
            "hidden" => shape.hidden = number()?,
            "layers" => shape.layers = number()?,
            "heads" => shape.heads = number()?,
            "kv_heads" => shape.kv_heads = number()?,
            "intermediate" => shape.intermediate = number()?,
            _ => {
                return Err(format!(
                    "`tiny` has no option `{name}`; known are hidden, layers, heads, kv_heads, intermediate, vocab"
                ));
            }
        }
    }
    Ok(shape.size())
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(size.parameters, stored);
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
