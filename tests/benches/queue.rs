//! How long a pushed job waits for an idle worker, and the cost of an idle worker.
//! `cargo bench --bench queue` prints one line per backend; pushes are 97 ms apart, so that they
//! hit every phase of the poll interval. `AGENTGYM_REDIS_URL` selects another server than one
//! started here; `rediss://` works too.

use std::time::{Duration, Instant};

use agentgym_queue::{CancellationToken, Gate, Job, Queue, QueueOptions};
use agentgym_tests::redis::RedisServer;
use tokio::{sync::mpsc, time::sleep};

const JOBS: u32 = 60;
const APART: Duration = Duration::from_millis(97);
const IDLE: Duration = Duration::from_secs(3);

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    // `cargo test --benches` only checks that it runs.
    let measured = std::env::args().any(|argument| argument == "--bench");
    let jobs = if measured { JOBS } else { 3 };
    let folder = tempfile::tempdir()?;
    let file = format!("sqlite:{}", folder.path().join("queue.sqlite").display());
    let redis = RedisServer::start();
    let open = |url: String| async move { Queue::open(&url, QueueOptions::default()).await };

    println!("pick-up by                      p50        p90        max   idle CPU");
    let one = open(file.clone()).await?;
    measure("SQLite, the same process", &one, &one, jobs).await?;
    measure("SQLite, another process", &one, &open(file).await?, jobs).await?;
    let url = std::env::var("AGENTGYM_REDIS_URL").unwrap_or_else(|_| redis.url());
    let one = open(url.clone()).await?;
    let two = open(url).await?;
    measure("Redis, another process", &one, &two, jobs).await?;
    Ok(())
}

async fn measure(name: &str, producer: &Queue, worker: &Queue, jobs: u32) -> anyhow::Result<()> {
    let (report, mut started) = mpsc::unbounded_channel();
    let stop = CancellationToken::new();
    let handler = move |_| {
        let report = report.clone();
        async move {
            let _ = report.send(Instant::now());
        }
    };
    let work = {
        let (queue, stop) = (worker.clone(), stop.clone());
        let classes = ["update", "rollout", "log_probs"];
        tokio::spawn(async move { queue.work("w", &classes, Gate::new(1), handler, stop).await })
    };
    sleep(Duration::from_secs(1)).await;
    let (before, begun) = (cpu_ticks()?, Instant::now());
    sleep(IDLE.min(IDLE * jobs / JOBS)).await;
    let idle = (cpu_ticks()? - before) / begun.elapsed().as_secs_f64();

    let mut waits = Vec::new();
    for part in 0..jobs {
        sleep(APART).await;
        let job = Job {
            run: format!("bench-{name}"),
            iteration: 1,
            stage: "rollout".into(),
            part,
            offer: 0,
        };
        let pushed = Instant::now();
        producer.enqueue("rollout", &job, Duration::ZERO).await?;
        let at = started.recv().await.expect("the worker lives");
        waits.push(at.duration_since(pushed).as_secs_f64() * 1e3);
    }
    waits.sort_by(f64::total_cmp);
    let quantile = |q: f64| waits[((waits.len() - 1) as f64 * q).round() as usize];
    println!(
        "{name:<26} {:>6.1} ms  {:>6.1} ms  {:>6.1} ms   {idle:>5.1} %",
        quantile(0.5),
        quantile(0.9),
        quantile(1.0),
    );
    stop.cancel();
    work.await??;
    Ok(())
}

/// CPU time of this process so far, in hundredths of a second (the kernel's USER_HZ, which is 100
/// on every current Linux).
fn cpu_ticks() -> anyhow::Result<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let ticks = fields.split_whitespace().skip(11).take(2);
    Ok(ticks.map(|tick| tick.parse::<f64>().unwrap_or(0.0)).sum())
}
