//! The table as a whole.

use super::*;

#[test]
fn an_unknown_name_lists_the_known_ones() {
    assert_eq!(spec("TextCraft").expect("known").name, "textcraft");
    let message = spec("chess").expect_err("unknown").to_string();
    for known in ["chess", "textcraft", "webarena", "todo"] {
        assert!(message.contains(known), "{message}");
    }
}

#[test]
fn same_lines_ignores_order_only() {
    assert!(Replay::SameLines.accepts("a\nb", "b\na"));
    assert!(!Replay::SameLines.accepts("a\nb", "a\nb\nb"));
    assert!(!Replay::Exact.accepts("a\nb", "b\na"));
}

#[test]
fn every_environment_is_there_once_and_consistent() {
    let mut names: Vec<&str> = ALL.iter().map(|spec| spec.name).collect();
    names.sort_unstable();
    let expected = "academia alfworld babyai maze movie sciworld searchqa sheet sqlgym \
                    textcraft todo weather webarena webshop wordle";
    assert_eq!(names.join(" "), expected);
    for spec in ALL {
        let name = spec.name;
        assert!(!spec.instruction.is_empty(), "{name}");
        assert!(
            spec.instruction.len() < 700,
            "{name}: paid for in every episode"
        );
        assert!(spec.reward_scale > 0.0 && spec.rounds_max > 0, "{name}");
        assert!(spec.creates_at_once > 0, "{name}");
        // What cannot be closed has to be used again, or sessions pile up on the server.
        assert!(spec.close || spec.reuse, "{name}");
        if spec.first_lists_actions.is_some() {
            assert_ne!(spec.actions, Actions::None, "{name}");
        }
        assert!(
            spec.path_prefix.is_empty() || spec.path_prefix.starts_with('/'),
            "{name}"
        );
        assert_eq!(
            first_message(spec.instruction, "o"),
            spec.first_message("o")
        );
    }
}

#[test]
fn rewards_that_shrink_are_successes_all_the_same() {
    let babyai = spec("babyai").expect("known").success;
    assert!(babyai.holds(0.325) && !babyai.holds(0.0));
    let sciworld = spec("sciworld").expect("known");
    assert!(sciworld.success.holds(100.0 * sciworld.reward_scale));
    assert!(!sciworld.success.holds(75.0 * sciworld.reward_scale));
}
