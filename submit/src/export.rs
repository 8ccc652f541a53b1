//! `export RUN --iteration N --to DIR`: one iteration as plain files that PyTorch and
//! `transformers` can read, sufficient to recompute its advantages and updates:
//!
//! ```text
//! policy_before/     the folder the update started from
//! optimizer_before/  AdamW state; absent if the update started with a fresh optimizer
//! policy_after/      the folder it wrote
//! optimizer_after/   on request: the AdamW state beside it
//! episodes.jsonl     one rollout episode per line, including those not trained on
//! trajectories.jsonl one sequence of the batch per line, by slot
//! update.json        minibatches in order: slots, hyper-parameters, metrics
//! critic_…           the same three folders and record of a critic, if there is one
//! sft_…, dpo_…       of supervised steps instead: examples, and steps in order
//! lineage.json       of an AgentEvol run: where each kept trajectory was played
//! reference/         on request: the reference policy of the KL divergences
//! export.json        the origin of all files, and the settings
//! ```
//!
//! If an adapter is trained, `adapter_before/` and `adapter_after/` hold it in PEFT's layout, the
//! optimizer state is the adapter's, and the policies are the base with the adapter merged;
//! `--adapter` leaves the policies out.
//!
//! Weights are copied as they were committed, in f32, unless bf16 (`--dtype`, `trainer.save_dtype`) or
//! smaller files (`--shard-size`) are asked for; the adapter and the optimizer's state are always f32.

mod episodes;
pub(crate) mod folder;
mod lessons;
mod origin;
mod wanted;

use crate::records::{has, input, slots};
use crate::runs::RunView;
use crate::text::plain_zeros;
use crate::{Error, Result};
use agentgym_jobs::artifact_names;
use agentgym_jobs::config::Pipeline;
use agentgym_jobs::pipeline::{
    BASE_PART, PartId, Stage, batch_of, critic_of, policy_of, reference_of,
};
use agentgym_model::Dtype;
use agentgym_record::documents::KlState;
use agentgym_storage::Manifest;
use episodes::Played;
pub use folder::Exported;
use folder::{check_free, folder, model, policy, write};
use origin::{CARRIED, FRESH, GONE, OfBatch, Origin};
use serde_json::{Value, json};
use std::path::Path;
pub use wanted::Wanted;

/// Folder of the optimizer's state among a commit's artifacts.
const OPTIMIZER: &str = "optimizer";

/// Exports iteration `n` into the folder `to`: all of it or nothing.
///
/// # Errors
/// An iteration without a committed update, a damaged artifact, a folder that is not empty, or a
/// request for an adapter or a reference that the run does not have.
pub async fn export(view: &RunView, n: u32, to: &Path, wanted: Wanted) -> Result<Exported> {
    view.iteration_parts(n)?;
    if wanted.reference && !view.plan.needs_reference() {
        return Err(Error::Usage(format!(
            "run {} measures no divergence from a reference policy; leave --reference out",
            view.plan.run
        )));
    }
    if wanted.adapter_alone && !view.plan.has_adapter() {
        return Err(Error::Usage(format!(
            "run {} trains no adapter (actor_rollout_ref.model.lora_rank is 0); leave --adapter out",
            view.plan.run
        )));
    }
    let for_models = [
        (wanted.dtype == Some(Dtype::Bf16), "--dtype bf16"),
        (wanted.shard_bytes_max.is_some(), "--shard-size"),
    ];
    let useless = for_models.iter().find(|(is_set, _)| *is_set);
    if let Some((_, option)) = useless.filter(|_| !wanted.models()) {
        return Err(Error::Usage(format!(
            "{option} is for the weights of models, and --adapter alone writes none: an adapter is one file in \
             f32. Leave one of the two out"
        )));
    }
    let after = view.committed(policy_of(&view.plan, n)).await?;
    if wanted.optimizer && !keeps_optimizer(&after) {
        return Err(Error::Usage(format!(
            "iteration {n} of run {} was made by {}, which has no optimizer state; leave --optimizer out",
            view.plan.run, after.stage
        )));
    }
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
    write_all(view, (n, wanted), &after, partial.path(), &mut out).await?;
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
    (n, wanted): (u32, Wanted),
    after: &Manifest,
    to: &Path,
    out: &mut Exported,
) -> Result<()> {
    let plan = &view.plan;
    let config = &plan.config;
    let mut origin = Origin::new(plan, n, wanted);
    policy(view, after, (to, "after", wanted), out).await?;
    if wanted.optimizer {
        folder(view, after, OPTIMIZER, &to.join("optimizer_after"), out).await?;
    }
    if plan.needs_reference() {
        let reference = reference_of(plan);
        origin.reference = Some(reference.to_string());
        if wanted.reference {
            let commit = view.committed(reference).await?;
            let place = to.join("reference");
            model(view, &commit, "policy", (&place, wanted), out).await?;
        }
    }
    // The starting iteration of a fork was made by its parent.
    let own = plan.forked_at().is_none_or(|last| n > last);
    match config.run.pipeline {
        _ if !own => {}
        _ if n == 0 => {
            lessons::warm_start(view, (to, wanted), &mut origin, out).await?;
        }
        Pipeline::AgentEvol => {
            let filter = PartId {
                iteration: n,
                stage: Stage::Filter,
                part: 0,
            };
            let kept = view.committed(filter).await?;
            let lineage = view.bytes(&kept, artifact_names::LINEAGE).await?;
            write(to, artifact_names::LINEAGE, &lineage, out)?;
            let base = view.committed(BASE_PART).await?;
            policy(view, &base, (to, "before", wanted), out).await?;
            lessons::sft(view, n, Some(kept), to, out).await?;
            origin.optimizer_before = Some(FRESH.to_owned());
        }
        _ => update(view, (n, wanted), after, (to, &mut origin), out).await?,
    }
    (origin.removed, origin.unwritten) = (out.removed.clone(), out.unwritten.clone());
    let text = format!("{:#}\n", json!(origin));
    write(to, "export.json", text.as_bytes(), out)
}

