//! A grid with walls and things, the agent in it, and the agent's view.
//!
//! The physics are MiniGrid's: six primitive moves, a view of 7 × 7 cells in front of the agent,
//! and walls and closed doors that hide what is behind them.

/// Side of the square that the agent sees; the agent is in the middle of the nearest row.
pub(crate) const VIEW: usize = 7;
pub(crate) const VIEW_MIDDLE: usize = VIEW / 2;

/// Column and row.
pub(crate) type Pos = (usize, usize);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Door,
    Key,
    Ball,
    Box,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Door => "door",
            Self::Key => "key",
            Self::Ball => "ball",
            Self::Box => "box",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Colour {
    Red,
    Green,
    Blue,
    Purple,
    Yellow,
    Grey,
}

impl Colour {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Red => "red",
            Self::Green => "green",
            Self::Blue => "blue",
            Self::Purple => "purple",
            Self::Yellow => "yellow",
            Self::Grey => "grey",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lock {
    Open,
    Closed,
    Locked,
}

/// Something that is not a wall.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Thing {
    pub(crate) kind: Kind,
    pub(crate) colour: Colour,
    /// Only used for doors.
    pub(crate) lock: Lock,
    /// `None` while it is carried, in a box, or gone.
    pub(crate) at: Option<Pos>,
    /// Only used for boxes.
    pub(crate) inside: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cell {
    Empty,
    Wall,
    Thing(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Primitive {
    Left,
    Right,
    Forward,
    Pickup,
    Drop,
    Toggle,
}

/// Steps to the right, down, left, up; the next entry is a turn to the right.
pub(crate) const STEPS: [(isize, isize); 4] = [(1, 0), (0, 1), (-1, 0), (0, -1)];

/// A cell in view.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Seen {
    pub(crate) ahead: usize,
    /// Negative on the left.
    pub(crate) right: isize,
    pub(crate) cell: Cell,
}

impl Seen {
    pub(crate) fn distance(&self) -> usize {
        self.ahead + self.right.unsigned_abs()
    }
}

/// How a cell looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pixel {
    Unseen,
    Empty,
    Wall,
    Thing(Kind, Colour, Lock),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Grid {
    pub(crate) width: usize,
    pub(crate) height: usize,
    cells: Vec<Cell>,
    pub(crate) things: Vec<Thing>,
    pub(crate) agent: Pos,
    /// Index into [`STEPS`].
    pub(crate) facing: usize,
    pub(crate) carrying: Option<usize>,
}

/// The cell that a step leads to; `None` beyond the low edges of the grid.
pub(crate) fn beside((x, y): Pos, facing: usize) -> Option<Pos> {
    let (right, down) = STEPS[facing];
    Some((x.checked_add_signed(right)?, y.checked_add_signed(down)?))
}

impl Grid {
    pub(crate) fn new(width: usize, height: usize) -> Self {
        Self {
            width,
            height,
            cells: vec![Cell::Empty; width * height],
            things: Vec::new(),
            agent: (0, 0),
            facing: 0,
            carrying: None,
        }
    }

    /// Cells outside the grid are walls.
    pub(crate) fn cell(&self, (x, y): Pos) -> Cell {
        if x < self.width && y < self.height {
            self.cells[y * self.width + x]
        } else {
            Cell::Wall
        }
    }

    pub(crate) fn set(&mut self, (x, y): Pos, cell: Cell) {
        self.cells[y * self.width + x] = cell;
    }

    /// Puts down a new thing; returns its number.
    pub(crate) fn add(&mut self, kind: Kind, colour: Colour, lock: Lock, at: Pos) -> usize {
        let number = self.things.len();
        self.things.push(Thing {
            kind,
            colour,
            lock,
            at: Some(at),
            inside: None,
        });
        self.set(at, Cell::Thing(number));
        number
    }

    /// Takes off the grid what is carried, where it still lies there.
    pub(crate) fn lift_carried(&mut self) {
        if let Some(thing) = self.carrying
            && let Some(at) = self.things[thing].at.take()
        {
            self.set(at, Cell::Empty);
        }
    }

    /// Puts a new thing into a box.
    pub(crate) fn put_inside(&mut self, chest: usize, kind: Kind, colour: Colour) {
        self.things[chest].inside = Some(self.things.len());
        self.things.push(Thing {
            kind,
            colour,
            lock: Lock::Open,
            at: None,
            inside: None,
        });
    }

    pub(crate) fn front(&self) -> Pos {
        // The agent is inside walls, so there is always a cell in front of it.
        beside(self.agent, self.facing).unwrap_or(self.agent)
    }

    pub(crate) fn thing_at(&self, at: Pos) -> Option<usize> {
        match self.cell(at) {
            Cell::Thing(number) => Some(number),
            _ => None,
        }
    }

    /// Whether the agent can stand there: the cell is empty or an open door.
    pub(crate) fn passable(&self, at: Pos) -> bool {
        match self.cell(at) {
            Cell::Empty => true,
            Cell::Wall => false,
            Cell::Thing(number) => {
                let thing = &self.things[number];
                thing.kind == Kind::Door && thing.lock == Lock::Open
            }
        }
    }

    /// Whether `toggle` would open this door with what the agent carries.
    pub(crate) fn opens(&self, door: usize) -> bool {
        match self.things[door].lock {
            Lock::Closed => true,
            Lock::Open => false,
            Lock::Locked => self.carrying.is_some_and(|carried| {
                let carried = &self.things[carried];
                carried.kind == Kind::Key && carried.colour == self.things[door].colour
            }),
        }
    }

    /// Number of things that the agent can come to without moving any. Doors are no obstacles,
    /// locked or not.
    pub(crate) fn things_reached(&self) -> usize {
        let mut seen = vec![false; self.width * self.height];
        let mut open = vec![self.agent];
        let mut things = 0;
        while let Some(at) = open.pop() {
            for to in (0..STEPS.len()).filter_map(|facing| beside(at, facing)) {
                if self.cell(to) == Cell::Wall
                    || std::mem::replace(&mut seen[to.1 * self.width + to.0], true)
                {
                    continue;
                }
                let thing = self.thing_at(to);
                things += usize::from(thing.is_some());
                if thing.is_none_or(|thing| self.things[thing].kind == Kind::Door) {
                    open.push(to);
                }
            }
        }
        things
    }

    /// Whether the agent can come to everything without moving anything.
    pub(crate) fn all_reachable(&self) -> bool {
        let lying = self.things.iter().filter(|thing| thing.at.is_some());
        self.things_reached() == lying.count()
    }

    /// Makes a move; returns whether anything changed.
    pub(crate) fn act(&mut self, primitive: Primitive) -> bool {
        let front = self.front();
        match primitive {
            Primitive::Left => self.facing = (self.facing + 3) % 4,
            Primitive::Right => self.facing = (self.facing + 1) % 4,
            Primitive::Forward => {
                if !self.passable(front) {
                    return false;
                }
                self.agent = front;
            }
            Primitive::Pickup => {
                let Some(number) = self.thing_at(front) else {
                    return false;
                };
                if self.carrying.is_some() || self.things[number].kind == Kind::Door {
                    return false;
                }
                self.carrying = Some(number);
                self.things[number].at = None;
                self.set(front, Cell::Empty);
            }
            Primitive::Drop => {
                let Some(number) = self.carrying else {
                    return false;
                };
                if self.cell(front) != Cell::Empty {
                    return false;
                }
                self.carrying = None;
                self.things[number].at = Some(front);
                self.set(front, Cell::Thing(number));
            }
            Primitive::Toggle => {
                let Some(number) = self.thing_at(front) else {
                    return false;
                };
                return self.toggle(number, front);
            }
        }
        true
    }

    fn toggle(&mut self, number: usize, at: Pos) -> bool {
        match (self.things[number].kind, self.things[number].lock) {
            (Kind::Door, Lock::Open) => self.things[number].lock = Lock::Closed,
            (Kind::Door, _) if self.opens(number) => self.things[number].lock = Lock::Open,
            (Kind::Box, _) => {
                self.things[number].at = None;
                let inside = self.things[number].inside.take();
                if let Some(inside) = inside {
                    self.things[inside].at = Some(at);
                }
                self.set(at, inside.map_or(Cell::Empty, Cell::Thing));
            }
            _ => return false,
        }
        true
    }

    /// The cell `ahead` steps in front of the agent and `right` steps to the side.
    fn relative(&self, ahead: usize, right: isize) -> Cell {
        let (forward, aside) = (STEPS[self.facing], STEPS[(self.facing + 1) % 4]);
        let ahead = ahead as isize;
        let x = self.agent.0 as isize + ahead * forward.0 + right * aside.0;
        let y = self.agent.1 as isize + ahead * forward.1 + right * aside.1;
        match (usize::try_from(x), usize::try_from(y)) {
            (Ok(x), Ok(y)) => self.cell((x, y)),
            _ => Cell::Wall,
        }
    }

    /// How many steps ahead of the agent a cell is, and how many to its right.
    pub(crate) fn seen_from_agent(&self, (x, y): Pos) -> (isize, isize) {
        let x = x as isize - self.agent.0 as isize;
        let y = y as isize - self.agent.1 as isize;
        let (forward, aside) = (STEPS[self.facing], STEPS[(self.facing + 1) % 4]);
        (x * forward.0 + y * forward.1, x * aside.0 + y * aside.1)
    }

    fn see_behind(&self, cell: Cell) -> bool {
        match cell {
            Cell::Empty => true,
            Cell::Wall => false,
            Cell::Thing(number) => {
                let thing = &self.things[number];
                thing.kind != Kind::Door || thing.lock == Lock::Open
            }
        }
    }

    /// Which cells the agent sees: by their distance ahead and their column, the middle one being
    /// the agent's.
    fn lit(&self) -> [[bool; VIEW]; VIEW] {
        // Light spreads from the agent's cell, row by row, to both sides and ahead.
        let mut lit = [[false; VIEW]; VIEW];
        lit[0][VIEW_MIDDLE] = true;
        for ahead in 0..VIEW {
            let spread = |from: usize, to: Option<usize>, lit: &mut [[bool; VIEW]; VIEW]| {
                let here = match (ahead, from == VIEW_MIDDLE) {
                    // A carried thing does not block the view.
                    (0, true) => Cell::Empty,
                    _ => self.in_view(ahead, from),
                };
                if !lit[ahead][from] || !self.see_behind(here) {
                    return;
                }
                let Some(to) = to else { return };
                lit[ahead][to] = true;
                if ahead + 1 < VIEW {
                    lit[ahead + 1][to] = true;
                    lit[ahead + 1][from] = true;
                }
            };
            for column in 0..VIEW - 1 {
                spread(column, Some(column + 1), &mut lit);
            }
            for column in (1..VIEW).rev() {
                spread(column, column.checked_sub(1), &mut lit);
            }
        }
        lit
    }

    fn in_view(&self, ahead: usize, column: usize) -> Cell {
        self.relative(ahead, column as isize - VIEW_MIDDLE as isize)
    }

    /// The cells in view that are not empty, without the agent's own: from left to right, and in
    /// each column from the far end.
    pub(crate) fn view(&self) -> Vec<Seen> {
        let lit = self.lit();
        let all = (0..VIEW).flat_map(|column| (0..VIEW).rev().map(move |ahead| (column, ahead)));
        all.filter(|(column, ahead)| lit[*ahead][*column])
            .map(|(column, ahead)| Seen {
                ahead,
                right: column as isize - VIEW_MIDDLE as isize,
                cell: self.in_view(ahead, column),
            })
            .filter(|seen| seen.cell != Cell::Empty && seen.distance() > 0)
            .collect()
    }

    /// What the agent sees, as far as it can be told apart: for each cell whether it is seen, and
    /// its kind, colour and lock. What is carried is seen in the agent's cell.
    pub(crate) fn picture(&self) -> Vec<Pixel> {
        let lit = self.lit();
        let looks = |thing: usize| {
            let Thing {
                kind, colour, lock, ..
            } = self.things[thing];
            Pixel::Thing(kind, colour, lock)
        };
        let all = (0..VIEW).flat_map(|ahead| (0..VIEW).map(move |column| (ahead, column)));
        all.map(|(ahead, column)| match (ahead, column) {
            (0, VIEW_MIDDLE) => self.carrying.map_or(Pixel::Empty, looks),
            _ if !lit[ahead][column] => Pixel::Unseen,
            _ => match self.in_view(ahead, column) {
                Cell::Empty => Pixel::Empty,
                Cell::Wall => Pixel::Wall,
                Cell::Thing(thing) => looks(thing),
            },
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A room of 8 × 8 with the agent at its left wall, facing right.
    fn room() -> Grid {
        let mut grid = Grid::new(8, 8);
        for at in 0..8 {
            for edge in [(at, 0), (at, 7), (0, at), (7, at)] {
                grid.set(edge, Cell::Wall);
            }
        }
        grid.agent = (1, 3);
        grid
    }

    #[test]
    fn closed_doors_and_walls_hide_what_is_behind() {
        let mut grid = room();
        for row in 1..7 {
            grid.set((3, row), Cell::Wall);
        }
        let door = grid.add(Kind::Door, Colour::Red, Lock::Closed, (3, 3));
        let ball = grid.add(Kind::Ball, Colour::Red, Lock::Open, (5, 3));
        let sees = |grid: &Grid, thing| grid.view().iter().any(|s| s.cell == Cell::Thing(thing));
        assert!(sees(&grid, door) && !sees(&grid, ball));
        grid.things[door].lock = Lock::Open;
        assert!(sees(&grid, ball));
        let seen = grid
            .view()
            .into_iter()
            .find(|s| s.cell == Cell::Thing(ball));
        let seen = seen.expect("in view");
        assert_eq!((seen.ahead, seen.right), (4, 0));
        grid.act(Primitive::Left);
        assert!(!sees(&grid, ball));
    }

    #[test]
    fn moves_follow_the_rules() {
        let mut grid = room();
        let key = grid.add(Kind::Key, Colour::Blue, Lock::Open, (2, 3));
        assert!(!grid.act(Primitive::Forward) && !grid.act(Primitive::Drop));
        assert!(grid.act(Primitive::Pickup) && grid.carrying == Some(key));
        assert!(grid.act(Primitive::Forward) && grid.agent == (2, 3));
        let door = grid.add(Kind::Door, Colour::Red, Lock::Locked, (3, 3));
        assert!(!grid.act(Primitive::Toggle), "the key has another colour");
        grid.things[key].colour = Colour::Red;
        assert!(grid.act(Primitive::Toggle) && grid.things[door].lock == Lock::Open);
        assert!(grid.act(Primitive::Forward) && grid.act(Primitive::Drop));
        assert_eq!(grid.things[key].at, Some((4, 3)));
    }

    #[test]
    fn an_opened_box_leaves_what_was_in_it() {
        let mut grid = room();
        let key = grid.add(Kind::Key, Colour::Blue, Lock::Open, (2, 3));
        let chest = grid.add(Kind::Box, Colour::Red, Lock::Open, (2, 3));
        grid.things[key].at = None;
        grid.things[chest].inside = Some(key);
        assert!(grid.act(Primitive::Toggle));
        assert_eq!(grid.thing_at((2, 3)), Some(key));
        assert_eq!(grid.things[chest].at, None);
    }
}
