//! The part of a config that says what is optimised: estimator, KL, the
//! correction for other samplers, and the critic. What depends on several keys
//! at once is checked here, before anything runs, and handed to the stages as
//! the types of `agentgym_algorithms`.

use super::{Config, KlCtrl, KlCtrlType, Optim, Pipeline, RolloutCorrection};
use crate::{Error, Result};
use agentgym_algorithms::{
    ActorLoss, Aggregation, ClipRange, ImportanceCorrection, KlController, LearningRate, ValueLoss,
    advantages::OverlongBuffer, losses::KlLoss,
};

impl Config {
    /// True if the run trains a critic.
    pub fn has_critic(&self) -> bool {
        self.run.pipeline == Pipeline::Rl && self.algorithm.adv_estimator.needs_values()
    }

    /// The controller of the KL penalty in the reward, where there is one.
    ///
    /// # Errors
    /// Constants for which it means nothing.
    pub fn kl_controller(&self) -> Result<Option<KlController>> {
        if !self.algorithm.use_kl_in_reward {
            return Ok(None);
        }
        let KlCtrl {
            kind,
            kl_coef,
            target_kl,
            horizon,
        } = self.algorithm.kl_ctrl;
        let controller = match kind {
            KlCtrlType::Fixed => KlController::Fixed { kl_coef },
            KlCtrlType::Adaptive => KlController::Adaptive {
                kl_coef,
                target_kl,
                horizon,
            },
        };
        controller
            .validate()
            .map_err(|e| Error::value("algorithm.kl_ctrl", e.to_string()))?;
        Ok(Some(controller))
    }

    /// The correction for tokens that another policy sampled, where it is on.
    ///
    /// # Errors
    /// A threshold that means nothing.
    pub fn importance_correction(&self) -> Result<Option<ImportanceCorrection>> {
        const KEY: &str = "algorithm.rollout_correction";
        let RolloutCorrection {
            rollout_is,
            rollout_is_threshold,
        } = &self.algorithm.rollout_correction;
        let Some(level) = rollout_is else {
            return Ok(None);
        };
        let correction = ImportanceCorrection {
            level: level.value,
            threshold: *rollout_is_threshold,
        };
        correction
            .validate()
            .map_err(|e| Error::value(KEY, e.to_string()))?;
        Ok(Some(correction))
    }

    /// The loss of the policy.
    ///
    /// # Errors
    /// Constants for which the loss means nothing.
    pub fn actor_loss(&self) -> Result<ActorLoss> {
        const KEY: &str = "actor_rollout_ref.actor";
        let actor = &self.actor_rollout_ref.actor;
        let kl = match actor.use_kl_loss {
            true => Some(KlLoss {
                estimator: actor.kl_loss_type.value,
                coef: actor.kl_loss_coef,
            }),
            false => None,
        };
        let loss = ActorLoss {
            policy: actor.policy_loss.loss_mode,
            clip: ClipRange {
                low: actor.clip_ratio_low,
                high: actor.clip_ratio_high,
            },
            dual_clip: actor.clip_ratio_c,
            entropy_coeff: actor.entropy_coeff,
            kl,
            aggregation: actor.loss_agg_mode.value,
            response_tokens_max: self.constant_divisor(actor.loss_agg_mode.value),
        };
        loss.validate()
            .map_err(|e| Error::value(KEY, e.to_string()))?;
        Ok(loss)
    }

    /// The loss of the critic.
    pub fn value_loss(&self) -> ValueLoss {
        ValueLoss {
            clip: self.critic.cliprange_value,
            aggregation: self.critic.loss_agg_mode.value,
            response_tokens_max: self.constant_divisor(self.critic.loss_agg_mode.value),
        }
    }

    /// L of `seq_mean_token_sum_norm`.
    fn constant_divisor(&self, aggregation: Aggregation) -> Option<usize> {
        let constant = self.response_tokens_max();
        (aggregation == Aggregation::SeqMeanTokenSumNorm).then_some(constant)
    }

    /// Most tokens after the prompt.
    pub fn response_tokens_max(&self) -> usize {
        let rollout = &self.actor_rollout_ref.rollout;
        self.data.max_response_length.min(rollout.response_length)
    }

    /// The penalty of long episodes, if there is one.
    ///
    /// # Errors
    /// Constants for which it means nothing.
    pub fn overlong_buffer(&self) -> Result<Option<OverlongBuffer>> {
        let keys = self.reward.overlong_buffer;
        let buffer = OverlongBuffer {
            response_tokens_max: self.response_tokens_max(),
            buffer_tokens: keys.len,
            penalty_factor: keys.penalty_factor,
        };
        if keys.len == 0 {
            return Ok(None);
        }
        buffer
            .validate()
            .map_err(|e| Error::value("reward.overlong_buffer", e.to_string()))?;
        Ok(Some(buffer))
    }

