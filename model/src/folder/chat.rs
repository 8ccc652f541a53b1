//! Encodes messages as token ids with the model folder's own chat template.
//!
//! An episode's token ids are never rendered again (I6): the first prompt is rendered
//! and encoded whole, and each later turn appends only what the template puts between
//! the policy's reply and its next one. [`Chat::check`] verifies at start-up that
//! both ways give the same ids around every reply, and refuses a template for which they do not.

mod check;
mod environment;
mod files;
mod guard;
mod limit;
mod message;
mod python;
mod recorded;
mod settings;
mod tools;

use self::environment::{Compiled, INSTRUCTIONS_MAX};
use self::guard::{GUARD, Guarded};
use self::limit::Limited;
use self::message::{CLOSE, OPEN};
pub use self::message::{Message, Role, ToolCall};
pub use self::recorded::{RecordedChat, SampledReply};
pub use self::settings::{TEMPLATE_DATE, TemplateSettings};
use self::settings::{VARIABLE, asks_for_date};
use crate::folder::tokenizer::{Needles, Part, Tokenizer, excerpt};
use crate::{Error, Result};
use minijinja::ErrorKind;
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

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
    compiled: Arc<Compiled>,
    /// What it is given beside the conversation.
    settings: TemplateSettings,
    template: String,
    /// `bos_token`, `eos_token` … as templates see them.
    named_tokens: BTreeMap<String, String>,
    /// The special strings.
    special: Needles,
    /// The strings replaced by placeholders in contents: the special strings, and [`GUARD`].
    guarded: Needles,
    /// What the policy may call; null where it acts by text.
    tools: Json,
    /// What was offered last.
    offering: Arc<Mutex<Option<Offering>>>,
    /// Encodes what follows a reply as a text of its own, as plans of formats 1 and 2 have it.
    bridges_alone: bool,
    path: PathBuf,
}

/// Tools as text, and a template found fit for them.
type Offering = (String, Box<Chat>);

