//! OpenAI's form of responses: a request becomes that of a chat, an answer or a stream of it a response
//! again. Nothing is stored: a client sends the whole conversation each time.

use crate::answer::usage;
use crate::fields::text;
use crate::refusal::Refusal;
use serde_json::{Map, Value, json};

/// Fields that a response repeats.
const REPEATED: [&str; 8] = [
    "instructions",
    "max_output_tokens",
    "metadata",
    "parallel_tool_calls",
    "temperature",
    "tool_choice",
    "tools",
    "top_p",
];

/// The fields of a chat, and what the response repeats of its request. What has another name or form
/// here is put into the chat's; the rest is taken, or refused, by its name there.
pub(crate) fn chat_fields(
    asked: Map<String, Value>,
) -> Result<(Map<String, Value>, Value), Refusal> {
    let repeated = repeated(&asked);
    let mut fields = Map::new();
    let mut messages = Vec::new();
    if let Some(Value::String(instructions)) = asked.get("instructions") {
        messages.push(json!({"role": "system", "content": instructions}));
    }
    for (name, value) in asked.into_iter().filter(|(_, value)| !value.is_null()) {
        match (name.as_str(), &value) {
            ("instructions", Value::String(_)) => {}
            ("input", Value::String(text)) => {
                messages.push(json!({"role": "user", "content": text}));
            }
            ("input", Value::Array(items)) => conversation(items, &mut messages)?,
            ("input", _) => {
                return Err(Refusal::bad(
                    "input",
                    "input must be text or a list of items",
                ));
            }
            ("max_output_tokens", _) => _ = fields.insert("max_tokens".to_owned(), value),
            ("tools", Value::Array(all)) => {
                let all: Result<Value, _> = all.iter().map(tool).collect();
                fields.insert(name, all?);
            }
            ("text", text) if is_plain(text) => {}
            ("truncation", _) if value == "disabled" => {}
            ("background", _) if value == false => {}
            // There is none that could be included.
            ("include", _)
                if value == json!(["reasoning.encrypted_content"]) || value == json!([]) => {}
            ("reasoning", Value::Object(all))
                if all.values().all(|v| v.is_null() || v == "none") => {}
            ("messages" | "max_tokens" | "max_completion_tokens", _) => {
                return Err(Refusal::bad(
                    &name,
                    format!("{name} is no field of a response"),
                ));
            }
            _ => _ = fields.insert(name, value),
        }
    }
    fields.insert("messages".to_owned(), Value::Array(messages));
    Ok((fields, repeated))
}

fn repeated(asked: &Map<String, Value>) -> Value {
    let mut all = json!({
        "instructions": null, "max_output_tokens": null, "metadata": {}, "parallel_tool_calls": true,
        "temperature": 1.0, "tool_choice": "auto", "tools": [], "top_p": 1.0,
    });
    for name in REPEATED {
        if let Some(value) = asked.get(name).filter(|value| !value.is_null()) {
            all[name] = value.clone();
        }
    }
    all
}

/// Whether a `text` asks for nothing but text.
fn is_plain(text: &Value) -> bool {
    let format = &text["format"];
    let fields = text.as_object().map_or(0, Map::len);
    (format.is_null() && fields == 0) || (*format == json!({"type": "text"}) && fields == 1)
}

fn tool(tool: &Value) -> Result<Value, Refusal> {
    let mut function = tool.as_object().cloned().unwrap_or_default();
    match function.shift_remove("type") {
        Some(kind) if kind == "function" => Ok(json!({"type": "function", "function": function})),
        kind => {
            let kind = kind.unwrap_or_default();
            Err(Refusal::bad(
                "tools",
                format!("a tool of type {kind} is not to be had here"),
            ))
        }
    }
}

