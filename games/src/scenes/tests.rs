//! Recorded games are drawn; a game of which one answer differs is not.

use super::*;
use crate::{babyai, textcraft};
use serde_json::{Value, json};

/// Plays the actions in a game of this program, as an episode would record it.
struct Recorded {
    prompt: String,
    turns: Vec<(Option<String>, String)>,
}

impl Recorded {
    fn of(address: &str, item_id: i64, actions: &[&str]) -> Self {
        let tasks = crate::parse(address).expect("valid").source;
        let mut game = tasks.replica(item_id).expect("a game");
        let turns = actions.iter().map(|action| {
            let action = (!action.is_empty()).then(|| (*action).to_owned());
            let answer = match &action {
                Some(action) => game.step(action),
                None => "write an action".to_owned(),
            };
            (action, answer)
        });
        let turns = turns.collect();
        let tasks = crate::parse(address).expect("valid").source;
        let first = tasks.replica(item_id).expect("a game").first();
        let prompt = format!("Do it.\n\n{first}");
        Self { prompt, turns }
    }

    fn played(&self, item_id: i64) -> PlayedTask<'_> {
        let turns = self.turns.iter();
        PlayedTask {
            item_id,
            prompt: &self.prompt,
            turns: turns.map(|(a, o)| (a.as_deref(), o.as_str())).collect(),
        }
    }
}

const GAMES: [(&str, &str, i64, &[&str]); 7] = [
    (
        "textcraft",
        "builtin",
        3,
        &["get 1 oak log", "", "inventory"],
    ),
    (
        "textcraft",
        "builtin:worlds?depths=2",
        7,
        &["inventory", "get 2 x"],
    ),
    ("babyai", "builtin:babyai", 45, &["turn right", "", "check"]),
    ("maze", "builtin:maze", 4, &["move right", "jump"]),
    (
        "sokoban",
        "builtin:sokoban?boxes=2",
        5,
        &["Up || Left", "Down"],
    ),
    ("wordle", "builtin:wordle", 1, &["c r a n e", "x x x x x"]),
    (
        "searchqa",
        "builtin:searchqa",
        0,
        &["<search>river</search>", "<answer>x</answer>"],
    ),
];

#[test]
fn every_game_is_drawn_at_every_turn() {
    for (kind, address, item, actions) in GAMES {
        let recorded = Recorded::of(address, item, actions);
        let drawn = scenes(kind, address, &recorded.played(item)).expect(address);
        assert!(drawn.start.is_some(), "{address}");
        assert_eq!(drawn.turns.len(), actions.len(), "{address}");
        for scene in drawn.start.iter().chain(&drawn.turns) {
            assert!(scene["kind"].is_string(), "{address}: {scene}");
        }
        // A server elsewhere with the same tasks.
        if !address.contains('?') {
            let elsewhere = scenes(kind, "http://h:1", &recorded.played(item));
            assert_eq!(elsewhere.as_ref(), Ok(&drawn), "{address}");
        }
    }
}

#[test]
fn one_answer_that_differs_hides_all_pictures_and_is_named() {
    for (kind, address, item, actions) in GAMES {
        let recorded = Recorded::of(address, item, actions);
        let why = |played: &PlayedTask<'_>| scenes(kind, address, played).expect_err(address);
        let mut changed = recorded.played(item);
        changed.turns[0].1 = "Something else happened.";
        assert!(
            why(&changed).contains("answers turn 1 otherwise"),
            "{address}"
        );
        let mut changed = recorded.played(item);
        changed.prompt = "Do it.";
        assert!(why(&changed).contains("begins otherwise"), "{address}");
    }
    let recorded = Recorded::of("builtin:maze", 4, &["move right"]);
    let why = |kind: &str, address: &str, item: i64| {
        let played = recorded.played(item);
        scenes(kind, address, &played).expect_err(kind)
    };
    assert!(why("webshop", "http://h:1", 4).contains("is not a game of this program"));
    assert!(why("sciworld", "http://h:1", 4).contains("\"jar\" is needed"));
    assert!(why("maze", "builtin:maze", 99).contains("no maze 99"));
    let files = "builtin:searchqa?corpus=a&questions=b";
    assert!(why("searchqa", files, 0).contains("passages are in files"));
    assert!(why("nonsense", "builtin", 0).contains("nonsense"));
}

#[test]
fn a_prompt_may_list_the_first_actions() {
    let wordle = spec("wordle").expect("known");
    assert!(begins(wordle, "Guess.\n\nA\nWords: b, c", "A"));
    assert!(begins(wordle, "A", "A"));
    assert!(!begins(wordle, "Guess.\n\nA\nwords", "A"));
    assert!(!begins(
        spec("maze").expect("known"),
        "Guess.\n\nA\nWords: b, c",
        "A"
    ));
    assert!(!begins(wordle, "Guess. A", "A"));
}

