//! The record of a finished episode: the sampled tokens, the environment's answers, and the
//! outcome.
//!
//! Token ids are stored as sampled and are never re-encoded (I6). The loss
//! mask says who produced an id: 1 for sampled ids, a sampled end token
//! included; 0 for prompts, observations and an end token forced after a
//! length stop.

use crate::agent_record::{self, AgentRecord};
use crate::codec::Payload;
use crate::config::OpeningTurn;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// One item of an environment's data set.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Task {
    /// Name of the environment in the plan.
    pub env: String,
    /// Index of the task inside its environment.
    pub item_id: i64,
}

impl std::fmt::Display for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}_{}", self.env, self.item_id)
    }
}

/// Why an episode ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The environment declared success.
    Solved,
    /// The environment ended the episode without success.
    Failed,
    /// The horizon's rounds were used up.
    Horizon,
    /// The token budget was used up.
    Length,
    /// The environment failed; never a reward of zero (I8).
    EnvFault,
    /// The run was stopped.
    Cancelled,
    /// The first prompt leaves no room for a reply: nothing was sampled.
    NoRoom,
    /// The environment said with the first observation that the episode is over.
    NoTurn,
    /// A chat API answered without a message.
    NoMessage,
}

impl Outcome {
    /// Every outcome.
    pub const ALL: [Self; 9] = [
        Self::Solved,
        Self::Failed,
        Self::Horizon,
        Self::Length,
        Self::EnvFault,
        Self::Cancelled,
        Self::NoRoom,
        Self::NoTurn,
        Self::NoMessage,
    ];

    /// The name in artifacts and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Solved => "solved",
            Self::Failed => "failed",
            Self::Horizon => "horizon",
            Self::Length => "length",
            Self::EnvFault => "env_fault",
            Self::Cancelled => "cancelled",
            Self::NoRoom => "no_room",
            Self::NoTurn => "no_turn",
            Self::NoMessage => "no_message",
        }
    }

    /// Whether such an episode says anything about the policy. Its slot is empty otherwise.
    pub fn usable(self) -> bool {
        matches!(
            self,
            Self::Solved | Self::Failed | Self::Horizon | Self::Length
        )
    }
}

/// Why a turn's generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    /// The policy sampled an end token.
    Eos,
    /// The per-turn or sequence budget ran out.
    Length,
}

/// How the policy's text became an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Parse {
    /// An action was found and sent as written.
    Clean,
    /// An action was found after normalisation.
    Normalised,
    /// No single action was found; the environment's rule decided.
    Invalid,
}

/// In the place of a log-prob that nobody gave: not a number, which readers show as none. These bits,
/// so that equal episodes are equal bytes.
pub const NO_LOG_PROB: f32 = f32::from_bits(0x7fc0_0000);

/// The tokens of one context; an episode has several sequences if its context is rewritten. Every
/// vector has one entry per token.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Sequence {
    /// Ids as sampled.
    pub token_ids: Vec<u32>,
    /// True where the policy sampled the id.
    pub loss_mask: Vec<bool>,
    /// Log-prob at sampling time, temperature included; 0 where the mask is false, [`NO_LOG_PROB`]
    /// where a chat API said the token.
    pub sampled_log_probs: Vec<f32>,
    /// Log of the probability mass that top_k and top_p kept, in nats; 0 where the mask is false.
    /// `None` if nothing was cut. Whether it is stored depends on the container: episodes store it
    /// ([`Episodes::V2`]), a batch does not.
    #[serde(skip)]
    pub log_kept_mass: Option<Vec<f32>>,
    /// Entropy of the distribution that the id was drawn from, before any cut, in nats; 0 where the
    /// mask is false. Stored by episodes alone ([`Episodes::V3`]), if the plan has them recorded.
    #[serde(skip)]
    pub entropies: Option<Vec<f32>>,
}

impl Sequence {
    /// Number of tokens that are trained on.
    pub fn loss_tokens(&self) -> usize {
        self.loss_mask.iter().filter(|m| **m).count()
    }
}

/// Half-open token range inside a sequence.
pub type Span = (u32, u32);

