//! Conversations that solve tasks, in the format of AgentGym's trajectory files.
//!
//! A conversation has the very shape of an episode of the trainer: the instruction and the
//! first observation are one human message, then model and environment take turns. It is
//! played in a game, so what the environment says is what it would say.

use serde::Serialize;

use super::random::Draws;
use super::solver::{Gather, solve_with};
use super::task::World;
use crate::spec::first_message;

/// How a demonstration is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// Before the first action for another recipe, a line `Thought: <output> using <inputs>`.
    pub thought: bool,
    /// When raw items are fetched.
    pub gather: Gather,
    /// Chance, in percent, that a craftable item is first asked for with `get`, which is
    /// refused. The refused message is not trained on; what follows a refusal is.
    pub refusals_percent: u32,
}

/// A message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Message {
    /// `human` (the environment) or `gpt` (the model).
    pub from: &'static str,
    /// Whether the message is trained on; `null` for the environment's.
    pub loss: Option<bool>,
    /// The text.
    pub value: String,
}

/// A solved task, as one line of a trajectory file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Demonstration {
    /// The messages; the last one is the model's.
    pub conversations: Vec<Message>,
    /// `textcraft_<id>`.
    pub item_id: String,
}

/// Solves a task and tells how; `None` if its goal cannot be made.
pub fn demonstration(
    world: &World,
    item_id: i64,
    instruction: &str,
    style: Style,
) -> Option<Demonstration> {
    let moves = solve_with(&world.book, world.goal, style.gather)?;
    let mut draws = Draws::new("demonstration", &[&item_id.to_le_bytes()]);
    let mut talk = Talk {
        game: world.game(),
        observation: first_message(instruction, &world.observation()),
        conversations: Vec::new(),
    };
    let mut target = "";
    for step in &moves {
        let mut text = String::new();
        if step.target != target {
            target = &step.target;
            if step.makes != world.goal && draws.percent(style.refusals_percent as usize) {
                talk.say(&format!("get 1 {}", world.book.text(step.makes)), "", false)?;
            }
            if style.thought {
                text = format!("Thought: {target}\n");
            }
        }
        talk.say(&step.action, &text, true)?;
    }
    Some(Demonstration {
        conversations: talk.conversations,
        item_id: format!("textcraft_{item_id}"),
    })
}

struct Talk {
    game: super::game::Game,
    /// What the environment said last and nobody has answered yet.
    observation: String,
    conversations: Vec<Message>,
}

impl Talk {
    fn say(&mut self, action: &str, before: &str, loss: bool) -> Option<()> {
        let reply = self.game.step(action).ok()?;
        let heard = std::mem::replace(&mut self.observation, reply.observation);
        self.conversations.push(Message {
            from: "human",
            loss: None,
            value: heard,
        });
        self.conversations.push(Message {
            from: "gpt",
            loss: Some(loss),
            value: format!("{before}Action: {action}"),
        });
        Some(())
    }
}
