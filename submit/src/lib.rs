//! `agentgym-submit`: submits a run, follows it, and shows its contents.
//!
//! Everything a command prints is computed from the plan and the store by functions that return
//! text or JSON, so that tests check the same output that people see. Results go to standard
//! output, progress and errors to standard error; each command ends with one of the exit codes of
//! [`Exit`].

mod api;
mod check_model;
mod claims;
pub mod cli;
mod control;
mod credit;
mod documents;
mod error;
mod estimate;
pub mod evaluation;
pub mod export;
mod fork;
mod hub;
mod import;
mod inspect;
pub mod keys_view;
pub mod metrics;
pub mod plan;
mod questions;
pub mod records;
mod run;
pub mod runs;
mod serve;
pub mod status;
pub mod text;
pub mod trajectories;
mod transfer;
mod verify;
mod watch;
pub mod why;
mod workers;

use agentgym_jobs::plan::Plan;
use agentgym_storage::Store;
use agentgym_text::without_secrets;
use cli::{Cli, Command, Global};
pub use error::{Error, Exit, Result};
use metrics::summary::{ReportDocument, report_document};
pub use runs::cache_dir;
use runs::{DEFAULT_STORE, RunView, existing_store};
use serde::Serialize;
use std::path::Path;

/// `digest RUN`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct DigestDocument {
    run: String,
    digest: String,
    commits: usize,
}

/// `export RUN --iteration N --to DIR`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct ExportDocument<'a> {
    to: &'a Path,
    #[serde(flatten)]
    exported: &'a export::Exported,
}

/// `export RUN --trajectories FILE`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct TrajectoriesDocument<'a> {
    to: &'a Path,
    #[serde(flatten)]
    written: trajectories::Written,
}

/// Runs one command.
///
/// # Errors
/// Whatever ends the command early; [`Error::exit`] gives the exit code.
pub async fn execute(cli: Cli) -> Result<()> {
    agentgym_games::provide();
    command(&cli).await?;
    text::emitted()
}

async fn command(cli: &Cli) -> Result<()> {
    let global = &cli.global;
    match &cli.command {
        Command::Run(args) => run::run(args, global).await,
        Command::Eval(args) => run::eval(args, global).await,
        Command::Resume { run, overrides } => run::resume(run, overrides, global).await,
        Command::Fork(args) => run::fork(args, global).await,
        Command::Plan(args) => plan(args, global).await,
        Command::Keys { filter } => {
            if global.json {
                text::emit_json(&keys_view::document(filter.as_deref()));
            } else {
                text::emit(&keys_view::render(filter.as_deref()));
            }
            Ok(())
        }
        Command::Completions { shell } => {
            text::emit_bytes(&cli::completions(*shell));
            Ok(())
        }
        Command::Man { dir } => {
            std::fs::create_dir_all(dir).map_err(Error::local(dir))?;
            clap_mangen::generate_to(cli::grammar(), dir).map_err(Error::local(dir))
        }
        Command::Status { run: None } => status::all(&store(global).await?, global).await,
        Command::Status { run: Some(run) } => {
            let view = view(run, global).await?;
            let queue = claims::queue(&view, global).await;
            let status = status::status(&view, queue.as_ref()).await?;
            if global.json {
                text::emit_json(&status.document());
            } else {
                text::emit(&status.render(text::unix_now_s()));
            }
            Ok(())
        }
        Command::Watch { run } => watch::watch(&store(global).await?, run, global).await,
        Command::Why { run, part } => why::why(&view(run, global).await?, *part, global).await,
        Command::Cancel { run } => control::cancel(&store(global).await?, run, global).await,
        Command::Retry { run, overrides } => {
            control::retry(&store(global).await?, run, overrides, global).await
        }
        Command::Inspect(args) => {
            inspect::inspect(&view(&args.run, global).await?, args, global).await
        }
        Command::Credit(args) if args.pull => {
            questions::pull(store(global).await?, &args.run, args.iteration, global).await
        }
        Command::Credit(args) => {
            credit::credit(&view(&args.run, global).await?, args, global).await
        }
        Command::Workers { run } => {
            workers::workers(&store(global).await?, run.as_deref(), global).await
        }
        Command::Ledger { run } => questions::ledger(store(global).await?, run, global).await,
        Command::Episodes(args) => questions::episodes(store(global).await?, args, global).await,
        Command::Compare(args) => questions::compare(store(global).await?, args, global).await,
        Command::View(args) => api::view(store(global).await?, args, global).await,
        Command::Serve(args) => {
            let run = match serve::is_folder(&args.policy)? {
                true => None,
                false => Some(view(&args.policy, global).await?),
            };
            serve::serve(run, args, global).await
        }
        Command::Export(args) => export(args, global).await,
        Command::Import(args) => import::import(args, global).await,
        Command::CheckModel { folder } => check_model::check_model(folder, global),
        Command::Pull { id, revision } => hub::pull(id, revision.as_deref(), global).await,
        Command::Push(args) => hub::push(args, global).await,
        Command::Digest { run } => {
            let view = view(run, global).await?;
            let (digest, commits) = view.store.run_digest(&view.plan.run).await?;
            if global.json {
                text::emit_json(&DigestDocument {
                    run: view.plan.run.to_string(),
                    digest: digest.to_string(),
                    commits,
                });
            } else {
                text::emit(&format!("{digest}  {commits} commits"));
            }
            Ok(())
        }
        Command::Verify { run } => verify::verify(&bare_store(global).await?, run, global).await,
        Command::Metrics { run } => show_metrics(&view(run, global).await?, global).await,
    }
}

