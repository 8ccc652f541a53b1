//! What a file may say, where it is wrong, and that a plan's form says the same.

use super::super::all;
use super::*;
use crate::parser::Parser;
use crate::spec::{CreateBody, ErrorShape, Fixed, IdInReply, Replay};

const GAME: &str = "\
name: my-game
instruction: |
  Win.
  Say it.
routes: {create: /new, step: /turn}
create_body: {item: seed}
id_in_reply: bare
reset_fixed: {mode: hard, level: 2}
first_observation: {keys: [goal, observation]}
reward_scale: 0.5
errors: {in_observation: [Cannot]}
actions: {endpoint: {path: /moves, with_id: true}}
parser: last_action
success: {reward_above: 0}
items: {within: 3..9}
replay: same_lines
rounds_max: 7
";

#[test]
fn a_file_says_what_a_server_does() {
    let spec = from_yaml(Path::new("game.yaml"), GAME).unwrap();
    assert_eq!(
        (spec.name, spec.instruction),
        ("my-game", "Win.\nSay it.\n")
    );
    assert_eq!((spec.routes.create, spec.routes.step), ("/new", "/turn"));
    assert_eq!((spec.routes.reset, spec.routes.close), ("/reset", "/close"));
    assert_eq!(spec.create_body, CreateBody::Item("seed"));
    assert_eq!(spec.id_in_reply, IdInReply::Bare);
    let fixed = [("level", Fixed::Int(2)), ("mode", Fixed::Text("hard"))];
    assert!(fixed.iter().all(|field| spec.reset_fixed.contains(field)));
    assert_eq!(spec.errors, ErrorShape::InObservation(&["Cannot"]));
    assert_eq!(spec.parser, Parser::LastAction);
    assert_eq!(spec.items, Items::Within(3..9));
    assert_eq!(spec.replay, Replay::SameLines);
    assert_eq!((spec.reward_scale, spec.rounds_max), (0.5, 7));
    assert!(spec.close && !spec.reuse);
}

const CALLS: &str = "\
name: my-tools
parser: tool_call
probe: '{\"name\": \"look\", \"arguments\": {\"at\": \"box\"}}'
calls:
  - name: look
    description: Looks.
    arguments:
      zone: {type: number, optional: true}
      at: {type: string, description: What.}
  - {name: wait}
";

#[test]
fn a_file_declares_the_tools_that_are_called() {
    let spec = from_yaml(Path::new("tools.yaml"), CALLS).unwrap();
    let offered = spec.offered().unwrap();
    assert_eq!(
        offered.to_string(),
        "[{\"type\":\"function\",\"function\":{\"name\":\"look\",\"description\":\"Looks.\",\"parameters\":\
         {\"type\":\"object\",\"properties\":{\"zone\":{\"type\":\"number\"},\"at\":{\"type\":\"string\",\
         \"description\":\"What.\"}},\"required\":[\"at\"]}}},{\"type\":\"function\",\"function\":{\"name\":\"wait\",\
         \"description\":\"\",\"parameters\":{\"type\":\"object\",\"properties\":{},\"required\":[]}}}]"
    );
    let sent = spec.parse("<tool_call>{\"name\": \"wait\", \"arguments\": {}}</tool_call>");
    assert!(sent.action.is_some(), "{sent:?}");
}

#[test]
fn a_plan_holds_every_field_and_means_the_same() {
    let spec = from_yaml(Path::new("game.yaml"), GAME).unwrap();
    let tools = from_yaml(Path::new("tools.yaml"), CALLS).unwrap();
    for spec in all().chain([spec, tools]) {
        let mut held = serde_json::to_value(spec).unwrap();
        // A plan from before holds none, and its bytes stay.
        assert_eq!(held.get("calls").is_some(), !spec.calls.is_empty());
        let fields = held.as_object().unwrap().len();
        assert!(fields > 25, "{fields}");
        // A known name is refused, and everything else comes back.
        held["name"] = "another".into();
        let read = declared(&held).unwrap();
        assert!(std::ptr::eq(read, declared(&held).unwrap()), "read twice");
        let mut back = serde_json::to_value(read).unwrap();
        assert_eq!(back, held);
        back["name"] = spec.name.into();
        assert_eq!(back, serde_json::to_value(spec).unwrap());
    }
}

