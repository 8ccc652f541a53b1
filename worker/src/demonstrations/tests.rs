use super::*;
use crate::stages::testing::policy;

fn line(from: &str, loss: Option<bool>, value: &str) -> Line {
    Line {
        from: from.into(),
        loss,
        value: value.into(),
    }
}

/// AgentTraj-L's shape: instruction, canned acknowledgement, then the task.
fn trajectory() -> Conversation {
    Conversation {
        conversations: vec![
            line("human", None, "Craft things."),
            line("gpt", Some(false), "OK. I will."),
            line("human", None, "Goal: craft stick."),
            line("gpt", Some(true), "Action: get 1 oak log"),
            line("human", None, "Got 1 oak log"),
            line("gpt", None, "Action: craft 4 oak planks using 1 oak log"),
            line("human", None, "Crafted 4 oak planks é"),
        ],
        ids: None,
        item_id: Some("textcraft_3".into()),
        tools: None,
        reply_prefix: None,
    }
}

/// The text of each run of tokens whose mask is `kept`.
fn runs(policy: &Policy, encoded: &Encoded, kept: bool) -> Vec<String> {
    let mut runs: Vec<Vec<u32>> = vec![];
    let mut last = !kept;
    for (id, mask) in encoded.token_ids.iter().zip(&encoded.loss_mask) {
        if *mask == kept {
            if last != kept {
                runs.push(vec![]);
            }
            runs.last_mut().unwrap().push(*id);
        }
        last = *mask;
    }
    runs.iter()
        .map(|ids| policy.tokenizer().decode(ids, false))
        .collect()
}

#[test]
fn the_mask_covers_the_replies_and_their_end_token() {
    let policy = policy();
    let encoded = trajectory().encode(&policy, "x", 1000).unwrap();
    let end = policy.chat().bridge().unwrap().end_of_turn;
    let replies = [
        "Action: get 1 oak log",
        "Action: craft 4 oak planks using 1 oak log",
    ];
    assert_eq!(
        runs(&policy, &encoded, true),
        replies.map(|text| format!("{text}{end}"))
    );
    let context = runs(&policy, &encoded, false);
    assert!(
        context[0].contains("OK. I will.") && context[0].contains("Goal: craft stick."),
        "{context:?}"
    );
    assert!(
        !context.concat().contains("Crafted 4"),
        "an unanswered observation teaches nothing"
    );
}

#[test]
fn the_tokens_are_those_of_the_template() {
    let policy = policy();
    let mut conversation = trajectory();
    conversation.conversations.pop();
    let encoded = conversation.encode(&policy, "x", 1000).unwrap();
    let messages: Vec<Message> = conversation
        .conversations
        .iter()
        .map(|l| Message::new(role(l).unwrap(), &*l.value))
        .collect();
    let rendered = policy.chat().render(&messages, false).unwrap();
    let text = policy.tokenizer().decode(&encoded.token_ids, false);
    assert_eq!(
        text,
        rendered.trim_end(),
        "the template may only add white space at the end"
    );
}

#[test]
fn a_reply_prefix_is_context_and_every_reply_must_have_it() {
    let policy = policy();
    let with = |prefix: &str| Conversation {
        reply_prefix: Some(prefix.to_owned()),
        ..trajectory()
    };
    let encoded = with("Action: ").encode(&policy, "x", 1000).unwrap();
    let end = policy.chat().bridge().unwrap().end_of_turn;
    let replies = ["get 1 oak log", "craft 4 oak planks using 1 oak log"];
    let trained = replies.map(|text| format!("{text}{end}"));
    assert_eq!(runs(&policy, &encoded, true), trained);
    let context = runs(&policy, &encoded, false);
    assert!(context[0].ends_with("Action: "), "{context:?}");
    // The acknowledgement that is not trained on need not have it.
    assert!(context[0].contains("OK. I will."), "{context:?}");
    let wrong = with("Thought:").encode(&policy, "x", 1000).unwrap_err();
    let wrong = wrong.to_string();
    assert!(
        wrong.contains("message 3") && wrong.contains("reply_prefix = \"Thought:\""),
        "{wrong}"
    );
}

