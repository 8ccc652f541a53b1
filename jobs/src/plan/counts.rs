//! Counts by iteration: rounds of rollouts, parts, optimizer steps.

use super::{InitRole, Plan};
use crate::config::{KlCtrlType, Numerics, Pipeline, RolloutEngine};
use crate::episode::Task;

impl Plan {
    /// The last iteration that a fork shares with its parent.
    pub fn forked_at(&self) -> Option<u32> {
        let fork = &self.config.run.fork;
        fork.run.as_ref().map(|_| fork.iteration)
    }

    /// The most rollout rounds in an iteration: one, or with a filter as many as it may take to
    /// find enough informative groups.
    pub fn rollout_rounds(&self) -> u32 {
        let filter = &self.config.algorithm.filter_groups;
        match self.selects() {
            true => filter.max_num_gen_batches,
            false => 1,
        }
    }

    /// True if an iteration selects among its groups.
    pub fn selects(&self) -> bool {
        self.config.run.pipeline == Pipeline::Rl && self.config.algorithm.filter_groups.enable
    }

    /// True if what a rollout records of its sampled tokens is, bit for bit, what scoring them again
    /// gives: the same policy, in one numeric class, by the whole distribution.
    pub fn samples_are_scores(&self) -> bool {
        let config = &self.config;
        let rollout = &config.actor_rollout_ref.rollout;
        config.run.pipeline == Pipeline::Rl
            && rollout.record_entropies
            && config.run.numerics == Numerics::Exact
            && config.algorithm.lag == 0
            && rollout.top_k <= 0
            && rollout.top_p >= 1.0
    }

    /// The head of every reply, which the policy does not sample.
    pub fn reply_prefix(&self) -> Option<&str> {
        let gym = &self.config.actor_rollout_ref.agentgym;
        gym.reply_prefix.as_deref()
    }

    /// True if an inference server generates the rollouts.
    pub fn generates_by_server(&self) -> bool {
        let config = &self.config;
        config.run.pipeline == Pipeline::Rl
            && config.actor_rollout_ref.rollout.engine == RolloutEngine::Server
    }

    /// True if a chat API plays the evaluations.
    pub fn evaluates_by_chat(&self) -> bool {
        let config = &self.config;
        config.run.pipeline == Pipeline::Eval
            && config.actor_rollout_ref.rollout.engine == RolloutEngine::Chat
    }

    /// True if candle plays the evaluations.
    pub fn evaluates_by_candle(&self) -> bool {
        let config = &self.config;
        config.run.pipeline == Pipeline::Eval
            && config.actor_rollout_ref.rollout.engine == RolloutEngine::Candle
    }

    /// True if the actions of some environment are calls of tools.
    pub fn calls_tools(&self) -> bool {
        let environments = self.config.environments();
        let mut specs = (environments.values()).map(|known| self.config.spec(&known.task_name));
        specs.any(|spec| spec.is_ok_and(|spec| !spec.calls.is_empty()))
    }

    /// Most ids of a conversation.
    pub fn context_tokens(&self) -> usize {
        let (data, rollout) = (&self.config.data, &self.config.actor_rollout_ref.rollout);
        let prompt = data.max_prompt_length.min(rollout.prompt_length);
        let response = self.config.response_tokens_max();
        rollout.max_model_len.min(prompt.saturating_add(response))
    }

    /// True if this part of `log_probs` is scored: to get the numbers, or to check those recorded.
    /// Of any run of consecutive parts that share is checked, to within one.
    pub fn scores_again(&self, iteration: u32, part: u32) -> bool {
        let parts = f64::from(self.rollout_parts() * self.rollout_rounds());
        let before = f64::from(iteration.saturating_sub(1)) * parts + f64::from(part);
        let checked = |parts: f64| (parts * self.config.algorithm.verify_log_probs).floor();
        !self.samples_are_scores() || checked(before + 1.0) > checked(before)
    }

    /// True if every task of a rollout is also played once greedily, as a baseline.
    pub fn plays_baselines(&self) -> bool {
        let estimator = self.config.algorithm.adv_estimator;
        self.config.run.pipeline == Pipeline::Rl && estimator.needs_baseline()
    }

    /// True if an HTTP function gives the rewards in the environment's place.
    pub fn has_reward_function(&self) -> bool {
        self.config.reward.function.is_some()
    }

    /// The tasks that an iteration plays in a round, by draw index. Rounds that are not needed
    /// still consume their tasks, so that the tasks of an iteration depend only on its number, and on
    /// the sources that have `entered` under a curriculum.
    pub fn round_tasks(&self, iteration: u32, round: u32, entered: Option<usize>) -> Vec<Task> {
        let before = iteration
            .saturating_sub(1)
            .saturating_mul(self.rollout_rounds());
        let iteration = before.saturating_add(round + 1);
        self.tasks
            .draws_of(iteration, entered.unwrap_or(usize::MAX))
    }

    /// True if the sources of `data.tasks` enter one by one.
    pub fn has_curriculum(&self) -> bool {
        self.config.data.curriculum.solved.is_some()
    }

    /// Rollout parts of one round.
    pub fn rollout_parts(&self) -> u32 {
        self.config
            .data
            .train_batch_size
            .div_ceil(self.config.jobs.rollout_part_tasks) as u32
    }

