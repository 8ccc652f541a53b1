//! The forty levels of the rules of before, each with its layout, its things and its mission.
//!
//! Sizes, numbers of things and move limits are those of the BabyAI levels of the same names; the
//! worlds of a seed are our own.

use super::build::{Build, Reject, RoomAt};
use super::parts::{finished, lock_a_room, put_next_task};
use crate::draws::Draws;
use crate::env::babyai::grid::{Cell, Colour, Grid, Kind, Lock};
use crate::env::babyai::level::{LEVELS, Level};
use crate::env::babyai::mission::{Desc, Goal, Order, Side, Task};

/// Attempts at a world; far more than any level needs.
const ATTEMPTS_MAX: usize = 10_000;

/// The world of a level and a seed.
pub(crate) fn level(number: usize, draws: &mut Draws) -> Level {
    for _ in 0..ATTEMPTS_MAX {
        if let Ok(level) = attempt(number, draws) {
            return level;
        }
    }
    unreachable!("{} rejects every attempt", LEVELS[number])
}

/// The middle of three by three rooms.
const MIDDLE: RoomAt = (1, 1);

fn attempt(number: usize, draws: &mut Draws) -> Result<Level, Reject> {
    match number {
        0..=4 | 8 | 18 | 19 | 21 | 32 => one_room(number, draws),
        5 | 11 | 16 | 17 => maze(number, draws),
        6 | 23 => locked_room(number, draws),
        9 | 10 | 12 | 13 | 14 | 15 | 29 => doors(number, draws),
        20 | 24..=28 | 30 | 31 => keys(number, draws),
        22 | 33 => two_rooms(number, draws),
        _ => super::grammar::generated(number, draws),
    }
}

fn go_to(desc: Desc) -> Goal {
    Goal::One(Task::GoTo(desc))
}

fn pick_up(desc: Desc) -> Goal {
    Goal::One(Task::Pickup(desc, false))
}

fn open(desc: Desc) -> Goal {
    Goal::One(Task::Open(desc, false))
}

fn one_room(number: usize, draws: &mut Draws) -> Result<Level, Reject> {
    let size = match number {
        3 => 4,
        19 => 7,
        21 => 6,
        32 => 20,
        _ => 8,
    };
    let mut build = Build::new(draws, size, 1, 1);
    let room = (0, 0);
    build.place_agent(room)?;
    let goal = match number {
        0..=2 => {
            let ball = build.add(room, Kind::Ball, Colour::Red)?;
            let others = if number == 2 { 0 } else { 7 };
            for other in build.add_distractors(Some(room), others, false)? {
                if number == 0 {
                    build.grid.things[other].colour = Colour::Grey;
                }
            }
            go_to(build.named(ball))
        }
        3 | 4 => {
            let count = if number == 3 { 1 } else { 7 };
            let things = build.add_distractors(Some(room), count, false)?;
            let target = build.pick(&things);
            go_to(build.named(target))
        }
        8 => {
            let things = build.add_distractors(Some(room), 7, false)?;
            let is_wanted = |colour| matches!(colour, Colour::Red | Colour::Blue);
            for thing in things {
                let thing = &mut build.grid.things[thing];
                if thing.kind == Kind::Ball && is_wanted(thing.colour) {
                    thing.kind = Kind::Key;
                }
            }
            let colour = build.pick(&[Colour::Red, Colour::Blue]);
            let ball = build.add(room, Kind::Ball, colour)?;
            go_to(build.named(ball))
        }
        18 => {
            let things = build.add_distractors(Some(room), 8, false)?;
            let target = build.pick(&things);
            let side = build.pick(&Side::ALL);
            let thing = build.grid.things[target].clone();
            let colour = build.draws.percent(50).then_some(thing.colour);
            let desc = build.desc(Some(thing.kind), colour, Some(side));
            if desc.set.is_empty() {
                return Err(Reject);
            }
            pick_up(desc)
        }
        19 => {
            let things = build.add_distractors(Some(room), 5, true)?;
            let target = build.pick(&things);
            let thing = build.grid.things[target].clone();
            let (kind, colour) = match build.draws.below(3) {
                0 => (Some(thing.kind), None),
                1 => (None, Some(thing.colour)),
                _ => (Some(thing.kind), Some(thing.colour)),
            };
            Goal::One(Task::Pickup(build.desc(kind, colour, None), true))
        }
        21 => {
            let things = build.add_distractors(Some(room), 4, true)?;
            let goal = put_next(&mut build, &things, &things)?;
            build.require_reachable()?;
            return Ok(finished(build, goal, None));
        }
        _ => {
            let colour = build.colour();
            build.add(room, Kind::Ball, colour)?;
            pick_up(build.desc(Some(Kind::Ball), None, None))
        }
    };
    build.require_reachable()?;
    Ok(finished(build, goal, None))
}

