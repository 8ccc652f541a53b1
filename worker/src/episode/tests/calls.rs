//! Episodes whose actions are calls of tools, with a policy of random weights: most of what it says
//! is no call, and it is told so.

use super::*;
use agentgym_jobs::episode::TOOLS;
use agentgym_model::{TinyShape, tiny_text};

fn calling_policy() -> Policy {
    agentgym_games::provide();
    let path =
        "tiny?hidden=32&heads=2&kv_heads=1&layers=1&intermediate=64&vocab=400&template=tools";
    let shape = TinyShape::preset(path).unwrap().unwrap();
    let tokenizer = tiny_text::invented_tokenizer(shape.splitting, shape.vocab).unwrap();
    shape.policy(7, tokenizer).unwrap()
}

async fn calling_player(change: impl FnOnce(&mut Rules)) -> Player {
    let plan = plan(&[
        "actor_rollout_ref.agentgym.task_name=toolbox",
        "actor_rollout_ref.agentgym.env_addr=builtin:toolbox?terms=1",
        "data.tasks=[{env: toolbox, ids: 0..100}]",
    ]);
    let environments = Environments::default();
    let environment = environments.open(&plan, "toolbox").await.unwrap();
    // The server lives as long as the test process.
    std::mem::forget(environments);
    let policy = calling_policy();
    let text = policy.text().clone();
    let offered = environment.spec.offered().unwrap();
    Player {
        engine: alone(&policy),
        calling: BTreeMap::from([("toolbox".to_owned(), text.with_tools(&offered).unwrap())]),
        text,
        environments: BTreeMap::from([("toolbox".to_owned(), environment)]),
        ..player_of(&plan, change)
    }
}

fn request(sample: u32) -> Request {
    let mut request = super::request(5, sample);
    request.task.env = "toolbox".to_owned();
    request
}

