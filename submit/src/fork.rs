//! `fork RUN --iteration N [KEY=VALUE]…`: a new run that continues from an iteration of another
//! run, with changed keys.
//!
//! The child takes over the commits that its first iterations read: policy, optimizer state,
//! critic, the KL controller's state, the reference ([`adopted`]). They name the parent's objects,
//! which a pin keeps from the parent's retention; nothing is copied. The random keys of an
//! iteration depend on its number and the seed, so a fork that changes nothing repeats its parent
//! byte for byte.
//!
//! The order of writes makes it safe to kill the command and run it again: pins, then commits, then
//! the plan; without a plan there is no run.

use crate::cli::ForkArgs;
use crate::runs::{RunView, newest_plan, stored_tree};
use crate::text::quoted;
use crate::{Error, Result};
use agentgym_jobs::artifact_names;
use agentgym_jobs::config::keys::KEYS;
use agentgym_jobs::config::{Pipeline, ResolvedConfig, SaveDtype};
use agentgym_jobs::pipeline::{PartId, Stage, adopted, critic_of, policy_of};
use agentgym_jobs::plan::Plan;
use agentgym_storage::{Artifact, AttemptStart, Committed, Key, Manifest, RunId, Store, Work};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Keys that a fork must not change.
const FIXED: [&str; 12] = [
    "run.pipeline",
    "run.fork",
    "actor_rollout_ref.model",
    "actor_rollout_ref.ref.model",
    "actor_rollout_ref.agentgym.rules",
    "critic.model",
    "sft.steps",
    "sft.epochs",
    "sft.sources",
    "sft.validation_share",
    "sft.validation_sources",
    "jobs.sft_part_steps",
];

/// Prefixes of the artifacts that stages read from a commit.
const READ: [&str; 9] = [
    "policy/",
    "adapter/",
    "critic/",
    "optimizer/",
    "sft/",
    artifact_names::KL,
    artifact_names::CURRICULUM,
    artifact_names::EPISODES,
    artifact_names::LINEAGE,
];

/// Creates the child, or finds it; returns its plan. A dry run finds out the same and writes nothing.
///
/// # Errors
/// The iteration cannot be forked, a key cannot be changed by a fork, or retention has removed a
/// needed object.
pub(crate) async fn fork(
    parent: &RunView,
    args: &ForkArgs,
    global: Vec<String>,
    base: &Path,
) -> Result<Plan> {
    let n = args.iteration;
    check(parent, args)?;
    let child = plan(parent, args, global, base)?;
    if child.iterations <= n {
        return Err(Error::Usage(format!(
            "run {} has {} iterations, so nothing is left to do after iteration {n}; fork an earlier one, or \
             give trainer.total_training_steps=N with more",
            parent.plan.run, child.iterations
        )));
    }
    if let Some(stored) = newest_plan(&parent.store, &child.run).await? {
        if stored.identity == child.identity {
            return Ok(stored);
        }
        return Err(Error::Missing(format!(
            "run {} is there already, with another plan; give run.id another name, or leave it out",
            child.run
        )));
    }
    let (manifests, needed) = take_over(parent, &child, args).await?;
    if args.dry_run {
        return Ok(child);
    }
    for (owner, keys) in needed {
        parent.store.pin(&owner, &child.run, keys).await?;
    }
    for manifest in manifests {
        commit(&parent.store, manifest).await?;
    }
    parent
        .store
        .put_plan(&child.run, child.revision, child.to_bytes().into())
        .await?;
    Ok(child)
}

/// The command for a fork that changes these keys, from the last iteration from which one can be
/// made. It is tried without writing anything.
pub(crate) async fn instead(parent: &RunView, overrides: &[String]) -> Option<String> {
    /// A longer command is no help.
    const BYTES_MAX: usize = 1000;
    let latest = parent.progress().await.ok()?.latest_policy(&parent.plan)?;
    for iteration in [latest, latest.saturating_sub(1)] {
        for fresh_optimizer in [false, true] {
            let args = ForkArgs {
                run: parent.plan.run.to_string(),
                iteration,
                fresh_optimizer,
                dry_run: true,
                overrides: overrides.to_vec(),
            };
            if fork(parent, &args, Vec::new(), Path::new("")).await.is_ok() {
                let command = command(parent, &args);
                return (command.len() <= BYTES_MAX).then_some(command);
            }
        }
    }
    None
}

