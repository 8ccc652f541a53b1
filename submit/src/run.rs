//! `run` and `resume`: freeze the plan (or find the existing one), start workers in this process,
//! follow to the end, report.

mod crew;
mod display;
mod follow;
pub(crate) mod local;
mod next;
mod preflight;
pub(crate) mod signals;

use crate::claims::open_queue;
use crate::cli::{ConfigArgs, ForkArgs, Global};
use crate::metrics::played::before_and_after;
use crate::metrics::summary::{self, EndOfRun, ReportDocument};
use crate::plan::device::Gpu;
use crate::plan::document::ForkDocument;
use crate::plan::measured::Measured;
use crate::plan::view::PlanView;
use crate::runs::{DEFAULT_STORE, RunView, cache_dir, newest_plan, stored_tree};
use crate::{Error, Result, evaluation, existing_store, fork, text};
use agentgym_jobs::config::{Numerics, ResolvedConfig};
use agentgym_jobs::pipeline::{PartId, Stage, adopted};
use agentgym_jobs::plan::Plan;
use agentgym_model::{Device, Dtype};
use agentgym_storage::{Created, Store};
use agentgym_text::without_secrets;
use agentgym_worker::{Cause, ScratchFolder};
use crew::{announce, start_workers};
use display::Display;
use follow::{End, Follower};
use signals::Interrupts;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Relative paths in a config are relative to the current folder.
pub(crate) fn base() -> &'static Path {
    Path::new("")
}