fn ids(episode: &Episode, turn: &Turn, (from, to): (u32, u32)) -> Vec<u32> {
    episode.sequences[turn.sequence as usize].token_ids[from as usize..to as usize].to_vec()
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_stand_at_the_head_and_answers_are_tool_messages() {
    let player = calling_player(|_| {}).await;
    let episode = player.begin(&request(1)).await.unwrap();
    episode.check().unwrap();
    assert_eq!((episode.outcome, episode.reward), (Outcome::Horizon, 0.0));
    let (chat, tokenizer) = (player.text_for("toolbox").chat(), player.text.tokenizer());
    let asked = [Message::new(Role::User, &episode.prompt)];
    let mut context = chat.prompt_ids(tokenizer, &asked).unwrap();
    let head = tokenizer.decode(&context, false);
    assert!(head.contains("<tools>\n{\"type\": \"function\"") && head.contains("\"finish\""));
    for turn in &episode.turns {
        assert_eq!(ids(&episode, turn, turn.context), context);
        // No fault of the environment, no reward, and the model is told what was wrong.
        assert!(
            turn.observation.starts_with("Error: "),
            "{}",
            turn.observation
        );
        assert_eq!(
            (turn.parse, turn.action.as_ref(), turn.reward),
            (Parse::Invalid, None, None)
        );
        let ended = turn.finish == Finish::Eos;
        context = chat
            .observation_ids(tokenizer, ended, &turn.observation)
            .unwrap();
        assert!(
            tokenizer
                .decode(&context, false)
                .contains("<tool_response>\nError: ")
        );
    }
    // The mask is that of who said what.
    let sequence = &episode.sequences[0];
    let mut mask = vec![false; sequence.token_ids.len()];
    for turn in &episode.turns {
        mask[turn.policy.0 as usize..turn.policy.1 as usize].fill(true);
    }
    assert_eq!(sequence.loss_mask, mask);
    // What is exported begins with the same ids when it is read again.
    assert_eq!(episode.tools().len(), 4);
    let told = serde_json::to_vec(&[Trajectory::of(&episode)]).unwrap();
    let told = crate::demonstrations::parse_file("x", &told, None).unwrap();
    let from: Vec<&str> = told[0]
        .conversations
        .iter()
        .map(|line| line.from.as_str())
        .collect();
    assert_eq!(from, ["human", "gpt", "tool", "gpt", "tool", "gpt", "tool"]);
    let encoded = told[0].tokens(&calling_policy(), "x").unwrap();
    let first = episode.turns[0].policy.0 as usize;
    assert_eq!(encoded.token_ids[..first], sequence.token_ids[..first]);
    assert!(
        episode
            .told()
            .starts_with("tools: get, put, calculate, finish\n\n")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_go_on_from_wherever_the_tape_ends() {
    for limit in [None, Some(1)] {
        let mut player = calling_player(|rules| rules.gym.context_turns = limit).await;
        let mut tape = Tape::holding(&[]);
        let whole = player.play(&request(2), &mut tape).await.unwrap();
        assert!(whole.extra.iter().any(|(name, _)| name == TOOLS));
        let (events, _) = tape.news();
        assert!(events.len() > 5, "{events:?}");
        for cut in 0..=events.len() {
            player = Player {
                engine: alone(&calling_policy()),
                ..player
            };
            let mut tape = Tape::holding(&events[..cut]);
            let again = player.play(&request(2), &mut tape).await.unwrap();
            assert_eq!(again, whole, "{limit:?}, cut before event {cut}");
        }
    }
}

/// The solver's demonstrations have the ids of an episode in which they were said.
#[test]
fn demonstrations_are_told_as_episodes_are() {
    let policy = calling_policy();
    let source = agentgym_envs::builtin::parse("builtin:toolbox");
    let solver = source.unwrap().source.solver("wander=30").unwrap();
    let shown = solver.demonstrate(3, "Act.").unwrap();
    let chat = policy
        .chat()
        .with_tools(shown.tools.as_ref().unwrap())
        .unwrap();
    let conversation = crate::demonstrations::Conversation::after(&[], shown);
    let encoded = conversation.tokens(&policy, "x").unwrap();
    let role = |from: &str| match from {
        "human" => Role::User,
        "gpt" => Role::Assistant,
        "tool" => Role::Tool,
        other => panic!("{other}"),
    };
    let lines = conversation.conversations.iter();
    let messages: Vec<Message> = lines
        .map(|line| Message::new(role(&line.from), &line.value))
        .collect();
    let rendered = chat.render(&messages, false).unwrap();
    let text = policy.tokenizer().decode(&encoded.token_ids, false);
    assert_eq!(text, rendered.trim_end());
    let kept = encoded.token_ids.iter().zip(&encoded.loss_mask);
    let kept: Vec<u32> = kept.filter(|(_, kept)| **kept).map(|(id, _)| *id).collect();
    let said = policy.tokenizer().decode(&kept, true);
    let replies = conversation
        .conversations
        .iter()
        .filter(|line| line.from == "gpt");
    assert_eq!(
        said,
        replies.map(|line| line.value.as_str()).collect::<String>()
    );
}

#[test]
fn a_row_with_answers_of_tools_names_the_tools() {
    let policy = calling_policy();
    let row = |tools: &str| {
        let row = format!(
            r#"[{{"conversations": [{{"from": "human", "value": "a"}}, {{"from": "gpt", "value": "b"}},
                {{"from": "tool", "value": "c"}}, {{"from": "gpt", "value": "d"}}]{tools}}}]"#
        );
        let rows = crate::demonstrations::parse_file("x", row.as_bytes(), None).unwrap();
        rows[0]
            .tokens(&policy, "x row 0")
            .map(|_| ())
            .map_err(|e| e.to_string())
    };
    let tool = r#", "tools": [{"type": "function", "function": {"name": "get"}}]"#;
    assert_eq!(row(tool), Ok(()));
    let message = row("").unwrap_err();
    assert!(
        message.contains("message 2 is from `tool`") && message.contains("has `tools`"),
        "{message}"
    );
    let early = format!(
        r#"[{{"conversations": [{{"from": "tool", "value": "c"}}, {{"from": "human", "value": "a"}},
            {{"from": "gpt", "value": "b"}}]{tool}}}]"#
    );
    let early = crate::demonstrations::parse_file("x", early.as_bytes(), None).unwrap();
    let message = early[0].tokens(&policy, "x").unwrap_err().to_string();
    assert!(message.contains("message 0 is from `tool`"), "{message}");
    let message = row(r#", "tools": "get""#).unwrap_err();
    assert!(
        message.contains("x row 0") && message.contains("no list of"),
        "{message}"
    );
}
