//! What has to be known about an environment, as data.
//!
//! AgentGym's servers disagree about names of fields, shapes of replies and the meaning of a
//! reward; the client is written once and reads the differences from an [`EnvSpec`]. Adding
//! an environment means adding a value to [`ALL`].

use crate::error::EnvError;
use crate::parser::Parser;

/// What `/create` needs in its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateBody {
    /// `{}`; a request without a body is refused.
    EmptyObject,
    /// No body at all.
    Nothing,
}

/// Where `/create` puts the session's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdInReply {
    /// The reply is the number itself.
    Bare,
    /// The reply is an object and this key holds the number.
    Key(&'static str),
}

/// When an episode counts as solved.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SuccessRule {
    /// A (scaled) reward of at least this much.
    RewardAtLeast(f64),
}

impl SuccessRule {
    /// Whether a scaled reward is a success.
    pub fn holds(self, reward: f64) -> bool {
        match self {
            Self::RewardAtLeast(least) => reward >= least,
        }
    }
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
    /// What the policy is told before the first observation, in our own words; short, since
    /// it is paid for in every episode. A configuration may replace it.
    pub instruction: &'static str,
    /// Body of `/create`.
    pub create_body: CreateBody,
    /// Key of the session id in requests.
    pub id_key: &'static str,
    /// Where `/create` puts the id.
    pub id_in_reply: IdInReply,
    /// Key of the item id in `/reset`.
    pub reset_key: &'static str,
    /// Key of the observation in replies to `/reset` and `/step`.
    pub observation_key: &'static str,
    /// Key of the reward in replies to `/step`.
    pub reward_key: &'static str,
    /// Factor from the server's number to a reward of 1 for a full solution.
    pub reward_scale: f64,
    /// Key of the end-of-episode flag in replies to `/step`.
    pub done_key: &'static str,
    /// The server has `/close`.
    pub close: bool,
    /// From the model's text to the action.
    pub parser: Parser,
    /// What counts as solved.
    pub success: SuccessRule,
    /// Rounds that AgentGym-RL's scripts allow.
    pub rounds_max: u32,
    /// What playing a session again gives, on the original server.
    pub replay: Replay,
    /// Part of an `{"error"}` text that means the episode was over already.
    pub finished_text: &'static str,
}

/// Every environment that can be named.
pub const ALL: &[EnvSpec] = &[TEXTCRAFT];

const TEXTCRAFT: EnvSpec = EnvSpec {
    name: "textcraft",
    instruction: "Craft the goal. Answer with one line: Action: <command>",
    create_body: CreateBody::EmptyObject,
    id_key: "id",
    id_in_reply: IdInReply::Key("id"),
    reset_key: "data_idx",
    observation_key: "observation",
    reward_key: "reward",
    reward_scale: 1.0,
    done_key: "done",
    close: true,
    parser: Parser::ActionLine,
    success: SuccessRule::RewardAtLeast(1.0),
    rounds_max: 30,
    replay: Replay::SameLines,
    finished_text: "has finished",
};

/// The specification of this name (letter case does not matter).
pub fn spec(name: &str) -> Result<&'static EnvSpec, EnvError> {
    ALL.iter()
        .find(|spec| spec.name.eq_ignore_ascii_case(name))
        .ok_or_else(|| EnvError::UnknownSpec {
            name: name.to_owned(),
            known: ALL.iter().map(|s| s.name).collect::<Vec<_>>().join(", "),
        })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        assert_eq!(spec("TextCraft").expect("known").name, "textcraft");
        let message = spec("chess").expect_err("unknown").to_string();
        assert!(
            message.contains("chess") && message.contains("textcraft"),
            "{message}"
        );
    }

    #[test]
    fn same_lines_ignores_order_only() {
        assert!(Replay::SameLines.accepts("a\nb", "b\na"));
        assert!(!Replay::SameLines.accepts("a\nb", "a\nb\nb"));
        assert!(!Replay::Exact.accepts("a\nb", "b\na"));
    }
}
