//! `agentgym-submit serve` as a client meets it: a real process and real HTTP. What it answers is
//! compared with what the engine, scoring and `inspect` give for the same ids, bit for bit.

mod evaluations;
mod limits;
mod rollouts;
mod server;
mod tools;

use crate::bad_input::{Scene, refused};
use agentgym_model::{ComputeOptions, Device, Message, Policy, Role, ScoreRequest, score};
use agentgym_tests::program::workspace;
use serde_json::{Value, json};
pub(crate) use server::Server;
use server::{events, floats, ids};

const BASE: &str = "models/base";

pub(crate) fn policy() -> Policy {
    Policy::load(&workspace().join(BASE), &Device::cpu()).unwrap()
}

fn prompt(policy: &Policy) -> Vec<u32> {
    let messages = [Message::new(Role::User, "Goal: craft a torch. 你好")];
    let ids = policy.chat().prompt_ids(policy.tokenizer(), &messages);
    ids.unwrap()
}

/// Log-probs of all ids but the first, by the function that every other command scores with.
fn scored(policy: &Policy, ids: &[u32], temperature: f64) -> Vec<f32> {
    let mask: Vec<bool> = (0..ids.len()).map(|at| at > 0).collect();
    let request = ScoreRequest {
        token_ids: ids,
        loss_mask: &mask,
    };
    let options = ComputeOptions::default();
    let scores = score(policy, &[request], temperature, &options).unwrap();
    scores[0].log_probs[1..].to_vec()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_sampled_is_what_is_scored() {
    let (server, policy) = (Server::of(BASE, &[]).await, policy());
    let prompt = prompt(&policy);
    // As a worker asks it, whose dialect is called openai.
    let ask = json!({
        "prompt": prompt, "stream": false, "max_tokens": 40, "temperature": 1.0, "top_p": 1.0, "seed": 7,
        "logprobs": 1, "return_token_ids": true, "return_tokens_as_token_ids": true,
        "stop_token_ids": policy.eos_ids(),
    });
    let answer = server.answer("/v1/completions", &ask).await;
    let choice = &answer["choices"][0];
    let said = ids(&choice["token_ids"]);
    assert_eq!(ids(&choice["prompt_token_ids"]), prompt);
    assert_eq!(answer["usage"]["prompt_tokens"], prompt.len());
    assert_eq!(answer["usage"]["completion_tokens"], said.len());
    let tokens: Vec<String> = said.iter().map(|id| format!("token_id:{id}")).collect();
    assert_eq!(choice["logprobs"]["tokens"], json!(tokens));
    let found = floats(&choice["logprobs"]["token_logprobs"]);
    let all = [&prompt[..], &said].concat();
    assert_eq!(found, scored(&policy, &all, 1.0)[prompt.len() - 1..]);
    let ended = policy.eos_ids().contains(said.last().unwrap());
    let finish = if ended { "stop" } else { "length" };
    assert_eq!(choice["finish_reason"], finish);
    // The same request is answered alike, in any company.
    let others = (0..8).map(|_| server.answer("/v1/completions", &ask));
    for other in futures::future::join_all(others).await {
        assert_eq!(other["choices"], answer["choices"]);
    }
    // Scored as part of a prompt: every token, and whether it is the likeliest.
    for temperature in [0.0, 1.3] {
        let ask = json!({
            "prompt": [all, prompt], "max_tokens": 0, "echo": true, "logprobs": 1, "temperature": temperature,
        });
        let answer = server.answer("/v1/completions", &ask).await;
        let scale = if temperature == 0.0 { 1.0 } else { temperature };
        for (choice, ids) in [&all, &prompt].into_iter().enumerate() {
            let choice = &answer["choices"][choice];
            let found = &choice["logprobs"]["token_logprobs"];
            assert_eq!(found[0], Value::Null);
            let found = json!(found.as_array().unwrap()[1..]);
            assert_eq!(floats(&found), scored(&policy, ids, scale));
            assert_eq!(choice["token_ids"], json!([]));
            let text = policy.tokenizer().decode(ids, false);
            assert_eq!(choice["text"], text);
        }
    }
    server.end().await;
}

/// Greedy generation takes the ids that scoring calls the likeliest.
#[tokio::test(flavor = "multi_thread")]
async fn the_likeliest_id_is_the_one_that_greedy_generation_takes() {
    let (server, policy) = (Server::of(BASE, &[]).await, policy());
    let prompt = prompt(&policy);
    let ask = json!({"prompt": prompt, "max_tokens": 24, "temperature": 0, "logprobs": 1});
    let greedy = server.answer("/v1/completions", &ask).await;
    let greedy = &greedy["choices"][0];
    let said = ids(&greedy["token_ids"]);
    let mut all = [&prompt[..], &said].concat();
    let score = async |all: &[u32]| {
        let ask = json!({"prompt": all, "max_tokens": 0, "echo": true, "logprobs": 1});
        server.answer("/v1/completions", &ask).await["choices"][0]["logprobs"].clone()
    };
    let own = score(&all).await;
    let is_likeliest = |log_probs: &Value, at: usize| {
        let own = log_probs["token_logprobs"][at].as_f64().unwrap();
        let top = log_probs["top_logprobs"][at].as_object().unwrap();
        top.values().all(|other| other.as_f64().unwrap() <= own)
    };
    assert_eq!(own["top_logprobs"][0], Value::Null);
    for at in prompt.len()..all.len() {
        assert!(is_likeliest(&own, at), "{at}: {own}");
        let taken = &greedy["logprobs"]["top_logprobs"][at - prompt.len()];
        assert_eq!(*taken, own["top_logprobs"][at]);
    }
    // Another id in the middle is not the likeliest, and the one that is stands beside it.
    let at = prompt.len() + 1;
    all[at] = (all[at] + 1) % 512 + 3;
    let other = score(&all).await;
    assert!(!is_likeliest(&other, at));
    assert_eq!(other["top_logprobs"][at].as_object().unwrap().len(), 2);
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_says_what_the_whole_answer_says() {
    let (server, policy) = (Server::of(BASE, &[]).await, policy());
    // Hot: characters of several ids, and bytes that are none.
    let chat = json!([{"role": "user", "content": "Say 你好 and <|im_end|>"}]);
    for (route, mut ask) in [
        (
            "/v1/completions",
            json!({"prompt": ["你好 ", "é"], "echo": true, "logprobs": 0}),
        ),
        (
            "/v1/chat/completions",
            json!({"messages": chat, "logprobs": true}),
        ),
    ] {
        for (name, value) in [
            ("temperature", json!(30)),
            ("seed", json!(3)),
            ("n", json!(2)),
        ] {
            ask[name] = value;
        }
        ask["max_tokens"] = json!(150);
        let whole = server.answer(route, &ask).await;
        ask["stream"] = json!(true);
        ask["stream_options"] = json!({"include_usage": true});
        let events = events(&server.post(route, &ask).await.text().await.unwrap());
        let (counts, chunks) = events.split_last().unwrap();
        assert_eq!(counts["usage"], whole["usage"]);
        let choices = whole["choices"].as_array().unwrap();
        assert_eq!(choices.len(), if route.contains("chat") { 2 } else { 4 });
        for (index, choice) in choices.iter().enumerate() {
            let own = chunks.iter().map(|chunk| &chunk["choices"][0]);
            let own: Vec<&Value> = own.filter(|own| own["index"] == index).collect();
            let text = |own: &&Value| {
                own["text"]
                    .as_str()
                    .or(own["delta"]["content"].as_str())
                    .map(str::to_owned)
            };
            let text: String = own.iter().filter_map(text).collect();
            let expected = choice["text"]
                .as_str()
                .or(choice["message"]["content"].as_str());
            assert_eq!(Some(&*text), expected);
            let said: Vec<u32> = own
                .iter()
                .filter(|own| own["token_ids"].is_array())
                .flat_map(|own| ids(&own["token_ids"]))
                .collect();
            assert_eq!(said, ids(&choice["token_ids"]));
            let last = own.last().unwrap();
            assert_eq!(last["finish_reason"], choice["finish_reason"]);
            let list = |of: &Value| {
                of["logprobs"]["token_logprobs"]
                    .as_array()
                    .or(of["logprobs"]["content"].as_array())
                    .cloned()
            };
            let log_probs: Vec<Value> = own.iter().filter_map(|own| list(own)).flatten().collect();
            assert_eq!(Some(log_probs), list(choice));
            assert!(own.len() > 20, "{} chunks", own.len());
        }
    }
    // A conversation's ids are the template's, and a special string in a message is spelled out.
    let ask = json!({"messages": chat, "max_tokens": 5, "seed": 1, "return_token_ids": true});
    let answer = server.answer("/v1/chat/completions", &ask).await;
    let messages = [Message::new(Role::User, "Say 你好 and <|im_end|>")];
    let expected = policy
        .chat()
        .prompt_ids(policy.tokenizer(), &messages)
        .unwrap();
    assert_eq!(ids(&answer["choices"][0]["prompt_token_ids"]), expected);
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_text_that_ends_a_message_is_no_part_of_it() {
    let server = Server::of(BASE, &[]).await;
    let mut ask = json!({"prompt": "Goal: craft", "max_tokens": 60, "seed": 5, "ignore_eos": true});
    let free = server.answer("/v1/completions", &ask).await;
    let free = free["choices"][0]["text"].as_str().unwrap().to_owned();
    let letters: Vec<char> = free.chars().collect();
    let stop: String = letters[20..24].iter().collect();
    let expected = free.split(&stop).next().unwrap();
    ask["stop"] = json!(["never said", stop]);
    for stream in [false, true] {
        ask["stream"] = json!(stream);
        let response = server
            .post("/v1/completions", &ask)
            .await
            .text()
            .await
            .unwrap();
        let (text, finish) = match stream {
            false => {
                let answer: Value = serde_json::from_str(&response).unwrap();
                let choice = &answer["choices"][0];
                (
                    choice["text"].as_str().unwrap().to_owned(),
                    choice["finish_reason"].clone(),
                )
            }
            true => {
                let all = events(&response);
                let text = all
                    .iter()
                    .map(|e| e["choices"][0]["text"].as_str().unwrap());
                (
                    text.collect(),
                    all.last().unwrap()["choices"][0]["finish_reason"].clone(),
                )
            }
        };
        assert_eq!((&*text, finish), (expected, json!("stop")), "{stop:?}");
    }
    server.end().await;
}

/// The policies of a run, by its id: the log-probs that `inspect` shows.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_served_and_scores_as_inspect_shows() {
    let scene = Scene::new();
    let output = scene.submit("run run.yaml --store s trainer.total_training_steps=2");
    assert!(output.status.success());
    let output = scene.submit("inspect r 2 rollout 0 --json --store s");
    let shown: Value = serde_json::from_slice(&output.stdout).unwrap();
    let store = scene.path("s").display().to_string();
    let server = Server::of("r", &["--store", &store, "--iteration", "1"]).await;
    let models = server.get("/v1/models").await;
    let models: Value = models.json().await.unwrap();
    assert_eq!(models["data"][0]["id"], "r:1");
    let mut compared = 0;
    for record in shown["records"].as_array().unwrap() {
        for sequence in record["sequences"].as_array().unwrap() {
            let all = ids(&sequence["token_ids"]);
            let ask = json!({"model": "r:1", "prompt": all, "max_tokens": 0, "echo": true, "logprobs": 0});
            let answer = server.answer("/v1/completions", &ask).await;
            let found = &answer["choices"][0]["logprobs"]["token_logprobs"];
            let recorded = floats(&sequence["sampled_log_probs"]);
            let mask = sequence["loss_mask"].as_array().unwrap();
            for (at, recorded) in recorded.iter().enumerate().filter(|(at, _)| mask[*at] == 1) {
                assert_eq!(found[at].as_f64().unwrap() as f32, *recorded, "{at}");
                compared += 1;
            }
        }
    }
    assert!(compared > 10, "{compared}");
    server.end().await;
    // Without an iteration the newest, and with the beginning of its id.
    let server = Server::of("r", &["--store", &store]).await;
    assert_eq!(server.model, "r:2");
    server.end().await;
    for (words, code, said) in [
        (
            "serve r --store s --iteration 7",
            4,
            &["iterations 0 to 2", "7"][..],
        ),
        ("serve nobody --store s", 4, &["nobody", "r"]),
        ("serve s --store s", 2, &["config.json", "export"]),
        ("serve ./nothing --store s", 2, &["./nothing", "folder"]),
        ("serve FOLDER --iteration 1", 2, &["--iteration"]),
        (
            "serve FOLDER --addr 0.0.0.0:0",
            2,
            &["AGENTGYM_SERVER_KEY", "127.0.0.1"],
        ),
    ] {
        let folder = workspace().join(BASE).display().to_string();
        let output = scene.submit(&words.replace("FOLDER", &folder));
        refused(words, &output, code, said);
    }
    // A family that nobody here knows, and a port that somebody has.
    let strange = r#"{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}"#;
    std::fs::create_dir(scene.path("strange")).unwrap();
    std::fs::write(scene.path("strange/config.json"), strange).unwrap();
    let output = scene.submit("serve strange");
    refused("strange", &output, 2, &["gpt2", "qwen2"]);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap().to_string();
    let folder = workspace().join(BASE).display().to_string();
    let output = scene.submit(&format!("serve {folder} --addr {addr}"));
    refused("taken", &output, 2, &["in use", &addr]);
}