#[test]
fn what_is_wrong_is_named_with_line_and_column() {
    let with = |line: &str| format!("name: game\nprobe: look\n{line}\n");
    let tools = |calls: &str| with(&format!("parser: tool_call\ncalls: {calls}"));
    for (text, at, words) in [
        ("nam: game", "1:6: nam: ", "unknown field `nam`"),
        ("name: Game", "1:7", "a-z, 0-9"),
        ("name: textcraft", "1:7", "environment of this program"),
        ("{}", "1:1", "1 to 40"),
        ("- name", "", "map of fields"),
        ("name: [", "1", "unclosed"),
        ("name: a\nname: b", "2", "duplicate"),
        (
            &with("rounds: 3"),
            "3:9: rounds: ",
            "unknown field `rounds`",
        ),
        (&with("rounds_max: 0"), "3:13", "1 to 1000000"),
        (&with("rounds_max: many"), "3:13", "invalid type"),
        (&with("parser: guess"), "3:9", "unknown variant `guess`"),
        (
            &with("items: {within: 9..3}"),
            "3:17",
            "first and the one after",
        ),
        (&with("items: {wrapping: 0}"), "3:19", "number of items"),
        (&with("routes: {step: step}"), "3:16", "no path"),
        (
            &with("routes: {stepp: /step}"),
            "3:17: routes.stepp: ",
            "unknown field `stepp`",
        ),
        (&with("path_prefix: //evil.example"), "3:14", "no path"),
        (
            &with("actions: {endpoint: {path: '/a?b', with_id: true}}"),
            "3:28",
            "no path",
        ),
        (&with("success: {reward_at_least: .nan}"), "3", "non-finite"),
        (&with("reward_scale: 0"), "3:15", "every reward the same"),
        (&with("creates_at_once: 0"), "3:18", "1 to 1024"),
        (&with("close: false"), "3:8", "reuse: true"),
        (
            &with("first_lists_actions: 'Moves: '"),
            "3:22",
            "under actions",
        ),
        (&with("reward_key: ''"), "3:13", "is empty"),
        (&with("parser: tool_call"), "1:1", "give both or neither"),
        (&with("calls: [{name: a}]"), "3:8", "give both or neither"),
        (&tools("[{name: a b}]"), "4:16", "which a call can name"),
        (&tools("[{name: a}, {name: a}]"), "4:27", "a tool before it"),
        (
            &tools("[{name: a, arguments: {'': {type: string}}}]"),
            "4:30",
            "which a call can name",
        ),
        (
            &tools("[{name: a, arguments: {b: {type: list}}}]"),
            "4:",
            "unknown variant `list`",
        ),
        (
            &tools("[{name: a, argument: {}}]"),
            "4:29: calls[0].argument: ",
            "unknown field `argument`",
        ),
        (&tools("[{name: a}]"), "2:8", "the call is not JSON"),
        (&tools("[]"), "4:8", "give both or neither"),
        (
            &tools(&format!("[{}]", vec!["{name: a}"; 129].join(", "))),
            "4:8",
            "129 tools; give at most 128",
        ),
    ] {
        let said = from_yaml(Path::new("game.yaml"), text).unwrap_err();
        let place = match at {
            "" => "game.yaml: ".to_owned(),
            at => format!("game.yaml:{at}"),
        };
        let parser = said.contains(&format!("line {at}"));
        assert!(
            (said.starts_with(&place) || parser) && said.contains(words),
            "{text:?}: {said}"
        );
    }
}

#[test]
fn every_field_is_documented() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/environments.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (_, text) = text.split_once("## A spec of your own").unwrap();
    let rows = text.lines().filter_map(|line| line.strip_prefix("| "));
    let named: Vec<&str> = rows
        .filter_map(|row| row.split('|').next())
        .flat_map(|cell| cell.split(','))
        .map(|field| field.trim().trim_matches('`'))
        .collect();
    let held = serde_json::to_value(EnvSpec::default()).unwrap();
    for field in held.as_object().unwrap().keys() {
        assert!(named.contains(&field.as_str()), "{field}");
    }
}
