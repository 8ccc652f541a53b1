//! What several kinds of levels share.

use super::build::{Build, Reject, RoomAt};
use crate::env::babyai::grid::Kind;
use crate::env::babyai::level::Level;
use crate::env::babyai::mission::{Desc, Goal, Task, next};

/// The default limit is the number of cells of all rooms, times the trips of the goal.
pub(super) fn finished(build: Build<'_>, goal: Goal, moves_max: Option<u32>) -> Level {
    let rooms = (build.columns * build.rows) as u32;
    let each = (build.room_size * build.room_size) as u32 * rooms;
    let moves_max = moves_max.unwrap_or(each * goal.trips());
    Level {
        grid: build.grid,
        goal,
        moves_max,
    }
}

pub(super) fn put_next_task(build: &Build<'_>, moved: Desc, fixed: Desc) -> Result<Task, Reject> {
    let overlap = moved.set.iter().any(|thing| fixed.set.contains(thing));
    let done = |moved: &usize| {
        fixed
            .set
            .iter()
            .any(|fixed| next(&build.grid, *moved, *fixed))
    };
    if overlap || moved.set.iter().any(done) {
        return Err(Reject);
    }
    Ok(Task::PutNext(moved, fixed))
}

/// Locks a random room, connects all rooms and puts the key in another room.
pub(super) fn lock_a_room(build: &mut Build<'_>) -> Result<(RoomAt, usize), Reject> {
    let room = build.any_room();
    let colour = build.colour();
    let door = build.add_any_door(room, colour, true)?;
    build.locked = Some(room);
    build.connect()?;
    let others: Vec<RoomAt> = build.rooms().into_iter().filter(|r| *r != room).collect();
    let place = build.pick(&others);
    build.add(place, Kind::Key, colour)?;
    Ok((room, door))
}