impl Chat {
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
        let settings = TemplateSettings::default();
        let date = settings.parsed_date().expect("the default is a day");
        let compiled = Compiled::new(&template, date).map_err(|message| Error::Template {
            path: path.clone(),
            message,
        })?;
        Ok(Chat {
            compiled: Arc::new(compiled),
            settings,
            template,
            named_tokens,
            special,
            guarded,
            tools: Json::Null,
            offering: Arc::default(),
            bridges_alone: false,
            path,
        })
    }

    /// The same for plans of formats 1 and 2.
    pub(crate) fn bridging_alone(&self) -> Self {
        Self {
            offering: Arc::default(),
            bridges_alone: true,
            ..self.clone()
        }
    }

    /// The same template, given these settings; what they leave open stays as it is.
    ///
    /// # Errors
    /// A date that is none, and what the template never asks for.
    pub fn with_settings(&self, settings: &TemplateSettings) -> Result<Self> {
        if *settings == TemplateSettings::default() {
            return Ok(self.clone());
        }
        let bad = |message| self.bad(message);
        settings.check(&self.compiled.reads).map_err(bad)?;
        let settings = settings.over(&self.settings);
        let date = settings.parsed_date().map_err(bad)?;
        let compiled = Compiled::new(&self.template, date).map_err(bad)?;
        Ok(Self {
            compiled: Arc::new(compiled),
            settings,
            offering: Arc::default(),
            ..self.clone()
        })
    }

    /// What the template is told beside the conversation: the day that it asks for, and variables.
    pub fn told(&self) -> Option<String> {
        let asks = asks_for_date(&self.compiled.reads);
        let date = asks.then(|| format!("asks for the date and is told {}", self.settings.date()));
        let given = self.settings.variables.iter();
        let given = given.map(|(name, value)| format!("{name} is {value}"));
        let said: Vec<String> = date.into_iter().chain(given).collect();
        (!said.is_empty()).then(|| said.join(", "))
    }

    /// The template's text.
    pub fn template(&self) -> &str {
        &self.template
    }

    /// The conversation as text, with the opening of the next reply if
    /// `add_generation_prompt`.
    pub fn render(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String> {
        let values = (&json!(messages), &self.tools);
        self.rendered(values, contents(messages), add_generation_prompt)
    }

    /// [`Self::render`] of messages with `contents` bytes of content, and of tools.
    fn rendered(
        &self,
        (messages, tools): (&Json, &Json),
        contents: usize,
        add_generation_prompt: bool,
    ) -> Result<String> {
        // Templates test tools and documents with `is not none`, which an undefined
        // name would pass.
        let context = json!({
            "messages": messages,
            "add_generation_prompt": add_generation_prompt,
            "tools": tools,
            "documents": null,
        });
        let mut context = context.as_object().cloned().unwrap_or_default();
        for (name, token) in &self.named_tokens {
            context.insert(name.clone(), Json::from(token.as_str()));
        }
        if self.compiled.reads.contains(VARIABLE) {
            let date = self.settings.parsed_date().map_err(|why| self.bad(why))?;
            context.insert(VARIABLE.to_owned(), Json::from(date.in_words()));
        }
        context.extend(self.settings.variables.clone());
        let bytes_max = contents
            .saturating_mul(CONTENTS_MAX)
            .saturating_add(TEXT_MAX);
        let mut text = Limited::new(bytes_max);
        let rendered = (self.compiled.template()).and_then(|template| {
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
        let mut guarded = Guarded::new(&mut messages, &self.guarded);
        let tools = guarded.guard_json(&self.tools, &self.guarded);
        let text = self.rendered((&json!(messages), &tools), contents(&messages), true)?;
        let parts = guarded.parts(&text);
        match exceeds(tokenizer, &parts, ids_max) {
            true => Ok(None),
            false => tokenizer.encode_parts(&parts).map(Some),
        }
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
        let (guarded, end, text) = self.bridged(ended_with_eos, message)?;
        match exceeds(tokenizer, &guarded.parts(&text), ids_max) {
            true => Ok(None),
            false => self.ids_behind(tokenizer, &guarded, &end, &text).map(Some),
        }
    }

    /// Ids of a text that follows the token `end`. Some tokenizers encode the start of a text otherwise
    /// than its middle, so it is encoded behind that token.
    fn ids_behind(
        &self,
        tokenizer: &Tokenizer,
        guarded: &Guarded,
        end: &str,
        text: &str,
    ) -> Result<Vec<u32>> {
        let end_id = tokenizer.token_to_id(end);
        if let Some(end_id) = end_id.filter(|_| !self.bridges_alone) {
            let behind = format!("{end}{text}");
            let mut ids = tokenizer.encode_parts(&guarded.parts(&behind))?;
            if ids.first() == Some(&end_id) {
                ids.remove(0);
                return Ok(ids);
            }
        }
        tokenizer.encode_parts(&guarded.parts(text))
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
            let (guarded, _, text) = self.bridged(true, self.observed(start))?;
            if tokenizer.ids_min(&guarded.parts(&text)) > ids_max {
                return Ok(start);
            }
            bytes = bytes.saturating_mul(2);
        }
        Ok(observation)
    }

    /// The text appended after a reply, with the special strings of the message guarded, and the
    /// token before it, which the policy sampled; none where the text begins with it.
    fn bridged(&self, ended_with_eos: bool, message: Message) -> Result<(Guarded, String, String)> {
        let mut messages = [message];
        let guarded = Guarded::new(&mut messages, &self.guarded);
        let [message] = messages;
        let (end_of_turn, bridge) = self.after_reply(&message)?;
        let text = end_of_turn + &bridge;
        let (end, text) = self.without_end(ended_with_eos, &text);
        Ok((guarded, end.to_owned(), text.to_owned()))
    }

    /// What follows a reply, without the special token that ends it where the policy sampled that, and
    /// the token.
    fn without_end<'a>(&'a self, ended_with_eos: bool, text: &'a str) -> (&'a str, &'a str) {
        match self.special.first(text).filter(|_| ended_with_eos) {
            Some((start, token)) => (token, &text[start + token.len()..]),
            None => ("", text),
        }
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

/// Bytes that a template is given of messages.
fn contents(messages: &[Message]) -> usize {
    let bytes = |message: &Message| {
        let calls = message.tool_calls.iter();
        let calls: usize = calls.map(|call| json!(call).to_string().len()).sum();
        message.content.len() + calls
    };
    messages.iter().map(bytes).sum()
}

fn placeholder(name: &str) -> String {
    format!("{OPEN}{name}{CLOSE}")
}

/// Whether the length of a rendering alone shows more than `ids_max` ids.
fn exceeds(tokenizer: &Tokenizer, parts: &[Part<'_>], ids_max: usize) -> bool {
    // Most texts have fewer bytes than that, and need no further check.
    let bytes: usize = parts.iter().map(|part| part.text.len()).sum();
    bytes > ids_max && tokenizer.ids_min(parts) > ids_max
}

#[cfg(test)]
mod tests;
