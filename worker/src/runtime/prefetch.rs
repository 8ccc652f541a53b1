//! Fetches the next policy while this worker still makes a part of the preceding iteration, so that
//! its next part finds the policy on this machine. Only an optimization: if it fails, the part that
//! needs the policy fetches it.

use super::Worker;
use crate::bench::cache_bytes;
use crate::policies::{ADAPTER, POLICY};
use crate::run_state::RunState;
use crate::{Result, context::Resources, panics};
use agentgym_jobs::pipeline::{PartId, Stage, policy_of};
use agentgym_storage::{Inputs, Manifest, Patience, RunId};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Mutex;

/// How often a busy worker asks the queue for a newer policy.
const ASK_EVERY: Duration = Duration::from_secs(1);

impl Worker {
    /// Fetches policies ahead, as long as the worker lives.
    pub(super) async fn prefetch_now_and_then(self: Arc<Self>) {
        let loads = self.makes(Stage::Rollout) || self.makes(Stage::LogProbs);
        if !self.options.prefetch || !loads || self.options.store.local_root().is_some() {
            return;
        }
        let mut fetched: BTreeMap<RunId, u32> = BTreeMap::new();
        loop {
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                () = tokio::time::sleep(ASK_EVERY) => {}
            }
            if self.running().is_empty() {
                continue;
            }
            let runs: Vec<_> = self.runs.lock().await.clone().into_iter().collect();
            for (run, state) in runs {
                let known = fetched.get(&run).copied();
                match panics::caught(self.prefetch(&state, known)).await {
                    Ok(Some(iteration)) => _ = fetched.insert(run, iteration),
                    Ok(None) => {}
                    Err(e) => tracing::debug!(%run, "no policy was fetched ahead: {e}"),
                }
            }
        }
    }

    fn makes(&self, stage: Stage) -> bool {
        self.options.stages.is_empty() || self.options.stages.contains(&stage)
    }

    /// Fetches the newest announced policy, if it is newer than `known`.
    async fn prefetch(
        &self,
        shared: &Arc<Mutex<RunState>>,
        known: Option<u32>,
    ) -> Result<Option<u32>> {
        let (mut own, first) = {
            let mut state = shared.lock().await;
            let first = state.first_iteration();
            // Where a server generates, scoring is the first to need the weights.
            let first_to_load = match state.plan.generates_by_server() {
                true => Stage::LogProbs,
                false => Stage::Rollout,
            };
            if state.is_over || state.on_hold() || !self.makes(first_to_load) {
                return Ok(None);
            }
            (state.view(), first)
        };
        let run = own.plan.run.clone();
        let told = self.options.queue.told(run.as_str(), first).await?;
        let told: Vec<PartId> = told.iter().filter_map(|part| part.parse().ok()).collect();
        let plan = Arc::clone(&own.plan);
        let is_policy = |id: &&PartId| policy_of(&plan, id.iteration) == **id;
        let Some(newest) = told.iter().filter(is_policy).max_by_key(|id| id.iteration) else {
            return Ok(None);
        };
        // No rollout plays the policy of the last iteration, so fetching it ahead gains nothing.
        if known.is_some_and(|known| known >= newest.iteration)
            || newest.iteration >= plan.iterations
        {
            return Ok(None);
        }
        let Some(manifest) = own.manifest(*newest).await? else {
            return Ok(None);
        };
        shared.lock().await.remember(*newest, Arc::clone(&manifest));
        let inputs = |manifest: Manifest| {
            let cache = &self.options.folders.models;
            let counted = Arc::clone(&self.resources.read_ahead);
            Inputs::new(
                self.options.store.patient(Ahead(counted)),
                vec![(AHEAD.to_owned(), manifest)],
                cache,
            )
            .with_cache_max(cache_bytes(&plan))
        };
        if fetch(&self.resources, &inputs((*manifest).clone()), &manifest).await? {
            tracing::debug!(%run, policy = %newest, "fetched ahead");
        }
        Ok(Some(newest.iteration))
    }
}

/// Gives up at once, and counts what it reads.
struct Ahead(Arc<AtomicU64>);

impl Patience for Ahead {
    fn moved(&self, _: u64, got: u64) {
        self.0.fetch_add(got, Ordering::Relaxed);
    }
}

/// The name under which a policy is opened ahead of its part.
const AHEAD: &str = "policy";

/// Downloads the model of a commit, unless it is in memory; true if it was downloaded.
async fn fetch(resources: &Resources, inputs: &Inputs, manifest: &Manifest) -> Result<bool> {
    if resources.policies.holds(&manifest.outputs).await {
        return Ok(false);
    }
    let has = |prefix: &str| {
        let own = |name: &str| Path::new(name).starts_with(prefix);
        manifest.outputs.iter().any(|output| own(&output.name))
    };
    let prefix = match (has(ADAPTER), has(POLICY)) {
        (true, _) => ADAPTER,
        (false, true) => POLICY,
        (false, false) => return Ok(false),
    };
    inputs.folder(AHEAD, prefix).await?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use agentgym_storage::{AttemptId, Outputs, PartKey, Store};

    #[tokio::test]
    async fn what_was_fetched_ahead_is_not_fetched_again() {
        let store = Store::open("memory:").await.unwrap();
        let slot = PartKey {
            run: "r".parse().unwrap(),
            iteration: 1,
            stage: "update".to_owned(),
            part: 0,
        };
        let attempt = AttemptId::new(1);
        let mut outputs = Outputs::new(store.clone(), slot.clone(), attempt.clone());
        for name in ["policy/config.json", "policy/weights", "optimizer/state"] {
            outputs
                .bytes(name, "test", name.as_bytes().into())
                .await
                .unwrap();
        }
        let manifest = Manifest::new(slot, attempt, outputs.into_artifacts());
        let cache = tempfile::tempdir().unwrap();
        let commits = vec![(AHEAD.to_owned(), manifest.clone())];
        let inputs = Inputs::new(store.clone(), commits, cache.path());
        let resources = Resources::new(1, agentgym_model::Device::cpu());
        assert!(fetch(&resources, &inputs, &manifest).await.unwrap());
        let gets = store.requests().gets;
        assert_eq!(gets, 2, "the optimizer's state stays where it is");
        let folder = inputs.folder(AHEAD, POLICY).await.unwrap();
        assert!(folder.path().join("weights").exists());
        assert_eq!(store.requests().gets, gets);
    }
}
