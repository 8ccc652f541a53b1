//! Addresses of the environments, and the solvers behind them.

use crate::{ALL, parse, textcraft};
use agentgym_envs::builtin::{Registered, is_builtin};

/// The tasks behind an address, as they are printed.
fn tasks(address: &str) -> String {
    let text = format!("{:?}", parse(address).expect("valid").source);
    let (_, tasks) = text.split_once("tasks: ").expect("a field");
    tasks.trim_end_matches(" }").to_owned()
}

#[test]
fn addresses_say_where_tasks_come_from() {
    assert!(is_builtin("builtin") && is_builtin("builtin:worlds?depths=2"));
    assert!(!is_builtin("http://builtin") && !is_builtin("builtins"));
    let printed =
        |source: textcraft::Source| format!("{source:?}").trim_end_matches(" }").to_owned();
    let address = "builtin:worlds?depths=2-4&lines=6-9&ttl_s=7";
    let expected = textcraft::Worlds::new(2..=4, 6..=9).expect("possible");
    assert_eq!(tasks(address), printed(textcraft::Source::Worlds(expected)));
    assert_eq!(parse(address).expect("valid").options.session_ttl_s, 7);
    // Depths stand where none are given, and only there.
    let given = tasks("builtin:worlds?depths=1-3&lines=6-9");
    assert_eq!(tasks("builtin:worlds?lines=6-9"), given);
    let expected = textcraft::Source::Folder {
        path: "/a b".into(),
        order: None,
        distractors_max: 3,
    };
    assert_eq!(
        tasks("builtin:folder?path=/a%20b&distractors=3"),
        printed(expected)
    );
}

#[test]
fn no_two_environments_share_a_name_or_a_port() {
    let all_differ = |mut values: Vec<String>| {
        values.sort();
        let count = values.len();
        values.dedup();
        assert_eq!(values.len(), count, "{values:?}");
    };
    all_differ(ALL.iter().map(|row| row.port.to_string()).collect());
    let addresses = ALL.iter().flat_map(|row| row.addresses);
    all_differ(addresses.map(|form| form.suffix.to_owned()).collect());
    let spec = |row: &Registered| agentgym_envs::spec::spec(row.spec.name).map(|spec| spec.name);
    for row in &ALL {
        assert_eq!(spec(row).expect("listed"), row.spec.name);
    }
}

#[test]
fn what_is_wrong_with_an_address_is_named() {
    for (address, words) in [
        ("builtin:words", "\":words\" is not one of"),
        (
            "builtin?depths=1",
            "unknown option \"depths\"; known here: distractors",
        ),
        ("builtin:folder", "option \"path\" is needed: A folder"),
        (
            "builtin:worlds?depths=deep",
            "option \"depths\" is \"deep\"",
        ),
        ("builtin:worlds?depths=0-3", "depths 0-3 are not possible"),
        ("builtin?ttl_s=soon", "option \"ttl_s\" is \"soon\""),
        (
            "builtin:searchqa?corpus=a",
            "option \"questions\" is needed",
        ),
        ("builtin:searchqa?uncased=a", "expected true or false"),
        ("builtin:maze?seed=1", "unknown option \"seed\""),
        (
            "builtin:sokoban?boxes=1&boxes=2",
            "'--boxes <BOXES>' cannot be used multiple times",
        ),
        ("builtin:worlds?words=long", "expected lexicon or wide"),
        ("builtin:worlds?worlds=1", "unknown option \"worlds\""),
        ("builtin:babyai?seed=1", "unknown option \"seed\""),
    ] {
        let message = parse(address).expect_err(address).to_string();
        assert!(message.contains(words), "{message}");
    }
}

#[test]
fn each_environment_with_a_solver_has_one_and_says_how_it_is_told() {
    let solver = |address: &str, style: &str| {
        let source = parse(address).expect("valid").source;
        source.solver(style)
    };
    for (address, item) in [
        ("builtin:worlds", "textcraft_7"),
        ("builtin:babyai", "babyai_7"),
        ("builtin:searchqa", "searchqa_7"),
    ] {
        let shown = solver(address, "").expect(address).demonstrate(7, "Do it.");
        let shown = shown.expect(address);
        assert_eq!(shown.item_id, item);
        let first = &shown.conversations[0];
        assert!(first.value.starts_with("Do it.\n\n") && first.from == "human");
        assert_eq!(shown.conversations.last().expect("some").from, "gpt");
    }
    for (address, style, words) in [
        ("builtin:babyai", "thought", "babyai knows wander=PERCENT"),
        ("builtin:searchqa", "goals=2", "told in one way"),
        ("builtin", "loud", "unknown style"),
        ("builtin:maze", "", "has no solver"),
    ] {
        let message = solver(address, style).expect_err(address).to_string();
        assert!(message.contains(words), "{message}");
    }
}
