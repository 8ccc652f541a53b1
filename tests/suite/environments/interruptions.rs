//! A worker that is drained or killed in the middle of a long rollout against a slow environment:
//! its work is resumed, and the resulting bytes are the same. The model solves some of the tasks,
//! so that the state of a session and its rewards matter.

use super::*;
use agentgym_jobs::codec::decode;
use agentgym_jobs::journal::{Event, Segment};
use agentgym_jobs::pipeline::{PartId, Stage};
use agentgym_storage::{AttemptOutcome, Journal, Key};
use agentgym_tests::program::finish;
use agentgym_tests::slow::slow_way;
use tempfile::TempDir;

const LONG: &str = "
run: {id: tried, seed: 2}
actor_rollout_ref:
  model: {path: models/base}
  actor: {ppo_mini_batch_size: 4, loss_agg_mode: seq_mean_token_mean}
  rollout: {n: 4, max_tokens: 32, max_model_len: 2048}
  agentgym: {task_name: textcraft, timeout: 60}
data:
  train_batch_size: 4
  max_prompt_length: 1024
  max_response_length: 900
  tasks: [{env: textcraft, ids: '0..40:2'}]
algorithm: {rounds_ctrl: {rounds: 8}}
trainer: {total_training_steps: 1, test_freq: 0}
jobs: {rollout_part_tasks: 4, threads: 1, journal_interval_s: 0.3, lease_ttl_s: 2, backoff_s: 0.1}
";
/// The environment's delay per answer while the worker is interrupted.
const SLOW: Duration = Duration::from_millis(300);

fn command(folder: &Path, url: &str) -> Command {
    let config = folder.join("tried.yaml");
    std::fs::write(&config, LONG).unwrap();
    let mut command = program("agentgym-submit");
    command
        .arg(config)
        .args(["--quiet", "--store"])
        .arg(folder.join("store"))
        .arg(format!("actor_rollout_ref.agentgym.env_addr={url}"));
    command
}

const ROLLOUT: PartId = PartId {
    iteration: 1,
    stage: Stage::Rollout,
    part: 0,
};

async fn stats(view: &RunView) -> Value {
    let work = view.committed(ROLLOUT).await.unwrap().work.unwrap();
    Value::Object(work.stats)
}

/// Number of segments in the journal of the rollout, without reading them.
async fn segments(store: &Store) -> usize {
    let keys = store.list("runs/tried/journal/00000001/rollout").await;
    let is_one = |(key, _): &(Key, u64)| matches!(key, Key::JournalSegment { .. });
    keys.unwrap().iter().filter(|key| is_one(key)).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_interrupted_player_has_played_is_not_sampled_again() {
    let server = Server::start(600);
    let whole = TempDir::new().unwrap();
    let output = finish(command(whole.path(), &server.url()));
    assert!(output.status.success(), "{output:?}");
    let whole = view(whole.path()).await;
    let digest = whole.store.run_digest(&whole.plan.run).await.unwrap();
    let total = stats(&whole).await["sampled_tokens"].as_u64().unwrap();
    println!("{}", learnt(&whole.store, "tried").await);

    for signal in ["TERM", "KILL"] {
        let folder = TempDir::new().unwrap();
        let slow = slow_way(server.addr, SLOW).await.unwrap();
        let running = Running::start(command(folder.path(), &slow));
        let url = folder.path().join("store").display().to_string();
        let begun = Instant::now();
        let store = loop {
            assert!(begun.elapsed() < Duration::from_secs(120), "no journal");
            tokio::time::sleep(Duration::from_millis(20)).await;
            if let Ok(store) = Store::open(&url).await
                && segments(&store).await >= 3
            {
                break store;
            }
        };
        running.signal(signal);
        let code = running.wait();
        let slot = whole.slot(ROLLOUT);
        assert!(store.manifest(&slot).await.unwrap().is_none(), "too late");
        let (mut journalled, mut sampled) = (0, 0);
        for segment in Journal::replay(&store, &slot).await.unwrap() {
            let Segment::V1(segment) = decode(&segment).unwrap();
            let events = segment.records.iter().flat_map(|record| &record.events);
            journalled += events.map(Event::sampled_tokens).sum::<u64>();
            sampled = segment.sampled_tokens;
        }
        assert!(
            0 < journalled && journalled < total,
            "{journalled} of {total}"
        );
        let attempts = store.attempts(&slot).await.unwrap();
        if signal == "TERM" {
            assert_eq!(code, Some(130));
            assert_eq!(journalled, sampled, "turns under way were finished");
            let end = attempts[0].end.as_ref().unwrap();
            assert_eq!(end.outcome, AttemptOutcome::Drained);
            assert_eq!(end.stats["sampled_tokens"], journalled);
            assert_eq!(end.stats["journalled_tokens"], journalled);
        } else {
            assert!(attempts[0].end.is_none());
        }

        let output = finish(command(folder.path(), &server.url()));
        assert!(output.status.success(), "{output:?}");
        let resumed = view(folder.path()).await;
        let again = resumed.store.run_digest(&resumed.plan.run).await.unwrap();
        assert_eq!(again, digest, "{signal}");
        let stats = stats(&resumed).await;
        println!("{signal}: {journalled} of {total} tokens were journalled: {stats}");
        assert_eq!(stats["taken_up_tokens"], journalled, "{signal}");
        assert_eq!(stats["sampled_tokens"], total - journalled, "{signal}");
        assert_eq!(stats["sampled_twice_tokens"], sampled - journalled);
        assert_eq!(stats["episodes_begun_anew"], 0, "{signal}");
    }
}