/// One thing of each list; the two are not yet next to each other.
fn put_next(build: &mut Build<'_>, from: &[usize], to: &[usize]) -> Result<Goal, Reject> {
    let (moved, fixed) = (build.pick(from), build.pick(to));
    let (moved, fixed) = (build.named(moved), build.named(fixed));
    put_next_task(build, moved, fixed).map(Goal::One)
}

/// Three by three rooms, connected at random.
fn maze(number: usize, draws: &mut Draws) -> Result<Level, Reject> {
    let size = if number == 5 { 7 } else { 8 };
    let mut build = Build::new(draws, size, 3, 3);
    let start = build.any_room();
    build.place_agent(start)?;
    build.connect()?;
    let count = match number {
        5 => 1,
        17 => 20,
        _ => 18,
    };
    let things = build.add_distractors(None, count, false)?;
    let goal = match number {
        11 => {
            let doors = door_numbers(&build.grid);
            let door = build.pick(&doors);
            open(build.named(door))
        }
        5 => go_to(build.named(things[0])),
        _ => {
            let target = build.pick(&things);
            pick_up(build.named(target))
        }
    };
    // Level 17 is about moving things out of the way; in the others nothing may block the way.
    if build.grid.all_reachable() == (number == 17) {
        return Err(Reject);
    }
    Ok(finished(build, goal, None))
}

fn door_numbers(grid: &Grid) -> Vec<usize> {
    let is_door = |number: &usize| grid.things[*number].kind == Kind::Door;
    (0..grid.things.len()).filter(is_door).collect()
}

fn locked_room(number: usize, draws: &mut Draws) -> Result<Level, Reject> {
    let mut build = Build::new(draws, 8, 3, 3);
    let (locked, door) = lock_a_room(&mut build)?;
    let others: Vec<RoomAt> = build.rooms().into_iter().filter(|r| *r != locked).collect();
    let each = if number == 6 { 2 } else { 3 };
    for room in &others {
        build.add_distractors(Some(*room), each, false)?;
    }
    let start = build.pick(&others);
    build.place_agent(start)?;
    let goal = if number == 6 {
        let inside = build.add_distractors(Some(locked), 1, false)?[0];
        let desc = build.named(inside);
        if desc.set.len() > 1 {
            // The mission could be solved without unlocking anything.
            return Err(Reject);
        }
        go_to(desc)
    } else {
        let desc = build.named(door);
        if desc.set.len() > 1 {
            return Err(Reject);
        }
        open(desc)
    };
    build.require_reachable()?;
    Ok(finished(build, goal, None))
}

