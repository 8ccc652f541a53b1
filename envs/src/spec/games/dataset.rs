//! The HTTP behaviour of the server of a file of questions.

use crate::parser::Parser;
use crate::spec::base::COMMON;
use crate::spec::{EnvSpec, Items, Signs};

/// Behaviour of the server: a question, one reply, and its grade from 0 to 1.
pub static SPEC: EnvSpec = EnvSpec {
    name: "dataset",
    parser: Parser::Raw,
    probe: "?",
    rounds_max: 1,
    items: Items::Unknown,
    signs: Signs {
        greeting: "This is environment dataset.",
        first: &[],
    },
    ..COMMON
};
