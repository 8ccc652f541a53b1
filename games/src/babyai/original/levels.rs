//! The forty levels as MiniGrid 2.3.1 makes them: sizes, things, missions, and the order of draws.

use super::grammar::{self, Grammar};
use super::numpy::Numpy;
use super::rooms::{COLOURS, Retry, RoomAt, Rooms};
use crate::babyai::grid::{Colour, Kind, Lock};
use crate::babyai::level::Level;
use crate::babyai::mission::{Desc, Goal, Order, Side, Task};

/// Rooms of a level: their side with the walls, columns, rows.
type Layout = (usize, usize, usize);

/// The middle of three by three rooms.
const MIDDLE: RoomAt = (1, 1);

fn layout(number: usize) -> Layout {
    match number {
        3 => (4, 1, 1),
        0..=4 | 8 | 18 => (8, 1, 1),
        19 => (7, 1, 1),
        21 => (6, 1, 1),
        32 => (20, 1, 1),
        12 => (5, 2, 1),
        22 => (7, 2, 1),
        33 => (8, 2, 1),
        26 | 27 => (6, 2, 1),
        28 => (6, 3, 1),
        7 | 37 => (5, 2, 2),
        34 => (5, 3, 2),
        5 | 9 | 29 | 30 => (7, 3, 3),
        14 | 15 | 20 | 31 => (6, 3, 3),
        _ => (8, 3, 3),
    }
}

/// The limit of moves as a multiple of a room's cells, where it does not depend on the mission.
fn fixed_limit(number: usize) -> Option<usize> {
    match number {
        14 | 15 | 30 => Some(20),
        20 | 22 => Some(8),
        27 | 33 => Some(16),
        28 | 31 => Some(30),
        _ => None,
    }
}

