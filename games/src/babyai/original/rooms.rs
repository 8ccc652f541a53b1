//! Rooms in a grid, as MiniGrid 2.3.1 makes them: the same draws in the same order.
//!
//! What cannot be placed makes the whole attempt begin anew; the next attempt continues in the
//! stream of draws.

use super::numpy::Numpy;
use crate::babyai::grid::{Cell, Colour, Grid, Kind, Lock, Pos, beside};
use crate::babyai::mission::{Desc, Side};

/// Colours in MiniGrid's order of drawing, which is that of their names.
pub(super) const COLOURS: [Colour; 6] = [
    Colour::Blue,
    Colour::Green,
    Colour::Grey,
    Colour::Purple,
    Colour::Red,
    Colour::Yellow,
];

/// What can be picked up, in the order of drawing.
const PORTABLE: [Kind; 3] = [Kind::Key, Kind::Ball, Kind::Box];

/// A place in a room is given up after this many failures.
const PLACES_MAX: usize = 1000;

/// Connecting all rooms is given up after this many tries.
const DOORS_MAX: usize = 5000;

/// Column and row of a room.
pub(super) type RoomAt = (usize, usize);

/// The attempt begins anew.
#[derive(Debug)]
pub(super) struct Retry;

#[derive(Clone, Copy, PartialEq)]
enum Way {
    Closed,
    Door(usize),
    NoWall,
}

struct Room {
    /// To the right, down, to the left, up, as all lists by side.
    ways: [Way; 4],
    /// Where a door on this side is; `None` where there is no neighbour.
    door_at: [Option<Pos>; 4],
    /// The latest door that was added from this room is locked.
    locked: bool,
}

/// A world under construction.
pub(super) struct Rooms<'a> {
    pub(super) random: &'a mut Numpy,
    pub(super) grid: Grid,
    size: usize,
    pub(super) columns: usize,
    pub(super) rows: usize,
    rooms: Vec<Room>,
    /// The things that were placed in rooms.
    placed: Vec<usize>,
}

impl<'a> Rooms<'a> {
    pub(super) fn new(random: &'a mut Numpy, size: usize, columns: usize, rows: usize) -> Self {
        let step = size - 1;
        let mut grid = Grid::new(step * columns + 1, step * rows + 1);
        for x in 0..grid.width {
            for y in 0..grid.height {
                if x % step == 0 || y % step == 0 {
                    grid.set((x, y), Cell::Wall);
                }
            }
        }
        let mut rooms: Vec<Room> = Vec::new();
        for row in 0..rows {
            for column in 0..columns {
                let (left, top) = (column * step, row * step);
                let right = (column + 1 < columns)
                    .then(|| (left + step, random.between(top + 1, top + step)));
                let down =
                    (row + 1 < rows).then(|| (random.between(left + 1, left + step), top + step));
                let earlier = |there: bool, back: usize, side: usize| {
                    let at = rooms.len().checked_sub(back).filter(|_| there)?;
                    rooms[at].door_at[side]
                };
                let door_at = [
                    right,
                    down,
                    earlier(column > 0, 1, 0),
                    earlier(row > 0, columns, 1),
                ];
                rooms.push(Room {
                    ways: [Way::Closed; 4],
                    door_at,
                    locked: false,
                });
            }
        }
        // Until it is placed, the agent counts as in the middle.
        grid.agent = (columns / 2 * step + size / 2, rows / 2 * step + size / 2);
        Self {
            random,
            grid,
            size,
            columns,
            rows,
            rooms,
            placed: Vec::new(),
        }
    }

    pub(super) fn colour(&mut self) -> Colour {
        self.random.pick(&COLOURS)
    }

    pub(super) fn any_room(&mut self) -> RoomAt {
        let column = self.random.between(0, self.columns);
        (column, self.random.between(0, self.rows))
    }

    /// All rooms, column by column.
    pub(super) fn by_column(&self) -> Vec<RoomAt> {
        let rows = self.rows;
        (0..self.columns)
            .flat_map(|column| (0..rows).map(move |row| (column, row)))
            .collect()
    }

    fn room(&mut self, (column, row): RoomAt) -> &mut Room {
        &mut self.rooms[row * self.columns + column]
    }

    fn room_of(&self, (x, y): Pos) -> RoomAt {
        (x / (self.size - 1), y / (self.size - 1))
    }

