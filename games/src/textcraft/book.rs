//! A recipe book: the recipes, the possible goals, and the depth of each.
//!
//! The rules are the original server's: a recipe is dropped if it would close a cycle with those
//! loaded before it, or if it only takes a block apart; a recipe's group makes its output a member
//! of a tag; a tag that no craftable item carries counts as an item that `get` provides. Which
//! recipes are dropped depends on the loading order, so the caller chooses the order, never the
//! file system.

use std::collections::BTreeMap;

/// A name of the book (an item or a tag), as an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(u32);

/// One input of a recipe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ingredient {
    /// An item, or a tag if any item with that tag is accepted.
    pub name: Name,
    /// The name is a tag.
    pub is_tag: bool,
    /// The number used up; also for a tag, all of them are of one kind.
    pub count: u32,
}

/// One way to make an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// What is made.
    pub output: Name,
    /// The number made.
    pub count: u32,
    /// The ingredients, in the order of the text.
    pub inputs: Vec<Ingredient>,
}

#[derive(Clone, Debug, Default)]
struct Entry {
    /// Identifier without namespace, such as `oak_planks`.
    id: String,
    is_item: bool,
    /// Recipes of this item.
    recipes: Vec<usize>,
    /// The tag of this item.
    tag: Option<Name>,
    /// Recipes of all items with this tag.
    tagged: Vec<usize>,
    /// Consecutive crafts that the item needs; `None` if it cannot be obtained.
    depth: Option<u32>,
}

/// Recipes and everything derived from them.
#[derive(Clone, Debug)]
pub struct RecipeBook {
    entries: Vec<Entry>,
    index: BTreeMap<String, Name>,
    recipes: Vec<Recipe>,
    goals: Vec<Name>,
    digest: [u8; 32],
}

/// An input as loaded: name, whether it is a tag, count.
pub(crate) type RawInput = (String, bool, u32);

/// Takes recipes in loading order; [`BookBuilder::finish`] derives the rest.
#[derive(Default)]
pub(crate) struct BookBuilder {
    entries: Vec<Entry>,
    index: BTreeMap<String, Name>,
    recipes: Vec<Recipe>,
    loading_order: Vec<Name>,
}

impl BookBuilder {
    fn name(&mut self, id: &str) -> Name {
        if let Some(name) = self.index.get(id) {
            return *name;
        }
        let name = Name(u32::try_from(self.entries.len()).expect("fewer than 2^32 names"));
        self.entries.push(Entry {
            id: id.to_owned(),
            ..Entry::default()
        });
        self.index.insert(id.to_owned(), name);
        name
    }

    fn entry(&mut self, name: Name) -> &mut Entry {
        &mut self.entries[name.0 as usize]
    }

    /// Adds a recipe, unless the book's rules drop it. Equal inputs are merged at the position of
    /// the first one.
    pub(crate) fn add(&mut self, output: &str, count: u32, raw: &[RawInput], group: Option<&str>) {
        let mut inputs: Vec<Ingredient> = Vec::with_capacity(raw.len());
        for (id, is_tag, count) in raw {
            let name = self.name(id);
            if !is_tag {
                self.entry(name).is_item = true;
            }
            match inputs
                .iter_mut()
                .find(|i| i.name == name && i.is_tag == *is_tag)
            {
                Some(known) => known.count += count,
                None => inputs.push(Ingredient {
                    name,
                    is_tag: *is_tag,
                    count: *count,
                }),
            }
        }
        let name = self.name(output);
        self.entry(name).is_item = true;
        let only_a_block = matches!(raw, [(id, _, _)] if id.ends_with("_block"))
            || matches!(&inputs[..], [input] if self.entries[input.name.0 as usize].id.ends_with("_block"));
        if only_a_block || self.would_cycle(name, &inputs) {
            return;
        }
        if self.entry(name).recipes.is_empty() {
            self.loading_order.push(name);
        }
        let index = self.recipes.len();
        self.entry(name).recipes.push(index);
        if let Some(group) = group.filter(|group| *group != output) {
            let tag = self.name(group);
            self.entry(name).tag = Some(tag);
        }
        self.recipes.push(Recipe {
            output: name,
            count,
            inputs,
        });
    }

    /// Whether an input already needs the output, following only the recipes of items.
    fn would_cycle(&self, output: Name, inputs: &[Ingredient]) -> bool {
        let mut seen = vec![false; self.entries.len()];
        let mut open: Vec<Name> = inputs.iter().map(|input| input.name).collect();
        while let Some(name) = open.pop() {
            if name == output {
                return true;
            }
            if std::mem::replace(&mut seen[name.0 as usize], true) {
                continue;
            }
            for recipe in &self.entries[name.0 as usize].recipes {
                open.extend(self.recipes[*recipe].inputs.iter().map(|input| input.name));
            }
        }
        false
    }

