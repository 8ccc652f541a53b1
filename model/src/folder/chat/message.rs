//! A message of a conversation, and the delimiters of placeholders.

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
}

impl Message {
    /// A message of `role`.
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Message {
            role,
            content: content.into(),
        }
    }
}

/// Delimiters of placeholders in rendered text: private-use characters, which a
/// template neither trims nor looks for.
pub(super) const OPEN: char = '\u{E000}';

pub(super) const CLOSE: char = '\u{E001}';
