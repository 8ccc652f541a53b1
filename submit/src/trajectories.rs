//! `export RUN --trajectories FILE`: the episodes of a run as conversations, in the format that
//! `sft` and `dpo` runs (and AgentGym's own trainers) read.
//!
//! Episodes with an environment fault say nothing about the policy and are left out. The file is
//! written atomically and never overwrites an existing one.

use crate::records::episodes;
use crate::runs::RunView;
use crate::{Error, Result};
use agentgym_jobs::episode::Episode;
use agentgym_jobs::pipeline::{BASE_PART, PartId, Stage};
use agentgym_jobs::trajectory::Trajectory;
use serde::Serialize;
use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;

/// Stages that hold episodes; training stages first.
fn stages() -> Vec<Stage> {
    let all = Stage::ALL.into_iter();
    let mut all: Vec<_> = all.filter(|s| s.facts().records.are_episodes()).collect();
    all.sort_by_key(|s| (s.facts().evaluates, *s == Stage::EvaluateInit));
    all
}

/// Which episodes to export.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// Only those of this iteration.
    pub iteration: Option<u32>,
    /// Only those of this stage; default: the rollouts, or the evaluations if the run plays no
    /// training tasks.
    pub stage: Option<Stage>,
    /// Only those that are solved by the environment's rule.
    pub success: bool,
    /// Least reward.
    pub reward_min: Option<f64>,
}

/// Counts of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Written {
    /// Rows of the file.
    pub trajectories: usize,
    /// Not solved, or with too little reward.
    pub below_threshold: usize,
    /// With an environment fault.
    pub unusable: usize,
    /// Parts that were read.
    pub parts: usize,
}

/// The rows of an episode: the trajectory, or each sequence of an agent's, and where in the run it was played.
fn rows(run: &str, id: PartId, episode: &Episode, tokenizer: &str) -> Vec<Value> {
    let trajectories = match episode.agent() {
        Some(_) => Trajectory::of_agent(episode, tokenizer),
        None => vec![Trajectory::of(episode)],
    };
    let row = |trajectory| {
        let mut row = json!(trajectory);
        row["run"] = json!(run);
        row["iteration"] = json!(id.iteration);
        row["stage"] = json!(id.stage);
        row["part"] = json!(id.part);
        row["group"] = json!(episode.group);
        row["sample"] = json!(episode.sample);
        row
    };
    trajectories.iter().map(row).collect()
}

/// The digest of the `tokenizer.json` of a run's policies.
async fn tokenizer(view: &RunView) -> Result<String> {
    let base = view.committed(BASE_PART).await?;
    let own = base.outputs.iter();
    let mut own = own.filter(|artifact| artifact.name == "policy/tokenizer.json");
    let found = own.next().map(|artifact| artifact.digest.to_string());
    found.ok_or_else(|| Error::Missing(format!("{BASE_PART} has no policy/tokenizer.json")))
}

/// Writes the selected episodes as a JSON array, one row per line, in the order of iteration, part,
/// group and sample.
///
/// # Errors
/// A stage without episodes, nothing committed, no selected episodes, a damaged artifact, or a file
/// that exists or cannot be written.
pub async fn export(view: &RunView, wanted: &Wanted, to: &Path) -> Result<Written> {
    if to.exists() {
        return Err(Error::Usage(format!(
            "{} is there already; give --trajectories a new file",
            to.display()
        )));
    }
    let ids = parts(view, wanted).await?;
    let mut written = Written {
        trajectories: 0,
        below_threshold: 0,
        unusable: 0,
        parts: ids.len(),
    };
    let parent = match to.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    std::fs::create_dir_all(parent).map_err(Error::local(parent))?;
    let file = tempfile::Builder::new()
        .prefix(".trajectories-")
        .tempfile_in(parent)
        .map_err(Error::local(parent))?;
    let mut out = std::io::BufWriter::new(file);
    let (run, tokenizer) = (view.plan.run.as_str(), tokenizer(view).await?);
    for id in ids {
        let manifest = view.committed(id).await?;
        for episode in episodes(view, &manifest).await? {
            let enough = wanted
                .reward_min
                .is_none_or(|least| episode.reward >= least);
            match (
                episode.usable(),
                enough && (episode.success || !wanted.success),
            ) {
                (false, _) => written.unusable += 1,
                (true, false) => written.below_threshold += 1,
                (true, true) => {
                    for row in rows(run, id, &episode, &tokenizer) {
                        let head = if written.trajectories == 0 {
                            "[\n"
                        } else {
                            ",\n"
                        };
                        write!(out, "{head}{row}").map_err(Error::local(to))?;
                        written.trajectories += 1;
                    }
                }
            }
        }
    }
    if written.trajectories == 0 {
        return Err(Error::Missing(format!(
            "no episode of run {run} is to be written: of {} in {} parts {} are below the threshold and {} were spoiled by their environment",
            written.below_threshold + written.unusable,
            written.parts,
            written.below_threshold,
            written.unusable
        )));
    }
    writeln!(out, "\n]").map_err(Error::local(to))?;
    let file = out
        .into_inner()
        .map_err(|e| Error::local(to)(e.into_error()))?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::Permissions::from_mode(0o644);
        file.as_file()
            .set_permissions(mode)
            .map_err(Error::local(to))?;
    }
    file.persist_noclobber(to)
        .map_err(|e| Error::local(to)(e.error))?;
    Ok(written)
}

impl Written {
    /// The counts as text.
    pub fn to_text(self, to: &Path) -> String {
        format!(
            "{}: {} trajectories; left out: {} below the threshold, {} spoiled by their environment",
            to.display(),
            self.trajectories,
            self.below_threshold,
            self.unusable
        )
    }
}

/// The committed parts that hold the selected episodes.
async fn parts(view: &RunView, wanted: &Wanted) -> Result<Vec<PartId>> {
    if let Some(stage) = wanted.stage.filter(|s| !s.facts().records.are_episodes()) {
        let names: Vec<_> = stages().into_iter().map(Stage::name).collect();
        return Err(Error::Usage(format!(
            "stage {stage} holds no episodes; those that do are {}",
            names.join(", ")
        )));
    }
    if let Some(n) = wanted.iteration {
        view.iteration_parts(n)?;
    }
    let mut committed = view.commits().await?;
    committed.retain(|id| wanted.iteration.is_none_or(|n| n == id.iteration));
    let stage = wanted.stage.unwrap_or_else(|| {
        let plays = committed.iter().any(|id| id.stage == Stage::Rollout);
        if plays {
            Stage::Rollout
        } else {
            Stage::Evaluate
        }
    });
    committed.retain(|id| id.stage == stage);
    committed.sort_unstable();
    if committed.is_empty() {
        let of = wanted
            .iteration
            .map_or_else(String::new, |n| format!("iteration {n} of "));
        return Err(Error::Missing(format!(
            "{of}run {} has no committed part of stage {stage}; `agentgym-submit inspect {}` shows what there is",
            view.plan.run,
            view.arguments()
        )));
    }
    Ok(committed)
}
