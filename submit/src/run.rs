//! `run` and `resume`: freeze the plan (or find the one that is there), start
//! workers in this process, follow to the end, report.

use crate::cli::{ConfigArgs, Global};
use crate::display::Display;
use crate::follow::{Crew, End, Follower};
use crate::runs::{DEFAULT_STORE, RunView, cache_dir, newest_plan};
use crate::signals::Interrupts;
use crate::{Error, Result, model_size, preflight, summary, text};
use agentgym_jobs::config::RunConfig;
use agentgym_jobs::plan::Plan;
use agentgym_jobs::queue::{Queue, QueueOptions};
use agentgym_storage::{Created, Store};
use agentgym_worker::{WorkerOptions, run_worker};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::broadcast;
use tokio::task::JoinSet;

/// Events kept for a follower that lags; later ones push out the oldest.
const EVENTS_KEPT: usize = 4096;

/// Relative paths in a config start at the current folder.
pub(crate) fn base() -> &'static Path {
    Path::new("")
}

/// Reads a config with `--store` and `--queue` as its last overrides.
pub(crate) fn read_config(args: &ConfigArgs, global: &Global) -> Result<RunConfig> {
    let mut overrides = args.overrides.clone();
    overrides.extend(global_overrides(global));
    Ok(RunConfig::read(&args.config, &overrides)?)
}

