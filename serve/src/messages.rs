//! Anthropic's form of a chat: a request becomes that of OpenAI's form, an answer or a stream of it
//! Anthropic's again.

use crate::fields::text;
use crate::refusal::Refusal;
use serde_json::{Map, Value, json};

/// Fields that are the same in both forms.
const SAME: [&str; 7] = [
    "model",
    "max_tokens",
    "temperature",
    "top_k",
    "top_p",
    "stream",
    "metadata",
];

/// The fields of OpenAI's form.
pub(crate) fn chat_fields(asked: Map<String, Value>) -> Result<Map<String, Value>, Refusal> {
    let mut fields = Map::new();
    let mut messages = Vec::new();
    if let Some(system) = asked.get("system").filter(|system| !system.is_null()) {
        messages.push(json!({"role": "system", "content": text_of("system", system)?}));
    }
    for (name, value) in asked.into_iter().filter(|(_, value)| !value.is_null()) {
        match name.as_str() {
            "system" | "cache_control" | "service_tier" => {}
            "messages" => {
                let all = value.as_array();
                let all = all.ok_or_else(|| Refusal::bad("messages", "messages must be a list"))?;
                for message in all {
                    messages.extend(chat_messages(message)?);
                }
                if all.last().is_some_and(|last| last["role"] == "assistant") {
                    let message =
                        "the last message is the assistant's, and no message is continued here";
                    return Err(Refusal::bad("messages", message));
                }
            }
            "stop_sequences" => _ = fields.insert("stop".to_owned(), value),
            "tools" => {
                let all = value.as_array();
                let all = all.ok_or_else(|| Refusal::bad("tools", "tools must be a list"))?;
                let all: Result<Value, _> = all.iter().map(tool).collect();
                fields.insert(name, all?);
            }
            "tool_choice" => {
                let kind = value["type"].as_str().unwrap_or_default();
                // Whatever cannot be had is refused by its name there.
                fields.insert(name, json!(kind));
                if value["disable_parallel_tool_use"] == true {
                    fields.insert("parallel_tool_calls".to_owned(), json!(false));
                }
            }
            "thinking" if value["type"] == "disabled" => {}
            name if SAME.contains(&name) => _ = fields.insert(name.to_owned(), value),
            _ => {
                let message = format!("this server cannot do {name}; leave it out");
                return Err(Refusal::bad(&name, message));
            }
        }
    }
    if !fields.contains_key("max_tokens") {
        return Err(Refusal::bad("max_tokens", "max_tokens must be given"));
    }
    fields.insert("messages".to_owned(), Value::Array(messages));
    Ok(fields)
}

fn text_of(field: &str, content: &Value) -> Result<String, Refusal> {
    let wrong = || Refusal::bad(field, format!("{field} must be text, or blocks of text"));
    text(content, &["text"]).ok_or_else(wrong)
}

/// A message with blocks as messages of OpenAI's form: the answer to a call is one of its own.
fn chat_messages(message: &Value) -> Result<Vec<Value>, Refusal> {
    let wrong = |message: String| Refusal::bad("messages", message);
    let role = message["role"].as_str().unwrap_or_default();
    if !["user", "assistant"].contains(&role) {
        return Err(wrong(
            "the role of a message must be user or assistant".to_owned(),
        ));
    }
    let Value::Array(blocks) = &message["content"] else {
        return Ok(vec![
            json!({"role": role, "content": text_of("messages", &message["content"])?}),
        ]);
    };
    let (mut all, mut said, mut calls): (Vec<Value>, Option<String>, _) =
        (Vec::new(), None, Vec::new());
    for block in blocks {
        match (block["type"].as_str().unwrap_or_default(), role) {
            ("text", _) => {
                let more = text_of("messages", &json!([block]))?;
                *said.get_or_insert_default() += &more;
            }
            ("tool_use", "assistant") => calls.push(json!({
                "id": block["id"], "type": "function",
                "function": {"name": block["name"], "arguments": block["input"].to_string()},
            })),
            ("tool_result", "user") => {
                all.extend(
                    said.take()
                        .map(|said| json!({"role": role, "content": said})),
                );
                let result = match &block["content"] {
                    Value::Null => String::new(),
                    content => text_of("messages", content)?,
                };
                all.push(json!({"role": "tool", "tool_call_id": block["tool_use_id"], "content": result}));
            }
            (kind, _) => {
                return Err(wrong(format!(
                    "a message of the {role} has no block {kind:?} here"
                )));
            }
        }
    }
    match calls.is_empty() {
        true => all.extend(said.map(|said| json!({"role": role, "content": said}))),
        false => all.push(json!({"role": role, "content": said, "tool_calls": calls})),
    }
    Ok(all)
}

fn tool(tool: &Value) -> Result<Value, Refusal> {
    if !tool["type"].is_null() && tool["type"] != "custom" {
        let message = format!("a tool of type {} is not to be had here", tool["type"]);
        return Err(Refusal::bad("tools", message));
    }
    let mut function = Map::new();
    let fields = [
        ("name", "name"),
        ("description", "description"),
        ("input_schema", "parameters"),
    ];
    for (name, to) in fields {
        if let Some(value) = tool.get(name) {
            function.insert(to.to_owned(), value.clone());
        }
    }
    Ok(json!({"type": "function", "function": function}))
}

