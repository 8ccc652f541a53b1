//! Optimizer states in memory are written into the machine's cache, and from there into the store, after
//! the commits that name them.

use crate::blocking::blocking;
use crate::deliveries::{Deliveries, Delivery};
use crate::policies::OPTIMIZER;
use crate::scratch::Scratch;
use crate::{Result, memory};
use agentgym_model::OptimizerState;
use agentgym_storage::{Artifact, Inputs, LocalFolder, PartKey, Store};
use std::path::PathBuf;
use std::sync::Arc;

/// What follows the commit of a part that left a state.
pub(crate) struct Behind {
    /// The artifacts that the state is.
    pub(crate) artifacts: Vec<Artifact>,
    pub(crate) slot: PartKey,
    /// The cache it goes to.
    pub(crate) inputs: Inputs,
    /// The store, if it goes there too.
    pub(crate) store: Option<Store>,
    /// The input whose state it was made of, which is of no use any more.
    pub(crate) before: Option<String>,
}

impl Behind {
    /// Writes a state that is in memory, in a folder of the attempt first.
    pub(crate) async fn write(
        self,
        state: Arc<OptimizerState>,
        scratch: PathBuf,
        nonce: String,
        deliveries: Arc<Deliveries>,
    ) -> Result<()> {
        let scratch = Scratch::new(&scratch, &format!("left-{}-{nonce}", self.slot.stage))?;
        let folder = scratch.path.join(OPTIMIZER);
        let kept = write_into_cache(state, &self.artifacts, &self.inputs, folder).await?;
        // The next part has no use for what copies of tensors took.
        memory::give_back();
        self.settle(kept, &deliveries).await;
        Ok(())
    }

    /// Sends the folder of a state on to the store, and removes the one before from the cache.
    pub(crate) async fn settle(self, kept: Option<LocalFolder>, deliveries: &Deliveries) {
        if let (Some(folder), Some(store)) = (kept, self.store) {
            let delivery = Delivery {
                store,
                artifacts: self.artifacts,
                folder,
            };
            deliveries.push(&self.slot, delivery);
        }
        if let Some(input) = self.before {
            self.inputs.forget_later(&input, OPTIMIZER).await;
        }
    }
}

/// Writes a state into a folder, which becomes one of the cache.
pub(crate) async fn write_into_cache(
    state: Arc<OptimizerState>,
    artifacts: &[Artifact],
    inputs: &Inputs,
    folder: PathBuf,
) -> Result<Option<LocalFolder>> {
    let to = folder.clone();
    blocking(move || Ok(state.save(&to)?)).await?;
    Ok(inputs.adopt(OPTIMIZER, artifacts, &folder).await)
}
