//! Models that stay in memory between attempts. A model is identified by the digests of its files,
//! not by its commit: a policy that was just trained here is not read back from the store, and two
//! commits with equal bytes share one copy.

use crate::Result;
use crate::blocking::blocking;
use agentgym_model::{Adapter, Critic, Device, ForeignPolicy, Policy};
use agentgym_storage::{Artifact, Inputs};
use std::path::Path;
use std::sync::Arc;
use tokio::sync::Mutex;

/// Prefix of a policy's artifacts.
pub(crate) const POLICY: &str = "policy";

/// Prefix of a critic's artifacts.
pub(crate) const CRITIC: &str = "critic";

/// Prefix of an optimizer's state.
pub(crate) const OPTIMIZER: &str = "optimizer";

/// Prefix of an adapter's artifacts.
pub(crate) const ADAPTER: &str = "adapter";

/// The input that holds the model below an adapter, where another part made it.
pub(crate) const BASE: &str = "base";

/// Policies that a worker keeps in memory: the iteration's policy, the reference, and the one under
/// evaluation.
pub const RESIDENT_POLICIES: usize = 3;

/// A model that can be kept.
pub trait Resident: Sized + Send + Sync + 'static {
    /// Prefix of its artifacts.
    const PREFIX: &'static str;
    /// Copies kept at the same time.
    const KEPT: usize;

    /// Reads its folder.
    ///
    /// # Errors
    /// A folder that the model crate rejects.
    fn load(folder: &Path, device: &Device) -> agentgym_model::Result<Self>;
}

impl Resident for Policy {
    const PREFIX: &'static str = POLICY;
    const KEPT: usize = RESIDENT_POLICIES;

    fn load(folder: &Path, device: &Device) -> agentgym_model::Result<Self> {
        Self::load(folder, device)
    }
}

impl Resident for Critic {
    const PREFIX: &'static str = CRITIC;
    /// The critic that scores; a critic update replaces it by its successor.
    const KEPT: usize = 1;

    fn load(folder: &Path, device: &Device) -> agentgym_model::Result<Self> {
        Self::load(folder, device)
    }
}

/// A small least-recently-used cache.
pub struct Models<T> {
    /// Most recently used last.
    kept: Mutex<Vec<(blake3::Hash, Arc<T>)>>,
}

/// Policies in memory.
pub(crate) type Policies = Models<Policy>;

/// Critics in memory.
pub(crate) type Critics = Models<Critic>;

impl<T> Default for Models<T> {
    fn default() -> Self {
        Self {
            kept: Mutex::default(),
        }
    }
}

impl<T: Resident> Models<T> {
    /// The model in the commit with input name `input`.
    ///
    /// # Errors
    /// A damaged artifact, or a folder that the model crate rejects.
    pub async fn get(&self, device: &Device, inputs: &Inputs, input: &str) -> Result<Arc<T>> {
        let key = fingerprint(T::PREFIX, inputs.artifacts(input)?);
        // Held while loading, so that two attempts do not load the same model twice.
        let mut kept = self.kept.lock().await;
        if let Some(model) = recall(&mut kept, key) {
            return Ok(model);
        }
        let folder = inputs.folder(input, T::PREFIX).await?;
        let device = device.clone();
        let model = blocking(move || Ok(T::load(folder.path(), &device)?)).await?;
        let model = Arc::new(model);
        remember(&mut kept, key, Arc::clone(&model), T::KEPT);
        Ok(model)
    }

    /// Keeps a model that was written as `artifacts`.
    pub async fn insert(&self, artifacts: &[Artifact], model: Arc<T>) {
        let mut kept = self.kept.lock().await;
        let key = fingerprint(T::PREFIX, artifacts);
        kept.retain(|(k, _)| *k != key);
        remember(&mut kept, key, model, T::KEPT);
    }
}

impl Policies {
    /// True if the full policy that was written as `artifacts` is in memory.
    pub(crate) async fn holds(&self, artifacts: &[Artifact]) -> bool {
        let key = fingerprint(POLICY, artifacts);
        self.kept.lock().await.iter().any(|(kept, _)| *kept == key)
    }

    /// The adapter in the commit `input` on the policy in the commit `base`, which is kept too,
    /// since the next adapter needs it.
    ///
    /// # Errors
    /// A damaged artifact, or a folder that the model crate rejects.
    pub(crate) async fn adapted(
        &self,
        device: &Device,
        inputs: &Inputs,
        (base, input): (&str, &str),
    ) -> Result<Arc<Policy>> {
        let key = fingerprint_adapted(inputs.artifacts(base)?, inputs.artifacts(input)?);
        if let Some(model) = recall(&mut *self.kept.lock().await, key) {
            return Ok(model);
        }
        let plain = self.get(device, inputs, base).await?;
        let mut kept = self.kept.lock().await;
        if let Some(model) = recall(&mut kept, key) {
            return Ok(model);
        }
        let folder = inputs.folder(input, ADAPTER).await?;
        let model = blocking(move || {
            let adapter = Adapter::load(folder.path(), plain.config())?;
            Ok(plain.with_adapter(adapter)?)
        });
        let model = Arc::new(model.await?);
        remember(&mut kept, key, Arc::clone(&model), Policy::KEPT + 1);
        Ok(model)
    }

