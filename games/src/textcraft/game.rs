//! One play of a TextCraft task: the answer to each command.
//!
//! The answers match the original server's exactly, including its oddities: identifiers with their
//! namespace after a craft, a Python representation if no recipe fits, errors for numbers beyond
//! Python's digit limit. Play may continue after the goal.

use std::sync::Arc;

use super::book::{Name, Recipe, RecipeBook};
use agentgym_envs::quantity::{DIGITS_MAX, Quantity};

/// The answer to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepReply {
    /// Text for the agent.
    pub observation: String,
    /// 1 if this command made the goal, otherwise 0.
    pub reward: u8,
    /// This command made the goal.
    pub done: bool,
}

/// A game in progress.
#[derive(Clone, Debug)]
pub struct Game {
    book: Arc<RecipeBook>,
    goal: Name,
    /// The inventory, in the order of first possession.
    held: Vec<(Name, Quantity)>,
}

/// A piece of a craft command: an item (`None` if the book lacks the name) and its count.
type Piece = (Option<Name>, Quantity);

impl Game {
    /// A game with an empty inventory.
    pub fn new(book: Arc<RecipeBook>, goal: Name) -> Self {
        Self {
            book,
            goal,
            held: Vec::new(),
        }
    }

    /// The inventory, in the order of first possession.
    pub(super) fn held(&self) -> impl Iterator<Item = (Name, String)> {
        let held = self.held.iter();
        held.map(|(name, count)| (*name, count.to_string()))
    }

    /// Runs one command. `Err` is the text of the original's `{"error": …}` reply, which occurs
    /// only with numbers of more than 4300 digits.
    pub fn step(&mut self, action: &str) -> Result<StepReply, String> {
        let line = action.split('\n').next().unwrap_or_default();
        let mut made = None;
        let observation = if let Some((output, inputs)) = craft_parts(line) {
            self.craft(output, inputs, &mut made)?
        } else if let Some((count, name)) = line.strip_prefix("get ").and_then(numbered) {
            self.get(integer(count)?, name)
        } else if line.starts_with("inventory") {
            self.inventory()?
        } else {
            format!("Could not execute {action}")
        };
        let done = made == Some(self.goal);
        Ok(StepReply {
            observation,
            reward: u8::from(done),
            done,
        })
    }

    fn get(&mut self, count: Quantity, name: &str) -> String {
        match self
            .lookup(name)
            .filter(|item| self.book.is_gettable(*item))
        {
            Some(item) => {
                let reply = format!("Got {count} {name}");
                self.put(item, &count);
                reply
            }
            None => format!("Could not find {name}"),
        }
    }

    fn inventory(&self) -> Result<String, String> {
        if self.held.is_empty() {
            return Ok("Inventory: You are not carrying anything.".to_owned());
        }
        let mut text = "Inventory: ".to_owned();
        for (item, count) in &self.held {
            if count.digits() > DIGITS_MAX {
                return Err(format!(
                    "Exceeds the limit ({DIGITS_MAX} digits) for integer string conversion; \
                     use sys.set_int_max_str_digits() to increase the limit"
                ));
            }
            text.push_str(&format!("[{}] ({count}) ", self.book.text(*item)));
        }
        Ok(text)
    }

    fn craft(
        &mut self,
        output: &str,
        inputs: &str,
        made: &mut Option<Name>,
    ) -> Result<String, String> {
        let mut pieces: Vec<Piece> = Vec::new();
        for piece in inputs.split(',').map(str::trim) {
            let Some((count, name)) = numbered(piece) else {
                return Ok(format!("Wrong item format: {piece}"));
            };
            pieces.push((self.lookup(name), integer(count)?));
        }
        let (count, output) = match numbered(output) {
            Some((count, name)) => (integer(count)?, name),
            None => (Quantity::from(1), output),
        };
        let id = output.replace(' ', "_");
        let target = self.book.find(&id);
        let is_tag = target.is_some_and(|name| self.book.is_tag(name));
        if !self.holds(&pieces) {
            return Ok(if is_tag {
                "Could not find enough items to craft None".to_owned()
            } else {
                format!("Could not find enough items to craft minecraft:{id}")
            });
        }
        let book = Arc::clone(&self.book);
        let recipe = target
            .into_iter()
            .flat_map(|name| book.recipes_of(name))
            .find(|recipe| fits(&book, recipe, &pieces));
        let Some(recipe) = recipe else {
            let id = python_text(&format!("minecraft:{id}"));
            let (tag, item) = if is_tag {
                (id.as_str(), "None")
            } else {
                ("None", id.as_str())
            };
            return Ok(format!(
                "Could not find a valid recipe for ItemTagWithCount(item_tag=ItemTag(tag={tag}, \
                 item_id={item}), count={count})"
            ));
        };
        for (name, count) in &pieces {
            self.take(
                name.expect("a recipe's inputs are names of the book"),
                count,
            );
        }
        self.put(recipe.output, &Quantity::from(recipe.count));
        *made = Some(recipe.output);
        Ok(format!(
            "Crafted {} minecraft:{}",
            recipe.count,
            book.id(recipe.output)
        ))
    }

