//! Tests of the whole model: golden numbers, oracles, batch invariance, training.

mod checkpoint;
mod composed;
mod critic;
mod families;
mod folders;
mod golden;
mod golden_lora;
mod invariance;
mod layouts;
mod oracle;
mod sharing;
mod training;

use std::path::PathBuf;

use crate::{
    Adapter, Architecture, Device, LoraOptions, ModelConfig, Parameter, Policy, ScoreRequest,
    TrainSequence, Weights, parameter_shapes,
};

/// The fixture set: `AGENTGYM_FIXTURES`, else the workspace's own.
pub(crate) fn fixtures() -> PathBuf {
    match std::env::var_os("AGENTGYM_FIXTURES") {
        Some(path) => path.into(),
        None => concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures").into(),
    }
}

/// The golden model.
pub(crate) fn tiny_policy() -> Policy {
    Policy::load(&fixtures().join("qwen2-tiny"), &Device::cpu()).unwrap()
}

/// Sizes of an invented model.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    /// Elements per head.
    pub(crate) width: usize,
    pub(crate) inner: usize,
    pub(crate) layers: usize,
    pub(crate) tied: bool,
    pub(crate) architecture: Architecture,
    /// Residual stream, where it is not heads × width.
    pub(crate) hidden: Option<usize>,
    /// `rope_parameters`, as JSON.
    pub(crate) rope: &'static str,
}

const ROPE: &str = r#"{"rope_theta": 1000.0}"#;

/// Head widths below, at and across the vector width; groups of 1, 2, 3, 4 and 7; Qwen3 with
/// heads wider and narrower than their share of the residual stream; scaled frequencies.
pub(crate) const SHAPES: [Shape; 10] = [
    Shape {
        heads: 4,
        kv_heads: 2,
        width: 16,
        inner: 80,
        layers: 2,
        tied: true,
        architecture: Architecture::Qwen2,
        hidden: None,
        rope: ROPE,
    },
    Shape {
        heads: 3,
        kv_heads: 1,
        width: 24,
        inner: 50,
        layers: 3,
        tied: false,
        architecture: Architecture::Qwen2,
        hidden: None,
        rope: ROPE,
    },
    Shape {
        heads: 2,
        kv_heads: 2,
        width: 6,
        inner: 33,
        layers: 1,
        tied: false,
        architecture: Architecture::Qwen2,
        hidden: None,
        rope: ROPE,
    },
    Shape {
        heads: 7,
        kv_heads: 1,
        width: 64,
        inner: 600,
        layers: 2,
        tied: true,
        architecture: Architecture::Qwen2,
        hidden: None,
        rope: ROPE,
    },
    Shape {
        heads: 4,
        kv_heads: 2,
        width: 16,
        inner: 80,
        layers: 2,
        tied: true,
        architecture: Architecture::Qwen3,
        hidden: Some(48),
        rope: ROPE,
    },
    Shape {
        heads: 3,
        kv_heads: 1,
        width: 24,
        inner: 50,
        layers: 3,
        tied: false,
        architecture: Architecture::Qwen3,
        hidden: Some(100),
        rope: ROPE,
    },
    Shape {
        heads: 6,
        kv_heads: 2,
        width: 8,
        inner: 33,
        layers: 1,
        tied: true,
        architecture: Architecture::Qwen3,
        hidden: None,
        rope: ROPE,
    },
    Shape {
        heads: 4,
        kv_heads: 2,
        width: 16,
        inner: 80,
        layers: 2,
        tied: true,
        architecture: Architecture::Llama,
        hidden: None,
        rope: r#"{"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 64}"#,
    },
    Shape {
        heads: 3,
        kv_heads: 1,
        width: 24,
        inner: 50,
        layers: 3,
        tied: false,
        architecture: Architecture::Mistral,
        hidden: Some(100),
        rope: ROPE,
    },
    Shape {
        heads: 4,
        kv_heads: 1,
        width: 20,
        inner: 33,
        layers: 1,
        tied: false,
        architecture: Architecture::Llama,
        hidden: Some(64),
        rope: r#"{"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0,
            "original_max_position_embeddings": 32}"#,
    },
];