    /// Draw indices that a rollout part plays.
    pub fn rollout_draws(&self, part: u32) -> std::ops::Range<usize> {
        let (size, all) = (
            self.config.jobs.rollout_part_tasks,
            self.config.data.train_batch_size,
        );
        (part as usize * size).min(all)..((part as usize + 1) * size).min(all)
    }

    /// Optimizer steps of the sft stage of an iteration; 0 without one. Iteration 0 trains on
    /// demonstrations only; an AgentEvol run trains in every iteration.
    pub fn sft_steps_of(&self, iteration: u32) -> u32 {
        match (self.config.run.pipeline, iteration) {
            (Pipeline::Eval, _) => 0,
            (_, 0) => self.config.sft.steps_planned(),
            (Pipeline::AgentEvol, _) => self.config.agentevol.steps,
            (Pipeline::Rl | Pipeline::Sft | Pipeline::Dpo, _) => 0,
        }
    }

    /// Parts of the sft stage of an iteration.
    pub fn sft_parts(&self, iteration: u32) -> u32 {
        let steps = self.sft_steps_of(iteration);
        steps.div_ceil(self.config.jobs.sft_part_steps)
    }

    /// Optimizer steps of an iteration's update: its minibatches, once per epoch; none during the
    /// critic's warm-up.
    pub fn update_steps(&self, iteration: u32) -> u32 {
        let (config, actor) = (&self.config, &self.config.actor_rollout_ref.actor);
        if config.run.pipeline != Pipeline::Rl || iteration <= config.trainer.critic_warmup {
            return 0;
        }
        actor.ppo_epochs * self.minibatches()
    }

    /// Minibatches in one pass over the tasks of an iteration.
    pub fn minibatches(&self) -> u32 {
        let mini = self.config.actor_rollout_ref.actor.ppo_mini_batch_size;
        self.config.data.train_batch_size.div_ceil(mini) as u32
    }

    /// Parts that share the gradient of each optimizer step; 0 if one part makes the whole update.
    pub fn gradient_shards(&self, iteration: u32) -> u32 {
        match self.config.jobs.update_shards {
            shards if shards > 1 && self.update_steps(iteration) > 0 => shards,
            _ => 0,
        }
    }

    /// Parts of the update stage: one or, with gradient shards, one per optimizer step.
    pub fn update_parts(&self, iteration: u32) -> u32 {
        match self.gradient_shards(iteration) {
            0 => 1,
            _ => self.update_steps(iteration),
        }
    }

    /// Parts of the dpo stage; 0 in runs of other pipelines.
    pub fn dpo_parts(&self) -> u32 {
        match self.config.run.pipeline {
            Pipeline::Dpo => self
                .config
                .dpo
                .steps
                .div_ceil(self.config.jobs.dpo_part_steps),
            Pipeline::Rl | Pipeline::Sft | Pipeline::AgentEvol | Pipeline::Eval => 0,
        }
    }

    /// Optimizer steps (0-based) of a dpo part.
    pub fn dpo_steps(&self, part: u32) -> std::ops::Range<u32> {
        let (size, all) = (self.config.jobs.dpo_part_steps, self.config.dpo.steps);
        (part * size).min(all)..((part + 1) * size).min(all)
    }

    /// True if iteration 0 trains, so that the policy before it is evaluated too.
    pub fn warms_up(&self) -> bool {
        self.sft_parts(0) + self.dpo_parts() > 0
    }

    /// Optimizer steps (0-based) of an sft part.
    pub fn sft_steps(&self, iteration: u32, part: u32) -> std::ops::Range<u32> {
        let size = self.config.jobs.sft_part_steps;
        let all = self.sft_steps_of(iteration);
        (part * size).min(all)..((part + 1) * size).min(all)
    }

    /// True if the policy after `iteration` is evaluated.
    pub fn evaluates(&self, iteration: u32) -> bool {
        let every = self.config.trainer.test_freq;
        iteration == self.iterations
            || iteration == 0
            || (every > 0 && iteration.is_multiple_of(every))
    }

    /// True if any stage reads the reference policy.
    pub fn needs_reference(&self) -> bool {
        let config = &self.config;
        match config.run.pipeline {
            Pipeline::Rl => {
                config.actor_rollout_ref.actor.use_kl_loss || config.algorithm.use_kl_in_reward
            }
            Pipeline::Sft | Pipeline::AgentEvol | Pipeline::Eval => false,
            Pipeline::Dpo => true,
        }
    }

    /// True if an adapter is trained and the policy's own weights are frozen.
    pub fn has_adapter(&self) -> bool {
        self.config.actor_rollout_ref.model.has_adapter()
    }

    /// True if the coefficient of the KL penalty adapts to the measured KL, so that an iteration
    /// needs the previous iteration's state.
    pub fn kl_adapts(&self) -> bool {
        let algorithm = &self.config.algorithm;
        algorithm.use_kl_in_reward && algorithm.kl_ctrl.kind == KlCtrlType::Adaptive
    }

    /// What each part of the `init` stage writes.
    pub fn init_roles(&self) -> Vec<InitRole> {
        let reference = &self.config.actor_rollout_ref.reference.model.path;
        let mut roles = vec![InitRole::Policy];
        if self.needs_reference() && reference.is_some() {
            roles.push(InitRole::Reference);
        }
        if self.config.has_critic() {
            roles.push(InitRole::Critic);
        }
        roles
    }

    /// Rounds of a 1-based iteration.
    pub fn rounds_max(&self, iteration: u32) -> u32 {
        self.horizon.rounds_max(iteration)
    }
}
