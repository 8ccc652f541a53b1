//! Tools behind the chat API: what a client sends is what the policy's own template writes of it, and
//! what the policy says is read as calls.

use super::{Server, events, ids};
use crate::toolbox::warmed;
use agentgym_model::{Chat, Device, Message, Policy, Role};
use agentgym_tests::program::program;
use serde_json::{Value, json};
use std::path::Path;

const CHAT: &str = "/v1/chat/completions";

/// A task of the toolbox as a client would put it: its text, and what may be called.
fn task(item: u32) -> (String, Value) {
    let mut command = program("agentgym-env");
    let range = format!("{item}..{}", item + 1);
    command.args(["demos", "--env", "builtin:toolbox?terms=1", "--ids", &range]);
    let shown: Value = serde_json::from_slice(&command.output().unwrap().stdout).unwrap();
    let first = shown["conversations"][0]["value"].as_str().unwrap();
    (first.to_owned(), shown["tools"].clone())
}

/// The ids of a whole answer, and the calls in it.
fn said(choice: &Value) -> (Vec<u32>, Vec<Value>) {
    let calls = choice["message"]["tool_calls"].as_array();
    (
        ids(&choice["token_ids"]),
        calls.cloned().unwrap_or_default(),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_calls_tools_in_the_tokens_that_the_policy_was_trained_on() {
    let server = Server::of(warmed(), &[]).await;
    let policy = Policy::load(Path::new(warmed()), &Device::cpu()).unwrap();
    let (text, tools) = task(5);
    let chat: Chat = policy.chat().with_tools(&tools).unwrap();
    let tokenizer = policy.tokenizer();
    let begins = json!([{"role": "user", "content": text}]);
    let ask = |messages: &Value| {
        json!({
            "messages": messages, "tools": tools, "temperature": 0, "max_tokens": 60, "seed": 1,
            "return_token_ids": true,
        })
    };
    let answer = server.answer(CHAT, &ask(&begins)).await;
    let choice = &answer["choices"][0];
    let prompt = ids(&choice["prompt_token_ids"]);
    let messages = [Message::new(Role::User, &*text)];
    assert_eq!(prompt, chat.prompt_ids(tokenizer, &messages).unwrap());
    let (sampled, calls) = said(choice);
    let [call] = &calls[..] else {
        panic!("{choice}")
    };
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert_eq!(choice["message"]["content"], Value::Null);
    let arguments = call["function"]["arguments"].as_str().unwrap();
    let read = json!({
        "name": call["function"]["name"],
        "arguments": serde_json::from_str::<Value>(arguments).unwrap(),
    });
    let written = tokenizer.decode(&sampled, true);
    let written = written.trim().strip_prefix("<tool_call>").unwrap();
    let written = written.strip_suffix("</tool_call>").unwrap();
    assert_eq!(serde_json::from_str::<Value>(written).unwrap(), read);

    // A stream says the same, the id of the call included.
    let mut streamed = ask(&begins);
    streamed["stream"] = json!(true);
    let stream = server.post(CHAT, &streamed).await.text().await.unwrap();
    let mut found = Vec::new();
    for event in events(&stream) {
        let delta = &event["choices"][0]["delta"];
        assert!(delta["content"].as_str().unwrap_or_default().is_empty());
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let mut call = call.clone();
            assert_eq!(
                call.as_object_mut().unwrap().remove("index"),
                Some(json!(found.len()))
            );
            found.push(call);
        }
    }
    assert_eq!(found, calls);
    let last = events(&stream).pop().unwrap();
    assert_eq!(last["choices"][0]["finish_reason"], "tool_calls");

    // The tool's answer stands where a run puts it: behind the ids that were sampled.
    let result = "{\"value\": 39}";
    let next = json!([
        begins[0], choice["message"],
        {"role": "tool", "tool_call_id": call["id"], "content": result},
    ]);
    let second = server.answer(CHAT, &ask(&next)).await;
    let bridge = chat.observation_ids(tokenizer, true, result).unwrap();
    let expected = [prompt, sampled, bridge].concat();
    assert_eq!(ids(&second["choices"][0]["prompt_token_ids"]), expected);
    let (_, again) = said(&second["choices"][0]);
    assert!(
        again.iter().all(|other| other["id"] != call["id"]),
        "{second}"
    );

    // Without tools the text of a call is text, and a conversation with calls may go on.
    let mut silent = ask(&begins);
    silent["tool_choice"] = json!("none");
    let plain = server.answer(CHAT, &silent).await;
    let prompt = ids(&plain["choices"][0]["prompt_token_ids"]);
    let expected = policy.chat().prompt_ids(tokenizer, &messages).unwrap();
    assert_eq!(prompt, expected);
    let later = json!({"messages": next, "max_tokens": 4});
    server.answer(CHAT, &later).await;
    server.end().await;
}

/// How many ids the prompt of a second turn has: those of the first, what was sampled, and the bridge to
/// the tool's answer.
fn behind_a_call(choice: &Value, tools: &Value, result: &str) -> usize {
    let policy = Policy::load(Path::new(warmed()), &Device::cpu()).unwrap();
    let offering = policy.chat().with_tools(tools).unwrap();
    let bridge = offering.observation_ids(policy.tokenizer(), true, result);
    let before = ["prompt_token_ids", "token_ids"].map(|of| ids(&choice[of]).len());
    before.iter().sum::<usize>() + bridge.unwrap().len()
}

/// Blocks of a message as the events of a stream give them, and its last delta.
fn streamed(stream: &str) -> (Value, Value) {
    let (mut blocks, mut last, mut open) = (Vec::new(), Value::Null, None);
    let lines = stream.lines().filter(|line| line.starts_with("data: "));
    let names = stream
        .lines()
        .filter_map(|line| line.strip_prefix("event: "));
    for (line, name) in lines.zip(names) {
        let event: Value = serde_json::from_str(&line["data: ".len()..]).unwrap();
        assert_eq!(event["type"], name);
        match name {
            "content_block_start" => {
                assert_eq!(
                    (event["index"].as_u64(), &open),
                    (Some(blocks.len() as u64), &None)
                );
                open = Some((event["content_block"].clone(), String::new()));
            }
            "content_block_delta" => {
                let delta = &event["delta"];
                let more = delta["text"]
                    .as_str()
                    .or(delta["partial_json"].as_str())
                    .unwrap();
                open.as_mut().unwrap().1 += more;
            }
            "content_block_stop" => {
                let (mut block, text) = open.take().unwrap();
                match block["type"].as_str() {
                    Some("text") => block["text"] = json!(text),
                    _ => block["input"] = serde_json::from_str(&text).unwrap(),
                }
                blocks.push(block);
            }
            "message_delta" => last = event,
            _ => assert!(["message_start", "message_stop"].contains(&name), "{name}"),
        }
    }
    assert!(
        stream
            .trim_end()
            .ends_with("data: {\"type\":\"message_stop\"}"),
        "{stream}"
    );
    (json!(blocks), last)
}

/// Equal but for the ids of calls.
fn without_ids(blocks: &Value) -> Value {
    let mut blocks = blocks.clone();
    for block in blocks.as_array_mut().unwrap() {
        block.as_object_mut().unwrap().remove("id");
    }
    blocks
}

#[tokio::test(flavor = "multi_thread")]
async fn anthropics_messages_are_those_of_openais_chat() {
    let server = Server::with_key(warmed(), &[], Some("sesame")).await;
    let (text, tools) = task(5);
    let of = |tool: &Value| {
        let function = &tool["function"];
        json!({"name": function["name"], "description": function["description"], "input_schema": function["parameters"]})
    };
    let offered: Value = tools.as_array().unwrap().iter().map(of).collect();
    let post = async |body: Value, key: &str| {
        let request = server
            .request("POST", "/v1/messages")
            .header("x-api-key", key);
        request.json(&body).send().await.unwrap()
    };
    let ask = |messages: &Value, stream: bool| {
        json!({
            "messages": messages, "tools": offered, "temperature": 0, "max_tokens": 60, "stream": stream,
            "tool_choice": {"type": "auto"}, "metadata": {"user_id": "1"}, "model": server.model,
        })
    };
    let begins = json!([{"role": "user", "content": [{"type": "text", "text": text}]}]);
    let chat = json!({
        "messages": [{"role": "user", "content": text}], "tools": tools, "temperature": 0, "max_tokens": 60,
        "return_token_ids": true,
    });
    let chat = server
        .request("POST", CHAT)
        .header("authorization", "Bearer sesame")
        .json(&chat);
    let chat: Value = chat.send().await.unwrap().json().await.unwrap();
    let choice = &chat["choices"][0];
    let message: Value = post(ask(&begins, false), "sesame")
        .await
        .json()
        .await
        .unwrap();
    let call = &choice["message"]["tool_calls"][0]["function"];
    let input: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    let expected = json!([{"type": "tool_use", "name": call["name"], "input": input}]);
    assert_eq!(without_ids(&message["content"]), expected, "{message}");
    assert_eq!(message["stop_reason"], "tool_use");
    assert_eq!(
        message["usage"]["input_tokens"],
        chat["usage"]["prompt_tokens"]
    );
    assert_eq!(
        message["usage"]["output_tokens"],
        chat["usage"]["completion_tokens"]
    );
    let stream = post(ask(&begins, true), "sesame")
        .await
        .text()
        .await
        .unwrap();
    let (blocks, last) = streamed(&stream);
    assert_eq!(without_ids(&blocks), expected);
    assert_eq!(last["delta"]["stop_reason"], "tool_use");
    assert_eq!(
        last["usage"]["output_tokens"],
        message["usage"]["output_tokens"]
    );

    // The answer to the call stands behind what was sampled.
    let result = json!({"type": "tool_result", "tool_use_id": message["content"][0]["id"], "content": "{\"value\": 39}"});
    let next = json!([
        begins[0], {"role": "assistant", "content": message["content"]}, {"role": "user", "content": [result]},
    ]);
    let second: Value = post(ask(&next, false), "sesame")
        .await
        .json()
        .await
        .unwrap();
    let all = behind_a_call(choice, &tools, "{\"value\": 39}");
    assert_eq!(second["usage"]["input_tokens"], all);

    // Text, and a text that ends it.
    let plain =
        json!({"messages": begins, "temperature": 0, "max_tokens": 8, "system": "Be brief."});
    let whole: Value = post(plain.clone(), "sesame").await.json().await.unwrap();
    let said = whole["content"][0]["text"].as_str().unwrap();
    let last = said.chars().last().unwrap().to_string();
    let mut stopped = plain.clone();
    stopped["stop_sequences"] = json!(["never said", last]);
    let cut: Value = post(stopped, "sesame").await.json().await.unwrap();
    assert_eq!(cut["stop_reason"], "stop_sequence");
    assert_eq!(cut["stop_sequence"], json!(last));
    assert_eq!(
        cut["content"].as_array().map_or("", |all| all
            .first()
            .map_or("", |b| b["text"].as_str().unwrap())),
        &said[..said.find(&last).unwrap()]
    );

    for (body, key, status, kind, words) in [
        (plain.clone(), "other", 401, "authentication_error", "key"),
        (
            json!({"messages": begins}),
            "sesame",
            400,
            "invalid_request_error",
            "max_tokens",
        ),
        (
            json!({"messages": begins, "max_tokens": 4, "model": "claude"}),
            "sesame",
            404,
            "not_found_error",
            "policy here",
        ),
        (
            json!({"messages": begins, "max_tokens": 4, "thinking": {"type": "enabled"}}),
            "sesame",
            400,
            "invalid_request_error",
            "thinking",
        ),
        (
            json!({"messages": begins, "max_tokens": 4, "tools": offered, "tool_choice": {"type": "any"}}),
            "sesame",
            400,
            "invalid_request_error",
            "no call can be made",
        ),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image"}]}], "max_tokens": 4}),
            "sesame",
            400,
            "invalid_request_error",
            "image",
        ),
        (
            json!({"messages": [begins[0], {"role": "assistant", "content": "So"}], "max_tokens": 4}),
            "sesame",
            400,
            "invalid_request_error",
            "continued",
        ),
    ] {
        let response = post(body, key).await;
        assert_eq!(response.status(), status);
        let error: Value = response.json().await.unwrap();
        assert_eq!(error["type"], "error", "{error}");
        assert_eq!(error["error"]["type"], kind, "{error}");
        assert!(
            error["error"]["message"].as_str().unwrap().contains(words),
            "{error}"
        );
    }
    server.end().await;
}

