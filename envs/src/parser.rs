//! From the model's text to the action that is sent.
//!
//! The original clients clean the text before they post it, and rewards depend on that
//! cleaning, so it is part of an environment's specification and copied exactly. What it
//! changed is reported, because a lenient parser moves scores.

/// How an environment's action is found in a model's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Parser {
    /// The text after `Action:` up to the end of its line (white space, line ends included, may
    /// follow the colon), reduced to ASCII letters, digits, commas and single spaces. None
    /// found: the empty action is sent. More than one: nothing is sent, the model is told.
    ActionLine,
}

/// What a parser made of a model's text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parsed {
    /// What is sent; `None` if the client answers by itself.
    pub action: Option<String>,
    /// The answer given without a call; its reward is 0 and the episode goes on.
    pub local_reply: Option<String>,
    /// The cleaning changed the action as the model wrote it.
    pub normalised: bool,
    /// The marker that introduces an action was there.
    pub found: bool,
}

const ACTION_MARKER: &str = "Action:";
const ONE_ACTION_ONLY: &str =
    "Error: Only one 'Action' is allowed per response. Please adjust your response.";

impl Parser {
    /// Reads an action out of a model's text.
    pub fn parse(self, model_text: &str) -> Parsed {
        match self {
            Self::ActionLine => parse_action_line(model_text),
        }
    }
}

fn parse_action_line(text: &str) -> Parsed {
    let mut raw = "";
    let mut count = 0;
    let mut rest = text;
    while let Some(at) = rest.find(ACTION_MARKER) {
        let after = rest[at + ACTION_MARKER.len()..].trim_start();
        let line_end = after.find('\n').unwrap_or(after.len());
        raw = &after[..line_end];
        rest = &after[line_end..];
        count += 1;
    }
    if count > 1 {
        return Parsed {
            local_reply: Some(ONE_ACTION_ONLY.to_owned()),
            found: true,
            ..Parsed::default()
        };
    }
    let kept: String = raw
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || matches!(c, ',' | ' '))
        .collect();
    let action = kept.split_whitespace().collect::<Vec<_>>().join(" ");
    Parsed {
        normalised: action != raw,
        action: Some(action),
        local_reply: None,
        found: count == 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(text: &str) -> String {
        Parser::ActionLine
            .parse(text)
            .action
            .expect("one action at most")
    }

    #[test]
    fn the_line_after_the_marker_is_sent() {
        for (text, action) in [
            ("Action: get 1 oak log", "get 1 oak log"),
            (
                "Thought: first wood.\nAction: get 1 oak log\n",
                "get 1 oak log",
            ),
            ("Action:get 2 stick", "get 2 stick"),
            ("Action:\n\n  inventory\nignored", "inventory"),
            ("Action: get 1 oak_log", "get 1 oaklog"),
            (
                "Action: craft 4 oak planks using 1 oak log.",
                "craft 4 oak planks using 1 oak log",
            ),
            ("Action: `get   3\tdiamond`", "get 3diamond"),
            ("Action: get   3 diamond  ", "get 3 diamond"),
            ("Action: Action: inventory", "Action inventory"),
            ("Action:\nAction: inventory", "Action inventory"),
            ("Action: get ١ diamond", "get diamond"),
            ("Action:", ""),
            ("get 1 oak log", ""),
            ("action: inventory", ""),
            ("", ""),
        ] {
            assert_eq!(sent(text), action, "{text:?}");
        }
    }

    #[test]
    fn several_actions_are_answered_without_a_call() {
        let parsed = Parser::ActionLine.parse("Action: get 1 a\nAction: get 1 b");
        assert_eq!(parsed.action, None);
        assert_eq!(parsed.local_reply.as_deref(), Some(ONE_ACTION_ONLY));
    }

    #[test]
    fn cleaning_is_reported() {
        assert!(!Parser::ActionLine.parse("Action: inventory").normalised);
        assert!(Parser::ActionLine.parse("Action: inventory.").normalised);
        assert!(Parser::ActionLine.parse("Action: inventory").found);
        assert!(!Parser::ActionLine.parse("inventory").found);
    }
}