/// An iteration of reinforcement learning.
async fn update(
    view: &RunView,
    (n, wanted): (u32, Wanted),
    after: &Manifest,
    (to, origin): (&Path, &mut Origin),
    out: &mut Exported,
) -> Result<()> {
    let before = view.committed(policy_of(&view.plan, n - 1)).await?;
    policy(view, &before, (to, "before", wanted), out).await?;
    let found = optimizer(view, &before, Stage::Update, "", to, out).await?;
    origin.optimizer_before = Some(found.to_owned());
    let batch = view.committed(batch_of(n)).await?;
    if has(&batch, artifact_names::KL) {
        origin.kl = Some(view.document::<KlState>(&batch).await?);
    }
    let slots = slots(view, &batch).await?;
    let played = Played::read(view, n, &slots).await?;
    write(to, "episodes.jsonl", jsonl(&played.lines).as_bytes(), out)?;
    let lines = played.trajectories(&slots);
    out.trajectories = lines.len();
    let config = &view.plan.config;
    let samples = config.actor_rollout_ref.rollout.n as usize;
    origin.batch = Some(OfBatch {
        selected_groups: played.selected,
        slots: config.data.train_batch_size * samples,
    });
    write(to, "trajectories.jsonl", jsonl(&lines).as_bytes(), out)?;
    record(view, after, artifact_names::UPDATE, to, out).await?;
    if let Some(id) = critic_of(&view.plan, n) {
        origin.critic = Some(view.plan.config.critic.clone());
        let after = view.committed(id).await?;
        let found = critic(view, &after, (to, wanted), out).await?;
        origin.critic_optimizer_before = Some(found.to_owned());
    }
    Ok(())
}

/// Exports the optimizer state with which an update of stage `made_by` started; returns a note on
/// its origin.
async fn optimizer(
    view: &RunView,
    before: &Manifest,
    made_by: Stage,
    model: &str,
    to: &Path,
    out: &mut Exported,
) -> Result<&'static str> {
    // The optimizer state is carried over only within a phase, and a fork may have dropped it.
    if before.stage != made_by.name() || !keeps_optimizer(before) {
        return Ok(FRESH);
    }
    let name = format!("{model}optimizer_before");
    folder(view, before, OPTIMIZER, &to.join(&name), out).await?;
    Ok(match out.removed.contains(&name) {
        true => GONE,
        false => CARRIED,
    })
}

/// Whether a commit has an optimizer's state, or had it before retention removed it.
fn keeps_optimizer(commit: &Manifest) -> bool {
    let mut outputs = commit.outputs.iter();
    outputs.any(|o| o.name.starts_with("optimizer/"))
}

/// Exports a stage's record of its steps.
async fn record(
    view: &RunView,
    manifest: &Manifest,
    name: &str,
    to: &Path,
    out: &mut Exported,
) -> Result<()> {
    let record = plain_zeros(view.json(manifest, name).await?);
    write(to, name, format!("{record:#}\n").as_bytes(), out)
}

fn jsonl(lines: &[Value]) -> String {
    lines.iter().map(|line| format!("{line}\n")).collect()
}

/// The critic's files of an iteration; returns a note on its optimizer state.
async fn critic(
    view: &RunView,
    after: &Manifest,
    (to, wanted): (&Path, Wanted),
    out: &mut Exported,
) -> Result<&'static str> {
    let before = input(view, after, "critic").await?;
    for (commit, name) in [(after, "critic_after"), (&before, "critic_before")] {
        model(view, commit, "critic", (&to.join(name), wanted), out).await?;
    }
    if wanted.optimizer && keeps_optimizer(after) {
        let place = to.join("critic_optimizer_after");
        folder(view, after, OPTIMIZER, &place, out).await?;
    }
    record(view, after, artifact_names::CRITIC_UPDATE, to, out).await?;
    optimizer(view, &before, Stage::CriticUpdate, "critic_", to, out).await
}
