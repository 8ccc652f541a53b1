//! Prompts in which replies stand as sampled, against the turns of an episode.

use crate::folder::chat::{Chat, Message, RecordedChat, Role, ToolCall};
use crate::tiny_text::{Template, chat};
use crate::{Error, Tokenizer};
use serde_json::json;

fn tokenizer() -> Tokenizer {
    Tokenizer::load(&crate::tests::fixtures().join("qwen2-tiny")).unwrap()
}

/// The tools that a call below names.
fn calling() -> Chat {
    let parameters = json!({"type": "object", "properties": {}});
    let tools = json!([{"type": "function", "function": {"name": "look", "description": "", "parameters": parameters}}]);
    chat(Template::Tools).with_tools(&tools).unwrap()
}

fn as_sampled<'a>(messages: &'a [Message], replies: &'a [usize]) -> RecordedChat<'a> {
    RecordedChat {
        messages,
        replies,
        cuts: false,
    }
}

/// Ids that no text has: each reply is spelled letter by letter.
fn spelled(tokenizer: &Tokenizer, reply: &str) -> Vec<u32> {
    let letters = reply.chars().map(|letter| letter.to_string());
    letters
        .flat_map(|letter| tokenizer.encode_ordinary(&letter).unwrap())
        .collect()
}

#[test]
fn a_prompt_with_recorded_replies_is_the_episode_turn_by_turn() {
    let (tokenizer, chat) = (tokenizer(), calling());
    let end = chat.end_of_turn_id(&tokenizer).unwrap();
    let replies = ["Thought: look.", "<tool_call>{\"name\": \"look\"} cut"];
    let answers = ["Seen: <|im_end|> \u{e000}reply 1\u{e001}", "é and more"];
    let mut messages = vec![Message::new(Role::User, "Go. \u{e000}reply 3\u{e001}")];
    let mut expected = chat.prompt_ids(&tokenizer, &messages).unwrap();
    let mut sampled = Vec::new();
    for (turn, (reply, answer)) in replies.iter().zip(answers).enumerate() {
        let ended = turn == 0;
        let mut ids = spelled(&tokenizer, reply);
        ids.extend(ended.then_some(end));
        sampled.push((expected.clone(), ids.clone(), ended));
        expected.extend(ids);
        expected.extend(chat.observation_ids(&tokenizer, ended, answer).unwrap());
        // What a client sends in its place does not matter.
        messages.push(Message {
            tool_calls: vec![ToolCall {
                name: "look".to_owned(),
                arguments: serde_json::Map::new(),
            }],
            ..Message::new(Role::Assistant, "other")
        });
        messages.push(Message::new(Role::Tool, answer));
    }
    let mut asked = 0;
    let ids = chat.recorded_ids_within(
        &tokenizer,
        as_sampled(&messages, &[1, 3]),
        |at, before| {
            let (known, ids, ended) = &sampled[asked];
            assert_eq!((at, before), (1 + 2 * asked, &known[..]));
            asked += 1;
            (ids.clone(), *ended)
        },
        usize::MAX,
    );
    assert_eq!(ids.unwrap().unwrap(), (expected, 0));
    // Two answers to one reply stand together, as the template writes them.
    let [head, reply, _, _, _] = &messages[..] else {
        panic!()
    };
    let both = [
        Message::new(Role::Tool, "one"),
        Message::new(Role::Tool, "two"),
    ];
    let conversation = [vec![head.clone(), reply.clone()], both.to_vec()].concat();
    let (known, ids, _) = &sampled[0];
    let found = chat.recorded_ids_within(
        &tokenizer,
        as_sampled(&conversation, &[1]),
        |_, _| (ids.clone(), true),
        usize::MAX,
    );
    let (found, _) = found.unwrap().unwrap();
    let text = tokenizer.decode(&found[known.len() + ids.len()..], false);
    assert_eq!(text.matches("<tool_response>").count(), 2, "{text}");
    assert_eq!(text.matches("<|im_start|>user").count(), 1, "{text}");
    // Without replies it is the prompt, and a length is seen before anything is encoded.
    let within = |ids_max| {
        let none = |_: usize, _: &[u32]| unreachable!();
        let asked = as_sampled(&messages[..1], &[]);
        chat.recorded_ids_within(&tokenizer, asked, none, ids_max)
    };
    let prompt = chat.prompt_ids(&tokenizer, &messages[..1]).unwrap();
    assert_eq!(within(usize::MAX).unwrap().unwrap(), (prompt, 0));
    assert_eq!(within(3).unwrap(), None);
}