/// What a response says, without ids.
fn output(response: &Value) -> Value {
    let mut items = without_ids(&response["output"]);
    for item in items.as_array_mut().unwrap() {
        item.as_object_mut().unwrap().remove("call_id");
    }
    items
}

#[tokio::test(flavor = "multi_thread")]
async fn responses_are_those_of_the_chat() {
    const RESPONSES: &str = "/v1/responses";
    let server = Server::of(warmed(), &[]).await;
    let (text, tools) = task(5);
    // In the order in which openai-agents sends them: the prompt is the chat's.
    let flat = |tool: &Value| {
        let function = &tool["function"];
        json!({
            "name": function["name"], "parameters": function["parameters"], "strict": true, "type": "function",
            "description": function["description"],
        })
    };
    let offered: Value = tools.as_array().unwrap().iter().map(flat).collect();
    let ask = |input: Value, stream: bool| {
        json!({
            "input": input, "tools": offered, "temperature": 0, "max_output_tokens": 60, "stream": stream,
            "include": [], "store": false, "reasoning": {"effort": null}, "text": {"format": {"type": "text"}},
        })
    };
    let chat = json!({
        "messages": [{"role": "user", "content": text}], "tools": tools, "temperature": 0, "max_tokens": 60,
        "return_token_ids": true,
    });
    let chat = server.answer(CHAT, &chat).await;
    let choice = &chat["choices"][0];
    let call = &choice["message"]["tool_calls"][0]["function"];
    let whole = server.answer(RESPONSES, &ask(json!(text), false)).await;
    let expected = json!([{
        "type": "function_call", "name": call["name"], "arguments": call["arguments"], "status": "completed",
    }]);
    assert_eq!(output(&whole), expected, "{whole}");
    assert_eq!(
        (&whole["status"], &whole["tools"]),
        (&json!("completed"), &offered)
    );
    assert_eq!(
        whole["usage"]["input_tokens"],
        chat["usage"]["prompt_tokens"]
    );
    assert_eq!(
        whole["usage"]["output_tokens"],
        chat["usage"]["completion_tokens"]
    );

    // A stream ends with the same response, and its pieces add up to it.
    let said = async |body: Value| {
        let stream = server.post(RESPONSES, &body).await.text().await.unwrap();
        let lines = stream
            .lines()
            .filter_map(|line| line.strip_prefix("data: "));
        let events: Vec<Value> = lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        for (number, event) in events.iter().enumerate() {
            assert_eq!(event["sequence_number"], number);
        }
        events
    };
    let deltas = |events: &[Value]| -> String {
        events
            .iter()
            .filter_map(|event| event["delta"].as_str())
            .collect()
    };
    let events = said(ask(json!(text), true)).await;
    assert_eq!(deltas(&events), call["arguments"].as_str().unwrap());
    let last = events.last().unwrap();
    assert_eq!(last["type"], "response.completed");
    assert_eq!(output(&last["response"]), expected);
    assert_eq!(last["response"]["usage"], whole["usage"]);
    let brief = json!({"input": text, "instructions": "Be brief.", "temperature": 0, "max_output_tokens": 4});
    let mut streamed = brief.clone();
    streamed["stream"] = json!(true);
    let (brief, events) = (server.answer(RESPONSES, &brief).await, said(streamed).await);
    assert_eq!(
        (&brief["status"], &brief["instructions"]),
        (&json!("incomplete"), &json!("Be brief."))
    );
    assert_eq!(brief["output"][0]["content"][0]["text"], deltas(&events));
    let last = events.last().unwrap();
    assert_eq!(last["type"], "response.incomplete");
    assert_eq!(output(&last["response"]), output(&brief));

    // A conversation of items, the call that was said among them.
    let result = "{\"value\": 39}";
    let items = json!([
        {"role": "user", "content": [{"type": "input_text", "text": text}]}, whole["output"][0],
        {"type": "function_call_output", "call_id": whole["output"][0]["call_id"], "output": result},
    ]);
    let second = server.answer(RESPONSES, &ask(items, false)).await;
    let all = behind_a_call(choice, &tools, result);
    assert_eq!(second["usage"]["input_tokens"], all);

    for (more, param) in [
        (
            json!({"previous_response_id": "resp_1"}),
            "previous_response_id",
        ),
        (json!({"background": true}), "background"),
        (json!({"reasoning": {"effort": "high"}}), "reasoning"),
        (json!({"text": {"format": {"type": "json_object"}}}), "text"),
        (
            json!({"include": ["message.output_text.logprobs"]}),
            "include",
        ),
        (json!({"tools": [{"type": "web_search"}]}), "tools"),
        (json!({"tool_choice": "required"}), "tool_choice"),
        (json!({"messages": []}), "messages"),
        (json!({"input": 5}), "input"),
        (json!({"input": [{"type": "reasoning"}]}), "input"),
        (
            json!({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}),
            "input",
        ),
    ] {
        let mut body = json!({"input": "a"});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let response = server.post(RESPONSES, &body).await;
        assert_eq!(response.status(), 400, "{body}");
        let error: Value = response.json().await.unwrap();
        assert_eq!(error["error"]["param"], param, "{error}");
    }
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_that_cannot_be_offered_are_refused_with_the_field_to_blame() {
    let server = Server::of(warmed(), &[]).await;
    let user = json!({"role": "user", "content": "Go."});
    let tool = json!({"type": "function", "function": {"name": "get", "strict": true}});
    let called = |function: Value| {
        let call = json!({"type": "function", "id": "1", "function": function});
        json!([user, {"role": "assistant", "content": null, "tool_calls": [call]}])
    };
    for (body, param, words) in [
        (
            json!({"tools": [tool], "tool_choice": "required"}),
            "tool_choice",
            "no call can be made",
        ),
        (json!({"tools": 5}), "tools", "a list"),
        (
            json!({"tools": [{"type": "retrieval"}]}),
            "tools",
            "function",
        ),
        (
            json!({"tools": [{"type": "function", "function": {"name": ""}}]}),
            "tools",
            "name",
        ),
        (
            json!({"messages": called(json!({"name": "get"}))}),
            "messages",
            "arguments",
        ),
        (
            json!({"messages": called(json!({"name": "get", "arguments": "{"}))}),
            "messages",
            "JSON object",
        ),
        (
            json!({"messages": [{"role": "user", "content": "a", "tool_calls": [tool]}]}),
            "messages",
            "assistant",
        ),
        (
            json!({"messages": [{"role": "assistant", "content": null}]}),
            "messages",
            "text",
        ),
    ] {
        let mut whole = json!({"messages": [user], "tools": [tool]});
        let fields = body.as_object().unwrap().clone();
        whole.as_object_mut().unwrap().extend(fields);
        let response = server.post(CHAT, &whole).await;
        assert_eq!(response.status(), 400, "{whole}");
        let error: Value = response.json().await.unwrap();
        assert_eq!(error["error"]["param"], param, "{error}");
        let message = error["error"]["message"].as_str().unwrap();
        assert!(message.contains(words), "{message}");
    }
    server.end().await;
    // A template without a place for them is named.
    let server = Server::of(super::BASE, &[]).await;
    for (messages, param) in [
        (json!([user]), "tools"),
        (
            json!([user, {"role": "tool", "tool_call_id": "1", "content": "a"}]),
            "messages",
        ),
    ] {
        let tools = if param == "tools" {
            json!([tool])
        } else {
            json!([])
        };
        let response = server
            .post(CHAT, &json!({"messages": messages, "tools": tools}))
            .await;
        assert_eq!(response.status(), 400);
        let error: Value = response.json().await.unwrap();
        assert_eq!(error["error"]["param"], param, "{error}");
        let message = error["error"]["message"].as_str().unwrap();
        assert!(
            message.contains("tells the policy of no tools"),
            "{message}"
        );
    }
    server.end().await;
}
