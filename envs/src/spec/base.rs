//! Defaults that the specs of several environments share.

use super::types::{
    Actions, AgentHistory, CreateBody, DoneRule, EnvSpec, ErrorShape, FirstObservation, IdInReply,
    Items, Replay, RewardRule, Routes, Signs, SuccessRule,
};
use crate::parser::Parser;

/// Servers that name a session `id` and report errors with status 200.
pub(crate) const COMMON: EnvSpec = EnvSpec {
    name: "",
    instruction: "",
    tools: "",
    path_prefix: "",
    routes: Routes {
        create: "/create",
        reset: "/reset",
        step: "/step",
        observation: "/observation",
        close: "/close",
    },
    create_body: CreateBody::Nothing,
    id_key: "id",
    id_in_reply: IdInReply::Key("id"),
    reset_key: "data_idx",
    reset_fixed: &[],
    first_observation: FirstObservation::Keys(&["observation"]),
    first_lists_actions: None,
    observation_key: "observation",
    reward_key: "reward",
    reward_rule: RewardRule::EachStep,
    reward_is_total: false,
    reward_scale: 1.0,
    done_key: "done",
    harness: false,
    history: AgentHistory::AsSampled,
    failed_reward: None,
    truncated_key: None,
    done_rule: DoneRule::Any,
    errors: ErrorShape::Soft,
    actions: Actions::None,
    close: true,
    reuse: false,
    creates_at_once: 16,
    parser: Parser::ActionLine,
    calls: &[],
    success: SuccessRule::RewardAtLeast(1.0),
    rounds_max: 30,
    probe: "Action: finish with Action Input: {}",
    items: Items::Unknown,
    replay: Replay::Exact,
    finished_text: "has finished",
    signs: Signs {
        greeting: "",
        first: &[],
    },
};

/// Servers that name a session `env_idx` and fail with status 500.
pub(crate) const INDEXED: EnvSpec = EnvSpec {
    id_key: "env_idx",
    id_in_reply: IdInReply::Bare,
    first_observation: FirstObservation::Bare,
    errors: ErrorShape::Status,
    parser: Parser::Raw,
    ..COMMON
};

/// What a person's file leaves out.
impl Default for EnvSpec {
    fn default() -> Self {
        COMMON
    }
}

impl Default for Routes {
    fn default() -> Self {
        COMMON.routes
    }
}
