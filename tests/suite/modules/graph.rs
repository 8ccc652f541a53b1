//! The graph of which file of a crate uses names of which other file, from the sources. A name
//! re-exported by `pub use` counts as used where it is defined; naming a module, declaring it or
//! re-exporting its names is not a use. Tests are excluded.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use syn::visit::{self, Visit};
use syn::{Attribute, Item, UseTree, Visibility};

/// A module's path from the root of its crate.
type ModulePath = Vec<String>;

#[derive(Default)]
struct Module {
    file: PathBuf,
    /// Types, traits and macros.
    items: BTreeSet<String>,
    /// Functions, constants and statics: a module may have the name of one.
    values: BTreeSet<String>,
    /// Those types that are visible outside the crate, as far as the file shows.
    public_types: BTreeSet<String>,
    children: BTreeSet<String>,
    /// The name in scope, and the path that it refers to.
    imports: BTreeMap<String, Vec<String>>,
    globs: Vec<Vec<String>>,
    /// Paths that occur in its code.
    named: BTreeSet<Vec<String>>,
}

/// The files of one crate.
pub(crate) struct Crate {
    modules: BTreeMap<ModulePath, Module>,
}

/// From a file to the files that it uses, with the names used.
pub(super) type Arrows = BTreeMap<PathBuf, BTreeMap<PathBuf, BTreeSet<String>>>;

impl Crate {
    /// Reads the modules below a crate's root file.
    ///
    /// # Panics
    /// If a file is missing or is not Rust.
    pub(super) fn read(root: &Path) -> Self {
        let mut modules = BTreeMap::new();
        let folder = root.parent().expect("a file is in a folder");
        read_file(&mut modules, Vec::new(), root, folder);
        Crate { modules }
    }

    /// All files except tests.
    pub(super) fn files(&self) -> BTreeSet<&Path> {
        self.modules.values().map(|m| m.file.as_path()).collect()
    }

    /// Names of types that their files declare `pub`.
    pub(crate) fn public_types(&self) -> BTreeSet<String> {
        let all = self.modules.values();
        all.flat_map(|module| module.public_types.clone()).collect()
    }

    pub(super) fn arrows(&self) -> Arrows {
        let mut arrows = Arrows::new();
        for (path, module) in &self.modules {
            for named in &module.named {
                let Some(file) = self.resolve(path, named, 0) else {
                    continue;
                };
                if file != module.file {
                    let from = arrows.entry(module.file.clone()).or_default();
                    let names = from.entry(file.to_owned()).or_default();
                    names.insert(named.join("::"));
                }
            }
        }
        arrows
    }

    /// The file that defines the name at a path; `None` for a module, a name of another crate or a
    /// local name.
    fn resolve(&self, from: &[String], path: &[String], depth: usize) -> Option<&Path> {
        let (first, rest) = path.split_first()?;
        // Two globs may refer to each other.
        if depth > 12 {
            return None;
        }
        let module = self.modules.get(from)?;
        match first.as_str() {
            "crate" => return self.resolve(&[], rest, depth + 1),
            "self" => return self.resolve(from, rest, depth + 1),
            "super" => return self.resolve(&from[..from.len().checked_sub(1)?], rest, depth + 1),
            _ => {}
        }
        let is_child = module.children.contains(first);
        let is_type = module.items.contains(first) && (rest.is_empty() || !is_child);
        if is_type || (rest.is_empty() && module.values.contains(first)) {
            return Some(&module.file);
        }
        if is_child {
            let child = [from, std::slice::from_ref(first)].concat();
            return self.resolve(&child, rest, depth + 1);
        }
        if let Some(stands_for) = module.imports.get(first) {
            // `use x::x` of another crate.
            if stands_for.first() == Some(first) {
                return None;
            }
            let whole = [stands_for.as_slice(), rest].concat();
            return self.resolve(from, &whole, depth + 1);
        }
        module.globs.iter().find_map(|glob| {
            let whole = [glob.as_slice(), path].concat();
            self.resolve(from, &whole, depth + 1)
        })
    }
}