/// Reads a config with `--store` and `--queue` as its last overrides.
pub(crate) fn read_config(args: &ConfigArgs, global: &Global) -> Result<ResolvedConfig> {
    let mut overrides = args.overrides.clone();
    overrides.extend(global_overrides(global));
    Ok(ResolvedConfig::read(&args.config, &overrides)?)
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

/// Refuses an unusable device if workers of this process would use it.
fn check_device(plan: &Plan, global: &Global) -> Result<()> {
    if plan.config.jobs.workers > 0 {
        let device = Device::parse(&global.device, global.dtype);
        device.map_err(|e| Error::Usage(e.to_string()))?;
    }
    Ok(())
}

/// Refuses workers of this process that could only wait: those of another numeric class than the
/// run's first part was made by.
async fn check_class(view: &RunView, global: &Global) -> Result<()> {
    let plan = &view.plan;
    let first = PartId {
        iteration: 0,
        stage: Stage::Init,
        part: 0,
    };
    if plan.config.jobs.workers == 0 || plan.config.run.numerics == Numerics::Any {
        return Ok(());
    }
    let Some(made) = view.manifest(first).await? else {
        return Ok(());
    };
    let device = Device::parse(&global.device, global.dtype);
    let device = device.map_err(|e| Error::Usage(e.to_string()))?;
    let (class, own) = (made.numeric_class, device.numeric_class());
    if class == own {
        return Ok(());
    }
    let fits = match Device::arguments(&class) {
        Some(arguments) => format!("give {arguments}"),
        None => "give the device and dtype that it was begun with".to_owned(),
    };
    Err(Error::Usage(format!(
        "run {} was begun in numeric class {class}, and --device {} --dtype {} computes in {own}: {fits}, \
         or run.numerics=any to mix them",
        plan.run, global.device, global.dtype
    )))
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
    for note in &config.notes {
        display.line(note);
    }
    let (storage, queue) = (
        config.config.storage.url.clone(),
        config.config.queue.url.clone(),
    );
    let plan = Plan::new(config.clone(), base())?;
    check_device(&plan, global)?;
    let store = Store::open(&storage).await?;
    store.probe().await?;
    preflight::advise(&plan, &store, &display);
    let plan = loop {
        let plan = match newest_plan(&store, &plan.run).await? {
            None => {
                if let Some(parent) = &plan.config.run.fork.run {
                    return Err(Error::Usage(format!(
                        "key `run.fork.run`: a fork is made by `agentgym-submit fork {parent} --iteration {} --store {}`, not by a config",
                        plan.config.run.fork.iteration,
                        store.argument()
                    )));
                }
                let gpu = Gpu::of(&global.device, global.dtype);
                local::check(&plan, &args.config, gpu)?;
                if let Some(hint) = next::continues(&store, &plan).await? {
                    display.line(&hint);
                }
                Plan::new(config.clone(), base())?
            }
            Some(stored) => {
                let stored = Arc::new(stored);
                let revised = match stored.revised(config.clone(), base()) {
                    Ok(revised) => revised,
                    Err(e) => {
                        return Err(next::refusal(e, &viewed(&store, &stored, &queue), None).await);
                    }
                };
                if stored.same_bindings(&revised) && !needs_new_revision(&store, &stored).await? {
                    let view = viewed(&store, &stored, &queue);
                    if !is_finished(&view).await? {
                        may_begin(&view).await?;
                    }
                    break stored;
                }
                revised
            }
        };
        let plan = Arc::new(plan);
        may_begin(&viewed(&store, &plan, &queue)).await?;
        match put(&store, &plan).await? {
            Created::Won => break plan,
            // Another process submitted at the same time: read its plan.
            Created::Exists => {}
        }
    };
    drive(viewed(&store, &plan, &queue), display, global).await
}

fn viewed(store: &Store, plan: &Arc<Plan>, queue: &Option<String>) -> RunView {
    RunView {
        store: store.clone(),
        plan: Arc::clone(plan),
        queue: queue.clone(),
    }
}

/// Under an unchanged plan a finished run needs nothing.
async fn is_finished(view: &RunView) -> Result<bool> {
    Ok(view.progress().await?.finished(&view.plan))
}

/// Asks whatever can refuse a run of this process, before its plan is written: a plan stays.
async fn may_begin(view: &RunView) -> Result<()> {
    may_play(view).await?;
    if view.plan.config.jobs.workers > 0 {
        let then = ". Nothing was written; the same command goes on when it answers";
        preflight::environments(&view.plan, then).await?;
    }
    scratch()?;
    open_queue(&view.store, &view.plan, view.queue.clone())
        .await
        .map(drop)
}

/// Refuses what plays games that this program has no longer, unless nothing is left to play.
pub(crate) async fn may_play(view: &RunView) -> Result<()> {
    match view.plan.config.check_rules() {
        Err(refused) if !is_finished(view).await? => Err(refused.into()),
        _ => Ok(()),
    }
}

/// Where the workers of this process keep what they download.
fn scratch() -> Result<ScratchFolder> {
    ScratchFolder::new(&cache_dir()).map_err(|e| match e {
        agentgym_worker::Error::Io { source, .. } => Error::local(cache_dir())(source),
        other => Error::Worker(other.to_string()),
    })
}

/// `eval RUN.YAML`: `run` with the same config, evaluation only.
pub(crate) async fn eval(args: &ConfigArgs, global: &Global) -> Result<()> {
    run(&for_eval(args), global).await
}

/// The same config, evaluation only.
pub(crate) fn for_eval(args: &ConfigArgs) -> ConfigArgs {
    let mut args = args.clone();
    args.overrides.push("run.pipeline=eval".to_owned());
    args
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
    let store = existing_store(&url).await?;
    store.probe().await?;
    let ask = async |plan: &Arc<Plan>| {
        check_device(plan, global)?;
        may_begin(&viewed(&store, plan, &queue)).await
    };
    let plan = go_on(&store, run, overrides, ask).await?;
    check_device(&plan, global)?;
    let display = Display::new(global.quiet);
    drive(viewed(&store, &plan, &queue), display, global).await
}

/// The plan under which a run resumes, no longer on hold unless the overrides say so.
pub(crate) async fn go_on(
    store: &Store,
    run: &str,
    overrides: &[String],
    ask: impl AsyncFn(&Arc<Plan>) -> Result<()>,
) -> Result<Arc<Plan>> {
    let all = [&["jobs.hold=false".to_owned()], overrides].concat();
    revise(store, run, &all, ask).await
}

/// The plan of a run with changed bindings: a new revision if anything changes or a part has used
/// up its attempts. What `ask` refuses is not written.
pub(crate) async fn revise(
    store: &Store,
    run: &str,
    overrides: &[String],
    ask: impl AsyncFn(&Arc<Plan>) -> Result<()>,
) -> Result<Arc<Plan>> {
    loop {
        let view = RunView::open(store, run).await?;
        let stored = Arc::clone(&view.plan);
        let config = stored_config(&stored, overrides)?;
        let revised = match stored.revised(config, base()) {
            Ok(revised) => Arc::new(revised),
            Err(e) => {
                let typed = overrides.iter().filter(|o| !o.starts_with("jobs.hold="));
                let typed: Vec<String> = typed.cloned().collect();
                return Err(next::refusal(e, &view, Some(&typed)).await);
            }
        };
        let same = stored.same_bindings(&revised);
        if same && !needs_new_revision(store, &stored).await? {
            if !is_finished(&view).await? {
                ask(&stored).await?;
            }
            return Ok(stored);
        }
        ask(&revised).await?;
        // If another process has written this revision, read it.
        if put(store, &revised).await? == Created::Won {
            return Ok(revised);
        }
    }
}

/// `fork RUN --iteration N [KEY=VALUE]…`.
pub(crate) async fn fork(args: &ForkArgs, global: &Global) -> Result<()> {
    let url = global.store.as_deref().unwrap_or(DEFAULT_STORE);
    let store = existing_store(url).await?;
    let parent = RunView::open(&store, &args.run).await?;
    if !args.dry_run {
        check_device(&parent.plan, global)?;
        store.probe().await?;
        let dry = ForkArgs {
            dry_run: true,
            ..args.clone()
        };
        let child = fork::fork(&parent, &dry, global_overrides(global), base()).await?;
        may_begin(&viewed(&store, &Arc::new(child), &global.queue)).await?;
    }
    let child = fork::fork(&parent, args, global_overrides(global), base()).await?;
    if args.dry_run {
        let measured = Measured::of(&store, &child, global.dtype).await?;
        let measured = measured.ok_or_else(|| "no run of this model was measured".to_owned());
        show_fork(&parent, args, (&child, measured), global);
        return Ok(());
    }
    let display = Display::new(global.quiet);
    display.line(&format!(
        "run {} goes on from iteration {} of {}",
        child.run, args.iteration, parent.plan.run
    ));
    let child = viewed(&store, &Arc::new(child), &global.queue);
    drive(child, display, global).await
}

/// `fork --dry-run`: the child's plan, and what it would take over.
fn show_fork(
    parent: &RunView,
    args: &ForkArgs,
    (child, measured): (&Plan, Result<Measured, String>),
    global: &Global,
) {
    let taken: Vec<String> = adopted(child).iter().map(ToString::to_string).collect();
    let queue = child.config.queue.url.as_deref().map(without_secrets);
    let store = without_secrets(parent.store.url());
    let mut view = PlanView::new(child, &store, queue.as_deref(), &[])
        .with_device(&global.device, global.dtype);
    view.measured = measured;
    let of = &parent.plan.run;
    if global.json {
        let mut document = view.document();
        document.fork = Some(ForkDocument {
            run: of.to_string(),
            iteration: args.iteration,
            takes_over: taken,
            fresh_optimizer: args.fresh_optimizer,
            changed: args.overrides.clone(),
        });
        text::emit_json(&document);
        return;
    }
    text::emit(&format!(
        "{}fork        goes on from iteration {} of {of} and takes over {}\n\
         nothing was written; without --dry-run it is made and begins",
        view.render(),
        args.iteration,
        taken.join(", ")
    ));
}

/// The same config with overrides.
fn stored_config(plan: &Plan, overrides: &[String]) -> Result<ResolvedConfig> {
    let text = stored_tree(plan).to_string();
    let path = PathBuf::from(format!("plan of {}", plan.run));
    Ok(ResolvedConfig::parse_stored(&path, &text, overrides)?)
}

async fn put(store: &Store, plan: &Plan) -> Result<Created> {
    Ok(store
        .put_plan(&plan.run, plan.revision, plan.to_bytes().into())
        .await?)
}

/// A part that used up its attempts under this revision gets new ones with the next.
async fn needs_new_revision(store: &Store, plan: &Plan) -> Result<bool> {
    let view = RunView::open(store, plan.run.as_str()).await?;
    Ok(crate::status::status(&view, None)
        .await?
        .exhausted
        .is_some())
}

/// Where metrics are written: the configured folder, else next to a folder store.
pub(crate) fn metrics_dir(store: &Store, plan: &Plan) -> Option<PathBuf> {
    if let Some(dir) = &plan.config.trainer.default_local_dir {
        return Some(PathBuf::from(dir).join(plan.run.to_string()));
    }
    let root = store.local_root()?;
    Some(root.join("exports").join(plan.run.to_string()))
}

async fn drive(view: RunView, display: Display, global: &Global) -> Result<()> {
    let resume = resume_command(&view, global);
    let ended = follow(view, display, global, &resume).await;
    ended.map_err(|e| match e {
        said @ (Error::Stopped { .. }
        | Error::Interrupted { .. }
        | Error::Detached { .. }
        | Error::Usage(_)
        | Error::Broken { .. }) => said,
        other => Error::Broken {
            source: Box::new(other),
            resume,
        },
    })
}

async fn follow(view: RunView, display: Display, global: &Global, resume: &str) -> Result<()> {
    let interrupts = Interrupts::listen();
    let (store, plan) = (view.store.clone(), Arc::clone(&view.plan));
    display.line(&next::header(&view, &mut view.progress().await?));
    let queue = open_queue(&store, &plan, view.queue.clone()).await?;
    let mut follower = Follower::new(view.clone(), display, metrics_dir(&store, &plan)).await?;
    if !follower.finished() {
        check_class(&view, global).await?;
    }
    let scratch = scratch()?;
    let crew = start_workers(&store, &plan, &queue, (&scratch, global), &interrupts);
    if crew.workers.is_empty() {
        announce(&store, &plan, &queue).await?;
    }
    let end = follower.follow(crew, &interrupts).await?;
    scratch.close();
    let run = plan.run.to_string();
    // Metrics are a copy of committed data: if the run ended early, a failure to write them must
    // not hide the reason.
    let written = match &end {
        End::Finished => {
            let mut written = follower.write_metrics()?;
            if let Some(dir) = metrics_dir(&store, &plan) {
                written.extend(evaluation::write_items(&view, &dir).await?);
            }
            written
        }
        _ => follower.write_metrics().unwrap_or_default(),
    };
    match end {
        End::Finished => {
            let seen = follower.book.seen().clone();
            let (digest, commits) = store.run_digest_of(&plan.run, seen).await?;
            let status = crate::status::status(&view, None).await?;
            if global.json {
                text::emit_json(&ReportDocument {
                    report: summary::report_document(&follower.book, &plan),
                    end: Some(EndOfRun {
                        warnings: status.warnings.iter().map(Into::into).collect(),
                        digest: digest.to_string(),
                        commits,
                        written: written.iter().map(|p| p.display().to_string()).collect(),
                    }),
                });
            } else {
                let mut out = summary::report(&follower.book, &plan);
                out += &before_and_after(&view, &follower.book).await;
                out += &text::written(&written);
                out += &crate::status::warning_lines(&status.warnings);
                out += &format!("commits {commits}\ndigest  {digest}\n");
                text::emit(&out);
                if !global.quiet {
                    text::tell(&next::after(&view).await);
                }
            }
            Ok(())
        }
        End::Stopped(message, cause) => {
            if matches!(cause, Cause::Part | Cause::Environment | Cause::Server) {
                // Remote workers report only what happened; the preflight check finds out why.
                preflight::environments(&plan, "").await?;
            }
            Err(Error::Stopped {
                run,
                message,
                cause,
                resume: resume.to_owned(),
            })
        }
        End::Interrupted if plan.config.jobs.workers == 0 => Err(Error::Detached {
            watch: format!("agentgym-submit watch {}", view.arguments()),
            run,
        }),
        End::Interrupted => Err(Error::Interrupted {
            run,
            resume: resume.to_owned(),
        }),
    }
}

fn resume_command(view: &RunView, global: &Global) -> String {
    let mut command = format!("agentgym-submit resume {}", view.arguments());
    if global.device != "cpu" {
        command += &format!(" --device {}", global.device);
    }
    if global.dtype != Dtype::default() {
        command += &format!(" --dtype {}", global.dtype);
    }
    command
}
