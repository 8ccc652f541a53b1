//! The conversation of a chat: its messages, and the tools that the policy may call.

use crate::fields::{Fields, ids, text};
use crate::refusal::Refusal;
use agentgym_model::{Chat, Message, Policy, Role, ToolCall};
use serde_json::{Map, Value, json};

/// What an agent asks to have answered.
#[derive(Debug)]
pub(crate) enum AgentPrompt {
    Chat(Conversation),
    /// A text to continue, as the policy reads it.
    Text(String),
    /// The same as ids.
    Ids(Vec<u32>),
}

impl AgentPrompt {
    /// The one prompt of a completion.
    pub(crate) fn of_completion(fields: &Fields) -> Result<Self, Refusal> {
        let given = match fields.get("prompt") {
            Some(Value::Array(all)) if all.len() == 1 && !all[0].is_number() => Some(&all[0]),
            given => given,
        };
        let read = match given {
            Some(Value::String(text)) => Some(Self::Text(text.clone())),
            Some(Value::Array(all)) => ids(all).map(Self::Ids),
            _ => None,
        };
        read.ok_or_else(|| Refusal::bad("prompt", "prompt must be one text, or the ids of one"))
    }
}

/// What is said so far, and what may be called.
#[derive(Debug)]
pub(crate) struct Conversation {
    pub(crate) messages: Vec<Message>,
    pub(crate) tools: Option<Value>,
}

impl Conversation {
    pub(crate) fn read(fields: &Fields) -> Result<Self, Refusal> {
        let bad = |message: &str| Refusal::bad("messages", message);
        let Some(Value::Array(all)) = fields.get("messages") else {
            return Err(bad("messages must be a list of messages"));
        };
        let messages: Result<Vec<Message>, Refusal> = all.iter().map(message).collect();
        let messages = messages?;
        if messages.is_empty() {
            return Err(bad("messages must not be empty"));
        }
        let tools = tools(fields)?;
        Ok(Self { messages, tools })
    }

    /// The policy's template with the tools, where there are any.
    pub(crate) fn chat(&self, chat: &Chat) -> Result<Chat, Refusal> {
        let offering = |tools: &Value, field| {
            let offering = chat.with_tools(tools);
            offering.map_err(|e| Refusal::bad(field, e.to_string()))
        };
        let calls =
            |message: &Message| message.role == Role::Tool || !message.tool_calls.is_empty();
        match &self.tools {
            Some(tools) => offering(tools, "tools"),
            None => {
                if self.messages.iter().any(calls) {
                    offering(&ANY_TOOL, "messages")?;
                }
                Ok(chat.clone())
            }
        }
    }
}

/// The ids of a conversation, by the policy's own template, and whether it offers tools.
pub(crate) fn conversation(fields: &Fields, policy: &Policy) -> Result<(Vec<u32>, bool), Refusal> {
    let conversation = Conversation::read(fields)?;
    let chat = conversation.chat(policy.chat())?;
    let context = policy.config().max_position_embeddings;
    let ids = chat
        .prompt_ids_within(policy.tokenizer(), &conversation.messages, context)
        .map_err(|e| Refusal::bad("messages", e.to_string()))?;
    let ids = ids.ok_or_else(|| {
        let message = format!("the policy reads {context} ids, and the conversation has more");
        Refusal::too_long("messages", message)
    })?;
    Ok((ids, conversation.tools.is_some()))
}

/// Stands for the tools of a conversation whose last request offers none: a template that has no place
/// for tools leaves calls out.
static ANY_TOOL: std::sync::LazyLock<Value> = std::sync::LazyLock::new(|| {
    let parameters = json!({"type": "object", "properties": {}});
    let function = json!({"name": "probe", "description": "", "parameters": parameters});
    json!([{"type": "function", "function": function}])
});

