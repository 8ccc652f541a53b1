//! Books, tasks, worlds and their solutions. Tests on Minecraft's recipes run where
//! `AGENTGYM_DATA` names a folder that holds `textcraft-recipes`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::spec::spec;

fn minecraft() -> Option<PathBuf> {
    let data = std::env::var_os("AGENTGYM_DATA")?;
    Some(Path::new(&data).join("textcraft-recipes"))
}

fn transcript() -> serde_json::Value {
    let folder = std::env::var_os("AGENTGYM_FIXTURES").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures"),
        PathBuf::from,
    );
    let path = folder.join("transcripts/textcraft.json");
    let text = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&text).expect("the transcript is JSON")
}

fn depths(book: &RecipeBook) -> BTreeMap<u32, usize> {
    let mut counts = BTreeMap::new();
    for goal in book.goals() {
        *counts
            .entry(book.depth(*goal).expect("goals have a depth"))
            .or_default() += 1;
    }
    counts
}

/// Plays a solution; the last action and no other must solve the task.
fn play(world: &World, gather: Gather) -> usize {
    let moves = solve_with(&world.book, world.goal, gather).expect("every goal can be made");
    let mut game = world.game();
    for (at, step) in moves.iter().enumerate() {
        let reply = game.step(&step.action).expect("numbers are small");
        assert!(
            reply.observation.starts_with("Got") || reply.observation.starts_with("Crafted"),
            "{} answered {}",
            step.action,
            reply.observation
        );
        assert_eq!(reply.done, at + 1 == moves.len(), "{}", step.action);
    }
    moves.len()
}

fn solve_all(tasks: &Tasks) -> usize {
    let count = tasks.count().expect("a book's goals can be counted");
    let mut steps_max = 0;
    for id in 0..count as i64 {
        let world = tasks.world(id);
        steps_max = steps_max.max(play(&world, Gather::PerCraft));
        assert!(play(&world, Gather::Once) <= play(&world, Gather::PerCraft));
        let required = required_lines(&world.book, world.goal);
        assert!(required.iter().all(|line| world.lines.contains(line)));
    }
    steps_max
}

#[test]
fn the_builtin_table_is_large_and_deep_enough() {
    let book = RecipeBook::builtin();
    let depths = depths(&book);
    eprintln!("{} recipes, {depths:?}", book.recipes().len());
    assert!(book.recipes().len() >= 200);
    assert!(book.goals().len() >= 150);
    assert_eq!(depths.keys().copied().collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert!(depths.values().all(|count| *count >= 8), "{depths:?}");
    let lines: BTreeSet<String> = book.recipes().iter().map(|r| book.line(r)).collect();
    assert_eq!(lines.len(), book.recipes().len(), "a recipe occurs twice");
}

#[test]
fn every_builtin_goal_is_solved() {
    let steps_max = solve_all(&Tasks::of_book(RecipeBook::builtin()));
    assert!(steps_max <= 30, "{steps_max} steps");
}

#[test]
fn ids_follow_names_within_a_depth() {
    let book = RecipeBook::builtin();
    let places: Vec<(Option<u32>, &str)> = book
        .goals()
        .iter()
        .map(|goal| (book.depth(*goal), book.id(*goal)))
        .collect();
    assert!(
        places.is_sorted_by(|a, b| (a.0, a.1.replace('_', " ")) < (b.0, b.1.replace('_', " ")))
    );
}
