//! The maze of LMRL-Gym that AgentGym serves: two T-shaped corridors, one below the other.
//!
//! A position is (row, column), both from 0 at the top left. A game's number is the index of its
//! start in a list of the free cells; the last one is the goal itself.

/// `#` is wall, `.` free, `G` the goal.
const CELLS: [&str; 10] = [
    "#############",
    "#.....#.....#",
    "###.#####.###",
    "###.#####.###",
    "###.#####.###",
    "###.......###",
    "######.######",
    "######.######",
    "######G######",
    "#############",
];

/// After this many moves the next one ends the game.
const MOVES_MAX: u32 = 50;

type Position = (usize, usize);

const GOAL: Position = (8, 6);

/// Name, description and step of each direction, in the order of the observation.
const DIRECTIONS: [(&str, &str, isize, isize); 4] = [
    ("move right", "to your right", 0, 1),
    ("move left", "to your left", 0, -1),
    ("move up", "above you", -1, 0),
    ("move down", "below you", 1, 0),
];

/// The result of a move.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MazeReply {
    pub(crate) observation: String,
    pub(crate) reward: f64,
    pub(crate) done: bool,
}

/// Why a game cannot be played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoGame {
    /// No start cell has this number.
    Unknown,
    /// It would start on the goal.
    OnGoal,
}

/// A game in progress.
#[derive(Clone, Debug)]
pub(crate) struct Maze {
    at: Position,
    moves: u32,
}

fn cell((row, column): Position) -> u8 {
    CELLS[row].as_bytes()[column]
}

/// Where the games of the original begin: along the two upper corridors, then down the left stem
/// and up the right one.
const STARTS: [Position; 26] = [
    (1, 1),
    (1, 2),
    (1, 3),
    (1, 4),
    (1, 5),
    (1, 7),
    (1, 8),
    (1, 9),
    (1, 10),
    (1, 11),
    (2, 3),
    (3, 3),
    (4, 3),
    (5, 3),
    (5, 4),
    (5, 5),
    (5, 6),
    (6, 6),
    (7, 6),
    (5, 7),
    (5, 8),
    (5, 9),
    (4, 9),
    (3, 9),
    (2, 9),
    GOAL,
];

fn beside((row, column): Position, down: isize, right: isize) -> Position {
    // Free cells are never on the border, so a step never leaves the grid.
    let moved = |value: usize, by: isize| value.saturating_add_signed(by);
    (moved(row, down), moved(column, right))
}

impl Maze {
    /// The game with this number; negative numbers count from the end.
    pub(crate) fn start(game: i64) -> Result<Self, NoGame> {
        let count = STARTS.len() as i64;
        let index = if game < 0 { game + count } else { game };
        let index = usize::try_from(index).map_err(|_| NoGame::Unknown)?;
        let at = *STARTS.get(index).ok_or(NoGame::Unknown)?;
        if cell(at) == b'G' {
            return Err(NoGame::OnGoal);
        }
        Ok(Self { at, moves: 0 })
    }

    /// Where the player and the goal are.
    pub(super) fn places(&self) -> (Position, Position) {
        (self.at, GOAL)
    }

    /// The maze's rows, with its walls as `#`.
    pub(super) fn walls() -> Vec<String> {
        CELLS.map(|row| row.replace('G', ".")).to_vec()
    }

    /// All moves; they do not depend on the position.
    pub(crate) fn actions() -> [&'static str; 4] {
        ["move left", "move right", "move up", "move down"]
    }

    /// The observation at the current position.
    pub(crate) fn observation(&self) -> String {
        let walls: Vec<&str> = DIRECTIONS
            .iter()
            .filter(|(_, _, down, right)| cell(beside(self.at, *down, *right)) == b'#')
            .map(|(_, place, ..)| *place)
            .collect();
        let walls = match &walls[..] {
            [] => "There are no walls near you.".to_owned(),
            [one] => format!("There is a wall {one}."),
            many => format!("There are walls {}.", many.join(", ")),
        };
        format!(
            "The goal is at position {}, {}. Your current position is at position {}, {}. {walls}",
            GOAL.0, GOAL.1, self.at.0, self.at.1
        )
    }

