//! From a task's id to what the agent is shown.
//!
//! A task is a book, a goal, and lines: every recipe that may lead to the goal, and some that
//! use the same ingredients and lead elsewhere. Which of the latter, and in which order, is a
//! function of the book and the goal alone.

use super::book::RecipeBook;
use super::world::{DISTRACTORS_MAX, World};
use super::worlds::Worlds;
use crate::task_index::TaskIndex;
use std::sync::Arc;

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