/// Doors around the room where the agent starts.
fn doors(number: usize, draws: &mut Draws) -> Result<Level, Reject> {
    if number == 12 {
        let mut build = Build::new(draws, 5, 2, 1);
        let door = build.add_door((0, 0), 0, Colour::Red, false)?;
        build.place_agent((0, 0))?;
        let goal = open(build.named(door));
        return Ok(finished(build, goal, None));
    }
    let size = match number {
        9 | 29 => 7,
        14 | 15 => 6,
        _ => 8,
    };
    let mut build = Build::new(draws, size, 3, 3);
    let limit = matches!(number, 14 | 15).then_some(20 * 36);
    let count = if number == 14 { 2 } else { 4 };
    let distinct = matches!(number, 13 | 15);
    let mut colours = [Colour::Red; 4];
    let drawn: [Colour; 4] = build.colours();
    for (at, colour) in colours.iter_mut().enumerate() {
        *colour = match number {
            14 => [Colour::Red, Colour::Blue][at % 2],
            _ if distinct => drawn[at],
            _ => build.colour(),
        };
    }
    let mut doors = Vec::new();
    for colour in colours.iter().take(count) {
        doors.push(build.add_any_door(MIDDLE, *colour, false)?);
    }
    build.place_agent(MIDDLE)?;
    let goal = match number {
        9 => {
            let door = build.pick(&doors);
            go_to(build.named(door))
        }
        10 | 29 => {
            let things =
                build.add_distractors(Some(MIDDLE), if number == 10 { 8 } else { 5 }, false)?;
            build.require_reachable()?;
            let all: Vec<usize> = things.iter().chain(&doors).copied().collect();
            let target = build.pick(&all);
            let desc = build.named(target);
            match (number, doors.contains(&target), build.draws.percent(50)) {
                (10, ..) | (_, _, true) => go_to(desc),
                (_, true, false) => open(desc),
                (_, false, false) => pick_up(desc),
            }
        }
        13 => {
            let door = build.pick(&doors);
            let by_side = build.draws.percent(50);
            let agent = (build.grid.agent, build.grid.facing);
            let at = build.grid.things[door].at.ok_or(Reject)?;
            let side = Side::ALL
                .into_iter()
                .find(|side| side.holds(agent.0, agent.1, at));
            match (by_side, side) {
                (true, Some(side)) => open(build.desc(Some(Kind::Door), None, Some(side))),
                _ => open(build.named(door)),
            }
        }
        14 => {
            let first = Goal::One(Task::Open(build.named(doors[0]), true));
            Goal::two(Order::Before, first, open(build.named(doors[1])))
        }
        _ => {
            build.draws.shuffle(&mut doors);
            let strict = |desc| Goal::One(Task::Open(desc, true));
            let (one, two) = (build.named(doors[0]), build.named(doors[1]));
            match build.draws.below(3) {
                0 => strict(one),
                1 => Goal::two(Order::Before, strict(one), strict(two)),
                _ => Goal::two(Order::After, strict(one), strict(two)),
            }
        }
    };
    Ok(finished(build, goal, limit))
}