/// The sets of files that use each other in a cycle.
pub(super) fn circles(arrows: &Arrows) -> Vec<BTreeSet<&Path>> {
    let reached: BTreeMap<&Path, BTreeSet<&Path>> = arrows
        .keys()
        .map(|start| {
            let (mut open, mut seen) = (vec![start.as_path()], BTreeSet::new());
            while let Some(file) = open.pop() {
                for next in arrows.get(file).into_iter().flat_map(BTreeMap::keys) {
                    if seen.insert(next.as_path()) {
                        open.push(next);
                    }
                }
            }
            (start.as_path(), seen)
        })
        .collect();
    let reaches = |a: &Path, b: &Path| reached.get(a).is_some_and(|seen| seen.contains(b));
    let mut found: Vec<BTreeSet<&Path>> = Vec::new();
    for file in reached.keys().filter(|file| reaches(file, file)) {
        match found.iter_mut().find(|circle| {
            let other = circle.first().expect("a circle has files");
            reaches(file, other) && reaches(other, file)
        }) {
            Some(circle) => {
                circle.insert(file);
            }
            None => found.push(BTreeSet::from([*file])),
        }
    }
    found
}

fn read_file(
    modules: &mut BTreeMap<ModulePath, Module>,
    path: ModulePath,
    file: &Path,
    folder: &Path,
) {
    let text = std::fs::read_to_string(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let parsed = syn::parse_file(&text).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    read_items(modules, path, file, folder, &parsed.items);
}

fn read_items(
    modules: &mut BTreeMap<ModulePath, Module>,
    path: ModulePath,
    file: &Path,
    folder: &Path,
    items: &[Item],
) {
    let mut module = Module {
        file: file.to_owned(),
        ..Module::default()
    };
    for item in items {
        module.public_types.extend(public_type(item));
        let mut defines = |name: &syn::Ident| {
            let is_value = matches!(item, Item::Const(_) | Item::Fn(_) | Item::Static(_));
            let names = match is_value {
                true => &mut module.values,
                false => &mut module.items,
            };
            names.insert(name.to_string());
        };
        match item {
            Item::Mod(declared) if !is_test(&declared.attrs) => {
                let name = declared.ident.to_string();
                let below = folder.join(&name);
                let child = [path.as_slice(), std::slice::from_ref(&name)].concat();
                match &declared.content {
                    Some((_, items)) => read_items(modules, child, file, &below, items),
                    None => {
                        let beside = folder.join(format!("{name}.rs"));
                        let inside = below.join("mod.rs");
                        let file = if beside.exists() { beside } else { inside };
                        read_file(modules, child, &file, &below);
                    }
                }
                module.children.insert(name);
            }
            Item::Const(i) => defines(&i.ident),
            Item::Enum(i) => defines(&i.ident),
            Item::Fn(i) if !is_test(&i.attrs) => defines(&i.sig.ident),
            Item::Static(i) => defines(&i.ident),
            Item::Struct(i) => defines(&i.ident),
            Item::Trait(i) => defines(&i.ident),
            Item::Type(i) => defines(&i.ident),
            Item::Macro(i) => i.ident.iter().for_each(defines),
            Item::Use(i) if !is_test(&i.attrs) => {
                let is_private = matches!(i.vis, Visibility::Inherited);
                for (name, stands_for) in flat(&i.tree, &[]) {
                    if is_private {
                        module.named.insert(stands_for.clone());
                    }
                    match name {
                        Some(name) => drop(module.imports.insert(name, stands_for)),
                        None => module.globs.push(stands_for),
                    }
                }
            }
            _ => {}
        }
    }
    let mut names = Names::default();
    for item in items
        .iter()
        .filter(|i| !matches!(i, Item::Use(_) | Item::Mod(_)))
    {
        names.visit_item(item);
    }
    module.named.append(&mut names.0);
    modules.insert(path, module);
}

/// The name of a `pub` type. `named!` defines enums.
fn public_type(item: &Item) -> Option<String> {
    let (visibility, name) = match item {
        Item::Enum(i) => (&i.vis, &i.ident),
        Item::Struct(i) => (&i.vis, &i.ident),
        Item::Trait(i) => (&i.vis, &i.ident),
        Item::Type(i) => (&i.vis, &i.ident),
        Item::Macro(i) if i.mac.path.is_ident("named") => {
            let words = i.mac.tokens.to_string();
            let (_, after) = words.split_once("pub enum ")?;
            return after.split([' ', ',']).next().map(str::to_owned);
        }
        _ => return None,
    };
    matches!(visibility, Visibility::Public(_)).then(|| name.to_string())
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let is_cfg = attribute.path().is_ident("cfg");
        is_cfg && matches!(&attribute.meta, syn::Meta::List(l) if l.tokens.to_string() == "test")
    })
}