    fn lookup(&self, name: &str) -> Option<Name> {
        self.book.find(&name.replace(' ', "_"))
    }

    /// Whether the inventory holds all pieces together; it never holds tags.
    fn holds(&self, pieces: &[Piece]) -> bool {
        let mut needs: Vec<(Option<Name>, Quantity)> = Vec::new();
        for (name, count) in pieces {
            match needs.iter_mut().find(|(known, _)| known == name) {
                Some((_, need)) => need.add(count),
                None => needs.push((*name, count.clone())),
            }
        }
        needs.iter().all(|(name, need)| {
            let held = self.held.iter().find(|(held, _)| Some(*held) == *name);
            match held {
                Some((_, count)) => need <= count,
                None => need.is_zero(),
            }
        })
    }

    fn put(&mut self, item: Name, count: &Quantity) {
        match self.held.iter_mut().find(|(held, _)| *held == item) {
            Some((_, known)) => known.add(count),
            None => self.held.push((item, count.clone())),
        }
    }

    /// Takes items from the inventory; an entry that reaches zero is removed.
    fn take(&mut self, item: Name, count: &Quantity) {
        let at = self.held.iter().position(|(held, _)| *held == item);
        let at = at.expect("taken items were found in the inventory");
        self.held[at].1.subtract(count);
        if self.held[at].1.is_zero() {
            self.held.remove(at);
        }
    }
}

/// `craft <output> using <inputs>`, split at the last ` using `.
fn craft_parts(line: &str) -> Option<(&str, &str)> {
    line.strip_prefix("craft ")?.rsplit_once(" using ")
}

/// Splits `<ASCII digits> <rest>`.
fn numbered(text: &str) -> Option<(&str, &str)> {
    let (digits, name) = text.split_once(' ')?;
    let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    is_number.then_some((digits, name))
}

fn integer(digits: &str) -> Result<Quantity, String> {
    if digits.len() > DIGITS_MAX {
        return Err(format!(
            "Exceeds the limit ({DIGITS_MAX} digits) for integer string conversion: value has {} \
             digits; use sys.set_int_max_str_digits() to increase the limit",
            digits.len()
        ));
    }
    Ok(Quantity::from_digits(digits))
}

/// Whether the pieces match this recipe's inputs and counts, in any order. Items are assigned
/// before tags, so that a tag gets a piece that no item needs.
fn fits(book: &RecipeBook, recipe: &Recipe, pieces: &[Piece]) -> bool {
    if recipe.inputs.len() != pieces.len() {
        return false;
    }
    let mut used = vec![false; pieces.len()];
    let (tags, items): (Vec<_>, Vec<_>) = recipe.inputs.iter().partition(|input| input.is_tag);
    items.into_iter().chain(tags).all(|input| {
        let at = pieces.iter().enumerate().position(|(at, (name, count))| {
            let kind = if input.is_tag {
                name.and_then(|name| book.tag_of(name))
            } else {
                *name
            };
            !used[at] && kind == Some(input.name) && *count == Quantity::from(input.count)
        });
        at.map(|at| used[at] = true).is_some()
    })
}

/// A text in Python's `repr` form.
fn python_text(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    let mut out = String::from(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            c if c == quote => out.extend(['\\', c]),
            c if c.is_ascii_control() => out.push_str(&format!("\\x{:02x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push(quote);
    out
}

#[cfg(test)]
mod tests;
