//! The HTTP behaviour of its server, and its tools.

use crate::parser::Parser;
use crate::spec::base::COMMON;
use crate::spec::calls::{Argument, ArgumentType, Tool};
use crate::spec::{EnvSpec, Items, Signs};

const TEXT: Argument = Argument::of(ArgumentType::String, "");
const NUMBER: Argument = Argument::of(ArgumentType::Integer, "");

/// Every episode spends tokens on them, so they say what their names do not.
pub const TOOLS: &[Tool] = &[
    Tool {
        name: "get",
        description: "The number under a key.",
        arguments: &[("from", TEXT)],
    },
    Tool {
        name: "put",
        description: "Puts a number under a key.",
        arguments: &[("to", TEXT), ("value", NUMBER)],
    },
    Tool {
        name: "calculate",
        description: "plus, minus or times.",
        arguments: &[("a", NUMBER), ("sign", TEXT), ("b", NUMBER)],
    },
    Tool {
        name: "finish",
        description: "Ends the task.",
        arguments: &[],
    },
];

/// Behaviour of the server: the reward is 1 for a `finish` with the right number in place.
pub static SPEC: EnvSpec = EnvSpec {
    name: "toolbox",
    instruction: "Reach the goal by calls of tools, one at a time; then finish.",
    parser: Parser::ToolCall,
    calls: TOOLS,
    probe: r#"{"name": "calculate", "arguments": {"a": 2, "sign": "plus", "b": 3}}"#,
    rounds_max: 20,
    items: Items::Any,
    signs: Signs {
        greeting: "This is environment Toolbox.",
        first: &[r#"Goal: {"to": "#],
    },
    ..COMMON
};
