//! Every dialect against answers as its server gives them, and against what may be wrong with them.

use super::*;

const PROMPT: [u32; 3] = [5, 6, 7];
const STOP: [u32; 1] = [2];
const VOCABULARY: usize = 100;
const ALL: [ServerDialect; 4] = [
    ServerDialect::Vllm,
    ServerDialect::Sglang,
    ServerDialect::LlamaCpp,
    ServerDialect::Openai,
];

fn ask() -> Ask<'static> {
    Ask {
        prompt: &PROMPT,
        tokens_max: 4,
        greedy: false,
        seed: 9,
        stop_ids: &STOP,
    }
}

/// An answer of this server: `finish` is `stop` or `length`.
fn answer(dialect: ServerDialect, ids: &[u32], log_probs: &[f64], finish: &str) -> Value {
    let tokens: Vec<String> = ids.iter().map(|id| format!("token_id:{id}")).collect();
    let pairs = || ids.iter().zip(log_probs);
    match dialect {
        ServerDialect::Vllm => {
            let content: Vec<Value> = (tokens.iter().zip(log_probs))
                .map(|(token, log_prob)| {
                    json!({"token": token, "logprob": log_prob, "bytes": null, "top_logprobs": []})
                })
                .collect();
            json!({"request_id": "x", "choices": [{
                "index": 0, "token_ids": ids, "finish_reason": finish, "logprobs": {"content": content},
            }], "prompt_logprobs": null})
        }
        ServerDialect::Sglang => {
            let scored: Vec<Value> = pairs().map(|(id, p)| json!([p, id, null])).collect();
            json!({"text": "?", "output_ids": ids, "meta_info": {
                "id": "x", "finish_reason": {"type": finish}, "prompt_tokens": PROMPT.len(),
                "completion_tokens": ids.len(), "output_token_logprobs": scored,
            }})
        }
        ServerDialect::LlamaCpp => {
            let scored: Vec<Value> = pairs()
                .map(|(id, p)| json!({"id": id, "token": "?", "logprob": p, "top_logprobs": []}))
                .collect();
            let finish = if finish == "stop" { "eos" } else { "limit" };
            json!({"content": "?", "tokens": ids, "prompt": "???", "tokens_evaluated": PROMPT.len(),
                "stop_type": finish, "truncated": false, "completion_probabilities": scored})
        }
        ServerDialect::Openai => json!({"id": "x", "choices": [{
            "index": 0, "text": "?", "finish_reason": finish, "token_ids": ids,
            "prompt_token_ids": PROMPT, "logprobs": {"tokens": tokens, "token_logprobs": log_probs},
        }], "usage": {"prompt_tokens": PROMPT.len()}}),
    }
}

fn refused(dialect: ServerDialect, answer: &Value) -> String {
    read(dialect, &ask(), answer, VOCABULARY).unwrap_err()
}

#[test]
fn ids_and_log_probs_are_taken_as_they_are() {
    for dialect in ALL {
        let ended = answer(dialect, &[8, 9, 2], &[-0.5, -1.0, -0.25], "stop");
        let message = read(dialect, &ask(), &ended, VOCABULARY).unwrap();
        assert_eq!(message.token_ids, [8, 9, 2], "{dialect:?}");
        assert_eq!(message.log_probs, [-0.5, -1.0, -0.25]);
        assert!(message.ended);
        let cut = answer(dialect, &[8, 9, 8, 9], &[-0.5; 4], "length");
        let message = read(dialect, &ask(), &cut, VOCABULARY).unwrap();
        assert_eq!((message.token_ids.len(), message.ended), (4, false));
        // It knows no such stop id and went on: the message ends where it ends for us.
        let further = answer(dialect, &[8, 2, 9, 9], &[-0.5, -1.0, -0.1, -0.2], "length");
        let message = read(dialect, &ask(), &further, VOCABULARY).unwrap();
        assert_eq!(message.token_ids, [8, 2]);
        assert_eq!((message.log_probs, message.ended), (vec![-0.5, -1.0], true));
    }
}

