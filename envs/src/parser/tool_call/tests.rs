//! What is sent of a call, and what each mistake is answered with.

use super::*;
use crate::mutations::survives;
use crate::parser::{Parsed, Parser};
use crate::spec::{Argument, ArgumentType};

const TOOLS: &[Tool] = &[
    Tool {
        name: "note",
        description: "Notes a text.",
        arguments: &[
            ("text", Argument::of(ArgumentType::String, "")),
            ("weight", Argument::of(ArgumentType::Number, "")),
            ("times", Argument::of(ArgumentType::Integer, "")),
            (
                "loud",
                Argument {
                    optional: true,
                    ..Argument::of(ArgumentType::Boolean, "")
                },
            ),
        ],
    },
    Tool {
        name: "look",
        description: "",
        arguments: &[],
    },
];

fn called(json: &str) -> Parsed {
    Parser::ToolCall.parse(
        TOOLS,
        &format!("I think.\n<tool_call>\n{json}\n</tool_call>"),
    )
}

#[test]
fn a_call_is_sent_in_one_form() {
    let plain = r#"{"name": "note", "arguments": {"text": "a \"b\"\n", "weight": 0.5, "times": -3, "loud": true}}"#;
    let other = r#"{"arguments":{"times":-3,"loud":true,"text":"a \u0022b\"\u000a","weight":5e-1},"name":"note"}"#;
    let (first, second) = (called(plain), called(other));
    assert_eq!(first.action.as_deref(), Some(plain));
    assert_eq!(second.action.as_deref(), Some(plain));
    assert!(first.found && !first.normalised && second.normalised);
    // What may be left out is left out, and a whole number is a number.
    let short = r#"{"name": "note", "arguments": {"text": "", "weight": 1, "times": 0}}"#;
    assert_eq!(called(short).action.as_deref(), Some(short));
    let read = Call::read(TOOLS, short).unwrap();
    assert_eq!(
        Parser::ToolCall.parse(TOOLS, &read.said()).action.unwrap(),
        short
    );
    // Brackets in texts are no depth.
    let brackets = "[{".repeat(50);
    let deep = format!(
        r#"{{"name": "note", "arguments": {{"text": "\"{brackets}", "weight": 1, "times": 0}}}}"#
    );
    assert_eq!(called(&deep).action.as_deref(), Some(deep.as_str()));
}

#[test]
fn each_mistake_has_its_answer() {
    let note = |arguments: &str| format!(r#"{{"name": "note", "arguments": {arguments}}}"#);
    let deep = note(&format!("{}{}", "[".repeat(100_000), "]".repeat(100_000)));
    let long = note(&format!(r#"{{"text": "{}"}}"#, "a".repeat(70_000)));
    let nested = note(&format!(
        r#"{{"text": {}1{}}}"#,
        "[".repeat(8),
        "]".repeat(8)
    ));
    for (json, words) in [
        (r#"{"name": "look", "arguments": {}"#, "is not JSON: EOF"),
        ("look()", "is not JSON: expected value"),
        ("", "is not JSON: EOF"),
        (r#"["look", {}]"#, "expected an object"),
        (r#"{"name": "look"}"#, "missing field `arguments`"),
        (r#"{"arguments": {}}"#, "missing field `name`"),
        (
            r#"{"name": "look", "arguments": {}, "id": 1}"#,
            "it has no `id`",
        ),
        (
            r#"{"name": "look", "name": "note", "arguments": {}}"#,
            "`name` is given twice",
        ),
        (
            r#"{"name": "look", "arguments": "{}"}"#,
            "expected an object of arguments",
        ),
        (r#"{"name": 3, "arguments": {}}"#, "expected a string"),
        (
            r#"{"name": "look", "arguments": {}} {"name": "look", "arguments": {}}"#,
            "is not JSON: trailing",
        ),
        (
            r#"{"name": "Look", "arguments": {}}"#,
            "there is no tool Look; there are note, look",
        ),
        (
            r#"{"name": "look", "arguments": {"at": 1}}"#,
            "look has no argument at",
        ),
        (
            &note(r#"{"text": "a", "weight": 1}"#),
            "note needs the argument times",
        ),
        (
            &note(r#"{"text": "a", "text": "b", "weight": 1, "times": 2}"#),
            "`text` is given twice",
        ),
        (
            &note(r#"{"text": 1, "weight": 1, "times": 2}"#),
            "text of note is of type string, found 1",
        ),
        (
            &note(r#"{"text": "a", "weight": "1", "times": 2}"#),
            "of type number, found \"1\"",
        ),
        (
            &note(r#"{"text": "a", "weight": 1, "times": 2.0}"#),
            "of type integer, found 2.0",
        ),
        (
            &note(r#"{"text": "a", "weight": 1, "times": 9223372036854775808}"#),
            "of type integer",
        ),
        (
            &note(r#"{"text": "a", "weight": 1e999, "times": 2}"#),
            "out of range",
        ),
        (
            &note(r#"{"text": null, "weight": 1, "times": 2}"#),
            "of type string, found null",
        ),
        (
            &note(r#"{"text": "a", "weight": 1, "times": 2, "loud": 1}"#),
            "of type boolean, found 1",
        ),
        (
            &note(r#"{"text": ["a"], "weight": 1, "times": 2}"#),
            "of type string, found [\"a\"]",
        ),
        (
            &format!(r#"{{"name": "\n{}", "arguments": {{}}}}"#, "é".repeat(500)),
            "there is no tool  éé",
        ),
        (&nested, "nested deeper than 8"),
        (&deep, "bytes, at most 65536 are read"),
        (&long, "bytes, at most 65536 are read"),
    ] {
        let parsed = called(json);
        let said = parsed.local_reply.expect(json);
        assert!(
            said.starts_with("Error: ") && said.contains(words),
            "{json:.80}: {said}"
        );
        assert!(
            said.len() < 300 && !said.contains(char::is_control),
            "{said}"
        );
        assert!(parsed.action.is_none() && parsed.found, "{json:.80}");
    }
    let look = r#"{"name": "look", "arguments": {}}"#;
    for (text, words, found) in [
        ("I look.", "no tool was called", false),
        (look, "no tool was called", false),
        (
            &format!("<tool_call>{look}"),
            "not ended by </tool_call>",
            true,
        ),
        (
            &format!("{0}\n{0}", spoken(look)),
            "2 tools were called",
            true,
        ),
    ] {
        let parsed = Parser::ToolCall.parse(TOOLS, text);
        assert!(parsed.local_reply.expect(text).contains(words), "{text}");
        assert_eq!((parsed.action, parsed.found), (None, found), "{text}");
    }
}

#[test]
fn any_text_is_sent_or_answered() {
    let corpus = [
        r#"<tool_call>{"name": "note", "arguments": {"text": "é", "weight": 1.5, "times": 2}}</tool_call>"#,
        "<tool_call>\n{\"name\": \"look\", \"arguments\": {}}\n</tool_call>",
        "<tool_call>[[[[{\"name\": {}}]]]]</tool_call><tool_call>",
    ]
    .map(|text| text.as_bytes().to_vec());
    survives("tool call", &corpus, 4000, 1 << 20, |bytes| {
        let parsed = Parser::ToolCall.parse(TOOLS, &String::from_utf8_lossy(bytes));
        assert_ne!(parsed.action.is_some(), parsed.local_reply.is_some());
    });
}
