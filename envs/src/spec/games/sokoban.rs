//! The HTTP behaviour of its server.

use crate::parser::Parser;
use crate::spec::base::COMMON;
use crate::spec::{Actions, EnvSpec, Items, Signs, SuccessRule};

/// Behaviour of the server. A turn that solves a room earns at least 10.5, any other at most 2.
pub static SPEC: EnvSpec = EnvSpec {
    name: "sokoban",
    instruction: "Push every box onto a target. # wall, _ floor, O target, X box, √ box on a \
                  target, P you, S you on a target. You push a box by walking into it; you \
                  cannot pull, and nothing goes through walls or other boxes. Actions: Up, \
                  Down, Left, Right; up to five in a turn, with || between them. Answer with \
                  one line: Action: <action> || <action>",
    actions: Actions::Endpoint {
        path: "/available_actions",
        with_id: false,
    },
    parser: Parser::FirstAction,
    success: SuccessRule::RewardAbove(9.0),
    probe: "Up || Down",
    rounds_max: 5,
    items: Items::Any,
    signs: Signs {
        greeting: "This is environment Sokoban.",
        first: &["You have ", " actions left."],
    },
    ..COMMON
};