/// One message of the policy and the observation it caused.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    /// Index of the sequence that holds the tokens.
    pub sequence: u32,
    /// Prompt or observation tokens before the policy's tokens.
    pub context: Span,
    /// Tokens the policy sampled.
    pub policy: Span,
    /// The policy's text, decoded.
    pub text: String,
    /// The action sent to the environment, if any.
    pub action: Option<String>,
    /// How the action was found.
    pub parse: Parse,
    /// The environment's answer.
    pub observation: String,
    /// The step's reward, if the environment gave one.
    pub reward: Option<f64>,
    /// The environment's own flag.
    pub done: bool,
    /// Why generation stopped.
    pub finish: Finish,
    /// The iteration whose policy sampled the turn.
    pub policy_iteration: u32,
}

/// Entry of [`Episode::extra`], as JSON: for each turn the actions that were possible before it, or
/// null if not listed.
pub const AVAILABLE_ACTIONS: &str = "available_actions";

/// Entry of [`Episode::extra`]: the policy's own summaries, a JSON list of [`ContextSummary`]; absent if
/// there are none.
pub const SUMMARIES: &str = "summaries";

/// Entry of [`Episode::extra`]: the turns before the prompt, a JSON list of [`OpeningTurn`]; absent
/// if the prompt is the first message.
pub const OPENING: &str = "opening";

/// Entry of [`Episode::extra`]: a [`Judgement`]; absent if a reward function gave nothing but the reward.
pub const JUDGEMENT: &str = "judgement";

/// What a reward function says of an episode beside its reward.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Judgement {
    /// What the reward is made of, by the function's own names.
    #[serde(default)]
    pub components: BTreeMap<String, f64>,
    /// In words.
    #[serde(default)]
    pub reason: String,
}

/// Entry of [`Episode::extra`]: the tools that the policy could call, as its chat template was given
/// them; absent if its actions are text.
pub const TOOLS: &str = "tools";

/// The policy's summary before its context is cut.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContextSummary {
    /// Turns of the episode before it.
    pub turns: u32,
    /// The sequence in which it was sampled.
    pub sequence: u32,
    /// Its tokens there; trained on like those of a turn.
    pub policy: Span,
    /// The text, decoded.
    pub text: String,
}

/// A finished episode.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Episode {
    /// The task played.
    pub task: Task,
    /// Draw index in the iteration: the group of the episode.
    pub group: u32,
    /// Index inside the group.
    pub sample: u32,
    /// Why it ended.
    pub outcome: Outcome,
    /// Pass or fail by the environment's declared rule.
    pub success: bool,
    /// The environment's last reward.
    pub reward: f64,
    /// The message before the first reply: instruction and observation, or the observation alone
    /// after an [`OPENING`].
    pub prompt: String,
    /// Token contexts.
    pub sequences: Vec<Sequence>,
    /// Turns in order.
    pub turns: Vec<Turn>,
    /// What went wrong, for `env_fault`.
    pub fault: Option<String>,
    /// Further entries such as [`AVAILABLE_ACTIONS`]; an environment's own data is kept unread.
    pub extra: Vec<(String, String)>,
}

impl Episode {
    /// For each turn, the actions that were possible before it; empty if not recorded.
    pub fn available_actions(&self) -> Vec<Option<Vec<String>>> {
        self.noted(AVAILABLE_ACTIONS)
    }

    /// The policy's own summaries, in order of time.
    pub fn summaries(&self) -> Vec<ContextSummary> {
        self.noted(SUMMARIES)
    }

    /// The turns before the prompt.
    pub fn opening(&self) -> Vec<OpeningTurn> {
        self.noted(OPENING)
    }

    /// What a reward function said of it.
    pub fn judgement(&self) -> Option<Judgement> {
        self.noted(JUDGEMENT)
    }

    /// How an agent behind a harness came to its turns.
    pub fn agent(&self) -> Option<AgentRecord> {
        self.noted(agent_record::AGENT)
    }

    /// The tools that the policy could call.
    pub fn tools(&self) -> Vec<Value> {
        self.noted(TOOLS)
    }

