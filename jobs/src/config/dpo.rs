//! The section of a preference run.

use super::{Config, Dpo, Pipeline};
use crate::{Error, Result};
use agentgym_algorithms::LearningRate;
use agentgym_algorithms::losses::Dpo as DpoLossOptions;

impl Dpo {
    /// The loss of a preference pair.
    ///
    /// # Errors
    /// A β for which the loss is undefined.
    pub fn loss(&self) -> Result<DpoLossOptions> {
        let loss = DpoLossOptions {
            beta: self.beta,
            loss: self.loss_type.value,
        };
        loss.validate()
            .map_err(|e| Error::value("dpo.beta", e.to_string()))?;
        Ok(loss)
    }

    /// The learning rate by optimizer step, 1-based.
    ///
    /// # Errors
    /// Constants for which the schedule is undefined.
    pub fn learning_rate(&self) -> Result<LearningRate> {
        let schedule = LearningRate {
            base: self.lr,
            warmup_iterations: self.warmup_steps,
            total_iterations: self.steps,
            style: self.warmup_style,
            min_lr_ratio: self.min_lr_ratio,
        };
        schedule
            .validate()
            .map_err(|e| Error::value("dpo.lr", e.to_string()))?;
        Ok(schedule)
    }
}

impl Config {
    /// Checks the section if the run is a preference run.
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
        for (key, is_zero) in [
            ("dpo.steps", dpo.steps == 0),
            ("dpo.prompt_length", dpo.prompt_length == 0),
        ] {
            if is_zero {
                return Err(Error::value(key, "must be positive, found 0"));
            }
        }
        dpo.loss()?;
        dpo.learning_rate()?;
        Ok(())
    }
}
