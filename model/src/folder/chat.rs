//! Encodes messages as token ids with the model folder's own chat template.
//!
//! An episode's token ids are never rendered again (I6): the first prompt is rendered
//! and encoded whole, and each later turn appends only what the template puts between
//! the policy's reply and its next one. [`Chat::check`] verifies at start-up that
//! both ways give the same text, and refuses a template for which they do not.

mod check;
mod guard;
mod limit;
mod message;
mod python;
mod tools;

use self::guard::{GUARD, Guarded};
use self::limit::Limited;
use self::message::{CLOSE, OPEN};
pub use self::message::{Message, Role};
use crate::folder::tokenizer::{Needles, Part, Tokenizer, excerpt, read_files};
use crate::{Error, Result};
use minijinja::{Environment, ErrorKind, UndefinedBehavior};
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// Files that hold a template and the names of its special tokens.
const FILES: [&str; 3] = [
    "chat_template.jinja",
    "tokenizer_config.json",
    "tokenizer.json",
];

/// Largest number of instructions of one rendering. A message takes a few dozen, so there is
/// room for tens of thousands of messages.
const INSTRUCTIONS_MAX: u64 = 10_000_000;

/// Largest number of bytes of one rendering beyond [`CONTENTS_MAX`] times its contents.
const TEXT_MAX: usize = 16 << 20;

/// How often a template may repeat its contents.
const CONTENTS_MAX: usize = 4;

/// What the template puts around an observation in the middle of an episode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bridge {
    /// The special token that ends the policy's reply, such as `<|im_end|>`.
    pub end_of_turn: String,
    /// The text from there to the observation.
    pub before_observation: String,
    /// The text from the observation to the next reply, generation prompt included.
    pub after_observation: String,
}

/// A compiled chat template.
#[derive(Debug, Clone)]
pub struct Chat {
    environment: Arc<Environment<'static>>,
    template: String,
    /// `bos_token`, `eos_token` … as templates see them.
    named_tokens: BTreeMap<String, String>,
    /// The special strings.
    special: Needles,
    /// The strings replaced by placeholders in contents: the special strings, and [`GUARD`].
    guarded: Needles,
    /// What the policy may call; null where it acts by text.
    tools: Json,
    /// The same template with the tools that were asked for last, found fit for them.
    offering: Arc<Mutex<Option<Box<Chat>>>>,
    path: PathBuf,
}

impl Chat {
    /// Reads the template of a policy folder: `chat_template.jinja`, else
    /// `chat_template` of `tokenizer_config.json` (a string, or the `default` entry of
    /// a list). `None` if the folder has neither.
    pub fn load(dir: &Path) -> Result<Option<Self>> {
        Self::from_files(&read_files(dir, &FILES)?, dir)
    }

    /// Builds from the contents of a policy folder's files, by name; `dir` appears in
    /// messages.
    pub fn from_files(files: &BTreeMap<String, Vec<u8>>, dir: &Path) -> Result<Option<Self>> {
        let [file, config_file, tokenizer_file] = FILES;
        let config: Json = json(files, config_file, dir)?.unwrap_or_default();
        let tokenizer: TokenizerFile = json(files, tokenizer_file, dir)?.unwrap_or_default();
        let (path, template) = match (files.get(file), embedded_template(&config)) {
            (Some(bytes), _) => {
                let path = dir.join(file);
                let template = String::from_utf8(bytes.clone()).map_err(|e| Error::Template {
                    path: path.clone(),
                    message: format!("is not UTF-8: {e}"),
                })?;
                (path, template)
            }
            (None, Some(template)) => (dir.join(config_file), template),
            (None, None) => return Ok(None),
        };
        let named_tokens = ["bos_token", "eos_token", "pad_token", "unk_token"]
            .into_iter()
            .filter_map(|name| Some((name.to_owned(), token_text(config.get(name)?)?)))
            .collect();
        let special = (tokenizer.added_tokens.as_array())
            .into_iter()
            .flatten()
            .filter(|token| token.get("special").and_then(Json::as_bool) == Some(true))
            .filter_map(token_text)
            .collect();
        Self::new(template, named_tokens, special, path).map(Some)
    }

