//! A table of commands and answers, on a few Minecraft-like recipes.

use super::super::book::BookBuilder;
use super::*;

fn book() -> Arc<RecipeBook> {
    let mut builder = BookBuilder::default();
    let item = |id: &str, count| (id.to_owned(), false, count);
    let tag = |id: &str, count| (id.to_owned(), true, count);
    builder.add("oak_planks", 4, &[tag("oak_logs", 1)], Some("planks"));
    builder.add("birch_planks", 4, &[tag("birch_logs", 1)], Some("planks"));
    builder.add("stick", 4, &[tag("planks", 2)], Some("sticks"));
    builder.add("torch", 4, &[item("coal", 1), item("stick", 1)], None);
    builder.add("coal", 9, &[item("coal_block", 1)], None);
    builder.add("sign", 3, &[tag("planks", 6), item("stick", 1)], None);
    Arc::new(builder.finish())
}

fn game() -> Game {
    let book = book();
    let goal = book.find("torch").expect("in the book");
    Game::new(book, goal)
}

/// Plays `before => action`, and compares the last answer.
fn answers(before: &[&str], action: &str, expected: &str) {
    let mut game = game();
    for action in before {
        game.step(action).expect("numbers are small");
    }
    let reply = game.step(action).expect("numbers are small");
    assert_eq!(reply.observation, expected, "{action:?} after {before:?}");
}

#[test]
fn craft_answers() {
    let planks = ["get 2 oak logs", "craft 4 oak planks using 1 oak logs"];
    let two_kinds = [
        "get 1 oak logs",
        "get 1 birch logs",
        "craft oak planks using 1 oak logs",
        "craft birch planks using 1 birch logs",
    ];
    let no_recipe = "Could not find a valid recipe for ItemTagWithCount(item_tag=ItemTag(tag=None, \
                     item_id='minecraft:stick'), count=4)";
    for (before, action, expected) in [
        (&planks[..1], planks[1], "Crafted 4 minecraft:oak_planks"),
        (
            &planks[..1],
            "craft oak planks using 1 oak logs",
            "Crafted 4 minecraft:oak_planks",
        ),
        (
            &planks[..1],
            "craft 99 oak planks using 1 oak_logs",
            "Crafted 4 minecraft:oak_planks",
        ),
        (
            &planks[..1],
            "craft 4 oak planks using  1 oak logs ",
            "Crafted 4 minecraft:oak_planks",
        ),
        (
            &planks[..],
            "craft 4 stick using 2 oak planks",
            "Crafted 4 minecraft:stick",
        ),
        (
            &planks[..],
            "craft 4 stick using 2 planks",
            "Could not find enough items to craft minecraft:stick",
        ),
        (
            &planks[..],
            "craft 4 stick using 1 oak planks, 1 oak planks",
            no_recipe,
        ),
        (
            &two_kinds[..],
            "craft 4 stick using 1 oak planks, 1 birch planks",
            no_recipe,
        ),
        (&planks[..], "craft 4 stick using 3 oak planks", no_recipe),
        (
            &planks[..],
            "craft 4 stick using 5 oak planks",
            "Could not find enough items to craft minecraft:stick",
        ),
        (
            &planks[..],
            "craft 4 stick using 3 oak planks, 3 oak planks",
            "Could not find enough items to craft minecraft:stick",
        ),
        (
            &[],
            "craft 4 stick using planks",
            "Wrong item format: planks",
        ),
        (&[], "craft 4 stick using 2 planks, ", "Wrong item format: "),
        (&[], "craft 4 stick using ", "Wrong item format: "),
        (
            &[],
            "craft 4 planks using 1 oak logs",
            "Could not find enough items to craft None",
        ),
        (
            &planks[..1],
            "craft 4 planks using 1 oak logs",
            "Could not find a valid recipe for ItemTagWithCount(item_tag=ItemTag(tag='minecraft:planks', \
             item_id=None), count=4)",
        ),
        (
            &planks[..1],
            "craft it's using 1 oak logs",
            "Could not find a valid recipe for ItemTagWithCount(item_tag=ItemTag(tag=None, \
             item_id=\"minecraft:it's\"), count=1)",
        ),
        (
            &[],
            "craft nothing at all using 0 oak logs",
            "Could not find a valid recipe for \
             ItemTagWithCount(item_tag=ItemTag(tag=None, item_id='minecraft:nothing_at_all'), count=1)",
        ),
        (
            &[],
            "craft a using b using 1 c",
            "Could not find enough items to craft minecraft:a_using_b",
        ),
        (&[], "craft 4 stick", "Could not execute craft 4 stick"),
        (
            &[],
            "Craft 4 stick using 2 oak planks",
            "Could not execute Craft 4 stick using 2 oak planks",
        ),
        (
            &[],
            "craft x\nusing 1 y",
            "Could not execute craft x\nusing 1 y",
        ),
    ] {
        answers(before, action, expected);
    }
}

#[test]
fn inputs_are_used_up_and_entries_keep_their_order() {
    let before = [
        "get 1 coal",
        "get 3 oak logs",
        "get 0 birch logs",
        "craft oak planks using 1 oak logs",
        "craft stick using 2 oak planks",
        "craft stick using 2 oak planks",
        "craft torch using 1 stick, 1 coal",
    ];
    answers(
        &before,
        "inventory",
        "Inventory: [oak logs] (2) [birch logs] (0) [stick] (7) [torch] (4) ",
    );
}

#[test]
fn a_recipe_that_takes_a_block_apart_is_dropped_and_its_item_can_be_got() {
    answers(&[], "get 1 coal", "Got 1 coal");
    answers(&[], "get 1 coal block", "Got 1 coal block");
    answers(&[], "get 1 sticks", "Could not find sticks");
    answers(&[], "get 1 planks", "Could not find planks");
}

#[test]
fn the_goal_is_rewarded_whenever_it_is_made_and_nothing_sticks() {
    let mut game = game();
    let mut play = |action: &str| game.step(action).expect("numbers are small");
    for action in [
        "get 2 coal",
        "get 1 oak logs",
        "craft oak planks using 1 oak logs",
        "craft stick using 2 oak planks",
    ] {
        assert_eq!((play(action).reward, play("inventory").done), (0, false));
    }
    for _ in 0..2 {
        let reply = play("craft 4 torch using 1 stick, 1 coal");
        assert_eq!((reply.reward, reply.done), (1, true));
        assert!(!play("inventory").done);
    }
}

#[test]
fn numbers_end_where_python_ends() {
    let mut game = game();
    let most = "9".repeat(4300);
    assert!(game.step(&format!("get {most} coal")).is_ok());
    assert!(game.step("inventory").is_ok());
    game.step("get 1 coal").expect("one more can be held");
    let error = game.step("inventory").expect_err("it cannot be shown");
    assert!(
        error.starts_with("Exceeds the limit (4300 digits)"),
        "{error}"
    );
    let error = game
        .step(&format!("get {most}9 coal"))
        .expect_err("it cannot be read");
    assert!(error.contains("value has 4301 digits"), "{error}");
}
