//! The function is a server on a loopback port that answers as each test asks.

use super::*;
use crate::stages::testing::{episode, plan};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What a server answers to the n-th request: a status and a body, or where to go; no status: it hangs up.
type Answers = fn(usize, &Value) -> (u16, String);

async fn request(stream: &mut TcpStream) -> Value {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).to_lowercase();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let (_, length) = head.split_once("content-length: ").unwrap();
            let length: usize = length.lines().next().unwrap().parse().unwrap();
            if body.len() >= length {
                return serde_json::from_slice(&bytes[bytes.len() - length..]).unwrap();
            }
        }
        let mut piece = [0; 4096];
        let read = stream.read(&mut piece).await.unwrap();
        assert!(read > 0, "the request ends early");
        bytes.extend_from_slice(&piece[..read]);
    }
}

/// Serves `answers`; the requests are kept.
async fn served(answers: Answers) -> (String, Arc<Mutex<Vec<Value>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!(
        "http://user:geheim@{}/judge",
        listener.local_addr().unwrap()
    );
    let seen = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&seen);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let asked = request(&mut stream).await;
            let number = kept.lock().unwrap().len();
            let (status, body) = answers(number, &asked);
            kept.lock().unwrap().push(asked);
            let length = body.len();
            let location = match status {
                300..400 => format!("location: {body}\r\n"),
                _ => String::new(),
            };
            let reply = format!(
                "HTTP/1.1 {status} x\r\n{location}content-length: {length}\r\nconnection: close\r\n\r\n{body}"
            );
            if status > 0 {
                stream.write_all(reply.as_bytes()).await.unwrap();
            }
        }
    });
    (url, seen)
}

fn beat() -> Beat {
    let part = "1/reward/0".parse().unwrap();
    Beat::new(part, tokio::sync::broadcast::channel(1).0)
}

fn config(url: &str, retries: u32) -> Reward {
    Reward {
        function: Some("judge-2".to_owned()),
        url: Some(url.to_owned()),
        batch_size: 2,
        timeout_s: 0.5,
        retries,
        ..plan(&[]).config.reward
    }
}

fn played() -> Vec<Episode> {
    let own = |sample: u32, outcome| episode(0, sample, outcome, f64::from(sample));
    let mut all: Vec<Episode> = (0..5).map(|sample| own(sample, Outcome::Failed)).collect();
    all[1].outcome = Outcome::EnvFault;
    all
}

fn rewards(asked: &Value, of: impl Fn(&Value) -> Value) -> (u16, String) {
    let all: Vec<Value> = (asked["trajectories"].as_array().unwrap().iter())
        .map(of)
        .collect();
    (200, json!({ "rewards": all }).to_string())
}

#[tokio::test]
async fn each_episode_gets_its_own_reward_and_null_excludes_it() {
    let (url, seen) = served(|_, asked| {
        rewards(asked, |one| match one["reward"].as_f64() {
            Some(2.0) => Value::Null,
            reward => json!(reward.unwrap() * 10.0 + 0.5),
        })
    })
    .await;
    let config = config(&url, 0);
    let function = Function::of(&config).unwrap();
    let (episodes, metrics) = function.rewarded(played(), &beat()).await.unwrap();
    let found: Vec<(bool, f64)> = episodes.iter().map(|e| (e.usable(), e.reward)).collect();
    assert_eq!(
        found,
        [
            (true, 0.5),
            (false, 1.0),
            (false, 2.0),
            (true, 30.5),
            (true, 40.5)
        ]
    );
    assert!(episodes[2].fault.as_ref().unwrap().contains("judge-2"));
    let expected = RewardMetrics {
        rewarded: 3,
        unrewarded: 1,
        reward: 71.5 / 3.0,
        environment_reward: 7.0 / 3.0,
        components: BTreeMap::new(),
    };
    assert_eq!(metrics, expected);
    // Two requests of two: the faulted episode was not sent.
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 2);
    for asked in seen.iter() {
        assert_eq!(asked["function"], "judge-2");
        assert_eq!(asked["trajectories"].as_array().unwrap().len(), 2);
        let first = &asked["trajectories"][0];
        assert!(
            first["conversations"].is_array() && first["item_id"] == "textcraft_0",
            "{first}"
        );
    }
}

#[tokio::test]
async fn what_a_reward_is_made_of_is_kept_beside_it() {
    let (url, _) = served(|_, asked| {
        rewards(asked, |one| match one["reward"].as_f64() {
            Some(0.0) => json!(1.5),
            Some(2.0) => json!({"reward": null, "reason": "unreadable"}),
            reward => json!({
                "reward": 1.0,
                "item_id": one["item_id"],
                "components": {"style": reward, "truth": 0.25},
                "reason": "é".repeat(1500),
            }),
        })
    })
    .await;
    let config = config(&url, 0);
    let function = Function::of(&config).unwrap();
    let (episodes, metrics) = function.rewarded(played(), &beat()).await.unwrap();
    let judged: Vec<Option<Judgement>> = episodes.iter().map(Episode::judgement).collect();
    assert_eq!((&judged[0], &judged[1]), (&None, &None));
    assert_eq!(judged[2].as_ref().unwrap().reason, "unreadable");
    assert!(!episodes[2].usable() && episodes[3].usable());
    let last = judged[4].as_ref().unwrap();
    assert_eq!(
        (last.components["style"], last.components["truth"]),
        (4.0, 0.25)
    );
    assert_eq!(last.reason.chars().count(), 1001);
    let components = [("style".to_owned(), 3.5), ("truth".to_owned(), 0.25)];
    assert_eq!(metrics.components, BTreeMap::from(components));
    assert_eq!((metrics.rewarded, metrics.unrewarded), (3, 1));
}

