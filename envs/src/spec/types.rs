//! The properties of a server that the client has to know.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

use super::calls::{self, Tool};
use super::wire;
use crate::parser::tool_call::spoken;
use crate::parser::{Parsed, Parser};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The body that `/create` needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CreateBody {
    /// `{}`; a request without a body is refused.
    EmptyObject,
    /// No body at all.
    Nothing,
    /// An object in which this key holds the item's id.
    Item(&'static str),
}

/// Where `/create` puts the session's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IdInReply {
    /// The reply is the number itself.
    Bare,
    /// The reply is an object and this key holds the number.
    Key(&'static str),
}

/// A fixed value that `/reset` always carries in addition to the item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Fixed {
    /// A number.
    Int(i64),
    /// A text.
    Text(&'static str),
}

/// Where the first observation of a task is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", bound(deserialize = "'de: 'static"))]
pub enum FirstObservation {
    /// The reply to `/reset` is the text itself, or a list whose first entry it is.
    Bare,
    /// The texts under these keys of the reply to `/reset`, one per line.
    Keys(#[serde(deserialize_with = "wire::words")] &'static [&'static str]),
    /// Not in the reply to `/reset`: it comes from `GET /observation`.
    Observe,
}

/// Which of the server's numbers is the reward of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RewardRule {
    /// The number of the step itself.
    EachStep,
    /// The number of the step that ends the episode; on earlier steps it means something else.
    WhenDone,
    /// The first number that is not zero, for all following steps too: the server adds the reward
    /// again on every later step that changes nothing.
    FirstNonZero,
}

/// When an episode counts as solved.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SuccessRule {
    /// A (scaled) reward of at least this much.
    RewardAtLeast(f64),
    /// A (scaled) reward above this; for rewards that shrink with the steps taken.
    RewardAbove(f64),
}

impl SuccessRule {
    /// Whether a scaled reward is a success.
    pub fn holds(self, reward: f64) -> bool {
        match self {
            Self::RewardAtLeast(least) => reward >= least,
            Self::RewardAbove(bound) => reward > bound,
        }
    }
}

/// How the server reports a failed call, apart from a status other than 200.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", bound(deserialize = "'de: 'static"))]
pub enum ErrorShape {
    /// Status 200 with `{"error": text}` and no observation.
    Soft,
    /// Only by the status.
    Status,
    /// Status 200 with a step reply whose `info` is null and whose observation is the exception's
    /// text. Texts with one of these prefixes are the model's fault and leave the episode
    /// unchanged; any other text means that the environment failed. A failed reset has the
    /// observation `TimeoutError`.
    InObservation(#[serde(deserialize_with = "wire::words")] &'static [&'static str]),
}

/// Where the currently possible actions are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Actions {
    /// Nowhere.
    None,
    /// In replies to `/reset` and `/step`, under this key.
    InReply(&'static str),
    /// In the observation: a JSON list after this text.
    InText(&'static str),
    /// At an endpoint of its own.
    Endpoint {
        /// The path.
        path: &'static str,
        /// The request has to name the session.
        with_id: bool,
    },
}

impl Actions {
    /// The actions that an observation itself lists.
    pub fn in_text(self, observation: &str) -> Option<Vec<String>> {
        let Self::InText(marker) = self else {
            return None;
        };
        let (_, list) = observation.rsplit_once(marker)?;
        serde_json::from_str(list.lines().next()?).ok()
    }
}

/// When a server ends an episode. A reply that contradicts the rule is a server fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DoneRule {
    /// At any time.
    Any,
    /// On the step that solves the task, and at no other time.
    WhenSolved,
}

/// Which item ids exist.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Items {
    /// Any number is a valid item.
    Any,
    /// Ids from 0; other numbers wrap around.
    Wrapping(i64),
    /// The ids in this range; others are refused.
    Within(#[serde(with = "wire::range")] Range<i64>),
    /// Depends on the data that the server was given.
    Unknown,
}

/// How closely a session repeats itself when the same actions are played again. This decides
/// whether an interrupted episode can be resumed in a fresh session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Replay {
    /// Byte for byte.
    Exact,
    /// The same lines, in any order.
    SameLines,
    /// Not reproducible.
    None,
}

