//! A picture of a task: what is held, and the recipes that lead to the goal as a tree.

use super::book::{Ingredient, Name, RecipeBook};
use super::game::Game;
use super::solver::recipe_depth;
use super::world::World;
use agentgym_envs::replica::Replica;
use serde_json::{Value, json};

/// Nodes of a tree. A goal that needs more is shown in part.
const NODES_MAX: usize = 60;

/// A task that is being played.
pub(super) struct Bench {
    world: World,
    game: Game,
    /// The tree does not change.
    tree: Value,
}

impl Bench {
    pub(super) fn new(world: World) -> Self {
        let mut left = NODES_MAX;
        let goal = Ingredient {
            name: world.goal,
            is_tag: false,
            count: 1,
        };
        Self {
            game: world.game(),
            tree: tree(&world.book, &goal, &mut left),
            world,
        }
    }
}

impl Replica for Bench {
    fn first(&self) -> String {
        self.world.observation()
    }

    fn step(&mut self, action: &str) -> String {
        let reply = self.game.step(action);
        reply.map_or_else(|error| error, |reply| reply.observation)
    }

    fn picture(&self) -> Value {
        let book = &self.world.book;
        let held = self.game.held();
        let held = held.map(|(name, count)| json!([book.text(name), count]));
        json!({
            "kind": "crafting", "goal": book.text(self.world.goal), "tree": self.tree,
            "held": held.collect::<Vec<_>>(),
        })
    }
}

/// An ingredient with the shortest way to it: of several recipes the one of the least depth, then
/// of the fewest inputs.
fn tree(book: &RecipeBook, input: &Ingredient, left: &mut usize) -> Value {
    *left = left.saturating_sub(1);
    let item = kind(book, input);
    let ways = book.recipes_of(item);
    let ways = ways.filter_map(|recipe| Some((recipe_depth(book, recipe)?, recipe)));
    let best = ways.min_by_key(|(depth, recipe)| (*depth, recipe.inputs.len()));
    let mut inputs = Vec::new();
    for input in best.iter().flat_map(|(_, recipe)| &recipe.inputs) {
        if *left > 0 {
            inputs.push(tree(book, input, left));
        }
    }
    json!({
        "item": book.text(item), "count": input.count,
        "makes": best.map(|(_, recipe)| recipe.count), "inputs": inputs,
        "any": input.is_tag.then(|| book.text(input.name)),
    })
}

/// The item that is taken for an ingredient: for a tag, the one of the least depth.
fn kind(book: &RecipeBook, input: &Ingredient) -> Name {
    if !input.is_tag {
        return input.name;
    }
    let recipes = book.recipes_for(input.name, true).iter();
    let items = recipes.map(|index| book.recipes()[*index].output);
    let items = items.filter_map(|item| Some((book.depth(item)?, item)));
    items.min().map_or(input.name, |(_, item)| item)
}