/// An answer in OpenAI's form in Anthropic's.
pub(crate) fn answer(found: &Value) -> Value {
    let choice = &found["choices"][0];
    let said = choice["message"]["content"].as_str().unwrap_or_default();
    let said = (!said.is_empty()).then(|| json!({"type": "text", "text": said}));
    let calls = choice["message"]["tool_calls"].as_array();
    let calls = calls.into_iter().flatten().map(|call| {
        let arguments = call["function"]["arguments"].as_str().unwrap_or_default();
        let input: Value = serde_json::from_str(arguments).unwrap_or(Value::Null);
        json!({"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": input})
    });
    let mut message = begun(found, &found["usage"]["prompt_tokens"]);
    message["content"] = said.into_iter().chain(calls).collect();
    (message["stop_reason"], message["stop_sequence"]) = end(choice);
    message["usage"]["output_tokens"] = found["usage"]["completion_tokens"].clone();
    message
}

/// A message of which nothing was said.
fn begun(found: &Value, read: &Value) -> Value {
    let id = found["id"].as_str().unwrap_or_default();
    json!({
        "id": id.replace("chatcmpl-", "msg_"), "type": "message", "role": "assistant", "model": found["model"],
        "content": [], "stop_reason": null, "stop_sequence": null,
        "usage": {"input_tokens": read, "output_tokens": 0},
    })
}

/// Why a message ended, and the text that ended it.
fn end(choice: &Value) -> (Value, Value) {
    let stop = &choice["stop_reason"];
    let reason = match choice["finish_reason"].as_str().unwrap_or_default() {
        "tool_calls" => "tool_use",
        "length" => "max_tokens",
        _ if stop.is_string() => "stop_sequence",
        _ => "end_turn",
    };
    (json!(reason), stop.clone())
}

/// Turns the pieces of a stream in OpenAI's form into the events of Anthropic's.
#[derive(Debug)]
pub(crate) struct Events {
    /// Ids of the prompt, and of the message so far.
    read: usize,
    said: usize,
    is_begun: bool,
    /// Blocks so far; the last one is open where `is_open`.
    blocks: u64,
    is_open: bool,
}

impl Events {
    pub(crate) fn new(read: usize) -> Self {
        Self {
            read,
            said: 0,
            is_begun: false,
            blocks: 0,
            is_open: false,
        }
    }

    /// The events of a piece; its end is null.
    pub(crate) fn of(&mut self, piece: &Value) -> Vec<Value> {
        if piece.is_null() {
            return vec![json!({"type": "message_stop"})];
        }
        if !piece["error"].is_null() {
            return vec![error(piece)];
        }
        let (mut all, choice) = (Vec::new(), &piece["choices"][0]);
        if !self.is_begun {
            self.is_begun = true;
            all.push(json!({"type": "message_start", "message": begun(piece, &json!(self.read))}));
        }
        self.said += choice["token_ids"].as_array().map_or(0, Vec::len);
        let text = choice["delta"]["content"].as_str().unwrap_or_default();
        if !text.is_empty() {
            if !self.is_open {
                self.open(&mut all, json!({"type": "text", "text": ""}));
            }
            self.delta(&mut all, json!({"type": "text_delta", "text": text}));
        }
        for call in choice["delta"]["tool_calls"]
            .as_array()
            .into_iter()
            .flatten()
        {
            self.close(&mut all);
            let function = &call["function"];
            let block = json!({"type": "tool_use", "id": call["id"], "name": function["name"], "input": {}});
            self.open(&mut all, block);
            let arguments = &function["arguments"];
            self.delta(
                &mut all,
                json!({"type": "input_json_delta", "partial_json": arguments}),
            );
            self.close(&mut all);
        }
        if !choice["finish_reason"].is_null() {
            self.close(&mut all);
            let (reason, stop) = end(choice);
            all.push(json!({
                "type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": stop},
                "usage": {"output_tokens": self.said},
            }));
        }
        all
    }

    fn open(&mut self, all: &mut Vec<Value>, block: Value) {
        let index = self.blocks;
        all.push(json!({"type": "content_block_start", "index": index, "content_block": block}));
        (self.blocks, self.is_open) = (index + 1, true);
    }

    fn delta(&self, all: &mut Vec<Value>, delta: Value) {
        all.push(json!({"type": "content_block_delta", "index": self.blocks - 1, "delta": delta}));
    }

    fn close(&mut self, all: &mut Vec<Value>) {
        if std::mem::take(&mut self.is_open) {
            all.push(json!({"type": "content_block_stop", "index": self.blocks - 1}));
        }
    }
}

/// A refusal in OpenAI's form in Anthropic's.
pub(crate) fn error(refusal: &Value) -> Value {
    let error = &refusal["error"];
    let kind = match (error["type"].as_str().unwrap_or_default(), &error["code"]) {
        (_, code) if code == "model_not_found" => "not_found_error",
        ("server_error", _) => "api_error",
        (kind, _) => kind,
    };
    json!({"type": "error", "error": {"type": kind, "message": error["message"]}})
}
