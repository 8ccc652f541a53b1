//! Policies that stay in memory between attempts. A policy is known by the
//! digests of its files, never by the commit that holds it: a policy that was
//! just trained here is not read back from the store, and two commits with
//! equal bytes share one copy.

use crate::Result;
use agentgym_model::{Device, Policy};
use agentgym_storage::{Artifact, Inputs};
use std::sync::Arc;
use tokio::sync::Mutex;

/// Policies kept at once: the one being played, the one being evaluated and
/// the reference.
const POLICIES_KEPT: usize = 3;

/// Prefix of a policy's artifacts.
pub(crate) const POLICY: &str = "policy";

/// A small cache, least recently used out first.
#[derive(Default)]
pub struct Policies {
    /// Most recently used last.
    kept: Mutex<Vec<(blake3::Hash, Arc<Policy>)>>,
}

impl Policies {
    /// The policy in the commit that the stage knows as `input`.
    ///
    /// # Errors
    /// A damaged artifact, or a folder that the model crate refuses.
    pub async fn get(&self, device: &Device, inputs: &Inputs, input: &str) -> Result<Arc<Policy>> {
        let key = fingerprint(inputs.artifacts(input)?);
        // Held while loading, so that two attempts do not load the same twice.
        let mut kept = self.kept.lock().await;
        if let Some(at) = kept.iter().position(|(k, _)| *k == key) {
            let hit = kept.remove(at);
            let policy = Arc::clone(&hit.1);
            kept.push(hit);
            return Ok(policy);
        }
        let folder = inputs.folder(input, POLICY).await?;
        let device = device.clone();
        let policy =
            crate::stages::blocking(move || Ok(Policy::load(folder.path(), &device)?)).await?;
        let policy = Arc::new(policy);
        remember(&mut kept, key, Arc::clone(&policy));
        Ok(policy)
    }

    /// Keeps a policy that was written as `artifacts`.
    pub async fn insert(&self, artifacts: &[Artifact], policy: Arc<Policy>) {
        let mut kept = self.kept.lock().await;
        let key = fingerprint(artifacts);
        kept.retain(|(k, _)| *k != key);
        remember(&mut kept, key, policy);
    }
}

fn remember(kept: &mut Vec<(blake3::Hash, Arc<Policy>)>, key: blake3::Hash, policy: Arc<Policy>) {
    kept.push((key, policy));
    if kept.len() > POLICIES_KEPT {
        kept.remove(0);
    }
}

/// Hash over names and digests of the policy's files.
fn fingerprint(artifacts: &[Artifact]) -> blake3::Hash {
    let mut lines: Vec<String> = artifacts
        .iter()
        .filter(|a| a.name.starts_with("policy/"))
        .map(|a| format!("{} {}\n", a.name, a.digest))
        .collect();
    lines.sort_unstable();
    blake3::hash(lines.concat().as_bytes())
}
