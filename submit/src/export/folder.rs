//! The folder that an export writes: plain files, artifact folders as they were committed, and models
//! in the wanted format.

use super::wanted::Wanted;
use crate::runs::{RunView, cache_dir};
use crate::{Error, Result};
use agentgym_jobs::pipeline::BASE_PART;
use agentgym_model::{Adapter, Device, Policy};
use agentgym_storage::{Inputs, LocalFolder, Manifest};
use agentgym_worker::{MADE, Made};
use serde::Serialize;
use serde_json::json;
use std::path::Path;

/// Contents of an export.
#[derive(Debug, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Exported {
    /// Names below the folder, sorted.
    pub names: Vec<String>,
    /// Folders that retention has removed.
    pub removed: Vec<String>,
    /// Files that cannot be produced on this machine, and why.
    pub unwritten: Vec<String>,
    /// Number of sequences of the batch.
    pub trajectories: usize,
    /// Number of examples of supervised steps.
    pub examples: usize,
}

/// The error for a stage function that could not recompute its inputs.
pub(super) fn unsaid(error: agentgym_worker::Error) -> Error {
    match error {
        agentgym_worker::Error::Storage(error) => error.into(),
        agentgym_worker::Error::Jobs(error) => error.into(),
        other => Error::Usage(format!("what this iteration learnt from: {other}")),
    }
}

/// The policy of a commit, and its adapter if one is trained.
pub(super) async fn policy(
    view: &RunView,
    manifest: &Manifest,
    (to, when, wanted): (&Path, &str, Wanted),
    out: &mut Exported,
) -> Result<()> {
    let (policy, adapter) = (format!("policy_{when}"), format!("adapter_{when}"));
    let made = json!(Made {
        run: manifest.run.to_string(),
        iteration: manifest.iteration,
        stage: manifest.stage.to_string(),
        numeric_class: manifest.numeric_class.clone(),
        code_version: manifest.code_version.clone(),
    });
    let say_made = |policy: &Path| {
        let path = policy.join(MADE);
        std::fs::write(&path, format!("{made:#}\n")).map_err(Error::local(&path))
    };
    if !view.plan.has_adapter() {
        let place = to.join(&policy);
        model(view, manifest, "policy", (&place, wanted), out).await?;
        return match out.removed.contains(&policy) {
            true => Ok(()),
            false => say_made(&to.join(policy)),
        };
    }
    folder(view, manifest, "adapter", &to.join(&adapter), out).await?;
    if wanted.adapter_alone {
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
        let merged = base.with_adapter(adapter)?;
        let Some(layout) = wanted.layout(&view.plan) else {
            return merged.save(&to.join(&policy));
        };
        let exact = to.join(format!("{policy}_exact"));
        merged.save(&exact)?;
        layout.write(&exact, &to.join(&policy))?;
        // Left behind, it would only be in the way: the export's folder is new.
        let _ = std::fs::remove_dir_all(&exact);
        Ok(())
    };
    merge().map_err(|e| Error::Usage(format!("merging {adapter}: {e}")))?;
    say_made(&to.join(&policy))?;
    out.names.push(format!("{policy}/"));
    Ok(())
}

pub(crate) fn check_free(to: &Path) -> Result<()> {
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

pub(super) fn write(to: &Path, name: &str, bytes: &[u8], out: &mut Exported) -> Result<()> {
    let path = to.join(name);
    std::fs::write(&path, bytes).map_err(Error::local(&path))?;
    out.names.push(name.to_owned());
    Ok(())
}

/// Name of the one commit that [`inputs`] reads.
pub(super) const INPUT: &str = "commit";

pub(super) fn inputs(view: &RunView, manifest: &Manifest) -> Inputs {
    let commit = vec![(INPUT.to_owned(), manifest.clone())];
    Inputs::new(view.store.clone(), commit, cache_dir())
}

/// Copies a verified artifact folder, or notes that retention removed it.
pub(super) async fn folder(
    view: &RunView,
    manifest: &Manifest,
    prefix: &str,
    to: &Path,
    out: &mut Exported,
) -> Result<()> {
    if let Some(local) = fetched(view, manifest, prefix, to, out).await? {
        copy_files(local.path(), to)?;
    }
    Ok(())
}

/// [`folder`] for a model, in the wanted format.
pub(super) async fn model(
    view: &RunView,
    manifest: &Manifest,
    prefix: &str,
    (to, wanted): (&Path, Wanted),
    out: &mut Exported,
) -> Result<()> {
    let Some(local) = fetched(view, manifest, prefix, to, out).await? else {
        return Ok(());
    };
    match wanted.layout(&view.plan) {
        None => copy_files(local.path(), to),
        Some(layout) => layout
            .write(local.path(), to)
            .map_err(|e| Error::Usage(format!("writing {}: {e}", to.display()))),
    }
}

/// A verified artifact folder and its name in the list of what is written, or a note that retention
/// removed it.
async fn fetched(
    view: &RunView,
    manifest: &Manifest,
    prefix: &str,
    to: &Path,
    out: &mut Exported,
) -> Result<Option<LocalFolder>> {
    let name = to.file_name().unwrap_or_default().to_string_lossy();
    match inputs(view, manifest).folder(INPUT, prefix).await {
        Ok(local) => {
            out.names.push(format!("{name}/"));
            Ok(Some(local))
        }
        // Export the rest: records are never removed.
        Err(
            agentgym_storage::Error::Removed { .. } | agentgym_storage::Error::NotStored { .. },
        ) => {
            out.removed.push(name.into_owned());
            Ok(None)
        }
        Err(e) => Err(e.into()),
    }
}

pub(super) fn copy_files(from: &Path, to: &Path) -> Result<()> {
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
