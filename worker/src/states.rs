//! Optimizer states. The commit of an update names the digests of the state that it leaves. The
//! bytes follow while others go on ([`crate::Deliveries`]), or stay away (`trainer.state_freq`). Whoever
//! needs a state finds it in this machine's cache or in the store, or makes it again ([`open`]) from
//! the last one that is there: a part is a function of its inputs, and the digest tells whether the
//! result is the same.

use crate::behind::{Behind, write_into_cache};
use crate::bench::{AttemptContext, Making};
use crate::context::{Beat, StageContext};
use crate::policies::{CRITIC, OPTIMIZER, POLICY};
use crate::run_state::RunState;
use crate::scratch::Scratch;
use crate::{Error, Result};
use agentgym_jobs::pipeline::{Part, PartId, Stage};
use agentgym_jobs::plan::Plan;
use agentgym_storage::{
    Artifact, AttemptId, Error as StorageError, Inputs, LocalFolder, Manifest, Outputs, Store,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Whether a state is written into the store after its commit.
pub(crate) fn is_stored_after(plan: &Plan, id: PartId) -> bool {
    let every = plan.config.trainer.state_freq;
    let by_iterations = matches!(id.stage, Stage::Update | Stage::CriticUpdate);
    !by_iterations || id.iteration.is_multiple_of(every) || id.iteration == plan.iterations
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
        let files: Vec<&Artifact> = manifest.written_later().collect();
        if !store.holds(&files).await? {
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

/// Why a part should be left to others for now, if it should: its state is not at hand, and another
/// worker may hold it or is of the class that can make it again.
pub(crate) async fn why_leave(
    bench: &AttemptContext<'_>,
    state: &mut RunState,
    part: &Part,
) -> Result<Option<Leave>> {
    let Some(input) = part.state_input() else {
        return Ok(None);
    };
    let Some(manifest) = state.manifest(input.from).await? else {
        return Ok(None);
    };
    if is_at_hand(bench, bench.store, &manifest).await? {
        return Ok(None);
    }
    let maker = manifest.work.as_ref().map_or("", |work| &work.worker);
    if let Some(why) = of_another_class(bench, input.from, &manifest) {
        return Ok(Some(Leave::ToOthers(why)));
    }
    let may_hold = maker != bench.worker && !agentgym_queue::is_gone(maker);
    let leaves = may_hold && bench.resources.deliveries.leaves(state.slot(part.id));
    Ok(leaves.then_some(Leave::ForNow))
}

/// Why this worker cannot make a state again, if it computes in another numeric class.
fn of_another_class(bench: &AttemptContext<'_>, id: PartId, manifest: &Manifest) -> Option<String> {
    let (class, own) = (
        &manifest.numeric_class,
        bench.resources.device.numeric_class(),
    );
    (class != own).then(|| {
        format!(
            "the optimizer state of {id} is not stored, and only a worker of numeric class {class} makes it again; this one has {own}"
        )
    })
}

/// How a part is left to others.
pub(crate) enum Leave {
    /// Until the holder of its state had time to take it.
    ForNow,
    /// This worker cannot make it, for this reason.
    ToOthers(String),
}

/// Whether a state is in memory, in this machine's cache or in the store.
async fn is_at_hand(
    bench: &AttemptContext<'_>,
    store: &Store,
    manifest: &Manifest,
) -> Result<bool> {
    if bench.resources.states.holds(&manifest.outputs) {
        return Ok(true);
    }
    let files: Vec<&Artifact> = manifest.written_later().collect();
    let is_cached = Inputs::is_cached(&bench.folders.models, OPTIMIZER, &files);
    Ok(files.is_empty() || is_cached || store.holds(&files).await?)
}

/// Opens the state that a part goes on with for its stage function, and makes it again if it is not
/// there; returns how many parts were made again. `store` waits where results are in hand.
pub(crate) async fn open(
    bench: &AttemptContext<'_>,
    state: &mut RunState,
    context: &StageContext,
    store: &Store,
) -> Result<u32> {
    match (open_at_hand(context).await, context.part.state_input()) {
        (Err(e), Some(input)) if is_not_there(&e) => {
            tracing::info!("makes the optimizer state of {} again: {e}", input.from);
            let made = make_again(bench, state, input.from, (store, &context.beat)).await?;
            open_at_hand(context).await?;
            Ok(made)
        }
        (opened, _) => Ok(opened.map(|()| 0)?),
    }
}

/// [`open`] for a state that need not be made again. One that was stored before its commit is left to the
/// stage function.
async fn open_at_hand(context: &StageContext) -> agentgym_storage::Result<()> {
    let inputs = &context.inputs;
    if let Some(input) = context.part.state_input()
        && let artifacts = inputs.artifacts(&input.name)?
        && artifacts.iter().any(|a| a.after_commit)
        && !context.resources.states.holds(artifacts)
    {
        let folder = inputs.folder(&input.name, OPTIMIZER).await?;
        inputs.keep_opened(&input.name, OPTIMIZER, folder);
    }
    Ok(())
}

/// After the commit of a part: writes the state that it left, into the store if `is_stored`, and removes
/// the one that it went on with from the cache. `kept` is the folder of a state that is not in memory.
pub(crate) async fn follow(
    bench: &AttemptContext<'_>,
    context: StageContext,
    manifest: &Manifest,
    (kept, is_stored): (Option<LocalFolder>, bool),
) {
    let deliveries = &bench.resources.deliveries;
    let model = model_of(context.part.id.stage);
    let behind = Behind {
        artifacts: manifest.written_later().cloned().collect(),
        slot: manifest.slot(),
        before: context.part.state_input().map(|input| input.name.clone()),
        inputs: context.inputs,
        store: is_stored.then(|| bench.store.clone()),
    };
    let Some(state) = context.left.map(Arc::new) else {
        return behind.settle(kept, deliveries).await;
    };
    let (of, states) = ((behind.slot.run.as_str(), model), &bench.resources.states);
    states.insert(of, &behind.artifacts, Arc::clone(&state));
    let (scratch, nonce) = (bench.folders.scratch.clone(), manifest.nonce.clone());
    deliveries.beside(behind.write(state, scratch, nonce, Arc::clone(deliveries)));
}

/// Moves the state that a stage left into the cache.
pub(crate) async fn adopt_left(
    context: &mut StageContext,
    outputs: &mut Outputs,
) -> Result<Option<LocalFolder>> {
    let Some(state) = context.left.take() else {
        return Ok(outputs.adopt_later(&context.inputs).await);
    };
    let later = outputs.artifacts().filter(|artifact| artifact.after_commit);
    let later: Vec<Artifact> = later.cloned().collect();
    let folder = context.scratch.join(OPTIMIZER);
    write_into_cache(Arc::new(state), &later, &context.inputs, folder).await
}

/// The input with the model that a stage trains.
fn model_of(stage: Stage) -> &'static str {
    match stage {
        Stage::CriticUpdate => CRITIC,
        _ => POLICY,
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
    (store, beat): (&Store, &Beat),
) -> Result<u32> {
    let mut missing = vec![part_of(state, last)?];
    while let Some(input) = missing[missing.len() - 1].state_input() {
        let from = input.from;
        match state.manifest(from).await? {
            Some(manifest) if !is_at_hand(bench, store, &manifest).await? => {}
            _ => break,
        }
        missing.push(part_of(state, from)?);
    }
    let parts = missing.len() as u32;
    for part in missing.into_iter().rev() {
        again(bench, state, part, (store, beat)).await?;
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
    (store, beat): (&Store, &Beat),
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
    if let Some(why) = of_another_class(bench, id, &manifest) {
        return Err(Error::stage(why));
    }
    let slot = state.slot(id);
    let attempt = AttemptId::new(1);
    let scratch = Scratch::new(
        &bench.folders.scratch,
        &format!("again-{}-{}", slot.stage, attempt.nonce),
    )?;
    let making = Making {
        part,
        inputs,
        slot: slot.clone(),
        attempt: attempt.clone(),
    };
    let mut context = bench.context(&state.plan, making, (store, beat, &scratch));
    // What a state that is not there was made from is itself in the cache by now.
    open_at_hand(&context).await?;
    let mut outputs = Outputs::of_nothing(store.clone(), slot, attempt);
    (bench.functions.run(id.stage, &mut context, &mut outputs)).await?;
    let made: BTreeMap<&str, _> = outputs.artifacts().map(|a| (&*a.name, a.digest)).collect();
    for file in manifest.written_later() {
        let found = made.get(&*file.name);
        if found != Some(&file.digest) {
            let found = found.map_or_else(|| "nothing".to_owned(), ToString::to_string);
            return Err(Error::stage(format!(
                "{id} made again left other bytes at {}: expected {}, found {found}; \
                 its machine or its program computes otherwise, though of one numeric class ({})",
                file.name, file.digest, manifest.numeric_class
            )));
        }
    }
    adopt_left(&mut context, &mut outputs).await?;
    Ok(())
}
