//! Missions drawn from a grammar: one task, two in any order, or two in sequence, in rooms of which
//! one may be locked.

use super::build::{Build, CARRIED, Reject, RoomAt};
use super::parts::{finished, lock_a_room, put_next_task};
use crate::draws::Draws;
use crate::env::babyai::grid::{Kind, Lock};
use crate::env::babyai::level::Level;
use crate::env::babyai::mission::{Desc, Goal, Order, Side, Task};

/// The levels whose missions are drawn from a grammar.
pub(super) fn generated(number: usize, draws: &mut Draws) -> Result<Level, Reject> {
    let (size, columns, rows, things) = match number {
        7 => (5, 2, 2, 4),
        34 => (5, 3, 2, 7),
        37 => (5, 2, 2, 7),
        _ => (8, 3, 3, 18),
    };
    let mut build = Build::new(draws, size, columns, rows);
    let chance = match number {
        7 | 39 => 0,
        37 => 25,
        _ => 50,
    };
    if build.draws.percent(chance) {
        lock_a_room(&mut build)?;
    } else {
        build.connect()?;
    }
    build.add_distractors(None, things, false)?;
    let free: Vec<RoomAt> = build
        .rooms()
        .into_iter()
        .filter(|room| Some(*room) != build.locked)
        .collect();
    let start = build.pick(&free);
    build.place_agent(start)?;
    if number == 7 {
        build.require_reachable()?;
    }
    let grammar = Grammar {
        only_go_to: number == 7,
        sides: !matches!(number, 7 | 34),
        sequences: !matches!(number, 34 | 35),
        unlocks: matches!(number, 37 | 38),
    };
    let goal = grammar.goal(&mut build, true)?;
    Ok(finished(build, goal, None))
}

struct Grammar {
    only_go_to: bool,
    /// Things may be described by their location.
    sides: bool,
    /// There may be two goals in a fixed order.
    sequences: bool,
    /// The mission may ask for things behind the locked door.
    unlocks: bool,
}

impl Grammar {
    fn goal(&self, build: &mut Build<'_>, may_order: bool) -> Result<Goal, Reject> {
        match build.draws.below(if may_order { 3 } else { 2 }) {
            1 if self.sequences => {
                let (one, two) = (self.task(build)?, self.task(build)?);
                Ok(Goal::two(Order::And, Goal::One(one), Goal::One(two)))
            }
            2 if self.sequences => {
                let (one, two) = (self.goal(build, false)?, self.goal(build, false)?);
                let order = build.pick(&[Order::Before, Order::After]);
                Ok(Goal::two(order, one, two))
            }
            _ => Ok(Goal::One(self.task(build)?)),
        }
    }

    fn task(&self, build: &mut Build<'_>) -> Result<Task, Reject> {
        let all = [Kind::Key, Kind::Ball, Kind::Box, Kind::Door];
        match build.draws.below(if self.only_go_to { 1 } else { 4 }) {
            0 => Ok(Task::GoTo(self.thing(build, &all)?)),
            1 => Ok(Task::Pickup(self.thing(build, &CARRIED)?, false)),
            2 => Ok(Task::Open(self.thing(build, &[Kind::Door])?, false)),
            _ => {
                let (moved, fixed) = (self.thing(build, &CARRIED)?, self.thing(build, &all)?);
                put_next_task(build, moved, fixed)
            }
        }
    }

    fn thing(&self, build: &mut Build<'_>, kinds: &[Kind]) -> Result<Desc, Reject> {
        for _ in 0..100 {
            let kind = build.pick(kinds);
            let colour = build.colour();
            let colour = build.draws.percent(80).then_some(colour);
            let side = build.pick(&Side::ALL);
            let side = (self.sides && build.draws.percent(33)).then_some(side);
            let desc = build.desc(Some(kind), colour, side);
            let can_do = |thing: &usize| {
                self.unlocks || {
                    let thing = &build.grid.things[*thing];
                    let at = thing.at.map(|at| build.room_of(at));
                    thing.lock != Lock::Locked
                        && (thing.kind == Kind::Door || at != build.locked || at.is_none())
                }
            };
            if desc.set.iter().any(can_do) {
                return Ok(desc);
            }
        }
        Err(Reject)
    }
}
