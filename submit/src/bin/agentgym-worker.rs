//! `agentgym-worker`: works on the runs of a store.
//!
//! Its log on standard error is for people: one line per attempt, without the queue's internal
//! messages. It uses the exit codes of `agentgym-submit`.

use agentgym_jobs::pipeline::Stage;
use agentgym_model::Dtype;
use agentgym_queue::{Error as QueueError, Queue, QueueOptions};
use agentgym_storage::{MachineFacts, RunId, Store};
use agentgym_submit::cli::version;
use agentgym_text::Visible;
use agentgym_worker::{
    Cause, Cloud, Error, Event, GatewayOptions, Meters, ScratchFolder, SyncOptions, WorkerOptions,
    run_worker, serve_metrics, sync_policies,
};
use clap::Parser;
use std::collections::BTreeMap;
use std::io::{IsTerminal as _, Write as _};
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Leases jobs of the runs in a store and makes their parts.
#[derive(Parser)]
#[command(name = "agentgym-worker", version = version(), args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    place: Place,
    /// sqlite:FILE or redis://…; default: the SQLite file next to a folder store. Pass a URL with a
    /// password in AGENTGYM_QUEUE, since every user of the machine can see command lines.
    #[arg(long, env = "AGENTGYM_QUEUE", hide_env_values = true)]
    queue: Option<String>,
    /// Only this run.
    #[arg(long)]
    run: Option<RunId>,
    /// Only these stages, separated by commas.
    #[arg(long, value_delimiter = ',')]
    stages: Vec<Stage>,
    /// cpu, cuda:N, or auto: the first GPU if it can be used, otherwise the CPU and a log line with
    /// the reason. cpu:avx512 is cpu for bf16 alone.
    #[arg(long, env = "AGENTGYM_DEVICE", default_value = "cpu")]
    device: String,
    /// Element type of the operands of matrix products: f32, or bf16, which is faster and less
    /// precise, on a GPU or a processor with AVX-512 BF16. It is part of the numeric class.
    #[arg(long, env = "AGENTGYM_DTYPE", default_value_t)]
    dtype: Dtype,
    /// Compute threads; default: all cores. A GPU uses one.
    #[arg(long)]
    threads: Option<NonZeroUsize>,
    /// Seconds without a heartbeat after which a worker counts as dead; the same for all workers of
    /// a fleet, and equal to jobs.lease_ttl_s of its runs.
    #[arg(long, default_value_t = QueueOptions::default().lease_ttl_s)]
    lease_ttl_s: u64,
    /// Say something of this machine in the records of its attempts, e.g. --label gpu=H100; more
    /// than once for several.
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
    /// What an hour of this worker costs, in a currency of your choice: `agentgym-submit ledger` adds
    /// it up.
    #[arg(long, value_name = "PER HOUR", value_parser = agentgym_submit::text::price, allow_negative_numbers = true)]
    price: Option<f64>,
    /// Drain when this cloud announces a preemption of the machine: aws, gcp or azure.
    #[arg(long, value_name = "CLOUD")]
    preemption: Option<Cloud>,
    /// Seconds that a drain may take; then the process ends, even with work in progress. Committed
    /// or journalled work is safe.
    #[arg(long, value_name = "SECONDS")]
    preemption_notice_s: Option<u64>,
    /// Log one JSON object per line, with run, part and attempt as fields.
    #[arg(long)]
    log_json: bool,
    /// Answer Prometheus at http://ADDRESS/metrics and a supervisor at http://ADDRESS/health, e.g.
    /// 127.0.0.1:9464; port 0 takes a free one, which the log names.
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<SocketAddr>,
    /// Let --metrics listen where other machines can read it.
    #[arg(long, requires = "metrics")]
    metrics_public: bool,
    /// Where agents behind a harness ask for messages (docs/harness.md); port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS:PORT", default_value_t = GatewayOptions::default().address)]
    gateway_addr: SocketAddr,
    /// How harnesses on other machines reach that address, such as http://HOST:PORT.
    #[arg(long, value_name = "URL")]
    gateway_url: Option<String>,
    /// End when the run is finished.
    #[arg(long, requires = "run")]
    exit_when_finished: bool,
}

#[derive(clap::Args)]
struct Place {
    /// Store of the runs: a folder or s3://bucket/prefix.
    #[arg(
        long,
        env = "AGENTGYM_STORE",
        hide_env_values = true,
        default_value = "agentgym-data"
    )]
    store: String,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Beside an inference server: keeps it at the policy that a run's next rollouts need
    /// (docs/engines.md).
    PolicySync(PolicySync),
}