#[test]
fn impossible_conversations_are_named() {
    let policy = policy();
    let broken = |change: fn(&mut Vec<Line>), part: &str| {
        let mut conversation = trajectory();
        change(&mut conversation.conversations);
        let message = conversation
            .encode(&policy, "sft.sources[0] row 7", 1000)
            .unwrap_err()
            .to_string();
        assert!(
            message.contains(part) && message.contains("row 7 (textcraft_3)"),
            "{message}"
        );
    };
    broken(|lines| lines[0].from = "robot".into(), "`robot`");
    broken(|lines| lines.truncate(2), "nothing to imitate");
    broken(|lines| lines.truncate(1), "no gpt message");
    broken(|lines| drop(lines.remove(4)), "out of turn");
    broken(|lines| drop(lines.remove(0)), "reply to nothing");
    let message = trajectory()
        .encode(&policy, "x", 20)
        .unwrap_err()
        .to_string();
    assert!(message.contains("sft.max_length = 20"), "{message}");
}

#[test]
fn files_are_checked() {
    let message = parse_file("demo.json", b"[{\"conversations\": 3}]", None)
        .unwrap_err()
        .to_string();
    assert!(message.contains("demo.json"), "{message}");
    assert!(parse_file("demo.json", b"[]", None).is_err());
    let rows = br#"[{"item_id": "textcraft_6", "conversations": [{"from": "human", "loss": null, "value": "a"}]}]"#;
    assert_eq!(
        parse_file("demo.json", rows, None).unwrap()[0].conversations[0].loss,
        None
    );
}

#[test]
fn a_solver_shows_what_an_episode_looks_like() {
    let policy = policy();
    let source = agentgym_games::parse("builtin").unwrap().source;
    for style in ["", "thought,once,refusals=100"] {
        let solver = source.solver(style).unwrap();
        let conversation = Conversation::after(&[], solver.demonstrate(5, "Craft.").unwrap());
        assert!(
            conversation.conversations[0]
                .value
                .starts_with("Craft.\n\n")
        );
        let encoded = conversation.encode(&policy, "x", 100_000).unwrap();
        let trained = conversation
            .conversations
            .iter()
            .filter(|l| l.from == "gpt" && is_trained(l));
        let replies: String = trained.map(|l| l.value.as_str()).collect();
        let end = policy.chat().bridge().unwrap().end_of_turn;
        assert_eq!(
            runs(&policy, &encoded, true).concat().replace(&end, ""),
            replies
        );
    }
}

/// A solver's demonstration is made when it is drawn, so only then is it known to be too long.
#[test]
fn a_solution_that_is_too_long_gives_way_or_is_refused() {
    let policy = policy();
    let source = agentgym_games::parse("builtin").unwrap().source;
    let solver = source.solver("").unwrap();
    let ids: Vec<i64> = (0..60).collect();
    let tokens = |id: i64| {
        let shown = Conversation::after(&[], solver.demonstrate(id, "Craft.").unwrap());
        shown.tokens(&policy, "x").unwrap().token_ids
    };
    let longest = (0..60).max_by_key(|id| tokens(*id).len()).unwrap();
    let limit = tokens(longest).len() - 1;
    let drawn = |overlong, tokens_max| {
        let shown = Shown {
            solver: Arc::clone(&solver),
            ids: ids.clone(),
            opening: Vec::new(),
            instruction: "Craft.".to_owned(),
            reply_prefix: None,
        };
        let row = longest as usize;
        shown.encode(row, &policy, "source row 7", tokens_max, overlong)
    };
    let message = drawn(OverlongRows::Refuse, limit).unwrap_err().to_string();
    assert!(message.starts_with("source row 7 (textcraft_"), "{message}");
    assert!(message.contains("sft.max_length"), "{message}");
    let next = (1..60).map(|n| (longest + n) % 60);
    let expected = next.map(tokens).find(|ids| ids.len() <= limit).unwrap();
    let drawn_instead = drawn(OverlongRows::LeaveOut, limit).unwrap();
    assert_eq!(drawn_instead.token_ids, expected);
    let message = drawn(OverlongRows::LeaveOut, 3).unwrap_err().to_string();
    assert!(message.contains("raise it or give other ids"), "{message}");
}
