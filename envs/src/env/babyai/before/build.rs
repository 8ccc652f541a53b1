//! Builds worlds of rooms: walls, doors between neighbours, things in rooms, the agent.
//!
//! All draws come from one stream per world. A draw that cannot be satisfied rejects the whole
//! attempt, and the next attempt continues in the stream.

use crate::draws::Draws;
use crate::env::babyai::grid::{Cell, Colour, Grid, Kind, Lock, Pos, Thing, beside};
use crate::env::babyai::mission::{Desc, Side};

/// Tries per placement before an attempt is rejected.
const TRIES: usize = 500;

/// Column and row of a room.
pub(crate) type RoomAt = (usize, usize);

/// An attempt that cannot be completed.
#[derive(Debug)]
pub(crate) struct Reject;

pub(crate) const CARRIED: [Kind; 3] = [Kind::Key, Kind::Ball, Kind::Box];

pub(crate) struct Build<'a> {
    pub(crate) draws: &'a mut Draws,
    pub(crate) grid: Grid,
    pub(crate) room_size: usize,
    pub(crate) columns: usize,
    pub(crate) rows: usize,
    /// By room: the door (or opening) on each side, in the order of [`super::super::grid::STEPS`].
    doors: Vec<[Option<Opening>; 4]>,
    /// The room behind a locked door.
    pub(crate) locked: Option<RoomAt>,
}

#[derive(Clone, Copy, PartialEq)]
enum Opening {
    Door(usize),
    NoWall,
}