async fn plan(args: &cli::PlanArgs, global: &Global) -> Result<()> {
    let (check, trial) = (args.check, args.trial);
    let mut config = run::read_config(&args.config, global)?;
    if config.evaluates_alone() {
        // Such a config is meant for `eval`: show what that would do.
        config = run::read_config(&run::for_eval(&args.config), global)?;
    }
    let plan = Plan::new(config.clone(), run::base())?;
    let queue = (config.config.queue.url.as_deref()).map(without_secrets);
    let store = without_secrets(&config.config.storage.url);
    let gpu = plan::device::Gpu::of(&global.device, global.dtype);
    let checked = run::local::check(&plan, &args.config.config, gpu);
    let measured = match (measured(&plan, global).await, &checked) {
        (Some(measured), _) if !trial => Ok(measured),
        (_, Ok(())) => plan::trial::tried(&plan, &config, global, trial).await,
        (_, Err(_)) => Err("the run would be refused".to_owned()),
    };
    let mut view = plan::view::PlanView::new(&plan, &store, queue.as_deref(), &config.unused)
        .with_device(&global.device, global.dtype);
    (view.notes, view.measured) = (&config.notes, measured);
    view.rates = args.rates.clone();
    if global.json {
        text::emit_json(&view.document());
    } else {
        text::emit(&view.render());
    }
    checked?;
    match check {
        true => plan::check::environments(&plan).await,
        false => Ok(()),
    }
}

/// What runs of the plan's model took in its store. `plan` makes nothing and waits for nobody: a
/// folder has to be there, another store has to be asked for with `--store` and to answer.
async fn measured(plan: &Plan, global: &Global) -> Option<plan::measured::Measured> {
    const PATIENCE: std::time::Duration = std::time::Duration::from_secs(20);
    let url = &plan.config.storage.url;
    if url.contains(':') && global.store.is_none() {
        return None;
    }
    let read = async {
        let store = existing_store(url).await?;
        plan::measured::Measured::of(&store, plan, global.dtype).await
    };
    match tokio::time::timeout(PATIENCE, read).await {
        Ok(Ok(found)) => found,
        Ok(Err(Error::Missing(_))) => None,
        Ok(Err(e)) => {
            text::tell(&format!("what runs took in the store cannot be read: {e}"));
            None
        }
        Err(_) => {
            text::tell("what runs took in the store cannot be read: it does not answer in 20 s");
            None
        }
    }
}

async fn export(args: &cli::ExportArgs, global: &Global) -> Result<()> {
    let view = view(&args.run, global).await?;
    if let Some(file) = &args.trajectories {
        let stage = args.stage.as_deref().map(str::parse).transpose();
        let wanted = trajectories::Wanted {
            iteration: args.iteration,
            stage: stage.map_err(Error::Usage)?,
            success: args.success,
            reward_min: args.reward_min,
        };
        let written = trajectories::export(&view, &wanted, file).await?;
        if global.json {
            text::emit_json(&TrajectoriesDocument { to: file, written });
        } else {
            text::emit(&written.to_text(file));
        }
        return Ok(());
    }
    let (Some(iteration), Some(to)) = (args.iteration, &args.to) else {
        return Err(Error::Usage(
            "give --iteration N and --to DIR, or --trajectories FILE".into(),
        ));
    };
    let wanted = export::Wanted {
        adapter_alone: args.adapter,
        reference: args.reference,
        optimizer: args.optimizer,
        dtype: args.save_dtype,
        shard_bytes_max: args.shard_size,
    };
    let exported = export::export(&view, iteration, to, wanted).await?;
    if global.json {
        text::emit_json(&ExportDocument {
            to,
            exported: &exported,
        });
    } else {
        text::emit(&format!("{}: {}", to.display(), exported.names.join(", ")));
    }
    for file in &exported.unwritten {
        text::tell(&format!("not written: {file}"));
    }
    if !exported.removed.is_empty() {
        text::tell(&format!(
            "removed by the retention rules or not stored (trainer.state_freq), not in the export: {}",
            exported.removed.join(", ")
        ));
    }
    Ok(())
}

async fn show_metrics(view: &RunView, global: &Global) -> Result<()> {
    let mut book = metrics::RunMetrics::default();
    book.absorb(view, view.commits().await?).await?;
    let mut written = Vec::new();
    if let Some(dir) = run::metrics_dir(&view.store, &view.plan) {
        written = book.write(&dir, &view.plan.config.trainer)?;
        written.extend(evaluation::write_items(view, &dir).await?);
    }
    if global.json {
        text::emit_json(&ReportDocument {
            report: report_document(&book, &view.plan),
            end: None,
        });
        return Ok(());
    }
    let mut out = metrics::summary::report(&book, &view.plan);
    if out.is_empty() {
        out = format!("run {} has measured nothing yet\n", view.plan.run);
    }
    out += &metrics::played::before_and_after(view, &book).await;
    out += &text::written(&written);
    text::emit(&out);
    Ok(())
}

/// The store of a command that reads: commits of one far away are kept here.
async fn store(global: &Global) -> Result<Store> {
    let store = bare_store(global).await?;
    Ok(store.keeping_commits(&runs::cache_dir().join("commits")))
}

/// The store itself, for a command that has to see every byte of it.
async fn bare_store(global: &Global) -> Result<Store> {
    existing_store(global.store.as_deref().unwrap_or(DEFAULT_STORE)).await
}

async fn view(run: &str, global: &Global) -> Result<RunView> {
    let view = RunView::open(&store(global).await?, run).await?;
    Ok(view.with_queue(global.queue.clone()))
}
