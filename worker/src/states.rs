//! Optimizer states. The commit of an update names the digests of the state that it leaves. The
//! bytes follow while others go on ([`crate::Deliveries`]), or stay away (`trainer.state_freq`). Whoever
//! needs a state finds it in this machine's cache or in the store, or makes it again ([`open`]) from
//! the last one that is there: a part is a function of its inputs, and the digest tells whether the
//! result is the same.

use crate::bench::{AttemptContext, Making, Scratch, input_cache};
use crate::context::{Beat, StageContext};
use crate::policies::OPTIMIZER;
use crate::run_state::RunState;
use crate::{Error, Result};
use agentgym_jobs::pipeline::{Input, Part, PartId, Stage};
use agentgym_jobs::plan::Plan;
use agentgym_storage::{
    Artifact, AttemptId, Error as StorageError, Inputs, Manifest, Outputs, Store,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Whether a state is written into the store after its commit.
pub(crate) fn is_stored_after(plan: &Plan, id: PartId) -> bool {
    let every = plan.config.trainer.state_freq;
    let by_iterations = matches!(id.stage, Stage::Update | Stage::CriticUpdate);
    !by_iterations || id.iteration.is_multiple_of(every) || id.iteration == plan.iterations
}

/// The files of a state that was written after its commit, or not at all.
pub(crate) fn later_files(manifest: &Manifest) -> Vec<Artifact> {
    let later = manifest.outputs.iter().filter(|a| a.after_commit);
    later.cloned().collect()
}

/// What is stored of the states that one stage left.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Stored {
    /// The newest iteration whose state is there; 0 for none. The next one to need a state that is not
    /// there begins at this.
    pub(crate) newest: u32,
    /// One before it that is there too.
    pub(crate) older: Option<u32>,
}

/// Looks for the newest stored state of the parts `of` iterations up to `latest`.
pub(crate) async fn stored(
    store: &Store,
    state: &mut RunState,
    latest: u32,
    of: impl Fn(&Plan, u32) -> Option<PartId>,
) -> Result<Stored> {
    /// One is deleted as soon as a newer one is there.
    const OLDER_MAX: usize = 4;
    let plan = Arc::clone(&state.plan);
    let ids = (1..=latest).rev().filter_map(|n| of(&plan, n));
    let mut due = ids.filter(|id| is_stored_after(&plan, *id));
    let mut found = Stored::default();
    let mut looked = 0;
    while looked < OLDER_MAX
        && let Some(id) = due.next()
    {
        looked += usize::from(found.newest > 0);
        let Some(manifest) = state.manifest(id).await? else {
            continue;
        };
        if !store.holds(&later_files(&manifest)).await? {
            continue;
        }
        if found.newest > 0 {
            found.older = Some(id.iteration);
            break;
        }
        found.newest = id.iteration;
    }
    Ok(found)
}

/// The input whose optimizer state a part goes on with.
fn state_input(part: &Part) -> Option<&Input> {
    let mut inputs = part.inputs.iter();
    inputs.find(|input| input.from.stage == part.id.stage)
}

/// Why a part should be left to others for now, if it should: its state is not at hand, and another
/// worker may hold it or is of the class that can make it again.
pub(crate) async fn why_leave(
    bench: &AttemptContext<'_>,
    state: &mut RunState,
    part: &Part,
) -> Result<Option<Leave>> {
    let Some(input) = state_input(part) else {
        return Ok(None);
    };
    let Some(manifest) = state.manifest(input.from).await? else {
        return Ok(None);
    };
    if is_at_hand(bench, &manifest).await? {
        return Ok(None);
    }
    let maker = manifest.work.as_ref().map_or("", |work| &work.worker);
    let own_class = bench.resources.device.numeric_class();
    if manifest.numeric_class != own_class {
        let (from, class) = (input.from, &manifest.numeric_class);
        return Ok(Some(Leave::ToOthers(format!(
            "the optimizer state of {from} is not stored, and only a worker of numeric class {class} makes it again; this one has {own_class}"
        ))));
    }
    let may_hold = maker != bench.worker && !agentgym_queue::is_gone(maker);
    let leaves = may_hold && bench.resources.deliveries.leaves(state.slot(part.id));
    Ok(leaves.then_some(Leave::ForNow))
}

/// How a part is left to others.
pub(crate) enum Leave {
    /// Until the holder of its state had time to take it.
    ForNow,
    /// This worker cannot make it, for this reason.
    ToOthers(String),
}

/// Whether a state is in this machine's cache or in the store.
async fn is_at_hand(bench: &AttemptContext<'_>, manifest: &Manifest) -> Result<bool> {
    let files = later_files(manifest);
    let is_cached = Inputs::is_cached(&input_cache(bench.cache_dir), OPTIMIZER, &files);
    Ok(files.is_empty() || is_cached || bench.store.holds(&files).await?)
}