#[derive(clap::Args)]
struct PolicySync {
    #[command(flatten)]
    place: Place,
    /// The run.
    #[arg(long)]
    run: RunId,
    /// Where policies are put; the server is started on the folder `current` below it.
    #[arg(long)]
    folder: PathBuf,
    /// Address of the server here; default: that of the plan.
    #[arg(long)]
    url: Option<String>,
    /// Has the server load the folder `current`, or starts it anew, where it has no route for that;
    /// sh runs it, with AGENTGYM_POLICY_FOLDER and AGENTGYM_POLICY.
    #[arg(long)]
    command: Option<String>,
    /// Seconds that the server may take to serve a policy that it was told to load.
    #[arg(long, default_value_t = 600)]
    patience_s: u64,
    /// End after the first policy.
    #[arg(long)]
    once: bool,
}

/// The exit code of a drain.
const INTERRUPTED: u8 = 130;

/// Longest key and value of a label, in bytes.
const LABEL_BYTES_MAX: usize = 200;

fn label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text
        .split_once('=')
        .ok_or("write KEY=VALUE, e.g. gpu=H100")?;
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if key.is_empty() || !key.chars().all(fits) {
        return Err("the key is made of letters, digits, -, _ and .".into());
    }
    if key.len().max(value.len()) > LABEL_BYTES_MAX {
        return Err(format!(
            "key and value have at most {LABEL_BYTES_MAX} bytes"
        ));
    }
    Ok((key.to_owned(), value.to_owned()))
}

fn main() -> ExitCode {
    // SAFETY: no other thread has begun.
    unsafe { agentgym_worker::before_threads() };
    agentgym_games::provide();
    let arguments = Arguments::parse();
    let log = tracing_subscriber::fmt()
        .with_writer(|| Visible(std::io::stderr()))
        // A closed standard error must not cause a panic.
        .log_internal_errors(false)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("AGENTGYM_LOG")
                .unwrap_or_else(|_| "warn,agentgym_worker=info".into()),
        );
    match arguments.log_json {
        true => log.json().init(),
        false => log.init(),
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(e) => {
            let _ = writeln!(std::io::stderr(), "error: cannot start: {e}");
            return ExitCode::FAILURE;
        }
    };
    let ended = runtime.block_on(async {
        match arguments.command {
            Some(Command::PolicySync(given)) => keep_in_step(given).await,
            None => work(arguments).await,
        }
    });
    // Do not wait for a compute thread that is still running.
    runtime.shutdown_background();
    match ended {
        Ok(code) => code,
        Err(e) => {
            // Standard error may be closed.
            let _ = writeln!(Visible(std::io::stderr()), "error: {e}");
            ExitCode::from(exit_code(&e))
        }
    }
}

/// The exit codes of docs/cli.md.
fn exit_code(error: &Error) -> u8 {
    const UNKNOWN_RUN: u8 = 4;
    match error {
        Error::Jobs(agentgym_jobs::Error::UnknownRun { .. }) => UNKNOWN_RUN,
        // Before the first job, the only payload read is a plan.
        Error::Jobs(agentgym_jobs::Error::Payload { .. }) => code_of(Cause::Store),
        lost if lost.cause() == Cause::Device => code_of(Cause::Device),
        // Before the first job, these errors concern the device and the queue's URL.
        Error::Model(_) | Error::Stage(_) => code_of(Cause::Config),
        other => code_of(other.cause()),
    }
}

fn code_of(cause: Cause) -> u8 {
    match cause {
        Cause::Part | Cause::Hold => 1,
        Cause::Config => 2,
        Cause::Store => 3,
        Cause::Queue | Cause::Environment | Cause::Server => 5,
        Cause::Device => 6,
    }
}

/// Ends by itself when the run is over.
async fn keep_in_step(given: PolicySync) -> agentgym_worker::Result<ExitCode> {
    let drain = CancellationToken::new();
    tokio::spawn(agentgym_worker::drain_on_signal(drain.clone()));
    let options = SyncOptions {
        store: Store::open(&given.place.store).await?,
        run: given.run,
        folder: given.folder,
        url: given.url,
        command: given.command,
        patience: Duration::from_secs(given.patience_s),
        once: given.once,
    };
    match sync_policies(&options, &drain).await {
        Err(Error::Cancelled) => Ok(ExitCode::from(INTERRUPTED)),
        other => other.map(|()| ExitCode::SUCCESS),
    }
}

/// Below the user's cache folder, or where that cannot be written below the folder for temporary files.
fn scratch() -> agentgym_worker::Result<ScratchFolder> {
    ScratchFolder::new(&agentgym_submit::cache_dir()).or_else(|e| {
        let instead = std::env::temp_dir();
        tracing::warn!(
            "{e}; uses {} ($AGENTGYM_CACHE names another folder)",
            instead.display()
        );
        ScratchFolder::new(&instead)
    })
}

