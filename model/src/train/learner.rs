//! A model under training: its weights, and AdamW on those that are trained, on the model's
//! device. On a GPU weights and moments stay in its memory from the first step on, and the CPU's
//! copy of the weights is updated on request.

use std::sync::Arc;

use crate::compute::gradient_tree::UnitGradients;
use crate::cpu::adamw::{AdamW, AdamWState, StepReport};
use crate::cpu::gradients::Gradients;
use crate::gpu::{self, Gpu};
use crate::parallel::ComputeOptions;
use crate::spare::Spare;
use crate::train::optimizer_state::OptimizerState;
use crate::{Error, Policy, Result, Weights};

/// The model as of the last step, and the state for the next one.
#[derive(Debug)]
pub(crate) struct Learner {
    model: Policy,
    options: AdamW,
    /// The numbers that steps change, where the model's are the nearest of bf16. For a model on a
    /// GPU they are there after the first step, as its moments are.
    master: Option<Weights>,
    /// For a model on a GPU only the number of steps and the shapes are here after the first step.
    state: AdamWState,
    on_gpu: Option<gpu::Trained>,
    /// Whether the GPU's weights are newer than the CPU's.
    ahead: bool,
    /// Whether a step failed half way: the learner is then unusable.
    torn: bool,
    /// Kept between steps.
    spare: Arc<Spare>,
}

impl Learner {
    /// A learner that goes on with a state of its model's.
    pub(crate) fn new(model: Policy, options: AdamW, state: OptimizerState) -> Self {
        let (state, master) = (state.moments, state.master);
        Learner {
            model,
            options,
            master,
            state,
            on_gpu: None,
            ahead: false,
            torn: false,
            spare: Arc::default(),
        }
    }

    /// Computes as of the last step. For a GPU, the weights in it may be older.
    pub(crate) fn model(&self) -> &Policy {
        &self.model
    }

    /// The model as of the last step, weights included.
    ///
    /// # Errors
    /// The GPU that has them is lost, or a step has failed.
    pub(crate) fn fetch(&mut self) -> Result<&Policy> {
        self.check()?;
        if let (Some(trained), true) = (&self.on_gpu, self.ahead) {
            let mut weights = self.model.trained_weights().clone();
            trained.fetch(&mut weights, |_| true)?;
            self.model = self.model.with_fetched(weights)?;
            self.ahead = false;
        }
        Ok(&self.model)
    }

    /// [`Learner::fetch`], which ends training.
    pub(crate) fn into_model(mut self) -> Result<Policy> {
        self.fetch()?;
        Ok(self.model)
    }

    /// The model as of the last step, and what the next one needs beside it.
    pub(crate) fn into_parts(mut self) -> Result<(Policy, OptimizerState)> {
        self.fetch()?;
        let state = Self::fetched(self.state, self.master, self.on_gpu.as_ref())?;
        Ok((self.model, state))
    }

    /// A copy of what the next step needs beside the model.
    #[cfg(test)]
    pub(crate) fn state(&self) -> Result<OptimizerState> {
        self.check()?;
        Self::fetched(
            self.state.clone(),
            self.master.clone(),
            self.on_gpu.as_ref(),
        )
    }

    fn fetched(
        mut moments: AdamWState,
        mut master: Option<Weights>,
        on_gpu: Option<&gpu::Trained>,
    ) -> Result<OptimizerState> {
        if let Some(trained) = on_gpu {
            moments = moments.with_moments(|name| trained.moments(name))?;
            if let Some(master) = &mut master {
                trained.masters(master)?;
            }
        }
        Ok(OptimizerState { moments, master })
    }

    /// Memory for the gradients of the next step.
    pub(crate) fn spare(&self) -> &Arc<Spare> {
        &self.spare
    }

    /// Steps made, those before a resume included.
    pub(crate) fn steps(&self) -> u64 {
        self.state.step()
    }

    fn check(&self) -> Result<()> {
        match self.torn {
            false => Ok(()),
            true => Err(Error::Request(
                "an optimizer step failed half way, and what it trained is lost; begin anew from \
                 what was saved"
                    .to_owned(),
            )),
        }
    }

    /// One step, unless the gradient is not finite.
    ///
    /// # Errors
    /// A GPU is lost or has no room. All later calls then return errors.
    pub(crate) fn step(
        &mut self,
        gradients: UnitGradients,
        lr: f64,
        options: &ComputeOptions<'_>,
    ) -> Result<StepReport> {
        self.check()?;
        self.torn = true;
        let report = match self.model.gpu().cloned() {
            Some(gpu) => self.step_on_gpu(&gpu, gradients, lr),
            None => self.step_here(gradients.host, lr, options),
        }?;
        self.torn = false;
        Ok(report)
    }

    fn step_here(
        &mut self,
        gradients: Gradients,
        lr: f64,
        options: &ComputeOptions<'_>,
    ) -> Result<StepReport> {
        let master = self.master.take();
        let is_rounded = master.is_some();
        let mut weights = master.unwrap_or_else(|| self.model.trained_weights().clone());
        let (adamw, state) = (&self.options, &mut self.state);
        let report = state.update(adamw, &mut weights, gradients, lr, options)?;
        self.master = is_rounded.then(|| weights.clone());
        if !report.skipped_non_finite {
            let weights = match is_rounded {
                true => weights.rounded(options)?,
                false => weights,
            };
            let model = self.model.with_trained(weights)?;
            std::mem::replace(&mut self.model, model).give_memory_to(&self.spare);
        }
        Ok(report)
    }

    fn step_on_gpu(&mut self, gpu: &Gpu, gradients: UnitGradients, lr: f64) -> Result<StepReport> {
        let mut all = gradients.gpu;
        all.extend(gradients.host.upload(gpu)?);
        let trained = match &self.on_gpu {
            Some(trained) => trained,
            None => {
                let (model, state) = (&self.model, &self.state);
                let (weights, is_rounded) = match &self.master {
                    Some(master) => (master, true),
                    None => (model.trained_weights(), false),
                };
                let uploaded =
                    gpu::Trained::upload(gpu, (weights, is_rounded), state, model.adapted_bases())?;
                self.state.forget_moments();
                self.on_gpu.insert(uploaded)
            }
        };
        let (report, step) = self.state.begin(&self.options, gpu::norm(&all)?, lr);
        if let Some(step) = step {
            trained.step(&step, all)?;
            self.ahead = true;
            self.model.renew_on_gpu(trained)?;
        }
        Ok(report)
    }
}