/// Puts the items of a conversation behind its messages: a message of the assistant and the calls that
/// follow it are one message of a chat.
fn conversation(items: &[Value], messages: &mut Vec<Value>) -> Result<(), Refusal> {
    let mut says: Option<Value> = None;
    for item in items {
        let kind = item["type"].as_str().unwrap_or("message");
        if kind != "function_call" {
            messages.extend(says.take());
        }
        match kind {
            "message" => {
                let message = json!({"role": item["role"], "content": text_of(&item["content"])?});
                match item["role"] == "assistant" {
                    true => says = Some(message),
                    false => messages.push(message),
                }
            }
            "function_call" => {
                let call = json!({
                    "id": item["call_id"], "type": "function",
                    "function": {"name": item["name"], "arguments": item["arguments"]},
                });
                let says =
                    says.get_or_insert_with(|| json!({"role": "assistant", "content": null}));
                match says["tool_calls"].as_array_mut() {
                    Some(calls) => calls.push(call),
                    None => says["tool_calls"] = json!([call]),
                }
            }
            "function_call_output" => messages.push(json!({
                "role": "tool", "tool_call_id": item["call_id"], "content": text_of(&item["output"])?,
            })),
            _ => {
                return Err(Refusal::bad(
                    "input",
                    format!("an item of type {kind:?} is not to be had here"),
                ));
            }
        }
    }
    messages.extend(says);
    Ok(())
}

fn text_of(content: &Value) -> Result<String, Refusal> {
    let message = "the content of a message, and an output, must be text";
    let found = text(content, &["input_text", "output_text"]);
    found.ok_or_else(|| Refusal::bad("input", message))
}

/// An answer to a chat as a response.
pub(crate) fn answer(repeated: Value, found: &Value) -> Value {
    let mut all = Events::new(repeated, 0);
    let choice = &found["choices"][0];
    let mut piece = found.clone();
    let message = &choice["message"];
    piece["choices"][0]["delta"] = message.clone();
    all.of(&piece);
    all.response(choice, &found["usage"])
}

/// Turns the pieces of a chat's stream into the events of a response.
#[derive(Debug)]
pub(crate) struct Events {
    /// What the response repeats of its request.
    repeated: Value,
    /// Ids of the prompt, and of the message so far.
    read: usize,
    said: usize,
    sent: u64,
    id: String,
    /// The items so far; the text of the last one grows where `is_open`.
    items: Vec<Value>,
    is_open: bool,
}

impl Events {
    pub(crate) fn new(repeated: Value, read: usize) -> Self {
        Self {
            repeated,
            read,
            said: 0,
            sent: 0,
            id: String::new(),
            items: Vec::new(),
            is_open: false,
        }
    }

    /// The events of a piece; its end is null.
    pub(crate) fn of(&mut self, piece: &Value) -> Vec<Value> {
        let (mut all, choice) = (Vec::new(), &piece["choices"][0]);
        if piece.is_null() {
            return all;
        }
        if let Some(error) = piece.get("error") {
            let mut event = error.clone();
            event["type"] = json!("error");
            self.send(&mut all, event);
            return all;
        }
        if self.id.is_empty() {
            let id = piece["id"].as_str().unwrap_or_default();
            self.id = id.replace("chatcmpl-", "resp_");
            self.repeated["model"] = piece["model"].clone();
            self.repeated["created_at"] = piece["created"].clone();
            for kind in ["response.created", "response.in_progress"] {
                let response = self.response(&Value::Null, &Value::Null);
                self.send(&mut all, json!({"type": kind, "response": response}));
            }
        }
        self.said += choice["token_ids"].as_array().map_or(0, Vec::len);
        let text = choice["delta"]["content"].as_str().unwrap_or_default();
        if !text.is_empty() {
            self.say(&mut all, text);
        }
        for call in choice["delta"]["tool_calls"]
            .as_array()
            .into_iter()
            .flatten()
        {
            self.close(&mut all);
            self.call(&mut all, call);
        }
        if !choice["finish_reason"].is_null() {
            self.close(&mut all);
            let usage = usage(self.read, self.said);
            let response = self.response(choice, &usage);
            let kind = format!(
                "response.{}",
                response["status"].as_str().unwrap_or_default()
            );
            self.send(&mut all, json!({"type": kind, "response": response}));
        }
        all
    }

