//! The table of keys. A line per key would be nicer still; what matters is
//! that nothing about a key is written anywhere else.

use super::spec::{KeySpec, Kind};

/// An identity key that came after the first plans were made.
const fn option(path: &'static str, default: &'static str, doc: &'static str) -> KeySpec {
    KeySpec {
        hashed_if_set: true,
        ..id(path, default, doc)
    }
}

const fn id(path: &'static str, default: &'static str, doc: &'static str) -> KeySpec {
    KeySpec {
        path,
        kind: Kind::Identity,
        default,
        doc,
        hashed_if_set: false,
        only: "",
    }
}
const fn bind(path: &'static str, default: &'static str, doc: &'static str) -> KeySpec {
    KeySpec {
        path,
        kind: Kind::Binding,
        default,
        doc,
        hashed_if_set: false,
        only: "",
    }
}
const fn unused(path: &'static str) -> KeySpec {
    KeySpec {
        path,
        kind: Kind::Unused,
        default: "null",
        doc: "not used here",
        hashed_if_set: false,
        only: "",
    }
}
/// Machinery that would change what is learnt: only the values of the YAML list
/// `only` are accepted. `doc` says what is done here.
const fn neutral(path: &'static str, only: &'static str, doc: &'static str) -> KeySpec {
    KeySpec {
        only,
        doc,
        ..unused(path)
    }
}

