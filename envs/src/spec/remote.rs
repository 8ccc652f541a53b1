//! The environments that only third-party servers provide, one value each. Fields that are not
//! listed come from the base value.

use super::base::{COMMON, INDEXED};
use super::tools;
use super::types::{
    Actions, CreateBody, EnvSpec, ErrorShape, FirstObservation, Fixed, IdInReply, Items, Replay,
    RewardRule,
};
use crate::parser::Parser;

/// All of them.
pub(crate) static REMOTE: [EnvSpec; 9] = [
    WEBARENA, WEBSHOP, ALFWORLD, SQLGYM, WEATHER, MOVIE, ACADEMIA, SHEET, TODO,
];

const WEBARENA: EnvSpec = EnvSpec {
    name: "webarena",
    instruction: "Reach the objective in a web browser. Each turn shows the page as a tree of \
                  elements with ids. Actions: click [id], type [id] [text] [1 to press enter, \
                  else 0], hover [id], press [keys], scroll [up|down], goto [url], new_tab, \
                  tab_focus [n], close_tab, go_back, go_forward, stop [answer]. Give one \
                  action per turn between triple backticks, for example ```click [12]```, and \
                  end with stop.",
    id_key: "env_idx",
    id_in_reply: IdInReply::Key("env_idx"),
    reset_key: "idx",
    reset_fixed: &[("seed", Fixed::Int(0))],
    // The reply to /reset holds the page without address, objective and last action.
    first_observation: FirstObservation::Observe,
    reward_rule: RewardRule::WhenDone,
    done_key: "terminated",
    errors: ErrorShape::InObservation(&[
        "Cannot parse action",
        "Invalid ",
        "list index out of range",
    ]),
    creates_at_once: 2,
    parser: Parser::Fenced,
    rounds_max: 15,
    items: Items::Within(0..812),
    replay: Replay::None,
    probe: "```scroll [down]```",
    ..COMMON
};

const WEBSHOP: EnvSpec = EnvSpec {
    name: "webshop",
    instruction: "Buy what the instruction asks for. Actions: search[keywords] where there is a \
                  search bar, click[button or product] for anything clickable on the page. \
                  Answer with your thought and, last, one line: Action: <action>",
    reset_key: "session_id",
    observation_key: "state",
    actions: Actions::Endpoint {
        path: "/available_actions",
        with_id: true,
    },
    close: false,
    reuse: true,
    parser: Parser::LastAction,
    rounds_max: 10,
    probe: "search[shoes]",
    ..INDEXED
};

const ALFWORLD: EnvSpec = EnvSpec {
    name: "alfworld",
    instruction: "Do the household task. Actions: go to, take … from, put … in/on, open, close, \
                  toggle, clean … with, heat … with, cool … with, examine, use, inventory, look. \
                  Answer with your thought and, last, one line: Action: <action>",
    create_body: CreateBody::Nothing,
    reset_key: "game",
    reset_fixed: &[("world_type", Fixed::Text("Text"))],
    first_lists_actions: Some("AVAILABLE ACTIONS: "),
    actions: Actions::InReply("available_actions"),
    close: false,
    reuse: true,
    parser: Parser::LastAction,
    items: Items::Within(0..2620),
    probe: "look",
    ..COMMON
};

const SQLGYM: EnvSpec = EnvSpec {
    name: "sqlgym",
    instruction: "Answer the question with one SQL statement for the given tables, between \
                  ```sql and ```.",
    reset_key: "item_id",
    observation_key: "state",
    close: false,
    reuse: true,
    creates_at_once: 1,
    parser: Parser::SqlBlock,
    rounds_max: 1,
    items: Items::Within(0..10_962),
    probe: "```sql\nSELECT 1\n```",
    ..INDEXED
};

/// Servers that give a language model access to third-party programs (tools).
const TOOLS: EnvSpec = EnvSpec {
    create_body: CreateBody::Item("id"),
    reset_key: "id",
    // The best reward so far.
    reward_is_total: true,
    close: false,
    reuse: true,
    replay: Replay::None,
    ..INDEXED
};

const WEATHER: EnvSpec = EnvSpec {
    name: "weather",
    instruction: "Answer the question about weather, places and dates with the tools that the \
                  first message names. One call per turn, on the last line: Action: <tool> with \
                  Action Input: <arguments>. End with Action: finish with Action Input: \
                  {\"answer\": <answer>}.",
    tools: tools::WEATHER,
    rounds_max: 10,
    items: Items::Within(0..343),
    ..TOOLS
};

const MOVIE: EnvSpec = EnvSpec {
    name: "movie",
    instruction: "Answer the question about films and people with the tools of a film database. \
                  One call per turn, on the last line: Action: <tool> with Action Input: \
                  <arguments>. End with Action: finish with Action Input: {\"answer\": <answer>}.",
    tools: tools::MOVIE,
    rounds_max: 12,
    items: Items::Within(0..238),
    ..TOOLS
};

const ACADEMIA: EnvSpec = EnvSpec {
    name: "academia",
    instruction: "Answer the question about papers and authors with the tools of a citation \
                  graph. One call per turn, on the last line: Action: <tool> with Action Input: \
                  <arguments>. End with Action: finish with Action Input: {\"answer\": <answer>}.",
    tools: tools::ACADEMIA,
    rounds_max: 12,
    items: Items::Within(0..20),
    ..TOOLS
};

const SHEET: EnvSpec = EnvSpec {
    name: "sheet",
    instruction: "Change the spreadsheet as asked with the tools for sheets. One call per turn, \
                  on the last line: Action: <tool> with Action Input: <arguments>. End with \
                  Action: finish with Action Input: {}.",
    tools: tools::SHEET,
    rounds_max: 15,
    items: Items::Within(0..20),
    ..TOOLS
};

const TODO: EnvSpec = EnvSpec {
    name: "todo",
    instruction: "Carry out the request about projects and tasks with the tools of a to-do list. \
                  One call per turn, on the last line: Action: <tool> with Action Input: \
                  <arguments>. End with Action: finish with Action Input: {\"answer\": <answer>}.",
    tools: tools::TODO,
    rounds_max: 15,
    items: Items::Within(0..155),
    ..TOOLS
};