/// A policy with random numbers in every parameter.
pub(crate) fn random_policy(shape: Shape, seed: u64) -> Policy {
    let model = tiny_policy();
    let raw = serde_json::json!({
        "architectures": [shape.architecture.causal_lm()],
        "model_type": shape.architecture.model_type(),
        "hidden_size": shape.hidden.unwrap_or(shape.heads * shape.width),
        "head_dim": shape.width,
        "intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "vocab_size": model.config().vocab_size.max(400),
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "rope_parameters": serde_json::from_str::<serde_json::Value>(shape.rope).unwrap(),
        "tie_word_embeddings": shape.tied,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "sliding_window": null,
    });
    let config = ModelConfig::from_json(raw.as_object().unwrap().clone(), "test".as_ref()).unwrap();
    let mut random = Random(seed);
    let parameters = parameter_shapes(&config)
        .into_iter()
        .map(|(name, shape)| {
            let count: usize = shape.iter().product();
            let (offset, scale) = match (name.contains("norm"), shape.as_slice()) {
                (true, _) => (1.0, 0.5),
                (_, [_]) => (0.0, 1.0),
                (_, shape) => (0.0, 3.0 / (shape[0] as f32).sqrt()),
            };
            let numbers = (0..count)
                .map(|_| offset + scale * (random.unit() - 0.5))
                .collect();
            (name, Parameter::new(shape, numbers))
        })
        .collect();
    let (tokenizer, chat) = (model.tokenizer().clone(), model.chat().clone());
    Policy::new(config, Weights::new(parameters), tokenizer, chat).unwrap()
}

/// An adapter of a policy with random numbers in both factors.
pub(crate) fn random_adapter(policy: &Policy, options: LoraOptions, seed: u64) -> Adapter {
    let adapter = Adapter::new(policy.config(), options, "base", seed);
    let mut random = Random(seed);
    let mut weights = adapter.weights().clone();
    for (name, parameter) in adapter.weights().iter() {
        let scale = 1.0 / (parameter.shape()[0] as f32).sqrt();
        weights.replace(name, |old| {
            (old.iter())
                .map(|_| scale * (random.unit() - 0.5))
                .collect()
        });
    }
    adapter.with_weights(weights)
}

/// A 64-bit linear congruential generator.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % bound
    }

    pub(crate) fn unit(&mut self) -> f32 {
        self.below(1 << 24) as f32 / (1 << 24) as f32
    }
}

/// Sequences of the given lengths with a random mask that excludes the first token.
pub(crate) fn sequences(vocabulary: usize, lengths: &[usize], seed: u64) -> Vec<TrainSequence> {
    let mut random = Random(seed);
    lengths
        .iter()
        .map(|&length| TrainSequence {
            token_ids: (0..length)
                .map(|_| random.below(vocabulary) as u32)
                .collect(),
            loss_mask: (0..length).map(|t| t > 0 && random.below(3) > 0).collect(),
        })
        .collect()
}

/// Sequences that begin alike, as the samples of a few tasks do: branches of an answer at several
/// places, one of them deep; one sequence twice, one that is the beginning of another, one without
/// an answer, one task with a single sample.
pub(crate) fn related(vocabulary: usize, seed: u64) -> Vec<TrainSequence> {
    let mut random = Random(seed + 1000);
    let mut ids = |length: usize| -> Vec<u32> {
        let own = (0..length).map(|_| random.below(vocabulary) as u32);
        own.collect()
    };
    let (prompt, turn, other) = (ids(70), ids(33), ids(20));
    let mut all = Vec::new();
    for answer in [ids(30), ids(5), ids(64)] {
        all.push([prompt.as_slice(), &answer].concat());
    }
    for answer in [ids(1), ids(40), ids(40)] {
        all.push([prompt.as_slice(), &turn, &answer].concat());
    }
    let deep = all[5].clone();
    for (kept, answer) in [
        (130, ids(9)),
        (deep.len() - 1, ids(12)),
        (deep.len(), ids(3)),
    ] {
        all.push([&deep[..kept], answer.as_slice()].concat());
    }
    all.push(all[1].clone());
    all.push(all[4][..90].to_vec());
    all.push(prompt.clone());
    all.push([other.as_slice(), &ids(50)].concat());
    all.push(ids(1));
    let mut random = Random(seed);
    let sequence = |token_ids: Vec<u32>| {
        let answer = if token_ids.starts_with(&other) {
            20
        } else {
            70
        };
        let loss_mask = (0..token_ids.len()).map(|t| t >= answer && random.below(4) > 0);
        TrainSequence {
            loss_mask: loss_mask.collect(),
            token_ids,
        }
    };
    all.into_iter().map(sequence).collect()
}

pub(crate) fn requests(sequences: &[TrainSequence]) -> Vec<ScoreRequest<'_>> {
    sequences
        .iter()
        .map(|s| ScoreRequest {
            token_ids: &s.token_ids,
            loss_mask: &s.loss_mask,
        })
        .collect()
}

/// Largest |a − b| over the rms of b.
pub(crate) fn relative_error(found: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let squares: f64 = expected.iter().map(|&x| f64::from(x).powi(2)).sum();
    let rms = (squares / expected.len() as f64).sqrt();
    let worst = found
        .iter()
        .zip(expected)
        .map(|(&a, &b)| f64::from(a - b).abs())
        .fold(0.0, f64::max);
    worst / rms.max(1e-12)
}
