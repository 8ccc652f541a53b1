//! A server in the place of our own engine: its failures, its policies, and what a crash leaves.

use super::double::{Double, Fault};
use super::*;
use crate::stages::testing::policy;
use crate::{Cause, Error};
use agentgym_jobs::config::ServerDialect;
use agentgym_jobs::pipeline::{PartId, Stage};
use agentgym_model::{Parameter, Policy, Weights};
use std::time::Duration;

const ALL: [ServerDialect; 4] = [
    ServerDialect::Vllm,
    ServerDialect::Sglang,
    ServerDialect::LlamaCpp,
    ServerDialect::Openai,
];

fn config(url: &str, dialect: ServerDialect) -> RolloutServer {
    RolloutServer {
        url: Some(url.to_owned()),
        dialect: Some(dialect),
        model: Some("m".to_owned()),
        timeout_s: 20.0,
        patience_s: 20.0,
        concurrent: 8,
        price_input: None,
        price_output: None,
    }
}

/// The next policy: every weight is a little off.
fn next(policy: &Policy) -> Policy {
    let parameters = policy.weights().iter().map(|(name, parameter)| {
        let numbers = parameter.numbers().iter().enumerate();
        let numbers = numbers.map(|(at, x)| x + if at * 7 % 3 == 0 { 1e-4 } else { -1e-4 });
        let changed = Parameter::new(parameter.shape().to_vec(), numbers.collect());
        (name.to_owned(), changed)
    });
    let weights = Weights::new(parameters.collect());
    let (tokenizer, chat) = (policy.tokenizer().clone(), policy.chat().clone());
    Policy::new(policy.config().clone(), weights, tokenizer, chat).unwrap()
}

struct Opened {
    /// As the worker asks.
    config: RolloutServer,
    probe: Probe,
    context_tokens: usize,
    cancel: CancellationToken,
}

impl Opened {
    fn new(config: RolloutServer, probe: Probe) -> Self {
        Self {
            config,
            probe,
            context_tokens: 1000,
            cancel: CancellationToken::new(),
        }
    }

    async fn open(&self) -> Result<Arc<InferenceServer>> {
        let part = PartId {
            iteration: 1,
            stage: Stage::Rollout,
            part: 0,
        };
        let policy = policy();
        let served = Served {
            config: &self.config,
            probe: self.probe.clone(),
            policy: "the policy of 1/update/0".to_owned(),
            text: policy.text(),
            distance_max: 0.5,
            context_tokens: self.context_tokens,
        };
        let beat = Beat::new(part, tokio::sync::broadcast::channel(16).0);
        InferenceServer::open(served, beat, self.cancel.clone()).await
    }
}

fn sampled() -> (Sampling, u32) {
    (Sampling::default(), 5)
}

#[tokio::test(flavor = "multi_thread")]
async fn each_dialect_gives_the_policys_own_numbers() {
    let policy = policy();
    let probe = Probe::of(&policy, None, 1).unwrap();
    for dialect in ALL {
        let double = Double::start(dialect, Policy::clone(&policy)).await;
        let opened = Opened::new(config(&double.url, dialect), probe.clone());
        let server = opened.open().await.unwrap();
        let reading = server.reading().unwrap();
        assert!(reading.distance < 1e-6, "{dialect:?}: {reading:?}");
        let prompt = [9, 10, 11, 12];
        let said = server.generate(&prompt, 6, sampled()).await.unwrap();
        assert_eq!(said.token_ids.len(), said.log_probs.len());
        assert!(said.finish == FinishReason::Eos || said.token_ids.len() == 6);
        let scored = crate::probe::tests::scored(&policy, &prompt, &said.token_ids);
        for (a, b) in said.log_probs.iter().zip(scored) {
            assert!((a - b).abs() < 1e-5, "{dialect:?}: {a} {b}");
        }
        assert_eq!(double.take_asked(), [prompt.to_vec()]);
        assert_eq!(server.sampled_tokens(), said.token_ids.len() as u64);
        assert!(server.confirm().await.unwrap());
    }
}