    pub(crate) fn finish(mut self) -> RecipeBook {
        for index in 0..self.recipes.len() {
            if let Some(tag) = self.entries[self.recipes[index].output.0 as usize].tag {
                self.entry(tag).tagged.push(index);
            }
        }
        for recipe in &mut self.recipes {
            for input in &mut recipe.inputs {
                let entry = &mut self.entries[input.name.0 as usize];
                if input.is_tag && entry.tagged.is_empty() {
                    input.is_tag = false;
                    entry.is_item = true;
                }
            }
        }
        self.set_depths();
        let mut goals: Vec<(u32, Name)> = self
            .loading_order
            .iter()
            .filter_map(|name| {
                self.entries[name.0 as usize]
                    .depth
                    .map(|depth| (depth, *name))
            })
            .collect();
        goals.sort_by_key(|(depth, _)| *depth);
        let mut book = RecipeBook {
            goals: goals.into_iter().map(|(_, name)| name).collect(),
            entries: self.entries,
            index: self.index,
            recipes: self.recipes,
            digest: [0; 32],
        };
        let mut hasher = blake3::Hasher::new();
        for recipe in &book.recipes {
            hasher.update(book.line(recipe).as_bytes());
            hasher.update(b"\n");
        }
        book.digest = *hasher.finalize().as_bytes();
        book
    }

    /// Depth is 0 for items without a recipe; for others the minimum over their recipes of (1 + the
    /// maximum depth of the inputs); for a tag the minimum over the recipes of its items. Repeated
    /// until nothing changes, since tags may refer to items of later recipes.
    fn set_depths(&mut self) {
        for entry in &mut self.entries {
            let gettable = entry.is_item && entry.recipes.is_empty() && entry.tagged.is_empty();
            entry.depth = gettable.then_some(0);
        }
        loop {
            let mut changed = false;
            for recipe in &self.recipes {
                let Some(inputs) = recipe
                    .inputs
                    .iter()
                    .map(|input| self.entries[input.name.0 as usize].depth)
                    .try_fold(0, |most, depth| Some(depth?.max(most)))
                else {
                    continue;
                };
                let tag = self.entries[recipe.output.0 as usize].tag;
                for name in std::iter::once(recipe.output).chain(tag) {
                    let entry = &mut self.entries[name.0 as usize];
                    if entry.depth.is_none_or(|depth| depth > inputs + 1) {
                        entry.depth = Some(inputs + 1);
                        changed = true;
                    }
                }
            }
            if !changed {
                return;
            }
        }
    }
}

impl RecipeBook {
    fn entry(&self, name: Name) -> &Entry {
        &self.entries[name.0 as usize]
    }

    /// All recipes that were kept, in loading order.
    pub fn recipes(&self) -> &[Recipe] {
        &self.recipes
    }

    /// The possible goals: every craftable item, by depth, then in loading order. A task's id is an
    /// index into this list.
    pub fn goals(&self) -> &[Name] {
        &self.goals
    }

    /// The name as the agent reads and writes it, such as `oak planks`.
    pub fn text(&self, name: Name) -> String {
        self.entry(name).id.replace('_', " ")
    }

    /// The name as an identifier, such as `oak_planks`.
    pub fn id(&self, name: Name) -> &str {
        &self.entry(name).id
    }

    /// The name with this identifier.
    pub fn find(&self, id: &str) -> Option<Name> {
        self.index.get(id).copied()
    }

    /// Consecutive crafts that an item (for a tag, its cheapest item) needs.
    pub fn depth(&self, name: Name) -> Option<u32> {
        self.entry(name).depth
    }

    /// Whether the name is a tag: not an item itself, and the tag of a craftable item.
    pub fn is_tag(&self, name: Name) -> bool {
        let entry = self.entry(name);
        !entry.is_item && !entry.tagged.is_empty()
    }

    /// The tag of an item.
    pub fn tag_of(&self, item: Name) -> Option<Name> {
        self.entry(item).tag
    }

    /// Whether `get` provides this item.
    pub fn is_gettable(&self, name: Name) -> bool {
        let entry = self.entry(name);
        entry.is_item && entry.recipes.is_empty() && entry.tagged.is_empty()
    }

    /// Recipes of an item.
    pub fn recipes_of(&self, item: Name) -> impl Iterator<Item = &Recipe> {
        self.entry(item)
            .recipes
            .iter()
            .map(|index| &self.recipes[*index])
    }

    /// Recipes that make an ingredient.
    pub(crate) fn recipes_for(&self, name: Name, is_tag: bool) -> &[usize] {
        let entry = self.entry(name);
        if is_tag {
            &entry.tagged
        } else {
            &entry.recipes
        }
    }

    /// A recipe as the agent reads it: `craft 4 oak planks using 1 oak log`.
    pub fn line(&self, recipe: &Recipe) -> String {
        format!("craft {} {}", recipe.count, self.way(recipe))
    }

    /// `<output> using <inputs>`.
    pub(crate) fn way(&self, recipe: &Recipe) -> String {
        let inputs = recipe
            .inputs
            .iter()
            .map(|input| format!("{} {}", input.count, self.text(input.name)))
            .collect::<Vec<_>>()
            .join(", ");
        format!("{} using {inputs}", self.text(recipe.output))
    }

    /// Digest of all lines in loading order; identifies the book in random keys and records.
    pub fn digest(&self) -> &[u8; 32] {
        &self.digest
    }
}
