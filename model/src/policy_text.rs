//! What a policy's folder says of text: tokenizer, chat template and the ids that end a message.
//! Who lets a server generate needs these alone, and no weights.

use crate::folder::files::read_if_there;
use crate::{Chat, Error, ModelConfig, Result, TemplateSettings, Tokenizer};
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;

pub(crate) const GENERATION_CONFIG: &str = "generation_config.json";
pub(crate) const END_KEY: &str = "eos_token_id";

/// The text side of a policy; a clone shares everything.
#[derive(Debug, Clone)]
pub struct PolicyText {
    tokenizer: Arc<Tokenizer>,
    chat: Arc<Chat>,
    /// `generation_config.json`, kept byte by byte.
    generation: Option<Arc<[u8]>>,
    eos_ids: Arc<[u32]>,
    /// Those behind which the template's own end does not follow: itself.
    closing_ids: Arc<[u32]>,
    /// How many of the ends are the folder's; the last one may be the template's alone.
    folder_ends: usize,
    vocab_size: usize,
}

impl PolicyText {
    /// Ids of a text that a client wrote as the policy reads it, special strings included, at the beginning
    /// of a sequence or behind other ids. `None` if its length alone shows more than `ids_max` of them.
    ///
    /// # Errors
    /// The tokenizer's.
    pub fn text_ids_within(
        &self,
        text: &str,
        is_behind: bool,
        ids_max: usize,
    ) -> Result<Option<Vec<u32>>> {
        let tokenizer = &self.tokenizer;
        if text.len() > ids_max && tokenizer.text_ids_min(text) > ids_max {
            return Ok(None);
        }
        // Some tokenizers encode the start of a text otherwise than its middle.
        let mut special = tokenizer.special_tokens().iter();
        let end = special.find(|(_, id)| is_behind && self.eos_ids.contains(id));
        if let Some((end, id)) = end {
            let mut ids = tokenizer.encode(&format!("{end}{text}"))?;
            if ids.first() == Some(id) {
                ids.remove(0);
                return Ok(Some(ids));
            }
        }
        tokenizer.encode(text).map(Some)
    }

    /// Reads it from a policy's folder, in which there need be no weights.
    ///
    /// # Errors
    /// A file that is missing or damaged, or files that do not belong together.
    pub fn load(dir: &Path) -> Result<Self> {
        Self::read(dir, &ModelConfig::load(dir)?)
    }

    /// [`PolicyText::load`] for a config that was read.
    pub(crate) fn read(dir: &Path, config: &ModelConfig) -> Result<Self> {
        Self::read_for(dir, config.vocab_size, config.raw(END_KEY))
    }

    /// [`PolicyText::load`] for a model of that many ids, whose messages end with `end` where
    /// `generation_config.json` says nothing of it.
    pub(crate) fn read_for(dir: &Path, vocab_size: usize, end: Option<&Value>) -> Result<Self> {
        let tokenizer = Tokenizer::load(dir)?;
        let chat = Chat::load(dir)?.ok_or_else(|| no_template(dir))?;
        let generation = read_if_there(&dir.join(GENERATION_CONFIG))?;
        let generation = generation.map(Into::into);
        Self::of((vocab_size, end), (tokenizer, chat), generation, dir)
    }

    /// The text side of a model of that many ids.
    pub(crate) fn of(
        (vocab_size, end): (usize, Option<&Value>),
        (tokenizer, chat): (Tokenizer, Chat),
        generation: Option<Arc<[u8]>>,
        dir: &Path,
    ) -> Result<Self> {
        if tokenizer.vocab_size() > vocab_size {
            return Err(Error::Tokenizer {
                path: dir.join("tokenizer.json"),
                message: format!(
                    "has {} ids, the model only {vocab_size}; they do not belong together",
                    tokenizer.vocab_size(),
                ),
            });
        }
        let mut eos_ids = eos_ids((vocab_size, end), generation.as_deref(), dir)?;
        let folder_ends = eos_ids.len();
        // Who checks the template says why it has none.
        let end_of_turn = chat.end_of_turn_id(&tokenizer).ok();
        eos_ids.extend(end_of_turn.filter(|id| !eos_ids.contains(id)));
        Ok(Self {
            tokenizer: Arc::new(tokenizer),
            chat: Arc::new(chat),
            generation,
            eos_ids: eos_ids.into(),
            closing_ids: end_of_turn.into_iter().collect(),
            folder_ends,
            vocab_size,
        })
    }

