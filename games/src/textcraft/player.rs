//! A player that asks for what it needs: it requests each ingredient with `get`, and where that is
//! refused it goes down to the ingredient's own recipe. It may have goals of its own: recipes that
//! it picks from the book and carries out as well as the goal's.

use super::book::{Ingredient, Name, Recipe, RecipeBook};
use super::solver::recipe_depth;
use crate::draws::Draws;
use std::collections::BTreeMap;

/// Recipes that it pursues within each other; a deeper chain is given up.
const PATH_MAX: usize = 5;

pub(super) struct Player<'a> {
    book: &'a RecipeBook,
    goal: Name,
    /// Chance, in percent, that it picks a recipe of its own where it would pick the goal's.
    own_percent: usize,
    /// Chance, in percent, of a slip instead of the right action.
    slips_percent: usize,
    /// The recipes that it pursues: each makes an ingredient of the one before it.
    path: Vec<&'a Recipe>,
    held: BTreeMap<Name, u32>,
    /// Items that `get` has refused.
    refused: Vec<Name>,
    /// Recipes that it has picked.
    picked: Vec<&'a Recipe>,
}

/// What it does next.
pub(super) struct Turn {
    /// The path, if it has changed: `<output> using <inputs>; <ingredient> using <inputs>`.
    pub(super) plan: Option<String>,
    pub(super) action: String,
    /// A mistake: what follows shows how to go on after it.
    pub(super) is_slip: bool,
    does: Does,
}

enum Does {
    Gets(Name, u32),
    Crafts,
    /// Crafts what it has too little for.
    CraftsTooEarly,
}

impl<'a> Player<'a> {
    /// A player with an empty inventory; `None` if the goal has no recipe.
    pub(super) fn new(
        book: &'a RecipeBook,
        goal: Name,
        (own_percent, slips_percent): (u32, u32),
        draws: &mut Draws,
    ) -> Option<Self> {
        let mut player = Player {
            book,
            goal,
            own_percent: own_percent as usize,
            slips_percent: slips_percent as usize,
            path: Vec::new(),
            held: BTreeMap::new(),
            refused: Vec::new(),
            picked: Vec::new(),
        };
        player.pick(draws)?;
        Some(player)
    }

    /// Takes up another goal, with what it holds and knows.
    pub(super) fn take_up(&mut self, goal: Name, draws: &mut Draws) -> Option<()> {
        self.goal = goal;
        self.picked.clear();
        self.pick(draws)
    }

    /// Its next action. `said` is the plan that it has told last.
    pub(super) fn turn(&mut self, said: &str, draws: &mut Draws) -> Option<Turn> {
        let (action, does) = loop {
            let recipe = *self.path.last()?;
            let missing = recipe.inputs.iter().find_map(|input| {
                let kind = self.kind(input);
                let held = self.held.get(&kind).copied().unwrap_or(0);
                (held < input.count).then(|| (kind, input.count - held))
            });
            match missing {
                None => break (format!("craft {}", self.told(recipe)), Does::Crafts),
                Some((kind, _)) if self.refused.contains(&kind) => self.go_down(kind, draws)?,
                Some((kind, count)) => break self.gets(kind, count),
            }
        };
        let told: Vec<String> = self.path.iter().map(|recipe| self.told(recipe)).collect();
        let plan = told.join("; ");
        let slips = self.slips_percent > 0 && draws.percent(self.slips_percent);
        let slip = match slips {
            true => self.slip(&does, &plan, draws),
            false => None,
        };
        let is_slip = slip.is_some();
        let (plan, action, does) = slip.unwrap_or((plan, action, does));
        Some(Turn {
            plan: (plan != said).then_some(plan),
            action,
            is_slip,
            does,
        })
    }

    fn gets(&self, kind: Name, count: u32) -> (String, Does) {
        let action = format!("get {count} {}", self.book.text(kind));
        (action, Does::Gets(kind, count))
    }

