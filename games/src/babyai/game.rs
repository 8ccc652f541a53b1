//! An episode: the observation and the list of actions, what each action does, and what it earns.

use super::grid::{Cell, Grid, Kind, Lock, Primitive};
use super::level::{LEVELS, Level};
use super::mission::Status;
use super::original::{self, Verifier, Ways};
use super::text::{Action, Named, actions, describe, things_in_view};
use agentgym_envs::quantity::Quantity;
use agentgym_envs::task_index::TaskIndex;

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
    pub(super) level: Level,
    pub(super) verifier: Verifier,
    mission: String,
    pub(super) moves: u32,
    /// The latest move is told to have completed the task.
    completed: bool,
    last: BabyaiReply,
}

impl BabyaiGame {
    /// Starts the episode of an item. `Err` is the original's text for negative ids.
    pub(crate) fn start(item: &TaskIndex) -> Result<Self, String> {
        let (level, world) = item.div_mod(LEVELS.len() as u64);
        if world.negative {
            return Err(format!(
                "Seed must be greater or equal to zero, actual value: {world}"
            ));
        }
        Ok(Self::of(original::level(level as usize, &world.size)))
    }

    /// The episode of an item.
    pub fn new(item_id: u64) -> Self {
        let item = TaskIndex {
            negative: false,
            size: Quantity::from_digits(&item_id.to_string()),
        };
        Self::start(&item).expect("the number is not negative")
    }

    fn of(level: Level) -> Self {
        let mut game = Self {
            verifier: Verifier::new(&level.grid, &level.goal),
            // In place of the words that tell the order; of the first ones a comma is left.
            mission: level.goal.words([", and ", " and "]),
            level,
            moves: 0,
            completed: false,
            last: BabyaiReply {
                observation: String::new(),
                reward: 0.0,
                score: 0.0,
                done: false,
            },
        };
        let (view, actions) = (describe(game.grid()), game.actions_line());
        game.last.observation = format!("Your goal: {}\n{view}\n{actions}", game.mission);
        game
    }

    /// What `GET /observation` shows: the original puts the goal before every observation.
    pub(crate) fn shown(&self) -> String {
        const START: &str = "Your goal: ";
        let observation = &self.last.observation;
        match observation.starts_with(START) {
            true => observation.clone(),
            false => format!("{START}{}\n{observation}", self.mission),
        }
    }

    /// The first observation, or the result of the latest step.
    pub fn last(&self) -> &BabyaiReply {
        &self.last
    }

    /// The mission in words.
    pub fn mission(&self) -> &str {
        &self.mission
    }

    /// Nothing more can be earned: the episode is over, or its goal was reached too late to end it.
    pub(super) fn is_decided(&self) -> bool {
        self.last.done || self.last.reward > 0.0
    }

    /// The texts of the currently sensible actions.
    pub fn actions(&self) -> Vec<String> {
        self.offered().into_iter().map(|(text, _)| text).collect()
    }

    pub(super) fn grid(&self) -> &Grid {
        &self.level.grid
    }

    /// The things in view with their names.
    pub(super) fn things_in_view(&self) -> Vec<Named> {
        things_in_view(self.grid())
    }

    /// The listed actions: those that can be begun.
    fn offered(&self) -> Vec<(String, Action)> {
        let mut named = actions(self.grid());
        let ways = Ways::new(self.grid());
        named.retain(|(text, action)| self.plan(text, action, &ways).is_ok());
        named
    }

    /// The moves that bring the agent in front of a thing.
    pub(super) fn way_to(&self, thing: usize) -> Option<Vec<Primitive>> {
        Ways::new(self.grid()).to(self.grid().things[thing].at?)
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
        let named = actions(self.grid());
        let found = named.iter().find(|(named, _)| *named == text);
        let plan = if text.is_empty() {
            Err("No change in state.".to_owned())
        } else if text.contains("check") {
            let all = self.actions().join(", ");
            Err(format!("You can take the following actions: {all}"))
        } else {
            match found {
                Some((_, action)) => self.plan(&text, action, &Ways::new(self.grid())),
                None => Err(self.refusal(&text)),
            }
        };
        let moved = plan.and_then(|plan| match self.run(&plan) {
            true => Ok(()),
            false => Err("No change in state.".to_owned()),
        });
        // The original adds the latest reward again, whatever happened.
        self.last.score += self.last.reward;
        let view = moved.err().unwrap_or_else(|| {
            let completed = match self.completed {
                true => "\n The task is completed.",
                false => "",
            };
            format!("{}{completed}", describe(self.grid()))
        });
        self.last.observation = format!("{view}\n{}", self.actions_line());
        &self.last
    }

    /// The primitive moves of an action, or the text that says why there are none.
    fn plan(&self, text: &str, action: &Action, ways: &Ways<'_>) -> Result<Vec<Primitive>, String> {
        let grid = self.grid();
        let way = |thing: usize, verb: &str| {
            grid.things[thing]
                .at
                .and_then(|at| ways.to(at))
                .ok_or_else(|| {
                    let name = text.strip_prefix(verb).unwrap_or(text).trim();
                    format!("You cannot {verb} {name}, as there is no path leading to it.")
                })
        };
        // In front of a door the original tries, though it has no effect.
        let is_blocked = match grid.cell(grid.front()) {
            Cell::Empty => false,
            Cell::Wall => true,
            Cell::Thing(thing) => grid.things[thing].kind != Kind::Door,
        };
        match action {
            Action::Primitive(Primitive::Drop) if is_blocked => Err(
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
                // Into the doorway.
                way.push(Primitive::Forward);
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
                // Into the doorway.
                way.push(Primitive::Forward);
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
            && let Some(named) = self
                .things_in_view()
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

    /// Makes moves until one has no effect. Returns whether any was made.
    fn run(&mut self, plan: &[Primitive]) -> bool {
        for primitive in plan {
            let seen_before = self.grid().picture();
            // The original's first picture still shows a thing that is carried from the start.
            self.level.grid.lift_carried();
            self.level.grid.act(*primitive);
            self.moves += 1;
            let Level { grid, goal, .. } = &mut self.level;
            let status = self.verifier.verify(goal, grid, *primitive);
            self.last.reward = match status {
                Status::Reached => self.level.reward(self.moves),
                Status::Going | Status::Failed => 0.0,
            };
            // A mission that failed is "completed", too.
            self.completed = status != Status::Going;
            self.last.done = self.last.reward > 0.5;
            // A turn between two equal sights counts as without effect.
            if self.grid().picture() == seen_before {
                break;
            }
        }
        !plan.is_empty()
    }
}