#[tokio::test]
async fn a_request_that_fails_is_repeated_and_then_named() {
    let broken: [(Answers, &str); 13] = [
        (|_, _| (500, "down".to_owned()), "status 500: down"),
        (
            |number, asked| match number {
                0 => (307, "/elsewhere".to_owned()),
                _ => rewards(asked, |_| json!(1.0)),
            },
            "status 307 to /elsewhere: redirects are not followed",
        ),
        (
            |_, _| (200, "{\"rewards\": [NaN, 1]}".to_owned()),
            "not {\"rewards\"",
        ),
        (|_, _| (200, "[1, 2]".to_owned()), "not {\"rewards\""),
        (
            |_, _| (200, "{\"rewards\": [1]}".to_owned()),
            "1 rewards for 2 trajectories",
        ),
        (
            |_, _| (200, "{\"rewards\": [1, 1e300]}".to_owned()),
            "beyond all bounds",
        ),
        (
            |_, _| (200, "x".repeat(ANSWER_BYTES_MAX + 1)),
            "more than 16777216 bytes",
        ),
        (|_, _| (0, String::new()), "no connection"),
        (
            |_, asked| rewards(asked, |_| json!({"score": 1.0})),
            "not {\"rewards\"",
        ),
        (
            |_, asked| rewards(asked, |_| json!({"reward": 1.0, "item_id": "maze_9"})),
            "maze_9 in the place of textcraft_0",
        ),
        (
            |_, asked| rewards(asked, |_| json!({"reward": 1.0, "components": {"a": 1e99}})),
            "a 1e99",
        ),
        (
            |_, asked| rewards(asked, |_| json!({"reward": 1.0, "components": {"": 1}})),
            "1 to 60 bytes",
        ),
        (
            |_, asked| rewards(asked, |_| json!({"reward": "high"})),
            "not {\"rewards\"",
        ),
    ];
    for (answers, words) in broken {
        let (url, _) = served(answers).await;
        let config = config(&url, 0);
        let function = Function::of(&config).unwrap();
        let error = function.rewarded(played(), &beat()).await;
        let message = error.unwrap_err().to_string();
        assert!(message.contains(words), "{words}: {message}");
        assert!(message.contains("judge-2 at http://"), "{message}");
        assert!(!message.contains("geheim"), "{message}");
    }
    // It drips: each piece comes soon, and the whole never.
    let dripping = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let slow = config(&format!("http://{}", dripping.local_addr().unwrap()), 0);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = dripping.accept().await {
            tokio::spawn(async move {
                request(&mut stream).await;
                let head = b"HTTP/1.1 200 x\r\ncontent-length: 999\r\n\r\n";
                let mut sent = stream.write_all(head).await;
                while sent.is_ok() {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    sent = stream.write_all(b" ").await;
                }
            });
        }
    });
    let function = Function::of(&slow).unwrap();
    let error = function.rewarded(played(), &beat()).await;
    assert!(error.unwrap_err().to_string().contains("reward.timeout_s"));
    // It hangs.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let hanging = config(&format!("http://{}", silent.local_addr().unwrap()), 0);
    let function = Function::of(&hanging).unwrap();
    let error = function.rewarded(played(), &beat()).await;
    assert!(error.unwrap_err().to_string().contains("reward.timeout_s"));

    let (url, seen) = served(|number, asked| match number {
        0 => (503, String::new()),
        _ => rewards(asked, |_| json!(1.0)),
    })
    .await;
    let config = config(&url, 1);
    let function = Function::of(&config).unwrap();
    let (episodes, _) = function.rewarded(played(), &beat()).await.unwrap();
    assert_eq!(episodes[4].reward, 1.0);
    assert_eq!(seen.lock().unwrap().len(), 3);
}

#[test]
fn the_keys_are_checked_together() {
    use agentgym_jobs::config::ResolvedConfig;
    let read = |given: &[&str]| {
        let text =
            "{data: {tasks: [{env: textcraft, ids: 0..9}]}, actor_rollout_ref: {rollout: {n: 2}}}";
        let given: Vec<String> = given.iter().map(|g| (*g).to_owned()).collect();
        let read = ResolvedConfig::parse("x", std::path::Path::new("x.yaml"), text, &given);
        read.map(|_| ()).map_err(|e| e.to_string())
    };
    let (function, url) = ("reward.function=judge-2", "reward.url=http://127.0.0.1:9/");
    read(&[function, url]).unwrap();
    for (given, words) in [
        (&[function][..], "reward.url"),
        (&[url], "reward.function"),
        (&[function, "reward.url=judge:80"], "http:// or https://"),
        (
            &[function, url, "algorithm.turn_rewards=true"],
            "algorithm.turn_rewards",
        ),
        (
            &[function, url, "run.pipeline=sft", "sft.steps=1"],
            "rl and agentevol",
        ),
        (&[function, url, "reward.batch_size=0"], "reward.batch_size"),
    ] {
        let message = read(given).unwrap_err();
        assert!(message.contains(words), "{given:?}: {message}");
    }
    let with = plan(&[function, url]);
    let parts = agentgym_jobs::pipeline::parts(&with, 1);
    let stages = |name: &str| parts.iter().filter(|p| p.id.stage.name() == name).count();
    assert!(stages("reward") > 0);
    assert_eq!(stages("reward"), stages("rollout"));
}
