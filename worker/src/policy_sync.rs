//! The sidecar of an inference server: it fetches the policy that the run's next rollouts need into a
//! folder, has the server load it, and looks whether the server then serves it.
//!
//! Policies stand in `policies/` below the folder, complete or not at all, and `current` is a link to
//! the one to serve. The server is made to load it by its own route, or by a command, which is given on
//! the command line and never read from a store. A reload that fails, or after which the server serves
//! something else, is told in the log and in `status.json` and tried again; rollouts wait meanwhile,
//! since a worker asks the server itself.

use crate::blocking::blocking;
use crate::inference::client::Client;
use crate::inference::http::Failure;
use crate::inference::{InferenceServer, Served};
use crate::policies::{BASE, POLICY, Policies};
use crate::probe::Probe;
use crate::run_state::RunState;
use crate::{Beat, Error, Result};
use agentgym_jobs::artifact_names::PROBE;
use agentgym_jobs::config::RolloutServer;
use agentgym_jobs::pipeline::{Part, Stage};
use agentgym_model::{Device, PolicyText};
use agentgym_storage::{Inputs, RunId, Store, Verdict};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

/// How often the store is asked for a newer policy.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// After a failure; doubles.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(60);
/// Policies that stay in the folder.
const KEPT: usize = 2;

/// What a sidecar does.
#[derive(Debug, Clone)]
pub struct SyncOptions {
    /// Where the run is.
    pub store: Store,
    /// The run.
    pub run: RunId,
    /// Where policies are put.
    pub folder: PathBuf,
    /// The server, where the plan's address is not the one to use here.
    pub url: Option<String>,
    /// Makes the server load the policy, in place of its route.
    pub command: Option<String>,
    /// How long the server may take to serve a policy that it was told to load.
    pub patience: Duration,
    /// End after the first policy.
    pub once: bool,
}

