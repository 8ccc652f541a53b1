//! Limits on the number of jobs of a plan: planners, workers and viewers list all jobs of an
//! iteration, so products of keys need a limit as the keys do.

use crate::config::keys::limits::{ITERATIONS_MAX, PARTS_MAX, STEPS_MAX};
use crate::config::{Config, Pipeline};
use crate::{Error, Result};

/// Refuses iterations with too many parts to list.
pub(super) fn check_parts(config: &Config) -> Result<()> {
    let (data, jobs, actor) = (&config.data, &config.jobs, &config.actor_rollout_ref.actor);
    let batch = data.train_batch_size as u64;
    let parts = |key: &str, what: &str, found: u64| match found <= PARTS_MAX {
        true => Ok(()),
        false => Err(Error::value(
            key,
            format!(
                "makes {found} {what} of one iteration, at most {PARTS_MAX} can be planned; give fewer, larger ones"
            ),
        )),
    };
    let (trains, plays) = match config.run.pipeline {
        Pipeline::Rl => (true, true),
        Pipeline::AgentEvol => (false, true),
        Pipeline::Sft | Pipeline::Dpo | Pipeline::Eval => (false, false),
    };
    if plays {
        let filter = &config.algorithm.filter_groups;
        let rounds = match filter.enable {
            true => u64::from(filter.max_num_gen_batches),
            false => 1,
        };
        let found = batch.div_ceil(jobs.rollout_part_tasks as u64) * rounds;
        parts("jobs.rollout_part_tasks", "rollout parts", found)?;
    }
    if trains {
        let mini = actor.ppo_mini_batch_size as u64;
        let found = steps(
            "actor_rollout_ref.actor.ppo_mini_batch_size",
            batch.div_ceil(mini) * u64::from(actor.ppo_epochs),
        )?;
        if jobs.update_shards > 1 {
            let found = found * u64::from(jobs.update_shards);
            parts(
                "jobs.update_shards",
                "parts with shares of gradients",
                found,
            )?;
        }
        if config.has_critic() {
            let critic = &config.critic;
            let minibatches = batch.div_ceil(critic.ppo_mini_batch_size as u64);
            steps(
                "critic.ppo_mini_batch_size",
                minibatches * u64::from(critic.ppo_epochs),
            )?;
        }
    }
    let sft_steps = match config.run.pipeline {
        Pipeline::Eval => 0,
        Pipeline::AgentEvol => config.sft.steps_planned().max(config.agentevol.steps),
        Pipeline::Rl | Pipeline::Sft | Pipeline::Dpo => config.sft.steps_planned(),
    };
    let found = sft_steps.div_ceil(jobs.sft_part_steps);
    parts("jobs.sft_part_steps", "sft parts", found.into())?;
    if config.run.pipeline == Pipeline::Dpo {
        let found = config.dpo.steps.div_ceil(jobs.dpo_part_steps);
        parts("jobs.dpo_part_steps", "dpo parts", found.into())?;
    }
    parts(
        "evaluation.sets",
        "evaluations",
        config.evaluation.sets.len() as u64,
    )
}

fn steps(key: &str, found: u64) -> Result<u64> {
    match found <= STEPS_MAX {
        true => Ok(found),
        false => Err(Error::value(
            key,
            format!(
                "makes {found} optimizer steps of one iteration (minibatches × epochs), at most {STEPS_MAX} can be made; \
                 give larger minibatches or fewer epochs"
            ),
        )),
    }
}

/// Applies the limit of the iterations key to a number of iterations that follows from the data.
pub(super) fn check_iterations(config: &Config, iterations: u32) -> Result<()> {
    if iterations <= ITERATIONS_MAX {
        return Ok(());
    }
    Err(Error::value(
        "trainer.total_epochs",
        format!(
            "{} passes over the data are {iterations} iterations or more, at most {ITERATIONS_MAX} can be planned; give \
             fewer, or trainer.total_training_steps",
            config.trainer.total_epochs
        ),
    ))
}
