//! Its server.

use crate::parser::Parser;
use crate::spec::base::INDEXED;
use crate::spec::{CreateBody, EnvSpec, Items, Signs};

/// Behaviour of the server.
pub static SPEC: EnvSpec = EnvSpec {
    name: "searchqa",
    // The server's own first text explains the tags.
    instruction: "Answer the question, in the format that is described here.",
    create_body: CreateBody::Item("id"),
    reset_key: "id",
    parser: Parser::Tags,
    rounds_max: 5,
    items: Items::Within(0..221_328),
    probe: "<search>river</search>",
    signs: Signs {
        greeting: "",
        first: &["<search>", "<answer>"],
    },
    ..INDEXED
};
