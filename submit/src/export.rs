//! `export RUN --iteration N --to DIR`: one iteration as plain files that
//! PyTorch and `transformers` read, enough to recompute its update:
//!
//! ```text
//! policy_before/     the folder the update started from
//! optimizer_before/  AdamW state; absent where the update started fresh
//! policy_after/      the folder it wrote
//! trajectories.jsonl one sequence of the batch per line, by slot
//! update.json        minibatches in order: slots, hyper-parameters, metrics
//! critic_…           the same three folders and record of a critic, where there is one
//! lineage.json       of an AgentEvol run instead: where each kept trajectory was played
//! export.json        where all this comes from
//! ```
//!
//! Where an adapter is trained, `adapter_before/` and `adapter_after/` hold it in
//! PEFT's layout, the optimizer's state is the adapter's, and the policies are
//! the base with the adapter merged, left out with `--adapter`.

use crate::records::{Slot, batch_json, input, slots};
use crate::runs::{RunView, cache_dir};
use crate::{Error, Result};
use agentgym_jobs::config::Pipeline;
use agentgym_jobs::pipeline::{BASE_PART, PartId, Stage, critic_of, policy_of};
use agentgym_model::{Adapter, Device, Policy};
use agentgym_storage::{Inputs, LocalFolder, Manifest};
use serde_json::{Value, json};
use std::path::Path;

/// What was written.
#[derive(Debug, Default)]
pub struct Exported {
    /// Names below the folder, sorted.
    pub names: Vec<String>,
    /// Folders that retention has removed since.
    pub removed: Vec<String>,
    /// Sequences of the batch.
    pub trajectories: usize,
}

/// Writes iteration `n` as the folder `to`, all of it or nothing; of a run that
/// trains an adapter the policies only if not `adapter_alone`.
///
/// # Errors
/// An iteration without an update yet, a damaged artifact, a folder that is
/// not empty, an adapter alone where there is none.
pub async fn export(view: &RunView, n: u32, to: &Path, adapter_alone: bool) -> Result<Exported> {
    view.iteration_parts(n)?;
    if adapter_alone && !view.plan.has_adapter() {
        return Err(Error::Usage(format!(
            "run {} trains no adapter (actor_rollout_ref.model.lora_rank is 0); leave --adapter out",
            view.plan.run
        )));
    }
    let after = view.committed(policy_of(&view.plan, n)).await?;
    check_free(to)?;
    let parent = match to.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    std::fs::create_dir_all(parent).map_err(Error::local(parent))?;
    let partial = tempfile::Builder::new()
        .prefix(".export-")
        .tempdir_in(parent)
        .map_err(Error::local(parent))?;
    let mut out = Exported::default();
    write_all(view, (n, adapter_alone), &after, partial.path(), &mut out).await?;
    let partial = partial.keep();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&partial, mode).map_err(Error::local(&partial))?;
    }
    std::fs::rename(&partial, to).map_err(Error::local(to))?;
    out.names.sort();
    Ok(out)
}

async fn write_all(
    view: &RunView,
    (n, adapter_alone): (u32, bool),
    after: &Manifest,
    to: &Path,
    out: &mut Exported,
) -> Result<()> {
    let mut origin = json!({
        "run": view.plan.run.to_string(),
        "identity": view.plan.identity,
        "iteration": n,
        "seed": view.plan.config.run.seed,
        "temperature": view.plan.config.actor_rollout_ref.rollout.temperature,
        "actor": view.plan.config.actor_rollout_ref.actor,
        "algorithm": view.plan.config.algorithm,
    });
    if view.plan.has_adapter() {
        origin["model"] = json!(view.plan.config.actor_rollout_ref.model);
    }
    policy(view, after, (to, "after", adapter_alone), out).await?;
    // What a fork begins with is the end of an iteration of its parent's.
    let own = view.plan.forked_at().map_or(n > 0, |last| n > last);
    if own && view.plan.config.run.pipeline == Pipeline::AgentEvol {
        let filter = PartId {
            iteration: n,
            stage: Stage::Filter,
            part: 0,
        };
        let lineage = view
            .bytes(&view.committed(filter).await?, "lineage.json")
            .await?;
        write(to, "lineage.json", &lineage, out)?;
    } else if own {
        let before = view.committed(policy_of(&view.plan, n - 1)).await?;
        policy(view, &before, (to, "before", adapter_alone), out).await?;
        // Only an update's optimizer carries on; a warm start's does not.
        let carries_on = before.stage == Stage::Update.name();
        if carries_on {
            let dir = to.join("optimizer_before");
            folder(view, &before, "optimizer", &dir, out).await?;
        }
        origin["optimizer_before"] = json!(if carries_on { "carried on" } else { "fresh" });
        let batch = PartId {
            iteration: n,
            stage: Stage::Advantage,
            part: 0,
        };
        let batch = view.committed(batch).await?;
        let lines = trajectories(&slots(view, &batch).await?);
        out.trajectories = lines.len();
        let config = &view.plan.config;
        let samples = config.actor_rollout_ref.rollout.n as usize;
        origin["slots"] = json!(config.data.train_batch_size * samples);
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        write(to, "trajectories.jsonl", text.as_bytes(), out)?;
        let update = view.bytes(after, "update.json").await?;
        write(to, "update.json", &update, out)?;
        if let Some(id) = critic_of(&view.plan, n) {
            origin["critic"] = json!(view.plan.config.critic);
            critic(view, &view.committed(id).await?, to, out).await?;
        }
    }
    origin["removed"] = json!(out.removed);
    write(to, "export.json", format!("{origin:#}\n").as_bytes(), out)
}