    pub(super) fn agents_room(&self) -> RoomAt {
        self.room_of(self.grid.agent)
    }

    /// Whether a cell belongs to a room or its walls.
    pub(super) fn holds(&self, (column, row): RoomAt, (x, y): Pos) -> bool {
        let step = self.size - 1;
        (column * step..=column * step + step).contains(&x)
            && (row * step..=row * step + step).contains(&y)
    }

    pub(super) fn has_neighbour(&mut self, room: RoomAt, side: usize) -> bool {
        self.room(room).door_at[side].is_some()
    }

    fn neighbour(&self, room: RoomAt, side: usize) -> RoomAt {
        beside(room, side).expect("a room with a place for a door has a neighbour")
    }

    /// A free cell of a room, walls included in the draw. `far`: not next to the agent.
    fn place(&mut self, (column, row): RoomAt, agent: Option<Pos>) -> Result<Pos, Retry> {
        let step = self.size - 1;
        for _ in 0..=PLACES_MAX {
            let x = self
                .random
                .between(column * step, column * step + self.size);
            let y = self.random.between(row * step, row * step + self.size);
            let near = agent.is_some_and(|(ax, ay)| ax.abs_diff(x) + ay.abs_diff(y) < 2);
            if self.grid.cell((x, y)) == Cell::Empty && !near {
                return Ok((x, y));
            }
        }
        Err(Retry)
    }

    /// Adds a thing in a room.
    pub(super) fn add(&mut self, room: RoomAt, kind: Kind, colour: Colour) -> Result<usize, Retry> {
        let at = self.place(room, Some(self.grid.agent))?;
        let thing = self.grid.add(kind, colour, Lock::Open, at);
        self.placed.push(thing);
        Ok(thing)
    }

    /// Adds a thing of a random colour.
    pub(super) fn add_any_colour(&mut self, room: RoomAt, kind: Kind) -> Result<usize, Retry> {
        let colour = self.colour();
        self.add(room, kind, colour)
    }

    /// Adds a random thing.
    pub(super) fn add_any(&mut self, room: RoomAt) -> Result<usize, Retry> {
        let kind = self.random.pick(&PORTABLE);
        self.add_any_colour(room, kind)
    }

    /// Adds random things, in a room or anywhere. `unique`: no two alike.
    pub(super) fn add_things(
        &mut self,
        room: Option<RoomAt>,
        count: usize,
        unique: bool,
    ) -> Result<Vec<usize>, Retry> {
        let mut added = Vec::new();
        while added.len() < count {
            let colour = self.colour();
            let kind = self.random.pick(&PORTABLE);
            let alike = |thing: &usize| {
                let thing = &self.grid.things[*thing];
                (thing.kind, thing.colour) == (kind, colour)
            };
            if unique && self.placed.iter().any(alike) {
                continue;
            }
            let room = match room {
                Some(room) => room,
                None => self.any_room(),
            };
            added.push(self.add(room, kind, colour)?);
        }
        Ok(added)
    }

    /// Adds a door. What is not given is drawn: the side, the colour, whether it is locked.
    pub(super) fn add_door(
        &mut self,
        room: RoomAt,
        side: Option<usize>,
        colour: Option<Colour>,
        locked: Option<bool>,
    ) -> usize {
        let side = side.unwrap_or_else(|| {
            loop {
                let side = self.random.between(0, 4);
                if self.has_neighbour(room, side) && self.room(room).ways[side] == Way::Closed {
                    break side;
                }
            }
        });
        let colour = colour.unwrap_or_else(|| self.colour());
        let locked = locked.unwrap_or_else(|| self.random.coin());
        let at = self.room(room).door_at[side].expect("doors lead to neighbours");
        let lock = if locked { Lock::Locked } else { Lock::Closed };
        let door = self.grid.add(Kind::Door, colour, lock, at);
        self.room(room).locked = locked;
        self.connect(room, side, Way::Door(door));
        door
    }

    fn connect(&mut self, room: RoomAt, side: usize, way: Way) {
        let other = self.neighbour(room, side);
        self.room(room).ways[side] = way;
        self.room(other).ways[(side + 2) % 4] = way;
    }

    pub(super) fn remove_wall(&mut self, room: RoomAt, side: usize) {
        let step = self.size - 1;
        let (left, top) = (room.0 * step, room.1 * step);
        for at in 1..step {
            let cell = match side {
                0 => (left + step, top + at),
                1 => (left + at, top + step),
                2 => (left, top + at),
                _ => (left + at, top),
            };
            self.grid.set(cell, Cell::Empty);
        }
        self.connect(room, side, Way::NoWall);
    }

