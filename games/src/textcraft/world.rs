//! A book of recipes with a goal.

use super::book::{Name, RecipeBook};
use super::game::Game;
use crate::draws::Draws;
use std::sync::Arc;

/// Distractors per task on the original server.
pub const DISTRACTORS_MAX: usize = 10;

/// One task, ready to be shown and played.
#[derive(Clone, Debug)]
pub struct World {
    /// The recipes that are valid in it; there may be more than the lines shown.
    pub book: Arc<RecipeBook>,
    /// The item to craft.
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

    /// Consecutive crafts that the goal needs.
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
    /// The ingredients found, as (name, whether it is a tag).
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
