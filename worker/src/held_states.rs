//! Optimizer states that stay in memory: a process goes on with the one that it left without reading a
//! file.

use crate::memory;
use crate::policies::{OPTIMIZER, fingerprint};
use agentgym_model::OptimizerState;
use agentgym_storage::Artifact;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The share of the machine's memory that they take at most.
const SHARE: u64 = 4;
/// How often it is looked whether a state is written.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Whether an optimizer state of so many bytes stays in memory after its update. A larger one is written
/// into a folder before the commit.
pub fn stays_in_memory(bytes: u64) -> bool {
    bytes <= most()
}

fn most() -> u64 {
    memory::machine_bytes() / SHARE
}

/// The newest states of the models of all runs; the one that was left last is the last.
#[derive(Default)]
pub struct HeldStates(Mutex<Vec<Held>>);

struct Held {
    run: String,
    /// The input that its model is.
    model: &'static str,
    key: blake3::Hash,
    state: Arc<OptimizerState>,
}

impl Held {
    /// Whether it is in the cache, or will never be.
    fn is_written(&self) -> bool {
        Arc::strong_count(&self.state) == 1
    }
}

/// What identifies the state among the artifacts of a commit.
fn key(artifacts: &[Artifact]) -> blake3::Hash {
    fingerprint(OPTIMIZER, artifacts)
}

impl HeldStates {
    fn held(&self) -> MutexGuard<'_, Vec<Held>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the state of a run's model, which a commit with these artifacts names.
    pub(crate) fn insert(
        &self,
        (run, model): (&str, &'static str),
        artifacts: &[Artifact],
        state: Arc<OptimizerState>,
    ) {
        let new = Held {
            run: run.to_owned(),
            model,
            key: key(artifacts),
            state,
        };
        self.keep(new, most());
    }

    /// Keeps a state in place of the one before it, and frees the oldest written ones where all together
    /// take more than `most` bytes.
    fn keep(&self, new: Held, most: u64) {
        let mut all = self.held();
        all.retain(|held| (&held.run, held.model) != (&new.run, new.model));
        all.push(new);
        let mut bytes: u64 = all.iter().map(|held| held.state.bytes() as u64).sum();
        all.retain(|held| {
            let goes = bytes > most && held.is_written();
            if goes {
                bytes -= held.state.bytes() as u64;
            }
            !goes
        });
    }

    /// Whether the state of a commit with these artifacts is here.
    pub(crate) fn holds(&self, artifacts: &[Artifact]) -> bool {
        let key = key(artifacts);
        self.held().iter().any(|held| held.key == key)
    }

    /// The state of a commit with these artifacts, once it is written.
    pub(crate) async fn take(&self, artifacts: &[Artifact]) -> Option<OptimizerState> {
        let key = key(artifacts);
        let mut found = {
            let mut all = self.held();
            let at = all.iter().position(|held| held.key == key)?;
            all.remove(at).state
        };
        loop {
            match Arc::try_unwrap(found) {
                Ok(state) => return Some(state),
                Err(shared) => found = shared,
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Frees the states of a run that is over.
    pub(crate) fn forget(&self, run: &str) {
        self.held().retain(|held| held.run != run);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use agentgym_model::{AdamW, TinyShape, Trainer, tiny_text};

    fn artifacts(digest: &str) -> Vec<Artifact> {
        let golden = r#"[{"name":"optimizer/state.safetensors","kind":"optimizer",
            "key":"runs/r/files/00000001/update/000000/a0001-0000abcd/optimizer/state.safetensors",
            "size":1,"digest":"DIGEST","chunk_digests":["DIGEST"]}]"#;
        serde_json::from_str(&golden.replace("DIGEST", &digest.repeat(64))).unwrap()
    }

    #[tokio::test]
    async fn one_state_of_each_model_stays_and_nobody_changes_it_before_it_is_written() {
        let shape = "tiny?hidden=32&heads=2&kv_heads=1&layers=1&intermediate=64&vocab=400";
        let shape = TinyShape::preset(shape).unwrap().unwrap();
        let tokenizer = tiny_text::invented_tokenizer(shape.splitting, shape.vocab).unwrap();
        let policy = shape.policy(7, tokenizer).unwrap();
        let state = || {
            let parts = Trainer::new(policy.clone(), AdamW::default()).into_parts();
            Arc::new(parts.unwrap().1)
        };
        let bytes = state().bytes() as u64;
        assert_eq!(bytes, 8 * policy.parameter_count() as u64);
        let new = |run: &str, model, digest, state| Held {
            run: run.to_owned(),
            model,
            key: key(&artifacts(digest)),
            state,
        };
        let states = HeldStates::default();
        let holds = |digest: &str| states.holds(&artifacts(digest));
        states.keep(new("r", "policy", "1", state()), 2 * bytes);
        states.keep(new("r", "policy", "2", state()), 2 * bytes);
        assert!(!holds("1") && holds("2"), "the newest of a model");
        states.keep(new("r", "critic", "3", state()), 2 * bytes);
        assert!(holds("2") && holds("3"));
        // Of three one goes, but none that is still being written.
        let written = state();
        states.keep(new("other", "policy", "4", Arc::clone(&written)), 2 * bytes);
        assert!(!holds("2") && holds("3") && holds("4"));
        states.keep(new("other", "critic", "5", state()), 0);
        assert!(!holds("3") && holds("4") && !holds("5"));

        assert!(states.take(&artifacts("5")).await.is_none());
        let fourth = artifacts("4");
        let taken = states.take(&fourth);
        tokio::pin!(taken);
        let soon = tokio::time::timeout(5 * LOOK_EVERY, &mut taken).await;
        assert!(soon.is_err(), "it is being written");
        drop(written);
        assert!(taken.await.is_some() && !holds("4"));
        states.keep(new("r", "policy", "6", state()), bytes);
        states.forget("r");
        assert!(!holds("6"));
    }
}
