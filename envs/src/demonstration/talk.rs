//! A conversation in which a task is solved, message by message.

use serde::Serialize;
use serde_json::Value;

/// A message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DemonstrationMessage {
    /// `human` (the environment), `tool` (its answer to a call) or `gpt` (the model).
    pub from: &'static str,
    /// Whether the message is trained on; `null` for the environment's.
    pub loss: Option<bool>,
    /// The text.
    pub value: String,
}

/// A solved task, as one line of a trajectory file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Demonstration {
    /// The messages; the last one is the model's.
    pub conversations: Vec<DemonstrationMessage>,
    /// `<environment>_<item id>`, such as `textcraft_7`.
    pub item_id: String,
    /// The tools that are called, as a chat template is given them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tools: Option<Value>,
}

/// A conversation in progress.
pub struct Talk {
    /// The environment's latest message, not yet answered.
    pub observation: String,
    conversations: Vec<DemonstrationMessage>,
    tools: Option<Value>,
}

impl Talk {
    /// Starts with `first` as the first human message.
    pub fn new(first: String) -> Self {
        Self::calling(first, None)
    }

    /// [`Self::new`] where the model calls these tools: they say everything after `first`.
    pub fn calling(first: String, tools: Option<Value>) -> Self {
        Self {
            observation: first,
            conversations: Vec::new(),
            tools,
        }
    }

    /// Adds the model's answer, whether it is trained on, and the environment's reply.
    pub fn say(&mut self, text: String, loss: bool, reply: String) {
        let heard = std::mem::replace(&mut self.observation, reply);
        let answers = self.tools.is_some() && !self.conversations.is_empty();
        let heard = (if answers { "tool" } else { "human" }, None, heard);
        for (from, loss, value) in [heard, ("gpt", Some(loss), text)] {
            self.conversations
                .push(DemonstrationMessage { from, loss, value });
        }
    }

    /// The finished conversation, without the environment's last reply, which nothing answers.
    pub fn told(self, item_id: String) -> Demonstration {
        Demonstration {
            conversations: self.conversations,
            item_id,
            tools: self.tools,
        }
    }
}
