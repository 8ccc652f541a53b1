//! Optimizer states in memory are written into the machine's cache, and from there into the store, after
//! the commits that name them.

use crate::blocking::blocking;
use crate::deliveries::{Deliveries, Delivery};
use crate::policies::OPTIMIZER;
use crate::scratch::Scratch;
use crate::{Result, memory};
use agentgym_model::OptimizerState;
use agentgym_storage::{Artifact, Inputs, PartKey, Store};
use std::path::PathBuf;
use std::sync::Arc;

/// A state in memory that is to be written, after the commit that names it.
pub(crate) struct Behind {
    pub(crate) state: Arc<OptimizerState>,
    /// The artifacts that it is.
    pub(crate) artifacts: Vec<Artifact>,
    pub(crate) slot: PartKey,
    /// The process's folder, in which it is written first.
    pub(crate) scratch: PathBuf,
    /// Of its attempt.
    pub(crate) nonce: String,
    /// The cache it goes to.
    pub(crate) inputs: Inputs,
    /// The store, if it goes there too.
    pub(crate) store: Option<Store>,
    /// The input whose state it was made of, which is of no use once it is written.
    pub(crate) before: Option<String>,
}

impl Behind {
    /// Writes it.
    pub(crate) async fn write(self, deliveries: Arc<Deliveries>) -> Result<()> {
        let name = format!("left-{}-{}", self.slot.stage, self.nonce);
        let scratch = Scratch::new(&self.scratch, &name)?;
        let folder = scratch.path.join(OPTIMIZER);
        let (state, to) = (self.state, folder.clone());
        blocking(move || Ok(state.save(&to)?)).await?;
        // The next part has no use for what copies of tensors took.
        memory::give_back();
        let kept = (self.inputs)
            .adopt(OPTIMIZER, &self.artifacts, &folder)
            .await;
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
        Ok(())
    }
}
