//! BabyAI: reach a goal told in words, in a grid of rooms seen from inside.
//!
//! Rules, wording, levels and rewards are those of AgentGym's server; worlds are drawn by our
//! own generator ([`levels`]), as functions of the item id alone. An item id is a level (its
//! remainder by 40) and a seed (its quotient).

mod build;
mod grid;
mod levels;
mod mission;
#[cfg(test)]
mod planner;
mod text;

pub use levels::LEVELS;

use grid::{Cell, Grid, Lock, Primitive};
use levels::Level;
use mission::{Event, Status};
use text::{Action, actions, describe, things_in_view, way_to};

use crate::textcraft::{Draws, TaskIndex};

/// Which habits of the original are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compat {
    /// None of those that hurt training: a success ends the episode however late it comes, a
    /// failure or the limit of moves ends it with reward 0, the score is the reward once and
    /// for good, missions tell their order, a box in front can be opened and an open door
    /// closed by `toggle`, and a session can be closed before its first reset.
    #[default]
    Fixed,
    /// All: an episode goes on after a success of reward 0.5 or less and after a failure,
    /// without a limit of moves; steps that do nothing add the last reward to the score again;
    /// `then` and `after you` are told as `and`; `toggle` only opens doors; and a session that
    /// was closed before its first reset can never be closed.
    Original,
}

/// What a step brought.
#[derive(Clone, Debug, PartialEq)]
pub struct BabyaiReply {
    /// Text for the model.
    pub observation: String,
    /// Of the latest move.
    pub reward: f64,
    /// What counts: the sum of rewards.
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
    /// The mission succeeded or failed; the world does not check it any more.
    ended: bool,
    last: BabyaiReply,
}

impl BabyaiGame {
    /// The episode of an item. `Err` is the text of the original for negative ids.
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

    /// The first observation, or what the latest step brought.
    pub fn last(&self) -> &BabyaiReply {
        &self.last
    }

    /// The mission in words.
    pub fn mission(&self) -> &str {
        &self.mission
    }

    /// The texts of the actions that make sense now.
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
            // The original adds what it last saw, whatever happened.
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

    /// The moves that an action takes, or the text that says why there are none.
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

    /// Makes moves until one changes nothing; whether the first one did. An episode that has
    /// ended on the way makes no further one.
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

#[cfg(test)]
mod tests {
    use super::*;
    use grid::{Colour, Kind};

    #[test]
    fn worlds_are_functions_of_their_ids() {
        for item in 0..200 {
            let game = BabyaiGame::new(item, Compat::Fixed);
            let again = BabyaiGame::start(&TaskIndex::from(item as i64), 0, Compat::Fixed);
            let again = again.expect("a world");
            assert_eq!(game.level, again.level, "{item}");
            assert!(
                game.last()
                    .observation
                    .starts_with(&format!("Your goal: {}\n", game.mission))
            );
            // Other seeds are other worlds, as far as a small room has room for them.
            let other = |step: u64| BabyaiGame::new(item + 40 * step, Compat::Fixed).level;
            assert!((1..6).any(|step| other(step) != game.level), "{item}");
        }
        let other = BabyaiGame::start(&TaskIndex::from(7), 1, Compat::Fixed).expect("a world");
        assert_ne!(other.level, BabyaiGame::new(7, Compat::Fixed).level);
    }

    /// The documented limits of moves, by level; two where the mission decides.
    #[test]
    fn limits_of_moves_are_those_of_the_levels() {
        let expected: [&[u32]; 40] = [
            &[64],
            &[64],
            &[64],
            &[16],
            &[64],
            &[441],
            &[576],
            &[100, 200, 300, 400],
            &[64],
            &[441],
            &[576],
            &[576],
            &[50],
            &[576],
            &[720],
            &[720],
            &[576],
            &[576],
            &[64],
            &[49],
            &[288],
            &[72],
            &[392],
            &[576],
            &[576],
            &[576],
            &[72],
            &[576],
            &[1080],
            &[441],
            &[980],
            &[1080],
            &[400],
            &[1024],
            &[150, 300],
            &[576, 1152],
            &[],
            &[],
            &[],
            &[],
        ];
        for item in 0..120 {
            let level = (item % 40) as usize;
            let found = BabyaiGame::new(item, Compat::Fixed).level.moves_max;
            match expected[level] {
                // Multiples by the trips of the mission.
                [] => assert_eq!(found % if level == 37 { 100 } else { 576 }, 0, "{level}"),
                some => assert!(some.contains(&found), "{}: {found}", LEVELS[level]),
            }
        }
    }