    /// All that stands before the first reply, for people.
    pub fn told(&self) -> String {
        let opening = self.opening();
        let tools = self.tools();
        let names: Vec<&str> = (tools
            .iter()
            .filter_map(|tool| tool["function"]["name"].as_str()))
        .collect();
        let tools = match names.is_empty() {
            true => String::new(),
            false => format!("tools: {}\n\n", names.join(", ")),
        };
        if opening.is_empty() {
            return tools + &self.prompt;
        }
        let said = opening
            .iter()
            .map(|turn| format!("{}: {}", turn.from.name(), turn.value));
        let prompt = format!("human: {}", self.prompt);
        tools + &said.chain([prompt]).collect::<Vec<_>>().join("\n\n")
    }

    fn noted<T: serde::de::DeserializeOwned + Default>(&self, name: &str) -> T {
        let entry = self.extra.iter().find(|(found, _)| found == name);
        entry
            .and_then(|(_, text)| serde_json::from_str(text).ok())
            .unwrap_or_default()
    }

    /// The reward of each turn: its own reward or, if the environment reports a `total`, the
    /// increase since the previous turn. A turn that was not sent to the environment has reward 0.
    pub fn turn_rewards(&self, total: bool) -> Vec<f64> {
        let mut before = 0.0;
        let own = |turn: &Turn| match turn.reward {
            None => 0.0,
            Some(reward) if total => {
                let growth = reward - before;
                before = reward;
                growth
            }
            Some(reward) => reward,
        };
        self.turns.iter().map(own).collect()
    }

    /// True if the episode may be trained on.
    pub fn usable(&self) -> bool {
        self.outcome.usable()
    }

    /// Checks the invariants that readers rely on; called on writing and on reading.
    pub fn check(&self) -> Result<(), String> {
        for (index, s) in self.sequences.iter().enumerate() {
            let n = s.token_ids.len();
            if s.loss_mask.len() != n || s.sampled_log_probs.len() != n {
                return Err(format!(
                    "{} sample {}: sequence {index} has {n} ids, {} mask entries, {} log-probs",
                    self.task,
                    self.sample,
                    s.loss_mask.len(),
                    s.sampled_log_probs.len()
                ));
            }
            for (stream, name) in [
                (&s.log_kept_mass, "kept masses"),
                (&s.entropies, "entropies"),
            ] {
                let lengths = stream.as_ref().map(Vec::len);
                if let Some(found) = lengths.filter(|&found| found != n) {
                    return Err(format!(
                        "{} sample {}: sequence {index} has {n} ids, {found} {name}",
                        self.task, self.sample
                    ));
                }
            }
            if let Some(at) = (0..n).find(|&t| !s.loss_mask[t] && s.sampled_log_probs[t] != 0.0) {
                return Err(format!(
                    "{}: token {at} was not sampled but has a log-prob",
                    self.task
                ));
            }
        }
        for (index, t) in self.turns.iter().enumerate() {
            let inside = self.sequences.get(t.sequence as usize).is_some_and(|s| {
                t.context.0 <= t.context.1
                    && t.context.1 as usize <= s.token_ids.len()
                    && t.policy.0 <= t.policy.1
                    && t.policy.1 as usize <= s.token_ids.len()
            });
            if !inside {
                return Err(format!(
                    "{}: turn {index} points outside its sequence",
                    self.task
                ));
            }
        }
        for summary in self.summaries() {
            let (start, end) = summary.policy;
            let sequence = self.sequences.get(summary.sequence as usize);
            if start > end || sequence.is_none_or(|s| end as usize > s.token_ids.len()) {
                return Err(format!(
                    "{}: a summary points outside its sequence",
                    self.task
                ));
            }
        }
        Ok(())
    }
}

/// `episodes.bin`: the episodes of a part, sorted by (group, sample). A
/// versioned enum, so that old files stay readable.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Episodes {
    /// The first wire form.
    V1(Vec<Episode>),
    /// If top_k or top_p cut: also the kept log mass, by episode and sequence.
    V2(Vec<Episode>, Vec<Vec<Option<Vec<f32>>>>),
    /// With all optional streams, by episode and sequence.
    V3(Vec<Episode>, Vec<Vec<Streams>>),
}

