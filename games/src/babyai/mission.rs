//! The mission of an episode, in words and as a check after each primitive move.

use super::grid::{Colour, Grid, Kind, Pos, STEPS};

/// The side of a thing, as seen by the agent at the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Left,
    Right,
    Front,
    Behind,
}

impl Side {
    pub(crate) const ALL: [Self; 4] = [Self::Left, Self::Right, Self::Front, Self::Behind];

    /// Whether a thing at `at` is on this side of an agent with this facing.
    pub(crate) fn holds(self, agent: Pos, facing: usize, at: Pos) -> bool {
        let turn = match self {
            Self::Front => 0,
            Self::Right => 1,
            Self::Behind => 2,
            Self::Left => 3,
        };
        let (x, y) = STEPS[(facing + turn) % 4];
        let (dx, dy) = (
            at.0 as isize - agent.0 as isize,
            at.1 as isize - agent.1 as isize,
        );
        x * dx + y * dy > 0
    }

    fn words(self) -> &'static str {
        match self {
            Self::Left => " on your left",
            Self::Right => " on your right",
            Self::Front => " in front of you",
            Self::Behind => " behind you",
        }
    }
}

/// The things that a description denotes: all that matched its words at the start.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Desc {
    pub(crate) kind: Option<Kind>,
    pub(crate) colour: Option<Colour>,
    pub(crate) side: Option<Side>,
    pub(crate) set: Vec<usize>,
    /// Walls matched, too.
    pub(crate) walls: bool,
}

impl Desc {
    fn words(&self) -> String {
        let one = self.set.len() == 1 && !self.walls;
        let article = if one { "the" } else { "a" };
        let colour = self
            .colour
            .map_or(String::new(), |c| format!("{} ", c.name()));
        let kind = self.kind.map_or("object", Kind::name);
        let side = self.side.map_or("", Side::words);
        format!("{article} {colour}{kind}{side}")
    }
}

/// A single task.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Task {
    GoTo(Desc),
    /// Strict: picking up anything else fails.
    Pickup(Desc, bool),
    /// Strict: opening another door fails.
    Open(Desc, bool),
    PutNext(Desc, Desc),
}

/// The order in which two goals have to be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// The first one first.
    Before,
    /// The second one first.
    After,
    /// Any order.
    And,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Goal {
    One(Task),
    Two {
        order: Order,
        goals: Box<[Goal; 2]>,
        done: [bool; 2],
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Going,
    Reached,
    Failed,
}

impl Task {
    /// Number of trips through the rooms; the move limit is proportional to it.
    fn trips(&self) -> u32 {
        match self {
            Self::PutNext(..) => 2,
            _ => 1,
        }
    }

    fn words(&self) -> String {
        match self {
            Self::GoTo(desc) => format!("go to {}", desc.words()),
            Self::Pickup(desc, _) => format!("pick up {}", desc.words()),
            Self::Open(desc, _) => format!("open {}", desc.words()),
            Self::PutNext(moved, fixed) => {
                format!("put {} next to {}", moved.words(), fixed.words())
            }
        }
    }
}

/// Whether two things are on adjacent cells.
pub(crate) fn next(grid: &Grid, one: usize, other: usize) -> bool {
    match (grid.things[one].at, grid.things[other].at) {
        (Some(a), Some(b)) => a.0.abs_diff(b.0) + a.1.abs_diff(b.1) == 1,
        _ => false,
    }
}

impl Goal {
    pub(crate) fn two(order: Order, first: Self, second: Self) -> Self {
        Self::Two {
            order,
            goals: Box::new([first, second]),
            done: [false; 2],
        }
    }

    pub(crate) fn trips(&self) -> u32 {
        match self {
            Self::One(task) => task.trips(),
            Self::Two { goals, .. } => goals.iter().map(Self::trips).sum(),
        }
    }

    /// The mission in words; `joins` stand between goals of which the first, or the second, comes
    /// first.
    pub(crate) fn words(&self, joins: [&str; 2]) -> String {
        match self {
            Self::One(task) => task.words(),
            Self::Two { order, goals, .. } => {
                let [first, second] = [0, 1].map(|at: usize| goals[at].words(joins));
                let join = match order {
                    Order::Before => joins[0],
                    Order::After => joins[1],
                    Order::And => " and ",
                };
                format!("{first}{join}{second}")
            }
        }
    }

    /// All tasks of the goal.
    pub(crate) fn tasks(&self) -> Vec<&Task> {
        match self {
            Self::One(task) => vec![task],
            Self::Two { goals, .. } => goals.iter().flat_map(Self::tasks).collect(),
        }
    }

    /// The tasks that can be done now, in the order of the words.
    pub(crate) fn open_tasks(&self) -> Vec<&Task> {
        match self {
            Self::One(task) => vec![task],
            Self::Two { order, goals, done } => {
                let turns: &[usize] = match (order, done) {
                    (Order::Before, [false, _]) => &[0],
                    (Order::After, [_, false]) => &[1],
                    _ => &[0, 1],
                };
                let open = turns.iter().filter(|at| !done[**at]);
                open.flat_map(|at| goals[*at].open_tasks()).collect()
            }
        }
    }
}
