//! Missions that MiniGrid draws from a grammar, and the missions that it refuses.

use super::rooms::{COLOURS, Retry, RoomAt, Rooms};
use crate::babyai::grid::{Colour, Kind, Lock};
use crate::babyai::mission::{Desc, Goal, Order, Side, Task, next};

/// Tries at a description that denotes something.
const DESCRIPTIONS_MAX: usize = 100;

const KINDS: [Kind; 4] = [Kind::Box, Kind::Ball, Kind::Key, Kind::Door];

/// Clauses of a sentence.
#[derive(Clone, Copy)]
enum Sentence {
    Task,
    /// Two tasks in any order.
    And,
    /// Two sentences in a fixed order.
    Sequence,
}

#[derive(Clone, Copy)]
enum Verb {
    GoTo,
    Pickup,
    Open,
    PutNext,
}

/// The parameters of a level.
pub(super) struct Grammar {
    things: usize,
    /// Chance of a locked room.
    locked: f64,
    /// Things may be described by their side.
    sides: bool,
    /// Things may have to be moved out of the way.
    unblocks: bool,
    /// The mission may ask for what is only in the locked room.
    unlocks: bool,
    verbs: &'static [Verb],
    sentences: &'static [Sentence],
}

/// Whether a level's things may have to be moved out of the way.
pub(super) fn unblocks(number: usize) -> bool {
    number >= 34
}

impl Grammar {
    pub(super) fn of(number: usize) -> Self {
        const ALL: [Sentence; 3] = [Sentence::Task, Sentence::And, Sentence::Sequence];
        const VERBS: [Verb; 4] = [Verb::GoTo, Verb::Pickup, Verb::Open, Verb::PutNext];
        Self {
            things: match number {
                7 => 4,
                18 => 8,
                37 => 7,
                _ => 18,
            },
            locked: match number {
                7 | 18 | 39 => 0.0,
                37 => 0.25,
                _ => 0.5,
            },
            sides: !matches!(number, 7 | 34),
            unblocks: unblocks(number),
            unlocks: matches!(number, 7 | 18 | 37 | 38),
            verbs: match number {
                7 => &[Verb::GoTo],
                18 => &[Verb::Pickup],
                _ => &VERBS,
            },
            sentences: match number {
                18 | 34 | 35 => &[Sentence::Task],
                _ => &ALL,
            },
        }
    }

    /// Fills the rooms and draws a mission. `locked` is the locked room of this attempt or of an
    /// earlier one.
    pub(super) fn mission(
        &self,
        rooms: &mut Rooms<'_>,
        locked: &mut Option<RoomAt>,
    ) -> Result<Goal, Retry> {
        let mut locked_now = None;
        if rooms.random.fraction() < self.locked {
            let (room, colour) = loop {
                let room = rooms.any_room();
                let side = rooms.random.between(0, 4);
                *locked = Some(room);
                if rooms.has_neighbour(room, side) {
                    let door = rooms.add_door(room, Some(side), None, Some(true));
                    break (room, rooms.grid.things[door].colour);
                }
            };
            locked_now = Some(room);
            let with_key = loop {
                let with_key = rooms.any_room();
                if with_key != room {
                    break with_key;
                }
            };
            rooms.add(with_key, Kind::Key, colour)?;
        }
        rooms.connect_all(&COLOURS)?;
        rooms.add_things(None, self.things, false)?;
        loop {
            rooms.place_agent_anywhere()?;
            if Some(rooms.agents_room()) != locked_now {
                break;
            }
        }
        if !self.unblocks {
            rooms.require_reachable()?;
        }
        self.sentence(rooms, *locked, self.sentences)
    }

    fn sentence(
        &self,
        rooms: &mut Rooms<'_>,
        locked: Option<RoomAt>,
        from: &[Sentence],
    ) -> Result<Goal, Retry> {
        match rooms.random.pick(from) {
            Sentence::Task => Ok(Goal::One(self.task(rooms, locked)?)),
            Sentence::And => {
                let first = self.sentence(rooms, locked, &[Sentence::Task])?;
                let second = self.sentence(rooms, locked, &[Sentence::Task])?;
                Ok(Goal::two(Order::And, first, second))
            }
            Sentence::Sequence => {
                let parts = [Sentence::Task, Sentence::And];
                let first = self.sentence(rooms, locked, &parts)?;
                let second = self.sentence(rooms, locked, &parts)?;
                let order = rooms.random.pick(&[Order::Before, Order::After]);
                Ok(Goal::two(order, first, second))
            }
        }
    }

    fn task(&self, rooms: &mut Rooms<'_>, locked: Option<RoomAt>) -> Result<Task, Retry> {
        let portable = &KINDS[..3];
        Ok(match rooms.random.pick(self.verbs) {
            Verb::GoTo => Task::GoTo(self.thing(rooms, locked, &KINDS)?),
            Verb::Pickup => Task::Pickup(self.thing(rooms, locked, portable)?, false),
            Verb::Open => Task::Open(self.thing(rooms, locked, &[Kind::Door])?, false),
            Verb::PutNext => {
                let moved = self.thing(rooms, locked, portable)?;
                Task::PutNext(moved, self.thing(rooms, locked, &KINDS)?)
            }
        })
    }

    fn thing(
        &self,
        rooms: &mut Rooms<'_>,
        locked: Option<RoomAt>,
        kinds: &[Kind],
    ) -> Result<Desc, Retry> {
        for _ in 0..=DESCRIPTIONS_MAX {
            let colour = match rooms.random.between(0, COLOURS.len() + 1) {
                0 => None,
                at => Some(COLOURS[at - 1]),
            };
            let kind = rooms.random.pick(kinds);
            let by_side = self.sides && rooms.random.coin();
            let side = by_side.then(|| rooms.random.pick(&Side::ALL));
            let desc = rooms.desc(Some(kind), colour, side);
            let outside = |thing: &usize| {
                let at = rooms.grid.things[*thing].at;
                at.is_some_and(|at| locked.is_none_or(|locked| !rooms.holds(locked, at)))
            };
            let found = match self.unlocks {
                true => !desc.set.is_empty(),
                false => desc.set.iter().any(outside),
            };
            if found {
                return Ok(desc);
            }
        }
        Err(Retry)
    }
}

/// Whether a mission makes sense: nothing is put next to itself or to what it is next to already,
/// and, where ways may have to be cleared, keys of locked doors are left alone.
pub(super) fn is_allowed(rooms: &mut Rooms<'_>, goal: &Goal, unblocks: bool) -> bool {
    let doors = rooms.doors();
    let grid = &rooms.grid;
    let locked: Vec<Colour> = doors
        .into_iter()
        .map(|door| &grid.things[door])
        .filter(|door| door.lock == Lock::Locked)
        .map(|door| door.colour)
        .collect();
    let is_needed = |desc: &Desc| {
        let key = desc.kind == Some(Kind::Key);
        unblocks && key && desc.colour.is_some_and(|colour| locked.contains(&colour))
    };
    goal.tasks().into_iter().all(|task| match task {
        Task::GoTo(desc) | Task::Pickup(desc, _) | Task::Open(desc, _) => !is_needed(desc),
        Task::PutNext(moved, fixed) => {
            let is_done = |thing: &usize| {
                let fixed = &fixed.set;
                fixed.contains(thing) || fixed.iter().any(|other| next(grid, *thing, *other))
            };
            !moved.set.iter().any(is_done) && !is_needed(moved) && !is_needed(fixed)
        }
    })
}