    /// The tokenizer of the folder.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The chat template of the folder.
    pub fn chat(&self) -> &Chat {
        &self.chat
    }

    /// The same with a template that offers these tools ([`Chat::with_tools`]).
    ///
    /// # Errors
    /// A template that has no place for them.
    pub fn with_tools(&self, tools: &Value) -> Result<Self> {
        Ok(Self {
            chat: Arc::new(self.chat.with_tools(tools)?),
            ..self.clone()
        })
    }

    /// The same with a template that is given these settings ([`Chat::with_settings`]).
    ///
    /// # Errors
    /// Settings that it has no use for.
    pub fn with_settings(&self, settings: &TemplateSettings) -> Result<Self> {
        Ok(Self {
            chat: Arc::new(self.chat.with_settings(settings)?),
            ..self.clone()
        })
    }

    /// Ids that end the policy's message: the folder's, and the template's own.
    pub fn eos_ids(&self) -> &[u32] {
        &self.eos_ids
    }

    /// Whether these ids end as the template ends a reply. After any other end, the template's
    /// follows, as after a message that was cut off.
    pub fn closes(&self, ids: &[u32]) -> bool {
        ids.last().is_some_and(|id| self.closing_ids.contains(id))
    }

    /// The same for a plan of format 1 or 2: the folder's ends alone, nothing follows them, and
    /// what is said next is encoded as a text of its own.
    pub fn of_older_plans(&self) -> Self {
        let ends: Arc<[u32]> = self.eos_ids[..self.folder_ends].into();
        Self {
            chat: Arc::new(self.chat.bridging_alone()),
            eos_ids: Arc::clone(&ends),
            closing_ids: ends,
            ..self.clone()
        }
    }

    /// The number of ids that the model knows.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// Writes its files into a policy's folder, `config.json` apart.
    pub(crate) fn save(&self, dir: &Path) -> Result<()> {
        if let Some(bytes) = &self.generation {
            let path = dir.join(GENERATION_CONFIG);
            std::fs::write(&path, bytes).map_err(Error::io(&path))?;
        }
        self.tokenizer.save(dir)?;
        self.chat.save(dir)
    }
}

pub(crate) fn no_template(dir: &Path) -> Error {
    Error::Template {
        path: dir.join("chat_template.jinja"),
        message: "the folder has no chat template; take an instruct model or add the file"
            .to_owned(),
    }
}

/// `eos_token_id` of generation_config.json, else of config.json: a number or a list.
fn eos_ids(
    (vocab_size, end): (usize, Option<&Value>),
    generation: Option<&[u8]>,
    dir: &Path,
) -> Result<Vec<u32>> {
    let bad = |message: String| Error::Json {
        path: dir.join(GENERATION_CONFIG),
        message,
    };
    let generation: Value = match generation {
        Some(bytes) => serde_json::from_slice(bytes).map_err(|e| bad(e.to_string()))?,
        None => Value::Null,
    };
    let ids = match generation.get(END_KEY).or(end) {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(ids)) => ids.clone(),
        Some(id) => vec![id.clone()],
    };
    ids.iter()
        .map(
            |id| match id.as_u64().and_then(|id| u32::try_from(id).ok()) {
                Some(id) if (id as usize) < vocab_size => Ok(id),
                _ => Err(bad(format!(
                    "eos_token_id {id} is no id of a vocabulary of {vocab_size}"
                ))),
            },
        )
        .collect()
}
