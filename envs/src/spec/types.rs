//! What there is to know of a server.

use std::ops::Range;

use crate::parser::Parser;

/// What `/create` needs in its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateBody {
    /// `{}`; a request without a body is refused.
    EmptyObject,
    /// No body at all.
    Nothing,
    /// An object in which this key holds the item's id.
    Item(&'static str),
}

/// Where `/create` puts the session's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdInReply {
    /// The reply is the number itself.
    Bare,
    /// The reply is an object and this key holds the number.
    Key(&'static str),
}

/// A value that `/reset` always carries beside the item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fixed {
    /// A number.
    Int(i64),
    /// A text.
    Text(&'static str),
}

/// Where the first observation of a task is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstObservation {
    /// The reply to `/reset` is the text itself, or a list whose first entry it is.
    Bare,
    /// The texts under these keys of the reply to `/reset`, one a line.
    Keys(&'static [&'static str]),
    /// Not in the reply to `/reset`: `GET /observation` has to be asked.
    Observe,
}

/// Which of the server's numbers is the reward of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RewardRule {
    /// Each step's own.
    EachStep,
    /// That of the step that ends the episode; before it the number means something else.
    WhenDone,
    /// The first that is not zero, from then on for good: the server adds to it again with
    /// every later step that changes nothing.
    FirstNonZero,
}

/// When an episode counts as solved.
#[derive(Clone, Copy, Debug, PartialEq)]
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

/// How the server says that a call failed, beside a status other than 200.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorShape {
    /// Status 200 with `{"error": text}` and no observation.
    Soft,
    /// By the status alone.
    Status,
    /// Status 200 with a step reply whose `info` is null and whose observation is the
    /// exception's text. Texts that begin like one of these blame the model and leave the
    /// episode as it was; any other means that the environment failed. A failed reset has
    /// the observation `TimeoutError`.
    InObservation(&'static [&'static str]),
}

/// Where the actions that are possible now are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Actions {
    /// Nowhere.
    None,
    /// In replies to `/reset` and `/step`, under this key.
    InReply(&'static str),
    /// In the observation: a JSON list after this text.
    InText(&'static str),
    /// Behind a path of its own.
    Endpoint {
        /// The path.
        path: &'static str,
        /// The session has to be named.
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

/// When a server ends an episode. A reply that contradicts it is a fault of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DoneRule {
    /// Whenever it likes.
    Any,
    /// With the step that solves the task, and never otherwise.
    WhenSolved,
}

/// Which item ids exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Items {
    /// Any number is an item.
    Any,
    /// Ids from 0; other numbers wrap around.
    Wrapping(i64),
    /// These; others are refused.
    Within(Range<i64>),
    /// Depends on the data that the server was given.
    Unknown,
}

/// How far a session that is played again with the same actions repeats itself. Decides
/// whether an interrupted episode can be taken up in a fresh session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replay {
    /// Byte for byte.
    Exact,
    /// The same lines, in any order.
    SameLines,
    /// Not at all.
    None,
}

impl Replay {
    /// Whether an observation may stand for the recorded one.
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

/// The declared behaviour of one kind of environment.
#[derive(Clone, Debug)]
pub struct EnvSpec {
    /// Name in configurations and in item ids (`<name>_<item id>`).
    pub name: &'static str,
    /// The instruction before the first observation, in our own words; short, since
    /// it is paid for in every episode. A configuration may replace it.
    pub instruction: &'static str,
    /// What a base URL ends in, where one process serves several environments.
    pub path_prefix: &'static str,
    /// Body of `/create`.
    pub create_body: CreateBody,
    /// Key of the session id in requests.
    pub id_key: &'static str,
    /// Where `/create` puts the id.
    pub id_in_reply: IdInReply,
    /// Key of the item id in `/reset`.
    pub reset_key: &'static str,
    /// What else `/reset` carries.
    pub reset_fixed: &'static [(&'static str, Fixed)],
    /// Where the first observation is.
    pub first_observation: FirstObservation,
    /// The first observation ends with a line that lists the possible actions after this.
    pub first_lists_actions: Option<&'static str>,
    /// Key of the observation in replies to `/step`.
    pub observation_key: &'static str,
    /// Key of the reward in replies to `/step`.
    pub reward_key: &'static str,
    /// Which of these numbers counts.
    pub reward_rule: RewardRule,
    /// That number is what the episode has earned so far, not what the step did.
    pub reward_is_total: bool,
    /// Factor from the server's number to a reward of 1 for a full solution.
    pub reward_scale: f64,
    /// Key of the end-of-episode flag in replies to `/step`.
    pub done_key: &'static str,
    /// When it is set.
    pub done_rule: DoneRule,
    /// How failures look.
    pub errors: ErrorShape,
    /// Where possible actions are listed.
    pub actions: Actions,
    /// The server has `/close`.
    pub close: bool,
    /// A finished session is reset for the next episode instead of closed: opening one is
    /// dear, or there is no way to close it.
    pub reuse: bool,
    /// Sessions that one server may open at the same time.
    pub creates_at_once: usize,
    /// From the model's text to the action.
    pub parser: Parser,
    /// What counts as solved.
    pub success: SuccessRule,
    /// An action that every state takes: what the doctor plays.
    pub probe: &'static str,
    /// Rounds that AgentGym-RL's scripts (or, where it has none, AgentGym's) allow.
    pub rounds_max: u32,
    /// Which items exist on the original server.
    pub items: Items,
    /// What playing a session again gives, on the original server.
    pub replay: Replay,
    /// Part of an `{"error"}` text that means the episode was over already.
    pub finished_text: &'static str,
}

impl EnvSpec {
    /// The first user message of an episode: the instruction, a blank line, the observation.
    pub fn first_message(&self, observation: &str) -> String {
        first_message(self.instruction, observation)
    }
}

/// As [`EnvSpec::first_message`], with another instruction; an empty one leaves the
/// observation alone.
pub fn first_message(instruction: &str, observation: &str) -> String {
    if instruction.is_empty() {
        observation.to_owned()
    } else {
        format!("{instruction}\n\n{observation}")
    }
}
