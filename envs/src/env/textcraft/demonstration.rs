//! Conversations that solve tasks, in the format of AgentGym's trajectory files.
//!
//! A conversation has the same shape as an episode of the trainer: the instruction and the first
//! observation are one human message, then model and environment alternate. It is played in a real
//! game, so the environment's messages are genuine.

use super::book::Name;
use super::solver::{Gather, solve_with};
use super::world::World;
use crate::demonstration::{Demonstration, Talk};
use crate::draws::Draws;
use crate::spec::first_message;

/// The style of a demonstration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// Before the first action for another recipe, adds a line with the path from the goal to it:
    /// `Thought: <goal> using <inputs>; <ingredient> using <inputs>`.
    pub thought: bool,
    /// When raw items are fetched.
    pub gather: Gather,
    /// Chance, in percent, that a craftable ingredient is first requested with `get`, which is
    /// refused. That message is not trained on; the following ones are.
    pub refusals_percent: u32,
    /// 0 or 1: only the world's goal. More: up to this many of the world's craftable items in turn,
    /// each as the next goal of the same conversation. Such drills teach reading a recipe book with
    /// a fraction of the tokens that as many worlds would cost.
    pub goals_max: u32,
}

impl std::str::FromStr for Style {
    type Err = String;

    /// Parses a list such as `thought,refusals=20,goals=3,once`.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut style = Self::default();
        for word in text.split(',').map(str::trim).filter(|w| !w.is_empty()) {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            let number = || {
                let bad = |_| format!("style {word:?}: {value:?} is not a number");
                value.parse::<u32>().map_err(bad)
            };
            match name {
                "thought" => style.thought = true,
                "once" => style.gather = Gather::Once,
                "refusals" => style.refusals_percent = number()?.min(100),
                "goals" => style.goals_max = number()?,
                _ => {
                    return Err(format!(
                        "unknown style {name:?}; known: thought, once, refusals=PERCENT, goals=N"
                    ));
                }
            }
        }
        Ok(style)
    }
}

/// Solves a task and returns the conversation; `None` if its goal cannot be made.
pub fn demonstration(
    world: &World,
    item_id: i64,
    instruction: &str,
    style: Style,
) -> Option<Demonstration> {
    let mut draws = Draws::new("demonstration", &[&item_id.to_le_bytes()]);
    let goals = goals(world, style, &mut draws);
    let shown = World {
        goal: goals[0],
        ..world.clone()
    };
    let mut aloud = Aloud {
        game: world.game(),
        talk: Talk::new(first_message(instruction, &shown.observation())),
    };
    for (index, goal) in goals.into_iter().enumerate() {
        if index > 0 {
            let next = format!("\n\nGoal: craft {}.", world.book.text(goal));
            aloud.talk.observation.push_str(&next);
        }
        solve_aloud(world, goal, style, &mut draws, &mut aloud)?;
    }
    Some(aloud.talk.told(format!("textcraft_{item_id}")))
}

fn goals(world: &World, style: Style, draws: &mut Draws) -> Vec<Name> {
    if style.goals_max < 2 {
        return vec![world.goal];
    }
    let mut all = world.book.goals().to_vec();
    draws.shuffle(&mut all);
    let wanted = draws.between(2..=style.goals_max) as usize;
    all.truncate(wanted.max(1));
    all
}

/// Plays one goal. It does not rely on items that earlier goals left in the inventory.
fn solve_aloud(
    world: &World,
    goal: Name,
    style: Style,
    draws: &mut Draws,
    aloud: &mut Aloud,
) -> Option<()> {
    let moves = solve_with(&world.book, goal, style.gather)?;
    let mut path: &[String] = &[];
    for step in &moves {
        let mut text = String::new();
        if step.path != path {
            path = &step.path;
            if step.makes != goal && draws.percent(style.refusals_percent as usize) {
                aloud.say(&format!("get 1 {}", world.book.text(step.makes)), "", false)?;
            }
            if style.thought {
                text = format!("Thought: {}\n", path.join("; "));
            }
        }
        aloud.say(&step.action, &text, true)?;
    }
    Some(())
}

/// A game that is recorded as a conversation.
struct Aloud {
    game: super::game::Game,
    talk: Talk,
}

impl Aloud {
    fn say(&mut self, action: &str, before: &str, loss: bool) -> Option<()> {
        let reply = self.game.step(action).ok()?;
        let text = format!("{before}Action: {action}");
        self.talk.say(text, loss, reply.observation);
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::worlds::Worlds;
    use super::*;

    #[test]
    fn a_drill_asks_for_several_items_of_one_book() {
        let style: Style = "thought,goals=3".parse().expect("valid");
        let world = Worlds::default().world(5);
        let drill = demonstration(&world, 5, "", style).expect("solvable");
        let asked: usize = drill
            .conversations
            .iter()
            .filter(|m| m.from == "human")
            .map(|m| m.value.matches("Goal: craft ").count())
            .sum();
        assert!((2..=3).contains(&asked), "{asked} goals");
        assert!(
            drill
                .conversations
                .iter()
                .all(|m| !m.value.contains("Could not"))
        );
    }

    #[test]
    fn styles_are_read_and_refused_by_name() {
        let style: Style = "once, refusals=20".parse().expect("valid");
        assert_eq!((style.gather, style.refusals_percent), (Gather::Once, 20));
        assert!("loud".parse::<Style>().unwrap_err().contains("loud"));
        assert!("goals=many".parse::<Style>().unwrap_err().contains("many"));
    }
}
