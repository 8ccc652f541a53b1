//! Checks the layers inside a crate: no two files use each other's names, directly or in a cycle,
//! and no file is too long to read.

mod graph;

use agentgym_tests::files::files_below;
pub(crate) use graph::Crate;
use graph::{Arrows, circles};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

pub(crate) const CRATES: [&str; 13] = [
    "algorithms",
    "envs",
    "games",
    "jobs",
    "model",
    "queue",
    "record",
    "serve",
    "storage",
    "submit",
    "text",
    "view",
    "worker",
];

/// Maximum lines of a file, without its unit tests.
const LINES_MAX: usize = 500;

/// Longer files, each a table.
const TABLES: [&str; 1] = ["jobs/src/config/keys/table.rs"];

pub(crate) fn read(name: &str) -> Crate {
    Crate::read(&Path::new(ROOT).join(name).join("src/lib.rs"))
}

/// The uses that connect the files of a cycle, line by line.
fn ties(circle: &BTreeSet<&Path>, arrows: &Arrows) -> Vec<String> {
    let inside = |from: &&Path| {
        let to = arrows[*from].iter();
        let to = to.filter(|(to, _)| circle.contains(to.as_path()));
        let from = from.display().to_string();
        let line = move |(to, names): (&PathBuf, &BTreeSet<String>)| {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            format!("{from} -> {}: {}", to.display(), names.join(", "))
        };
        to.map(line).collect::<Vec<_>>()
    };
    circle.iter().flat_map(inside).collect()
}

#[test]
fn no_files_of_a_crate_use_each_other_in_a_circle() {
    let mut found = Vec::new();
    for name in CRATES {
        let arrows = read(name).arrows();
        for circle in circles(&arrows) {
            found.extend(ties(&circle, &arrows));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn files_can_be_read_in_one_sitting() {
    for name in CRATES {
        for file in read(name).files() {
            let path = file.strip_prefix(ROOT).unwrap().display().to_string();
            let text = std::fs::read_to_string(file).unwrap();
            let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
            let lines = code.lines().count();
            let is_table = TABLES.contains(&path.trim_start_matches('/'));
            assert!(lines <= LINES_MAX || is_table, "{path} has {lines} lines");
        }
    }
}

/// A module `x` is `x.rs`, with its submodules in `x/`.
#[test]
fn there_is_one_way_of_module_files() {
    let folders = CRATES.iter().map(|name| format!("{name}/src"));
    for folder in folders.chain(["tests/suite".to_owned()]) {
        for file in files_below(&Path::new(ROOT).join(folder)) {
            assert!(!file.ends_with("mod.rs"), "{}", file.display());
        }
    }
}

/// A crate of six files, in which each way to use a name occurs once.
#[test]
fn every_way_to_use_a_name_is_seen() {
    let folder = tempfile::TempDir::new().unwrap();
    let write = |path: &str, text: &str| {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("lib.rs", "mod a; mod b; mod c; mod d; pub use b::B;");
    // By a re-export, by a path in code, inside a macro, and through a glob.
    write("a.rs", "use crate::B; pub fn a() { crate::c::c(); }");
    write(
        "b.rs",
        "pub struct B; fn b() { println!(\"{}\", crate::d::inner::ONE); }",
    );
    write("c.rs", "use super::d::*; pub fn c() -> Both { todo!() }");
    write(
        "d.rs",
        "pub mod inner; pub struct Both;\n#[cfg(test)] mod tests { use crate::a::a; }",
    );
    write("d/inner.rs", "pub const ONE: u8 = 1;");
    let arrows_of = || {
        let arrows = Crate::read(&folder.path().join("lib.rs")).arrows();
        let name = |path: &Path| {
            path.strip_prefix(folder.path())
                .unwrap()
                .display()
                .to_string()
        };
        let pairs = arrows.iter().flat_map(|(from, to)| {
            to.keys()
                .map(move |to| format!("{} -> {}", name(from), name(to)))
        });
        let found = circles(&arrows)
            .iter()
            .map(BTreeSet::len)
            .collect::<Vec<_>>();
        (pairs.collect::<Vec<_>>(), found)
    };
    let straight = [
        "a.rs -> b.rs",
        "a.rs -> c.rs",
        "b.rs -> d/inner.rs",
        "c.rs -> d.rs",
    ];
    assert_eq!(arrows_of(), (straight.map(String::from).to_vec(), vec![]));
    write(
        "d/inner.rs",
        "pub const ONE: u8 = 1; impl super::super::B {}",
    );
    assert_eq!(arrows_of().1, [2]);
    write(
        "d/inner.rs",
        "pub const ONE: u8 = 1; use crate::a as other; fn x() { other::a() }",
    );
    assert_eq!(arrows_of().1, [3]);
    // A module and a function of one name.
    write(
        "d/inner.rs",
        "pub const ONE: u8 = 1; use crate::a; fn a() { a::a() }",
    );
    assert_eq!(arrows_of().1, [3]);
}
