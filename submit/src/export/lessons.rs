//! The training data of supervised steps: the numbered examples and, for every step, its learning
//! rate and its examples in order. These follow from the plan and the artifacts of `init`; the
//! stages' own functions recompute them.

use super::folder::{Exported, INPUT, inputs, policy, unsaid, write};
use super::origin::{FRESH, Origin};
use super::wanted::Wanted;
use crate::runs::{RunView, cache_dir};
use crate::{Error, Result};
use agentgym_jobs::pipeline::{BASE_PART, PartId, Stage, policy_of, reference_of};
use agentgym_model::{Device, Policy};
use agentgym_storage::{Inputs, Manifest};
use agentgym_worker::stages::export::{Lessons, dpo_lessons, sft_lessons};
use serde_json::json;
use std::path::Path;

/// The training phases of iteration 0, each with the policy it starts from.
pub(super) async fn warm_start(
    view: &RunView,
    (to, wanted): (&Path, Wanted),
    origin: &mut Origin,
    out: &mut Exported,
) -> Result<()> {
    let plan = &view.plan;
    if !plan.warms_up() {
        return Ok(());
    }
    let mut before = view.committed(BASE_PART).await?;
    policy(view, &before, (to, "before", wanted), out).await?;
    let sft_parts = plan.sft_parts(0);
    if sft_parts > 0 {
        sft(view, 0, None, to, out).await?;
    }
    if plan.dpo_parts() > 0 {
        if sft_parts > 0 {
            let last = PartId {
                stage: Stage::Sft,
                part: sft_parts - 1,
                ..BASE_PART
            };
            before = view.committed(last).await?;
            policy(view, &before, (to, "between", wanted), out).await?;
        }
        let init = vec![("init".to_owned(), view.committed(BASE_PART).await?)];
        let init = Inputs::new(view.store.clone(), init, cache_dir());
        let reads = tokens(view, &view.committed(reference_of(plan)).await?).await?;
        lessons("dpo", dpo_lessons(plan, &init, &reads).await, to, out)?;
    }
    origin.optimizer_before = Some(FRESH.to_owned());
    Ok(())
}

/// The supervised steps of an iteration; `kept` is the filter commit of an AgentEvol iteration.
pub(super) async fn sft(
    view: &RunView,
    n: u32,
    kept: Option<Manifest>,
    to: &Path,
    out: &mut Exported,
) -> Result<()> {
    let base = view.committed(BASE_PART).await?;
    // The base's own weights stay where an adapter needs them.
    let whole = match view.plan.has_adapter() {
        true => BASE_PART,
        false => policy_of(&view.plan, 0),
    };
    let reads = tokens(view, &view.committed(whole).await?).await?;
    let mut commits = vec![("init".to_owned(), base)];
    commits.extend(kept.map(|kept| ("kept".to_owned(), kept)));
    let inputs = Inputs::new(view.store.clone(), commits, cache_dir());
    lessons(
        "sft",
        sft_lessons(&view.plan, n, &inputs, &reads).await,
        to,
        out,
    )
}

/// The policy whose tokenizer and chat template encode the examples.
async fn tokens(view: &RunView, manifest: &Manifest) -> Result<Policy> {
    let folder = inputs(view, manifest).folder(INPUT, "policy").await?;
    Policy::load(folder.path(), &Device::cpu())
        .map_err(|e| Error::Usage(format!("reading the policy of {}: {e}", manifest.slot())))
}

/// Writes the training data. A solver may need data that is not on this machine; then this file is
/// left out and the rest is exported.
fn lessons(
    name: &str,
    found: Result<Lessons, agentgym_worker::Error>,
    to: &Path,
    out: &mut Exported,
) -> Result<()> {
    let found = match found {
        Ok(found) => found,
        Err(agentgym_worker::Error::Stage(why)) => {
            out.unwritten.push(format!("{name}_update.json: {why}"));
            return Ok(());
        }
        Err(other) => return Err(unsaid(other)),
    };
    let lines = found.examples.iter().enumerate().map(|(number, example)| {
        let mut line = example.clone();
        line["example"] = json!(number);
        format!("{line}\n")
    });
    let text: String = lines.collect();
    write(to, &format!("{name}_examples.jsonl"), text.as_bytes(), out)?;
    let steps = format!("{:#}\n", json!(found));
    write(to, &format!("{name}_update.json"), steps.as_bytes(), out)?;
    out.examples += found.examples.len();
    Ok(())
}
