//! Its server.

use crate::spec::base::COMMON;
use crate::spec::{CreateBody, DoneRule, EnvSpec, Items, Replay, Signs};

/// Behaviour of the server.
pub static SPEC: EnvSpec = EnvSpec {
    name: "textcraft",
    instruction: "Craft the goal. Answer with one line: Action: <command>",
    create_body: CreateBody::EmptyObject,
    done_rule: DoneRule::WhenSolved,
    items: Items::Wrapping(544),
    replay: Replay::SameLines,
    probe: "inventory",
    signs: Signs {
        greeting: "This is environment TextCraft.",
        first: &["Crafting commands:", "Goal: craft "],
    },
    ..COMMON
};
