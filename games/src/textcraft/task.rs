//! Maps a task's id to the text that the agent sees.
//!
//! A task is a book, a goal, and lines: every recipe that may lead to the goal, and distractors
//! that use the same ingredients but lead elsewhere. Choice and order of the distractors depend
//! only on the book and the goal.

use super::book::RecipeBook;
use super::world::{DISTRACTORS_MAX, World};
use super::worlds::Worlds;
use agentgym_envs::task_index::TaskIndex;
use std::sync::Arc;

/// The source of a server's tasks.
#[derive(Clone, Debug)]
pub enum Tasks {
    /// The goals of a book; ids wrap around at their number.
    Book {
        /// The book.
        book: Arc<RecipeBook>,
        /// Most distractor lines per task.
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

    /// The task with this id. Every number is valid: ids wrap around.
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

    /// The number of different tasks; `None` if it is unlimited.
    pub fn count(&self) -> Option<usize> {
        match self {
            Self::Book { book, .. } => Some(book.goals().len()),
            Self::Worlds(_) => None,
        }
    }
}