    /// Checks what the algorithm's keys say together.
    pub(super) fn check_algorithm(&self) -> Result<()> {
        let (algorithm, actor) = (&self.algorithm, &self.actor_rollout_ref.actor);
        let n = self.actor_rollout_ref.rollout.n;
        // Without tasks nothing is compared: such a config is one for `eval`.
        let trains = self.run.pipeline == Pipeline::Rl && self.has_tasks();
        if trains && algorithm.adv_estimator.needs_groups() && n < 2 {
            return Err(Error::value(
                "actor_rollout_ref.rollout.n",
                format!(
                    "{} compares the episodes of a group, {n} cannot be compared; set it to 2 or more",
                    algorithm.adv_estimator
                ),
            ));
        }
        self.check_filter()?;
        self.overlong_buffer()?;
        self.kl_controller()?;
        self.importance_correction()?;
        let loss = self.actor_loss()?;
        check_micro_batches(
            "actor_rollout_ref.actor",
            loss.aggregation,
            actor.ppo_mini_batch_size * n as usize,
            actor.ppo_micro_batch_size,
        )?;
        if self.has_critic() {
            self.check_critic()?;
        } else if self.trainer.critic_warmup > 0 {
            return Err(Error::value(
                "trainer.critic_warmup",
                format!(
                    "{} has no critic to warm up; set it to 0, or algorithm.adv_estimator to gae",
                    algorithm.adv_estimator
                ),
            ));
        }
        Ok(())
    }

    fn check_filter(&self) -> Result<()> {
        let (algorithm, filter) = (&self.algorithm, &self.algorithm.filter_groups);
        if filter.enable && !algorithm.adv_estimator.needs_groups() {
            return Err(Error::value(
                "algorithm.filter_groups.enable",
                format!(
                    "{} learns from groups of equal rewards too; the filter is for estimators that compare the episodes of a group, such as grpo",
                    algorithm.adv_estimator
                ),
            ));
        }
        const BATCHES_MAX: u32 = 16;
        if filter.enable && !(1..=BATCHES_MAX).contains(&filter.max_num_gen_batches) {
            return Err(Error::value(
                "algorithm.filter_groups.max_num_gen_batches",
                format!(
                    "must be between 1 and {BATCHES_MAX}, found {}",
                    filter.max_num_gen_batches
                ),
            ));
        }
        Ok(())
    }

    fn check_critic(&self) -> Result<()> {
        let critic = &self.critic;
        let (batch, mini) = (self.data.train_batch_size, critic.ppo_mini_batch_size);
        if batch % mini != 0 {
            return Err(Error::value(
                "critic.ppo_mini_batch_size",
                format!("{mini} does not divide data.train_batch_size = {batch}; choose a divisor"),
            ));
        }
        check_micro_batches(
            "critic",
            critic.loss_agg_mode.value,
            mini * self.actor_rollout_ref.rollout.n as usize,
            critic.ppo_micro_batch_size,
        )
    }
}

impl Optim {
    /// The learning rate by iteration, of a run of so many.
    ///
    /// # Errors
    /// Constants for which the schedule means nothing.
    pub fn learning_rate(&self, iterations: u32) -> Result<LearningRate> {
        let schedule = LearningRate {
            base: self.lr,
            warmup_iterations: (self.lr_warmup_steps_ratio * f64::from(iterations)) as u32,
            total_iterations: iterations,
            style: self.warmup_style,
            min_lr_ratio: self.min_lr_ratio,
        };
        schedule
            .validate()
            .map_err(|e| Error::value("optim", e.to_string()))?;
        Ok(schedule)
    }
}

/// Where a mean over micro-batches is asked for, their size must be given and
/// divide the minibatch's `sequences`: it decides what every token weighs.
fn check_micro_batches(
    section: &str,
    aggregation: Aggregation,
    sequences: usize,
    micro: Option<usize>,
) -> Result<()> {
    if aggregation != Aggregation::MicroBatchMean {
        return Ok(());
    }
    let key = format!("{section}.ppo_micro_batch_size");
    match micro {
        None => Err(Error::value(
            key,
            "loss_agg_mode micro_batch_mean averages over micro-batches; give their size in episodes",
        )),
        Some(size) if size == 0 || !sequences.is_multiple_of(size) => Err(Error::value(
            key,
            format!(
                "{size} does not divide the {sequences} episodes of a minibatch (ppo_mini_batch_size × rollout.n)"
            ),
        )),
        Some(_) => Ok(()),
    }
}
