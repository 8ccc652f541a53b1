//! A room, and the effect of an action in it.

/// Most boxes in a room.
pub(super) const BOXES_MAX: usize = 3;

/// Index of a cell, row by row.
pub(super) type Cell = u8;

/// Position of an unused box slot.
const NO_BOX: Cell = Cell::MAX;

/// An action of the player: a step, which pushes a box in its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Up,
    Down,
    Left,
    Right,
}

impl Direction {
    pub(super) const ALL: [Self; 4] = [Self::Up, Self::Down, Self::Left, Self::Right];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Up => "Up",
            Self::Down => "Down",
            Self::Left => "Left",
            Self::Right => "Right",
        }
    }

    fn opposite(self) -> Self {
        match self {
            Self::Up => Self::Down,
            Self::Down => Self::Up,
            Self::Left => Self::Right,
            Self::Right => Self::Left,
        }
    }
}

/// The movable part. Boxes are sorted, so that equal situations are equal values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct State {
    pub(super) player: Cell,
    boxes: [Cell; BOXES_MAX],
}

impl State {
    fn new(player: Cell, cells: &[Cell]) -> Self {
        let mut boxes = [NO_BOX; BOXES_MAX];
        boxes[..cells.len()].copy_from_slice(cells);
        boxes.sort_unstable();
        Self { player, boxes }
    }

    pub(super) fn has_box(&self, cell: Cell) -> bool {
        self.boxes.contains(&cell)
    }

    /// The player at `player`, and the box at `from` moved to `to`.
    fn pushed(&self, player: Cell, from: Cell, to: Cell) -> Self {
        let cells = self.boxes.map(|cell| if cell == from { to } else { cell });
        Self::new(player, &cells)
    }
}

/// The fixed part: walls, floor and targets.
#[derive(Clone, Debug)]
pub(super) struct Room {
    columns: usize,
    floor: Vec<bool>,
    targets: Vec<Cell>,
}

impl Room {
    pub(super) fn new(columns: usize, floor: Vec<bool>, targets: &[Cell]) -> Self {
        Self {
            columns,
            floor,
            targets: targets.to_vec(),
        }
    }

    /// Every state with all boxes on targets.
    pub(super) fn solved_states(&self) -> Vec<State> {
        let cells = 0..self.floor.len() as Cell;
        cells
            .filter(|cell| self.floor[usize::from(*cell)] && !self.is_target(*cell))
            .map(|player| State::new(player, &self.targets))
            .collect()
    }

    pub(super) fn boxes(&self) -> usize {
        self.targets.len()
    }

    /// Number of boxes on targets.
    pub(super) fn placed(&self, state: &State) -> usize {
        let targets = self.targets.iter();
        targets.filter(|target| state.has_box(**target)).count()
    }

    /// The state after an action; `None` if it changes nothing.
    pub(super) fn after(&self, state: &State, action: Direction) -> Option<State> {
        let to = self.beside(state.player, action)?;
        if !state.has_box(to) {
            return Some(State {
                player: to,
                ..*state
            });
        }
        let beyond = self.beside(to, action)?;
        (!state.has_box(beyond)).then(|| state.pushed(to, to, beyond))
    }

    /// The states from which one action leads to this one.
    pub(super) fn before<'a>(&'a self, state: &'a State) -> impl Iterator<Item = State> + 'a {
        Direction::ALL.into_iter().flat_map(move |action| {
            let from = self.beside(state.player, action.opposite());
            let from = from.filter(|from| !state.has_box(*from));
            let walked = from.map(|player| State { player, ..*state });
            let pushed = from.and_then(|from| {
                let ahead = self.beside(state.player, action)?;
                let has_box = state.has_box(ahead);
                has_box.then(|| state.pushed(from, ahead, state.player))
            });
            walked.into_iter().chain(pushed)
        })
    }

    /// The room as text, one line per row, in RAGEN's letters.
    pub(super) fn drawn(&self, state: &State) -> String {
        let letter = |cell: usize| {
            let place = cell as Cell;
            match (self.is_target(place), self.floor[cell]) {
                (target, _) if state.player == place => {
                    if target {
                        'S'
                    } else {
                        'P'
                    }
                }
                (target, _) if state.has_box(place) => {
                    if target {
                        '√'
                    } else {
                        'X'
                    }
                }
                (true, _) => 'O',
                (_, true) => '_',
                (_, false) => '#',
            }
        };
        let row = |row: usize| -> String {
            (row * self.columns..(row + 1) * self.columns)
                .map(letter)
                .collect()
        };
        let rows: Vec<String> = (0..self.floor.len() / self.columns).map(row).collect();
        rows.join("\n")
    }

    fn is_target(&self, cell: Cell) -> bool {
        self.targets.contains(&cell)
    }

    /// The next cell in a direction; `None` if it is a wall. The outermost cells are walls.
    fn beside(&self, cell: Cell, direction: Direction) -> Option<Cell> {
        let (cell, columns) = (usize::from(cell), self.columns);
        let next = match direction {
            Direction::Up => cell - columns,
            Direction::Down => cell + columns,
            Direction::Left => cell - 1,
            Direction::Right => cell + 1,
        };
        self.floor[next].then_some(next as Cell)
    }
}

#[cfg(test)]
impl Room {
    /// Parses the room and the state from such a text.
    pub(super) fn read(text: &str) -> (Self, State) {
        let columns = text.lines().next().expect("a row").chars().count();
        let letters: Vec<char> = text.chars().filter(|letter| *letter != '\n').collect();
        let all = |wanted: &[char]| -> Vec<Cell> {
            let cells = 0..letters.len();
            let found = cells.filter(|cell| wanted.contains(&letters[*cell]));
            found.map(|cell| cell as Cell).collect()
        };
        let room = Self {
            columns,
            floor: letters.iter().map(|letter| *letter != '#').collect(),
            targets: all(&['O', '√', 'S']),
        };
        let player = all(&['P', 'S'])[0];
        (room, State::new(player, &all(&['X', '√'])))
    }
}
