//! A message of a conversation, and the delimiters of placeholders.

use super::python::plain_json;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value as Json, json};

/// The speaker of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Instructions before the conversation.
    System,
    /// The task or an observation.
    User,
    /// The policy, or an example of it.
    Assistant,
    /// The answer to a call of a tool.
    Tool,
}

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Message {
    /// The speaker.
    pub role: Role,
    /// The text; special strings in it are never trusted.
    pub content: String,
    /// Calls that the template writes behind the text. What a policy says here holds its calls as text;
    /// these are of a conversation that a client of an API sends.
    #[serde(default, skip_deserializing, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
}

/// A call of a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// The tool.
    pub name: String,
    /// Its arguments by name, in the order in which they are written.
    pub arguments: Map<String, Json>,
}

impl ToolCall {
    /// As the policy writes it in its text.
    pub fn text(&self) -> String {
        let call = json!({"name": self.name, "arguments": self.arguments});
        format!("<tool_call>\n{}\n</tool_call>", plain_json(&call))
    }
}

impl Serialize for ToolCall {
    /// As templates read it.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let function = json!({"name": self.name, "arguments": self.arguments});
        json!({"type": "function", "function": function}).serialize(serializer)
    }
}

impl Message {
    /// A message of `role`.
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Message {
            role,
            content: content.into(),
            tool_calls: Vec::new(),
        }
    }
}

/// Delimiters of placeholders in rendered text: private-use characters, which a
/// template neither trims nor looks for.
pub(super) const OPEN: char = '\u{E000}';

pub(super) const CLOSE: char = '\u{E001}';