#[test]
fn what_is_drawn_is_what_the_game_holds() {
    let drawn = |(kind, address, item, actions): (_, &str, i64, &[&str])| {
        let recorded = Recorded::of(address, item, actions);
        scenes(kind, address, &recorded.played(item)).expect(address)
    };
    // A goal of one craft: its tree has the goal on top, and what was got is held.
    let world = textcraft::Tasks::of_book(textcraft::RecipeBook::builtin()).world(0);
    let moves = textcraft::solve(&world.book, world.goal).expect("it can be made");
    let actions: Vec<&str> = moves.iter().map(String::as_str).collect();
    let made = drawn(("textcraft", "builtin", 0, &actions));
    let goal = world.book.text(world.goal);
    let last = made.turns.last().expect("some");
    assert_eq!(last["tree"]["item"], goal.as_str());
    assert!(
        !last["tree"]["inputs"]
            .as_array()
            .expect("a list")
            .is_empty()
    );
    assert_eq!(made.start.expect("a start")["held"], json!([]));
    assert_eq!(last["held"][0][0], goal.as_str());

    let turned = drawn(("babyai", "builtin:babyai", 8, &["turn left"]));
    let start = turned.start.expect("a start");
    let (x, y) = (start["agent"][0].as_u64(), start["agent"][1].as_u64());
    let seen = start["seen"].as_array().expect("a list");
    assert!(seen.contains(&json!([x, y])) && seen.len() > 3, "{start}");
    let row = start["rows"][y.expect("a number") as usize]
        .as_str()
        .expect("a row");
    assert_eq!(row.as_bytes()[x.expect("a number") as usize], b'.');
    let facing = |scene: &Value| scene["facing"].as_u64().expect("a number");
    assert_eq!((facing(&turned.turns[0]) + 1) % 4, facing(&start));
    let things = start["things"].as_array().expect("a list");
    let goal = start["goal"].as_str().expect("words");
    let kinds = |thing: &Value| goal.contains(thing["what"].as_str().expect("a word"));
    assert!(things.iter().any(kinds), "{start}");
    // A thing that is picked up lies on the grid no longer.
    let mut lifted = 0;
    for item in 0..40 {
        let mut game = babyai::BabyaiGame::new(item);
        let pickup = game.actions().into_iter().find(|a| a.starts_with("pickup"));
        let Some(action) = pickup else { continue };
        let before = agentgym_envs::replica::Replica::picture(&game);
        game.step(&action);
        let after = agentgym_envs::replica::Replica::picture(&game);
        let count = |scene: &Value| scene["things"].as_array().expect("a list").len();
        if after["carries"].is_object() {
            assert_eq!(count(&after) + 1, count(&before), "{item}");
            lifted += 1;
        }
    }
    assert!(lifted > 3, "{lifted}");

    let pushed = drawn(("sokoban", "builtin:sokoban", 5, &["Up"]));
    assert_eq!(pushed.turns[0]["left"], 9);
    let guessed = drawn(("wordle", "builtin:wordle", 1, &["c r a n e", "zzzzz"]));
    let guesses = &guessed.turns[1]["guesses"];
    assert_eq!(
        (&guesses[0][0], &guesses[1]),
        (&json!("crane"), &json!(["zzzzz", ""]))
    );
    let search = ["<search>river</search>"];
    let found = drawn(("searchqa", "builtin:searchqa", 0, &search));
    assert_eq!(
        found.turns[0]["passages"].as_array().expect("a list").len(),
        3
    );
    assert!(found.turns[0]["answers"][0].is_string());
}

#[test]
fn a_page_is_the_one_that_the_turn_began_with() {
    let shop = "OBSERVATION:\nTab 0 (current): Tiny shop\n\n[12] RootWebArea 'Tiny shop'\n\t[19] link 'Second page'\nOBJECTIVE: [x] find";
    let played = PlayedTask {
        item_id: 0,
        prompt: shop,
        turns: vec![
            (
                Some("click [19]"),
                "Tab 0 (current): Second\n\n[3] RootWebArea 'Second'",
            ),
            (Some("stop [12]"), "done"),
        ],
    };
    let drawn = scenes("webarena", "http://h:1", &played).expect("a page");
    assert_eq!(drawn.start, None);
    let [first, second] = &drawn.turns[..] else {
        panic!("two turns");
    };
    let nodes = json!([
        [0, 12, "RootWebArea 'Tiny shop'"],
        [1, 19, "link 'Second page'"]
    ]);
    assert_eq!((&first["nodes"], &first["acted"]), (&nodes, &json!(19)));
    assert_eq!(second["nodes"], json!([[0, 3, "RootWebArea 'Second'"]]));
    // The argument of `stop` is no node.
    assert_eq!(second["acted"], Value::Null);
}
