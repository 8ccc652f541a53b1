//! Answers in OpenAI's two forms, whole or as the pieces of a stream. Beside what OpenAI has, a choice
//! holds the ids, the sampled end id included, and the text of `stop` that ended it.

use crate::ask::{Ask, Form};
use crate::calls::Calls;
use crate::owner::Scored;
use crate::spelling::{Special, Spelling, Stops};
use agentgym_model::{FinishReason, Tokenizer};
use serde_json::{Map, Value, json};

/// A token as it is told.
#[derive(Debug)]
struct Token {
    id: u32,
    text: String,
    /// None for the first of all.
    log_prob: Option<f32>,
    /// The likeliest id in its place, where that was asked for and is known.
    likeliest: Option<(u32, f32)>,
    /// Characters of the choice's text before it.
    offset: usize,
}

/// A piece of a choice.
#[derive(Debug, Default)]
pub(crate) struct Piece {
    text: String,
    tokens: Vec<Token>,
    /// Calls of tools that are complete with it, and their numbers.
    calls: Vec<(u64, Value)>,
}

impl Piece {
    /// Puts another piece behind it.
    pub(crate) fn join(&mut self, next: Piece) {
        self.text.push_str(&next.text);
        self.tokens.extend(next.tokens);
        self.calls.extend(next.calls);
    }

    /// Takes calls out of its text; returns how the message ends, if it does.
    pub(crate) fn heard(
        &mut self,
        calls: &mut Option<Calls>,
        finish: Option<&'static str>,
    ) -> Option<&'static str> {
        let Some(calls) = calls else {
            return finish;
        };
        let said = calls.push(&self.text);
        self.text = said.text;
        self.calls.extend(said.calls);
        if finish.is_some() {
            self.text.push_str(&calls.rest());
        }
        match finish {
            _ if said.is_over => Some("tool_calls"),
            Some("stop") if calls.found() > 0 => Some("tool_calls"),
            finish => finish,
        }
    }

    /// How many tokens it has.
    pub(crate) fn length(&self) -> usize {
        self.tokens.len()
    }
}

/// Turns ids into pieces of one choice.
pub(crate) struct Teller<'a> {
    ask: &'a Ask,
    tokenizer: &'a Tokenizer,
    special: &'a Special,
    spelling: Spelling,
    stops: Stops,
    /// Characters told, or held back.
    characters: usize,
}

impl<'a> Teller<'a> {
    pub(crate) fn new(ask: &'a Ask, tokenizer: &'a Tokenizer, special: &'a Special) -> Self {
        Self {
            ask,
            tokenizer,
            special,
            spelling: Spelling::default(),
            stops: Stops::default(),
            characters: 0,
        }
    }

    /// The prompt as a piece of the answer.
    pub(crate) fn echo(&mut self, prompt: &[u32], scored: Option<&Scored>) -> Piece {
        let mut piece = Piece::default();
        for (at, id) in prompt.iter().enumerate() {
            let log_prob = scored.filter(|_| at > 0).map(|all| all.log_probs[at]);
            let likeliest = scored.and_then(|all| all.likeliest.as_ref());
            let likeliest = likeliest.and_then(|all| all.get(at.checked_sub(1)?).copied());
            let text = self.add(&mut piece, *id, (log_prob, likeliest), true);
            piece.text.push_str(&text);
        }
        // The message begins anew: its first id does not complete a character of the prompt.
        let rest = self.spelled();
        piece.text.push_str(&rest);
        piece
    }

    /// Further ids of the message, up to one with which a text is complete that ends it; then true.
    pub(crate) fn drawn(&mut self, drawn: &[(u32, f32)]) -> (Piece, bool) {
        let mut piece = Piece::default();
        for (id, log_prob) in drawn {
            // At temperature 0 it is the likeliest itself.
            let greedy = self.ask.likeliest && self.ask.sampling.temperature == 0.0;
            let likeliest = greedy.then_some((*id, *log_prob));
            let text = self.add(&mut piece, *id, (Some(*log_prob), likeliest), false);
            let (text, ended) = self.stops.push(&self.ask.stops, &text);
            piece.text.push_str(&text);
            if ended {
                return (piece, true);
            }
        }
        (piece, false)
    }

    /// What was held back at the end of the message, and whether a text that ends it is in it.
    pub(crate) fn rest(&mut self) -> (Piece, bool) {
        let last = self.spelled();
        let (mut text, ended) = self.stops.push(&self.ask.stops, &last);
        if !ended {
            text += &self.stops.rest();
        }
        let piece = Piece {
            text,
            ..Piece::default()
        };
        (piece, ended)
    }

    /// Ends a stretch of ordinary ids; what is left of it.
    fn spelled(&mut self) -> String {
        let rest = std::mem::take(&mut self.spelling).rest(self.tokenizer);
        self.characters += rest.chars().count();
        rest
    }

    /// Adds a token; returns the text that it adds. What a special token is called is part of a
    /// prompt, and no part of a message.
    fn add(
        &mut self,
        piece: &mut Piece,
        id: u32,
        (log_prob, likeliest): (Option<f32>, Option<(u32, f32)>),
        names_special: bool,
    ) -> String {
        let special = self.special.text(id);
        let before = special.map_or_else(String::new, |_| self.spelled());
        let text = match special {
            Some(text) => text.to_owned(),
            None => self.spelling.push(self.tokenizer, id),
        };
        let is_shown = special.is_none() || names_special;
        piece.tokens.push(Token {
            id,
            text: text.clone(),
            log_prob,
            likeliest,
            offset: self.characters,
        });
        if !is_shown {
            return before;
        }
        self.characters += text.chars().count();
        before + &text
    }