impl Replay {
    /// Whether a replayed observation counts as equal to the recorded one.
    pub fn accepts(self, recorded: &str, replayed: &str) -> bool {
        match self {
            Self::Exact => recorded == replayed,
            Self::SameLines => {
                let sorted = |text: &str| {
                    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
                    lines.sort_unstable();
                    lines
                };
                recorded == replayed || sorted(recorded) == sorted(replayed)
            }
            Self::None => false,
        }
    }
}

/// What a reply of the policy is in later prompts of its conversation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentHistory {
    /// What was sampled, with its thoughts.
    #[default]
    AsSampled,
    /// Of what was sampled, what the chat template leaves of it.
    Template,
}

impl AgentHistory {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// What a harness says of an agent that has ended.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Ended {
    /// How.
    #[serde(rename = "ended")]
    pub how: End,
    /// None where nothing judged it.
    pub reward: Option<f64>,
    /// What the reward is made of, by the harness's own names.
    pub components: BTreeMap<String, f64>,
    /// In words.
    pub reason: String,
}

/// How an agent ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// By itself.
    #[default]
    Finished,
    /// By an error of its own.
    Failed,
    /// By a limit of time or output.
    Stopped,
}

impl End {
    /// The word in a reply and in records.
    pub fn name(self) -> &'static str {
        match self {
            Self::Finished => "finished",
            Self::Failed => "failed",
            Self::Stopped => "stopped",
        }
    }
}

/// Paths of the calls, below the base URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Routes {
    /// Opens a session (POST).
    pub create: &'static str,
    /// Gives it a task (POST).
    pub reset: &'static str,
    /// Plays an action (POST).
    pub step: &'static str,
    /// What is to be seen (GET).
    pub observation: &'static str,
    /// Ends a session (POST).
    pub close: &'static str,
}

/// How a kind of environment can be told from others. Nothing here is known of a person's server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signs {
    /// What `GET /` answers, if it names the environment.
    pub greeting: &'static str,
    /// Texts that every first observation contains.
    pub first: &'static [&'static str],
}

