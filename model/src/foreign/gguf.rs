//! Models in a GGUF file: what its header says, what candle computes of it, and whether its vocabulary
//! is that of the tokenizer beside it. The reader of the file is candle's own, which bounds what it
//! allocates by the file's length.

use super::network::{Chunks, Network, Reach};
use crate::folder::files;
use crate::{Error, Result, Tokenizer};
use candle_core::Device;
use candle_core::quantized::gguf_file::{Content, Value};
use candle_transformers::models::{quantized_llama, quantized_phi3, quantized_qwen3};
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

/// `general.architecture` of the files that are read. Llama's is Mistral's too. Candle has networks for
/// other files that give other numbers than their authors' (Gemma 3), that run on a GPU alone (mixtures
/// of experts), or that cannot hold two conversations (Qwen2).
pub(super) const ARCHITECTURES: [&str; 3] = ["llama", "phi3", "qwen3"];

const TOKENS: &str = "tokenizer.ggml.tokens";
const EMBEDDING: &str = "token_embd.weight";
const LAYERS_MAX: f64 = 4096.0;
/// Of a hundred tokens, how many may be spelled otherwise than in the tokenizer: programs that write
/// such files rename unused ones.
const OTHER_SPELLINGS_MAX: usize = 1;

/// The header of a GGUF file.
pub(super) struct GgufFile {
    path: PathBuf,
    file: BufReader<File>,
    content: Content,
    pub(super) architecture: &'static str,
    pub(super) vocab_size: usize,
    pub(super) parameters: u64,
    pub(super) reach: Reach,
}

/// The one GGUF file of a folder, if it has any.
///
/// # Errors
/// There are several.
pub(super) fn find(dir: &Path) -> Result<Option<PathBuf>> {
    let entries = std::fs::read_dir(dir).map_err(Error::io(dir))?.flatten();
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    found.retain(|path| path.extension().is_some_and(|end| end == "gguf"));
    found.sort_unstable();
    match found.as_slice() {
        [] => Ok(None),
        [one] => Ok(Some(one.clone())),
        [one, other, ..] => Err(Error::Unsupported {
            path: dir.to_owned(),
            message: format!(
                "holds several GGUF files, {} and {} among them; keep one, whole (parts are joined by \
                 `llama-gguf-split --merge`)",
                one.file_name().unwrap_or_default().display(),
                other.file_name().unwrap_or_default().display()
            ),
        }),
    }
}

impl GgufFile {
    /// Reads the header.
    ///
    /// # Errors
    /// A damaged file, or a model that candle does not compute.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let mut file = BufReader::new(files::open(path)?);
        let content = Content::read(&mut file).map_err(|e| Error::Candle {
            path: path.to_owned(),
            message: format!("{e}; copy the file again"),
        })?;
        let named = content.metadata.get("general.architecture");
        let named = named
            .and_then(|name| name.to_string().ok())
            .cloned()
            .unwrap_or_default();
        let known = ARCHITECTURES.into_iter().find(|known| *known == named);
        let Some(architecture) = known else {
            return Err(Error::Unsupported {
                path: path.to_owned(),
                message: format!(
                    "general.architecture is {named:?}, and of GGUF files {} are read; give the folder that it was made \
                     from, with config.json and model.safetensors",
                    ARCHITECTURES.join(", ")
                ),
            });
        };
        let embedding = content.tensor_infos.get(EMBEDDING);
        let vocab_size = embedding.and_then(|info| info.shape.dims().first().copied());
        let numbers = content
            .tensor_infos
            .values()
            .map(|info| info.shape.elem_count() as u64);
        let mut found = Self {
            path: path.to_owned(),
            parameters: numbers.sum(),
            vocab_size: vocab_size.unwrap_or(0),
            architecture,
            file,
            content,
            reach: Reach {
                positions: 0,
                why: String::new(),
                chunks: match architecture {
                    "qwen3" => Chunks::First,
                    _ => Chunks::Anywhere,
                },
            },
        };
        if vocab_size.is_none() {
            return Err(found.bad(format!("has no {EMBEDDING}; copy the file again")));
        }
        found.check()?;
        found.bound()?;
        Ok(found)
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    fn bad(&self, message: String) -> Error {
        Error::Unsupported {
            path: self.path.clone(),
            message,
        }
    }

    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    /// A number of the header.
    fn number(&self, name: &str) -> Option<f64> {
        let value = self.content.metadata.get(&self.key(name))?;
        let whole = value.to_u64().ok().map(|number| number as f64);
        whole.or_else(|| value.to_f32().ok().map(f64::from))
    }

    fn size(&self, name: &str) -> Result<usize> {
        match self.number(name) {
            Some(number) if number >= 1.0 && number < (1u64 << 32) as f64 => Ok(number as usize),
            found => Err(self.bad(format!(
                "{} must be a positive number, found {found:?}",
                self.key(name)
            ))),
        }
    }

