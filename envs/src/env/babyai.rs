//! BabyAI: reach a goal given in words, in a grid of rooms seen from inside.
//!
//! Rules, wording, levels and rewards are those of AgentGym's server. Worlds are drawn by our own
//! generator (`levels`) and depend only on the item id: a level (its remainder modulo 40) and a
//! seed (its quotient).

mod build;
mod demonstration;
mod grammar;
mod grid;
mod level;
mod levels;
mod mission;
mod planner;
pub(crate) mod server;
mod source;
mod spec;
#[cfg(test)]
mod tests;
mod text;

pub use demonstration::Play;
pub use levels::LEVELS;
pub(crate) use source::Source;

use grid::{Cell, Grid, Lock, Primitive};
use level::Level;
use mission::{Event, Status};
use text::{Action, actions, describe, things_in_view, way_to};

use crate::draws::Draws;
use crate::task_index::TaskIndex;

/// Which quirks of the original are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compat {
    /// None of those that hurt training: a success ends the episode however late it comes; a
    /// failure or the limit of moves ends it with reward 0; the score is the reward, counted once;
    /// missions state their order; `toggle` opens a box in front and closes an open door; and a
    /// session can be closed before its first reset.
    #[default]
    Fixed,
    /// All of them: an episode continues after a success with reward 0.5 or less and after a
    /// failure, without a limit of moves; steps without effect add the last reward to the score
    /// again; `then` and `after you` are worded `and`; `toggle` only opens doors; and a session
    /// that a client tried to close before its first reset can never be closed.
    Original,
}

/// The result of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct BabyaiReply {
    /// Text for the model.
    pub observation: String,
    /// The reward of the latest move.
    pub reward: f64,
    /// The episode's score: the sum of rewards.
    pub score: f64,
    /// The episode is over.
    pub done: bool,
}

/// An episode.
#[derive(Clone, Debug)]
pub struct BabyaiGame {
    level: Level,
    compat: Compat,
    mission: String,
    moves: u32,
    /// The mission succeeded or failed; the world no longer checks it.
    ended: bool,
    last: BabyaiReply,
}

impl BabyaiGame {
    /// Starts the episode of an item. `Err` is the original's text for negative ids.
    pub(crate) fn start(item: &TaskIndex, seed: u64, compat: Compat) -> Result<Self, String> {
        let (level, world) = item.div_mod(LEVELS.len() as u64);
        if world.negative {
            return Err(format!(
                "Seed must be greater or equal to zero, actual value: {world}"
            ));
        }
        Ok(Self::of(level as usize, &world.to_string(), seed, compat))
    }

    /// The episode of an item.
    pub fn new(item_id: u64, compat: Compat) -> Self {
        let count = LEVELS.len() as u64;
        let world = (item_id / count).to_string();
        Self::of((item_id % count) as usize, &world, 0, compat)
    }

    fn of(number: usize, world: &str, seed: u64, compat: Compat) -> Self {
        let name = LEVELS[number].as_bytes();
        let parts: [&[u8]; 3] = [name, world.as_bytes(), &seed.to_le_bytes()];
        let level = levels::level(number, &mut Draws::new("babyai", &parts));
        let mission = level.goal.words(compat == Compat::Original);
        let mut game = Self {
            level,
            compat,
            mission,
            moves: 0,
            ended: false,
            last: BabyaiReply {
                observation: String::new(),
                reward: 0.0,
                score: 0.0,
                done: false,
            },
        };
        let view = describe(game.grid());
        let actions = game.actions_line();
        game.last.observation = format!("Your goal: {}\n{view}\n{actions}", game.mission);
        game
    }

    /// The first observation, or the result of the latest step.
    pub fn last(&self) -> &BabyaiReply {
        &self.last
    }

    /// The mission in words.
    pub fn mission(&self) -> &str {
        &self.mission
    }

    /// The texts of the currently sensible actions.
    pub fn actions(&self) -> Vec<String> {
        let more = self.compat == Compat::Fixed;
        let all = actions(self.grid(), more).into_iter();
        all.map(|(text, _)| text).collect()
    }

    fn grid(&self) -> &Grid {
        &self.level.grid
    }

    fn actions_line(&self) -> String {
        let quoted: Vec<String> = self
            .actions()
            .iter()
            .map(|text| format!("\"{text}\""))
            .collect();
        format!("Available actions: [{}]", quoted.join(", "))
    }

