//! Its server.

use crate::parser::Parser;
use crate::spec::base::COMMON;
use crate::spec::{Actions, EnvSpec, Items, Signs};

/// Behaviour of the server.
pub static SPEC: EnvSpec = EnvSpec {
    name: "wordle",
    instruction: "Guess a word of five letters in six tries. The reply has one letter per \
                  place: g for right, y for right but in another place, b for not in the word. \
                  Write a guess with spaces between its letters. Answer with one line: \
                  Action: <guess>",
    path_prefix: "/wordle",
    reset_key: "seed",
    first_lists_actions: Some("Words: "),
    actions: Actions::Endpoint {
        path: "/filtered_vocab",
        with_id: true,
    },
    close: false,
    reuse: true,
    parser: Parser::FirstAction,
    rounds_max: 8,
    items: Items::Any,
    probe: "c r a n e",
    signs: Signs {
        greeting: "This is environment LMRL-Gym.",
        first: &["Let's start Wordle!"],
    },
    ..COMMON
};
