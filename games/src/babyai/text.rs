//! The observation: the view in words, and the currently sensible actions.

use std::collections::BTreeMap;

use super::grid::{Cell, Grid, Kind, Lock, Primitive, Seen};

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

/// The things in view, nearest first and of two equally near the one more straight ahead, numbered
/// among those of the same name.
pub(crate) fn things_in_view(grid: &Grid) -> Vec<Named> {
    let mut seen = grid.view();
    seen.sort_by_key(|seen| (seen.distance(), seen.right.abs()));
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

/// The view in words. Walls are named even if none is in view.
pub(crate) fn describe(grid: &Grid) -> String {
    let view = grid.view();
    let mut text = String::new();
    if view.is_empty() {
        text.push_str("You cannot see any objects within sight.");
    } else {
        text.push_str("In front of you in this room, you can see several objects: ");
    }
    for named in things_in_view(grid) {
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
    text.push_str("The room has walls around you. ");
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
pub(crate) fn actions(grid: &Grid) -> Vec<(String, Action)> {
    let named = things_in_view(grid);
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
    for named in named.iter().filter(|named| kind(named) == Kind::Door) {
        let (name, thing) = (&named.name, named.thing);
        actions.push(match grid.things[thing].lock {
            Lock::Open => (format!("go through {name}"), Action::GoThrough(thing)),
            _ => (
                format!("toggle and go through {name}"),
                Action::ToggleThrough(thing),
            ),
        });
        if ahead == Some(thing) && grid.opens(thing) {
            actions.push(("toggle".to_owned(), Action::Primitive(Primitive::Toggle)));
        }
    }
    for named in &named {
        actions.push((format!("go to {}", named.name), Action::GoTo(named.thing)));
    }
    actions.push((CHECK.to_owned(), Action::Check));
    actions
}