/// The streams of a [`Sequence`] that not every plan has recorded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Streams {
    log_kept_mass: Option<Vec<f32>>,
    entropies: Option<Vec<f32>>,
}

impl Payload for Episodes {
    const KIND: [u8; 4] = *b"EPIS";
}

impl Episodes {
    /// The wire form for these episodes: the first one that can hold them.
    pub fn of(episodes: Vec<Episode>) -> Self {
        fn each<T>(episodes: &[Episode], of: impl Fn(&Sequence) -> T) -> Vec<Vec<T>> {
            let own = |e: &Episode| e.sequences.iter().map(&of).collect();
            episodes.iter().map(own).collect()
        }
        let any = |has: fn(&Sequence) -> bool| episodes.iter().flat_map(|e| &e.sequences).any(has);
        if any(|s| s.entropies.is_some()) {
            let streams = each(&episodes, |s| Streams {
                log_kept_mass: s.log_kept_mass.clone(),
                entropies: s.entropies.clone(),
            });
            Self::V3(episodes, streams)
        } else if any(|s| s.log_kept_mass.is_some()) {
            let masses = each(&episodes, |s| s.log_kept_mass.clone());
            Self::V2(episodes, masses)
        } else {
            Self::V1(episodes)
        }
    }

    /// The episodes in the current form.
    pub fn into_vec(self) -> Vec<Episode> {
        match self {
            Self::V1(episodes) => episodes,
            Self::V2(mut episodes, masses) => {
                for (episode, masses) in episodes.iter_mut().zip(masses) {
                    for (sequence, mass) in episode.sequences.iter_mut().zip(masses) {
                        sequence.log_kept_mass = mass;
                    }
                }
                episodes
            }
            Self::V3(mut episodes, streams) => {
                for (episode, streams) in episodes.iter_mut().zip(streams) {
                    for (sequence, own) in episode.sequences.iter_mut().zip(streams) {
                        sequence.log_kept_mass = own.log_kept_mass;
                        sequence.entropies = own.entropies;
                    }
                }
                episodes
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{decode, encode};

    fn episode(log_kept_mass: Option<Vec<f32>>) -> Episode {
        Episode {
            task: Task {
                env: "textcraft".into(),
                item_id: 7,
            },
            group: 0,
            sample: 1,
            outcome: Outcome::Solved,
            success: true,
            reward: 1.0,
            prompt: "p".into(),
            sequences: vec![Sequence {
                token_ids: vec![3, 4],
                loss_mask: vec![false, true],
                sampled_log_probs: vec![0.0, -0.5],
                log_kept_mass,
                entropies: None,
            }],
            turns: vec![],
            fault: None,
            extra: vec![],
        }
    }

    #[test]
    fn what_a_cut_left_is_kept_and_other_episodes_keep_their_bytes() {
        let plain = vec![episode(None)];
        let bytes = encode(&Episodes::of(plain.clone())).unwrap();
        assert_eq!(bytes, encode(&Episodes::V1(plain.clone())).unwrap());
        // The body as written by a program without top_k and top_p masses.
        const STORED: &str = "0001097465787463726166740e00010001000000000000f03f0170010203\
            040200010200000000000000bf000000";
        let body: String = bytes[50..].iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(body, STORED);
        assert_eq!(decode::<Episodes>(&bytes).unwrap().into_vec(), plain);
        let cut = vec![episode(None), episode(Some(vec![0.0, -0.25]))];
        let bytes = encode(&Episodes::of(cut.clone())).unwrap();
        assert_eq!(decode::<Episodes>(&bytes).unwrap().into_vec(), cut);
        let short = episode(Some(vec![-0.25]));
        assert!(short.check().unwrap_err().contains("1 kept masses"));
        let mut all = cut;
        all[0].sequences[0].entropies = Some(vec![0.0, 0.75]);
        let bytes = encode(&Episodes::of(all.clone())).unwrap();
        assert_eq!(decode::<Episodes>(&bytes).unwrap().into_vec(), all);
        all[0].sequences[0].entropies = Some(vec![0.75]);
        assert!(all[0].check().unwrap_err().contains("1 entropies"));
    }
}