async fn work(arguments: Arguments) -> agentgym_worker::Result<ExitCode> {
    let store = Store::open(&arguments.place.store).await?;
    store.probe().await?;
    let url = match arguments.queue {
        Some(url) => url,
        None => agentgym_worker::default_queue_url(&store)?,
    };
    let queue = Queue::open(&url, QueueOptions::leasing(arguments.lease_ttl_s))
        .await
        .map_err(|e| match e {
            QueueError::Url { .. } | QueueError::Options(_) => Error::stage(e.to_string()),
            other => other.into(),
        })?;
    let name = agentgym_worker::worker_name(0);
    let drain = CancellationToken::new();
    tokio::spawn(agentgym_worker::drain_on_signal(drain.clone()));
    if let Some(cloud) = arguments.preemption {
        tokio::spawn(agentgym_worker::drain_on_notice(cloud, drain.clone()));
    }
    let meters = Arc::new(Meters::default());
    if let Some(address) = arguments.metrics {
        let told = (name.as_str(), Arc::clone(&meters));
        let public = arguments.metrics_public;
        let bound = serve_metrics(address, public, told, store.clone(), drain.clone()).await?;
        tracing::info!("metrics at http://{bound}/metrics, health at http://{bound}/health");
    }
    let (events, mut news) = tokio::sync::broadcast::channel(1024);
    let log = tokio::spawn(async move {
        use tokio::sync::broadcast::error::RecvError;
        let (mut told, mut stopped) = (BTreeMap::new(), None);
        loop {
            match news.recv().await {
                Ok(event) => {
                    say(&event, &mut told);
                    if let Event::RunStopped { cause, .. } = event {
                        stopped = Some(cause);
                    }
                }
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return stopped,
            }
        }
    });
    let scratch = scratch()?;
    let runs = store.runs().await?;
    if runs.is_empty() {
        tracing::info!(
            "the store {} holds no run yet; waiting for the first to be submitted",
            store.url()
        );
    }
    let limit = arguments.preemption_notice_s.map(Duration::from_secs);
    let options = WorkerOptions {
        store,
        queue,
        name,
        stages: arguments.stages,
        functions: Arc::new(agentgym_worker::stages::Stages),
        threads: arguments
            .threads
            .map_or_else(agentgym_worker::cores, NonZeroUsize::get),
        device: arguments.device,
        dtype: arguments.dtype,
        run: arguments.run,
        exit_when_finished: arguments.exit_when_finished,
        folders: scratch.folders().clone(),
        prefetch: true,
        drain_grace: agentgym_worker::grace_of(limit),
        gateway: GatewayOptions {
            address: arguments.gateway_addr,
            url: arguments.gateway_url,
        },
        meters,
        machine: MachineFacts {
            device: String::new(),
            labels: arguments.labels.into_iter().collect(),
            price: arguments.price,
        },
    };
    let worked = tokio::select! {
        worked = run_worker(options, events, drain.clone()) => worked,
        () = agentgym_worker::out_of_time(&drain, limit) => return Ok(ExitCode::from(INTERRUPTED)),
    };
    // The log task ends with the last sender, which a compute thread may hold a little longer.
    let stopped = tokio::time::timeout(Duration::from_secs(1), log).await;
    scratch.close();
    worked?;
    Ok(match stopped {
        _ if drain.is_cancelled() => ExitCode::from(INTERRUPTED),
        Ok(Ok(Some(cause))) if arguments.exit_when_finished => ExitCode::from(code_of(cause)),
        _ => ExitCode::SUCCESS,
    })
}

/// Logs an event. `told` holds the messages already logged, so that they are not repeated every
/// second.
fn say(event: &Event, told: &mut BTreeMap<String, Instant>) {
    const AGAIN: Duration = Duration::from_secs(60);
    match event {
        Event::RunFinished { run } => tracing::info!(%run, "finished"),
        Event::Waiting { message } => {
            let again = |at: &Instant| at.elapsed() >= AGAIN;
            if told.get(message).is_none_or(again) {
                told.insert(message.clone(), Instant::now());
                tracing::info!("waiting: {message}");
            }
        }
        // The runtime logs these itself, with run and attempt.
        Event::Warned(_)
        | Event::Started { .. }
        | Event::Committed { .. }
        | Event::Superseded { .. }
        | Event::Progress { .. }
        | Event::Failed { .. }
        | Event::RunStopped { .. } => {}
    }
}
