//! Solves tasks: finds the actions that make a goal, from the recipes.
//!
//! Used for demonstrations, and in tests to prove that every task can be solved. Of an item's
//! recipes the one with the least depth is taken, then the one with the fewest actions; depth
//! strictly decreases along the way, so there is no loop. Items at hand are used first, and items
//! reserved for one craft are not spent on another.

use std::collections::BTreeMap;

use super::book::{Ingredient, Name, Recipe, RecipeBook};

/// When raw items are fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Gather {
    /// Before each craft and only for it: every number is copied from a recipe's line.
    #[default]
    PerCraft,
    /// Once for all consecutive crafts of a recipe: fewer rounds, but numbers must be multiplied.
    Once,
}

/// One action of a solution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// The command.
    pub action: String,
    /// The recipes that this action contributes to, as `<output> using <inputs>`: the goal's first,
    /// then the one that makes its ingredient, down to the current one.
    pub path: Vec<String>,
    /// The item that the recipe makes.
    pub makes: Name,
}

/// The commands that make `goal` from an empty inventory; `None` if it cannot be made.
pub fn solve(book: &RecipeBook, goal: Name) -> Option<Vec<String>> {
    let moves = solve_with(book, goal, Gather::default())?;
    Some(moves.into_iter().map(|step| step.action).collect())
}

/// Like [`solve`], with a choice of when to fetch, and with the purpose of each action.
pub fn solve_with(book: &RecipeBook, goal: Name, gather: Gather) -> Option<Vec<Move>> {
    book.recipes_of(goal).next()?;
    book.depth(goal)?;
    let mut solver = Solver {
        book,
        gather,
        held: BTreeMap::new(),
        aside: BTreeMap::new(),
        path: Vec::new(),
        moves: Vec::new(),
        costs: BTreeMap::new(),
    };
    solver.make(goal, 1);
    Some(solver.moves)
}

struct Solver<'a> {
    book: &'a RecipeBook,
    gather: Gather,
    held: BTreeMap<Name, u32>,
    /// The part of `held` that is reserved for unfinished crafts.
    aside: BTreeMap<Name, u32>,
    path: Vec<String>,
    moves: Vec<Move>,
    costs: BTreeMap<(Name, u32), u64>,
}

impl<'a> Solver<'a> {
    fn free(&self, item: Name) -> u32 {
        let held = self.held.get(&item).copied().unwrap_or(0);
        held - self.aside.get(&item).copied().unwrap_or(0)
    }

    /// Crafts until this many of the item are free.
    fn make(&mut self, item: Name, wanted: u32) {
        let missing = wanted.saturating_sub(self.free(item));
        if missing == 0 {
            return;
        }
        let recipe = self.best_recipe(item, missing);
        let crafts = missing.div_ceil(recipe.count);
        let batch = match self.gather {
            Gather::PerCraft => 1,
            Gather::Once => crafts,
        };
        let kinds: Vec<(Name, u32)> = recipe
            .inputs
            .iter()
            .map(|input| (self.kind(input), input.count))
            .collect();
        let inputs: Vec<String> = kinds
            .iter()
            .map(|(kind, count)| format!("{count} {}", self.book.text(*kind)))
            .collect();
        let target = format!("{} using {}", self.book.text(item), inputs.join(", "));
        self.path.push(target.clone());
        for _ in 0..crafts / batch {
            for (kind, count) in &kinds {
                let need = count * batch;
                if self.book.is_gettable(*kind) {
                    let missing = need.saturating_sub(self.free(*kind));
                    if missing > 0 {
                        let action = format!("get {missing} {}", self.book.text(*kind));
                        self.push(action, item);
                        *self.held.entry(*kind).or_default() += missing;
                    }
                } else {
                    self.make(*kind, need);
                }
                *self.aside.entry(*kind).or_default() += need;
            }
            for _ in 0..batch {
                self.push(format!("craft {} {target}", recipe.count), item);
                *self.held.entry(item).or_default() += recipe.count;
                for (kind, count) in &kinds {
                    for pile in [&mut self.held, &mut self.aside] {
                        *pile.get_mut(kind).expect("inputs were set aside") -= count;
                    }
                }
            }
        }
        self.path.pop();
    }

    fn push(&mut self, action: String, makes: Name) {
        self.moves.push(Move {
            action,
            path: self.path.clone(),
            makes,
        });
    }

    /// The item to use for an ingredient: for a tag, an item with enough in the inventory,
    /// otherwise the cheapest.
    fn kind(&mut self, input: &Ingredient) -> Name {
        if !input.is_tag {
            return input.name;
        }
        let depth = self.book.depth(input.name);
        let mut kinds: Vec<Name> = self
            .book
            .recipes_for(input.name, true)
            .iter()
            .map(|index| self.book.recipes()[*index].output)
            .filter(|item| self.book.depth(*item) == depth)
            .collect();
        kinds.sort_unstable();
        kinds.dedup();
        kinds
            .into_iter()
            .min_by_key(|item| {
                (
                    self.free(*item) < input.count,
                    self.cost(*item, input.count),
                    *item,
                )
            })
            .expect("a tag's depth is that of one of its items")
    }

    fn best_recipe(&mut self, item: Name, wanted: u32) -> &'a Recipe {
        let book = self.book;
        let depth = self.book.depth(item);
        book.recipes_of(item)
            .filter(|recipe| recipe_depth(book, recipe) == depth)
            .min_by_key(|recipe| self.recipe_cost(recipe, wanted))
            .expect("an item's depth is that of one of its recipes")
    }

    /// Number of actions to make an item from an empty inventory; leftovers are ignored.
    fn cost(&mut self, item: Name, wanted: u32) -> u64 {
        if self.book.is_gettable(item) {
            return 1;
        }
        if let Some(cost) = self.costs.get(&(item, wanted)) {
            return *cost;
        }
        let recipe = self.best_recipe(item, wanted);
        let cost = self.recipe_cost(recipe, wanted);
        self.costs.insert((item, wanted), cost);
        cost
    }

    fn recipe_cost(&mut self, recipe: &Recipe, wanted: u32) -> u64 {
        let mut cost = 1u64;
        for input in &recipe.inputs {
            let kind = self.kind(input);
            cost = cost.saturating_add(self.cost(kind, input.count));
        }
        cost.saturating_mul(u64::from(wanted.div_ceil(recipe.count)))
    }
}

/// Depth of the recipe's output if made by it; `None` if the recipe cannot be carried out.
pub(super) fn recipe_depth(book: &RecipeBook, recipe: &Recipe) -> Option<u32> {
    recipe
        .inputs
        .iter()
        .map(|input| book.depth(input.name))
        .try_fold(0, |most, depth| Some(depth?.max(most)))
        .map(|depth| depth + 1)
}
