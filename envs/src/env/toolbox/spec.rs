//! The HTTP behaviour of its server, and its tools.

use crate::parser::Parser;
use crate::spec::base::COMMON;
use crate::spec::calls::{Argument, ArgumentType, Tool};
use crate::spec::types::{EnvSpec, Items};

const KEY: (&str, Argument) = ("key", Argument::of(ArgumentType::String, ""));
const TWO: &[(&str, Argument)] = &[
    ("a", Argument::of(ArgumentType::Integer, "")),
    ("b", Argument::of(ArgumentType::Integer, "")),
];

/// Every episode spends tokens on them, so they say what their names do not.
pub(super) const TOOLS: &[Tool] = &[
    Tool {
        name: "get",
        description: "The number under a key.",
        arguments: &[KEY],
    },
    Tool {
        name: "put",
        description: "Puts a number under a key.",
        arguments: &[KEY, ("value", Argument::of(ArgumentType::Integer, ""))],
    },
    Tool {
        name: "add",
        description: "a plus b.",
        arguments: TWO,
    },
    Tool {
        name: "subtract",
        description: "a minus b.",
        arguments: TWO,
    },
    Tool {
        name: "multiply",
        description: "a times b.",
        arguments: TWO,
    },
    Tool {
        name: "finish",
        description: "Ends the task.",
        arguments: &[],
    },
];

/// Behaviour of the server: the reward is 1 for a `finish` with the right number in place.
pub(crate) static SPEC: EnvSpec = EnvSpec {
    name: "toolbox",
    instruction: "A store holds numbers under keys. Call one tool at a time; finish when the goal \
                  is reached.",
    parser: Parser::ToolCall,
    calls: TOOLS,
    probe: r#"{"name": "add", "arguments": {"a": 2, "b": 3}}"#,
    rounds_max: 20,
    items: Items::Any,
    ..COMMON
};
