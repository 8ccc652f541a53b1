use crate::config::ResolvedConfig;
use crate::plan::Plan;
use crate::{Error, Result};
use std::path::Path;

fn read(text: &str, overrides: &[&str]) -> Result<ResolvedConfig> {
    let overrides: Vec<String> = overrides.iter().map(ToString::to_string).collect();
    ResolvedConfig::parse("run", Path::new("run.yaml"), text, &overrides)
}

fn refused(text: &str, overrides: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let found = read(text, overrides).and_then(|config| Plan::new(config, folder.path()));
    let error: Error = found.expect_err("it is accepted");
    error.to_string()
}

/// The keys of `ppo_trainer.yaml` with their defaults, except for the file of tasks.
const DEFAULTS: &str = "
data:
  {tokenizer: null, val_files: x.parquet, prompt_key: item_id, max_prompt_length: 2048, max_response_length: 2048,
   train_batch_size: 1024, val_batch_size: null, return_raw_input_ids: False, return_raw_chat: True, shuffle: True}
actor_rollout_ref:
  hybrid_engine: True
  model:
    {path: deepseek-llm-7b-chat, external_lib: null, override_config: {}, enable_gradient_checkpointing: True,
     use_remove_padding: False}
  actor:
    strategy: fsdp
    ppo_mini_batch_size: 256
    ppo_micro_batch_size: null
    ppo_micro_batch_size_per_gpu: null
    use_dynamic_bsz: False
    ppo_max_token_len_per_gpu: 16384
    grad_clip: 1.0
    clip_ratio: 0.2
    entropy_coeff: 0.001
    use_kl_loss: False
    kl_loss_coef: 0.001
    kl_loss_type: low_var_kl
    ppo_epochs: 1
    shuffle: False
    ulysses_sequence_parallel_size: 1
    optim: {lr: 1e-6, lr_warmup_steps_ratio: 0., min_lr_ratio: null, warmup_style: constant, total_training_steps: -1}
    fsdp_config:
      {wrap_policy: {min_num_params: 0}, param_offload: False, grad_offload: False, optimizer_offload: False,
       fsdp_size: -1}
  ref:
    fsdp_config: {param_offload: False, wrap_policy: {min_num_params: 0}}
    log_prob_micro_batch_size: null
    log_prob_micro_batch_size_per_gpu: 1
    log_prob_use_dynamic_bsz: ${actor_rollout_ref.actor.use_dynamic_bsz}
    log_prob_max_token_len_per_gpu: ${actor_rollout_ref.actor.ppo_max_token_len_per_gpu}
    ulysses_sequence_parallel_size: ${actor_rollout_ref.actor.ulysses_sequence_parallel_size}
  agentgym: {task_name: textcraft, env_addr: 'http://localhost:5000', max_retries: 10, max_rounds: 10, timeout: 300}
  rollout:
    {name: vllm, temperature: 1.0, top_k: -1, top_p: 1, prompt_length: '${data.max_prompt_length}',
     response_length: '${data.max_response_length}', dtype: bfloat16, gpu_memory_utilization: 0.5, ignore_eos: False,
     enforce_eager: True, free_cache_engine: True, load_format: dummy_dtensor, tensor_model_parallel_size: 2,
     max_num_batched_tokens: 8192, max_model_len: 32768, max_num_seqs: 1024, max_tokens: 1024,
     log_prob_micro_batch_size: null, log_prob_micro_batch_size_per_gpu: 1, disable_log_stats: True,
     enable_chunked_prefill: True, do_sample: True, n: 1, send_interval: 1, rollout_log_dir: null}
critic:
  strategy: fsdp
  rollout_n: ${actor_rollout_ref.rollout.n}
  optim: {lr: 1e-5, lr_warmup_steps_ratio: 0., min_lr_ratio: null, warmup_style: constant, total_training_steps: -1}
  model:
    {path: deepseek-llm-7b-chat, tokenizer_path: '${actor_rollout_ref.model.path}', override_config: {},
     external_lib: '${actor_rollout_ref.model.external_lib}', enable_gradient_checkpointing: True,
     use_remove_padding: False, fsdp_config: {param_offload: False, fsdp_size: -1}}
  ppo_mini_batch_size: ${actor_rollout_ref.actor.ppo_mini_batch_size}
  ppo_micro_batch_size: null
  ppo_micro_batch_size_per_gpu: null
  forward_micro_batch_size: ${critic.ppo_micro_batch_size}
  forward_micro_batch_size_per_gpu: ${critic.ppo_micro_batch_size_per_gpu}
  use_dynamic_bsz: ${actor_rollout_ref.actor.use_dynamic_bsz}
  ppo_max_token_len_per_gpu: 32768
  forward_max_token_len_per_gpu: ${critic.ppo_max_token_len_per_gpu}
  ulysses_sequence_parallel_size: 1
  ppo_epochs: ${actor_rollout_ref.actor.ppo_epochs}
  shuffle: ${actor_rollout_ref.actor.shuffle}
  grad_clip: 1.0
  cliprange_value: 0.5