#[test]
fn whatever_is_not_what_was_asked_for_is_named() {
    for dialect in ALL
        .into_iter()
        .filter(|dialect| *dialect != ServerDialect::LlamaCpp)
    {
        let fewer = refused(dialect, &answer(dialect, &[8, 9, 2], &[-0.5, -1.0], "stop"));
        assert!(
            fewer.contains("2 log-probs for 3 ids"),
            "{dialect:?}: {fewer}"
        );
    }
    for dialect in ALL {
        let short = refused(dialect, &answer(dialect, &[8, 9], &[-0.5, -1.0], "length"));
        assert!(short.contains("context is shorter"), "{short}");
        let endless = refused(dialect, &answer(dialect, &[8, 9], &[-0.5, -1.0], "stop"));
        assert!(
            endless.contains("without giving an id that ends one"),
            "{endless}"
        );
        let foreign = refused(dialect, &answer(dialect, &[8, 100, 2], &[-0.5; 3], "stop"));
        assert!(foreign.contains("another vocabulary"), "{foreign}");
        let positive = refused(dialect, &answer(dialect, &[8, 2], &[0.5, -0.1], "stop"));
        assert!(positive.contains("a log-prob of 0.5"), "{positive}");
        let many = refused(dialect, &answer(dialect, &[8; 5], &[-0.5; 5], "length"));
        assert!(many.contains("5 ids, where 4 were allowed"), "{many}");
        let none = refused(dialect, &answer(dialect, &[], &[], "stop"));
        assert!(none.contains("no ids"), "{none}");
        for garbage in [
            json!({}),
            json!([]),
            json!("x"),
            json!({"choices": 7, "tokens": {}}),
        ] {
            assert!(
                refused(dialect, &garbage).contains("no token ids"),
                "{dialect:?}"
            );
        }
    }
}

#[test]
fn a_prompt_that_was_read_otherwise_is_named() {
    let good = |dialect| answer(dialect, &[8, 2], &[-0.5, -0.1], "stop");
    for (dialect, pointer) in [
        (ServerDialect::Sglang, "/meta_info/prompt_tokens"),
        (ServerDialect::LlamaCpp, "/tokens_evaluated"),
        (ServerDialect::Openai, "/usage/prompt_tokens"),
    ] {
        let mut longer = good(dialect);
        *longer.pointer_mut(pointer).unwrap() = 4.into();
        let said = refused(dialect, &longer);
        assert!(said.contains("read 4 ids of a prompt of 3"), "{said}");
    }
    let mut other = good(ServerDialect::Openai);
    other["choices"][0]["prompt_token_ids"] = json!([1, 5, 6, 7]);
    let said = refused(ServerDialect::Openai, &other);
    assert!(
        said.contains("4 ids where 3 were sent, and only the first 0"),
        "{said}"
    );
    let mut echoed = good(ServerDialect::Vllm);
    echoed["prompt_token_ids"] = json!([5, 6, 8]);
    let said = refused(ServerDialect::Vllm, &echoed);
    assert!(said.contains("the first 2"), "{said}");
}

/// llama.cpp says nothing of ids that end within a character. What is left has its place only where
/// there is no other for it.
#[test]
fn log_probs_that_are_left_out_are_known_by_their_places() {
    let of = |ids: &[u32], scored: &[(u32, f64)]| laid(ids, scored).map(|(_, unsaid)| unsaid);
    let set = |places: &[usize]| Some(places.iter().copied().collect());
    assert_eq!(of(&[8, 9, 2], &[(8, -0.5), (2, -0.1)]), set(&[1]));
    assert_eq!(of(&[8, 9, 2], &[]), set(&[0, 1, 2]));
    // Either 8 may be meant, and the 9 is between them.
    assert_eq!(of(&[8, 9, 8], &[(8, -0.5)]), set(&[0, 1, 2]));
    assert_eq!(of(&[8, 8, 2], &[(8, -0.5), (8, -0.5), (2, -0.1)]), set(&[]));
    assert_eq!(of(&[8, 9], &[(9, -0.5), (8, -0.5)]), None);
    assert_eq!(of(&[8], &[(8, -0.5), (8, -0.5)]), None);
    let mut halves = answer(
        ServerDialect::LlamaCpp,
        &[8, 9, 2],
        &[-0.5, -1.0, -0.1],
        "stop",
    );
    let entries = halves["completion_probabilities"].as_array_mut().unwrap();
    entries.remove(1);
    let message = read(ServerDialect::LlamaCpp, &ask(), &halves, VOCABULARY).unwrap();
    assert_eq!(
        (message.unsaid, message.token_ids),
        (vec![1], vec![8, 9, 2])
    );
    assert_eq!((message.log_probs[0], message.log_probs[2]), (-0.5, -0.1));
    let other = answer(ServerDialect::LlamaCpp, &[8, 9, 2], &[-0.5; 3], "stop");
    let mut other = other;
    other["tokens"] = json!([8, 7, 2]);
    let said = refused(ServerDialect::LlamaCpp, &other);
    assert!(said.contains("other ids than it gives"), "{said}");
}

