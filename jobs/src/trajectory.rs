//! An episode as a conversation, in AgentTraj-L's format: written by `export --trajectories`, read
//! by `sft` and `dpo` runs.
//!
//! It contains text. The sampled token ids are in the episode itself; a file of conversations can
//! train another model with another tokenizer.

use crate::config::{OpeningTurn, Speaker};
use crate::episode::{Episode, Outcome, Sequence};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// `human`, `gpt`, `system`, or `tool` for the answer to a call.
    pub from: String,
    /// False: part of the context, but not trained on. Only read for `gpt`.
    #[serde(default)]
    pub loss: Option<bool>,
    /// The text.
    pub value: String,
}

impl Line {
    /// A turn before the first observation, as AgentGym's files have it: not trained on.
    pub fn of(turn: &OpeningTurn) -> Self {
        Self {
            from: turn.from.name().to_owned(),
            loss: (turn.from == Speaker::Gpt).then_some(false),
            value: turn.value.clone(),
        }
    }
}

/// A row of an AgentTraj-L file, with the fields that AgentGym's evaluators add.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Trajectory {
    /// `{env}_{item}`, with the environment's name in the plan.
    pub item_id: String,
    /// The environment's last reward.
    pub reward: f64,
    /// 1 if solved by the environment's rule, else 0, as AgentGym writes it.
    pub success: u8,
    /// Why it ended.
    pub outcome: Outcome,
    /// The prompt, then replies and observations in turn. Every reply has `loss: true`.
    pub conversations: Vec<Line>,
    /// What the policy could call, as its chat template was given it; absent if actions are text.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<Value>,
    /// In place of messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ids: Option<SequenceIds>,
}

/// A sequence as its ids: an agent behind a harness keeps its own conversations, and what is put together from
/// their texts would be others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SequenceIds {
    /// All ids.
    pub token_ids: Vec<u32>,
    /// First and end of each stretch that is trained on.
    pub trained: Vec<(usize, usize)>,
    /// Digest of the `tokenizer.json` whose ids these are.
    pub tokenizer: String,
}

impl SequenceIds {
    /// A sequence, unless nothing of it is trained on.
    fn of(sequence: &Sequence, tokenizer: &str) -> Option<Self> {
        let mut trained: Vec<(usize, usize)> = Vec::new();
        for at in (0..sequence.loss_mask.len()).filter(|at| sequence.loss_mask[*at]) {
            match trained.last_mut() {
                Some((_, end)) if *end == at => *end += 1,
                _ => trained.push((at, at + 1)),
            }
        }
        (!trained.is_empty()).then(|| Self {
            token_ids: sequence.token_ids.clone(),
            trained,
            tokenizer: tokenizer.to_owned(),
        })
    }
}

impl Trajectory {
    /// The sequences of an episode that an agent behind a harness played.
    pub fn of_agent(episode: &Episode, tokenizer: &str) -> Vec<Self> {
        let sequences = episode.sequences.iter();
        let ids = sequences.filter_map(|sequence| SequenceIds::of(sequence, tokenizer));
        let row = |ids| Self {
            conversations: Vec::new(),
            ids: Some(ids),
            ..Self::of(episode)
        };
        ids.map(row).collect()
    }

    /// The conversation of an episode. It includes the observation after the last reply, as
    /// AgentGym records it; that observation is not trained on.
    pub fn of(episode: &Episode) -> Self {
        let line = |from: &str, loss: Option<bool>, value: &str| Line {
            from: from.to_owned(),
            loss,
            value: value.to_owned(),
        };
        let mut conversations: Vec<Line> = episode.opening().iter().map(Line::of).collect();
        conversations.push(line("human", None, &episode.prompt));
        let tools = episode.tools();
        let answers = if tools.is_empty() { "human" } else { "tool" };
        for turn in &episode.turns {
            conversations.push(line("gpt", Some(true), &turn.text));
            conversations.push(line(answers, None, &turn.observation));
        }
        Self {
            item_id: episode.task.to_string(),
            reward: episode.reward,
            success: u8::from(episode.success),
            outcome: episode.outcome,
            conversations,
            tools,
            ids: None,
        }
    }
}

/// Where a trajectory that an AgentEvol iteration trains on was played: a row of `lineage.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Lineage {
    /// Iteration of the exploration.
    pub iteration: u32,
    /// Part of its rollout.
    pub part: u32,
    /// Index among that part's episodes.
    pub episode: u32,
    /// Draw index in the iteration.
    pub group: u32,
    /// Sample of the task.
    pub sample: u32,
    /// `{env}_{item}`.
    pub item_id: String,
    /// The environment's last reward.
    pub reward: f64,
    /// Whether it is solved by the environment's rule.
    pub success: bool,
    /// Turns played.
    pub turns: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::episode::{Finish, Parse, Task, Turn};

    #[test]
    fn an_episode_reads_as_agenttraj_writes_it() {
        let turn = |text: &str, observation: &str| Turn {
            sequence: 0,
            context: (0, 0),
            policy: (0, 0),
            text: text.into(),
            action: None,
            parse: Parse::Clean,
            observation: observation.into(),
            reward: None,
            done: false,
            finish: Finish::Eos,
            policy_iteration: 0,
        };
        let episode = Episode {
            task: Task {
                env: "worlds".into(),
                item_id: 7,
            },
            group: 0,
            sample: 0,
            outcome: Outcome::Solved,
            success: true,
            reward: 1.0,
            prompt: "Goal: craft a torch.".into(),
            sequences: vec![],
            turns: vec![
                turn("Action: get 1 coal", "Got 1 coal"),
                turn("Action: x", ""),
            ],
            fault: None,
            extra: vec![],
        };
        let row = serde_json::to_value(Trajectory::of(&episode)).unwrap();
        assert_eq!(row["item_id"], "worlds_7");
        assert_eq!((&row["success"], &row["reward"]), (&1.into(), &1.0.into()));
        let lines = row["conversations"].as_array().unwrap();
        let from: Vec<_> = lines.iter().map(|l| l["from"].as_str().unwrap()).collect();
        assert_eq!(from, ["human", "gpt", "human", "gpt", "human"]);
        assert_eq!(
            (&lines[1]["loss"], &lines[0]["loss"]),
            (&true.into(), &serde_json::Value::Null)
        );
        assert_eq!(lines[2]["value"], "Got 1 coal");
        assert_eq!(row["outcome"], "solved");
        let lineage = Lineage {
            iteration: 2,
            part: 1,
            episode: 3,
            group: 4,
            sample: 5,
            item_id: "worlds_7".into(),
            reward: 1.0,
            success: true,
            turns: 2,
        };
        assert_eq!(
            serde_json::to_string(&lineage).unwrap(),
            r#"{"iteration":2,"part":1,"episode":3,"group":4,"sample":5,"item_id":"worlds_7","reward":1.0,"success":true,"turns":2}"#
        );
        let turns = r#"[{"from": "human", "value": "Craft."}, {"from": "gpt", "value": "Yes."}]"#;
        let opened = Episode {
            extra: vec![(crate::episode::OPENING.to_owned(), turns.to_owned())],
            ..episode
        };
        let told = "human: Craft.\n\ngpt: Yes.\n\nhuman: Goal: craft a torch.";
        assert_eq!(opened.told(), told);
        let row = serde_json::to_value(Trajectory::of(&opened)).unwrap();
        assert_eq!(row["conversations"][1]["loss"], false);
        assert_eq!(row["conversations"].as_array().unwrap().len(), 7);
        assert_eq!(row["conversations"][2]["value"], "Goal: craft a torch.");
    }
}
