//! `agentgym-worker`: one more pair of hands for the runs of a store.

use agentgym_jobs::pipeline::Stage;
use agentgym_jobs::queue::{Queue, QueueOptions};
use agentgym_storage::{RunId, Store};
use agentgym_worker::{Event, WorkerOptions, run_worker};
use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;
use tokio_util::sync::CancellationToken;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Leases jobs of the runs in a store and makes their parts.
#[derive(Parser)]
#[command(name = "agentgym-worker", version)]
struct Arguments {
    /// Folder, s3://bucket/prefix: where the runs are.
    #[arg(long, env = "AGENTGYM_STORE", default_value = "agentgym-data")]
    store: String,
    /// sqlite:FILE or redis://…; default: the SQLite file beside a folder store.
    #[arg(long, env = "AGENTGYM_QUEUE")]
    queue: Option<String>,
    /// Only this run.
    #[arg(long)]
    run: Option<RunId>,
    /// Only these stages, separated by commas.
    #[arg(long, value_delimiter = ',')]
    stages: Vec<Stage>,
    /// cpu or cuda:N.
    #[arg(long, default_value = "cpu")]
    device: String,
    /// Compute threads; default: all cores.
    #[arg(long)]
    threads: Option<usize>,
    /// End when the run is finished.
    #[arg(long, requires = "run")]
    exit_when_finished: bool,
}

fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("AGENTGYM_LOG")
                .unwrap_or_else(|_| "info".into()),
        )
        .init();
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(e) => {
            eprintln!("error: cannot start: {e}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(work(Arguments::parse())) {
        Ok(code) => code,
        Err(e) => {
            eprintln!("error: {e:#}");
            ExitCode::FAILURE
        }
    }
}

async fn work(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let store = Store::open(&arguments.store).await?;
    store.probe().await?;
    let url = match arguments.queue {
        Some(url) => url,
        None => agentgym_worker::default_queue_url(&store)?,
    };
    let queue = Queue::open(&url, QueueOptions::default()).await?;
    let name = agentgym_worker::worker_name(0);
    let drain = CancellationToken::new();
    tokio::spawn(agentgym_worker::drain_on_signal(drain.clone()));
    let (events, mut news) = tokio::sync::broadcast::channel(1024);
    let log = tokio::spawn(async move {
        use tokio::sync::broadcast::error::RecvError;
        loop {
            match news.recv().await {
                Ok(event) => say(&event),
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return,
            }
        }
    });
    let cache_dir = std::env::temp_dir().join(format!("agentgym-worker-{}", std::process::id()));
    let options = WorkerOptions {
        store,
        queue,
        name,
        stages: arguments.stages,
        threads: arguments.threads.unwrap_or_else(agentgym_worker::cores),
        device: arguments.device,
        run: arguments.run,
        exit_when_finished: arguments.exit_when_finished,
        cache_dir: PathBuf::clone(&cache_dir),
    };
    let worked = run_worker(options, events, drain.clone()).await;
    log.abort();
    let _ = std::fs::remove_dir_all(&cache_dir);
    worked?;
    const INTERRUPTED: u8 = 130;
    Ok(if drain.is_cancelled() {
        ExitCode::from(INTERRUPTED)
    } else {
        ExitCode::SUCCESS
    })
}

fn say(event: &Event) {
    match event {
        Event::Started { part, attempt, .. } => tracing::info!(%part, attempt, "started"),
        Event::Committed { part, wall_s, .. } => {
            tracing::info!(%part, "committed after {wall_s:.2} s")
        }
        Event::Superseded { part } => tracing::info!(%part, "another attempt committed first"),
        Event::RunFinished { run } => tracing::info!(%run, "finished"),
        Event::Waiting { message } => tracing::info!("waiting: {message}"),
        Event::Progress { .. } | Event::Failed { .. } | Event::RunStopped { .. } => {}
    }
}