/// The declared behaviour of one kind of environment. Its wire form is what a person's file holds
/// (`spec::declared`); a field that is left out there is that of [`EnvSpec::default`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EnvSpec {
    /// Name in configurations and in item ids (`<name>_<item id>`).
    pub name: &'static str,
    /// The instruction before the first observation, in our own words. It is short, since every
    /// episode spends tokens on it. A configuration may replace it.
    pub instruction: &'static str,
    /// What may be called, where no reply of the server names it: told after the instruction.
    pub tools: &'static str,
    /// Suffix of the base URL, where one process serves several environments.
    pub path_prefix: &'static str,
    /// Paths of the calls.
    pub routes: Routes,
    /// Body of `/create`.
    pub create_body: CreateBody,
    /// Key of the session id in requests.
    pub id_key: &'static str,
    /// Where `/create` puts the id.
    pub id_in_reply: IdInReply,
    /// Key of the item id in `/reset`.
    pub reset_key: &'static str,
    /// Other fields that `/reset` carries.
    #[serde(with = "wire::fields")]
    pub reset_fixed: &'static [(&'static str, Fixed)],
    /// Where the first observation is.
    pub first_observation: FirstObservation,
    /// If set, this label and the possible actions are appended to the first observation.
    pub first_lists_actions: Option<&'static str>,
    /// Key of the observation in replies to `/step`.
    pub observation_key: &'static str,
    /// Key of the reward in replies to `/step`.
    pub reward_key: &'static str,
    /// Which of these numbers is used as the reward.
    pub reward_rule: RewardRule,
    /// The number is the episode's reward so far, not the reward of the step.
    pub reward_is_total: bool,
    /// Factor that scales the server's number so that a full solution has reward 1.
    pub reward_scale: f64,
    /// Key of the end-of-episode flag in replies to `/step`.
    pub done_key: &'static str,
    /// An agent behind the server plays, and asks this program's gateway for every message of the policy
    /// (docs/harness.md). A plan from before has no such field.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub harness: bool,
    /// What such an agent's earlier replies are in later prompts. A plan from before has no such field.
    #[serde(skip_serializing_if = "AgentHistory::is_default")]
    pub history: AgentHistory,
    /// The reward of an episode whose agent failed or ran out of time by itself, where its harness gives
    /// none; without it such an episode is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed_reward: Option<f64>,
    /// Key of a flag in replies to `/step` and `/reset` that ends the episode too, where a limit of
    /// the server cut it off. A plan from before has no such field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncated_key: Option<&'static str>,
    /// When the end-of-episode flag is set.
    pub done_rule: DoneRule,
    /// How failures are reported.
    pub errors: ErrorShape,
    /// Where possible actions are listed.
    pub actions: Actions,
    /// The server has `/close`.
    pub close: bool,
    /// A finished session is reset for the next episode instead of closed, because opening one is
    /// expensive or because there is no way to close it.
    pub reuse: bool,
    /// Sessions that one server may be opening at the same time.
    pub creates_at_once: usize,
    /// How the model's text becomes an action.
    pub parser: Parser,
    /// Tools that the model calls, where that is how it acts ([`Parser::ToolCall`]). Its chat
    /// template tells them. A plan from before has no such field.
    #[serde(
        deserialize_with = "wire::list",
        skip_serializing_if = "<[Tool]>::is_empty"
    )]
    pub calls: &'static [Tool],
    /// When an episode counts as solved.
    pub success: SuccessRule,
    /// An action that is valid in every state; the doctor plays it.
    pub probe: &'static str,
    /// Rounds that the scripts of AgentGym-RL allow (of AgentGym, where AgentGym-RL has none).
    pub rounds_max: u32,
    /// Which items exist on the original server.
    pub items: Items,
    /// How closely a replayed session repeats itself, on the original server.
    pub replay: Replay,
    /// Part of an `{"error"}` text which means that the episode was already over.
    pub finished_text: &'static str,
    /// What its servers are recognised by.
    #[serde(skip)]
    pub signs: Signs,
}

impl EnvSpec {
    /// The instruction, with the tools where there are any.
    pub fn told(&self) -> Cow<'static, str> {
        match self.tools {
            "" => Cow::Borrowed(self.instruction),
            tools => Cow::Owned(format!("{}\n\n{tools}", self.instruction)),
        }
    }

    /// Reads an action out of a model's text.
    pub fn parse(&self, model_text: &str) -> Parsed {
        match self.harness {
            true => Parser::Raw.parse(&[], model_text),
            false => self.parser.parse(self.calls, model_text),
        }
    }

    /// A model's text that is valid in every state.
    pub fn probe_text(&self) -> String {
        match self.parser {
            Parser::ActionLine | Parser::LastAction | Parser::FirstAction => {
                format!("Action: {}", self.probe)
            }
            Parser::ToolCall => spoken(self.probe),
            _ => self.probe.to_owned(),
        }
    }

    /// The tools as a chat template is given them; `None` where actions are text.
    pub fn offered(&self) -> Option<Value> {
        (!self.calls.is_empty()).then(|| calls::offered(self.calls))
    }

    /// The first user message of an episode: the instruction, a blank line, the observation.
    pub fn first_message(&self, observation: &str) -> String {
        first_message(self.instruction, observation)
    }
}

/// Like [`EnvSpec::first_message`], with another instruction. With an empty one the message is the
/// observation alone.
pub fn first_message(instruction: &str, observation: &str) -> String {
    if instruction.is_empty() {
        observation.to_owned()
    } else {
        format!("{instruction}\n\n{observation}")
    }
}