reward_model:
  {enable: False, strategy: fsdp, model: {path: x}, micro_batch_size: null, max_length: null, reward_manager: naive,
   ulysses_sequence_parallel_size: 1, use_dynamic_bsz: '${critic.use_dynamic_bsz}'}
custom_reward_function: {path: null, name: compute_score}
algorithm:
  gamma: 1.0
  lam: 1.0
  adv_estimator: gae
  kl_penalty: kl
  kl_ctrl: {type: fixed, kl_coef: 0.001}
  rounds_ctrl: {type: fixed, rounds: 15, steps_scaling_inter: 100}
trainer:
  {total_epochs: 30, total_training_steps: null, project_name: verl_examples, experiment_name: gsm8k,
   logger: [console, wandb], val_generations_to_log_to_wandb: 0, nnodes: 1, n_gpus_per_node: 8, save_freq: -1,
   resume_mode: auto, resume_from_path: False, test_freq: -1, critic_warmup: 0, default_hdfs_dir: null,
   remove_previous_ckpt_in_save: False, del_local_ckpt_after_load: False,
   default_local_dir: 'checkpoints/${trainer.project_name}/${trainer.experiment_name}', storage_mode: local}
";

#[test]
fn agentgym_rls_own_defaults_are_a_plan() {
    let config = read(DEFAULTS, &["data.tasks=[{env: textcraft, ids: 0..2048}]"]).unwrap();
    let plan = Plan::new(config.clone(), Path::new("")).unwrap();
    assert_eq!(plan.iterations, 60);
    let trainer = &plan.config.trainer;
    assert_eq!((trainer.save_freq, trainer.test_freq), (0, 0));
    assert_eq!(plan.config.actor_rollout_ref.actor.optim.min_lr_ratio, 0.0);
    assert_eq!(plan.config.critic.optim.min_lr_ratio, 0.0);
    let folder = trainer.default_local_dir.as_deref();
    assert_eq!(folder, Some("checkpoints/verl_examples/gsm8k"));
    assert!(
        config.notes.iter().any(|n| n.contains("wandb")),
        "{:?}",
        config.notes
    );
    let stored = Plan::from_bytes(&plan.to_bytes()).unwrap();
    assert_eq!(stored.identity, plan.identity);
}

const RUN: &str = "
actor_rollout_ref: {actor: {use_kl_loss: true}, rollout: {n: 2}}
data: {tasks: [{env: textcraft, ids: 0..64}]}
";

#[test]
fn off_there_is_off_here_and_no_other_run() {
    let plan =
        |overrides: &[&str]| Plan::new(read(RUN, overrides).unwrap(), Path::new("")).unwrap();
    let off = plan(&["trainer.test_freq=0", "trainer.save_freq=0"]);
    let theirs = [
        "trainer.test_freq=-1",
        "trainer.save_freq=-1",
        "actor_rollout_ref.actor.optim.min_lr_ratio=null",
        "trainer.logger=console",
    ];
    assert_eq!(plan(&theirs).identity, off.identity);
    assert!(!plan(&theirs).evaluates(10));
    assert!(refused(RUN, &["trainer.test_freq=-2"]).contains("trainer.test_freq"));
}

#[test]
fn keys_that_would_change_what_is_learnt_are_refused_unless_neutral() {
    for key in super::keys::KEYS.iter().filter(|key| !key.only.is_empty()) {
        let only = super::yaml(key.only).unwrap();
        for value in only.as_array().unwrap() {
            let given = format!("{}={value}", key.path);
            let read = read(RUN, &[&given]).unwrap_or_else(|e| panic!("{given}: {e}"));
            assert_eq!(read.unused, [key.path]);
        }
        let message = refused(RUN, &[&format!("{}=something", key.path)]);
        assert!(
            message.contains(key.path) && message.contains("Leave it out"),
            "{message}"
        );
    }
    for given in [
        "reward_model.enable=True",
        "custom_reward_function.path=mine.py",
        "actor_rollout_ref.rollout.ignore_eos=True",
        "actor_rollout_ref.rollout.do_sample=False",
        "actor_rollout_ref.actor.shuffle=True",
        "data.truncation=left",
        "actor_rollout_ref.model.override_config={rope_theta: 5}",
        "actor_rollout_ref.model.override_config.rope_theta=5",
        "trainer.resume_mode=saves/test/global_step_25",
        "reward_model={enable: true}",
    ] {
        let message = refused(RUN, &[given]);
        assert!(
            message.contains("would change what is learnt"),
            "{given}: {message}"
        );
    }
    // A reference is checked by the value it refers to.
    let refers = "critic.shuffle=${actor_rollout_ref.actor.shuffle}";
    read(RUN, &[refers]).unwrap();
    read(
        RUN,
        &["actor_rollout_ref.rollout.tensor_model_parallel_size=8"],
    )
    .unwrap();
}

