//! From a task's id to what the agent is shown.
//!
//! A task is a book, a goal, and lines: every recipe that may lead to the goal, and some that
//! use the same ingredients and lead elsewhere. Which of the latter, and in which order, is a
//! function of the book and the goal alone.

use std::sync::Arc;

use super::book::{Name, RecipeBook};
use super::game::Game;
use super::quantity::Quantity;
use super::random::Draws;
use super::worlds::Worlds;

/// Distractors per task on the original server.
pub const DISTRACTORS_MAX: usize = 10;

/// One task, ready to be shown and played.
#[derive(Clone, Debug)]
pub struct World {
    /// The recipes that hold in it; they may be more than the lines.
    pub book: Arc<RecipeBook>,
    /// What has to be crafted.
    pub goal: Name,
    /// Recipes shown, in order.
    pub lines: Vec<String>,
}

impl World {
    /// The task of making `goal` with this book.
    pub fn of_book(book: &Arc<RecipeBook>, goal: Name, distractors_max: usize) -> Self {
        let tree = tree(book, goal);
        let mut draws = Draws::new("lines", &[book.digest(), book.id(goal).as_bytes()]);
        let mut others = distractors(book, &tree);
        draws.shuffle(&mut others);
        others.truncate(distractors_max);
        let mut lines = tree.lines;
        lines.append(&mut others);
        draws.shuffle(&mut lines);
        Self {
            book: Arc::clone(book),
            goal,
            lines,
        }
    }

    /// The first observation.
    pub fn observation(&self) -> String {
        format!(
            "Crafting commands:\n{}\n\nGoal: craft {}.",
            self.lines.join("\n"),
            self.book.text(self.goal)
        )
    }

    /// Crafts in a row that the goal needs.
    pub fn depth(&self) -> u32 {
        self.book.depth(self.goal).expect("a goal can be made")
    }

    /// A game of this task.
    pub fn game(&self) -> Game {
        Game::new(Arc::clone(&self.book), self.goal)
    }
}

/// The lines that must be shown for a goal: all recipes of it and of all its ingredients.
pub fn required_lines(book: &RecipeBook, goal: Name) -> Vec<String> {
    tree(book, goal).lines
}

struct Tree {
    recipes: Vec<bool>,
    lines: Vec<String>,
    /// Ingredients met, as (name, is a tag).
    ingredients: Vec<(Name, bool)>,
}

fn tree(book: &RecipeBook, goal: Name) -> Tree {
    let mut tree = Tree {
        recipes: vec![false; book.recipes().len()],
        lines: Vec::new(),
        ingredients: Vec::new(),
    };
    let mut open = vec![(goal, false)];
    let mut next = 0;
    while let Some((name, is_tag)) = open.get(next).copied() {
        next += 1;
        for index in book.recipes_for(name, is_tag) {
            if std::mem::replace(&mut tree.recipes[*index], true) {
                continue;
            }
            let recipe = &book.recipes()[*index];
            push_new(&mut tree.lines, book.line(recipe));
            for input in &recipe.inputs {
                push_new(&mut open, (input.name, input.is_tag));
            }
        }
    }
    tree.ingredients = open.split_off(1);
    tree
}

/// Lines of recipes outside the tree that use one of its ingredients.
fn distractors(book: &RecipeBook, tree: &Tree) -> Vec<String> {
    let mut lines = Vec::new();
    for (index, recipe) in book.recipes().iter().enumerate() {
        let shares = |input: &super::book::Ingredient| {
            tree.ingredients.contains(&(input.name, input.is_tag))
        };
        if !tree.recipes[index] && recipe.inputs.iter().any(shares) {
            let line = book.line(recipe);
            if !tree.lines.contains(&line) {
                push_new(&mut lines, line);
            }
        }
    }
    lines
}

fn push_new<T: PartialEq>(list: &mut Vec<T>, value: T) {
    if !list.contains(&value) {
        list.push(value);
    }
}

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
