//! AdamW on what is trained of a model, where the model computes: in the processor's memory,
//! or on a GPU, where weights and moments stay from the first step on.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::adamw::{AdamW, AdamWState, StepReport};
use crate::gpu::{self, Gpu};
use crate::gradients::{Gradients, Spare};
use crate::parallel::ComputeOptions;
use crate::{Error, Result, Weights};

/// What a step did, and the new weights unless the gradient was not finite.
pub(crate) type Stepped = (StepReport, Option<Weights>);

/// The optimizer of a model under training.
#[derive(Debug)]
pub(crate) struct Optimizer {
    options: AdamW,
    /// Of a model on a GPU the steps alone, from the first of its steps on.
    state: AdamWState,
    on_gpu: Option<gpu::Optimizer>,
    /// Lives from step to step.
    spare: Arc<Spare>,
}

impl Optimizer {
    /// Without a step yet, for trained parameters of these names and in-memory shapes.
    pub(crate) fn new(options: AdamW, shapes: BTreeMap<String, Vec<usize>>) -> Self {
        Self::of(options, AdamWState::new(shapes))
    }

    /// Carries on where [`Optimizer::save`] wrote into `dir`.
    pub(crate) fn load(
        options: AdamW,
        shapes: BTreeMap<String, Vec<usize>>,
        dir: &Path,
    ) -> Result<Self> {
        Ok(Self::of(options, AdamWState::load(dir, shapes)?))
    }

    fn of(options: AdamW, state: AdamWState) -> Self {
        Optimizer {
            options,
            state,
            on_gpu: None,
            spare: Arc::default(),
        }
    }

    /// Memory for the gradients of the next step.
    pub(crate) fn spare(&self) -> &Arc<Spare> {
        &self.spare
    }

    /// Steps made, those before a resume included.
    pub(crate) fn steps(&self) -> u64 {
        self.state.step()
    }

    /// A step on `weights` along gradients in the processor's memory.
    pub(crate) fn step(
        &mut self,
        weights: &Weights,
        gradients: Gradients,
        lr: f64,
        options: &ComputeOptions<'_>,
    ) -> Result<Stepped> {
        let mut weights = weights.clone();
        let (adamw, state) = (&self.options, &mut self.state);
        let report = state.update(adamw, &mut weights, gradients, lr, options)?;
        Ok((report, (!report.skipped_non_finite).then_some(weights)))
    }

    /// A step on `weights` along gradients on a GPU.
    pub(crate) fn step_on_gpu(
        &mut self,
        gpu: &Gpu,
        weights: &Weights,
        gradients: gpu::Gradients,
        lr: f64,
    ) -> Result<Stepped> {
        let on_gpu = match &self.on_gpu {
            Some(on_gpu) => on_gpu,
            None => {
                let uploaded = gpu::Optimizer::upload(gpu, weights, &self.state)?;
                self.on_gpu.insert(uploaded)
            }
        };
        let norm = gpu::norm(&gradients)?;
        let (report, step) = self.state.begin(&self.options, norm, lr);
        let Some(step) = step else {
            return Ok((report, None));
        };
        on_gpu.step(&step, gradients)?;
        let mut weights = weights.clone();
        on_gpu.fetch(&mut weights)?;
        Ok((report, Some(weights)))
    }

    /// Writes `state.safetensors` into `dir`.
    pub(crate) fn save(&self, dir: &Path) -> Result<()> {
        std::fs::create_dir_all(dir).map_err(Error::io(dir))?;
        match &self.on_gpu {
            Some(on_gpu) => {
                let state = self.state.with_moments(|name| on_gpu.moments(name))?;
                state.save(dir)
            }
            None => self.state.save(dir),
        }
    }
}
