//! Its server.

use crate::parser::Parser;
use crate::spec::base::COMMON;
use crate::spec::{Actions, EnvSpec, Items, Signs};

/// Behaviour of the server.
pub static SPEC: EnvSpec = EnvSpec {
    name: "maze",
    instruction: "Find the way to the goal in a maze, a cell at a time; walls stop you. The first \
                  number of a position grows downwards, the second to the right. Actions: move \
                  up, move down, move left, move right. Answer with one line: Action: <action>",
    path_prefix: "/maze",
    reset_key: "game",
    actions: Actions::Endpoint {
        path: "/available_actions",
        with_id: false,
    },
    close: false,
    reuse: true,
    parser: Parser::FirstAction,
    rounds_max: 15,
    items: Items::Within(0..25),
    probe: "move up",
    signs: Signs {
        greeting: "This is environment LMRL-Gym.",
        first: &["The goal is at position "],
    },
    ..COMMON
};
