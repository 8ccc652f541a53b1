//! The section of a preference run.

use super::{Config, Dpo, Pipeline};
use crate::{Error, Result};
use agentgym_algorithms::LearningRate;
use agentgym_algorithms::losses::Dpo as DpoLossOptions;

impl Dpo {
    /// The loss of a pair.
    ///
    /// # Errors
    /// An unknown name, or a β for which the loss means nothing.
    pub fn loss(&self) -> Result<DpoLossOptions> {
        let loss = DpoLossOptions {
            beta: self.beta,
            loss: self
                .loss_type
                .parse()
                .map_err(|e: agentgym_algorithms::Error| {
                    Error::value("dpo.loss_type", e.to_string())
                })?,
        };
        loss.validate()
            .map_err(|e| Error::value("dpo.beta", e.to_string()))?;
        Ok(loss)
    }

    /// The learning rate by optimizer step, 1-based.
    ///
    /// # Errors
    /// Constants for which the schedule means nothing.
    pub fn learning_rate(&self) -> Result<LearningRate> {
        let schedule = LearningRate {
            base: self.lr,
            warmup_iterations: self.warmup_steps,
            total_iterations: self.steps,
            style: self.warmup_style.into(),
            min_lr_ratio: self.min_lr_ratio,
        };
        schedule
            .validate()
            .map_err(|e| Error::value("dpo.lr", e.to_string()))?;
        Ok(schedule)
    }
}

impl Config {
    /// Checks the section where the run is a preference run.
    pub(super) fn check_dpo(&self) -> Result<()> {
        let dpo = &self.dpo;
        if self.run.pipeline != Pipeline::Dpo {
            return Ok(());
        }
        for (key, file) in [
            ("dpo.expert_file", &dpo.expert_file),
            ("dpo.experience_file", &dpo.experience_file),
        ] {
            if file.is_none() {
                return Err(Error::value(
                    key,
                    "a dpo run compares the trajectories of two files; give both",
                ));
            }
        }
        for (key, value) in [
            ("dpo.steps", f64::from(dpo.steps)),
            ("dpo.batch_size", dpo.batch_size as f64),
            ("dpo.prompt_length", dpo.prompt_length as f64),
            ("dpo.lr", dpo.lr),
            ("jobs.dpo_part_steps", f64::from(self.jobs.dpo_part_steps)),
        ] {
            if !(value > 0.0 && value.is_finite()) {
                return Err(Error::value(
                    key,
                    format!("must be positive, found {value}"),
                ));
            }
        }
        if dpo.reward_gap < 0.0 || !dpo.expert_threshold.is_finite() {
            return Err(Error::value(
                "dpo.reward_gap",
                "must not be negative, and dpo.expert_threshold must be a number",
            ));
        }
        dpo.loss()?;
        dpo.learning_rate()?;
        Ok(())
    }
}