#[test]
fn a_file_of_tasks_takes_the_place_of_a_list_and_the_other_way_round() {
    let folder = tempfile::tempdir().unwrap();
    let rows: Vec<_> = (0..32)
        .map(|i| serde_json::json!({"item_id": format!("textcraft_{i}")}))
        .collect();
    std::fs::write(
        folder.path().join("ids.json"),
        serde_json::to_vec(&rows).unwrap(),
    )
    .unwrap();
    let plan = |text: &str, overrides: &[&str]| {
        let config = read(text, overrides)?;
        Plan::new(config, folder.path())
    };
    let file = "data.train_file=ids.json";
    let list = "data.tasks=[{env: textcraft, ids: 0..8}]";
    for overrides in [
        &[file][..],
        &[file, "data.tasks=null"],
        &["data.tasks=[]", file],
    ] {
        assert_eq!(
            plan(RUN, overrides).unwrap().tasks.len(),
            32,
            "{overrides:?}"
        );
    }
    let of_a_file = "
actor_rollout_ref: {rollout: {n: 2}}
data: {train_file: none.json, train_batch_size: 8}
";
    assert_eq!(plan(of_a_file, &[list]).unwrap().tasks.len(), 8);
    assert_eq!(plan(of_a_file, &[file]).unwrap().tasks.len(), 32);
    for overrides in [
        &[file, list][..],
        &["data={train_file: ids.json, tasks: [{env: textcraft, ids: 0..8}]}"],
    ] {
        let message = refused(RUN, overrides);
        assert!(message.contains("not both"), "{message}");
    }
}

#[test]
fn the_keys_of_its_evaluation_mean_what_they_mean_there() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(
        folder.path().join("maze_test.json"),
        r#"[{"item_id": "maze_3"}, {"item_id": "maze_5"}]"#,
    )
    .unwrap();
    let text = "
run: {pipeline: eval}
evaluation: {greedy: false, sets: [{name: other, env: textcraft, ids: 0..3}]}
";
    let path = format!("data.path={}/", folder.path().display());
    let given = [
        path.as_str(),
        "data.n_samples=4",
        "data.batch_size=32",
        "agentgym.task_name=maze",
        "agentgym.env_addr=builtin:maze",
        "agentgym.max_rounds=7",
        "agentgym.timeout=500",
        "model.path=a/folder",
        "rollout.temperature=0.5",
        "rollout.top_k=-1",
        "rollout.n=1",
        "rollout.max_tokens=99",
        "rollout.gpu_memory_utilization=0.95",
        "rollout.rollout_log_dir=logs",
        "actor.use_kl_loss=null",
    ];
    let config = read(text, &given).unwrap();
    let mut unused = config.unused.clone();
    unused.sort_unstable();
    assert_eq!(
        unused,
        [
            "actor.use_kl_loss",
            "actor_rollout_ref.rollout.gpu_memory_utilization",
            "actor_rollout_ref.rollout.rollout_log_dir",
            "data.batch_size",
            "rollout.n",
        ]
    );
    let plan = Plan::new(config, Path::new("")).unwrap();
    let (evaluation, policy) = (&plan.config.evaluation, &plan.config.actor_rollout_ref);
    assert_eq!(
        (
            evaluation.samples,
            evaluation.temperature,
            evaluation.max_rounds
        ),
        (4, 0.5, 7)
    );
    let set = &evaluation.sets[0];
    assert_eq!(
        (evaluation.sets.len(), set.name.as_str(), set.env.as_str()),
        (1, "maze", "maze")
    );
    assert_eq!(set.ids.resolve("ids").unwrap(), [3, 5]);
    assert_eq!(
        (policy.model.path.as_str(), policy.rollout.max_tokens),
        ("a/folder", 99)
    );
    assert_eq!(
        (policy.agentgym.env_addr.as_str(), policy.agentgym.timeout),
        ("builtin:maze", 500.0)
    );
    // The pipeline may be set on the command line, as `eval` does.
    let trains = read(RUN, &["data.n_samples=2"]).unwrap_err().to_string();
    assert!(trains.contains("unknown key `data.n_samples`"), "{trains}");
    let sets = "evaluation.sets=[{name: m, env: textcraft, ids: 0..3}]";
    let evaluates = read(RUN, &["data.n_samples=2", sets, "run.pipeline=eval"]).unwrap();
    assert_eq!(evaluates.config.evaluation.samples, 2);
    for (given, words) in [
        (&["rollout.n=2"][..], "data.n_samples"),
        (
            &["rollout.nn=2"],
            "unknown key `actor_rollout_ref.rollout.nn`",
        ),
        (&["actor.nothing=2"], "unknown key `actor.nothing`"),
        (&["rollout.do_sample=False"], "would change"),
        (&["data.path=a", sets], "not both"),
        (&["data.path=a"], "a/textcraft_test.json"),
    ] {
        let message = refused(text, given);
        assert!(message.contains(words), "{given:?}: {message}");
    }
}