#[test]
fn a_template_that_leaves_a_reply_out_is_refused() {
    let template = "{% for m in messages %}{% if m.role != 'assistant' or loop.last %}\
                    <|im_start|>{{ m.content }}<|im_end|>{% endif %}{% endfor %}";
    let special = ["<|im_start|>", "<|im_end|>"].map(str::to_owned);
    let path = "m/chat_template.jinja".into();
    let chat = Chat::new(
        template.to_owned(),
        Default::default(),
        special.into(),
        path,
    )
    .unwrap();
    let messages = [Role::User, Role::Assistant, Role::User].map(|role| Message::new(role, "x"));
    let found = chat.recorded_ids_within(
        &tokenizer(),
        as_sampled(&messages, &[1]),
        |_, _| (vec![], true),
        usize::MAX,
    );
    assert!(matches!(found, Err(Error::Template { .. })), "{found:?}");
}

/// As Qwen3 has it: a thought stands until the user speaks again.
const FORGETS: &str = "{%- set last = namespace(at=0) %}{%- for m in messages %}{%- if m.role == 'user' %}\
    {%- set last.at = loop.index0 %}{%- endif %}{%- endfor %}{%- for m in messages %}{%- set content = m.content %}\
    {%- if m.role == 'assistant' and '</think>' in content %}\
    {%- set thought = content.split('</think>')[0].split('<think>')[-1].strip('\n') %}\
    {%- set content = content.split('</think>')[-1].lstrip('\n') %}\
    {%- if loop.index0 > last.at %}{%- set content = '<think>\n' + thought + '\n</think>\n\n' + content %}{%- endif %}\
    {%- endif %}{{- '<|im_start|>' + m.role + '\n' + content + '<|im_end|>\n' }}{%- endfor %}\
    {%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}";

#[test]
fn a_reply_without_the_thought_that_its_template_leaves_out_has_its_own_ids() {
    let tokenizer = tokenizer();
    let special = ["<|im_start|>", "<|im_end|>"].map(str::to_owned);
    let path = "m/chat_template.jinja".into();
    let chat = Chat::new(FORGETS.to_owned(), Default::default(), special.into(), path).unwrap();
    let end = tokenizer.special_tokens()["<|im_end|>"];
    let (thought, answer) = ("<think>\nWhich one?\n</think>\n\n", "Action: look");
    // Letter by letter, so that they are not what the text would be encoded as.
    let reply = |text: &str| [spelled(&tokenizer, text), vec![end]].concat();
    let first = reply(&format!("{thought}{answer}"));
    let last = reply(&format!("{thought}Action: go"));
    let said = |role, text: &str| Message::new(role, text);
    let spoken = [
        said(Role::User, "Go."),
        said(Role::Assistant, &format!("{thought}{answer}")),
        said(Role::User, "Seen."),
        said(Role::Assistant, &format!("{thought}Action: go")),
        said(Role::Tool, "Gone."),
    ];
    let of = |messages: &[Message], first: &[u32], cuts: bool| {
        let conversation = RecordedChat {
            messages,
            replies: &[1, 3],
            cuts,
        };
        let ids = |at: usize, _: &[u32]| match at {
            1 => (first.to_vec(), true),
            _ => (last.clone(), true),
        };
        let read = chat.recorded_ids_within(&tokenizer, conversation, ids, usize::MAX);
        read.unwrap().unwrap()
    };
    let holds = |ids: &[u32], part: &[u32]| ids.windows(part.len()).any(|seen| seen == part);
    let whole = chat.prompt_ids(&tokenizer, &spoken).unwrap();
    let (ids, kept) = of(&spoken, &first, true);
    // The template's text, from the ids that were sampled: the first without its thought, the last with it.
    assert_eq!(
        tokenizer.decode(&ids, false),
        tokenizer.decode(&whole, false)
    );
    assert_ne!(ids, whole);
    assert!(holds(&ids, &reply(answer)) && holds(&ids, &last) && kept == 0);
    let (as_sampled, _) = of(&spoken, &first, false);
    assert!(holds(&as_sampled, &first) && holds(&as_sampled, &last));
    // What the sender cuts off is cut off.
    let mut cut = spoken.clone();
    cut[3] = said(Role::Assistant, "Action: go");
    let (ids, kept) = of(&cut, &first, true);
    assert!(holds(&ids, &reply("Action: go")) && !holds(&ids, &last) && kept == 0);
    // An id of both thought and answer keeps them together.
    let joined = tokenizer.encode_ordinary(">A").unwrap();
    if let [one] = joined[..] {
        let parts = [
            spelled(&tokenizer, "<think>\nWhich one?\n</think"),
            vec![one],
            reply("ction: look"),
        ];
        let (ids, kept) = of(&spoken, &parts.concat(), true);
        assert!(holds(&ids, &parts.concat()) && kept == 1);
    }
}
