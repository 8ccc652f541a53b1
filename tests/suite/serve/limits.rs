//! What a server refuses, when it has no room, and how it ends.

use super::{BASE, Server, events};
use futures::StreamExt as _;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

async fn refused(response: reqwest::Response, status: u16, words: &[&str]) -> Value {
    let found = response.status().as_u16();
    let pauses = response.headers().contains_key("retry-after");
    let text = response.text().await.unwrap();
    assert_eq!(found, status, "{text}");
    assert_eq!(pauses, matches!(status, 429 | 503), "{text}");
    let document: Value = serde_json::from_str(&text).unwrap();
    let error = &document["error"];
    assert!(error["type"].is_string() && error["message"].is_string());
    for word in words {
        assert!(text.contains(word), "no {word} in {text}");
    }
    error.clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_makes_no_sense_is_refused_with_the_field_to_blame() {
    let server = Server::of(BASE, &["--rows", "2", "--waiting", "2"]).await;
    let long = vec![5; 4096];
    let completions = [
        (json!({}), "prompt"),
        (json!({"prompt": 5}), "prompt"),
        (json!({"prompt": []}), "prompt"),
        (json!({"prompt": ""}), "prompt"),
        (json!({"prompt": [5, "a"]}), "prompt"),
        (json!({"prompt": [-1]}), "prompt"),
        (json!({"prompt": [1024]}), "prompt"),
        (json!({"prompt": long}), "prompt"),
        (json!({"prompt": long[..4090], "max_tokens": 7}), "prompt"),
        (
            json!({"prompt": vec![5; 4097], "max_tokens": 0, "echo": true, "logprobs": 0}),
            "prompt",
        ),
        (json!({"prompt": "a", "max_tokens": 0}), "max_tokens"),
        (json!({"prompt": "a", "max_tokens": -1}), "max_tokens"),
        (
            json!({"prompt": "a", "max_tokens": 4_294_967_295_u32}),
            "prompt",
        ),
        (json!({"prompt": "a", "temperature": -0.1}), "temperature"),
        (json!({"prompt": "a", "temperature": 1e-300}), "temperature"),
        (json!({"prompt": "a", "top_p": 0}), "top_p"),
        (json!({"prompt": "a", "top_k": -2}), "top_k"),
        (json!({"prompt": "a", "n": 0}), "n"),
        (json!({"prompt": "a", "logprobs": 5}), "logprobs"),
        (json!({"prompt": "a", "stop": [""]}), "stop"),
        (json!({"prompt": "a", "stop": vec!["x"; 17]}), "stop"),
        (json!({"prompt": "a", "echo": "yes"}), "echo"),
        (json!({"prompt": "a", "seed": 0.5}), "seed"),
        (
            json!({"prompt": "a", "presence_penalty": 0.5}),
            "presence_penalty",
        ),
        (json!({"prompt": "a", "best_off": 2}), "best_off"),
        (
            json!({"prompt": "a", "stream_options": 1}),
            "stream_options",
        ),
    ];
    for (body, param) in completions {
        let error = refused(server.post("/v1/completions", &body).await, 400, &[]).await;
        assert_eq!(error["param"], param, "{error}");
    }
    let user = |content: Value| json!([{"role": "user", "content": content}]);
    for (body, param) in [
        (json!({"messages": []}), "messages"),
        (json!({"messages": user(json!(null))}), "messages"),
        (
            json!({"messages": [{"role": "tool", "content": "a"}]}),
            "messages",
        ),
        (
            json!({"messages": [{"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}]}),
            "messages",
        ),
        (
            json!({"messages": user(json!([{"type": "image_url"}]))}),
            "messages",
        ),
        (
            json!({"messages": user(json!("word ".repeat(50_000)))}),
            "messages",
        ),
        (
            json!({"messages": user(json!("a")), "tools": [{}]}),
            "tools",
        ),
        (
            json!({"messages": user(json!("a")), "prompt": "a"}),
            "prompt",
        ),
        (
            json!({"messages": user(json!("a")), "top_logprobs": 3}),
            "top_logprobs",
        ),
    ] {
        let error = refused(server.post("/v1/chat/completions", &body).await, 400, &[]).await;
        assert_eq!(error["param"], param, "{error}");
    }
    // Never, since it is more than fits at all: not a matter of waiting.
    let many = json!({"prompt": "a", "n": 5});
    refused(
        server.post("/v1/completions", &many).await,
        400,
        &["up to 4"],
    )
    .await;
    let many = json!({"prompt": vec!["a"; 5], "echo": true, "logprobs": 0, "max_tokens": 0});
    refused(
        server.post("/v1/completions", &many).await,
        400,
        &["up to 4"],
    )
    .await;
    let other = json!({"prompt": "a", "model": "gpt-4"});
    let error = refused(server.post("/v1/completions", &other).await, 404, &["base"]).await;
    assert_eq!(error["code"], "model_not_found");
    let raw = |text: &'static str| server.request("POST", "/v1/completions").body(text).send();
    for text in ["", "[]", "{\"prompt\":", "\"a\""] {
        refused(raw(text).await.unwrap(), 400, &["JSON"]).await;
    }
    let large = server
        .request("POST", "/v1/completions")
        .body(vec![b' '; 9 << 20]);
    // It may close the connection before it has read all of that.
    if let Ok(response) = large.send().await {
        refused(response, 413, &[]).await;
    }
    refused(server.get("/v1/completions").await, 405, &["POST"]).await;
    refused(server.get("/v1/nothing").await, 404, &["/v1/completions"]).await;
    refused(server.get("/v1/models/other").await, 404, &["base"]).await;
    assert_eq!(server.get("/v1/models/base").await.status(), 200);
    let foreign = server
        .request("GET", "/v1/models")
        .header("origin", "http://evil.example");
    refused(foreign.send().await.unwrap(), 403, &["Origin"]).await;
    // After all of it there is room for as many as before.
    let full = json!({"prompt": "a", "n": 4, "max_tokens": 2});
    assert_eq!(server.post("/v1/completions", &full).await.status(), 200);
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_asked_for() {
    let words = ["--addr", "0.0.0.0:0"];
    let server = Server::with_key(BASE, &words, Some("secret")).await;
    assert_eq!(server.get("/health").await.status(), 200);
    refused(server.get("/v1/models").await, 401, &["key"]).await;
    for (key, status) in [("secret", 200), ("secre", 401), ("other!", 401), ("", 401)] {
        let request = server.request("GET", "/v1/models").bearer_auth(key);
        assert_eq!(request.send().await.unwrap().status(), status, "{key}");
    }
    server.end().await;
}

/// Long messages, so that they are still under way when something else happens.
fn long(n: usize) -> Value {
    json!({"prompt": "Goal: craft", "n": n, "max_tokens": 4000, "ignore_eos": true, "stream": true})
}

#[tokio::test(flavor = "multi_thread")]
async fn there_is_room_again_when_a_client_has_gone() {
    let server = Server::of(BASE, &["--rows", "1", "--waiting", "15"]).await;
    let small = json!({"prompt": "a", "max_tokens": 1});
    let scoring = json!({"prompt": "a", "max_tokens": 0, "echo": true, "logprobs": 0});
    let mut whole = long(16);
    whole["stream"] = json!(false);
    for streams in [true, false] {
        let mut response = None;
        let mut waiting = None;
        if streams {
            let mut stream = server
                .post("/v1/completions", &long(16))
                .await
                .bytes_stream();
            stream.next().await.unwrap().unwrap();
            response = Some(stream);
        } else {
            let request = server.request("POST", "/v1/completions").json(&whole);
            waiting = Some(tokio::spawn(request.send()));
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        refused(
            server.post("/v1/completions", &small).await,
            429,
            &["places"],
        )
        .await;
        refused(
            server.post("/v1/completions", &scoring).await,
            429,
            &["places"],
        )
        .await;
        drop(response);
        if let Some(waiting) = waiting {
            waiting.abort();
        }
        // All of it would have taken far longer.
        let begun = Instant::now();
        while server.post("/v1/completions", &small).await.status() != 200 {
            assert!(begun.elapsed() < Duration::from_secs(5), "no room");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_begun_is_ended_before_the_server_ends() {
    let server = Server::of(BASE, &[]).await;
    let response = server.post("/v1/completions", &long(1)).await;
    let mut stream = response.bytes_stream();
    let mut said = stream.next().await.unwrap().unwrap().to_vec();
    server.terminate();
    tokio::time::sleep(Duration::from_millis(200)).await;
    let small = json!({"prompt": "a", "max_tokens": 1});
    refused(server.post("/v1/completions", &small).await, 503, &[]).await;
    refused(server.get("/health").await, 503, &[]).await;
    while let Some(piece) = stream.next().await {
        said.extend(piece.unwrap());
    }
    let said = events(std::str::from_utf8(&said).unwrap());
    let ids = said
        .iter()
        .flat_map(|e| e["choices"][0]["token_ids"].as_array().unwrap());
    assert_eq!(ids.count(), 4000);
    assert_eq!(
        said.last().unwrap()["choices"][0]["finish_reason"],
        "length"
    );
    server.ended().await;
}