/// The tools that the template renders, the fields of each in one order. `strict` is a word to the server.
fn tools(fields: &Fields) -> Result<Option<Value>, Refusal> {
    match fields.get("tool_choice") {
        None => {}
        Some(choice) if *choice == json!("auto") => {}
        Some(choice) if *choice == json!("none") => return Ok(None),
        Some(_) => {
            let message =
                "no call can be made to happen here: tool_choice must be \"auto\" or \"none\"";
            return Err(Refusal::bad("tool_choice", message));
        }
    }
    let bad = |message: &str| Refusal::bad("tools", message);
    let all = match fields.get("tools") {
        None => return Ok(None),
        Some(Value::Array(all)) if all.is_empty() => return Ok(None),
        Some(Value::Array(all)) => all,
        Some(_) => return Err(bad("tools must be a list of tools")),
    };
    let tool = |tool: &Value| {
        let function = tool["function"].as_object();
        let function = function.filter(|_| tool["type"] == "function");
        let mut function = function.cloned().ok_or_else(|| {
            bad("a tool must be {\"type\": \"function\", \"function\": {\"name\": …, \"parameters\": {…}}}")
        })?;
        if function
            .get("name")
            .and_then(Value::as_str)
            .is_none_or(str::is_empty)
        {
            return Err(bad("the name of a tool must be text that is not empty"));
        }
        let parameters = function.get("parameters").unwrap_or(&Value::Null);
        if !parameters.is_null() && !parameters.is_object() {
            return Err(bad("the parameters of a tool must be a JSON schema"));
        }
        function.shift_remove("strict");
        // Clients differ in the order; policies were taught this one.
        let mut ordered = Map::new();
        for name in ["name", "description", "parameters"] {
            ordered.extend(
                function
                    .shift_remove(name)
                    .map(|value| (name.to_owned(), value)),
            );
        }
        ordered.extend(function);
        Ok(json!({"type": "function", "function": ordered}))
    };
    all.iter().map(tool).collect::<Result<Value, _>>().map(Some)
}

fn message(value: &Value) -> Result<Message, Refusal> {
    let bad = |message: &str| Refusal::bad("messages", message);
    let role = match value["role"].as_str() {
        Some("system" | "developer") => Role::System,
        Some("user") => Role::User,
        Some("assistant") => Role::Assistant,
        Some("tool") => Role::Tool,
        _ => {
            return Err(bad(
                "the role of a message must be system, developer, user, assistant or tool",
            ));
        }
    };
    if !value["function_call"].is_null() {
        return Err(bad(
            "function_call is an older form; calls are given as tool_calls",
        ));
    }
    let calls = match &value["tool_calls"] {
        Value::Null => &[],
        Value::Array(all) if all.is_empty() || role == Role::Assistant => all.as_slice(),
        _ => {
            return Err(bad(
                "tool_calls must be a list of calls, in a message of the assistant",
            ));
        }
    };
    let tool_calls: Result<Vec<ToolCall>, Refusal> = calls.iter().map(call).collect();
    let tool_calls = tool_calls?;
    let content = match &value["content"] {
        Value::Null if !tool_calls.is_empty() => Some(String::new()),
        content => text(content, &["text"]),
    };
    let content = content.ok_or_else(|| bad("the content of a message must be text"))?;
    Ok(Message {
        tool_calls,
        ..Message::new(role, content)
    })
}

/// A call as this server gives it; its id and that of the answer are for the client.
fn call(value: &Value) -> Result<ToolCall, Refusal> {
    let function = &value["function"];
    let arguments = function["arguments"].as_str();
    let arguments = arguments.and_then(|text| serde_json::from_str::<Map<_, _>>(text).ok());
    match (value["type"].as_str(), function["name"].as_str(), arguments) {
        (Some("function"), Some(name), Some(arguments)) => Ok(ToolCall {
            name: name.to_owned(),
            arguments,
        }),
        _ => Err(Refusal::bad(
            "messages",
            "a call must be {\"type\": \"function\", \"function\": {\"name\": …, \"arguments\": \"{…}\"}}, the \
             arguments a JSON object as text",
        )),
    }
}
