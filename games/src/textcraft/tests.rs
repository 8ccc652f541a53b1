//! Books, tasks, worlds and their solutions. Tests on Minecraft's recipes need `AGENTGYM_DATA`, a
//! folder that holds `textcraft-recipes`, and are ignored by name (`minecraft`) without it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use agentgym_envs::spec::spec;

fn minecraft() -> PathBuf {
    let data = std::env::var_os("AGENTGYM_DATA").expect("AGENTGYM_DATA names a folder");
    Path::new(&data).join("textcraft-recipes")
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

/// Plays a solution; the last action, and only that one, must solve the task.
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

#[test]
#[ignore = "needs AGENTGYM_DATA, a folder with textcraft-recipes; scripts/test.sh runs it where it is set"]
fn minecraft_recipes_in_order_of_name_give_the_recorded_goals() {
    let folder = minecraft();
    let book = RecipeBook::from_folder(&folder).expect("the recipes are readable");
    assert_eq!(book.recipes().len(), 613);
    assert_eq!(
        depths(&book),
        BTreeMap::from([(1, 125), (2, 291), (3, 117), (4, 11)])
    );
    assert_goals(
        &book,
        &transcript()["goals_by_data_idx_if_files_sorted_by_name"],
    );
}

#[test]
#[ignore = "needs AGENTGYM_DATA, a folder with textcraft-recipes; scripts/test.sh runs it where it is set"]
fn minecraft_recipes_in_the_recorded_order_give_the_recorded_tasks() {
    let folder = minecraft();
    let transcript = transcript();
    let order: Vec<String> = serde_json::from_value(transcript["recipe_file_order"].clone())
        .expect("a list of file names");
    let book = RecipeBook::from_files(&folder, &order).expect("the recipes are readable");
    assert_goals(&book, &transcript["goals_by_data_idx"]);
    let recorded = transcript["required_lines_by_recorded_data_idx"]
        .as_object()
        .expect("lines by id");
    assert!(recorded.len() > 200);
    for (id, lines) in recorded {
        let goal = book.goals()[id.parse::<usize>().expect("an id")];
        let expected: BTreeSet<&str> = lines
            .as_array()
            .expect("a list")
            .iter()
            .filter_map(|line| line.as_str())
            .collect();
        let found = required_lines(&book, goal);
        let found: BTreeSet<&str> = found.iter().map(String::as_str).collect();
        assert_eq!(found, expected, "task {id}");
    }
    let mut reversed = order;
    reversed.sort_unstable_by(|a, b| b.cmp(a));
    let book = RecipeBook::from_files(&folder, &reversed).expect("the recipes are readable");
    assert_eq!(
        depths(&book),
        BTreeMap::from([(1, 147), (2, 274), (3, 112), (4, 11)])
    );
}

fn assert_goals(book: &RecipeBook, recorded: &serde_json::Value) {
    let goals: Vec<(String, u32)> = book
        .goals()
        .iter()
        .map(|goal| {
            let depth = book.depth(*goal).expect("goals have a depth");
            (format!("minecraft:{}", book.id(*goal)), depth)
        })
        .collect();
    let recorded: Vec<(String, u32)> =
        serde_json::from_value(recorded.clone()).expect("pairs of goal and depth");
    assert_eq!(goals, recorded);
}

#[test]
#[ignore = "needs AGENTGYM_DATA, a folder with textcraft-recipes; scripts/test.sh runs it where it is set"]
fn every_minecraft_goal_is_solved_and_shown_with_its_distractors() {
    let folder = minecraft();
    let book = RecipeBook::from_folder(&folder).expect("the recipes are readable");
    let tasks = Tasks::of_book(book);
    solve_all(&tasks);
    // Measured on the original: no distractor in 40 tasks, exactly 10 in 329; the original
    // sometimes repeats a line, ours does not.
    let mut by_count: BTreeMap<usize, usize> = BTreeMap::new();
    for id in 0..544 {
        let world = tasks.world(id);
        let required: BTreeSet<String> = required_lines(&world.book, world.goal)
            .into_iter()
            .collect();
        *by_count
            .entry(world.lines.len() - required.len())
            .or_default() += 1;
    }
    assert_eq!(by_count[&0], 40);
    assert!((329..=341).contains(&by_count[&10]), "{by_count:?}");
    assert_eq!(by_count.keys().max(), Some(&10));
}

#[test]
fn steps_stay_within_the_rounds_that_a_small_horizon_allows() {
    let worlds = Worlds::default();
    let mut steps: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for seed in 0..3000 {
        let world = worlds.world(seed);
        steps
            .entry(world.depth())
            .or_default()
            .push(play(&world, Gather::PerCraft));
    }
    for (depth, mut steps) in steps {
        steps.sort_unstable();
        let mean = steps.iter().sum::<usize>() as f64 / steps.len() as f64;
        let most = steps[steps.len() * 95 / 100];
        eprintln!(
            "depth {depth}: {mean:.2} steps in the mean, {most} at 95 %, {:?} at most",
            steps.last()
        );
        assert!(
            mean < 4.0 * f64::from(depth),
            "depth {depth}: {mean} steps in the mean"
        );
    }
}

#[test]
fn a_folder_that_cannot_be_read_is_named() {
    let missing = RecipeBook::from_folder(Path::new("/no/such/folder")).expect_err("missing");
    assert!(missing.to_string().contains("/no/such/folder"), "{missing}");
    let folder = tempfile::tempdir().expect("a folder");
    let empty = RecipeBook::from_folder(folder.path()).expect_err("empty");
    assert!(empty.to_string().contains("no crafting recipe"), "{empty}");
    for (text, words) in [
        ("{", "EOF"),
        ("{}", "\"type\""),
        (
            r#"{"type":"minecraft:crafting_shapeless","ingredients":[{}]}"#,
            "neither",
        ),
        (
            r#"{"type":"minecraft:crafting_shapeless","ingredients":[]}"#,
            "without inputs",
        ),
        (
            r#"{"type":"minecraft:crafting_shapeless","ingredients":[{"item":"a"}],"result":{"item":"b","count":-1}}"#,
            "count -1",
        ),
    ] {
        std::fs::write(folder.path().join("bad.json"), text).expect("written");
        let error = RecipeBook::from_folder(folder.path())
            .expect_err(text)
            .to_string();
        assert!(
            error.contains("bad.json") && error.contains(words),
            "{error}"
        );
    }
}

#[test]
fn ids_wrap_around_like_a_floored_remainder() {
    let tasks = Tasks::of_book(RecipeBook::builtin());
    let count = tasks.count().expect("a book's goals can be counted") as i64;
    let goal = |id| tasks.world(id).goal;
    assert_eq!(goal(count), goal(0));
    assert_eq!(goal(-1), goal(count - 1));
    assert_eq!(goal(-count), goal(0));
    assert_eq!(goal(i64::MIN), goal(i64::MIN.rem_euclid(count)));
}

#[test]
fn a_task_is_the_same_wherever_it_is_made() {
    let one = Tasks::of_book(RecipeBook::builtin())
        .world(100)
        .observation();
    let two = Tasks::of_book(RecipeBook::builtin())
        .world(100)
        .observation();
    assert_eq!(one, two);
    let worlds = Worlds::default();
    assert_eq!(worlds.world(5).observation(), worlds.world(5).observation());
    assert_ne!(worlds.world(5).observation(), worlds.world(8).observation());
    // A recorded value: files refer to worlds by seed, so a seed's world must never change.
    assert_eq!(worlds.world(0).observation(), WORLD_0);
}

const WORLD_0: &str = "Crafting commands:
craft 2 sakes jogar using 2 luhu ruge, 7 lehul ruge, 1 luhu lutu
craft 1 lehul using 7 lehul ruge
craft 1 lehul pomul using 1 lehul ruge
craft 2 mopes using 2 lehul ruge

Goal: craft mopes.";

#[test]
fn the_lexicon_is_fixed() {
    let words = lexicon();
    assert_eq!(words.len(), words.iter().collect::<BTreeSet<_>>().len());
    assert!(words.iter().all(|word| (4..=5).contains(&word.len())));
    let text = words.join(" ");
    assert_eq!(
        blake3::hash(text.as_bytes()).to_hex()[..16],
        *"2d333aba04826344"
    );
}

#[test]
fn worlds_that_cannot_be_made_are_refused() {
    assert!(Worlds::new(0..=3, 4..=8).is_err());
    assert!(Worlds::new(2..=9, 4..=20).is_err());
    assert!(Worlds::new(1..=4, 2..=4).is_err());
    #[expect(clippy::reversed_empty_ranges, reason = "the mistake that is tested")]
    let reversed = Worlds::new(3..=1, 4..=8);
    assert!(reversed.is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn worlds_have_the_chosen_shape_and_a_solution(seed: u64, low in 1u32..4, more in 0u32..3) {
        let worlds = Worlds::new(low..=low + more, 4..=8).expect("possible");
        let world = worlds.world(seed);
        let depth = world.depth();
        prop_assert_eq!(depth, worlds.depth(seed));
        prop_assert_eq!(u64::from(depth), u64::from(low) + seed % u64::from(more + 1));
        let required = required_lines(&world.book, world.goal);
        // One line fewer if the alternative is identical to the recipe that it accompanies.
        prop_assert!((3..=8).contains(&world.lines.len()), "{:?}", world.lines);
        prop_assert!(required.len() < world.lines.len());
        prop_assert!(required.iter().all(|line| world.lines.contains(line)));
        for line in &world.lines {
            prop_assert!(line.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || " ,".contains(c)));
        }
        for recipe in world.book.recipes() {
            prop_assert!((1..=4).contains(&recipe.inputs.len()));
            prop_assert!((1..=4).contains(&recipe.count));
            prop_assert!(recipe.inputs.iter().all(|input| (1..=9).contains(&input.count)));
        }
        let steps = play(&world, Gather::PerCraft);
        prop_assert!(steps > depth as usize);
        play(&world, Gather::Once);
    }

    #[test]
    fn a_game_takes_any_text_and_never_makes_something_of_nothing(actions in proptest::collection::vec(
        prop_oneof![
            "(get|craft|inventory) ?[0-9]{0,3} ?(pine trunk|pine board|peg|branch|board)?( using ([0-9] (pine board|branch|board|peg),? ?){0,2})?",
            "\\PC{0,40}",
        ], 0..40))
    {
        let book = Arc::new(RecipeBook::builtin());
        let goal = book.find("picture_frame").expect("in the table");
        let mut game = Game::new(book, goal);
        let mut got_any = false;
        for action in &actions {
            let reply = game.step(action).expect("numbers are small");
            got_any |= reply.observation.starts_with("Got");
            prop_assert!(got_any || !reply.observation.starts_with("Crafted"));
            prop_assert_eq!(reply.done, reply.reward == 1);
        }
    }
}

#[test]
fn demonstrations_are_episodes_in_the_trajectory_format() {
    let worlds = Tasks::Worlds(Worlds::default());
    let style = Style {
        thought: true,
        gather: Gather::PerCraft,
        refusals_percent: 100,
        ..Style::default()
    };
    let instruction = spec("textcraft").expect("known").instruction;
    for id in 0..60 {
        let world = worlds.world(id);
        let demonstration = demonstration(&world, id, instruction, style).expect("solvable");
        assert_eq!(demonstration.item_id, format!("textcraft_{id}"));
        let messages = &demonstration.conversations;
        assert_eq!(
            messages[0].value,
            format!("{instruction}\n\n{}", world.observation())
        );
        let mut game = world.game();
        let mut solved = false;
        for (at, pair) in messages.chunks(2).enumerate() {
            assert_eq!((pair[0].from, pair[0].loss), ("human", None));
            assert_eq!(pair[1].from, "gpt");
            let parsed = agentgym_envs::Parser::ActionLine.parse(&[], &pair[1].value);
            assert!(!parsed.normalised, "{:?}", pair[1].value);
            let action = parsed.action.expect("one action a message");
            let reply = game.step(&action).expect("numbers are small");
            assert_eq!(pair[1].loss, Some(!reply.observation.starts_with("Could")));
            if let Some(next) = messages.get(2 * at + 2) {
                assert_eq!(next.value, reply.observation);
            }
            solved = reply.done;
        }
        assert!(solved);
        let refused = messages.iter().filter(|m| m.loss == Some(false)).count();
        assert!(refused + 1 >= world.depth() as usize);
    }
    let json = serde_json::to_value(demonstration(&worlds.world(0), 0, "", style)).expect("JSON");
    let first = &json["conversations"][0];
    assert_eq!(first["from"], "human");
    assert!(first["loss"].is_null() && first["value"].is_string());
}