/// A policy that knows nothing writes bytes that are no text, and llama.cpp says nothing of them.
#[tokio::test(flavor = "multi_thread")]
async fn log_probs_that_a_server_leaves_out_are_asked_for() {
    let policy = policy();
    let probe = Probe::of(&policy, None, 1).unwrap();
    let double = Double::start(ServerDialect::LlamaCpp, Policy::clone(&policy)).await;
    let opened = Opened::new(config(&double.url, ServerDialect::LlamaCpp), probe);
    let server = opened.open().await.unwrap();
    let before = double.forced();
    let prompt = [9, 10, 11, 12];
    for seed in 0..4 {
        let said = server.generate(&prompt, 12, (Sampling::default(), seed));
        let said = said.await.unwrap();
        let scored = crate::probe::tests::scored(&policy, &prompt, &said.token_ids);
        for (a, b) in said.log_probs.iter().zip(scored) {
            assert!((a - b).abs() < 1e-5, "{a} {b}");
        }
    }
    assert!(double.forced() > before, "none was left out");
}

/// llama.cpp ends messages with ids that end other models'. The message goes on behind them, with the
/// log-probs that it has as a whole.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_goes_on_behind_ends_that_the_policy_does_not_have() {
    let policy = policy();
    let probe = Probe::of(&policy, None, 1).unwrap();
    let double = Double::start(ServerDialect::LlamaCpp, Policy::clone(&policy)).await;
    let opened = Opened::new(config(&double.url, ServerDialect::LlamaCpp), probe);
    let server = opened.open().await.unwrap();
    // Every other id, so that a few messages meet many.
    let all = (0..policy.config().vocab_size as u32).step_by(2);
    double.ends_with(all.filter(|id| !policy.eos_ids().contains(id)));
    let prompt = [9, 10, 11, 12];
    let said = server.generate(&prompt, 12, sampled()).await.unwrap();
    assert!(said.finish == FinishReason::Eos || said.token_ids.len() == 12);
    let scored = crate::probe::tests::scored(&policy, &prompt, &said.token_ids);
    for (a, b) in said.log_probs.iter().zip(scored) {
        assert!((a - b).abs() < 1e-5, "{a} {b}");
    }
    let asked = double.take_asked();
    assert!(asked.len() > 1, "no end was met");
    for (prompt_again, before) in asked[1..].iter().zip(&asked) {
        assert!(prompt_again.starts_with(before) && prompt_again.len() > before.len());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_passes_is_asked_again_and_what_lasts_is_an_error_at_once() {
    let policy = policy();
    let probe = Probe::of(&policy, None, 1).unwrap();
    let dialect = ServerDialect::Vllm;
    let positions = policy.config().max_position_embeddings;
    let double = Double::with(dialect, Policy::clone(&policy), positions, None).await;
    let mut opened = Opened::new(config(&double.url, dialect), probe);
    opened.context_tokens = positions;
    let server = opened.open().await.unwrap();
    let passing = [
        Fault::Status(429, Some("0.1")),
        Fault::Status(529, None),
        Fault::Status(503, None),
        Fault::Page,
    ];
    double.fail(&passing);
    let start = Instant::now();
    let said = server.generate(&[9, 10], 4, sampled()).await.unwrap();
    assert!(!said.token_ids.is_empty());
    assert!(
        start.elapsed() > Duration::from_millis(100),
        "it waited as it was told"
    );
    double.fail(&[Fault::FewerLogProbs]);
    let error = server.generate(&[9, 10], 4, sampled()).await.unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("log-probs for") && text.contains(&double.url),
        "{text}"
    );
    assert_eq!(error.cause(), Cause::Server);
    assert!(matches!(
        error.verdict(),
        agentgym_storage::Verdict::Wait(_)
    ));
    assert!(!error.is_for_good(), "the server is at fault, not the part");
    double.fail(&[Fault::Status(404, None)]);
    let error = server.generate(&[9, 10], 4, sampled()).await.unwrap_err();
    assert!(error.to_string().contains("answers 404"), "{error}");
    let long = vec![9; 5000];
    let error = server.generate(&long, 4, sampled()).await.unwrap_err();
    assert!(error.to_string().contains("prompt of 5000 ids"), "{error}");
    // A prompt that leaves less room than the turn may take.
    let error = server
        .generate(&long[..positions - 1], 1000, sampled())
        .await;
    match error {
        Ok(said) => assert_eq!(said.finish, FinishReason::Eos),
        Err(error) => assert!(error.to_string().contains("context is shorter"), "{error}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn patience_ends_and_a_drain_does_not_wait_for_it() {
    let policy = policy();
    let probe = Probe::of(&policy, None, 1).unwrap();
    // Nobody listens there.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let mut opened = Opened::new(config(&url, ServerDialect::LlamaCpp), probe);
    opened.config.patience_s = 0.5;
    let error = opened.open().await.err().unwrap().to_string();
    assert!(
        error.contains("no connection") && error.contains("patience_s"),
        "{error}"
    );
    opened.config.patience_s = 600.0;
    opened.cancel.cancel();
    let error = opened.open().await.err().unwrap();
    assert!(matches!(error, Error::Cancelled), "{error}");
}

/// A server with yesterday's policy is waited for; one that changes its policy in mid-part is refused,
/// and so is what it generated.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_of_another_policy_is_waited_for_and_one_that_changes_is_refused() {
    let before = policy();
    let now = next(&before);
    let probe = Probe::of(&now, Some(&before), 1).unwrap();
    let dialect = ServerDialect::Sglang;
    let double = Double::start(dialect, Policy::clone(&before)).await;
    let mut opened = Opened::new(config(&double.url, dialect), probe);
    opened.config.patience_s = 1.0;
    let error = opened.open().await.err().unwrap().to_string();
    assert!(
        error.contains("does not serve the policy of 1/update/0"),
        "{error}"
    );
    assert!(error.contains("on the way from this policy"), "{error}");
    opened.config.patience_s = 60.0;
    let later = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        double.serve(now.clone());
    };
    let (server, ()) = tokio::join!(opened.open(), later);
    let server = server.unwrap();
    assert_eq!(server.reading().unwrap().tells_apart(), Some(true));
    server.generate(&[9], 2, sampled()).await.unwrap();
    assert!(server.confirm().await.unwrap());
    server.generate(&[9], 2, sampled()).await.unwrap();
    double.serve(Policy::clone(&before));
    let error = server.confirm().await.unwrap_err().to_string();
    assert!(error.contains("no longer serves"), "{error}");
    double.serve(now);
    // It cannot be asked now: nothing is confirmed, and nothing is wrong yet.
    double.fail(&[Fault::Status(503, None); 40]);
    assert!(!server.confirm().await.unwrap());
    server.confirmed().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_short_context_and_a_missing_key_are_named_before_anything_is_played() {
    let policy = policy();
    let probe = Probe::of(&policy, None, 1).unwrap();
    for dialect in ALL {
        let double = Double::with(dialect, Policy::clone(&policy), 512, None).await;
        let mut opened = Opened::new(config(&double.url, dialect), probe.clone());
        let error = opened.open().await.err().unwrap().to_string();
        assert!(
            error.contains("512") && error.contains("1000"),
            "{dialect:?}: {error}"
        );
        opened.context_tokens = 512;
        opened.open().await.unwrap();
    }
    let double = Double::with(
        ServerDialect::Openai,
        Policy::clone(&policy),
        4096,
        Some("sesame"),
    );
    let double = double.await;
    let server = |key: Option<&str>| {
        let key = key.map(str::to_owned);
        Client::to(&double.url, ServerDialect::Openai, None, 20.0, key).unwrap()
    };
    let ask = Ask {
        prompt: &[9],
        tokens_max: 2,
        greedy: true,
        seed: 0,
        stop_ids: policy.eos_ids(),
    };
    let refused = server(None).generate(&ask, 512).await.unwrap_err();
    assert!(
        format!("{refused:?}").contains(http::KEY_VARIABLE),
        "{refused:?}"
    );
    let wrong = server(Some("ajar")).generate(&ask, 512).await.unwrap_err();
    assert!(!format!("{wrong:?}").contains("ajar"), "{wrong:?}");
    server(Some("sesame")).generate(&ask, 512).await.unwrap();
}
