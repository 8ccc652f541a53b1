//! Each parser on texts that models write.

use super::*;

fn sent(text: &str) -> String {
    Parser::ActionLine
        .parse(&[], text)
        .action
        .expect("one action at most")
}

#[test]
fn the_line_after_the_marker_is_sent() {
    for (text, action) in [
        ("Action: get 1 oak log", "get 1 oak log"),
        (
            "Thought: first wood.\nAction: get 1 oak log\n",
            "get 1 oak log",
        ),
        ("Action:get 2 stick", "get 2 stick"),
        ("Action:\n\n  inventory\nignored", "inventory"),
        ("Action: get 1 oak_log", "get 1 oaklog"),
        (
            "Action: craft 4 oak planks using 1 oak log.",
            "craft 4 oak planks using 1 oak log",
        ),
        ("Action: `get   3\tdiamond`", "get 3diamond"),
        ("Action: get   3 diamond  ", "get 3 diamond"),
        ("Action: Action: inventory", "Action inventory"),
        ("Action:\nAction: inventory", "Action inventory"),
        ("Action: get ١ diamond", "get diamond"),
        ("Action:", ""),
        ("get 1 oak log", ""),
        ("action: inventory", ""),
        ("", ""),
    ] {
        assert_eq!(sent(text), action, "{text:?}");
    }
}

#[test]
fn several_actions_are_answered_without_a_call() {
    let parsed = Parser::ActionLine.parse(&[], "Action: get 1 a\nAction: get 1 b");
    assert_eq!(parsed.action, None);
    assert_eq!(parsed.local_reply.as_deref(), Some(ONE_ACTION_ONLY));
}

#[test]
fn cleaning_is_reported() {
    assert!(
        !Parser::ActionLine
            .parse(&[], "Action: inventory")
            .normalised
    );
    assert!(
        Parser::ActionLine
            .parse(&[], "Action: inventory.")
            .normalised
    );
    assert!(Parser::ActionLine.parse(&[], "Action: inventory").found);
    assert!(!Parser::ActionLine.parse(&[], "inventory").found);
}

fn of(parser: Parser, text: &str) -> (Option<String>, bool, bool) {
    let parsed = parser.parse(&[], text);
    (parsed.action, parsed.normalised, parsed.found)
}

fn action(text: &str) -> Option<String> {
    Some(text.to_owned())
}

#[test]
fn the_last_action_is_all_that_follows_its_marker() {
    for (text, sent, normalised, found) in [
        (
            "Thought:\nt\n\nAction:\nopen door",
            "open door",
            false,
            true,
        ),
        ("Action: a\nAction: look around", "look around", false, true),
        ("Action: wait</s>", "wait", false, true),
        ("Action:  wait \n", "wait", true, true),
        (
            "Action: pick up\ntwo lines",
            "pick up\ntwo lines",
            false,
            true,
        ),
        ("search[red shoes]", "search[red shoes]", false, true),
        (
            "I will click[buy now]",
            "I will click[buy now]",
            false,
            true,
        ),
        ("open door", "", false, false),
        ("Action:", "", false, true),
    ] {
        let expected = (action(sent), normalised, found);
        assert_eq!(of(Parser::LastAction, text), expected, "{text:?}");
    }
}

#[test]
fn the_first_action_ends_at_the_next_marker() {
    for (text, sent, found) in [
        ("Action: move up", "move up", true),
        ("Thought: x\nAction:\nmove up</s>", "move up", true),
        ("Action: a Action: b", "a", true),
        ("move left", "move left", false),
        ("", "", false),
    ] {
        let (parsed, _, marked) = of(Parser::FirstAction, text);
        assert_eq!((parsed, marked), (action(sent), found), "{text:?}");
    }
}

#[test]
fn a_fenced_action_needs_both_fences() {
    for text in ["```click [1]```", "a ```\nstop []\n``` b ```c```", "``````"] {
        assert_eq!(of(Parser::Fenced, text), (action(text), false, true));
    }
    for text in ["click [1]", "```click [1]", ""] {
        let parsed = Parser::Fenced.parse(&[], text);
        assert_eq!((parsed.action, parsed.found), (None, false), "{text:?}");
        let reply = parsed.local_reply.expect("an answer");
        assert_eq!(
            reply,
            "Cannot parse action from response. Your action should be inside triple backticks \
             (```). Please adjust accordingly."
        );
    }
}

#[test]
fn sql_stands_in_the_last_block() {
    for (text, sent, found) in [
        ("```sql\nSELECT 1\n```", "SELECT 1", true),
        ("```sql\na\n``` no: ```sql\nb;\n``` done", "b;", true),
        ("```sql SELECT 1", "SELECT 1", true),
        ("SELECT 1", "SELECT 1", false),
        ("a ```b```", "a", false),
    ] {
        let (parsed, _, marked) = of(Parser::SqlBlock, text);
        assert_eq!((parsed, marked), (action(sent), found), "{text:?}");
    }
}

#[test]
fn tagged_and_raw_texts_are_sent_as_they_are() {
    for (text, found) in [
        ("<search>a</search>", true),
        ("<think>x</think><answer>\nb\n</answer>", true),
        ("<search>a</answer>", false),
        ("<Search>a</Search>", false),
        ("", false),
    ] {
        assert_eq!(of(Parser::Tags, text), (action(text), false, found));
    }
    assert_eq!(of(Parser::Raw, " a\n"), (action(" a\n"), false, true));
}

#[test]
fn the_first_closed_tag_counts() {
    assert_eq!(
        tagged("<search>a</search><answer>b</answer>"),
        Some((Tag::Search, "a"))
    );
    assert_eq!(
        tagged("<search>a<answer>b</answer>"),
        Some((Tag::Answer, "b"))
    );
    assert_eq!(
        tagged("<search><answer>b</answer></search>"),
        Some((Tag::Search, "<answer>b</answer>"))
    );
    assert_eq!(tagged("</search><search>"), None);
}