    fn token_text(&self, token: &Token) -> String {
        match self.ask.as_ids {
            true => format!("token_id:{}", token.id),
            false => token.text.clone(),
        }
    }

    /// A token, and the likeliest in its place, with their log-probs. Two that read alike are told
    /// apart by the other's id.
    fn likeliest(&self, token: &Token, log_prob: f32) -> Value {
        let own = self.token_text(token);
        let mut both = Map::new();
        both.insert(own.clone(), json!(log_prob));
        if let Some((id, log_prob)) = token.likeliest.filter(|(id, _)| *id != token.id) {
            let text = match self.special.text(id) {
                Some(text) => text.to_owned(),
                None => self.tokenizer.decode(&[id], false),
            };
            let unclear = self.ask.as_ids || text == own || text.contains('\u{fffd}');
            let text = if unclear {
                format!("token_id:{id}")
            } else {
                text
            };
            both.insert(text, json!(log_prob));
        }
        Value::Object(both)
    }

    fn log_probs(&self, piece: &Piece) -> Value {
        if !self.ask.log_probs || (self.ask.stream && piece.tokens.is_empty()) {
            return Value::Null;
        }
        let tokens = piece.tokens.iter();
        if self.ask.form == Form::Chat {
            let entry = |token: &Token| {
                json!({
                    "token": self.token_text(token), "logprob": token.log_prob,
                    "bytes": token.text.as_bytes(), "top_logprobs": [],
                })
            };
            return json!({"content": tokens.map(entry).collect::<Vec<_>>()});
        }
        let top = |token: &Token| match (token.likeliest, token.log_prob) {
            (Some(_), Some(log_prob)) => self.likeliest(token, log_prob),
            _ => Value::Null,
        };
        let all_top: Vec<Value> = tokens.clone().map(top).collect();
        let is_known = all_top.iter().any(|top| !top.is_null());
        json!({
            "tokens": tokens.clone().map(|token| self.token_text(token)).collect::<Vec<_>>(),
            "token_logprobs": tokens.clone().map(|token| token.log_prob).collect::<Vec<_>>(),
            "top_logprobs": if is_known { json!(all_top) } else { Value::Null },
            "text_offset": tokens.map(|token| token.offset).collect::<Vec<_>>(),
        })
    }

    /// A choice of an answer, or of a piece of a stream. The last `said` tokens of the piece are the
    /// message's own.
    pub(crate) fn choice(
        &self,
        choice: usize,
        (piece, said): (&Piece, usize),
        finish: Option<&str>,
    ) -> Value {
        let (ask, text) = (self.ask, &piece.text);
        let mut out = json!({"index": choice});
        match (ask.form, ask.stream) {
            (Form::Completion, _) => out["text"] = json!(text),
            (Form::Chat, true) => out["delta"] = delta(piece),
            (Form::Chat, false) => {
                let content = (!text.is_empty() || piece.calls.is_empty()).then_some(text);
                let mut message = json!({"role": "assistant", "content": content, "refusal": null});
                if !piece.calls.is_empty() {
                    message["tool_calls"] =
                        piece.calls.iter().map(|(_, call)| call.clone()).collect();
                }
                out["message"] = message;
            }
        }
        out["logprobs"] = self.log_probs(piece);
        out["finish_reason"] = json!(finish);
        out["stop_reason"] = json!(self.stops.found);
        let own = &piece.tokens[piece.tokens.len() - said..];
        out["token_ids"] = own.iter().map(|token| token.id).collect();
        if ask.prompt_ids && !ask.stream {
            out["prompt_token_ids"] = json!(ask.prompts[choice / ask.n]);
        }
        out
    }
}

/// What a piece adds to a message.
fn delta(piece: &Piece) -> Value {
    let mut delta = json!({});
    if !piece.text.is_empty() {
        delta["content"] = json!(piece.text);
    }
    let numbered = |(number, call): &(u64, Value)| {
        let mut call = call.clone();
        call["index"] = json!(number);
        call
    };
    if !piece.calls.is_empty() {
        delta["tool_calls"] = piece.calls.iter().map(numbered).collect();
    }
    delta
}

/// The reason in OpenAI's words.
pub(crate) fn finish_reason(finish: FinishReason) -> &'static str {
    match finish {
        FinishReason::Eos => "stop",
        FinishReason::Length => "length",
    }
}

/// A document with the choices of an answer, or of a piece of a stream.
pub(crate) fn document((id, model): (&str, &str), ask: &Ask, choices: Vec<Value>) -> Value {
    let object = match (ask.form, ask.stream) {
        (Form::Completion, _) => "text_completion",
        (Form::Chat, false) => "chat.completion",
        (Form::Chat, true) => "chat.completion.chunk",
    };
    json!({"id": id, "object": object, "created": ask.created, "model": model, "choices": choices})
}

/// How many ids were read and generated.
pub(crate) fn usage(read: usize, generated: usize) -> Value {
    json!({"prompt_tokens": read, "completion_tokens": generated, "total_tokens": read + generated})
}