    /// Places the agent in a room, not in front of a thing. Where that is not possible the original
    /// looks for ever; here the world is made anew.
    pub(super) fn place_agent(&mut self, room: RoomAt) -> Result<(), Retry> {
        if self.is_beset(room) {
            return Err(Retry);
        }
        loop {
            self.grid.agent = self.place(room, None)?;
            self.grid.facing = self.random.between(0, 4);
            if self.grid.thing_at(self.grid.front()).is_none() {
                return Ok(());
            }
        }
    }

    /// Whether a room has free cells, but none of them a side without a thing.
    fn is_beset(&self, (column, row): RoomAt) -> bool {
        let step = self.size - 1;
        let mut free = (column * step..=column * step + step)
            .flat_map(|x| (row * step..=row * step + step).map(move |y| (x, y)))
            .filter(|at| self.grid.cell(*at) == Cell::Empty)
            .peekable();
        let has_thing = |at| self.grid.thing_at(at).is_some();
        let is_beset = |at| (0..4).all(|side| beside(at, side).is_some_and(has_thing));
        free.peek().is_some() && free.all(is_beset)
    }

    pub(super) fn place_agent_anywhere(&mut self) -> Result<(), Retry> {
        let room = self.any_room();
        self.place_agent(room)
    }

    /// Adds closed doors until all rooms can be reached; a locked room gets no further one.
    pub(super) fn connect_all(&mut self, colours: &[Colour]) -> Result<(), Retry> {
        for _ in 0..=DOORS_MAX {
            if self.all_connected() {
                return Ok(());
            }
            let room = self.any_room();
            let side = self.random.between(0, 4);
            if !self.has_neighbour(room, side) || self.room(room).ways[side] != Way::Closed {
                continue;
            }
            let other = self.neighbour(room, side);
            if self.room(room).locked || self.room(other).locked {
                continue;
            }
            let colour = self.random.pick(colours);
            self.add_door(room, Some(side), Some(colour), Some(false));
        }
        Err(Retry)
    }

    fn all_connected(&mut self) -> bool {
        let mut reached = vec![self.agents_room()];
        let mut next = 0;
        while let Some(room) = reached.get(next).copied() {
            next += 1;
            for side in 0..4 {
                if self.room(room).ways[side] != Way::Closed {
                    let other = self.neighbour(room, side);
                    if !reached.contains(&other) {
                        reached.push(other);
                    }
                }
            }
        }
        reached.len() == self.columns * self.rows
    }

    /// The doors, room by room and column by column; one between two rooms is listed twice.
    pub(super) fn doors(&mut self) -> Vec<usize> {
        let mut doors = Vec::new();
        for room in self.by_column() {
            doors.extend(self.room(room).ways.iter().filter_map(|way| match way {
                Way::Door(door) => Some(*door),
                _ => None,
            }));
        }
        doors
    }

    pub(super) fn require_reachable(&self) -> Result<(), Retry> {
        if self.grid.all_reachable() {
            Ok(())
        } else {
            Err(Retry)
        }
    }

    /// The things that these words denote now. The sides are the agent's, and mean things in its
    /// room alone.
    pub(super) fn desc(
        &self,
        kind: Option<Kind>,
        colour: Option<Colour>,
        side: Option<Side>,
    ) -> Desc {
        let (agent, facing) = (self.grid.agent, self.grid.facing);
        let is_meant = |number: &usize| {
            let thing = &self.grid.things[*number];
            let Some(at) = thing.at else { return false };
            kind.is_none_or(|kind| kind == thing.kind)
                && colour.is_none_or(|colour| colour == thing.colour)
                && side.is_none_or(|side| {
                    self.holds(self.agents_room(), at) && side.holds(agent, facing, at)
                })
        };
        Desc {
            kind,
            colour,
            side,
            set: (0..self.grid.things.len()).filter(is_meant).collect(),
            // Walls are grey things too, where only a colour is asked for.
            walls: kind.is_none() && colour == Some(Colour::Grey),
        }
    }

    /// What is of the kind and colour of a thing.
    pub(super) fn like(&self, thing: usize) -> Desc {
        let thing = &self.grid.things[thing];
        self.desc(Some(thing.kind), Some(thing.colour), None)
    }
}
