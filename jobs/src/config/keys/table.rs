//! The table of keys: path, kind, default, meaning and range of each. The type of its value is
//! its field's, in `config/types/`.

use super::limits::{ITERATIONS_MAX, above, below, real, seconds, whole};
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
        older: None,
        only: "",
        limit: None,
    }
}
const fn bind(path: &'static str, default: &'static str, doc: &'static str) -> KeySpec {
    KeySpec {
        kind: Kind::Binding,
        ..id(path, default, doc)
    }
}
const fn unused(path: &'static str) -> KeySpec {
    KeySpec {
        kind: Kind::Unused,
        ..id(path, "null", "not used here")
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

const MILLION: u64 = 1_000_000;
const STEPS: &str = "a step takes tens of milliseconds at the least";
const TOKENS: &str = "ten times the longest context of any model";
const MANY_TOKENS: &str = "as good as no limit";
const ANY: &str = "as good as never";
const TASKS: &str = "a hundred times the largest batches that were published";
const RATE: &str = "AdamW moves every weight by about so much in a step";
const MOMENTS: &str = "at 1 a moment never forgets, and its correction divides by 0";
const DECAY: &str = "more turns weights around in a step";
const SHARE: &str = "a share";
const FACTOR: &str = "more drowns everything else";
const NORM: &str = "as good as no clipping";
const PRICE: &str = "a thousand of any currency for a token";
const COLDEST: &str = "less is as good as greedy, and its inverse soon no number in f32";

/// All keys, sorted by section. A key whose value is a list or a map of
/// things (`tasks`, `envs`, `sets`) is one entry: what is below it is checked
/// by its type.
#[rustfmt::skip]
pub const KEYS: &[KeySpec] = &[
    // run
    bind("run.id", "null", "name of the run; default: file stem and the head of the plan hash"),
    bind("run.name", "null", "what people call the run, in lists; its id stays"),
    id("run.pipeline", "rl", "rl, sft, dpo, agentevol or eval"),
    id("run.seed", "1", "seed of every random stream of the run"),
    id("run.numerics", "exact", "exact: one numeric class for the whole run; any: mixed fleets"),
    option("run.fork.run", "null", "the run that this one was forked from; set by `agentgym-submit fork`, as the keys below"),
    option("run.fork.identity", "null", "the hash of its plan"),
    option("run.fork.iteration", "0", "the last of its iterations that this run takes over").within(whole(0, ITERATIONS_MAX as u64, STEPS)),
    option("run.fork.fresh_optimizer", "false", "its optimizer states were left behind"),
    // storage, queue, jobs
    bind("storage.url", "agentgym-data", "folder, s3://bucket/prefix or memory:"),
    bind("queue.url", "null", "sqlite:FILE or redis://…; default: a SQLite file beside a folder store"),
    bind("jobs.workers", "1", "workers that agentgym-submit starts in its own process; 0 only follows")
        .within(whole(0, 1024, "each holds models of its own, and one process has one machine")),
    bind("jobs.threads", "null", "compute threads of each worker; default: all cores")
        .within(whole(1, 4096, "the largest machines have some two thousand")),
    bind("jobs.hold", "false", "no part is begun; rollouts and evaluations under way finish their turns and journal them: what `cancel` sets and `resume` lifts"),
    bind("jobs.priority", "0", "jobs of runs with a higher one are taken first; runs of the same one take turns"),
    id("jobs.rollout_part_tasks", "4", "tasks of an iteration that one rollout part plays").within(whole(1, MILLION, TASKS)),
    id("jobs.unit_tokens", "2048", "a gradient unit holds whole sequences up to this many tokens").within(whole(1, 1_000_000_000, MANY_TOKENS)),
    option("jobs.update_shards", "1", "jobs that share the gradient of each optimizer step of an update; 1: one job makes all steps")
        .within(whole(1, 10_000, "each is a job for a worker of its own")),
    id("jobs.sft_part_steps", "200", "optimizer steps of one part of an sft stage").within(whole(1, 100 * MILLION, STEPS)),
    option("jobs.dpo_part_steps", "50", "optimizer steps of one part of a dpo stage").within(whole(1, 100 * MILLION, STEPS)),
    bind("jobs.pack_tokens", "4096", "tokens scored at once by one thread").within(whole(1, 1_000_000_000, MANY_TOKENS)),
    bind("jobs.decode_rows", "64", "most episodes decoded at once, for each thread; of a small model, those that its caches hold").within(whole(1, 65_536, "every row has a KV cache of its own")),
    bind("jobs.cache_tokens", "262144", "tokens of KV cache kept, for each thread").within(whole(0, 1_000_000_000_000, MANY_TOKENS)),
    bind("jobs.journal_interval_s", "5", "how often a part that plays episodes journals what has happened in them; 0: also before an agent behind a harness gets an answer").within(seconds(0.0)),
    bind("jobs.beat_timeout_s", "600", "a stage that reports no progress for so long ends the process").within(seconds(1.0)),
    bind("jobs.lease_ttl_s", "60", "a worker that is silent for so long loses its jobs").within(seconds(1.0)),
    bind("jobs.failures_max", "3", "failed attempts of a part before the run stops").within(whole(1, MILLION, ANY)),
    bind("jobs.vanished_max", "20", "attempts that may vanish with their worker").within(whole(1, MILLION, ANY)),
    bind("jobs.backoff_s", "2", "wait after the first failed attempt; doubles").within(seconds(0.0)),
    bind("jobs.length_max", "1000", "most jobs of a stage on the queue at once").within(whole(1, 1_000_000_000, ANY)),
    bind("jobs.cache_gb", "64", "most that a worker keeps of downloaded models, in gigabytes; what is in use stays anyway")
        .within(whole(0, 1_000_000_000, "an exabyte; it is counted in bytes").unit(" gigabytes")),
    // data
    id("data.train_file", "null", "AgentItemId JSON file, or a list of them; given to the command it takes the place of a config's data.tasks"),
    id("data.tasks", "[]", "task sources: {env, ids: A..B | A..B:STEP | [..], share}, or {file: ROWS.jsonl, grade: exact | number | choice | regex | f1, columns: {prompt, answer, id}}"),
    id("data.train_batch_size", "16", "tasks (groups) per iteration").within(whole(1, MILLION, TASKS)),
    id("data.max_prompt_length", "1024", "tokens of the first prompt; what it needs beyond them is taken off max_response_length")
        .within(whole(1, 100 * MILLION, TOKENS)),
    id("data.max_response_length", "4096", "most tokens after the prompt").within(whole(1, 100 * MILLION, TOKENS)),
    id("data.shuffle", "true", "shuffle the tasks anew in every pass"),
    id("data.seed", "1", "seed of that shuffle"),
    option("data.curriculum.solved", "null",
        "data.tasks enter one by one, the next when this share of the episodes of each before it is solved; null: all at once")
        .within(above(0.0, 1.0, SHARE)),
    option("data.curriculum.iterations", "2", "the newest iterations of a source that the share is taken over").within(whole(1, 10_000, ANY)),
    // policy
    id("actor_rollout_ref.model.path", "tiny", "folder, store URL, hub id in the local cache, or tiny?arch=qwen3&vocab=…&hidden=…&tokenizer=qwen2"),
    option("actor_rollout_ref.model.dtype", "f32",
        "numbers of the policies that are committed, f32 or bf16; with bf16 training keeps f32 numbers beside AdamW's moments"),
    option("actor_rollout_ref.model.template_date", "null",
        "the day that the chat template is told, as 2024-07-26; default: the model folder's, else 2024-07-26 for ever"),
    option("actor_rollout_ref.model.template_variables", "{}",
        "variables of the chat template by name, such as {enable_thinking: false}; default: the model folder's"),
    option("actor_rollout_ref.model.lora_rank", "0", "train a LoRA adapter of this rank instead of the policy's weights; 0: off")
        .within(whole(0, 65_536, "no weight of a known model has so many rows")),
    option("actor_rollout_ref.model.lora_alpha", "16", "the adapter's product is multiplied by lora_alpha / lora_rank")
        .within(above(0.0, 1e6, "a factor on the adapter")),
    option("actor_rollout_ref.model.target_modules", "all-linear",
        "what is adapted: all-linear, or a list of q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj"),
    option("actor_rollout_ref.model.lora_adapter_path", "null", "folder of a PEFT adapter of model.path to go on with; its size is its own"),
    bind("actor_rollout_ref.model.enable_gradient_checkpointing", "false",
        "training keeps each layer's input alone and computes the layer again: a third more work, far less memory"),
    id("actor_rollout_ref.actor.ppo_mini_batch_size", "${data.train_batch_size}", "tasks per optimizer step (× rollout.n episodes)")
        .within(whole(1, MILLION, TASKS)),
    option("actor_rollout_ref.actor.ppo_micro_batch_size", "null", "episodes per micro-batch; read by loss_agg_mode micro_batch_mean alone")
        .within(whole(0, 1_000_000_000, TASKS)),
    id("actor_rollout_ref.actor.ppo_epochs", "1", "passes over the iteration's batch").within(whole(1, 10_000, STEPS)),
    id("actor_rollout_ref.actor.clip_ratio", "0.2", "clip range of the policy loss").within(real(0.0, 1e6, "as good as no clipping")),
    id("actor_rollout_ref.actor.clip_ratio_low", "${actor_rollout_ref.actor.clip_ratio}", "lower clip range")
        .within(above(0.0, 1.0, "at 1 a ratio may fall to 0")),
    id("actor_rollout_ref.actor.clip_ratio_high", "${actor_rollout_ref.actor.clip_ratio}", "upper clip range")
        .within(above(0.0, 1e6, "as good as no clipping")),
    option("actor_rollout_ref.actor.clip_ratio_c", "null", "dual clip: a bad token costs at most this × its advantage; null: off")
        .within(above(1.0, 1e6, "as good as none; null does without")),
    option("actor_rollout_ref.actor.policy_loss.loss_mode", "vanilla", "vanilla (PPO's clipped surrogate), gspo or cispo"),
    id("actor_rollout_ref.actor.entropy_coeff", "0.001", "entropy bonus; negative: entropy is minimised").within(real(-1e6, 1e6, FACTOR)),
    id("actor_rollout_ref.actor.use_kl_loss", "false", "KL to the reference policy in the loss"),
    id("actor_rollout_ref.actor.kl_loss_coef", "0.001", "its weight").within(real(0.0, 1e6, FACTOR)),
    id("actor_rollout_ref.actor.kl_loss_type", "low_var_kl", "k1 (kl), abs, k2 (mse) or k3 (low_var_kl)"),
    id("actor_rollout_ref.actor.loss_agg_mode", "token_mean", "token_mean, seq_mean_token_sum, seq_mean_token_sum_norm (Dr. GRPO: over data.max_response_length), seq_mean_token_mean or micro_batch_mean"),
    id("actor_rollout_ref.actor.grad_clip", "1.0", "largest global gradient norm").within(above(0.0, 1e12, NORM)),
    option("actor_rollout_ref.actor.share_prefixes", "true", "training computes what a unit's sequences have in common once").older("false"),
    id("actor_rollout_ref.actor.optim.lr", "1e-6", "learning rate").within(above(0.0, 100.0, RATE)),
    id("actor_rollout_ref.actor.optim.lr_warmup_steps_ratio", "0.0", "share of the iterations that warm up").within(real(0.0, 1.0, SHARE)),
    id("actor_rollout_ref.actor.optim.warmup_style", "constant", "constant or cosine, after the warm-up"),
    id("actor_rollout_ref.actor.optim.min_lr_ratio", "0.0", "where cosine ends, as a share of lr").within(real(0.0, 1.0, SHARE)),
    id("actor_rollout_ref.actor.optim.betas", "[0.9, 0.999]", "AdamW betas").within(below(0.0, 1.0, MOMENTS)),
    id("actor_rollout_ref.actor.optim.weight_decay", "0.01", "AdamW decay").within(real(0.0, 1000.0, DECAY)),
    option("actor_rollout_ref.actor.optim.decay_excludes_norms_and_biases", "false", "no decay on norms and biases"),
    id("actor_rollout_ref.ref.model.path", "null", "reference policy; default: the start policy"),
    // rollout
    id("actor_rollout_ref.rollout.n", "1", "episodes per task: the group size")
        .within(whole(1, 100_000, "a hundred times the largest groups that were published")),
    id("actor_rollout_ref.rollout.temperature", "1.0", "sampling temperature").within(real(1e-6, 1e6, COLDEST)),
    id("actor_rollout_ref.rollout.top_k", "-1", "-1: off").within(real(-1.0, 1e9, "-1 or 0 switches it off; no vocabulary is larger")),
    id("actor_rollout_ref.rollout.top_p", "1.0", "1: off").within(above(0.0, 1.0, "a probability; 1 switches it off")),
    id("actor_rollout_ref.rollout.max_tokens", "1024", "most tokens per turn").within(whole(1, 100 * MILLION, TOKENS)),
    id("actor_rollout_ref.rollout.max_model_len", "32768", "longest context").within(whole(1, 100 * MILLION, TOKENS)),
    id("actor_rollout_ref.rollout.prompt_length", "${data.max_prompt_length}", "as data.max_prompt_length").within(whole(0, 100 * MILLION, TOKENS)),
    id("actor_rollout_ref.rollout.response_length", "${data.max_response_length}", "as data.max_response_length")
        .within(whole(0, 100 * MILLION, TOKENS)),
    id("actor_rollout_ref.rollout.history", "template", "template: refuse templates that rewrite history beyond thoughts and blanks; as_sampled: keep ids of any"),
    bind("actor_rollout_ref.rollout.episode_deadline_s", "600", "an attempt at an episode whose environment calls take longer in all is an environment fault; the policy's own time is not counted")
        .within(seconds(0.001)),
    bind("actor_rollout_ref.rollout.fault_retries", "2", "times a faulted episode is played again, and a fault in its middle answered with a fresh session")
        .within(whole(0, MILLION, ANY)),
    bind("actor_rollout_ref.rollout.empty_share_max", "0.5",
        "largest share of an iteration's or an evaluation's episodes that may have nothing to train on: no room for a reply after the first prompt (no_room), or over before the first turn (no_turn). More stop the run. 0: the first no_room does")
        .within(real(0.0, 1.0, SHARE)).older("0"),
    option("actor_rollout_ref.rollout.record_entropies", "true", "rollouts record entropies beside log-probs, and what scoring them would give again is taken from there; see algorithm.verify_log_probs").older("false"),
    option("actor_rollout_ref.rollout.exclude", "[]", "training episodes not to play, [iteration, group, sample] each: as if the environment had spoiled them"),
    option("actor_rollout_ref.rollout.engine", "own", "who generates rollouts. own: this program, exactly; server: an inference server, see actor_rollout_ref.rollout.server and docs/engines.md; chat: a chat-completions API, candle: families that this program does not train, both for `agentgym-submit eval` alone"),
    bind("actor_rollout_ref.rollout.server.url", "null", "address of that server, e.g. http://127.0.0.1:8000; its key, where it wants one, is in AGENTGYM_SERVER_KEY of each worker"),
    bind("actor_rollout_ref.rollout.server.dialect", "null", "what it speaks: vllm, sglang, llama_cpp, or openai (completions with ids as prompt)"),
    bind("actor_rollout_ref.rollout.server.model", "null", "the name of the policy in requests to it, where it wants one; with chat it is always sent, and another one makes another run"),
    bind("actor_rollout_ref.rollout.server.timeout_s", "300", "a request to it that takes longer has failed").within(seconds(0.001)),
    bind("actor_rollout_ref.rollout.server.patience_s", "600", "how long it may be away, too busy, or serve another policy before the attempt of the part fails").within(seconds(0.0)),
    bind("actor_rollout_ref.rollout.server.concurrent", "8", "with chat: most requests of a part that are under way at once")
        .within(whole(1, 10_000, "each is a connection")),
    bind("actor_rollout_ref.rollout.server.price_input", "null", "with chat: price of a million tokens that it reads; give both prices or none")
        .within(real(0.0, 1e9, PRICE)),
    bind("actor_rollout_ref.rollout.server.price_output", "null", "with chat: price of a million tokens that it writes, in the same currency")
        .within(real(0.0, 1e9, PRICE)),
    // environments
    id("actor_rollout_ref.agentgym.task_name", "textcraft", "environment of data.train_file"),
    bind("actor_rollout_ref.agentgym.env_addr", "builtin", "URL of its server, or builtin"),
    id("actor_rollout_ref.agentgym.envs", "{}", "further environments: name: {task_name, env_addr} and limits of their own: {max_rounds, max_tokens}"),
    option("actor_rollout_ref.agentgym.specs", "[]", "files that describe environments of one's own (docs/environments.md); the plan holds what they say"),
    option("actor_rollout_ref.agentgym.rules", "2", "rules of the built-in games: BabyAI and the maze are AgentGym's, item by item. Only version 0.3 plays others")
        .within(whole(1, 2, "these are all")).older("1"),
    bind("actor_rollout_ref.agentgym.max_retries", "10", "tries to open an episode").within(whole(0, MILLION, ANY)),
    bind("actor_rollout_ref.agentgym.sessions_max", "null", "sessions that each worker has open at one address at a time; default: one for each episode that it plays")
        .within(whole(1, MILLION, ANY)),
    bind("actor_rollout_ref.agentgym.timeout", "300", "seconds one environment call may take").within(seconds(0.001)),
    bind("actor_rollout_ref.agentgym.check_servers", "true", "a server that is another environment than its name says, by its greeting or by how a task begins, stops the run"),
    bind("actor_rollout_ref.agentgym.fault_share_max", "0.5",
        "largest share of episodes that environments may spoil: a part with more is not committed and stops the run, an iteration with more is not trained on; one with nothing else never is")
        .within(real(0.0, 1.0, SHARE)).older("1"),
    id("actor_rollout_ref.agentgym.instruction", "null", "first lines of every prompt; default: the environment's own"),
    option("actor_rollout_ref.agentgym.prompt", "own",
        "how a conversation begins. own: instruction and first observation in one message; agentgym: the instruction, an assent, then the observation; or a file of such turns"),
    option("actor_rollout_ref.agentgym.reply_prefix", "null",
        "text that is put at the head of every reply, such as `Action:`; the policy continues from there, and is not trained on it"),
    option("actor_rollout_ref.agentgym.lenient_actions", "false",
        "a reply that names just one of the actions on offer is that action, however it is written; for environments that list them"),
    option("actor_rollout_ref.agentgym.style", "null", "how to answer: plain, react, plan, reflect or another file of prompts/, or a path"),
    option("actor_rollout_ref.agentgym.context_turns", "null", "turns before the present one that the policy sees besides the prompt; null: all")
        .within(whole(1, MILLION, "null is all of them")),
    option("actor_rollout_ref.agentgym.summary", "null",
        "how the policy is asked to sum up, every context_turns turns or when the window is full: a file of prompts/, such as summary, or a path; null: never"),
    option("actor_rollout_ref.agentgym.record_actions", "false",
        "record the possible actions of every turn; one more call per turn where they have a path of their own"),
    // algorithm
    id("algorithm.adv_estimator", "grpo", "grpo, gae, reinforce_plus_plus, rloo, gigpo or remax"),
    id("algorithm.norm_adv_by_std_in_grpo", "true", "divide by the group's standard deviation"),
    id("algorithm.gamma", "1.0", "discount").within(real(0.0, 1.0, SHARE).of_stored_plans()),
    id("algorithm.lam", "1.0", "GAE lambda").within(real(0.0, 1.0, SHARE).of_stored_plans()),
    id("algorithm.lag", "0", "iterations between the sampling and the trained policy")
        .within(whole(0, 100, "every policy of the lag is kept and samples get older with it")),
    id("algorithm.overlong", "keep", "keep: a horizon or length outcome keeps its reward; mask: it is not trained on"),
    option("algorithm.gigpo.step_advantage_w", "1.0", "gigpo: what the advantage of a turn among its group's turns with the same observation weighs beside the episode's")
        .within(real(0.0, 1e6, FACTOR)),
    option("algorithm.turn_rewards", "false", "reward each turn with what it earned, instead of the whole episode with the last reward"),
    option("algorithm.use_kl_in_reward", "false", "take the divergence from the reference policy off the reward"),
    option("algorithm.kl_penalty", "kl", "its estimator: k1 (kl), abs, k2 (mse) or k3 (low_var_kl)"),
    option("algorithm.kl_ctrl.type", "fixed", "its coefficient: fixed, or adaptive towards target_kl"),
    option("algorithm.kl_ctrl.kl_coef", "0.001", "that of iteration 1").within(real(0.0, 1e6, FACTOR)),
    option("algorithm.kl_ctrl.target_kl", "0.1", "adaptive: the divergence to hold, nats per token")
        .within(above(0.0, 1e6, "nats per token; a vocabulary has some twelve")),
    option("algorithm.kl_ctrl.horizon", "10000", "adaptive: episodes over which a correction is spread").within(above(0.0, 1e12, ANY)),
    option("algorithm.filter_groups.enable", "false", "train on groups whose rewards differ alone, and play more tasks for the others"),
    option("algorithm.filter_groups.max_num_gen_batches", "2", "most times an iteration plays tasks, the first included")
        .within(whole(0, MILLION, "with the filter at most 16")),
    option("algorithm.rollout_correction.rollout_is", "null", "weigh tokens by old / sampled probability: token or sequence; null: off"),
    option("algorithm.rollout_correction.rollout_is_threshold", "2.0", "the largest such weight").within(above(0.0, 1e9, "as good as none")),
    option("algorithm.scramble_advantages", "false", "a control: each episode is trained with the advantages of another one of its iteration, so that nothing is learnt from rewards"),
    bind("algorithm.verify_log_probs", "0.1", "share of the log_probs parts that are scored again as a check where rollouts record what scoring gives; elsewhere all are scored").within(real(0.0, 1.0, SHARE)),
    id("algorithm.rounds_ctrl.type", "fixed", "fixed or scaling_inter_stepwise"),
    id("algorithm.rounds_ctrl.rounds", "15", "rounds, or the list of stages").within(whole(1, MILLION, "a round is a reply of the policy")),
    id("algorithm.rounds_ctrl.steps_scaling_inter", "100", "iterations per stage").within(whole(1, 1_000_000_000, "as good as one stage")),
    // reward
    option("reward.function", "null", "name and version of the HTTP function whose rewards take the environment's place, e.g. judge-2; null: none"),
    bind("reward.url", "null", "where that function is served"),
    bind("reward.batch_size", "16", "most trajectories of one request to it").within(whole(1, 100_000, "a request is held in memory")),
    bind("reward.timeout_s", "60", "a request that takes longer has failed").within(seconds(0.001)),
    bind("reward.retries", "4", "further requests after a failed one, before the attempt of the part fails").within(whole(0, MILLION, ANY)),
    option("reward.overlong_buffer.len", "0", "the last tokens of data.max_response_length, which cost the more of penalty_factor the more an episode has of them (DAPO); 0: off")
        .within(whole(0, 100 * MILLION, TOKENS)),
    option("reward.overlong_buffer.penalty_factor", "1.0", "taken off the reward of an episode that has all of them").within(real(0.0, 1e6, FACTOR)),
    // critic (algorithm.adv_estimator: gae)
    option("critic.model.path", "null", "folder, hub id or tiny?… of the critic's trunk; default: the start policy's"),
    bind("critic.model.enable_gradient_checkpointing", "${actor_rollout_ref.model.enable_gradient_checkpointing}", "the same for the critic"),
    option("critic.ppo_mini_batch_size", "${actor_rollout_ref.actor.ppo_mini_batch_size}", "tasks per optimizer step (× rollout.n episodes)")
        .within(whole(1, MILLION, TASKS)),
    option("critic.ppo_micro_batch_size", "${actor_rollout_ref.actor.ppo_micro_batch_size}", "episodes per micro-batch, as for the actor")
        .within(whole(0, 1_000_000_000, TASKS)),
    option("critic.ppo_epochs", "${actor_rollout_ref.actor.ppo_epochs}", "passes over the iteration's batch").within(whole(1, 10_000, STEPS)),
    option("critic.cliprange_value", "0.5", "farthest a value may move in an update; null: no clip").within(above(0.0, 1e9, "null does without")),
    option("critic.loss_agg_mode", "${actor_rollout_ref.actor.loss_agg_mode}", "as for the actor"),
    option("critic.grad_clip", "1.0", "largest global gradient norm").within(above(0.0, 1e12, NORM)),
    option("critic.optim.lr", "1e-5", "learning rate").within(above(0.0, 100.0, RATE)),
    option("critic.optim.lr_warmup_steps_ratio", "0.0", "share of the iterations that warm up").within(real(0.0, 1.0, SHARE)),
    option("critic.optim.warmup_style", "constant", "constant or cosine, after the warm-up"),
    option("critic.optim.min_lr_ratio", "0.0", "where cosine ends, as a share of lr").within(real(0.0, 1.0, SHARE)),
    option("critic.optim.betas", "[0.9, 0.999]", "AdamW betas").within(below(0.0, 1.0, MOMENTS)),
    option("critic.optim.weight_decay", "0.01", "AdamW decay").within(real(0.0, 1000.0, DECAY)),
    option("critic.optim.decay_excludes_norms_and_biases", "false", "no decay on norms and biases"),
    // sft
    id("sft.sources", "[]", "{file: PATH} or {env, ids, style}: demonstrations"),
    id("sft.batch_size", "8", "conversations per optimizer step").within(whole(1, MILLION, TASKS)),
    id("sft.steps", "0", "optimizer steps of the warm start (rl) or of the run (sft)").within(whole(0, 100 * MILLION, STEPS)),
    option("sft.epochs", "null", "passes over all rows, each in an order of its own, in place of sft.steps")
        .within(whole(1, 10_000, "nobody passes over data so often")),
    id("sft.lr", "1e-3", "learning rate").within(above(0.0, 100.0, RATE)),
    id("sft.warmup_steps", "20", "steps of linear warm-up").within(whole(0, 100 * MILLION, STEPS)),
    id("sft.min_lr_ratio", "0.1", "where the cosine ends, as a share of lr").within(real(0.0, 1.0, SHARE)),
    id("sft.betas", "[0.9, 0.95]", "AdamW betas").within(below(0.0, 1.0, MOMENTS)),
    id("sft.weight_decay", "0.01", "AdamW decay").within(real(0.0, 1000.0, DECAY)),
    id("sft.grad_clip", "1.0", "largest global gradient norm").within(real(0.0, 1e12, "0 switches it off")),
    id("sft.max_length", "4096", "longer conversations are refused, in tokens").within(whole(1, 100 * MILLION, TOKENS)),
    option("sft.overlong", "refuse", "rows of a file that are longer: refuse, or leave_out (counted)"),
    option("sft.validation_share", "0.0", "share of the rows that is never trained on, whole tasks by chance; their loss is measured")
        .within(below(0.0, 1.0, SHARE).of_stored_plans()),
    option("sft.validation_sources", "[]", "in place of a share: {file: PATH} or {env, ids, style} to measure the loss on"),
    // dpo (run.pipeline: dpo)
    option("dpo.expert_file", "null", "trajectories {item_id, conversations, reward}, JSON or JSONL; the best of each task"),
    option("dpo.experience_file", "null", "trajectories to compare with; the worst of each task"),
    option("dpo.reward_gap", "0.01", "least difference of rewards within a pair").within(real(0.0, 1e9, "rewards are about 1")),
    option("dpo.expert_threshold", "0.7", "least reward of the chosen answer").within(real(-1e9, 1e9, "rewards are about 1")),
    option("dpo.prompt_length", "3", "messages that both answers begin with").within(whole(0, MILLION, "messages")),
    option("dpo.beta", "0.1", "what a nat of preference is worth").within(above(0.0, 1e6, FACTOR)),
    option("dpo.loss_type", "sigmoid", "sigmoid, hinge or ipo"),
    option("dpo.batch_size", "8", "pairs per optimizer step").within(whole(1, MILLION, TASKS)),
    option("dpo.steps", "0", "optimizer steps of the run").within(whole(0, 100 * MILLION, STEPS)),
    option("dpo.lr", "5e-7", "learning rate").within(above(0.0, 100.0, RATE)),
    option("dpo.warmup_steps", "0", "steps of linear warm-up").within(whole(0, 100 * MILLION, STEPS)),
    option("dpo.warmup_style", "constant", "constant or cosine, after the warm-up"),
    option("dpo.min_lr_ratio", "0.0", "where cosine ends, as a share of lr").within(real(0.0, 1.0, SHARE)),
    option("dpo.betas", "[0.9, 0.999]", "AdamW betas").within(below(0.0, 1.0, MOMENTS)),
    option("dpo.weight_decay", "0.01", "AdamW decay").within(real(0.0, 1000.0, DECAY)),
    option("dpo.grad_clip", "1.0", "largest global gradient norm").within(real(0.0, 1e12, "0 switches it off")),
    option("dpo.max_length", "4096", "longer answers are refused, prompt included, in tokens").within(whole(1, 100 * MILLION, TOKENS)),
    option("dpo.overlong", "refuse", "pairs with a longer answer: refuse, or leave_out (counted)"),
    // agentevol (run.pipeline: agentevol)
    option("agentevol.threshold", "null", "least reward of a kept trajectory: a number, or {env: number}; null: what the environment calls solved"),
    option("agentevol.keep", "best", "best: one trajectory per task; all: every one that differs"),
    option("agentevol.add_original_data", "true", "train on sft.sources beside what was kept"),
    option("agentevol.accumulate", "true", "train on what earlier iterations kept, too"),
    option("agentevol.share", "null", "share of every batch that was kept; default: by size"),
    option("agentevol.steps", "${sft.steps}", "optimizer steps of every iteration, from the base").within(whole(0, 100 * MILLION, STEPS)),
    // evaluation
    id("evaluation.sets", "[]", "{name, env, ids, apart}: held-out tasks; file instead of ids: a test file with its categories"),
    id("evaluation.samples", "8", "episodes per task at evaluation.temperature")
        .within(whole(1, 100_000, "estimates are exact to three digits long before")),
    id("evaluation.temperature", "1.0", "sampling temperature of evaluation; 0: greedy, with one sample").within(real(0.0, 1e6, "0 is greedy")),
    id("evaluation.greedy", "true", "one greedy episode per task beside them"),
    id("evaluation.max_rounds", "15", "horizon of evaluation").within(whole(1, MILLION, "a round is a reply of the policy")),
    option("evaluation.k", "null", "the k of pass@k, a list; default: 1 and evaluation.samples")
        .within(whole(0, MILLION, "no more than evaluation.samples")),
    // guard
    bind("guard.patience", "3", "iterations running that must be beyond a limit before a warning is given or the run is paused").within(whole(1, MILLION, ANY)),
    bind("guard.pause", "[]", "warnings of the watchdog that pause the run: kl, ratio, grad_norm, entropy, length, success, evaluation, no_reward, same_reward, no_signal, unsolved, unparsed, context, same_samples, unmoved, loss, scrambled"),
    bind("guard.entropy_min", "null", "pause below this entropy per token, nats; null: no limit"),
    bind("guard.entropy_max", "null", "pause above this entropy per token, nats"),
    bind("guard.grad_norm_max", "null", "pause above this gradient norm (before clipping)"),
    bind("guard.success_share_min", "null", "pause where success falls below this share of its best"),
    bind("guard.mismatch_max", "null", "pause above this difference of sampled and recomputed log-prob"),
    // trainer
    id("trainer.total_training_steps", "null", "iterations; default: total_epochs × passes over the data")
        .within(whole(0, ITERATIONS_MAX as u64, "a hundred times the longest runs that were published")),
    id("trainer.total_epochs", "1", "passes over the data").within(whole(1, MILLION, STEPS)),
    bind("trainer.save_freq", "25", "every so many iterations the policy is kept for good; 0 or -1: the first and the last alone")
        .within(whole(0, u32::MAX as u64, ANY)),
    bind("trainer.full_policy_freq", "1", "every so many updates a policy is stored whole, and else as its difference from the one before; 1: always whole")
        .within(whole(1, 64, "no longer chain of differences is read")),
    bind("trainer.state_freq", "1", "every so many updates the optimizer's state is stored, after the commit that names its digest; between two, and where a worker dies first, it is made again")
        .within(whole(1, ITERATIONS_MAX as u64, "beyond the longest run it is stored at the end alone")),
    bind("trainer.save_dtype", "f32", "number format of the weights that `export` writes: f32 or bf16, each number rounded; what the run itself keeps is of actor_rollout_ref.model.dtype"),
    id("trainer.test_freq", "10", "evaluate every so many iterations; 0 or -1: only at start and end").within(whole(0, u32::MAX as u64, ANY)),
    option("trainer.critic_warmup", "0", "first iterations that train the critic alone").within(whole(0, u32::MAX as u64, ANY)),
    bind("trainer.project_name", "agentgym", "folder of TensorBoard's events, with experiment_name below it; the run's own name is run.id"),
    bind("trainer.experiment_name", "run", "the folder below it"),
    bind("trainer.logger", "[console, jsonl, tensorboard]", "files of metrics that are written: jsonl, tensorboard; the console is always told"),
    bind("trainer.default_local_dir", "null", "folder of metrics and plots; default: exports beside a folder store"),
    // AgentGym-RL keys without a meaning here
    unused("data.tokenizer"),
    unused("data.val_files"),
    unused("data.val_batch_size"),
    unused("data.prompt_key"),
    unused("data.return_raw_input_ids"),
    unused("data.return_raw_chat"),
    neutral("data.truncation", "[error, null]", "a first prompt that is longer than data.max_prompt_length is refused, not cut"),
    unused("actor_rollout_ref.hybrid_engine"),
    neutral("actor_rollout_ref.model.external_lib", "[null]", "no Python module is loaded"),
    neutral("actor_rollout_ref.model.override_config", "[{}, null]", "a model is what config.json in its folder says"),
    unused("actor_rollout_ref.model.use_remove_padding"),
    unused("actor_rollout_ref.model.trust_remote_code"),
    unused("actor_rollout_ref.model.use_liger"),
    unused("actor_rollout_ref.actor.strategy"),
    unused("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"),
    unused("actor_rollout_ref.actor.use_dynamic_bsz"),
    unused("actor_rollout_ref.actor.ppo_max_token_len_per_gpu"),
    neutral("actor_rollout_ref.actor.shuffle", "[false, null]", "minibatches are taken in the order of the draws, which data.shuffle mixes"),
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
    neutral("actor_rollout_ref.rollout.ignore_eos", "[false, null]", "a turn ends at the end token"),
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
    neutral("actor_rollout_ref.rollout.do_sample", "[true, null]", "training samples at rollout.temperature; evaluation.temperature=0 evaluates greedily"),
    unused("actor_rollout_ref.rollout.send_interval"),
    unused("actor_rollout_ref.rollout.rollout_log_dir"),
    unused("critic.strategy"),
    unused("critic.rollout_n"),
    neutral("critic.shuffle", "[false, null]", "minibatches are taken in the order of the draws, which data.shuffle mixes"),
    unused("critic.model.tokenizer_path"),
    neutral("critic.model.override_config", "[{}, null]", "a model is what config.json in its folder says"),
    neutral("critic.model.external_lib", "[null]", "no Python module is loaded"),
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
    neutral("reward_model.enable", "[false, null]", "the environment alone gives rewards"),
    neutral("reward_model.reward_manager", "[naive, null]", "the environment alone gives rewards"),
    unused("reward_model.strategy"),
    unused("reward_model.model"),
    unused("reward_model.micro_batch_size"),
    unused("reward_model.micro_batch_size_per_gpu"),
    unused("reward_model.max_length"),
    unused("reward_model.ulysses_sequence_parallel_size"),
    unused("reward_model.use_dynamic_bsz"),
    unused("reward_model.forward_max_token_len_per_gpu"),
    neutral("custom_reward_function.path", "[null]", "a function of one's own is served over HTTP: reward.function and reward.url"),
    unused("custom_reward_function.name"),
    unused("trainer.val_generations_to_log_to_wandb"),
    unused("trainer.nnodes"),
    unused("trainer.n_gpus_per_node"),
    neutral("trainer.resume_mode", "[auto, disable, null]",
        "a run that exists is carried on, a new run.id begins anew; to train another policy give it as actor_rollout_ref.model.path"),
    neutral("trainer.resume_from_path", "[false, null]", "to train another policy give it as actor_rollout_ref.model.path"),
    unused("trainer.default_hdfs_dir"),
    unused("trainer.remove_previous_ckpt_in_save"),
    unused("trainer.del_local_ckpt_after_load"),
    unused("trainer.storage_mode"),
    unused("trainer.device"),
];