/// The names that a `use` brings into scope, each with its path; `None` for a glob.
fn flat(tree: &UseTree, before: &[String]) -> Vec<(Option<String>, Vec<String>)> {
    let with = |name: &syn::Ident| match (before, name.to_string()) {
        // `x::{self}`
        ([.., last], name) if name == "self" => (last.clone(), before.to_vec()),
        (_, name) => (name.clone(), [before, &[name]].concat()),
    };
    match tree {
        UseTree::Path(p) => flat(&p.tree, &with(&p.ident).1),
        UseTree::Name(n) => {
            let (name, path) = with(&n.ident);
            vec![(Some(name), path)]
        }
        UseTree::Rename(r) => vec![(Some(r.rename.to_string()), with(&r.ident).1)],
        UseTree::Glob(_) => vec![(None, before.to_vec())],
        UseTree::Group(g) => g.items.iter().flat_map(|t| flat(t, before)).collect(),
    }
}

/// Every path in code, including those inside macros.
#[derive(Default)]
struct Names(BTreeSet<Vec<String>>);

impl Visit<'_> for Names {
    fn visit_item(&mut self, item: &Item) {
        let attributes = match item {
            Item::Fn(i) => &i.attrs,
            Item::Impl(i) => &i.attrs,
            Item::Mod(i) => &i.attrs,
            _ => return visit::visit_item(self, item),
        };
        if !is_test(attributes) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &syn::ImplItemFn) {
        if !is_test(&function.attrs) {
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_item_use(&mut self, item: &syn::ItemUse) {
        let paths = flat(&item.tree, &[]).into_iter().map(|(_, path)| path);
        self.0.extend(paths);
    }

    fn visit_path(&mut self, path: &syn::Path) {
        let segments = path.segments.iter().map(|s| s.ident.to_string());
        self.0.insert(segments.collect());
        visit::visit_path(self, path);
    }

    fn visit_attribute(&mut self, _: &Attribute) {}

    fn visit_macro(&mut self, inside: &syn::Macro) {
        visit::visit_macro(self, inside);
        self.tokens(inside.tokens.clone());
    }
}

impl Names {
    fn tokens(&mut self, tokens: proc_macro2::TokenStream) {
        use proc_macro2::TokenTree;
        let (mut path, mut colons) = (Vec::new(), 0);
        for token in tokens {
            match token {
                TokenTree::Ident(name) => {
                    if colons != 2 {
                        self.0.insert(std::mem::take(&mut path));
                    }
                    path.push(name.to_string());
                    colons = 0;
                }
                TokenTree::Punct(p) if p.as_char() == ':' => colons += 1,
                other => {
                    self.0.insert(std::mem::take(&mut path));
                    colons = 0;
                    if let TokenTree::Group(group) = other {
                        self.tokens(group.stream());
                    }
                }
            }
        }
        self.0.insert(path);
    }
}