fn global_overrides(global: &Global) -> Vec<String> {
    let quoted = |key: &str, url: &Option<String>| {
        url.as_ref()
            .map(|url| format!("{key}={}", serde_json::Value::from(url.as_str())))
    };
    [
        quoted("storage.url", &global.store),
        quoted("queue.url", &global.queue),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// `run RUN.YAML`.
pub(crate) async fn run(args: &ConfigArgs, global: &Global) -> Result<()> {
    let config = read_config(args, global)?;
    let display = Display::new(global.quiet);
    if !config.unused.is_empty() {
        display.line(&format!(
            "read and not used here: {}",
            config.unused.join(", ")
        ));
    }
    let (storage, queue) = (
        config.config.storage.url.clone(),
        config.config.queue.url.clone(),
    );
    let plan = Plan::new(config.clone(), base())?;
    check_model(&plan)?;
    let store = Store::open(&storage).await?;
    store.probe().await?;
    let plan = loop {
        let plan = match newest_plan(&store, &plan.run).await? {
            None => Plan::new(config.clone(), base())?,
            Some(stored) => {
                let revised = stored.revised(config.clone(), base())?;
                if stored.same_bindings(&revised) && !needs_new_revision(&store, &stored).await? {
                    break stored;
                }
                revised
            }
        };
        match put(&store, &plan).await? {
            Created::Won => break plan,
            // Somebody submitted at the same moment: look at what they wrote.
            Created::Exists => {}
        }
    };
    drive(store, plan, queue, display, global).await
}

/// `resume RUN [KEY=VALUE]…`.
pub(crate) async fn resume(run: &str, overrides: &[String], global: &Global) -> Result<()> {
    let from_overrides = |key: &str| {
        let head = format!("{key}=");
        let value = overrides.iter().rev().find_map(|o| o.strip_prefix(&head));
        value.map(|v| v.trim_matches('"').to_owned())
    };
    let url = global
        .store
        .clone()
        .or_else(|| from_overrides("storage.url"))
        .unwrap_or_else(|| DEFAULT_STORE.to_owned());
    let queue = global.queue.clone().or_else(|| from_overrides("queue.url"));
    let store = Store::open(&url).await?;
    let mut view = RunView::open(&store, run).await?;
    store.probe().await?;
    loop {
        let stored = &view.plan;
        let config = stored_config(stored, overrides)?;
        let revised = stored.revised(config, base())?;
        let same = stored.same_bindings(&revised);
        if same && !needs_new_revision(&store, stored).await? {
            break;
        }
        let put = put(&store, &revised).await?;
        view = RunView::open(&store, run).await?;
        if matches!(put, Created::Won) {
            break;
        }
    }
    check_model(&view.plan)?;
    let plan = newest_plan(&store, &view.plan.run).await?;
    let plan = plan.ok_or_else(|| Error::Missing(format!("the plan of {run} is gone")))?;
    drive(store, plan, queue, Display::new(global.quiet), global).await
}

/// The config inside a stored plan, with overrides on top.
fn stored_config(plan: &Plan, overrides: &[String]) -> Result<RunConfig> {
    let file: serde_json::Value =
        serde_json::from_slice(&plan.to_bytes()).expect("a plan is written as JSON");
    let text = file["config"].to_string();
    let path = PathBuf::from(format!("plan of {}", plan.run));
    Ok(RunConfig::parse("", &path, &text, overrides)?)
}

async fn put(store: &Store, plan: &Plan) -> Result<Created> {
    Ok(store
        .put_plan(&plan.run, plan.revision, plan.to_bytes().into())
        .await?)
}

/// A part that failed under this revision gets its attempts back with the next.
async fn needs_new_revision(store: &Store, plan: &Plan) -> Result<bool> {
    let view = RunView::open(store, plan.run.as_str()).await?;
    Ok(crate::status::status(&view).await?.exhausted.is_some())
}

/// The policy must be on this machine where this process trains it.
fn check_model(plan: &Plan) -> Result<()> {
    let path = &plan.config.actor_rollout_ref.model.path;
    if plan.config.jobs.workers == 0 {
        return Ok(());
    }
    model_size::of(path)
        .map(|_| ())
        .map_err(|why| Error::Usage(format!("key `actor_rollout_ref.model.path`: {path}: {why}")))
}

/// Where metrics go: the configured folder, else beside a folder store.
pub(crate) fn metrics_dir(store: &Store, plan: &Plan) -> Option<PathBuf> {
    if let Some(dir) = &plan.config.trainer.default_local_dir {
        return Some(PathBuf::from(dir).join(plan.run.to_string()));
    }
    let root = store.local_root()?;
    Some(root.join("exports").join(plan.run.to_string()))
}

async fn open_queue(store: &Store, plan: &Plan, url: Option<String>) -> Result<Queue> {
    let url = match url {
        Some(url) => url,
        None => {
            agentgym_worker::default_queue_url(store).map_err(|e| Error::Usage(e.to_string()))?
        }
    };
    let jobs = &plan.config.jobs;
    let options = QueueOptions {
        lease_ttl_s: jobs.lease_ttl_s,
        length_max: jobs.length_max,
        ..QueueOptions::default()
    };
    Queue::open(&url, options)
        .await
        .map_err(|e| Error::Jobs(agentgym_jobs::Error::Queue(e.to_string())))
}

async fn drive(
    store: Store,
    plan: Plan,
    queue_url: Option<String>,
    display: Display,
    global: &Global,
) -> Result<()> {
    let plan = Arc::new(plan);
    let interrupts = Interrupts::listen();
    let resume = resume_command(&store, &plan, queue_url.as_deref());
    display.line(&format!(
        "run {}  revision {}  {} iterations  store {}",
        plan.run,
        plan.revision,
        plan.iterations,
        store.url()
    ));
    if plan.config.jobs.workers > 0 {
        preflight::environments(&plan).await?;
    }
    let queue = open_queue(&store, &plan, queue_url).await?;
    let view = RunView {
        store: store.clone(),
        plan: Arc::clone(&plan),
    };
    let mut follower = Follower::new(view, display, metrics_dir(&store, &plan)).await?;
    let scratch = scratch_folder()?;
    let crew = start_workers(&store, &plan, &queue, scratch.path(), &interrupts);
    if crew.workers.is_empty() {
        announce(&store, &plan, &queue).await?;
    }
    let end = follower.follow(crew, &interrupts).await;
    follower.settle().await?;
    let written = follower.write_metrics()?;
    let run = plan.run.to_string();
    match end? {
        End::Finished => {
            let (digest, commits) = store.run_digest(&plan.run).await?;
            if global.json {
                let mut report = summary::report_json(&follower.book, &plan);
                report["digest"] = digest.to_string().into();
                report["commits"] = commits.into();
                report["written"] = written
                    .iter()
                    .map(|p| p.display().to_string())
                    .collect::<Vec<_>>()
                    .into();
                text::emit_json(&report);
            } else {
                let mut out = summary::report(&follower.book, &plan);
                for path in &written {
                    out += &format!("wrote   {}\n", path.display());
                }
                out += &format!("digest  {digest}  ({commits} commits)\n");
                text::emit(&out);
            }
            Ok(())
        }
        End::Stopped(message) => {
            // The cause may be an environment that went away: say so by code.
            preflight::environments(&plan).await?;
            Err(Error::Stopped {
                run,
                message,
                resume,
            })
        }
        End::Interrupted => Err(Error::Interrupted { run, resume }),
    }
}

fn start_workers(
    store: &Store,
    plan: &Arc<Plan>,
    queue: &Queue,
    scratch: &Path,
    interrupts: &Interrupts,
) -> Crew {
    let (events, receiver) = broadcast::channel(EVENTS_KEPT);
    let mut workers = JoinSet::new();
    for index in 0..plan.config.jobs.workers {
        let options = WorkerOptions {
            store: store.clone(),
            queue: queue.clone(),
            name: agentgym_worker::worker_name(index),
            stages: Vec::new(),
            threads: plan
                .config
                .jobs
                .threads
                .unwrap_or_else(agentgym_worker::cores),
            device: "cpu".to_owned(),
            run: Some(plan.run.clone()),
            exit_when_finished: true,
            cache_dir: scratch.to_owned(),
        };
        workers.spawn(run_worker(
            options,
            events.clone(),
            interrupts.drain.clone(),
        ));
    }
    Crew {
        workers,
        events: receiver,
    }
}

/// Downloads and scratch files of this process's workers, removed at its end.
fn scratch_folder() -> Result<tempfile::TempDir> {
    let cache = cache_dir();
    std::fs::create_dir_all(&cache).map_err(Error::local(&cache))?;
    tempfile::Builder::new()
        .prefix("run-")
        .tempdir_in(&cache)
        .map_err(Error::local(&cache))
}

/// Pushes what can run, so that workers elsewhere begin without delay.
async fn announce(store: &Store, plan: &Plan, queue: &Queue) -> Result<()> {
    let other = |e: agentgym_worker::Error| Error::Worker(e.to_string());
    let mut state = agentgym_worker::RunState::open(store, &plan.run)
        .await
        .map_err(other)?;
    let frontier = state.refresh().await.map_err(other)?;
    let running = std::collections::BTreeSet::new();
    state
        .enqueue(queue, &frontier, &running)
        .await
        .map_err(other)?;
    Ok(())
}

fn resume_command(store: &Store, plan: &Plan, queue: Option<&str>) -> String {
    let mut command = format!(
        "agentgym-submit resume {} --store {}",
        plan.run,
        store.url()
    );
    if let Some(queue) = queue {
        command += &format!(" --queue {}", without_password(queue));
    }
    command
}

fn without_password(url: &str) -> String {
    match url::Url::parse(url) {
        Ok(mut parsed) if parsed.password().is_some() => {
            // Fails only for URLs that cannot have a password.
            let _ = parsed.set_password(Some("…"));
            parsed.to_string()
        }
        _ => url.to_owned(),
    }
}
