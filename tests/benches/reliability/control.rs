//! The overhead of the control plane without failures: idle workers, the queue and commits.

use crate::spread;
use agentgym_queue::{CancellationToken, Gate, Job, Queue, QueueOptions};
use agentgym_storage::{AttemptId, Manifest, PartKey, Store};
use agentgym_tests::fleet::Fleet;
use agentgym_tests::program::Running;
use agentgym_tests::redis::RedisServer;
use agentgym_tests::s3::S3Server;
use anyhow::Context as _;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio::time::sleep;

/// Requests to the store by workers that have nothing to do: the run waits for a stage that none of
/// them accepts.
pub(crate) async fn idle() -> anyhow::Result<()> {
    const SPAN: Duration = Duration::from_secs(20);
    println!("\nidle workers, one unfinished run, S3: requests per second of all of them");
    for workers in [1, 2, 4] {
        let folder = TempDir::new()?;
        let mut fleet = Fleet::of(folder.path(), 0, 60).await;
        let follower = Running::start(fleet.submit(&[]));
        let store = Store::open_with(&fleet.s3.url, &fleet.s3.env()).await?;
        while store.runs().await?.is_empty() {
            sleep(Duration::from_millis(50)).await;
        }
        sleep(Duration::from_secs(1)).await;
        follower.kill();
        for _ in 0..workers {
            let worker = fleet.worker(&["--stages", "evaluate"]);
            fleet.workers.push(worker);
        }
        sleep(Duration::from_secs(5)).await;
        let before = fleet.s3.requests();
        sleep(SPAN).await;
        let after = fleet.s3.requests();
        let rates: Vec<String> = after
            .iter()
            .map(|(kind, count)| (kind, count - before.get(kind).unwrap_or(&0)))
            .filter(|(_, count)| *count > 0)
            .map(|(kind, count)| format!("{kind} {:.2}", count as f64 / SPAN.as_secs_f64()))
            .collect();
        println!("{workers} workers   {}", rates.join("   "));
    }
    Ok(())
}

/// Ten thousand jobs through Redis.
pub(crate) async fn queue() -> anyhow::Result<()> {
    const ROUNDS: u32 = 20;
    const EACH: u32 = 500;
    let redis = RedisServer::start();
    let options = QueueOptions {
        length_max: EACH as usize,
        ..QueueOptions::leasing(2)
    };
    let queue = Queue::open(&redis.url(), options).await?;
    let (report, mut done) = mpsc::unbounded_channel();
    let stop = CancellationToken::new();
    let handler = move |_| {
        let report = report.clone();
        async move {
            let _ = report.send(());
        }
    };
    let work = {
        let (queue, stop) = (queue.clone(), stop.clone());
        tokio::spawn(async move {
            queue
                .work("w", &["rollout"], Gate::new(1), handler, stop)
                .await
        })
    };
    println!("\nRedis, {} jobs, one worker with one slot", ROUNDS * EACH);
    let mut busy = Duration::ZERO;
    for round in 0..ROUNDS {
        let begun = Instant::now();
        for part in 0..EACH {
            let job = Job {
                run: "bench".to_owned(),
                iteration: round,
                stage: "rollout".to_owned(),
                part,
                offer: 0,
            };
            queue.enqueue("rollout", &job, Duration::ZERO).await?;
        }
        for _ in 0..EACH {
            done.recv().await.context("the worker lives")?;
        }
        busy += begun.elapsed();
        if round % 4 == 3 || round == 0 {
            // Workers do this once a minute.
            sleep(Duration::from_secs(3)).await;
            queue.purge_done().await?;
            println!(
                "after {:>6} jobs {:>8.2} MB in Redis",
                (round + 1) * EACH,
                redis.memory_bytes()? as f64 / 1e6
            );
        }
    }
    println!(
        "{:.0} jobs/s",
        f64::from(ROUNDS * EACH) / busy.as_secs_f64()
    );
    stop.cancel();
    work.await??;
    Ok(())
}

/// The create-if-absent put that commits a part.
pub(crate) async fn commits() -> anyhow::Result<()> {
    const COMMITS: u32 = 500;
    println!("\ncommits of {COMMITS} parts, one after the other");
    let (folder, files) = (TempDir::new()?, TempDir::new()?);
    let server = S3Server::start(files.path()).await;
    let path = folder.path().display().to_string();
    for (name, store) in [
        ("a folder, synced", Store::open(&path).await?),
        (
            "S3 on this machine",
            Store::open_with(&server.url, &server.env()).await?,
        ),
    ] {
        let mut spans = Vec::new();
        for part in 0..COMMITS {
            let slot = PartKey {
                run: "bench".parse()?,
                iteration: 1,
                stage: "rollout".to_owned(),
                part,
            };
            let manifest = Manifest::new(slot, AttemptId::new(1), Vec::new());
            let begun = Instant::now();
            store.commit(&manifest).await?;
            spans.push(begun.elapsed());
        }
        println!("{name:<32} {}", spread(spans));
    }
    Ok(())
}