    /// Compiles `template`. `special` are the spellings of all special tokens;
    /// `path` appears in messages.
    pub fn new(
        template: String,
        named_tokens: BTreeMap<String, String>,
        special: Vec<String>,
        path: PathBuf,
    ) -> Result<Self> {
        let needles = || special.iter().map(String::as_str);
        let search = Needles::new(needles());
        let search =
            search.and_then(|special| Ok((special, Needles::new(needles().chain([GUARD]))?)));
        let (special, guarded) = search.map_err(|message| Error::Template {
            path: path.clone(),
            message,
        })?;
        let mut environment = Environment::new();
        environment.set_fuel(Some(INSTRUCTIONS_MAX));
        environment.set_undefined_behavior(UndefinedBehavior::Lenient);
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_filter("tojson", python::to_json);
        environment.add_function("raise_exception", python::raise_exception);
        // The whitespace rules under which published templates are written.
        let syntax = minijinja::syntax::SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build();
        let built = syntax.and_then(|syntax| {
            environment.set_syntax(syntax);
            environment.add_template_owned("chat", template.clone())
        });
        if let Err(e) = built {
            return Err(Error::Template {
                path,
                message: format!("the chat template does not parse: {e}"),
            });
        }
        Ok(Chat {
            environment: Arc::new(environment),
            template,
            named_tokens,
            special,
            guarded,
            tools: Json::Null,
            offering: Arc::default(),
            path,
        })
    }

    /// The template's text.
    pub fn template(&self) -> &str {
        &self.template
    }

    /// Writes the template as `chat_template.jinja`.
    pub fn save(&self, dir: &Path) -> Result<()> {
        let path = dir.join(FILES[0]);
        std::fs::write(&path, &self.template).map_err(Error::io(&path))
    }

