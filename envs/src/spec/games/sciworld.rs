//! Its server.

use crate::parser::Parser;
use crate::spec::base::COMMON;
use crate::spec::{Actions, EnvSpec, FirstObservation, Items, Replay, Signs};

/// Behaviour of the server.
pub static SPEC: EnvSpec = EnvSpec {
    name: "sciworld",
    instruction: "Carry out the science task in a simulated house. Actions: open/close OBJ, \
                  activate/deactivate OBJ, connect OBJ to OBJ, disconnect OBJ, use OBJ on OBJ, \
                  look around, look at OBJ, look in OBJ, read OBJ, move OBJ to OBJ, pick up OBJ, \
                  put down OBJ, pour OBJ into OBJ, dunk OBJ into OBJ, mix OBJ, go to LOC, eat OBJ, \
                  flush OBJ, focus on OBJ (only what the task names), wait, wait1, task, \
                  inventory. Answer with your thought and, last, one line: Action: <action>",
    first_observation: FirstObservation::Keys(&["task_description", "observation"]),
    reward_key: "score",
    reward_is_total: true,
    reward_scale: 0.01,
    actions: Actions::Endpoint {
        path: "/action_hint",
        with_id: true,
    },
    // On the original each session is a Java process: starting one takes more than a second and
    // 300 MiB.
    reuse: true,
    creates_at_once: 2,
    parser: Parser::LastAction,
    rounds_max: 20,
    items: Items::Within(0..4639),
    replay: Replay::SameLines,
    probe: "look around",
    signs: Signs {
        greeting: "This is environment ScienceWorld.",
        first: &["Your task is to ", " is called the "],
    },
    ..COMMON
};