    /// Keeps a policy whose adapter was written as `artifacts`.
    pub(crate) async fn insert_adapted(
        &self,
        base: &[Artifact],
        artifacts: &[Artifact],
        policy: Arc<Policy>,
    ) {
        let mut kept = self.kept.lock().await;
        let key = fingerprint_adapted(base, artifacts);
        kept.retain(|(k, _)| *k != key);
        remember(&mut kept, key, policy, Policy::KEPT + 1);
    }
}

/// The model that this worker evaluated last, by its files and its longest conversation.
#[derive(Default)]
pub struct KeptForeign(Mutex<Option<(blake3::Hash, usize, Arc<ForeignPolicy>)>>);

impl KeptForeign {
    /// The model of an input, for conversations of at most `context` ids.
    ///
    /// # Errors
    /// A device on which candle does not compute, before anything is fetched; a damaged artifact; a
    /// folder that candle cannot compute.
    pub(crate) async fn get(
        &self,
        device: &Device,
        inputs: &Inputs,
        input: &str,
        context: usize,
    ) -> Result<Arc<ForeignPolicy>> {
        let key = fingerprint(POLICY, inputs.artifacts(input)?);
        // Held while loading, so that two attempts do not load it twice.
        let mut kept = self.0.lock().await;
        if let Some((of, length, policy)) = kept.as_ref()
            && (*of, *length) == (key, context)
        {
            return Ok(Arc::clone(policy));
        }
        ForeignPolicy::check_device(device).map_err(|message| agentgym_model::Error::Candle {
            path: Path::new(input).join(POLICY),
            message,
        })?;
        *kept = None;
        let folder = inputs.folder(input, POLICY).await?;
        let device = device.clone();
        let policy = blocking(move || Ok(ForeignPolicy::load(folder.path(), context, &device)?));
        let policy = Arc::new(policy.await?);
        *kept = Some((key, context, Arc::clone(&policy)));
        Ok(policy)
    }
}

type Kept<T> = Vec<(blake3::Hash, Arc<T>)>;

/// The model with this key; marks it as most recently used.
fn recall<T>(kept: &mut Kept<T>, key: blake3::Hash) -> Option<Arc<T>> {
    let at = kept.iter().position(|(k, _)| *k == key)?;
    let hit = kept.remove(at);
    let model = Arc::clone(&hit.1);
    kept.push(hit);
    Some(model)
}

fn remember<T>(kept: &mut Kept<T>, key: blake3::Hash, model: Arc<T>, at_once: usize) {
    kept.push((key, model));
    if kept.len() > at_once {
        kept.remove(0);
    }
}

/// Hash over the files of an adapter and of its base.
fn fingerprint_adapted(base: &[Artifact], artifacts: &[Artifact]) -> blake3::Hash {
    let both = [fingerprint(POLICY, base), fingerprint(ADAPTER, artifacts)];
    blake3::hash(&both.map(|hash| *hash.as_bytes()).concat())
}

/// Hash over names and digests of the files below a prefix.
pub(crate) fn fingerprint(prefix: &str, artifacts: &[Artifact]) -> blake3::Hash {
    let own = |name: &str| {
        name.strip_prefix(prefix)
            .is_some_and(|rest| rest.starts_with('/'))
    };
    let mut lines: Vec<String> = artifacts
        .iter()
        .filter(|a| own(&a.name))
        .map(|a| format!("{} {}\n", a.name, a.digest))
        .collect();
    lines.sort_unstable();
    blake3::hash(lines.concat().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use agentgym_model::Dtype;
    use agentgym_storage::{AttemptId, Manifest, PartKey, Store};

    /// The input has no files, so that reading it would be another error.
    #[tokio::test]
    async fn candle_is_asked_for_its_device_before_a_model_is_fetched() {
        let slot = PartKey {
            run: "judged".parse().unwrap(),
            iteration: 0,
            stage: "init".into(),
            part: 0,
        };
        let attempt = AttemptId {
            number: 1,
            nonce: "00000001".into(),
        };
        let manifest = Manifest::new(slot, attempt, Vec::new());
        let cache = tempfile::tempdir().unwrap();
        let store = Store::open("memory:").await.unwrap();
        let inputs = Inputs::new(store, vec![("policy".into(), manifest)], cache.path());
        let Ok(bf16) = Device::parse("cpu", Dtype::Bf16) else {
            return; // This processor has no bf16: the refusal cannot come up.
        };
        let kept = KeptForeign::default();
        let refused = kept.get(&bf16, &inputs, "policy", 64).await;
        let said = refused.unwrap_err().to_string();
        let wanted = match cfg!(feature = "candle") {
            true => "--dtype f32",
            false => "agentgym-worker/candle",
        };
        assert!(said.contains(wanted), "{said}");
    }
}
