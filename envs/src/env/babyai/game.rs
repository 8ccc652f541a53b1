//! An episode: the observation and the list of actions, what each action does, and what it earns.

use super::before::{self, Compat};
use super::grid::{Cell, Grid, Kind, Lock, Primitive};
use super::level::{LEVELS, Level};
use super::mission::Status;
use super::original::{self, Verifier};
use super::text::{Action, actions, describe, things_in_view, way_to};
use crate::draws::Draws;
use crate::quantity::Quantity;
use crate::task_index::TaskIndex;

/// Which game is played.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rules {
    /// AgentGym's, world by world. Macros are carried out to their end and the last move alone
    /// counts; only what there is a way to is on the list of actions.
    #[default]
    AgentGym,
    /// Those of before.
    Before {
        /// Which quirks of the original are kept.
        compat: Compat,
        /// Mixed into every world.
        seed: u64,
    },
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

#[derive(Clone, Debug)]
enum Judge {
    AgentGym(Verifier),
    Before(before::Judge),
}

/// An episode.
#[derive(Clone, Debug)]
pub struct BabyaiGame {
    pub(super) level: Level,
    judge: Judge,
    mission: String,
    pub(super) moves: u32,
    last: BabyaiReply,
}

impl BabyaiGame {
    /// Starts the episode of an item. `Err` is the original's text for negative ids.
    pub(crate) fn start(item: &TaskIndex, rules: Rules) -> Result<Self, String> {
        let (level, world) = item.div_mod(LEVELS.len() as u64);
        if world.negative {
            return Err(format!(
                "Seed must be greater or equal to zero, actual value: {world}"
            ));
        }
        let number = level as usize;
        let level = match rules {
            Rules::AgentGym => original::level(number, &world.size),
            Rules::Before { seed, .. } => {
                let (name, world) = (LEVELS[number].as_bytes(), world.to_string());
                let parts: [&[u8]; 3] = [name, world.as_bytes(), &seed.to_le_bytes()];
                before::level(number, &mut Draws::new("babyai", &parts))
            }
        };
        Ok(Self::of(level, rules))
    }

    /// The episode of an item.
    pub fn new(item_id: u64, rules: Rules) -> Self {
        let item = TaskIndex {
            negative: false,
            size: Quantity::from_digits(&item_id.to_string()),
        };
        Self::start(&item, rules).expect("the number is not negative")
    }

    fn of(level: Level, rules: Rules) -> Self {
        let judge = match rules {
            Rules::AgentGym => Judge::AgentGym(Verifier::new(&level.grid, &level.goal)),
            Rules::Before { compat, .. } => Judge::Before(before::Judge::new(compat)),
        };
        let mission = level.goal.words(!shows_more(&judge));
        let mut game = Self {
            level,
            judge,
            mission,
            moves: 0,
            last: BabyaiReply {
                observation: String::new(),
                reward: 0.0,
                score: 0.0,
                done: false,
            },
        };
        let (view, actions) = (game.view(), game.actions_line());
        game.last.observation = format!("Your goal: {}\n{view}\n{actions}", game.mission);
        // The original's first picture still shows a thing that is carried from the start.
        game.level.grid.lift_carried();
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

    /// Nothing more can be earned: the episode is over or, by AgentGym's rules, its goal was
    /// reached too late to end it.
    pub(super) fn is_decided(&self) -> bool {
        self.last.done || self.is_original() && self.last.reward > 0.0
    }

    /// Whether AgentGym's rules are played by.
    pub(super) fn is_original(&self) -> bool {
        matches!(self.judge, Judge::AgentGym(_))
    }

    /// The texts of the currently sensible actions.
    pub fn actions(&self) -> Vec<String> {
        let named = self.named_actions().into_iter();
        named
            .filter(|(text, action)| !self.is_original() || self.plan(text, action).is_ok())
            .map(|(text, _)| text)
            .collect()
    }

    pub(super) fn grid(&self) -> &Grid {
        &self.level.grid
    }

    fn named_actions(&self) -> Vec<(String, Action)> {
        actions(self.grid(), shows_more(&self.judge), self.is_original())
    }

    fn view(&self) -> String {
        describe(self.grid(), self.is_original())
    }

    pub(super) fn actions_line(&self) -> String {
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
        let named = self.named_actions();
        let found = named.iter().find(|(named, _)| *named == text);
        let plan = if text.is_empty() {
            Err("No change in state.".to_owned())
        } else if text.contains("check") {
            let all = self.actions().join(", ");
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
        // The original adds the latest reward again, whatever happened.
        if moved.is_ok() || !shows_more(&self.judge) {
            self.last.score += self.last.reward;
        }
        let view = moved.err().unwrap_or_else(|| {
            let completed = match self.last.reward != 0.0 {
                true => "\n The task is completed.",
                false => "",
            };
            format!("{}{completed}", self.view())
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
        // Into the doorway; by the rules of before, beyond it.
        let through: &[Primitive] = match self.is_original() {
            true => &[Primitive::Forward],
            false => &[Primitive::Forward, Primitive::Forward],
        };
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
                        .is_some_and(|carried| grid.things[carried].kind == Kind::Key);
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

    /// The answer to an action that has no name now.
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
            && self.grid().things[named.thing].kind == Kind::Door
        {
            return format!(
                "You cannot go through {name}, as it is closed. You should toggle it first."
            );
        }
        "The action is not recognized. Please check valid actions.".to_owned()
    }

    /// Makes moves until one has no effect; by the rules of before, also until one earns something
    /// or ends the episode. Returns whether anything was done.
    fn run(&mut self, plan: &[Primitive]) -> bool {
        let mut any = false;
        for primitive in plan {
            let carried_before = self.grid().carrying;
            let seen_before = self.grid().picture();
            let changed = self.level.grid.act(*primitive);
            self.moves += 1;
            let stops = match &mut self.judge {
                Judge::Before(judge) => {
                    let (level, moves) = (&mut self.level, self.moves);
                    let worth = judge.judge(level, moves, *primitive, carried_before);
                    (self.last.reward, self.last.done) = (worth.reward, worth.done);
                    any |= changed;
                    !changed || worth.done || worth.reward != 0.0
                }
                Judge::AgentGym(verifier) => {
                    let Level { grid, goal, .. } = &mut self.level;
                    let reached = verifier.verify(goal, grid, *primitive) == Status::Reached;
                    self.last.reward = match reached {
                        true => self.level.reward(self.moves),
                        false => 0.0,
                    };
                    self.last.done = self.last.reward > 0.5;
                    any = true;
                    // A turn between two equal sights counts as without effect.
                    self.grid().picture() == seen_before
                }
            };
            if stops {
                break;
            }
        }
        any
    }
}

/// Whether missions state their order, boxes can be opened and doors closed, and a reward counts
/// once.
fn shows_more(judge: &Judge) -> bool {
    matches!(judge, Judge::Before(judge) if judge.compat == Compat::Fixed)
}