/// The world of a level. In `carrying` the thing lies on the grid still, as the first picture shows
/// it.
pub(super) fn level(number: usize, random: &mut Numpy) -> Level {
    let (size, columns, rows) = layout(number);
    let each = size * size;
    // The original forgets to forget the locked room of a rejected attempt.
    let mut locked = None;
    loop {
        let mut rooms = Rooms::new(random, size, columns, rows);
        let Ok(goal) = mission(number, &mut rooms, &mut locked) else {
            continue;
        };
        if !grammar::is_allowed(&mut rooms, &goal, grammar::unblocks(number)) {
            continue;
        }
        let mut grid = rooms.grid;
        if let (22, Goal::One(Task::PutNext(moved, _))) = (number, &goal) {
            // Things in these rooms are all different, so this is the one.
            grid.carrying = Some(moved.set[0]);
        }
        let moves_max = match fixed_limit(number) {
            Some(times) => (times * each) as u32,
            None => (each * columns * rows) as u32 * goal.trips(),
        };
        return Level {
            grid,
            goal,
            moves_max,
        };
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

fn mission(
    number: usize,
    rooms: &mut Rooms<'_>,
    locked: &mut Option<RoomAt>,
) -> Result<Goal, Retry> {
    match number {
        0..=4 | 8 | 19 | 21 | 32 => one_room(number, rooms),
        5 | 11 | 16 | 17 => maze(number, rooms),
        6 | 23 => locked_room(number, rooms),
        9 | 10 | 29 => middle_room(number, rooms),
        12..=15 => doors(number, rooms),
        20 | 24 | 25 | 30 | 31 => far_things(number, rooms),
        26..=28 => row_of_rooms(number, rooms),
        22 | 33 => two_rooms(number, rooms),
        _ => Grammar::of(number).mission(rooms, locked),
    }
}

fn one_room(number: usize, rooms: &mut Rooms<'_>) -> Result<Goal, Retry> {
    let room = (0, 0);
    match number {
        0..=2 => {
            rooms.place_agent_anywhere()?;
            let ball = rooms.add(room, Kind::Ball, Colour::Red)?;
            let others = if number == 2 { 0 } else { 7 };
            for other in rooms.add_things(None, others, false)? {
                if number == 0 {
                    rooms.grid.things[other].colour = Colour::Grey;
                }
            }
            rooms.require_reachable()?;
            Ok(go_to(rooms.like(ball)))
        }
        3 => {
            rooms.place_agent_anywhere()?;
            let things = rooms.add_things(None, 1, true)?;
            Ok(go_to(rooms.like(things[0])))
        }
        4 => {
            rooms.place_agent_anywhere()?;
            let things = rooms.add_things(None, 7, false)?;
            rooms.require_reachable()?;
            let target = rooms.random.pick(&things);
            Ok(go_to(rooms.like(target)))
        }
        8 => {
            rooms.place_agent_anywhere()?;
            let balls = [Colour::Red, Colour::Blue];
            for thing in rooms.add_things(None, 7, false)? {
                let thing = &rooms.grid.things[thing];
                if thing.kind == Kind::Ball && balls.contains(&thing.colour) {
                    return Err(Retry);
                }
            }
            let colour = rooms.random.pick(&balls);
            let ball = rooms.add(room, Kind::Ball, colour)?;
            rooms.require_reachable()?;
            Ok(go_to(rooms.like(ball)))
        }
        19 => {
            let things = rooms.add_things(None, 5, true)?;
            rooms.place_agent(room)?;
            let target = rooms.random.pick(&things);
            let thing = &rooms.grid.things[target];
            let (kind, colour) = (Some(thing.kind), Some(thing.colour));
            let (kind, colour) = match rooms.random.between(0, 3) {
                0 => (kind, None),
                1 => (None, colour),
                _ => (kind, colour),
            };
            Ok(Goal::One(Task::Pickup(
                rooms.desc(kind, colour, None),
                true,
            )))
        }
        21 => {
            rooms.place_agent_anywhere()?;
            let things = rooms.add_things(None, 4, true)?;
            rooms.require_reachable()?;
            let two = rooms.random.subset(&things, 2);
            Ok(Goal::One(put_next(rooms, two[0], two[1])))
        }
        _ => {
            rooms.add_any_colour(room, Kind::Ball)?;
            rooms.place_agent_anywhere()?;
            Ok(pick_up(rooms.desc(Some(Kind::Ball), None, None)))
        }
    }
}

fn put_next(rooms: &Rooms<'_>, moved: usize, fixed: usize) -> Task {
    Task::PutNext(rooms.like(moved), rooms.like(fixed))
}

/// Three by three rooms, connected at random.
fn maze(number: usize, rooms: &mut Rooms<'_>) -> Result<Goal, Retry> {
    rooms.place_agent_anywhere()?;
    rooms.connect_all(&COLOURS)?;
    let count = match number {
        5 => 1,
        17 => 20,
        _ => 18,
    };
    let things = rooms.add_things(None, count, false)?;
    // Level 17 is about moving things out of the way; in the others nothing may block the way.
    if rooms.grid.all_reachable() == (number == 17) {
        return Err(Retry);
    }
    if number == 11 {
        let doors = rooms.doors();
        let door = rooms.random.pick(&doors);
        return Ok(open(rooms.like(door)));
    }
    let target = rooms.random.pick(&things);
    Ok(match number {
        5 => go_to(rooms.like(target)),
        _ => pick_up(rooms.like(target)),
    })
}

fn locked_room(number: usize, rooms: &mut Rooms<'_>) -> Result<Goal, Retry> {
    let locked = rooms.any_room();
    let door = rooms.add_door(locked, None, None, Some(true));
    let colour = rooms.grid.things[door].colour;
    // The key may be in the locked room: the original compares numbers by identity, and no two are
    // ever the same.
    let with_key = rooms.any_room();
    rooms.add(with_key, Kind::Key, colour)?;
    if number == 23 && rooms.random.coin() {
        let others: Vec<Colour> = COLOURS.into_iter().filter(|c| *c != colour).collect();
        rooms.connect_all(&others)?;
    } else {
        rooms.connect_all(&COLOURS)?;
    }
    // For the same reason, the locked room gets things like the others.
    let each = if number == 6 { 2 } else { 3 };
    for room in rooms.by_column() {
        rooms.add_things(Some(room), each, false)?;
    }
    place_outside(rooms, Some(locked))?;
    rooms.require_reachable()?;
    if number == 23 {
        return Ok(open(rooms.like(door)));
    }
    let target = rooms.add_things(Some(locked), 1, false)?[0];
    Ok(go_to(rooms.like(target)))
}

/// Places the agent in any room but this one.
pub(super) fn place_outside(rooms: &mut Rooms<'_>, room: Option<RoomAt>) -> Result<(), Retry> {
    loop {
        rooms.place_agent_anywhere()?;
        if Some(rooms.agents_room()) != room {
            return Ok(());
        }
    }
}

/// Things and doors of the middle room.
fn middle_room(number: usize, rooms: &mut Rooms<'_>) -> Result<Goal, Retry> {
    let mut things = Vec::new();
    if number == 10 {
        rooms.place_agent(MIDDLE)?;
        things = rooms.add_things(Some(MIDDLE), 8, false)?;
    }
    if number == 29 {
        things = rooms.add_things(Some(MIDDLE), 5, true)?;
    }
    for _ in 0..4 {
        let locked = (number == 29).then_some(false);
        things.push(rooms.add_door(MIDDLE, None, None, locked));
    }
    if number == 10 {
        rooms.require_reachable()?;
    } else {
        rooms.place_agent(MIDDLE)?;
    }
    let target = rooms.random.pick(&things);
    let desc = rooms.like(target);
    if number != 29 || rooms.random.coin() {
        return Ok(go_to(desc));
    }
    Ok(match desc.kind {
        Some(Kind::Door) => open(desc),
        _ => pick_up(desc),
    })
}

/// Doors to be opened, in some levels in an order.
fn doors(number: usize, rooms: &mut Rooms<'_>) -> Result<Goal, Retry> {
    let unlocked = Some(false);
    let strict = |desc| Goal::One(Task::Open(desc, true));
    match number {
        12 => {
            let door = rooms.add_door((0, 0), Some(0), Some(Colour::Red), unlocked);
            rooms.place_agent((0, 0))?;
            Ok(open(rooms.like(door)))
        }
        13 => {
            for (side, colour) in rooms.random.subset(&COLOURS, 4).into_iter().enumerate() {
                rooms.add_door(MIDDLE, Some(side), Some(colour), unlocked);
            }
            let side = rooms.random.pick(&Side::ALL);
            rooms.place_agent(MIDDLE)?;
            Ok(open(rooms.desc(Some(Kind::Door), None, Some(side))))
        }
        14 => {
            // Two colours are drawn and not used.
            rooms.random.subset(&COLOURS, 2);
            let first = rooms.add_door(MIDDLE, Some(2), Some(Colour::Red), unlocked);
            let second = rooms.add_door(MIDDLE, Some(0), Some(Colour::Blue), unlocked);
            rooms.place_agent(MIDDLE)?;
            let (first, second) = (strict(rooms.like(first)), open(rooms.like(second)));
            Ok(Goal::two(Order::Before, first, second))
        }
        _ => {
            let mut added = Vec::new();
            for colour in rooms.random.subset(&COLOURS, 4) {
                added.push(rooms.add_door(MIDDLE, None, Some(colour), unlocked));
            }
            rooms.place_agent(MIDDLE)?;
            let two = rooms.random.subset(&added, 2);
            let [first, second] = [two[0], two[1]].map(|door| strict(rooms.like(door)));
            Ok(match rooms.random.between(0, 3) {
                0 => first,
                1 => Goal::two(Order::Before, first, second),
                _ => Goal::two(Order::After, first, second),
            })
        }
    }
}

/// Three by three rooms with a thing that has to be found, or a door whose key has to be.
fn far_things(number: usize, rooms: &mut Rooms<'_>) -> Result<Goal, Retry> {
    let of_kind = |rooms: &Rooms<'_>, kind| rooms.desc(Some(kind), None, None);
    match number {
        20 => {
            let thing = rooms.add_any((1, 0))?;
            rooms.add_door(MIDDLE, Some(3), None, Some(false));
            rooms.place_agent(MIDDLE)?;
            rooms.connect_all(&COLOURS)?;
            Ok(pick_up(rooms.like(thing)))
        }
        24 | 25 => {
            let door = rooms.add_door(MIDDLE, None, None, Some(true));
            let colour = rooms.grid.things[door].colour;
            if number == 24 {
                rooms.add(MIDDLE, Kind::Key, colour)?;
                rooms.add_things(Some(MIDDLE), 3, true)?;
            } else {
                let chest = rooms.add_any_colour(MIDDLE, Kind::Box)?;
                rooms.grid.put_inside(chest, Kind::Key, colour);
            }
            rooms.place_agent(MIDDLE)?;
            Ok(open(of_kind(rooms, Kind::Door)))
        }
        30 => {
            let room = rooms.any_room();
            let thing = rooms.add_any(room)?;
            rooms.place_agent(MIDDLE)?;
            rooms.connect_all(&COLOURS)?;
            let kind = rooms.grid.things[thing].kind;
            Ok(pick_up(of_kind(rooms, kind)))
        }
        _ => {
            // A corridor in the middle; a locked room on its right, the key on its left.
            for row in 1..rooms.rows {
                rooms.remove_wall((1, row), 3);
            }
            let room = (2, rooms.random.between(0, rooms.rows));
            let door = rooms.add_door(room, Some(2), None, Some(true));
            rooms.add_any_colour(room, Kind::Ball)?;
            let with_key = (0, rooms.random.between(0, rooms.rows));
            let colour = rooms.grid.things[door].colour;
            rooms.add(with_key, Kind::Key, colour)?;
            rooms.place_agent((1, rooms.rows / 2))?;
            rooms.connect_all(&COLOURS)?;
            Ok(pick_up(of_kind(rooms, Kind::Ball)))
        }
    }
}

/// Rooms in a row with locked doors between them.
fn row_of_rooms(number: usize, rooms: &mut Rooms<'_>) -> Result<Goal, Retry> {
    let (left, middle, right) = ((0, 0), (1, 0), (2, 0));
    let locked = Some(true);
    if number == 28 {
        // The key to the left door is in the right room, and that room's key is within reach.
        let colours = rooms.random.subset(&COLOURS, 2);
        rooms.add_door(left, Some(0), Some(colours[0]), locked);
        rooms.add(right, Kind::Key, colours[0])?;
        rooms.add_door(middle, Some(0), Some(colours[1]), locked);
        rooms.add(middle, Kind::Key, colours[1])?;
        rooms.add_any_colour(left, Kind::Ball)?;
        rooms.place_agent(middle)?;
        return Ok(pick_up(rooms.desc(Some(Kind::Ball), None, None)));
    }
    let chest = rooms.add_any_colour(middle, Kind::Box)?;
    let door = rooms.add_door(left, Some(0), None, locked);
    let door_colour = rooms.grid.things[door].colour;
    if number == 27 {
        let colour = rooms.colour();
        let (x, y) = rooms.grid.things[door].at.expect("doors stay");
        rooms.grid.add(Kind::Ball, colour, Lock::Open, (x - 1, y));
    }
    rooms.add(left, Kind::Key, door_colour)?;
    if number == 26 {
        rooms.add_things(None, 4, true)?;
    }
    rooms.place_agent(left)?;
    Ok(pick_up(match number {
        26 => rooms.like(chest),
        _ => rooms.desc(Some(Kind::Box), None, None),
    }))
}

/// Two rooms without a wall between them.
fn two_rooms(number: usize, rooms: &mut Rooms<'_>) -> Result<Goal, Retry> {
    let (left, right) = ((0, 0), (1, 0));
    let count = if number == 22 { 4 } else { 9 };
    rooms.place_agent(left)?;
    let in_left = rooms.add_things(Some(left), count, true)?;
    let in_right = rooms.add_things(Some(right), count, true)?;
    rooms.remove_wall(left, 0);
    if number == 22 {
        let (one, other) = (rooms.random.pick(&in_left), rooms.random.pick(&in_right));
        return Ok(Goal::One(match rooms.random.coin() {
            true => put_next(rooms, other, one),
            false => put_next(rooms, one, other),
        }));
    }
    let in_left = rooms.random.subset(&in_left, 2);
    let in_right = rooms.random.subset(&in_right, 2);
    let across = Goal::One(put_next(rooms, in_left[0], in_right[0]));
    let back = Goal::One(put_next(rooms, in_right[1], in_left[1]));
    Ok(Goal::two(Order::Before, across, back))
}