    /// Plays an action.
    pub fn step(&mut self, text: &str) -> &BabyaiReply {
        let text = text.trim().to_lowercase();
        let more = self.compat == Compat::Fixed;
        let known = actions(self.grid(), more);
        let found = known.iter().find(|(known, _)| *known == text);
        let plan = if text.is_empty() {
            Err("No change in state.".to_owned())
        } else if text.contains("check") {
            let all: Vec<&str> = known.iter().map(|(text, _)| text.as_str()).collect();
            let all = all.join(", ");
            Err(format!("You can take the following actions: {all}"))
        } else {
            match found {
                Some((_, action)) => self.plan(&text, action),
                None => Err(self.refusal(&text)),
            }
        };
        let moved = plan.and_then(|plan| match self.run(&plan) {
            true => Ok(()),
            false => Err("No change in state.".to_owned()),
        });
        match (&moved, self.compat) {
            (Ok(()), _) => self.last.score += self.last.reward,
            // The original adds the latest reward again, whatever happened.
            (Err(_), Compat::Original) => self.last.score += self.last.reward,
            (Err(_), Compat::Fixed) => {}
        }
        let view = moved.err().unwrap_or_else(|| {
            let completed = match self.last.reward != 0.0 {
                true => "\n The task is completed.",
                false => "",
            };
            format!("{}{completed}", describe(self.grid()))
        });
        self.last.observation = format!("{view}\n{}", self.actions_line());
        &self.last
    }

    /// The primitive moves of an action, or the text that says why there are none.
    fn plan(&self, text: &str, action: &Action) -> Result<Vec<Primitive>, String> {
        let grid = self.grid();
        let way = |thing: usize, verb: &str| {
            let at = grid.things[thing].at;
            at.and_then(|at| way_to(grid, at)).ok_or_else(|| {
                let name = text.strip_prefix(verb).unwrap_or(text).trim();
                format!("You cannot {verb} {name}, as there is no path leading to it.")
            })
        };
        let through = [Primitive::Forward, Primitive::Forward];
        match action {
            Action::Primitive(Primitive::Drop) if grid.cell(grid.front()) != Cell::Empty => Err(
                "You cannot drop the object, as there is already an object in front of you."
                    .to_owned(),
            ),
            Action::Primitive(primitive) => Ok(vec![*primitive]),
            Action::Pickup(thing) => {
                let mut way = way(*thing, "pickup")?;
                way.push(Primitive::Pickup);
                Ok(way)
            }
            Action::GoTo(thing) => way(*thing, "go to"),
            Action::GoThrough(thing) => {
                let mut way = way(*thing, "go through")?;
                way.extend(through);
                Ok(way)
            }
            Action::ToggleThrough(thing) => {
                const VERB: &str = "toggle and go through";
                if grid.things[*thing].lock == Lock::Locked && !grid.opens(*thing) {
                    let holds_key = grid
                        .carrying
                        .is_some_and(|carried| grid.things[carried].kind == grid::Kind::Key);
                    let why = match holds_key {
                        true => {
                            "the color of the key you are carrying does not match the color of door"
                        }
                        false => "you are not carrying a key",
                    };
                    let name = text.strip_prefix(VERB).unwrap_or(text).trim();
                    return Err(format!("You cannot {VERB} {name}, as {why}."));
                }
                let mut way = way(*thing, VERB)?;
                way.push(Primitive::Toggle);
                way.extend(through);
                Ok(way)
            }
            Action::Check => Ok(Vec::new()),
        }
    }

    /// The answer to an action that is not on the list.
    fn refusal(&self, text: &str) -> String {
        if text == "move forward" {
            return "There is a barrier in front of you, you can't move forward.".to_owned();
        }
        if text == "drop" {
            return "You cannot drop the object, as you are not carrying anything.".to_owned();
        }
        if let Some(name) = text.strip_prefix("go through ")
            && let Some(named) = things_in_view(self.grid())
                .iter()
                .find(|named| named.name == name)
            && self.grid().things[named.thing].kind == grid::Kind::Door
        {
            return format!(
                "You cannot go through {name}, as it is closed. You should toggle it first."
            );
        }
        "The action is not recognized. Please check valid actions.".to_owned()
    }

    /// Makes moves until one changes nothing, earns a reward or ends the episode. Returns whether
    /// any move changed something.
    fn run(&mut self, plan: &[Primitive]) -> bool {
        let mut any = false;
        for primitive in plan {
            let carried_before = self.grid().carrying;
            let changed = self.level.grid.act(*primitive);
            any |= changed;
            self.moves += 1;
            self.last.reward = 0.0;
            let event = Event {
                primitive: *primitive,
                carried_before,
            };
            self.judge(&event);
            if !changed || self.last.done || self.last.reward != 0.0 {
                break;
            }
        }
        any
    }

    fn judge(&mut self, event: &Event) {
        let fixed = self.compat == Compat::Fixed;
        if !self.ended {
            match self.level.goal.check(&self.level.grid, event) {
                Status::Going => {}
                Status::Reached => {
                    self.ended = true;
                    let spent = f64::from(self.moves) / f64::from(self.level.moves_max);
                    let reward = 1.0 - 0.9 * spent;
                    self.last.reward = reward;
                    self.last.done = fixed || reward > 0.5;
                }
                Status::Failed => {
                    self.ended = true;
                    self.last.done = fixed;
                }
            }
        }
        if fixed && self.moves >= self.level.moves_max {
            self.last.done = true;
        }
    }
}