impl<'a> Build<'a> {
    pub(crate) fn new(draws: &'a mut Draws, room_size: usize, columns: usize, rows: usize) -> Self {
        let (width, height) = ((room_size - 1) * columns + 1, (room_size - 1) * rows + 1);
        let mut grid = Grid::new(width, height);
        for x in 0..width {
            for y in 0..height {
                if x % (room_size - 1) == 0 || y % (room_size - 1) == 0 {
                    grid.set((x, y), Cell::Wall);
                }
            }
        }
        Self {
            draws,
            grid,
            room_size,
            columns,
            rows,
            doors: vec![[None; 4]; columns * rows],
            locked: None,
        }
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.draws.below(from.len())]
    }

    pub(crate) fn colour(&mut self) -> Colour {
        self.pick(&Colour::ALL)
    }

    /// `N` different colours.
    pub(crate) fn colours<const N: usize>(&mut self) -> [Colour; N] {
        let mut all = Colour::ALL;
        self.draws.shuffle(&mut all);
        std::array::from_fn(|at| all[at])
    }

    pub(crate) fn any_room(&mut self) -> RoomAt {
        (self.draws.below(self.columns), self.draws.below(self.rows))
    }

    pub(crate) fn rooms(&self) -> Vec<RoomAt> {
        let columns = self.columns;
        (0..columns * self.rows)
            .map(|at| (at % columns, at / columns))
            .collect()
    }

    /// The room of a cell that is not in an outer or inner wall.
    pub(crate) fn room_of(&self, (x, y): Pos) -> RoomAt {
        (x / (self.room_size - 1), y / (self.room_size - 1))
    }

    fn neighbour(&self, (column, row): RoomAt, side: usize) -> Option<RoomAt> {
        let (column, row) = beside((column, row), side)?;
        (column < self.columns && row < self.rows).then_some((column, row))
    }

    fn doors_of(&mut self, (column, row): RoomAt) -> &mut [Option<Opening>; 4] {
        &mut self.doors[row * self.columns + column]
    }

    /// The wall between a room and its neighbour, without the corners.
    fn wall(&self, (column, row): RoomAt, side: usize) -> Vec<Pos> {
        let step = self.room_size - 1;
        let (left, top) = (column * step, row * step);
        (1..step)
            .map(|at| match side {
                0 => (left + step, top + at),
                1 => (left + at, top + step),
                2 => (left, top + at),
                _ => (left + at, top),
            })
            .collect()
    }

    /// Sides on which a door can be added.
    pub(crate) fn free_sides(&mut self, room: RoomAt) -> Vec<usize> {
        let taken = *self.doors_of(room);
        (0..4)
            .filter(|side| taken[*side].is_none() && self.neighbour(room, *side).is_some())
            .collect()
    }

    pub(crate) fn add_door(
        &mut self,
        room: RoomAt,
        side: usize,
        colour: Colour,
        locked: bool,
    ) -> Result<usize, Reject> {
        let other = self.neighbour(room, side).ok_or(Reject)?;
        if self.doors_of(room)[side].is_some() {
            return Err(Reject);
        }
        let wall = self.wall(room, side);
        let at = self.pick(&wall);
        let lock = if locked { Lock::Locked } else { Lock::Closed };
        let door = self.grid.add(Kind::Door, colour, lock, at);
        self.doors_of(room)[side] = Some(Opening::Door(door));
        self.doors_of(other)[(side + 2) % 4] = Some(Opening::Door(door));
        Ok(door)
    }

    /// Adds a door on any free side.
    pub(crate) fn add_any_door(
        &mut self,
        room: RoomAt,
        colour: Colour,
        locked: bool,
    ) -> Result<usize, Reject> {
        let sides = self.free_sides(room);
        if sides.is_empty() {
            return Err(Reject);
        }
        let side = self.pick(&sides);
        self.add_door(room, side, colour, locked)
    }

    pub(crate) fn remove_wall(&mut self, room: RoomAt, side: usize) -> Result<(), Reject> {
        let other = self.neighbour(room, side).ok_or(Reject)?;
        for at in self.wall(room, side) {
            self.grid.set(at, Cell::Empty);
        }
        self.doors_of(room)[side] = Some(Opening::NoWall);
        self.doors_of(other)[(side + 2) % 4] = Some(Opening::NoWall);
        Ok(())
    }

    /// Adds closed doors until every room can be reached from the first; a locked room gets no
    /// other door.
    pub(crate) fn connect(&mut self) -> Result<(), Reject> {
        for _ in 0..TRIES * 10 {
            let mut reached = vec![(0, 0)];
            let mut next = 0;
            while let Some(room) = reached.get(next).copied() {
                next += 1;
                for side in 0..4 {
                    if let Some(other) = self.neighbour(room, side)
                        && self.doors_of(room)[side].is_some()
                        && !reached.contains(&other)
                    {
                        reached.push(other);
                    }
                }
            }
            if reached.len() == self.columns * self.rows {
                return Ok(());
            }
            let room = self.any_room();
            let side = self.draws.below(4);
            let Some(other) = self.neighbour(room, side) else {
                continue;
            };
            let is_locked = self.locked == Some(room) || self.locked == Some(other);
            if is_locked || self.doors_of(room)[side].is_some() {
                continue;
            }
            let colour = self.colour();
            self.add_door(room, side, colour, false)?;
        }
        Err(Reject)
    }

    /// A free cell of a room that satisfies `fits`.
    fn free_cell(
        &mut self,
        (column, row): RoomAt,
        fits: impl Fn(&Grid, Pos) -> bool,
    ) -> Result<Pos, Reject> {
        let step = self.room_size - 1;
        for _ in 0..TRIES {
            let x = column * step + 1 + self.draws.below(step - 1);
            let y = row * step + 1 + self.draws.below(step - 1);
            let free = self.grid.cell((x, y)) == Cell::Empty && self.grid.agent != (x, y);
            if free && fits(&self.grid, (x, y)) {
                return Ok((x, y));
            }
        }
        Err(Reject)
    }

    pub(crate) fn place_agent(&mut self, room: RoomAt) -> Result<(), Reject> {
        for _ in 0..TRIES {
            self.grid.agent = (0, 0);
            let at = self.free_cell(room, |_, _| true)?;
            self.grid.agent = at;
            self.grid.facing = self.draws.below(4);
            // Nothing is directly in front of the agent at the start.
            if self.grid.thing_at(self.grid.front()).is_none() {
                return Ok(());
            }
        }
        Err(Reject)
    }

    /// Adds a thing at a random place in a room, not next to the agent.
    pub(crate) fn add(
        &mut self,
        room: RoomAt,
        kind: Kind,
        colour: Colour,
    ) -> Result<usize, Reject> {
        let at = self.free_cell(room, |grid, at| {
            let agent = grid.agent;
            agent == (0, 0) || at.0.abs_diff(agent.0) + at.1.abs_diff(agent.1) >= 2
        })?;
        Ok(self.grid.add(kind, colour, Lock::Open, at))
    }

    /// Adds things of any kind, in a room or anywhere. `unique`: no two alike, nor like an existing
    /// one.
    pub(crate) fn add_distractors(
        &mut self,
        room: Option<RoomAt>,
        count: usize,
        unique: bool,
    ) -> Result<Vec<usize>, Reject> {
        let mut added = Vec::new();
        let mut tries = 0;
        while added.len() < count {
            tries += 1;
            if tries > TRIES {
                return Err(Reject);
            }
            let (kind, colour) = (self.pick(&CARRIED), self.colour());
            let alike = |thing: &Thing| (thing.kind, thing.colour) == (kind, colour);
            if unique && self.grid.things.iter().any(alike) {
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

    pub(crate) fn require_reachable(&self) -> Result<(), Reject> {
        if self.grid.all_reachable() {
            Ok(())
        } else {
            Err(Reject)
        }
    }

    /// The things that these words denote in the current world.
    pub(crate) fn desc(
        &self,
        kind: Option<Kind>,
        colour: Option<Colour>,
        side: Option<Side>,
    ) -> Desc {
        let agent = self.grid.agent;
        let fits = |number: &usize| {
            let thing = &self.grid.things[*number];
            let carried = self.grid.carrying == Some(*number);
            let Some(at) = thing.at else {
                return carried && side.is_none() && self.is_called(*number, kind, colour);
            };
            let here = side.is_none_or(|side| {
                self.room_of(at) == self.room_of(agent)
                    && thing.kind != Kind::Door
                    && side.holds(agent, self.grid.facing, at)
                    || thing.kind == Kind::Door
                        && self.touches(at)
                        && side.holds(agent, self.grid.facing, at)
            });
            here && self.is_called(*number, kind, colour)
        };
        let set = (0..self.grid.things.len()).filter(fits).collect();
        Desc {
            kind,
            colour,
            side,
            set,
            walls: false,
        }
    }

    fn is_called(&self, number: usize, kind: Option<Kind>, colour: Option<Colour>) -> bool {
        let thing = &self.grid.things[number];
        kind.is_none_or(|kind| kind == thing.kind)
            && colour.is_none_or(|colour| colour == thing.colour)
    }

    /// Whether a cell belongs to the agent's room or its walls.
    fn touches(&self, (x, y): Pos) -> bool {
        let step = self.room_size - 1;
        let (column, row) = self.room_of(self.grid.agent);
        (column * step..=(column + 1) * step).contains(&x)
            && (row * step..=(row + 1) * step).contains(&y)
    }

    /// The full name of one thing.
    pub(crate) fn named(&self, number: usize) -> Desc {
        let thing = &self.grid.things[number];
        self.desc(Some(thing.kind), Some(thing.colour), None)
    }
}