/// A fork as a command that can be pasted.
fn command(parent: &RunView, args: &ForkArgs) -> String {
    let fresh = match args.fresh_optimizer {
        true => " --fresh-optimizer",
        false => "",
    };
    let overrides = args.overrides.iter().map(|o| format!(" {}", quoted(o)));
    let overrides: String = overrides.collect();
    format!(
        "agentgym-submit fork {} --iteration {}{fresh}{overrides}",
        parent.arguments(),
        args.iteration
    )
}

fn check(parent: &RunView, args: &ForkArgs) -> Result<()> {
    let plan = &parent.plan;
    if !matches!(plan.config.run.pipeline, Pipeline::Rl | Pipeline::AgentEvol) {
        return Err(Error::Usage(format!(
            "run {} has no iterations to fork from; export its policy (`agentgym-submit export {} --iteration 0 \
             --to DIR`) and start a run with actor_rollout_ref.model.path=DIR/policy_after",
            plan.run,
            parent.arguments()
        )));
    }
    parent.iteration_parts(args.iteration)?;
    if let Some(first) = plan.forked_at().filter(|first| args.iteration < *first) {
        return Err(Error::Usage(format!(
            "run {} is a fork itself, from iteration {first} on; fork its parent {} instead",
            plan.run,
            plan.config.run.fork.run.as_deref().unwrap_or_default()
        )));
    }
    for given in &args.overrides {
        let key = key_of(given);
        let inside = |outer: &str, inner: &str| {
            inner
                .strip_prefix(outer)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        if let Some(fixed) = FIXED
            .into_iter()
            .find(|fixed| inside(fixed, key) || inside(key, fixed))
        {
            return Err(Error::Usage(format!(
                "key `{fixed}`: a fork takes over what its parent made under it; leave it out, or start a run of its own"
            )));
        }
    }
    Ok(())
}

/// The child's plan: the parent's config with the overrides, and the iteration it starts from.
fn plan(parent: &RunView, args: &ForkArgs, global: Vec<String>, base: &Path) -> Result<Plan> {
    const STEM_CHARS_MAX: usize = 40;
    let of = &parent.plan;
    let tree = stored_tree(of);
    let mut overrides = vec![
        "run.id=null".to_owned(),
        "run.name=null".to_owned(),
        "jobs.hold=false".to_owned(),
        format!("run.fork.run={:?}", of.run.as_str()),
        format!("run.fork.identity={:?}", of.identity),
        format!("run.fork.iteration={}", args.iteration),
        format!("run.fork.fresh_optimizer={}", args.fresh_optimizer),
    ];
    overrides.extend(followers(&tree, &args.overrides));
    overrides.extend(args.overrides.iter().cloned());
    overrides.extend(global);
    let path = PathBuf::from(format!("plan of {}", of.run));
    let head: String = of.run.as_str().chars().take(STEM_CHARS_MAX).collect();
    let stem = format!("{head}-at-{}", args.iteration);
    let config = ResolvedConfig::parse(&stem, &path, &tree.to_string(), &overrides)?;
    Ok(Plan::new(config, base)?.of_format(of.format))
}

fn key_of(given: &str) -> &str {
    let key = given.split('=').next().unwrap_or_default();
    key.trim_start_matches('+')
}

/// Keys whose default is another key's value, where that key is changed: a stored plan has the value in
/// full, and a longest prompt would stay as it was beside a longer `data.max_prompt_length`.
fn followers(tree: &Value, given: &[String]) -> Vec<String> {
    let at = |path: &str| path.split('.').try_fold(tree, |tree, key| tree.get(key));
    let mut changed: Vec<&str> = given.iter().map(|given| key_of(given)).collect();
    let mut followers = Vec::new();
    for spec in KEYS {
        let leader = spec.default.strip_prefix("${");
        let Some(leader) = leader.and_then(|rest| rest.strip_suffix('}')) else {
            continue;
        };
        let (path, own) = (spec.path, at(spec.path));
        if changed.contains(&leader) && !changed.contains(&path) && own == at(leader) {
            changed.push(path);
            followers.push(format!("{path}={}", spec.default));
        }
    }
    followers
}

/// Objects that a child needs, by the run that they belong to.
type Needed = BTreeMap<RunId, BTreeSet<Key>>;

/// The child's commits, and the objects that must be pinned before these are written.
async fn take_over(
    parent: &RunView,
    child: &Plan,
    args: &ForkArgs,
) -> Result<(Vec<Manifest>, Needed)> {
    let (n, plan) = (args.iteration, &parent.plan);
    let newest = [Some(policy_of(plan, n)), critic_of(plan, n)];
    let mut manifests = Vec::new();
    for id in adopted(child) {
        check_part(plan, child, id)?;
        let manifest = parent.committed(id).await?;
        let carries_on = newest.contains(&Some(id)) && !args.fresh_optimizer;
        let is_read = |artifact: &Artifact| {
            let name = artifact.name.as_str();
            let wanted = match id.stage {
                Stage::Advantage => {
                    [artifact_names::KL, artifact_names::CURRICULUM].contains(&name)
                }
                _ => READ.iter().any(|read| name.starts_with(read)),
            };
            wanted && (carries_on || !name.starts_with("optimizer/"))
        };
        manifests.push(manifest.taken_over(child.run.clone(), is_read)?);
    }
    let mut by_owner = Needed::new();
    let outputs = manifests.iter().flat_map(|m| &m.outputs);
    for key in outputs.flat_map(Artifact::keys) {
        by_owner.entry(key.run().clone()).or_default().insert(key);
    }
    let mut removed = BTreeSet::new();
    for (owner, keys) in &by_owner {
        removed.extend(parent.store.removed(owner, keys).await?);
    }
    if !removed.is_empty() {
        return Err(gone(parent, args, &removed).await?);
    }
    let later: Vec<&Artifact> = manifests.iter().flat_map(Manifest::written_later).collect();
    if !parent.store.holds(&later).await? {
        return Err(not_stored(parent, args));
    }
    for manifest in &mut manifests {
        manifest.seed = child.config.run.seed;
        manifest.code_version = agentgym_worker::BUILD.to_owned();
        manifest.plan_revision = child.revision;
    }
    Ok((manifests, by_owner))
}

/// Checks that the part's id means the same in both plans.
fn check_part(parent: &Plan, child: &Plan, id: PartId) -> Result<()> {
    let role = |plan: &Plan| plan.init_roles().get(id.part as usize).copied();
    if id.stage == Stage::Init && role(parent) != role(child) {
        return Err(Error::Usage(format!(
            "the fork reads a model that run {} never made (a critic, or a reference policy of its own): keep \
             algorithm.adv_estimator and the kl keys as they are there, or start a run of its own",
            parent.run
        )));
    }
    if id.stage == Stage::CriticUpdate && !parent.config.has_critic() {
        return Err(Error::Usage(format!(
            "key `algorithm.adv_estimator`: run {} trains no critic to go on with; keep {}",
            parent.run, parent.config.algorithm.adv_estimator
        )));
    }
    let sources = |plan: &Plan| (plan.has_curriculum(), plan.config.data.tasks.len());
    if id.stage == Stage::Advantage && child.has_curriculum() && sources(parent) != sources(child) {
        return Err(Error::Usage(format!(
            "key `data.curriculum.solved`: run {} has no curriculum over {} sources to go on with; keep its data.tasks, \
             give data.curriculum.solved=null, or fork iteration 0",
            parent.run,
            child.config.data.tasks.len()
        )));
    }
    if id.stage == Stage::Advantage && child.kl_adapts() && !parent.kl_adapts() {
        return Err(Error::Usage(format!(
            "key `algorithm.kl_ctrl.type`: run {} has no adaptive coefficient to go on with; keep its kl keys",
            parent.run
        )));
    }
    Ok(())
}

/// The error for an optimizer state that is not stored. A fork could not make it again: it takes over no
/// batches.
fn not_stored(parent: &RunView, args: &ForkArgs) -> Error {
    let fresh = ForkArgs {
        fresh_optimizer: true,
        ..args.clone()
    };
    Error::Missing(format!(
        "the optimizer state of iteration {} is not stored (trainer.state_freq = {}; it is written after its commit, so \
         that of a run under way may be there in a moment); go on with a fresh one: `{}`",
        args.iteration,
        parent.plan.config.trainer.state_freq,
        command(parent, &fresh)
    ))
}

/// The error for objects removed by retention; it names alternatives.
async fn gone(parent: &RunView, args: &ForkArgs, removed: &BTreeSet<Key>) -> Result<Error> {
    let n = args.iteration;
    let command = |iteration: u32| {
        let args = ForkArgs {
            iteration,
            fresh_optimizer: true,
            ..args.clone()
        };
        command(parent, &args)
    };
    let is_optimizer =
        |key: &&Key| matches!(key, Key::File { name, .. } if name.starts_with("optimizer/"));
    // A fresh optimizer helps only if nothing else was removed.
    let Some(key) = removed.iter().find(|key| !is_optimizer(key)) else {
        let rounded = match parent.plan.config.actor_rollout_ref.model.dtype {
            SaveDtype::F32 => "",
            SaveDtype::Bf16 => " on the policy's bf16 numbers, since the f32 ones went with it",
        };
        return Ok(Error::Missing(format!(
            "the optimizer state of iteration {n} was removed by retention, which keeps the last two; go on with a \
             fresh one{rounded}: `{}`",
            command(n)
        )));
    };
    let left = left(parent).await?;
    let before_end = left.iter().filter(|other| **other < parent.plan.iterations);
    let nearest = before_end.min_by_key(|other| other.abs_diff(n));
    let instead = nearest.map_or_else(String::new, |nearest| {
        format!("; the nearest: `{}`", command(*nearest))
    });
    let left: Vec<String> = left.iter().map(u32::to_string).collect();
    Ok(Error::Missing(format!(
        "what iteration {n} left was removed by retention ({key}), which keeps the last two iterations, every one that \
         trainer.save_freq = {} divides, and the best; policies of these are there: {}{instead}",
        parent.plan.config.trainer.save_freq,
        left.join(", ")
    )))
}

/// Iterations whose policy, and critic if any, still exist.
async fn left(parent: &RunView) -> Result<Vec<u32>> {
    let plan = &parent.plan;
    let mut found = Vec::new();
    for iteration in 0..=plan.iterations {
        let mut keys = BTreeSet::new();
        for id in [Some(policy_of(plan, iteration)), critic_of(plan, iteration)] {
            let Some(id) = id else { continue };
            let manifest = parent.manifest(id).await?;
            let outputs = manifest.into_iter().flat_map(|m| m.outputs);
            let kept = ["policy/", "adapter/", "critic/"];
            keys.extend(
                outputs
                    .filter(|output| kept.iter().any(|kind| output.name.starts_with(kind)))
                    .flat_map(|output| output.keys()),
            );
        }
        if !keys.is_empty() {
            found.push((iteration, keys));
        }
    }
    let all = found.iter().flat_map(|(_, keys)| keys.clone()).collect();
    let removed = parent.store.removed(&plan.run, &all).await?;
    found.retain(|(_, keys)| keys.is_disjoint(&removed));
    Ok(found.into_iter().map(|(iteration, _)| iteration).collect())
}

/// The worker of the parts that a fork took over: nobody made them anew.
pub(crate) const FORK: &str = "fork";

/// Commits a part that was taken over, if it is not committed yet.
async fn commit(store: &Store, mut manifest: Manifest) -> Result<()> {
    let slot = manifest.slot();
    if let Some(there) = store.manifest(&slot).await? {
        return same(&there, &manifest);
    }
    let now = crate::text::unix_now_s();
    let start = AttemptStart {
        worker: FORK.to_owned(),
        started_unix_s: now,
        code_version: agentgym_worker::BUILD.to_owned(),
        plan_revision: manifest.plan_revision,
        ..AttemptStart::default()
    };
    let attempt = store.start_attempt(&slot, &start).await?;
    manifest.attempt = attempt.number;
    manifest.nonce = attempt.nonce;
    manifest.work = Some(Work {
        worker: start.worker,
        started_unix_s: now,
        wall_s: 0.0,
        stats: serde_json::Map::new(),
    });
    match store.commit(&manifest).await? {
        Committed::Won => Ok(()),
        Committed::Superseded(there) => same(&there, &manifest),
    }
}

/// Checks that an existing commit has the same outputs as this one would.
fn same(there: &Manifest, manifest: &Manifest) -> Result<()> {
    match there.outputs == manifest.outputs {
        true => Ok(()),
        false => Err(Error::Missing(format!(
            "{} is committed already, with something else; give run.id another name",
            there.slot()
        ))),
    }
}
