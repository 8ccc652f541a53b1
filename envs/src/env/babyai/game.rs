//! An episode: the observation and the list of actions, what each action does, and what it earns.

use super::before::{self, Compat};
use super::grid::{Cell, Grid, Kind, Lock, Pos, Primitive};
use super::level::{LEVELS, Level};
use super::mission::{Status, Wording};
use super::original::{self, Verifier, Ways};
use super::text::{Action, Named, Telling, actions, describe, things_in_view, way_to};
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
    /// The latest move is told to have completed the task.
    completed: bool,
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
        let mission = level.goal.words(match &judge {
            Judge::AgentGym(_) => Wording::AgentGym,
            Judge::Before(_) if shows_more(&judge) => Wording::Ordered,
            Judge::Before(_) => Wording::Unordered,
        });
        let mut game = Self {
            level,
            judge,
            mission,
            moves: 0,
            completed: false,
            last: BabyaiReply {
                observation: String::new(),
                reward: 0.0,
                score: 0.0,
                done: false,
            },
        };
        let (view, actions) = (game.view(), game.actions_line());
        game.last.observation = format!("Your goal: {}\n{view}\n{actions}", game.mission);
        game
    }

    /// What `GET /observation` shows: the original puts the goal before every observation.
    pub(crate) fn shown(&self) -> String {
        const START: &str = "Your goal: ";
        let observation = &self.last.observation;
        match self.is_original() && !observation.starts_with(START) {
            true => format!("{START}{}\n{observation}", self.mission),
            false => observation.clone(),
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
        self.offered().into_iter().map(|(text, _)| text).collect()
    }

    pub(super) fn grid(&self) -> &Grid {
        &self.level.grid
    }

    fn telling(&self) -> Telling {
        match self.judge {
            Judge::AgentGym(_) => Telling::AgentGym,
            Judge::Before(_) => Telling::Before,
        }
    }

    /// The things in view with their names.
    pub(super) fn things_in_view(&self) -> Vec<Named> {
        things_in_view(self.grid(), self.telling())
    }

    /// The listed actions. By the original's rules these are the ones that can be begun.
    fn offered(&self) -> Vec<(String, Action)> {
        let mut named = self.named_actions();
        if self.is_original() {
            let ways = self.ways();
            named.retain(|(text, action)| self.plan(text, action, &*ways).is_ok());
        }
        named
    }

    /// Finds ways by the rules that are played by.
    fn ways(&self) -> Box<dyn Fn(Pos) -> Option<Vec<Primitive>> + '_> {
        let grid = self.grid();
        match self.judge {
            Judge::AgentGym(_) => {
                let ways = Ways::new(grid);
                Box::new(move |at| ways.to(at))
            }
            Judge::Before(_) => Box::new(move |at| way_to(grid, at)),
        }
    }

    /// The moves that bring the agent in front of a thing.
    pub(super) fn way_to(&self, thing: usize) -> Option<Vec<Primitive>> {
        self.ways()(self.grid().things[thing].at?)
    }

    fn named_actions(&self) -> Vec<(String, Action)> {
        actions(self.grid(), shows_more(&self.judge), self.telling())
    }

    fn view(&self) -> String {
        describe(self.grid(), self.telling())
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
                Some((_, action)) => self.plan(&text, action, &*self.ways()),
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
            let completed = match self.completed {
                true => "\n The task is completed.",
                false => "",
            };
            format!("{}{completed}", self.view())
        });
        self.last.observation = format!("{view}\n{}", self.actions_line());
        &self.last
    }

    /// The primitive moves of an action, or the text that says why there are none.
    fn plan(
        &self,
        text: &str,
        action: &Action,
        ways: &dyn Fn(Pos) -> Option<Vec<Primitive>>,
    ) -> Result<Vec<Primitive>, String> {
        let grid = self.grid();
        let way = |thing: usize, verb: &str| {
            grid.things[thing].at.and_then(ways).ok_or_else(|| {
                let name = text.strip_prefix(verb).unwrap_or(text).trim();
                format!("You cannot {verb} {name}, as there is no path leading to it.")
            })
        };
        // Into the doorway; by the rules of before, beyond it.
        let through: &[Primitive] = match self.is_original() {
            true => &[Primitive::Forward],
            false => &[Primitive::Forward, Primitive::Forward],
        };
        // In front of a door the original tries, though it has no effect.
        let is_blocked = match grid.cell(grid.front()) {
            Cell::Empty => false,
            Cell::Wall => true,
            Cell::Thing(thing) => !(self.is_original() && grid.things[thing].kind == Kind::Door),
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

    /// Makes moves until one has no effect; by the rules of before, also until one earns something
    /// or ends the episode. Returns whether anything was done.
    fn run(&mut self, plan: &[Primitive]) -> bool {
        let mut any = false;
        for primitive in plan {
            let carried_before = self.grid().carrying;
            let seen_before = self.grid().picture();
            // The original's first picture still shows a thing that is carried from the start.
            self.level.grid.lift_carried();
            let changed = self.level.grid.act(*primitive);
            self.moves += 1;
            let stops = match &mut self.judge {
                Judge::Before(judge) => {
                    let (level, moves) = (&mut self.level, self.moves);
                    let worth = judge.judge(level, moves, *primitive, carried_before);
                    (self.last.reward, self.last.done) = (worth.reward, worth.done);
                    self.completed = worth.reward != 0.0;
                    any |= changed;
                    !changed || worth.done || worth.reward != 0.0
                }
                Judge::AgentGym(verifier) => {
                    let Level { grid, goal, .. } = &mut self.level;
                    let status = verifier.verify(goal, grid, *primitive);
                    self.last.reward = match status {
                        Status::Reached => self.level.reward(self.moves),
                        Status::Going | Status::Failed => 0.0,
                    };
                    // A mission that failed is "completed", too.
                    self.completed = status != Status::Going;
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