    /// The response so far: under way where the choice does not say how it ended.
    fn response(&self, choice: &Value, usage: &Value) -> Value {
        let (status, why) = match choice["finish_reason"].as_str() {
            None => ("in_progress", Value::Null),
            Some("length") => ("incomplete", json!({"reason": "max_output_tokens"})),
            Some(_) => ("completed", Value::Null),
        };
        let mut response = self.repeated.clone();
        let usage = (!usage.is_null()).then(|| {
            json!({
                "input_tokens": usage["prompt_tokens"], "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": usage["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": usage["total_tokens"],
            })
        });
        let own = json!({
            "id": self.id, "object": "response", "status": status, "incomplete_details": why, "error": null,
            "output": self.items, "previous_response_id": null, "store": false, "truncation": "disabled",
            "text": {"format": {"type": "text"}}, "usage": usage,
        });
        if let (Value::Object(response), Value::Object(own)) = (&mut response, own) {
            response.extend(own);
        }
        response
    }

    fn send(&mut self, all: &mut Vec<Value>, mut event: Value) {
        event["sequence_number"] = json!(self.sent);
        self.sent += 1;
        all.push(event);
    }

    /// An event about the last item.
    fn about(&mut self, all: &mut Vec<Value>, kind: &str, more: Value) {
        let place = self.items.len() - 1;
        let mut event =
            json!({"type": kind, "output_index": place, "item_id": self.items[place]["id"]});
        if let (Value::Object(event), Value::Object(more)) = (&mut event, more) {
            event.extend(more);
        }
        self.send(all, event);
    }

    fn say(&mut self, all: &mut Vec<Value>, text: &str) {
        if !self.is_open {
            let item = json!({
                "id": format!("{}_{}", self.id.replace("resp", "msg"), self.items.len()), "type": "message",
                "role": "assistant", "status": "in_progress", "content": [],
            });
            self.items.push(item.clone());
            self.about(all, "response.output_item.added", json!({"item": item}));
            let part =
                json!({"type": "output_text", "text": "", "annotations": [], "logprobs": []});
            self.about(
                all,
                "response.content_part.added",
                json!({"content_index": 0, "part": part}),
            );
            self.items.last_mut().expect("it was pushed")["content"] = json!([part]);
            self.is_open = true;
        }
        let item = self.items.last_mut().expect("one is open");
        if let Value::String(said) = &mut item["content"][0]["text"] {
            said.push_str(text);
        }
        let delta = json!({"content_index": 0, "delta": text, "logprobs": []});
        self.about(all, "response.output_text.delta", delta);
    }

    fn close(&mut self, all: &mut Vec<Value>) {
        if !std::mem::take(&mut self.is_open) {
            return;
        }
        let item = self.items.last_mut().expect("one was open");
        item["status"] = json!("completed");
        let (item, part) = (item.clone(), item["content"][0].clone());
        let text = json!({"content_index": 0, "text": part["text"], "logprobs": []});
        self.about(all, "response.output_text.done", text);
        self.about(
            all,
            "response.content_part.done",
            json!({"content_index": 0, "part": part}),
        );
        self.about(all, "response.output_item.done", json!({"item": item}));
    }

    fn call(&mut self, all: &mut Vec<Value>, call: &Value) {
        let (function, id) = (&call["function"], call["id"].as_str().unwrap_or_default());
        let arguments = &function["arguments"];
        let mut item = json!({
            "id": id.replace("call_", "fc_"), "type": "function_call", "call_id": id, "name": function["name"],
            "arguments": "", "status": "in_progress",
        });
        self.items.push(item.clone());
        self.about(all, "response.output_item.added", json!({"item": item}));
        self.about(
            all,
            "response.function_call_arguments.delta",
            json!({"delta": arguments}),
        );
        let done = json!({"arguments": arguments, "name": function["name"]});
        self.about(all, "response.function_call_arguments.done", done);
        (item["arguments"], item["status"]) = (arguments.clone(), json!("completed"));
        *self.items.last_mut().expect("it was pushed") = item.clone();
        self.about(all, "response.output_item.done", json!({"item": item}));
    }
}
