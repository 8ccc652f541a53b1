//! A GGUF file as a test writes it.

use crate::folder::parameter::{is_dense, transpose};
use crate::{Architecture, Policy};
use std::collections::BTreeMap;

/// Header and tensors; tokens, their types and merges apart, since tests change them.
#[derive(Clone)]
pub(crate) struct Sketch {
    pub(crate) version: u32,
    /// Type and bytes.
    pub(crate) values: BTreeMap<String, (u32, Vec<u8>)>,
    /// Sizes, type and bytes.
    pub(crate) tensors: BTreeMap<String, (Vec<usize>, u32, Vec<u8>)>,
    pub(crate) tokens: Vec<String>,
    pub(crate) kinds: Vec<i32>,
    pub(crate) merges: Vec<String>,
    /// A tensor that is listed twice.
    pub(crate) again: Option<String>,
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn list<T>(kind: u32, all: &[T], write: impl Fn(&mut Vec<u8>, &T)) -> (u32, Vec<u8>) {
    let mut out = kind.to_le_bytes().to_vec();
    out.extend((all.len() as u64).to_le_bytes());
    all.iter().for_each(|one| write(&mut out, one));
    (9, out)
}

fn floats(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// Names of layers' parts in a GGUF file, and Hugging Face's.
const PARTS: [(&str, &str); 11] = [
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("attn_norm", "input_layernorm"),
    ("ffn_norm", "post_attention_layernorm"),
];

impl Sketch {
    /// A policy as a converter would write it, in f32.
    pub(crate) fn of(policy: &Policy) -> Self {
        let c = policy.config();
        let family = c.architecture.model_type();
        let file = &policy.tokenizer().files()["tokenizer.json"];
        let read: serde_json::Value = serde_json::from_slice(file).unwrap();
        let mut sketch = Self {
            version: 3,
            values: BTreeMap::new(),
            tensors: BTreeMap::new(),
            tokens: (0..c.vocab_size).map(|id| format!("[PAD{id}]")).collect(),
            kinds: vec![5; c.vocab_size],
            merges: Vec::new(),
            again: None,
        };
        for (token, id) in read["model"]["vocab"].as_object().unwrap() {
            let id = id.as_u64().unwrap() as usize;
            sketch.tokens[id] = token.clone();
            sketch.kinds[id] = if id < 3 { 3 } else { 1 };
        }
        let merges = read["model"]["merges"].as_array().unwrap().iter();
        let merges = merges.map(|pair| [0, 1].map(|of| pair[of].as_str().unwrap()).join(" "));
        sketch.merges = merges.collect();
        sketch.text("general.architecture", family);
        sketch.text("tokenizer.ggml.model", "gpt2");
        sketch.text("tokenizer.ggml.pre", "qwen2");
        sketch.text("tokenizer.chat_template", policy.chat().template());
        sketch.number("tokenizer.ggml.eos_token_id", 2);
        for (name, size) in [
            ("embedding_length", c.hidden_size),
            ("feed_forward_length", c.intermediate_size),
            ("block_count", c.num_hidden_layers),
            ("attention.head_count", c.num_attention_heads),
            ("attention.head_count_kv", c.num_key_value_heads),
            ("attention.key_length", c.head_dim),
            ("attention.value_length", c.head_dim),
            ("context_length", c.max_position_embeddings),
            ("rope.dimension_count", c.head_dim),
        ] {
            sketch.number(&format!("{family}.{name}"), size as u32);
        }
        sketch.real(&format!("{family}.rope.freq_base"), c.rope.theta as f32);
        sketch.real(
            &format!("{family}.attention.layer_norm_rms_epsilon"),
            c.rms_norm_eps as f32,
        );
        for (name, parameter) in policy.weights().iter() {
            let (mut sizes, mut numbers) =
                (parameter.shape().to_vec(), parameter.numbers().to_vec());
            match is_dense(name) {
                true => numbers = transpose(&numbers, sizes[0], sizes[1]),
                false => sizes.reverse(),
            }
            let turned = name.contains("q_proj") || name.contains("k_proj");
            if turned && c.architecture == Architecture::Llama {
                let (row, half) = (sizes[0], c.head_dim / 2);
                let rows: Vec<&[f32]> = numbers.chunks(row).collect();
                let order = (0..rows.len()).map(|at| {
                    let (head, within) = (at / c.head_dim, at % c.head_dim);
                    rows[head * c.head_dim + within % 2 * half + within / 2]
                });
                numbers = order.collect::<Vec<_>>().concat();
            }
            let mut own = name
                .replace("model.embed_tokens", "token_embd")
                .replace("lm_head", "output");
            own = own
                .replace("model.norm", "output_norm")
                .replace("model.layers", "blk");
            if let Some((ours, theirs)) = PARTS.iter().find(|(_, theirs)| own.contains(theirs)) {
                own = own.replace(theirs, ours);
            }
            sketch.tensor(&own, &sizes, &numbers);
        }
        sketch
    }

    pub(crate) fn family(&self) -> &str {
        str::from_utf8(&self.values["general.architecture"].1[8..]).unwrap()
    }

    pub(crate) fn id(&self, token: &str) -> u32 {
        self.tokens.iter().position(|own| own == token).unwrap() as u32
    }

    pub(crate) fn text(&mut self, key: &str, value: &str) {
        let mut bytes = Vec::new();
        text(&mut bytes, value);
        self.values.insert(key.to_owned(), (8, bytes));
    }

    pub(crate) fn number(&mut self, key: &str, value: u32) {
        self.values
            .insert(key.to_owned(), (4, value.to_le_bytes().to_vec()));
    }

    pub(crate) fn short(&mut self, key: &str, value: u16) {
        self.values
            .insert(key.to_owned(), (2, value.to_le_bytes().to_vec()));
    }

    pub(crate) fn real(&mut self, key: &str, value: f32) {
        self.values
            .insert(key.to_owned(), (6, value.to_le_bytes().to_vec()));
    }

    pub(crate) fn reals(&mut self, key: &str, values: &[f32]) {
        let all = list(6, values, |out, x| out.extend(x.to_le_bytes()));
        self.values.insert(key.to_owned(), all);
    }

    pub(crate) fn switch(&mut self, key: &str, on: bool) {
        self.values.insert(key.to_owned(), (7, vec![u8::from(on)]));
    }

    pub(crate) fn tensor(&mut self, name: &str, sizes: &[usize], numbers: &[f32]) {
        self.tensors
            .insert(name.to_owned(), (sizes.to_vec(), 0, floats(numbers)));
    }

    pub(crate) fn kind(&mut self, tensor: &str, kind: u32) {
        self.tensors.get_mut(tensor).unwrap().1 = kind;
    }

    pub(crate) fn remove(&mut self, tensor: &str) {
        self.tensors.remove(tensor).unwrap();
    }

    /// A number that is none.
    pub(crate) fn poison(&mut self, tensor: &str) {
        let bytes = &mut self.tensors.get_mut(tensor).unwrap().2;
        let end = bytes.len();
        bytes[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    }

    pub(crate) fn add_tokens(&mut self, count: usize) {
        for at in 0..count {
            self.tokens.push(format!("more {at}"));
            self.kinds.push(1);
        }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut values = self.values.clone();
        let texts = |all: &[String]| list(8, all, |out, one| text(out, one));
        values.insert("tokenizer.ggml.tokens".into(), texts(&self.tokens));
        values.insert("tokenizer.ggml.merges".into(), texts(&self.merges));
        let kinds = list(5, &self.kinds, |out, x| out.extend(x.to_le_bytes()));
        values.insert("tokenizer.ggml.token_type".into(), kinds);
        let again = self.again.iter().map(|name| (name, &self.tensors[name]));
        let tensors: Vec<_> = self.tensors.iter().chain(again).collect();
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend((tensors.len() as u64).to_le_bytes());
        out.extend((values.len() as u64).to_le_bytes());
        for (key, (kind, bytes)) in &values {
            text(&mut out, key);
            out.extend(kind.to_le_bytes());
            out.extend(bytes);
        }
        let mut start = 0;
        for (name, (sizes, kind, bytes)) in &tensors {
            text(&mut out, name);
            out.extend((sizes.len() as u32).to_le_bytes());
            sizes
                .iter()
                .for_each(|size| out.extend((*size as u64).to_le_bytes()));
            out.extend(kind.to_le_bytes());
            out.extend((start as u64).to_le_bytes());
            start = (start + bytes.len()).next_multiple_of(32);
        }
        for (.., bytes) in tensors.into_iter().map(|(_, tensor)| tensor) {
            out.resize(out.len().next_multiple_of(32), 0);
            out.extend(bytes);
        }
        out
    }
}