    /// Refuses what candle would compute otherwise than the file's authors, and sizes beyond any model,
    /// for which it would take memory before it reads a weight.
    fn check(&self) -> Result<()> {
        for (key, most) in [("block_count", LAYERS_MAX), ("expert_count", 1.0)] {
            if let Some(found) = self.number(key).filter(|found| *found > most) {
                return Err(self.bad(format!(
                    "{} is {found}; candle computes at most {most} in GGUF files",
                    self.key(key)
                )));
            }
        }
        let scaling = self.content.metadata.get(&self.key("rope.scaling.type"));
        let scaling = scaling
            .and_then(|kind| kind.to_string().ok())
            .filter(|kind| *kind != "none");
        let tensor = |name: &str| self.content.tensor_infos.contains_key(name);
        if scaling.is_some() || tensor("rope_freqs.weight") || tensor("rope_factors_long.weight") {
            return Err(self.bad(
                "scales its rotary frequencies, which candle does not compute for GGUF files"
                    .to_owned(),
            ));
        }
        if self.architecture == "llama" && tensor("blk.0.attn_q.bias") {
            return Err(self
                .bad("has biases of queries, which candle does not compute for llama".to_owned()));
        }
        let width = self.size("embedding_length")? / self.size("attention.head_count")?.max(1);
        let wanted = [
            ("rope.freq_base", self.architecture == "phi3", 10_000.0),
            (
                "rope.dimension_count",
                self.architecture != "qwen3",
                width as f64,
            ),
            (
                "attention.key_length",
                self.architecture != "qwen3",
                width as f64,
            ),
        ];
        for (key, _, only) in wanted.into_iter().filter(|(_, concerns, _)| *concerns) {
            if let Some(found) = self.number(key).filter(|found| *found != only) {
                return Err(self.bad(format!(
                    "{} is {found}, which candle does not compute; only {only} is supported",
                    self.key(key)
                )));
            }
        }
        Ok(())
    }

    fn bound(&mut self) -> Result<()> {
        let bounds = [
            ("context_length", Some(self.size("context_length")?)),
            (
                "attention.sliding_window",
                self.size("attention.sliding_window").ok(),
            ),
        ];
        let bounds = bounds.map(|(key, most)| {
            (
                format!("{} of {}", self.key(key), self.path.display()),
                most,
            )
        });
        let candle = (
            "candle's own table of positions for llama files".to_owned(),
            (self.architecture == "llama").then_some(quantized_llama::MAX_SEQ_LEN),
        );
        let all = bounds.into_iter().chain([candle]);
        let least = all.filter_map(|(why, most)| Some((most?, why))).min();
        if let Some((positions, why)) = least {
            (self.reach.positions, self.reach.why) = (positions, why);
        }
        Ok(())
    }

    /// The id that ends a message.
    pub(super) fn end(&self) -> Option<serde_json::Value> {
        let id = self.content.metadata.get("tokenizer.ggml.eos_token_id")?;
        id.to_u64().ok().map(Into::into)
    }

    /// Refuses a tokenizer that would number other texts than the file's model was trained with.
    pub(super) fn check_vocabulary(&self, tokenizer: &Tokenizer) -> Result<()> {
        let beside = self.path.with_file_name("tokenizer.json");
        let tokens = self
            .content
            .metadata
            .get(TOKENS)
            .and_then(|tokens| tokens.to_vec().ok());
        let Some(tokens) = tokens else {
            return Err(self.bad(format!(
                "has no {TOKENS}, so that nobody can say whether {} is its tokenizer",
                beside.display()
            )));
        };
        let spelled = |id: u32| {
            tokens
                .get(id as usize)
                .and_then(|token| token.to_string().ok())
        };
        let ids = tokenizer.vocab_size();
        let named = (0..ids as u32).filter_map(|id| Some((id, tokenizer.id_to_token(id)?)));
        let other: Vec<(u32, String)> = named
            .filter(|(id, token)| spelled(*id) != Some(token))
            .collect();
        match other.first() {
            Some((id, token)) if ids > tokens.len() || other.len() * 100 > ids * OTHER_SPELLINGS_MAX => {
                Err(self.bad(format!(
                    "has {} tokens and another vocabulary than {}, which has {ids} ids: {} of them are spelled otherwise, the \
                     first is {id}, {token:?} there and {} here; take tokenizer.json of the model that the file was made from",
                    tokens.len(),
                    beside.display(),
                    other.len(),
                    spelled(*id).map_or("none".to_owned(), |token| format!("{token:?}")),
                )))
            }
            _ => Ok(()),
        }
    }

    /// The network, for conversations of at most `context` ids.
    ///
    /// # Errors
    /// Candle's, where it does not find a weight or a number of the header.
    pub(super) fn network(mut self, context: usize, device: &Device) -> Result<Network> {
        // Its caches are as long as a conversation may be, and its numbers are f32.
        let length = Value::U32(u32::try_from(context).unwrap_or(u32::MAX));
        self.content
            .metadata
            .insert(self.key("context_length"), length);
        self.content
            .metadata
            .insert("general.dtype".to_owned(), Value::U32(0));
        let (content, file) = (self.content, &mut self.file);
        let built = match self.architecture {
            "llama" => quantized_llama::ModelWeights::from_gguf(content, file, device)
                .map(Network::LlamaFile),
            "phi3" => quantized_phi3::ModelWeights::from_gguf(false, content, file, device)
                .map(Network::Phi3File),
            _ => quantized_qwen3::ModelWeights::from_gguf(content, file, device)
                .map(Network::Qwen3File),
        };
        built.map_err(|e| Error::Candle {
            path: self.path,
            message: format!("{e}; the file is not whole, or of a later kind: copy it again"),
        })
    }
}