    /// The conversation as text, with the opening of the next reply if
    /// `add_generation_prompt`.
    pub fn render(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String> {
        let contents = messages.iter().map(|message| message.content.len()).sum();
        self.rendered(
            &serde_json::json!(messages),
            contents,
            add_generation_prompt,
        )
    }

    /// [`Self::render`] of messages with `contents` bytes of content.
    fn rendered(
        &self,
        messages: &Json,
        contents: usize,
        add_generation_prompt: bool,
    ) -> Result<String> {
        // Templates test tools and documents with `is not none`, which an undefined
        // name would pass.
        let context = serde_json::json!({
            "messages": messages,
            "add_generation_prompt": add_generation_prompt,
            "tools": self.tools,
            "documents": null,
        });
        let mut context = context.as_object().cloned().unwrap_or_default();
        for (name, token) in &self.named_tokens {
            context.insert(name.clone(), Json::from(token.as_str()));
        }
        let bytes_max = contents
            .saturating_mul(CONTENTS_MAX)
            .saturating_add(TEXT_MAX);
        let mut text = Limited::new(bytes_max);
        let rendered = (self.environment.get_template("chat")).and_then(|template| {
            let context = minijinja::value::Serde(context);
            (template.render_captured_to(context, &mut text)).map(drop)
        });
        match rendered {
            Ok(_) => Ok(text.into_string()),
            Err(e) if text.is_full() => Err(self.bad(format!(
                "the chat template writes more than {bytes_max} bytes for contents of {contents}, \
                 so it repeats something for ever; correct the template ({e})"
            ))),
            Err(e) if e.kind() == ErrorKind::OutOfFuel => Err(self.bad(format!(
                "the chat template has not ended after {INSTRUCTIONS_MAX} instructions, so it \
                 loops for ever; correct the template ({e})"
            ))),
            Err(e) => Err(self.bad(format!("the chat template cannot render: {e}"))),
        }
    }

    /// Ids of an episode's first prompt, the opening of the first reply included.
    pub fn prompt_ids(&self, tokenizer: &Tokenizer, messages: &[Message]) -> Result<Vec<u32>> {
        let all = usize::MAX;
        let ids = self.prompt_ids_within(tokenizer, messages, all)?;
        Ok(ids.expect("no text has more ids than any number"))
    }

    /// [`Self::prompt_ids`]; `None` where its length alone shows that the prompt has more
    /// than `ids_max` ids, in which case it is not encoded.
    pub fn prompt_ids_within(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
        ids_max: usize,
    ) -> Result<Option<Vec<u32>>> {
        let mut messages = messages.to_vec();
        let guarded = Guarded::new(&mut messages, &self.guarded);
        let text = self.render(&messages, true)?;
        encode_within(tokenizer, &guarded.parts(&text), ids_max)
    }

    /// What the template puts around an observation, found by rendering a
    /// conversation of placeholders.
    pub fn bridge(&self) -> Result<Bridge> {
        let observation = placeholder("observation");
        let (end_of_turn, text) = self.after_reply(&self.observed(&observation))?;
        let Some((before, after)) = text.split_once(&observation) else {
            let role = if self.tools.is_null() { "user" } else { "tool" };
            return Err(self.bad(format!("the chat template leaves out a {role} message")));
        };
        Ok(Bridge {
            end_of_turn,
            before_observation: before.to_owned(),
            after_observation: after.to_owned(),
        })
    }

    /// Ids to append after the sampled ids of a reply: its end token if the policy
    /// did not sample one (a length stop), the observation as the template renders it,
    /// and the opening of the next reply. The policy sampled none of them.
    pub fn observation_ids(
        &self,
        tokenizer: &Tokenizer,
        ended_with_eos: bool,
        observation: &str,
    ) -> Result<Vec<u32>> {
        self.next_ids(tokenizer, ended_with_eos, self.observed(observation))
    }

    /// [`Self::observation_ids`] for a message in any role.
    pub fn next_ids(
        &self,
        tokenizer: &Tokenizer,
        ended_with_eos: bool,
        message: Message,
    ) -> Result<Vec<u32>> {
        let ids = self.next_ids_within(tokenizer, ended_with_eos, message, usize::MAX)?;
        Ok(ids.expect("no text has more ids than any number"))
    }

    /// [`Self::observation_ids`]; `None` where its length alone shows that the observation
    /// has more than `ids_max` ids, in which case it is not encoded.
    pub fn observation_ids_within(
        &self,
        tokenizer: &Tokenizer,
        ended_with_eos: bool,
        observation: &str,
        ids_max: usize,
    ) -> Result<Option<Vec<u32>>> {
        let observed = self.observed(observation);
        self.next_ids_within(tokenizer, ended_with_eos, observed, ids_max)
    }

    /// [`Self::observation_ids_within`] for a message in any role.
    pub fn next_ids_within(
        &self,
        tokenizer: &Tokenizer,
        ended_with_eos: bool,
        message: Message,
        ids_max: usize,
    ) -> Result<Option<Vec<u32>>> {
        let (guarded, text) = self.bridged(ended_with_eos, message)?;
        encode_within(tokenizer, &guarded.parts(&text), ids_max)
    }

    /// The environment's answer as a message: to a call it is the tool's.
    fn observed(&self, observation: &str) -> Message {
        let role = match self.tools.is_null() {
            true => Role::User,
            false => Role::Tool,
        };
        Message::new(role, observation)
    }

    /// A prefix of an observation, at least `bytes_min` long, whose length alone shows that
    /// it has more than `ids_max` ids; the whole observation where no prefix shows it.
    pub fn shortest_above<'a>(
        &self,
        tokenizer: &Tokenizer,
        observation: &'a str,
        ids_max: usize,
        bytes_min: usize,
    ) -> Result<&'a str> {
        let Some(bytes) = tokenizer.bytes_above(ids_max) else {
            return Ok(observation);
        };
        let mut bytes = bytes.max(bytes_min);
        // The template may trim it, and NFC may shorten it, so each prefix is checked.
        while bytes < observation.len() {
            let start = &observation[..observation.floor_char_boundary(bytes)];
            let (guarded, text) = self.bridged(true, self.observed(start))?;
            if tokenizer.ids_min(&guarded.parts(&text)) > ids_max {
                return Ok(start);
            }
            bytes = bytes.saturating_mul(2);
        }
        Ok(observation)
    }

    /// The text appended after a reply, with the special strings of the message guarded.
    fn bridged(&self, ended_with_eos: bool, message: Message) -> Result<(Guarded, String)> {
        let mut messages = [message];
        let guarded = Guarded::new(&mut messages, &self.guarded);
        let [message] = messages;
        let (mut text, bridge) = self.after_reply(&message)?;
        if ended_with_eos {
            text.clear();
        }
        text.push_str(&bridge);
        Ok((guarded, text))
    }

    /// The id that ends a turn of the policy.
    pub fn end_of_turn_id(&self, tokenizer: &Tokenizer) -> Result<u32> {
        let bridge = self.bridge()?;
        let found = tokenizer.find_special(&bridge.end_of_turn);
        found
            .map(|(_, token)| tokenizer.special_tokens()[token])
            .ok_or_else(|| {
                self.bad(format!(
                    "a reply ends with {:?}, which the tokenizer has no special token for",
                    bridge.end_of_turn
                ))
            })
    }

    /// The end of a reply, and all text from there to the reply after the next message, whose
    /// content goes through the template, which may trim it.
    fn after_reply(&self, next: &Message) -> Result<(String, String)> {
        let reply = placeholder("reply");
        let messages = [
            Message::new(Role::User, placeholder("task")),
            Message::new(Role::Assistant, reply.clone()),
            next.clone(),
        ];
        let text = self.render(&messages, true)?;
        let Some((_, text)) = text.split_once(&reply) else {
            return Err(self.bad("the chat template leaves out an earlier reply".to_owned()));
        };
        let Some((start, token)) = self.special.first(text) else {
            return Err(self.bad(format!(
                "no special token follows a reply (found {:?}), so generation could not stop; \
                 give the folder a template that ends each turn with one",
                excerpt(text)
            )));
        };
        let (end_of_turn, rest) = text.split_at(start + token.len());
        Ok((end_of_turn.to_owned(), rest.to_owned()))
    }

    fn bad(&self, message: String) -> Error {
        Error::Template {
            path: self.path.clone(),
            message,
        }
    }
}