/// All keys, sorted by section. A key whose value is a list or a map of
/// things (`tasks`, `envs`, `sets`) is one entry: what is below it is checked
/// by its type.
pub const KEYS: &[KeySpec] = &[
    // --- run ---------------------------------------------------------------
    bind(
        "run.id",
        "null",
        "name of the run; default: file stem and the head of the plan hash",
    ),
    id("run.pipeline", "rl", "rl, sft, dpo, agentevol or eval"),
    id("run.seed", "1", "seed of every random stream of the run"),
    id(
        "run.numerics",
        "exact",
        "exact: one numeric class for the whole run; any: mixed fleets",
    ),
    option(
        "run.fork.run",
        "null",
        "the run that this one was forked from; set by `agentgym-submit fork`, as the keys below",
    ),
    option("run.fork.identity", "null", "the hash of its plan"),
    option(
        "run.fork.iteration",
        "0",
        "the last of its iterations that this run takes over",
    ),
    option(
        "run.fork.fresh_optimizer",
        "false",
        "its optimizer states were left behind",
    ),
    // --- storage, queue, jobs ----------------------------------------------
    bind(
        "storage.url",
        "agentgym-data",
        "folder, s3://bucket/prefix or memory:",
    ),
    bind(
        "queue.url",
        "null",
        "sqlite:FILE or redis://…; default: a SQLite file beside a folder store",
    ),
    bind(
        "jobs.workers",
        "1",
        "workers that agentgym-submit starts in its own process; 0 only follows",
    ),
    bind(
        "jobs.threads",
        "null",
        "compute threads of each worker; default: all cores",
    ),
    bind(
        "jobs.hold",
        "false",
        "no part is begun; rollouts and evaluations under way finish their turns and journal them: what `cancel` sets and `resume` lifts",
    ),
    bind(
        "jobs.priority",
        "0",
        "jobs of runs with a higher one are taken first; runs of the same one take turns",
    ),
    id(
        "jobs.rollout_part_tasks",
        "4",
        "tasks of an iteration that one rollout part plays",
    ),
    id(
        "jobs.unit_tokens",
        "2048",
        "a gradient unit holds whole sequences up to this many tokens",
    ),
    option(
        "jobs.update_shards",
        "1",
        "jobs that share the gradient of each optimizer step of an update; 1: one job makes all steps",
    ),
    id(
        "jobs.sft_part_steps",
        "200",
        "optimizer steps of one part of an sft stage",
    ),
    option(
        "jobs.dpo_part_steps",
        "50",
        "optimizer steps of one part of a dpo stage",
    ),
    bind(
        "jobs.pack_tokens",
        "4096",
        "tokens scored at once by one thread",
    ),
    bind(
        "jobs.decode_rows",
        "64",
        "episodes decoded at once by one thread",
    ),
    bind(
        "jobs.cache_tokens",
        "262144",
        "tokens of KV cache kept by one thread",
    ),
    bind(
        "jobs.journal_interval_s",
        "5",
        "how often a part that plays episodes journals what has happened in them",
    ),
    bind(
        "jobs.beat_timeout_s",
        "600",
        "a stage that reports no progress for so long ends the process",
    ),
    bind(
        "jobs.lease_ttl_s",
        "60",
        "a worker that is silent for so long loses its jobs",
    ),
    bind(
        "jobs.failures_max",
        "3",
        "failed attempts of a part before the run stops",
    ),
    bind(
        "jobs.vanished_max",
        "20",
        "attempts that may vanish with their worker",
    ),
    bind(
        "jobs.backoff_s",
        "2",
        "wait after the first failed attempt; doubles",
    ),
    bind(
        "jobs.length_max",
        "1000",
        "most jobs of a stage on the queue at once",
    ),
    bind(
        "jobs.cache_gb",
        "64",
        "most that a worker keeps of downloaded models, in gigabytes; what is in use stays anyway",
    ),
    // --- data ----------------------------------------------------------------
    id(
        "data.train_file",
        "null",
        "AgentItemId JSON file, or a list of them; given to the command it takes the place of a config's data.tasks",
    ),
    id(
        "data.tasks",
        "[]",
        "task sources: {env, ids: A..B | A..B:STEP | [..], share}",
    ),
    id(
        "data.train_batch_size",
        "16",
        "tasks (groups) per iteration",
    ),
    id(
        "data.max_prompt_length",
        "1024",
        "tokens of the first prompt; what it needs beyond them is taken off max_response_length",
    ),
    id(
        "data.max_response_length",
        "4096",
        "most tokens after the prompt",
    ),
    id(
        "data.shuffle",
        "true",
        "shuffle the tasks anew in every pass",
    ),
    id("data.seed", "1", "seed of that shuffle"),
    // --- policy --------------------------------------------------------------
    id(
        "actor_rollout_ref.model.path",
        "tiny",
        "folder, store URL, hub id in the local cache, or tiny?arch=qwen3&vocab=…&hidden=…",
    ),
    option(
        "actor_rollout_ref.model.lora_rank",
        "0",
        "train a LoRA adapter of this rank instead of the policy's weights; 0: off",
    ),
    option(
        "actor_rollout_ref.model.lora_alpha",
        "16",
        "the adapter's product is multiplied by lora_alpha / lora_rank",
    ),
    option(
        "actor_rollout_ref.model.target_modules",
        "all-linear",
        "what is adapted: all-linear, or a list of q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj",
    ),
    option(
        "actor_rollout_ref.model.lora_adapter_path",
        "null",
        "folder of a PEFT adapter of model.path to go on with; its size is its own",
    ),
    bind(
        "actor_rollout_ref.model.enable_gradient_checkpointing",
        "false",
        "training keeps each layer's input alone and computes the layer again: a third more work, far less memory",
    ),
    id(
        "actor_rollout_ref.actor.ppo_mini_batch_size",
        "${data.train_batch_size}",
        "tasks per optimizer step (× rollout.n episodes)",
    ),
    option(
        "actor_rollout_ref.actor.ppo_micro_batch_size",
        "null",
        "episodes per micro-batch; read by loss_agg_mode micro_batch_mean alone",
    ),
    id(
        "actor_rollout_ref.actor.ppo_epochs",
        "1",
        "passes over the iteration's batch",
    ),
    id(
        "actor_rollout_ref.actor.clip_ratio",
        "0.2",
        "clip range of the policy loss",
    ),
    id(
        "actor_rollout_ref.actor.clip_ratio_low",
        "${actor_rollout_ref.actor.clip_ratio}",
        "lower clip range",
    ),
    id(
        "actor_rollout_ref.actor.clip_ratio_high",
        "${actor_rollout_ref.actor.clip_ratio}",
        "upper clip range",
    ),
    option(
        "actor_rollout_ref.actor.clip_ratio_c",
        "null",
        "dual clip: a bad token costs at most this × its advantage; null: off",
    ),
    option(
        "actor_rollout_ref.actor.policy_loss.loss_mode",
        "vanilla",
        "vanilla (PPO's clipped surrogate), gspo or cispo",
    ),
    id(
        "actor_rollout_ref.actor.entropy_coeff",
        "0.001",
        "entropy bonus; negative: entropy is minimised",
    ),
    id(
        "actor_rollout_ref.actor.use_kl_loss",
        "false",
        "KL to the reference policy in the loss",
    ),
    id(
        "actor_rollout_ref.actor.kl_loss_coef",
        "0.001",
        "its weight",
    ),
    id(
        "actor_rollout_ref.actor.kl_loss_type",
        "low_var_kl",
        "k1 (kl), abs, k2 (mse) or k3 (low_var_kl)",
    ),
    id(
        "actor_rollout_ref.actor.loss_agg_mode",
        "token_mean",
        "token_mean, seq_mean_token_sum, seq_mean_token_mean or micro_batch_mean",
    ),
    id(
        "actor_rollout_ref.actor.grad_clip",
        "1.0",
        "largest global gradient norm",
    ),
    id("actor_rollout_ref.actor.optim.lr", "1e-6", "learning rate"),
    id(
        "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio",
        "0.0",
        "share of the iterations that warm up",
    ),
    id(
        "actor_rollout_ref.actor.optim.warmup_style",
        "constant",
        "constant or cosine, after the warm-up",
    ),
    id(
        "actor_rollout_ref.actor.optim.min_lr_ratio",
        "0.0",
        "where cosine ends, as a share of lr",
    ),
    id(
        "actor_rollout_ref.actor.optim.betas",
        "[0.9, 0.999]",
        "AdamW betas",
    ),
    id(
        "actor_rollout_ref.actor.optim.weight_decay",
        "0.01",
        "AdamW decay",
    ),
    option(
        "actor_rollout_ref.actor.optim.decay_excludes_norms_and_biases",
        "false",
        "no decay on norms and biases",
    ),
    id(
        "actor_rollout_ref.ref.model.path",
        "null",
        "reference policy; default: the start policy",
    ),
    // --- rollout ---------------------------------------------------------------
    id(
        "actor_rollout_ref.rollout.n",
        "1",
        "episodes per task: the group size",
    ),
    id(
        "actor_rollout_ref.rollout.temperature",
        "1.0",
        "sampling temperature",
    ),
    id("actor_rollout_ref.rollout.top_k", "-1", "-1: off"),
    id("actor_rollout_ref.rollout.top_p", "1.0", "1: off"),
    id(
        "actor_rollout_ref.rollout.max_tokens",
        "1024",
        "most tokens per turn",
    ),
    id(
        "actor_rollout_ref.rollout.max_model_len",
        "32768",
        "longest context",
    ),
    id(
        "actor_rollout_ref.rollout.prompt_length",
        "${data.max_prompt_length}",
        "as data.max_prompt_length",
    ),
    id(
        "actor_rollout_ref.rollout.response_length",
        "${data.max_response_length}",
        "as data.max_response_length",
    ),
    id(
        "actor_rollout_ref.rollout.history",
        "template",
        "template: refuse templates that rewrite history; as_sampled: keep ids",
    ),
    bind(
        "actor_rollout_ref.rollout.episode_deadline_s",
        "600",
        "an attempt at an episode whose environment calls take longer in all is an environment fault; the policy's own time is not counted",
    ),
    bind(
        "actor_rollout_ref.rollout.fault_retries",
        "2",
        "times a faulted episode is played again, and a fault in its middle answered with a fresh session",
    ),
    option(
        "actor_rollout_ref.rollout.exclude",
        "[]",
        "training episodes not to play, [iteration, group, sample] each: as if the environment had spoiled them",
    ),
    // --- environments ----------------------------------------------------------
    id(
        "actor_rollout_ref.agentgym.task_name",
        "textcraft",
        "environment of data.train_file",
    ),
    bind(
        "actor_rollout_ref.agentgym.env_addr",
        "builtin",
        "URL of its server, or builtin",
    ),
    id(
        "actor_rollout_ref.agentgym.envs",
        "{}",
        "further environments: name: {task_name, env_addr} and limits of their own: {max_rounds, max_tokens}",
    ),
    bind(
        "actor_rollout_ref.agentgym.max_retries",
        "10",
        "tries to open an episode",
    ),
    bind(
        "actor_rollout_ref.agentgym.sessions_max",
        "null",
        "sessions that each worker has open at one address at a time; default: one for each episode that it plays",
    ),
    bind(
        "actor_rollout_ref.agentgym.timeout",
        "300",
        "seconds one environment call may take",
    ),
    id(
        "actor_rollout_ref.agentgym.instruction",
        "null",
        "first lines of every prompt; default: the environment's own",
    ),
    option(
        "actor_rollout_ref.agentgym.style",
        "null",
        "how to answer: plain, react, plan, reflect or another file of prompts/, or a path",
    ),
    option(
        "actor_rollout_ref.agentgym.context_turns",
        "null",
        "turns before the present one that the policy sees besides the prompt; null: all",
    ),
    option(
        "actor_rollout_ref.agentgym.summary",
        "null",
        "how the policy is asked to sum up, every context_turns turns or when the window is full: a file of prompts/, such as summary, or a path; null: never",
    ),
    option(
        "actor_rollout_ref.agentgym.record_actions",
        "false",
        "record the possible actions of every turn; one more call per turn where they have a path of their own",
    ),
    // --- algorithm ---------------------------------------------------------------
    id(
        "algorithm.adv_estimator",
        "grpo",
        "grpo, gae, reinforce_plus_plus, rloo or remax",
    ),
    id(
        "algorithm.norm_adv_by_std_in_grpo",
        "true",
        "divide by the group's standard deviation",
    ),
    id("algorithm.gamma", "1.0", "discount"),
    id("algorithm.lam", "1.0", "GAE lambda"),
    id(
        "algorithm.lag",
        "0",
        "iterations between the sampling and the trained policy",
    ),
    id(
        "algorithm.overlong",
        "keep",
        "keep: a horizon or length outcome keeps its reward; mask: it is not trained on",
    ),
    option(
        "algorithm.turn_rewards",
        "false",
        "reward each turn with what it earned, instead of the whole episode with the last reward",
    ),
    option(
        "algorithm.use_kl_in_reward",
        "false",
        "take the divergence from the reference policy off the reward",
    ),
    option(
        "algorithm.kl_penalty",
        "kl",
        "its estimator: k1 (kl), abs, k2 (mse) or k3 (low_var_kl)",
    ),
    option(
        "algorithm.kl_ctrl.type",
        "fixed",
        "its coefficient: fixed, or adaptive towards target_kl",
    ),
    option("algorithm.kl_ctrl.kl_coef", "0.001", "that of iteration 1"),
    option(
        "algorithm.kl_ctrl.target_kl",
        "0.1",
        "adaptive: the divergence to hold, nats per token",
    ),
    option(
        "algorithm.kl_ctrl.horizon",
        "10000",
        "adaptive: episodes over which a correction is spread",
    ),
    option(
        "algorithm.filter_groups.enable",
        "false",
        "train on groups whose rewards differ alone, and play more tasks for the others",
    ),
    option(
        "algorithm.filter_groups.max_num_gen_batches",
        "2",
        "most times an iteration plays tasks, the first included",
    ),
    option(
        "algorithm.rollout_correction.rollout_is",
        "null",
        "weigh tokens by old / sampled probability: token or sequence; null: off",
    ),
    option(
        "algorithm.rollout_correction.rollout_is_threshold",
        "2.0",
        "the largest such weight",
    ),
    id(
        "algorithm.rounds_ctrl.type",
        "fixed",
        "fixed or scaling_inter_stepwise",
    ),
    id(
        "algorithm.rounds_ctrl.rounds",
        "15",
        "rounds, or the list of stages",
    ),
    id(
        "algorithm.rounds_ctrl.steps_scaling_inter",
        "100",
        "iterations per stage",
    ),
    // --- critic (algorithm.adv_estimator: gae) -------------------------------------
    option(
        "critic.model.path",
        "null",
        "folder, hub id or tiny?… of the critic's trunk; default: the start policy's",
    ),
    bind(
        "critic.model.enable_gradient_checkpointing",
        "${actor_rollout_ref.model.enable_gradient_checkpointing}",
        "the same for the critic",
    ),
    option(
        "critic.ppo_mini_batch_size",
        "${actor_rollout_ref.actor.ppo_mini_batch_size}",
        "tasks per optimizer step (× rollout.n episodes)",
    ),
    option(
        "critic.ppo_micro_batch_size",
        "${actor_rollout_ref.actor.ppo_micro_batch_size}",
        "episodes per micro-batch, as for the actor",
    ),
    option(
        "critic.ppo_epochs",
        "${actor_rollout_ref.actor.ppo_epochs}",
        "passes over the iteration's batch",
    ),
    option(
        "critic.cliprange_value",
        "0.5",
        "farthest a value may move in an update; null: no clip",
    ),
    option(
        "critic.loss_agg_mode",
        "${actor_rollout_ref.actor.loss_agg_mode}",
        "as for the actor",
    ),
    option("critic.grad_clip", "1.0", "largest global gradient norm"),
    option("critic.optim.lr", "1e-5", "learning rate"),
    option(
        "critic.optim.lr_warmup_steps_ratio",
        "0.0",
        "share of the iterations that warm up",
    ),
    option(
        "critic.optim.warmup_style",
        "constant",
        "constant or cosine, after the warm-up",
    ),
    option(
        "critic.optim.min_lr_ratio",
        "0.0",
        "where cosine ends, as a share of lr",
    ),
    option("critic.optim.betas", "[0.9, 0.999]", "AdamW betas"),
    option("critic.optim.weight_decay", "0.01", "AdamW decay"),
    option(
        "critic.optim.decay_excludes_norms_and_biases",
        "false",
        "no decay on norms and biases",
    ),
    // --- sft -----------------------------------------------------------------------
    id(
        "sft.sources",
        "[]",
        "{file: PATH} or {env, ids, style}: demonstrations",
    ),
    id("sft.batch_size", "8", "conversations per optimizer step"),
    id(
        "sft.steps",
        "0",
        "optimizer steps of the warm start (rl) or of the run (sft)",
    ),
    option(
        "sft.epochs",
        "null",
        "passes over all rows, each in an order of its own, in place of sft.steps",
    ),
    id("sft.lr", "1e-3", "learning rate"),
    id("sft.warmup_steps", "20", "steps of linear warm-up"),
    id(
        "sft.min_lr_ratio",
        "0.1",
        "where the cosine ends, as a share of lr",
    ),
    id("sft.betas", "[0.9, 0.95]", "AdamW betas"),
    id("sft.weight_decay", "0.01", "AdamW decay"),
    id("sft.grad_clip", "1.0", "largest global gradient norm"),
    id(
        "sft.max_length",
        "4096",
        "longer conversations are refused, in tokens",
    ),
    option(
        "sft.overlong",
        "refuse",
        "rows of a file that are longer: refuse, or leave_out (counted)",
    ),
    option(
        "sft.validation_share",
        "0.0",
        "share of the rows that is never trained on, whole tasks by chance; their loss is measured",
    ),
    option(
        "sft.validation_sources",
        "[]",
        "in place of a share: {file: PATH} or {env, ids, style} to measure the loss on",
    ),
    // --- dpo (run.pipeline: dpo) ------------------------------------------------------
    option(
        "dpo.expert_file",
        "null",
        "trajectories {item_id, conversations, reward}, JSON or JSONL; the best of each task",
    ),
    option(
        "dpo.experience_file",
        "null",
        "trajectories to compare with; the worst of each task",
    ),
    option(
        "dpo.reward_gap",
        "0.01",
        "least difference of rewards within a pair",
    ),
    option(
        "dpo.expert_threshold",
        "0.7",
        "least reward of the chosen answer",
    ),
    option(
        "dpo.prompt_length",
        "3",
        "messages that both answers begin with",
    ),
    option("dpo.beta", "0.1", "what a nat of preference is worth"),
    option("dpo.loss_type", "sigmoid", "sigmoid, hinge or ipo"),
    option("dpo.batch_size", "8", "pairs per optimizer step"),
    option("dpo.steps", "0", "optimizer steps of the run"),
    option("dpo.lr", "5e-7", "learning rate"),
    option("dpo.warmup_steps", "0", "steps of linear warm-up"),
    option(
        "dpo.warmup_style",
        "constant",
        "constant or cosine, after the warm-up",
    ),
    option(
        "dpo.min_lr_ratio",
        "0.0",
        "where cosine ends, as a share of lr",
    ),
    option("dpo.betas", "[0.9, 0.999]", "AdamW betas"),
    option("dpo.weight_decay", "0.01", "AdamW decay"),
    option("dpo.grad_clip", "1.0", "largest global gradient norm"),
    option(
        "dpo.max_length",
        "4096",
        "longer answers are refused, prompt included, in tokens",
    ),
    option(
        "dpo.overlong",
        "refuse",
        "pairs with a longer answer: refuse, or leave_out (counted)",
    ),
    // --- agentevol (run.pipeline: agentevol) ------------------------------------------
    option(
        "agentevol.threshold",
        "null",
        "least reward of a kept trajectory: a number, or {env: number}; null: what the environment calls solved",
    ),
    option(
        "agentevol.keep",
        "best",
        "best: one trajectory per task; all: every one that differs",
    ),
    option(
        "agentevol.add_original_data",
        "true",
        "train on sft.sources beside what was kept",
    ),
    option(
        "agentevol.accumulate",
        "true",
        "train on what earlier iterations kept, too",
    ),
    option(
        "agentevol.share",
        "null",
        "share of every batch that was kept; default: by size",
    ),
    option(
        "agentevol.steps",
        "${sft.steps}",
        "optimizer steps of every iteration, from the base",
    ),
    // --- evaluation ------------------------------------------------------------------
    id(
        "evaluation.sets",
        "[]",
        "{name, env, ids, apart}: held-out tasks; file instead of ids: a test file with its categories",
    ),
    id(
        "evaluation.samples",
        "8",
        "episodes per task at evaluation.temperature",
    ),
    id(
        "evaluation.temperature",
        "1.0",
        "sampling temperature of evaluation; 0: greedy, with one sample",
    ),
    id(
        "evaluation.greedy",
        "true",
        "one greedy episode per task beside them",
    ),
    id("evaluation.max_rounds", "15", "horizon of evaluation"),
    option(
        "evaluation.k",
        "null",
        "the k of pass@k, a list; default: 1 and evaluation.samples",
    ),
    // --- guard -----------------------------------------------------------------------
    bind(
        "guard.patience",
        "3",
        "iterations running that must be beyond a limit before the run is paused",
    ),
    bind(
        "guard.entropy_min",
        "null",
        "pause below this entropy per token, nats; null: no limit",
    ),
    bind(
        "guard.entropy_max",
        "null",
        "pause above this entropy per token, nats",
    ),
    bind(
        "guard.grad_norm_max",
        "null",
        "pause above this gradient norm (before clipping)",
    ),
    bind(
        "guard.success_share_min",
        "null",
        "pause where success falls below this share of its best",
    ),
    bind(
        "guard.mismatch_max",
        "null",
        "pause above this difference of sampled and recomputed log-prob",
    ),
    // --- trainer ---------------------------------------------------------------------
    id(
        "trainer.total_training_steps",
        "null",
        "iterations; default: total_epochs × passes over the data",
    ),
    id("trainer.total_epochs", "1", "passes over the data"),
    bind(
        "trainer.save_freq",
        "25",
        "every so many iterations the policy is kept for good; 0 or -1: the first and the last alone",
    ),
    id(
        "trainer.test_freq",
        "10",
        "evaluate every so many iterations; 0 or -1: only at start and end",
    ),
    option(
        "trainer.critic_warmup",
        "0",
        "first iterations that train the critic alone",
    ),
    bind(
        "trainer.project_name",
        "agentgym",
        "folder of TensorBoard's events, with experiment_name below it; the run's own name is run.id",
    ),
    bind("trainer.experiment_name", "run", "the folder below it"),
    bind(
        "trainer.logger",
        "[console, jsonl, tensorboard]",
        "files of metrics that are written: jsonl, tensorboard; the console is always told",
    ),
    bind(
        "trainer.default_local_dir",
        "null",
        "folder of metrics and plots; default: exports beside a folder store",
    ),
    // --- AgentGym-RL keys without a meaning here ----------------------------------------
    unused("data.tokenizer"),
    unused("data.val_files"),
    unused("data.val_batch_size"),
    unused("data.prompt_key"),
    unused("data.return_raw_input_ids"),
    unused("data.return_raw_chat"),
    neutral(
        "data.truncation",
        "[error, null]",
        "a first prompt that is longer than data.max_prompt_length is refused, not cut",
    ),
    unused("actor_rollout_ref.hybrid_engine"),
    neutral(
        "actor_rollout_ref.model.external_lib",
        "[null]",
        "no Python module is loaded",
    ),
    neutral(
        "actor_rollout_ref.model.override_config",
        "[{}, null]",
        "a model is what config.json in its folder says",
    ),
    unused("actor_rollout_ref.model.use_remove_padding"),
    unused("actor_rollout_ref.model.trust_remote_code"),
    unused("actor_rollout_ref.model.use_liger"),
    unused("actor_rollout_ref.actor.strategy"),
    unused("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"),
    unused("actor_rollout_ref.actor.use_dynamic_bsz"),
    unused("actor_rollout_ref.actor.ppo_max_token_len_per_gpu"),
    neutral(
        "actor_rollout_ref.actor.shuffle",
        "[false, null]",
        "minibatches are taken in the order of the draws, which data.shuffle mixes",
    ),
    unused("actor_rollout_ref.actor.ulysses_sequence_parallel_size"),
    unused("actor_rollout_ref.actor.optim.total_training_steps"),
    unused("actor_rollout_ref.actor.fsdp_config"),
    unused("actor_rollout_ref.ref.fsdp_config"),
    unused("actor_rollout_ref.ref.log_prob_micro_batch_size"),
    unused("actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu"),
    unused("actor_rollout_ref.ref.log_prob_use_dynamic_bsz"),
    unused("actor_rollout_ref.ref.log_prob_max_token_len_per_gpu"),
    unused("actor_rollout_ref.ref.ulysses_sequence_parallel_size"),
    unused("actor_rollout_ref.agentgym.max_rounds"),
    unused("actor_rollout_ref.rollout.name"),
    unused("actor_rollout_ref.rollout.dtype"),
    unused("actor_rollout_ref.rollout.gpu_memory_utilization"),
    neutral(
        "actor_rollout_ref.rollout.ignore_eos",
        "[false, null]",
        "a turn ends at the end token",
    ),
    unused("actor_rollout_ref.rollout.enforce_eager"),
    unused("actor_rollout_ref.rollout.free_cache_engine"),
    unused("actor_rollout_ref.rollout.load_format"),
    unused("actor_rollout_ref.rollout.tensor_model_parallel_size"),
    unused("actor_rollout_ref.rollout.max_num_batched_tokens"),
    unused("actor_rollout_ref.rollout.max_num_seqs"),
    unused("actor_rollout_ref.rollout.log_prob_micro_batch_size"),
    unused("actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu"),
    unused("actor_rollout_ref.rollout.log_prob_use_dynamic_bsz"),
    unused("actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu"),
    unused("actor_rollout_ref.rollout.disable_log_stats"),
    unused("actor_rollout_ref.rollout.enable_chunked_prefill"),
    neutral(
        "actor_rollout_ref.rollout.do_sample",
        "[true, null]",
        "training samples at rollout.temperature; evaluation.temperature=0 evaluates greedily",
    ),
    unused("actor_rollout_ref.rollout.send_interval"),
    unused("actor_rollout_ref.rollout.rollout_log_dir"),
    unused("critic.strategy"),
    unused("critic.rollout_n"),
    neutral(
        "critic.shuffle",
        "[false, null]",
        "minibatches are taken in the order of the draws, which data.shuffle mixes",
    ),
    unused("critic.model.tokenizer_path"),
    neutral(
        "critic.model.override_config",
        "[{}, null]",
        "a model is what config.json in its folder says",
    ),
    neutral(
        "critic.model.external_lib",
        "[null]",
        "no Python module is loaded",
    ),
    unused("critic.model.trust_remote_code"),
    unused("critic.model.use_remove_padding"),
    unused("critic.model.fsdp_config"),
    unused("critic.ppo_micro_batch_size_per_gpu"),
    unused("critic.forward_micro_batch_size"),
    unused("critic.forward_micro_batch_size_per_gpu"),
    unused("critic.use_dynamic_bsz"),
    unused("critic.ppo_max_token_len_per_gpu"),
    unused("critic.forward_max_token_len_per_gpu"),
    unused("critic.ulysses_sequence_parallel_size"),
    unused("critic.optim.total_training_steps"),
    neutral(
        "reward_model.enable",
        "[false, null]",
        "the environment alone gives rewards",
    ),
    neutral(
        "reward_model.reward_manager",
        "[naive, null]",
        "the environment alone gives rewards",
    ),
    unused("reward_model.strategy"),
    unused("reward_model.model"),
    unused("reward_model.micro_batch_size"),
    unused("reward_model.micro_batch_size_per_gpu"),
    unused("reward_model.max_length"),
    unused("reward_model.ulysses_sequence_parallel_size"),
    unused("reward_model.use_dynamic_bsz"),
    unused("reward_model.forward_max_token_len_per_gpu"),
    neutral(
        "custom_reward_function.path",
        "[null]",
        "the environment alone gives rewards",
    ),
    unused("custom_reward_function.name"),
    unused("trainer.val_generations_to_log_to_wandb"),
    unused("trainer.nnodes"),
    unused("trainer.n_gpus_per_node"),
    neutral(
        "trainer.resume_mode",
        "[auto, disable, null]",
        "a run that exists is carried on, a new run.id begins anew; to train another policy give it as actor_rollout_ref.model.path",
    ),
    neutral(
        "trainer.resume_from_path",
        "[false, null]",
        "to train another policy give it as actor_rollout_ref.model.path",
    ),
    unused("trainer.default_hdfs_dir"),
    unused("trainer.remove_previous_ckpt_in_save"),
    unused("trainer.del_local_ckpt_after_load"),
    unused("trainer.storage_mode"),
    unused("trainer.device"),
];