    /// Makes a move. An unknown move, or one into a wall, changes nothing but is counted.
    pub(crate) fn step(&mut self, action: &str) -> MazeReply {
        self.moves += 1;
        let step = DIRECTIONS.iter().find(|(name, ..)| *name == action);
        if let Some((_, _, down, right)) = step {
            let to = beside(self.at, *down, *right);
            if cell(to) != b'#' {
                self.at = to;
            }
        }
        let (observation, reward, done) = if cell(self.at) == b'G' {
            ("Success\n".to_owned(), 1.0, true)
        } else if self.moves > MOVES_MAX {
            ("Failure\n".to_owned(), -1.0, true)
        } else {
            (self.observation(), 0.0, false)
        };
        MazeReply {
            observation,
            reward,
            done,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, VecDeque};

    use super::*;

    fn start(game: i64) -> Result<Maze, NoGame> {
        Maze::start(game)
    }

    #[test]
    fn games_begin_on_every_free_cell_once() {
        let all =
            (0..CELLS.len()).flat_map(|row| (0..CELLS[0].len()).map(move |column| (row, column)));
        let free: Vec<Position> = all.filter(|at| cell(*at) != b'#').collect();
        let mut starts = STARTS.to_vec();
        starts.sort_unstable();
        assert_eq!(starts, free);
    }

    #[test]
    fn positions_and_walls_are_told_as_documented() {
        assert_eq!(
            start(0).expect("a game").observation(),
            "The goal is at position 8, 6. Your current position is at position 1, 1. There are \
             walls to your left, above you, below you."
        );
        let above = "There is a wall above you.";
        assert!(start(2).expect("a game").observation().ends_with(above));
    }

    #[test]
    fn games_are_the_free_cells() {
        for game in 0..25 {
            assert!(start(game).is_ok(), "{game}");
        }
        for (game, problem) in [
            (25, NoGame::OnGoal),
            (-1, NoGame::OnGoal),
            (26, NoGame::Unknown),
            (-27, NoGame::Unknown),
        ] {
            assert_eq!(start(game).err(), Some(problem), "{game}");
        }
        assert!(start(-26).is_ok());
    }

    /// The shortest solution, by breadth-first search over games.
    fn solve(game: i64) -> Vec<&'static str> {
        let start = start(game).expect("a game");
        let mut ways = BTreeMap::from([(start.at, Vec::new())]);
        let mut open = VecDeque::from([start]);
        while let Some(maze) = open.pop_front() {
            for action in Maze::actions() {
                let mut next = maze.clone();
                let mut way: Vec<&str> = ways[&maze.at].clone();
                way.push(action);
                if next.step(action).done {
                    return way;
                }
                ways.entry(next.at).or_insert_with(|| {
                    open.push_back(next);
                    way
                });
            }
        }
        panic!("game {game} has no way out");
    }

    #[test]
    fn every_game_can_be_won() {
        for game in 0..25 {
            let mut maze = start(game).expect("a game");
            let way = solve(game);
            let (last, before) = way.split_last().expect("a way");
            for action in before {
                assert_eq!(
                    (maze.step(action).reward, maze.clone().step("wait").done),
                    (0.0, false)
                );
            }
            let reply = maze.step(last);
            assert_eq!(
                (reply.observation.as_str(), reply.reward, reply.done),
                ("Success\n", 1.0, true)
            );
        }
        assert_eq!(solve(0).len(), 12);
    }

    #[test]
    fn the_move_after_the_fiftieth_fails() {
        let mut maze = start(0).expect("a game");
        let before = maze.observation();
        for action in ["move right ", "MOVE RIGHT", "", "move left"]
            .iter()
            .cycle()
            .take(50)
        {
            let reply = maze.step(action);
            assert_eq!(
                (reply.observation.as_str(), reply.done),
                (before.as_str(), false)
            );
        }
        let reply = maze.step("move right");
        assert_eq!(
            (reply.observation.as_str(), reply.reward, reply.done),
            ("Failure\n", -1.0, true)
        );
    }
}