/// Keeps the server at the policy that the run's rollouts need, until the run is over.
///
/// # Errors
/// The run has no server, or with `once` whatever went wrong; [`Error::Cancelled`] at a drain.
pub async fn sync_policies(options: &SyncOptions, drain: &CancellationToken) -> Result<()> {
    let mut state = RunState::open(&options.store, &options.run).await?;
    let (mut served, mut pause) = (None, RETRY_FIRST);
    loop {
        let step = async {
            state.refresh_plan().await?;
            let frontier = state.refresh().await?;
            let mut rollouts = frontier.of_stage(Stage::Rollout);
            let Some(part) = rollouts.next().cloned() else {
                return Ok(state.progress.finished(&state.plan));
            };
            let wanted = policy_id(&part);
            if served.as_ref() == Some(&wanted) {
                return Ok(false);
            }
            serve(options, &mut state, &part, drain).await?;
            served = Some(wanted);
            Ok::<bool, Error>(options.once)
        };
        let wait = match step.await {
            Ok(true) => return Ok(()),
            Ok(false) => {
                pause = RETRY_FIRST;
                LOOK_EVERY
            }
            Err(Error::Cancelled) => return Err(Error::Cancelled),
            Err(error) if options.once => return Err(error),
            Err(error) if error.verdict() == Verdict::GiveUp => return Err(error),
            Err(error) => {
                tracing::error!("{error}; trying again in {} s", pause.as_secs());
                let wait = pause;
                pause = RETRY_MAX.min(pause * 2);
                wait
            }
        };
        tokio::select! {
            () = drain.cancelled() => return Err(Error::Cancelled),
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// The part that made the policy of a rollout part, as a name.
fn policy_id(part: &Part) -> String {
    let made = part.inputs.iter().find(|input| input.name == POLICY);
    made.map(|input| input.from.to_string()).unwrap_or_default()
}

/// Fetches the policy of a rollout part and has the server load it.
async fn serve(
    options: &SyncOptions,
    state: &mut RunState,
    part: &Part,
    drain: &CancellationToken,
) -> Result<()> {
    let plan = std::sync::Arc::clone(&state.plan);
    let config = match &plan.config.actor_rollout_ref.rollout.server {
        config if plan.generates_by_server() => RolloutServer {
            url: options.url.clone().or_else(|| config.url.clone()),
            patience_s: options.patience.as_secs_f64(),
            ..config.clone()
        },
        _ => {
            return Err(Error::stage(format!(
                "run {} generates with its own engine (actor_rollout_ref.rollout.engine); it has no server to \
                 keep at its policy",
                options.run
            )));
        }
    };
    let mut commits = Vec::new();
    for input in &part.inputs {
        if let Some(manifest) = state.manifest(input.from).await? {
            commits.push((input.name.clone(), (*manifest).clone()));
        }
    }
    let cache = options.folder.join("downloads");
    let inputs = Inputs::new(options.store.clone(), commits, &cache);
    let id = policy_id(part);
    tell(options, &id, "fetching", "");
    let folder = fetched(options, &inputs, &id, plan.has_adapter()).await?;
    remove(&cache);
    link(&options.folder, &folder)?;
    tell(options, &id, "loading", "");
    let loaded = async {
        load(options, &config, &folder, &id).await?;
        let probe = match inputs.artifacts(POLICY)?.iter().any(|a| a.name == PROBE) {
            true => Probe::read_from(&inputs.bytes(POLICY, PROBE).await?)?,
            // The first policy of a fork of a run that had no server: the worker looks itself.
            false => return Ok(()),
        };
        let (text, own) = (folder.clone(), part.id);
        let text = blocking(move || Ok(PolicyText::load(&text)?)).await?;
        let served = Served {
            config: &config,
            probe,
            policy: format!("the policy of {id}"),
            text: &text,
            distance_max: plan.config.guard.mismatch_max.unwrap_or(f64::MAX),
            context_tokens: 0,
        };
        let beat = Beat::new(own, broadcast::channel(1).0);
        InferenceServer::open(served, beat, drain.clone())
            .await
            .map(|_| ())
    };
    match loaded.await {
        Ok(()) => {
            tell(options, &id, "served", "");
            tidy(&options.folder, &folder);
            Ok(())
        }
        Err(Error::Cancelled) => Err(Error::Cancelled),
        Err(error) => {
            tell(options, &id, "failed", &error.to_string());
            Err(Error::Server(format!(
                "loading the policy of {id} failed, and the server may serve any policy or none: {error}"
            )))
        }
    }
}

/// The folder of a policy below `policies/`, complete.
async fn fetched(
    options: &SyncOptions,
    inputs: &Inputs,
    id: &str,
    has_adapter: bool,
) -> Result<PathBuf> {
    let all = options.folder.join("policies");
    let name = id.replace('/', "-");
    let (folder, partial) = (all.join(&name), all.join(format!("{name}.partial")));
    if folder.exists() {
        return Ok(folder);
    }
    remove(&partial);
    std::fs::create_dir_all(&partial).map_err(io("cannot make the folder", &partial))?;
    if has_adapter {
        let base = match inputs.names().any(|name| name == BASE) {
            true => BASE,
            false => POLICY,
        };
        let policies = Policies::default();
        let merged = policies
            .adapted(&Device::cpu(), inputs, (base, POLICY))
            .await?;
        let partial = partial.clone();
        blocking(move || Ok(merged.save(&partial)?)).await?;
    } else {
        let from = inputs.folder(POLICY, POLICY).await?;
        let entries = std::fs::read_dir(from.path()).map_err(io("cannot read", from.path()))?;
        for entry in entries {
            let entry = entry.map_err(io("cannot read", from.path()))?;
            let to = partial.join(entry.file_name());
            std::fs::copy(entry.path(), &to).map_err(io("cannot write", &to))?;
        }
    }
    std::fs::rename(&partial, &folder).map_err(io("cannot rename", &partial))?;
    Ok(folder)
}

/// Makes `current` a link to the folder, in one step.
fn link(folder: &Path, to: &Path) -> Result<()> {
    let (link, next) = (folder.join("current"), folder.join("current.next"));
    let _ = std::fs::remove_file(&next);
    let target = to.strip_prefix(folder).unwrap_or(to);
    std::os::unix::fs::symlink(target, &next).map_err(io("cannot link", &next))?;
    std::fs::rename(&next, &link).map_err(io("cannot link", &link))
}

/// Has the server load the policy.
async fn load(
    options: &SyncOptions,
    config: &RolloutServer,
    folder: &Path,
    id: &str,
) -> Result<()> {
    let Some(command) = &options.command else {
        let client = Client::new(config)?;
        let path = folder.canonicalize().map_err(io("cannot find", folder))?;
        let reloaded = client.reload(&path.to_string_lossy()).await;
        return match reloaded {
            Ok(true) => Ok(()),
            Ok(false) => Err(Error::stage(format!(
                "{} has no route that loads a policy; give a command that starts it anew (--command)",
                client.name()
            ))),
            Err(Failure::Passing(why, _) | Failure::Lasting(why)) => {
                Err(Error::Server(format!("{}: {why}", client.name())))
            }
        };
    };
    let mut child = tokio::process::Command::new("sh")
        .args(["-c", command])
        .env("AGENTGYM_POLICY_FOLDER", options.folder.join("current"))
        .env("AGENTGYM_POLICY", id)
        .stdin(std::process::Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(io("cannot start sh for", Path::new("--command")))?;
    let ended = tokio::time::timeout(options.patience, child.wait()).await;
    match ended {
        Ok(Ok(status)) if status.success() => Ok(()),
        Ok(Ok(status)) => Err(Error::Server(format!("the command ended with {status}"))),
        Ok(Err(error)) => Err(Error::Server(format!("the command: {error}"))),
        Err(_) => Err(Error::Server(format!(
            "the command has not ended after {} s (--patience-s)",
            options.patience.as_secs()
        ))),
    }
}

/// Writes what is going on where people look for it; that it could not be written changes nothing.
fn tell(options: &SyncOptions, policy: &str, state: &str, message: &str) {
    tracing::info!(policy, "{state}");
    let status = json!({"run": options.run.to_string(), "policy": policy, "state": state, "message": message});
    let next = options.folder.join("status.json.next");
    let written = std::fs::create_dir_all(&options.folder)
        .and_then(|()| std::fs::write(&next, format!("{status:#}\n")))
        .and_then(|()| std::fs::rename(&next, options.folder.join("status.json")));
    if let Err(error) = written {
        tracing::warn!("{} cannot be written: {error}", next.display());
    }
}

/// Removes all but the newest policies. The one that is served stays.
fn tidy(folder: &Path, served: &Path) {
    let Ok(entries) = std::fs::read_dir(folder.join("policies")) else {
        return;
    };
    let mut others: Vec<(std::time::SystemTime, PathBuf)> = entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let made = entry.metadata().ok()?.modified().ok()?;
            Some((made, entry.path()))
        })
        .filter(|(_, path)| path != served)
        .collect();
    others.sort();
    let superfluous = others.len().saturating_sub(KEPT - 1);
    for (_, path) in &others[..superfluous] {
        remove(path);
    }
}

fn remove(folder: &Path) {
    match std::fs::remove_dir_all(folder) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => tracing::warn!("{} stays behind: {error}", folder.display()),
    }
}

fn io(what: &str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let what = format!("{what} {}", path.display());
    move |source| Error::Io { what, source }
}
