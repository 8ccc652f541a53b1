//! What an export is to hold, and how its weights are written.

use agentgym_jobs::config::SaveDtype;
use agentgym_jobs::plan::Plan;
use agentgym_model::{Dtype, Layout, SHARD_BYTES_MAX};

/// Options of an export.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wanted {
    /// If the run trains an adapter: export only the adapter, not the policies.
    pub adapter_alone: bool,
    /// Also export the reference policy.
    pub reference: bool,
    /// Also export the optimizer's state after the iteration.
    pub optimizer: bool,
    /// Format of the weights, if not `trainer.save_dtype`.
    pub dtype: Option<Dtype>,
    /// Most bytes of a weight file.
    pub shard_bytes_max: Option<usize>,
}

impl Wanted {
    /// Whether a model is written at all. Adapters are written as they were committed, in f32.
    pub(super) fn models(&self) -> bool {
        !self.adapter_alone || self.reference
    }

    /// The format of the weights.
    pub(super) fn dtype(&self, plan: &Plan) -> Dtype {
        if !self.models() {
            return Dtype::F32;
        }
        self.dtype.unwrap_or(match plan.config.trainer.save_dtype {
            SaveDtype::F32 => Dtype::F32,
            SaveDtype::Bf16 => Dtype::Bf16,
        })
    }

    /// How models are written; `None`: as they were committed.
    pub(super) fn layout(&self, plan: &Plan) -> Option<Layout> {
        let dtype = self.dtype(plan);
        let as_committed = dtype == Dtype::F32 && self.shard_bytes_max.is_none();
        (!as_committed).then_some(Layout {
            dtype,
            shard_bytes_max: self.shard_bytes_max.unwrap_or(SHARD_BYTES_MAX),
        })
    }
}