/// The policy of a commit, and its adapter where one is trained.
async fn policy(
    view: &RunView,
    manifest: &Manifest,
    (to, when, adapter_alone): (&Path, &str, bool),
    out: &mut Exported,
) -> Result<()> {
    let (policy, adapter) = (format!("policy_{when}"), format!("adapter_{when}"));
    if !view.plan.has_adapter() {
        return folder(view, manifest, "policy", &to.join(policy), out).await;
    }
    folder(view, manifest, "adapter", &to.join(&adapter), out).await?;
    if adapter_alone {
        return Ok(());
    }
    if out.removed.contains(&adapter) {
        out.removed.push(policy);
        return Ok(());
    }
    let base = view.committed(BASE_PART).await?;
    let base: LocalFolder = inputs(view, &base).folder(INPUT, "policy").await?;
    let merge = || {
        let base = Policy::load(base.path(), &Device::cpu())?;
        let adapter = Adapter::load(&to.join(&adapter), base.config())?;
        base.with_adapter(adapter)?.save(&to.join(&policy))
    };
    merge().map_err(|e| Error::Usage(format!("merging {adapter}: {e}")))?;
    out.names.push(format!("{policy}/"));
    Ok(())
}

/// The critic's side of an iteration.
async fn critic(view: &RunView, after: &Manifest, to: &Path, out: &mut Exported) -> Result<()> {
    let before = input(view, after, "critic").await?;
    folder(view, after, "critic", &to.join("critic_after"), out).await?;
    folder(view, &before, "critic", &to.join("critic_before"), out).await?;
    if before.stage == Stage::CriticUpdate.name() {
        let dir = to.join("critic_optimizer_before");
        folder(view, &before, "optimizer", &dir, out).await?;
    }
    let record = view.bytes(after, "critic_update.json").await?;
    write(to, "critic_update.json", &record, out)
}

/// One line per sequence: the fields of the episode, then the streams.
fn trajectories(slots: &[Slot]) -> Vec<Value> {
    let mut lines = Vec::new();
    let mut number = 0;
    for slot in slots {
        let Value::Object(mut record) = batch_json(slot, &mut number) else {
            continue;
        };
        let sequences = record.remove("sequences");
        for (index, sequence) in sequences
            .as_ref()
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .enumerate()
        {
            let mut line = record.clone();
            line.insert("sequence".into(), json!(index));
            for (name, stream) in sequence.as_object().into_iter().flatten() {
                line.insert(name.clone(), stream.clone());
            }
            lines.push(Value::Object(line));
        }
    }
    lines
}

fn check_free(to: &Path) -> Result<()> {
    let taken = match std::fs::read_dir(to) {
        Ok(mut inside) => inside.next().is_some(),
        Err(e) => e.kind() != std::io::ErrorKind::NotFound,
    };
    if taken {
        return Err(Error::Usage(format!(
            "{} is not an empty folder; give --to a new one",
            to.display()
        )));
    }
    Ok(())
}

fn write(to: &Path, name: &str, bytes: &[u8], out: &mut Exported) -> Result<()> {
    let path = to.join(name);
    std::fs::write(&path, bytes).map_err(Error::local(&path))?;
    out.names.push(name.to_owned());
    Ok(())
}

/// Name of the one commit that [`inputs`] reads.
const INPUT: &str = "commit";

fn inputs(view: &RunView, manifest: &Manifest) -> Inputs {
    let commit = vec![(INPUT.to_owned(), manifest.clone())];
    Inputs::new(view.store.clone(), commit, cache_dir())
}

/// Copies a verified artifact folder, or notes that it is gone.
async fn folder(
    view: &RunView,
    manifest: &Manifest,
    prefix: &str,
    to: &Path,
    out: &mut Exported,
) -> Result<()> {
    let name = to.file_name().unwrap_or_default().to_string_lossy();
    match inputs(view, manifest).folder(INPUT, prefix).await {
        Ok(local) => {
            copy_files(local.path(), to)?;
            out.names.push(format!("{name}/"));
            Ok(())
        }
        // What is left is worth having: records are kept for good.
        Err(agentgym_storage::Error::Removed { .. }) => {
            out.removed.push(name.into_owned());
            Ok(())
        }
        Err(e) => Err(e.into()),
    }
}

fn copy_files(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to).map_err(Error::local(to))?;
    for entry in std::fs::read_dir(from).map_err(Error::local(from))? {
        let entry = entry.map_err(Error::local(from))?;
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_files(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), &target).map_err(Error::local(&target))?;
        }
    }
    Ok(())
}
