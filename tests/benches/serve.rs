//! What HTTP costs a policy that is served. `cargo bench --workspace --bench serve` generates the same
//! 64 sequences with the engine alone and through a server's API, whole and as streams, in turns, and
//! prints tokens per second and the server's share of the engine's rate. `-- FOLDER TOKENS` takes
//! another policy than models/base and other lengths than 256. Nothing is asserted: the numbers depend
//! on the machine, and on what else it does.

use agentgym_model::{Device, Engine, EngineOptions, GenerationRequest, Policy, Sampling};
use agentgym_serve::{ServeOptions, ServedPolicy, start};
use agentgym_tests::program::workspace;
use anyhow::{Context as _, ensure};
use futures::future::try_join_all;
use serde_json::{Value, json};
use std::time::Instant;

/// Sequences at once.
const SEQUENCES: usize = 64;
/// Turns of each.
const TURNS: usize = 5;

/// Prompts of different lengths that begin differently.
fn prompts() -> Vec<Vec<u32>> {
    let id = |sequence: usize, at: usize| ((sequence * 31 + at * 7) % 500 + 10) as u32;
    (0..SEQUENCES)
        .map(|sequence| (0..16 + sequence % 32).map(|at| id(sequence, at)).collect())
        .collect()
}

/// Seconds of the engine alone.
fn alone(policy: &Policy, tokens: usize) -> anyhow::Result<f64> {
    let options = EngineOptions {
        rows_max: SEQUENCES,
        ..EngineOptions::default()
    };
    let mut engine = Engine::new(policy.clone(), options);
    let begun = Instant::now();
    for (number, prompt) in prompts().into_iter().enumerate() {
        engine.submit(GenerationRequest {
            sequence: number as u64,
            append: prompt,
            stream: [number as u8; 32],
            turn: 0,
            sampling: Sampling::default(),
            tokens_max: tokens,
            stop_ids: Vec::new(),
        })?;
    }
    let mut done = 0;
    while !engine.is_idle() {
        done += engine
            .step()?
            .iter()
            .map(|m| m.token_ids.len())
            .sum::<usize>();
    }
    ensure!(done == SEQUENCES * tokens, "{done} tokens");
    Ok(begun.elapsed().as_secs_f64())
}

/// Seconds of as many requests at once.
async fn served(url: &str, tokens: usize, stream: bool) -> anyhow::Result<f64> {
    let http = agentgym_envs::http_client(url).build()?;
    let begun = Instant::now();
    let asked = prompts().into_iter().enumerate().map(|(seed, prompt)| {
        let body = json!({
            "prompt": prompt, "max_tokens": tokens, "seed": seed, "ignore_eos": true, "logprobs": 0,
            "stream": stream,
        });
        let request = http.post(format!("{url}/v1/completions")).json(&body);
        async move { request.send().await?.error_for_status()?.text().await }
    });
    let answers = try_join_all(asked).await?;
    let took = begun.elapsed().as_secs_f64();
    for answer in answers {
        let count = match stream {
            true => {
                answer.matches("\"token_ids\":[").count()
                    - answer.matches("\"token_ids\":[]").count()
            }
            false => {
                let answer: Value = serde_json::from_str(&answer)?;
                let ids = answer["choices"][0]["token_ids"].as_array();
                ids.context("no ids")?.len()
            }
        };
        ensure!(count == tokens, "{count} tokens");
    }
    Ok(took)
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    // `cargo test --benches` only checks that it runs.
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if !arguments.iter().any(|argument| argument == "--bench") {
        return Ok(());
    }
    let mut given = arguments
        .iter()
        .filter(|argument| !argument.starts_with('-'));
    let folder = given.next().map_or("models/base", String::as_str);
    let tokens = given.next().map_or(Ok(256), |tokens| tokens.parse())?;
    let policy = Policy::load(&workspace().join(folder), &Device::cpu())?;
    let options = ServeOptions {
        address: "127.0.0.1:0".parse()?,
        rows: SEQUENCES,
        waiting: SEQUENCES,
        cache_tokens: EngineOptions::default().cache_tokens_max,
        threads: 1,
        key: None,
    };
    let served_policy = ServedPolicy {
        policy: policy.clone(),
        name: "policy".to_owned(),
    };
    let server = start(served_policy, &options).await?;
    let url = format!("http://{}", server.address);
    tokio::spawn(server.run(std::future::pending()));
    let (mut own, mut whole, mut streams) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..TURNS {
        let policy = policy.clone();
        own.push(tokio::task::spawn_blocking(move || alone(&policy, tokens)).await??);
        whole.push(served(&url, tokens, false).await?);
        streams.push(served(&url, tokens, true).await?);
    }
    let all = (SEQUENCES * tokens) as f64;
    println!("{SEQUENCES} sequences of {tokens} tokens, medians of {TURNS} turns");
    let own = median(own);
    for (name, took) in [
        ("engine", own),
        ("whole", median(whole)),
        ("streams", median(streams)),
    ] {
        println!("{name:<8} {:>8.0} tokens/s  {:.3}", all / took, own / took);
    }
    Ok(())
}
