//! The observation: the view in words, and the currently sensible actions.

use std::collections::{BTreeMap, VecDeque};

use super::grid::{Cell, Grid, Kind, Lock, Pos, Primitive, Seen, beside};

pub(crate) const CHECK: &str = "check available actions";

/// A thing in view with its name in this turn.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Named {
    pub(crate) thing: usize,
    /// With a number that distinguishes things of the same name.
    pub(crate) name: String,
    pub(crate) seen: Seen,
}

fn plain_name(grid: &Grid, thing: usize) -> String {
    let thing = &grid.things[thing];
    let lock = match (thing.kind, thing.lock) {
        (Kind::Door, Lock::Open) => "open ",
        (Kind::Door, Lock::Closed) => "closed ",
        (Kind::Door, Lock::Locked) => "locked ",
        _ => "",
    };
    format!("{} {lock}{}", thing.colour.name(), thing.kind.name())
}

/// How the things in view are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Telling {
    /// Of two equally near, the one more straight ahead comes first; walls are named even if none
    /// is in view.
    AgentGym,
    /// Of two equally near, the one more to the left comes first.
    Before,
}

/// The things in view, nearest first, numbered among those of the same name.
pub(crate) fn things_in_view(grid: &Grid, telling: Telling) -> Vec<Named> {
    let mut seen = grid.view();
    match telling {
        Telling::AgentGym => seen.sort_by_key(|seen| (seen.distance(), seen.right.abs())),
        Telling::Before => seen.sort_by_key(Seen::distance),
    }
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    seen.into_iter()
        .filter_map(|seen| {
            let Cell::Thing(thing) = seen.cell else {
                return None;
            };
            let name = plain_name(grid, thing);
            let count = counts.entry(name.clone()).or_default();
            *count += 1;
            let name = format!("{name} {count}");
            Some(Named { thing, name, seen })
        })
        .collect()
}

/// The view in words.
pub(crate) fn describe(grid: &Grid, telling: Telling) -> String {
    let view = grid.view();
    let mut text = String::new();
    if view.is_empty() {
        text.push_str("You cannot see any objects within sight.");
    } else {
        text.push_str("In front of you in this room, you can see several objects: ");
    }
    for named in things_in_view(grid, telling) {
        let Seen { ahead, right, .. } = named.seen;
        let place = match right {
            0 => format!("right in front of you {ahead} steps away"),
            _ => {
                let side = if right > 0 { "right" } else { "left" };
                let aside = right.unsigned_abs();
                format!("{ahead} steps in front of you and {aside} steps to your {side}")
            }
        };
        text.push_str(&format!("There is a {} {place}.  ", named.name));
    }
    let walls = telling == Telling::AgentGym;
    if walls || view.iter().any(|seen| seen.cell == Cell::Wall) {
        text.push_str("The room has walls around you. ");
    }
    let straight = view.iter().filter(|seen| seen.right == 0);
    let facing = straight
        .filter_map(|seen| match seen.cell {
            Cell::Wall => Some((seen.ahead, "wall")),
            Cell::Thing(thing) if grid.things[thing].kind == Kind::Box => Some((seen.ahead, "box")),
            _ => None,
        })
        .min();
    if let Some((ahead, what)) = facing {
        text.push_str(&format!("You are facing a {what} {ahead} steps away. "));
    }
    match grid.carrying {
        None => text.push_str("You are not carrying anything."),
        Some(thing) => {
            text.push_str(&format!("You are carrying a {}.", plain_name(grid, thing)));
        }
    }
    text
}

/// The meaning of an action's text.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    Primitive(Primitive),
    /// Go in front of a thing and pick it up.
    Pickup(usize),
    /// Go in front of a thing.
    GoTo(usize),
    /// Go through an open door.
    GoThrough(usize),
    /// Open a door and go through it.
    ToggleThrough(usize),
    Check,
}

/// The actions that have a name now, with their texts, whether or not they can be carried out.
/// `more`: also open boxes and close doors.
pub(crate) fn actions(grid: &Grid, more: bool, telling: Telling) -> Vec<(String, Action)> {
    let named = things_in_view(grid, telling);
    let kind = |named: &Named| grid.things[named.thing].kind;
    let mut actions = vec![
        ("turn left".to_owned(), Action::Primitive(Primitive::Left)),
        ("turn right".to_owned(), Action::Primitive(Primitive::Right)),
    ];
    let front = grid.front();
    let ahead = grid.thing_at(front);
    let is_box = ahead.is_some_and(|thing| grid.things[thing].kind == Kind::Box);
    if grid.cell(front) != Cell::Wall && !is_box {
        actions.push((
            "move forward".to_owned(),
            Action::Primitive(Primitive::Forward),
        ));
    }
    if grid.carrying.is_none() {
        for named in named.iter().filter(|named| kind(named) != Kind::Door) {
            actions.push((
                format!("pickup {}", named.name),
                Action::Pickup(named.thing),
            ));
        }
    } else {
        actions.push(("drop".to_owned(), Action::Primitive(Primitive::Drop)));
    }
    let is_door = |thing: usize| grid.things[thing].kind == Kind::Door;
    let is_open = |thing: usize| is_door(thing) && grid.things[thing].lock == Lock::Open;
    let toggles = |thing| is_door(thing) && grid.opens(thing) || more && (is_box || is_open(thing));
    let toggle = ("toggle".to_owned(), Action::Primitive(Primitive::Toggle));
    if telling == Telling::Before && ahead.is_some_and(toggles) {
        actions.push(toggle.clone());
    }
    for named in named.iter().filter(|named| kind(named) == Kind::Door) {
        let (name, thing) = (&named.name, named.thing);
        actions.push(match grid.things[thing].lock {
            Lock::Open => (format!("go through {name}"), Action::GoThrough(thing)),
            _ => (
                format!("toggle and go through {name}"),
                Action::ToggleThrough(thing),
            ),
        });
        if telling == Telling::AgentGym && ahead == Some(thing) && toggles(thing) {
            actions.push(toggle.clone());
        }
    }
    for named in &named {
        actions.push((format!("go to {}", named.name), Action::GoTo(named.thing)));
    }
    actions.push((CHECK.to_owned(), Action::Check));
    actions
}

/// The fewest moves that bring the agent in front of a cell, facing it, by breadth-first search
/// over cells and directions. `None` if there is no way.
pub(crate) fn way_to(grid: &Grid, target: Pos) -> Option<Vec<Primitive>> {
    let start = (grid.agent, grid.facing);
    let mut before = BTreeMap::from([(start, None)]);
    let mut open = VecDeque::from([start]);
    while let Some(state @ (at, facing)) = open.pop_front() {
        let front = beside(at, facing);
        if front == Some(target) {
            let mut way = Vec::new();
            let mut state = state;
            while let Some(Some((earlier, primitive))) = before.get(&state) {
                way.push(*primitive);
                state = *earlier;
            }
            way.reverse();
            return Some(way);
        }
        let forward = front.filter(|front| grid.passable(*front));
        let next = [
            Some((at, (facing + 3) % 4)).zip(Some(Primitive::Left)),
            Some((at, (facing + 1) % 4)).zip(Some(Primitive::Right)),
            forward.map(|to| ((to, facing), Primitive::Forward)),
        ];
        for (to, primitive) in next.into_iter().flatten() {
            before.entry(to).or_insert_with(|| {
                open.push_back(to);
                Some((state, primitive))
            });
        }
    }
    None
}