/// Opens the state that a part goes on with for its stage function, and makes it again if it is not
/// there; returns how many parts were made again.
pub(crate) async fn open(
    bench: &AttemptContext<'_>,
    state: &mut RunState,
    (part, inputs, beat): (&Part, &Inputs, &Beat),
) -> Result<u32> {
    let Some(input) = state_input(part) else {
        return Ok(0);
    };
    if !inputs
        .artifacts(&input.name)?
        .iter()
        .any(|a| a.after_commit)
    {
        return Ok(0);
    }
    let mut made = 0;
    let folder = match inputs.folder(&input.name, OPTIMIZER).await {
        Err(e) if is_not_there(&e) => {
            tracing::info!("makes the optimizer state of {} again: {e}", input.from);
            made = make_again(bench, state, input.from, beat).await?;
            inputs.folder(&input.name, OPTIMIZER).await?
        }
        folder => folder?,
    };
    inputs.keep_opened(&input.name, OPTIMIZER, folder);
    Ok(made)
}

/// Removes the state that a part went on with from the cache: what it made of it is committed.
pub(crate) async fn forget(context: &StageContext) {
    if let Some(input) = state_input(&context.part) {
        context.inputs.forget_later(&input.name, OPTIMIZER).await;
    }
}

fn is_not_there(e: &StorageError) -> bool {
    use StorageError::{Damaged, NotFound, NotStored, Removed};
    matches!(
        e,
        NotStored { .. } | NotFound { .. } | Removed { .. } | Damaged { .. }
    )
}

/// Makes a committed part again, and before it those that its state comes from, back to one that is
/// at hand.
async fn make_again(
    bench: &AttemptContext<'_>,
    state: &mut RunState,
    last: PartId,
    beat: &Beat,
) -> Result<u32> {
    let mut missing = vec![part_of(state, last)?];
    while let Some(input) = state_input(&missing[missing.len() - 1]) {
        let from = input.from;
        match state.manifest(from).await? {
            Some(manifest) if !is_at_hand(bench, &manifest).await? => {}
            _ => break,
        }
        missing.push(part_of(state, from)?);
    }
    let parts = missing.len() as u32;
    for part in missing.into_iter().rev() {
        again(bench, state, part, beat).await?;
    }
    Ok(parts)
}

fn part_of(state: &RunState, id: PartId) -> Result<Part> {
    let mut parts = state.parts(id.iteration).into_iter();
    let unknown = || Error::stage(format!("{id} is not of this plan"));
    parts.find(|part| part.id == id).ok_or_else(unknown)
}

/// Makes one part again; nothing of it is stored, and its state goes into the cache.
async fn again(
    bench: &AttemptContext<'_>,
    state: &mut RunState,
    part: Part,
    beat: &Beat,
) -> Result<()> {
    let id = part.id;
    let committed = |state: &RunState, id| {
        let key = state.slot(id);
        Error::stage(format!(
            "the commit of {key} is gone, from which a state is made again"
        ))
    };
    let mut inputs = Vec::new();
    for input in &part.inputs {
        let found = state.manifest(input.from).await?;
        let found = found.ok_or_else(|| committed(state, input.from))?;
        inputs.push((input.name.clone(), (*found).clone()));
    }
    let manifest = state
        .manifest(id)
        .await?
        .ok_or_else(|| committed(state, id))?;
    let own_class = bench.resources.device.numeric_class();
    if manifest.numeric_class != own_class {
        let class = &manifest.numeric_class;
        return Err(Error::stage(format!(
            "the optimizer state of {id} is made again by numeric class {class} alone, and this worker has {own_class}"
        )));
    }
    let slot = state.slot(id);
    let attempt = AttemptId::new(1);
    let scratch = Scratch::new(
        bench.cache_dir,
        &format!("again-{}-{}", slot.stage, attempt.nonce),
    )?;
    let making = Making {
        part,
        inputs,
        slot: slot.clone(),
        attempt: attempt.clone(),
    };
    let mut context = bench.context(&state.plan, making, (bench.store, beat, &scratch));
    // What a state that is not there was made from is itself in the cache by now.
    let state_of = state_input(&context.part).map(|input| input.name.clone());
    if let Some(name) = state_of
        && context
            .inputs
            .artifacts(&name)?
            .iter()
            .any(|a| a.after_commit)
    {
        let folder = context.inputs.folder(&name, OPTIMIZER).await?;
        context.inputs.keep_opened(&name, OPTIMIZER, folder);
    }
    let mut outputs = Outputs::of_nothing(bench.store.clone(), slot, attempt);
    (bench.functions.run(id.stage, &mut context, &mut outputs)).await?;
    let made: BTreeMap<&str, _> = outputs.artifacts().map(|a| (&*a.name, a.digest)).collect();
    for file in later_files(&manifest) {
        let found = made.get(&*file.name);
        if found != Some(&file.digest) {
            let found = found.map_or_else(|| "nothing".to_owned(), ToString::to_string);
            return Err(Error::stage(format!(
                "{id} made again left other bytes at {}: expected {}, found {found}; \
                 its machine or its program computes otherwise, though of one numeric class ({own_class})",
                file.name, file.digest
            )));
        }
    }
    outputs.adopt_later(&context.inputs).await;
    Ok(())
}