    /// A mistake in place of what it `does`, with the plan that goes with it: it crafts before it has
    /// everything, gets too few, asks for a refused item again, or takes the line of another
    /// recipe for the one that it pursues.
    fn slip(&self, does: &Does, plan: &str, draws: &mut Draws) -> Option<(String, String, Does)> {
        let recipe = *self.path.last()?;
        let (action, does) = match (draws.below(4), does) {
            (0, Does::Gets(..)) => {
                let action = format!("craft {}", self.told(recipe));
                (action, Does::CraftsTooEarly)
            }
            (1, Does::Gets(kind, count)) if *count > 1 => {
                self.gets(*kind, draws.between(1..=count - 1))
            }
            (2, _) if !self.refused.is_empty() => {
                let kind = self.refused[draws.below(self.refused.len())];
                self.gets(kind, draws.between(1..=4))
            }
            (3, _) => {
                let others = self.book.recipes().iter();
                let others: Vec<&Recipe> = others.filter(|other| *other != recipe).collect();
                let other = *others.get(draws.below(others.len().max(1)))?;
                let input = other.inputs.first()?;
                let told = self.told_as(recipe.output, other);
                let plan = match plan.rsplit_once("; ") {
                    Some((head, _)) => format!("{head}; {told}"),
                    None => told,
                };
                let (action, does) = self.gets(self.kind(input), input.count);
                return Some((plan, action, does));
            }
            _ => return None,
        };
        Some((plan.to_owned(), action, does))
    }

    /// Takes the game's answer in. Whether it has made the goal.
    pub(super) fn learn(&mut self, turn: &Turn, answer: &str, draws: &mut Draws) -> Option<bool> {
        match turn.does {
            Does::Gets(kind, count) if answer.starts_with("Got ") => {
                *self.held.entry(kind).or_default() += count;
            }
            Does::Gets(kind, _) => self.refused.push(kind),
            Does::CraftsTooEarly => {}
            Does::Crafts => {
                let recipe = self.path.pop()?;
                for input in &recipe.inputs {
                    *self.held.get_mut(&self.kind(input))? -= input.count;
                }
                *self.held.entry(recipe.output).or_default() += recipe.count;
                if recipe.output == self.goal {
                    return Some(true);
                }
                if self.path.is_empty() {
                    self.pick(draws)?;
                }
            }
        }
        Some(false)
    }

    fn told(&self, recipe: &Recipe) -> String {
        self.told_as(recipe.output, recipe)
    }

    /// An item with the inputs of a recipe, which may be another one's.
    fn told_as(&self, output: Name, recipe: &Recipe) -> String {
        let input =
            |input: &Ingredient| format!("{} {}", input.count, self.book.text(self.kind(input)));
        let inputs: Vec<String> = recipe.inputs.iter().map(input).collect();
        format!("{} using {}", self.book.text(output), inputs.join(", "))
    }

    fn go_down(&mut self, item: Name, draws: &mut Draws) -> Option<()> {
        if self.path.len() == PATH_MAX {
            return self.pick(draws);
        }
        let recipe = self.best(item)?;
        self.path.push(recipe);
        Some(())
    }

    /// Picks a recipe to pursue: the goal's, or one of its own.
    fn pick(&mut self, draws: &mut Draws) -> Option<()> {
        let book = self.book;
        let recipe = match draws.percent(self.own_percent) {
            false => self.best(self.goal)?,
            true => {
                let can_be_made = |recipe: &&Recipe| recipe_depth(book, recipe).is_some();
                let all: Vec<&Recipe> = book.recipes().iter().filter(can_be_made).collect();
                let left: Vec<&Recipe> = all
                    .iter()
                    .copied()
                    .filter(|recipe| !self.picked.contains(recipe))
                    .collect();
                let from = if left.is_empty() { all } else { left };
                *from.get(draws.below(from.len().max(1)))?
            }
        };
        self.picked.push(recipe);
        self.path = vec![recipe];
        Some(())
    }

    /// The recipe of the least depth, then of the fewest inputs.
    fn best(&self, item: Name) -> Option<&'a Recipe> {
        let recipes = self.book.recipes_of(item);
        let recipes = recipes.filter_map(|recipe| Some((recipe_depth(self.book, recipe)?, recipe)));
        let best = recipes.min_by_key(|(depth, recipe)| (*depth, recipe.inputs.len()));
        best.map(|(_, recipe)| recipe)
    }

    /// The item that it uses for an ingredient: for a tag, the one of the least depth.
    fn kind(&self, input: &Ingredient) -> Name {
        if !input.is_tag {
            return input.name;
        }
        let recipes = self.book.recipes_for(input.name, true).iter();
        let items = recipes.map(|index| self.book.recipes()[*index].output);
        let items = items.filter_map(|item| Some((self.book.depth(item)?, item)));
        items.min().map_or(input.name, |(_, item)| item)
    }
}