/// Ids that end the messages of other models are ends to llama.cpp in every model.
#[test]
fn an_end_that_is_none_of_the_policys_is_no_end() {
    let mut early = answer(ServerDialect::LlamaCpp, &[8, 9], &[-0.5, -1.0], "stop");
    let said = refused(ServerDialect::LlamaCpp, &early);
    assert!(
        said.contains("without giving an id that ends one"),
        "{said}"
    );
    early["tokens_predicted"] = 2.into();
    let message = read(ServerDialect::LlamaCpp, &ask(), &early, VOCABULARY).unwrap();
    assert_eq!((message.ended, message.goes_on), (false, true));
    let mut full = answer(ServerDialect::LlamaCpp, &[8; 4], &[-0.5; 4], "stop");
    full["tokens_predicted"] = 4.into();
    let message = read(ServerDialect::LlamaCpp, &ask(), &full, VOCABULARY).unwrap();
    assert_eq!((message.ended, message.goes_on), (false, false));
    // The id that ended it was left out: what follows would not be its own.
    early["tokens_predicted"] = 3.into();
    refused(ServerDialect::LlamaCpp, &early);
}

#[test]
fn a_forced_answer_tells_the_log_prob_of_any_id() {
    let body = distribution_body(&PROMPT, 2, VOCABULARY);
    assert_eq!(
        (&body["n_probs"], &body["logit_bias"]),
        (&json!(VOCABULARY), &json!([[2, 1e6]]))
    );
    let mut answer = json!({"tokens": [2], "tokens_evaluated": 3, "completion_probabilities": [
        {"id": 2, "logprob": -9.0, "top_logprobs": [{"id": 8, "logprob": -0.25}, {"id": 9, "logprob": 0.5}]},
    ]});
    assert_eq!(told(&answer, 3, 8), Ok(-0.25));
    assert!(
        told(&answer, 3, 9)
            .unwrap_err()
            .contains("no log-prob of the id 9")
    );
    assert!(
        told(&answer, 3, 7)
            .unwrap_err()
            .contains("no log-prob of the id 7")
    );
    answer["tokens_evaluated"] = 4.into();
    assert!(told(&answer, 3, 8).unwrap_err().contains("read 4 ids"));
}

/// What OpenAI itself answers: texts.
#[test]
fn texts_alone_are_refused() {
    let texts = json!({"choices": [{
        "text": "go", "finish_reason": "stop", "index": 0,
        "logprobs": {"tokens": ["go"], "token_logprobs": [-0.5]},
    }], "usage": {"prompt_tokens": 3}});
    let said = refused(ServerDialect::Openai, &texts);
    assert!(said.contains("texts and no token ids"), "{said}");
    // Ids in the place of texts will do.
    let mut ids = texts;
    ids["choices"][0]["logprobs"]["tokens"] = json!(["token_id:2"]);
    let message = read(ServerDialect::Openai, &ask(), &ids, VOCABULARY).unwrap();
    assert_eq!(message.token_ids, [2]);
    ids["choices"][0]["token_ids"] = json!([8]);
    let said = refused(ServerDialect::Openai, &ids);
    assert!(said.contains("other ids than it gives"), "{said}");
}

#[test]
fn what_is_asked_for_is_all_of_the_distribution() {
    for dialect in ALL {
        let sampled = body(dialect, &ask(), Some("m")).to_string();
        let greedy = body(
            dialect,
            &Ask {
                greedy: true,
                ..ask()
            },
            None,
        )
        .to_string();
        assert!(sampled.contains("[5,6,7]") && sampled.contains("\"temperature\":1.0"));
        assert!(greedy.contains("\"temperature\":0.0"), "{greedy}");
        let names_it = matches!(dialect, ServerDialect::Vllm | ServerDialect::Openai);
        assert_eq!(sampled.contains("\"model\":\"m\""), names_it, "{sampled}");
        assert!(!greedy.contains("model"), "{greedy}");
    }
}

/// A good answer of each dialect, as bytes.
pub(crate) fn good_answers() -> Vec<Vec<u8>> {
    let good = |dialect: &ServerDialect| answer(*dialect, &[8, 9, 2], &[-0.5; 3], "stop");
    ALL.iter()
        .map(|dialect| good(dialect).to_string().into_bytes())
        .collect()
}

/// Whether every dialect refuses a body, or reads as many log-probs as ids.
pub(crate) fn are_refused_or_read(bytes: &[u8]) -> bool {
    let Ok(value) = serde_json::from_slice::<Value>(bytes) else {
        return true;
    };
    ALL.iter()
        .all(|dialect| match read(*dialect, &ask(), &value, VOCABULARY) {
            Ok(message) => message.token_ids.len() == message.log_probs.len(),
            Err(why) => !why.is_empty(),
        })
}
