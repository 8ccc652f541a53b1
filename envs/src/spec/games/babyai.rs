//! Its server.

use crate::spec::base::COMMON;
use crate::spec::{Actions, EnvSpec, Items, RewardRule, Signs, SuccessRule};

/// Behaviour of the server.
pub static SPEC: EnvSpec = EnvSpec {
    name: "babyai",
    instruction: "Reach the goal in a grid of rooms. Each turn shows what is in front of you \
                  and the available actions; choose one of them, written exactly as listed. \
                  Answer with one line: Action: <action>",
    reward_key: "score",
    reward_rule: RewardRule::FirstNonZero,
    reward_is_total: true,
    actions: Actions::InText("Available actions: "),
    success: SuccessRule::RewardAbove(0.0),
    rounds_max: 20,
    items: Items::Any,
    probe: "turn left",
    signs: Signs {
        greeting: "This is environment BabyAI.",
        first: &["Your goal: ", "Available actions: ["],
    },
    ..COMMON
};
