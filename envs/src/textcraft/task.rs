//! From a task's id to what the agent is shown.
//!
//! A task is a book, a goal, and lines: every recipe that may lead to the goal, and some that
//! use the same ingredients and lead elsewhere. Which of the latter, and in which order, is a
//! function of the book and the goal alone.

use super::book::RecipeBook;
use super::quantity::Quantity;
use super::world::{DISTRACTORS_MAX, World};
use super::worlds::Worlds;
use std::sync::Arc;

/// A whole number from a request, however large.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TaskIndex {
    pub(crate) negative: bool,
    pub(crate) size: Quantity,
}

impl TaskIndex {
    /// Remainder with the sign of the divisor, as Python's `%`.
    pub(crate) fn modulo(&self, count: u64) -> u64 {
        match self.size.remainder(count) {
            0 => 0,
            rest if self.negative => count - rest,
            rest => rest,
        }
    }
}

impl TaskIndex {
    /// Remainder and quotient, rounded down, as Python's `divmod`.
    pub(crate) fn div_mod(&self, count: u64) -> (u64, Self) {
        let rest = self.modulo(count);
        let mut size = self.size.quotient(count);
        if self.negative && rest != 0 {
            size.add(&Quantity::from(1));
        }
        let negative = self.negative && !size.is_zero();
        (rest, Self { negative, size })
    }

    /// As a session's number.
    pub(crate) fn as_u64(&self) -> Option<u64> {
        if self.negative {
            return None;
        }
        self.size.to_string().parse().ok()
    }
}

impl std::fmt::Display for TaskIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{}", if self.negative { "-" } else { "" }, self.size)
    }
}

impl From<i64> for TaskIndex {
    fn from(number: i64) -> Self {
        Self {
            negative: number < 0,
            size: Quantity::from_digits(&number.unsigned_abs().to_string()),
        }
    }
}

/// Where a server's tasks come from.
#[derive(Clone, Debug)]
pub enum Tasks {
    /// The goals of a book; an id counts modulo their number.
    Book {
        /// The book.
        book: Arc<RecipeBook>,
        /// At most this many lines that do not serve the goal.
        distractors_max: usize,
    },
    /// Invented books; an id is a seed.
    Worlds(Worlds),
}

impl Tasks {
    /// The goals of a book, shown as the original server shows them.
    pub fn of_book(book: RecipeBook) -> Self {
        Self::Book {
            book: Arc::new(book),
            distractors_max: DISTRACTORS_MAX,
        }
    }

    /// The task with this id. Every number names one: they wrap around.
    pub fn world(&self, item_id: i64) -> World {
        self.world_at(&TaskIndex::from(item_id))
    }

    pub(crate) fn world_at(&self, index: &TaskIndex) -> World {
        match self {
            Self::Book {
                book,
                distractors_max,
            } => {
                let goals = book.goals();
                let goal = goals[index.modulo(goals.len() as u64) as usize];
                World::of_book(book, goal, *distractors_max)
            }
            Self::Worlds(worlds) => worlds.world(index.modulo(1 << 63)),
        }
    }

    /// How many different tasks there are; `None` if more than can be counted.
    pub fn count(&self) -> Option<usize> {
        match self {
            Self::Book { book, .. } => Some(book.goals().len()),
            Self::Worlds(_) => None,
        }
    }
}