    fn small(lock: Lock) -> BabyaiGame {
        let mut game = BabyaiGame::new(12, Compat::Fixed);
        let mut grid = Grid::new(9, 5);
        for x in 0..9 {
            for y in 0..5 {
                if x % 4 == 0 || y % 4 == 0 {
                    grid.set((x, y), Cell::Wall);
                }
            }
        }
        grid.add(Kind::Door, Colour::Red, lock, (4, 2));
        grid.agent = (1, 2);
        game.level.grid = grid;
        game
    }

    #[test]
    fn texts_are_the_documented_ones() {
        let mut game = small(Lock::Locked);
        let key = game
            .level
            .grid
            .add(Kind::Key, Colour::Grey, Lock::Open, (2, 1));
        assert_eq!(
            describe(game.grid()),
            "In front of you in this room, you can see several objects: There is a grey key 1 1 \
             steps in front of you and 1 steps to your left.  There is a red locked door 1 right \
             in front of you 3 steps away.  The room has walls around you. You are not carrying \
             anything."
        );
        let line = "Available actions: [\"turn left\", \"turn right\", \"move forward\", \
                    \"pickup grey key 1\", \"toggle and go through red locked door 1\", \"go to \
                    grey key 1\", \"go to red locked door 1\", \"check available actions\"]";
        assert_eq!(game.actions_line(), line);
        for (action, reply) in [
            ("", "No change in state."),
            (
                "jump",
                "The action is not recognized. Please check valid actions.",
            ),
            (
                "drop",
                "You cannot drop the object, as you are not carrying anything.",
            ),
            (
                "toggle and go through red locked door 1",
                "You cannot toggle and go through red locked door 1, as you are not carrying a key.",
            ),
            (
                "go through red locked door 1",
                "You cannot go through red locked door 1, as it is closed. You should toggle it first.",
            ),
        ] {
            let observation = format!("{reply}\n{line}");
            assert_eq!(game.step(action).observation, observation, "{action}");
        }
        assert!(
            game.step("please CHECK")
                .observation
                .starts_with("You can take the following actions: turn left, turn right,")
        );
        game.step("Pickup grey key 1 ");
        assert_eq!(game.grid().carrying, Some(key));
        assert!(
            game.last()
                .observation
                .contains("You are carrying a grey key.\nAvail")
        );
        game.step("turn right");
        let text = &game
            .step("toggle and go through red locked door 1")
            .observation;
        assert!(
            text.starts_with("The action is not recognized")
                || text.contains("does not match the color of door.")
        );
    }

    #[test]
    fn a_success_is_worth_what_the_moves_leave() {
        let mut game = small(Lock::Closed);
        game.level.goal = mission::Goal::One(mission::Task::Open(
            mission::Desc {
                kind: Some(Kind::Door),
                colour: None,
                side: None,
                set: vec![0],
            },
            false,
        ));
        game.level.moves_max = 50;
        let reply = game.step("toggle and go through red closed door 1").clone();
        // Two steps to the door, one to open it; what would follow is not made any more.
        assert_eq!((reply.reward, reply.done), (1.0 - 0.9 * 3.0 / 50.0, true));
        assert!(
            reply
                .observation
                .contains("\n The task is completed.\nAvailable actions: [")
        );
        assert_eq!(reply.score, reply.reward);
    }

    #[test]
    fn the_originals_habits_can_be_had() {
        let late = |compat| {
            let mut game = small(Lock::Closed);
            game.compat = compat;
            game.level.goal = mission::Goal::One(mission::Task::Open(
                mission::Desc {
                    kind: None,
                    colour: None,
                    side: None,
                    set: vec![0],
                },
                false,
            ));
            game.level.moves_max = 50;
            game.moves = 40;
            let reply = game.step("toggle and go through red closed door 1").clone();
            let again = game.step("nonsense").clone();
            (reply, again)
        };
        let (reply, again) = late(Compat::Original);
        assert!(!reply.done && reply.reward < 0.5 && reply.score == reply.reward);
        assert_eq!((again.score, again.done), (2.0 * reply.score, false));
        let (reply, again) = late(Compat::Fixed);
        assert!(reply.done && reply.score == reply.reward);
        assert_eq!(again.score, reply.score);
    }

    #[test]
    fn an_episode_ends_at_its_limit_of_moves() {
        let mut game = BabyaiGame::new(3, Compat::Fixed);
        for turn in 1..=16 {
            assert_eq!(game.step("turn left").done, turn == 16);
        }
        assert_eq!(game.last().score, 0.0);
        let mut original = BabyaiGame::new(3, Compat::Original);
        assert!((0..200).all(|_| !original.step("turn left").done));
    }
}