fn placeholder(name: &str) -> String {
    format!("{OPEN}{name}{CLOSE}")
}

/// The part of `tokenizer.json` that is read here, without the vocabulary of several megabytes.
#[derive(Default, serde::Deserialize)]
struct TokenizerFile {
    #[serde(default)]
    added_tokens: Json,
}

/// Ids of a rendering, unless its length alone shows more than `ids_max` of them.
fn encode_within(
    tokenizer: &Tokenizer,
    parts: &[Part<'_>],
    ids_max: usize,
) -> Result<Option<Vec<u32>>> {
    // Most texts have fewer bytes than that, and need no further check.
    let bytes: usize = parts.iter().map(|part| part.text.len()).sum();
    if bytes > ids_max && tokenizer.ids_min(parts) > ids_max {
        return Ok(None);
    }
    tokenizer.encode_parts(parts).map(Some)
}

/// Parses a JSON file; `None` where it is missing.
fn json<T: serde::de::DeserializeOwned>(
    files: &BTreeMap<String, Vec<u8>>,
    name: &str,
    dir: &Path,
) -> Result<Option<T>> {
    let Some(bytes) = files.get(name) else {
        return Ok(None);
    };
    serde_json::from_slice(bytes)
        .map(Some)
        .map_err(|e| Error::Json {
            path: dir.join(name),
            message: e.to_string(),
        })
}

fn embedded_template(config: &Json) -> Option<String> {
    match config.get("chat_template")? {
        Json::String(template) => Some(template.clone()),
        Json::Array(named) => named
            .iter()
            .find(|entry| entry.get("name").and_then(Json::as_str) == Some("default"))
            .and_then(|entry| entry.get("template")?.as_str())
            .map(str::to_owned),
        _ => None,
    }
}

/// A token is written as a string or as an object with its `content`.
fn token_text(value: &Json) -> Option<String> {
    (value.as_str())
        .or_else(|| value.get("content")?.as_str())
        .map(str::to_owned)
}

#[cfg(test)]
mod tests;