/// Levels with keys, boxes and locked doors.
fn keys(number: usize, draws: &mut Draws) -> Result<Level, Reject> {
    let (size, columns, rows) = match number {
        20 | 31 => (6, 3, 3),
        24 | 25 => (8, 3, 3),
        26 | 27 => (6, 2, 1),
        28 => (6, 3, 1),
        _ => (7, 3, 3),
    };
    let mut build = Build::new(draws, size, columns, rows);
    let cells = (size * size) as u32;
    let (left, right) = ((0, 0), (1, 0));
    match number {
        20 => {
            // The thing is in the room above, behind a door.
            let colour = build.colour();
            build.add_door(MIDDLE, 3, colour, false)?;
            let thing = build.add_distractors(Some((1, 0)), 1, false)?[0];
            build.place_agent(MIDDLE)?;
            build.connect()?;
            let goal = pick_up(build.named(thing));
            build.require_reachable()?;
            Ok(finished(build, goal, Some(8 * cells)))
        }
        24 | 25 => {
            let colour = build.colour();
            build.add_any_door(MIDDLE, colour, true)?;
            let key = build.add(MIDDLE, Kind::Key, colour)?;
            if number == 24 {
                build.add_distractors(Some(MIDDLE), 3, false)?;
            } else {
                let at = build.grid.things[key].at.take().ok_or(Reject)?;
                let colour = build.colour();
                let chest = build.grid.add(Kind::Box, colour, Lock::Open, at);
                build.grid.things[chest].inside = Some(key);
            }
            build.place_agent(MIDDLE)?;
            build.require_reachable()?;
            let goal = open(build.desc(Some(Kind::Door), None, None));
            Ok(finished(build, goal, None))
        }
        26 | 27 => {
            let (box_colour, door_colour) = (build.colour(), build.colour());
            let chest = build.add(right, Kind::Box, box_colour)?;
            let door = build.add_door(left, 0, door_colour, true)?;
            if number == 27 {
                let (x, y) = build.grid.things[door].at.ok_or(Reject)?;
                let colour = build.colour();
                build.grid.add(Kind::Ball, colour, Lock::Open, (x - 1, y));
            }
            build.add(left, Kind::Key, door_colour)?;
            if number == 26 {
                build.add_distractors(None, 4, false)?;
            }
            build.place_agent(left)?;
            if number == 26 {
                build.require_reachable()?;
                let goal = pick_up(build.named(chest));
                return Ok(finished(build, goal, None));
            }
            let goal = pick_up(build.desc(Some(Kind::Box), None, None));
            Ok(finished(build, goal, Some(16 * cells)))
        }
        28 => {
            // The key to the left door is in the right room; the key to that room is within reach.
            let [a, b] = build.colours();
            build.add_door(left, 0, a, true)?;
            build.add((2, 0), Kind::Key, a)?;
            build.add_door(right, 0, b, true)?;
            build.add(right, Kind::Key, b)?;
            let colour = build.colour();
            build.add(left, Kind::Ball, colour)?;
            build.place_agent(right)?;
            let goal = pick_up(build.desc(Some(Kind::Ball), None, None));
            Ok(finished(build, goal, Some(30 * cells)))
        }
        30 => {
            let room = build.any_room();
            let thing = build.add_distractors(Some(room), 1, false)?[0];
            build.place_agent(MIDDLE)?;
            build.connect()?;
            let kind = build.grid.things[thing].kind;
            let goal = pick_up(build.desc(Some(kind), None, None));
            build.require_reachable()?;
            Ok(finished(build, goal, Some(20 * cells)))
        }
        _ => {
            // A corridor in the middle; a locked room on its right, the key on its left.
            for row in 1..rows {
                build.remove_wall((1, row), 3)?;
            }
            let room = (2, build.draws.below(rows));
            let colour = build.colour();
            build.add_door(room, 2, colour, true)?;
            build.locked = Some(room);
            let ball = build.colour();
            build.add(room, Kind::Ball, ball)?;
            let key_room = (0, build.draws.below(rows));
            build.add(key_room, Kind::Key, colour)?;
            build.place_agent((1, rows / 2))?;
            build.connect()?;
            build.require_reachable()?;
            let goal = pick_up(build.desc(Some(Kind::Ball), None, None));
            Ok(finished(build, goal, Some(30 * cells)))
        }
    }
}

/// Two rooms without a wall between them.
fn two_rooms(number: usize, draws: &mut Draws) -> Result<Level, Reject> {
    let (size, count) = if number == 22 { (7, 4) } else { (8, 9) };
    let mut build = Build::new(draws, size, 2, 1);
    let (left, right) = ((0, 0), (1, 0));
    let cells = (size * size) as u32;
    let start = build.any_room();
    build.place_agent(start)?;
    let in_left = build.add_distractors(Some(left), count, true)?;
    let in_right = build.add_distractors(Some(right), count, true)?;
    build.remove_wall(left, 0)?;
    build.require_reachable()?;
    if number == 33 {
        let across = put_next(&mut build, &in_left, &in_right)?;
        let back = put_next(&mut build, &in_right, &in_left)?;
        // No thing may be both moved and a fixed target.
        let things: Vec<usize> = [&across, &back]
            .iter()
            .flat_map(|goal| goal.tasks())
            .flat_map(|task| match task {
                Task::PutNext(moved, fixed) => [moved.set[0], fixed.set[0]],
                _ => [0, 0],
            })
            .collect();
        if (1..4).any(|at| things[..at].contains(&things[at])) {
            return Err(Reject);
        }
        let goal = Goal::two(Order::Before, across, back);
        return Ok(finished(build, goal, Some(16 * cells)));
    }
    let (from, to) = match build.draws.percent(50) {
        true => (&in_left, &in_right),
        false => (&in_right, &in_left),
    };
    let goal = put_next(&mut build, from, to)?;
    if let Goal::One(Task::PutNext(moved, _)) = &goal {
        let moved = moved.set[0];
        let at = build.grid.things[moved].at.take().ok_or(Reject)?;
        build.grid.set(at, Cell::Empty);
        build.grid.carrying = Some(moved);
    }
    Ok(finished(build, goal, Some(8 * cells)))
}
