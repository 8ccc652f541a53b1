use super::*;
use crate::pipeline::{PartId, Stage, parts, policy_of};
use crate::planner::Progress;
use proptest::prelude::*;

const RUN: &str = "
actor_rollout_ref:
  actor: {ppo_mini_batch_size: 4}
  rollout: {n: 4, max_tokens: 16, max_model_len: 512}
data:
  train_batch_size: 8
  tasks: [{env: textcraft, ids: 0..100}]
algorithm:
  rounds_ctrl: {type: scaling_inter_stepwise, rounds: [5, 8, 10], steps_scaling_inter: 100}
evaluation:
  sets: [{name: held-out, env: textcraft, ids: 100..110}]
trainer: {total_training_steps: 300, test_freq: 50}
";

fn read(overrides: &[&str]) -> Result<ResolvedConfig> {
    let overrides: Vec<String> = overrides.iter().map(ToString::to_string).collect();
    ResolvedConfig::parse("run", Path::new("run.yaml"), RUN, &overrides)
}

fn plan(overrides: &[&str]) -> Plan {
    Plan::new(read(overrides).unwrap(), Path::new(".")).unwrap()
}

/// Commits parts one by one in the order in which the planner offers them.
fn run_to(plan: &Plan, commits: usize) -> Progress {
    let mut progress = Progress::default();
    while progress.len() < commits {
        let frontier = progress.frontier(plan);
        let Some(part) = frontier.runnable.first() else {
            break;
        };
        progress.insert(part.id);
    }
    progress
}

#[test]
fn a_stage_is_found_by_its_name_alone() {
    for stage in Stage::ALL {
        assert_eq!(stage.name().parse(), Ok(stage));
    }
    let said = "updates".parse::<Stage>().unwrap_err();
    assert!(
        said.contains("`updates`") && said.contains("update, "),
        "{said}"
    );
}

#[test]
fn every_misspelt_key_names_its_neighbour() {
    let error = read(&["actor_rollout_ref.actor.clip_ration=0.1"])
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("did you mean `actor_rollout_ref.actor.clip_ratio`"),
        "{error}"
    );
    let error = read(&["data.batch=3"]).unwrap_err().to_string();
    assert!(error.contains("data.batch"), "{error}");
}

#[test]
fn wrong_types_and_impossible_arithmetic_name_the_key() {
    for (given, key) in [
        ("run.seed=many", "run.seed"),
        (
            "actor_rollout_ref.actor.ppo_mini_batch_size=3",
            "ppo_mini_batch_size",
        ),
        ("actor_rollout_ref.rollout.n=1", "rollout.n"),
        ("actor_rollout_ref.rollout.temperature=-1", "temperature"),
        ("algorithm.rounds_ctrl.type=growing", "rounds_ctrl.type"),
        ("algorithm.rounds_ctrl.rounds=5", "rounds_ctrl.rounds"),
        ("data.tasks=[{env: moon, ids: 0..3}]", "data.tasks[0].env"),
        (
            "data.tasks=[{env: textcraft, ids: 9..3}]",
            "data.tasks[0].ids",
        ),
        ("data.train_batch_size=${data.nothing}", "data.nothing"),
        ("run.pipeline=ppo", "run.pipeline"),
        (
            "algorithm.adv_estimator=reinforce",
            "algorithm.adv_estimator",
        ),
        (
            "algorithm.adv_estimator=reinforce",
            "grpo, gae, reinforce_plus_plus, rloo, gigpo, remax",
        ),
        (
            "actor_rollout_ref.actor.loss_agg_mode=mean",
            "actor_rollout_ref.actor.loss_agg_mode",
        ),
        (
            "actor_rollout_ref.actor.loss_agg_mode=micro_batch_mean",
            "actor_rollout_ref.actor.ppo_micro_batch_size",
        ),
        ("actor_rollout_ref.actor.clip_ratio_c=0.9", "clip_ratio_c"),
        (
            "algorithm.kl_penalty=full",
            "k1, kl, abs, k2, mse, k3, low_var_kl",
        ),
        (
            "algorithm.rollout_correction.rollout_is=turn",
            "algorithm.rollout_correction.rollout_is",
        ),
        ("algorithm.gamma=1.5", "algorithm.gamma"),
        ("guard.patience=0", "guard.patience"),
        ("trainer.critic_warmup=2", "trainer.critic_warmup"),
    ] {
        let error = match read(&[given]).and_then(|c| Plan::new(c, Path::new("."))) {
            Ok(_) => panic!("{given} was accepted"),
            Err(e) => e.to_string(),
        };
        assert!(error.contains(key), "{given}: {error}");
    }
}

#[test]
fn what_only_some_options_read_is_checked_where_they_are_on() {
    let refused = |overrides: &[&str]| read(overrides).unwrap_err().to_string();
    for (overrides, word) in [
        (
            &[
                "algorithm.adv_estimator=rloo",
                "actor_rollout_ref.rollout.n=1",
            ][..],
            "rloo compares",
        ),
        (
            &[
                "algorithm.adv_estimator=remax",
                "algorithm.filter_groups.enable=true",
            ],
            "compare the episodes of a group",
        ),
        (
            &[
                "algorithm.adv_estimator=gae",
                "critic.ppo_mini_batch_size=3",
            ],
            "critic.ppo_mini_batch_size",
        ),
        (
            &[
                "algorithm.use_kl_in_reward=true",
                "algorithm.kl_ctrl.type=pid",
            ],
            "expected `fixed` or `adaptive`",
        ),
        (
            &[
                "algorithm.use_kl_in_reward=true",
                "algorithm.kl_ctrl.type=adaptive",
                "algorithm.kl_ctrl.target_kl=0",
            ],
            "target_kl",
        ),
        (
            &[
                "actor_rollout_ref.actor.loss_agg_mode=micro_batch_mean",
                "actor_rollout_ref.actor.ppo_micro_batch_size=3",
            ],
            "3 does not divide the 16 episodes",
        ),
        (
            &[
                "actor_rollout_ref.actor.use_kl_loss=true",
                "actor_rollout_ref.actor.kl_loss_type=full",
            ],
            "kl_loss_type",
        ),
        (&["algorithm.lag=1"], "rollout_is to token or sequence"),
        (
            &["reward.overlong_buffer.len=99999"],
            "overlong_buffer.len is 99999: it must be between 1 and the most tokens of a response",
        ),
    ] {
        let message = refused(overrides);
        assert!(message.contains(word), "{overrides:?}: {message}");
    }
    for estimator in ["reinforce_plus_plus", "remax", "gae"] {
        let estimator = format!("algorithm.adv_estimator={estimator}");
        assert!(read(&[&estimator, "actor_rollout_ref.rollout.n=1"]).is_ok());
    }
}

/// A key added later does not change the identity of runs that do not set it.
#[test]
fn a_new_option_changes_the_identity_only_where_it_is_set() {
    let base = plan(&[]).identity;
    for same in [
        "algorithm.use_kl_in_reward=false",
        "critic.ppo_epochs=1",
        "critic.ppo_mini_batch_size=4",
        "algorithm.kl_ctrl.kl_coef=0.001",
    ] {
        assert_eq!(plan(&[same]).identity, base, "{same}");
    }
    for other in [
        "algorithm.use_kl_in_reward=true",
        "critic.ppo_epochs=2",
        "actor_rollout_ref.actor.clip_ratio_c=3",
    ] {
        let plan = plan(&[other]);
        assert_ne!(plan.identity, base, "{other}");
        assert_eq!(
            Plan::from_bytes(&plan.to_bytes()).unwrap().identity,
            plan.identity
        );
    }
}

#[test]
fn a_critic_is_a_line_of_its_own_and_the_reference_is_read_where_it_is_used() {
    let inputs = |overrides: &[&str], stage: Stage| -> Vec<String> {
        let plan = plan(overrides);
        let all = parts(&plan, 2);
        let part = all.iter().find(|p| p.id.stage == stage);
        let inputs = part.map(|p| &p.inputs).into_iter().flatten();
        inputs.map(|i| format!("{}={}", i.name, i.from)).collect()
    };
    let plain = inputs(&[], Stage::LogProbs);
    assert_eq!(plain, ["rollout=2/rollout/0", "policy=1/update/0"]);
    assert!(inputs(&[], Stage::CriticUpdate).is_empty());
    let gae = "algorithm.adv_estimator=gae";
    let own = "actor_rollout_ref.ref.model.path=elsewhere";
    let kl = "actor_rollout_ref.actor.use_kl_loss=true";
    let all = inputs(&[gae, own, kl], Stage::LogProbs);
    assert_eq!(all[2..], ["reference=0/init/1", "critic=1/critic_update/0"]);
    assert_eq!(
        inputs(&[gae, own], Stage::LogProbs)[2..],
        ["critic=1/critic_update/0"]
    );
    assert_eq!(
        inputs(&[gae], Stage::CriticUpdate),
        ["batch=2/advantage/0", "critic=1/critic_update/0"]
    );
    let adaptive = [
        "algorithm.use_kl_in_reward=true",
        "algorithm.kl_ctrl.type=adaptive",
    ];
    let advantage = inputs(&adaptive, Stage::Advantage);
    assert!(
        advantage.contains(&"before=1/advantage/0".to_owned()),
        "{advantage:?}"
    );
}

#[test]
fn a_filter_plans_its_rounds_beforehand() {
    let plan = plan(&[
        "algorithm.filter_groups.enable=true",
        "algorithm.filter_groups.max_num_gen_batches=3",
        "trainer.total_training_steps=2",
    ]);
    let all = parts(&plan, 2);
    let find = |stage, part| {
        let found = all
            .iter()
            .find(|p| p.id.stage == stage && p.id.part == part);
        let inputs = found.map(|p| &p.inputs).into_iter().flatten();
        inputs
            .map(|i| format!("{}={}", i.name, i.from))
            .collect::<Vec<_>>()
    };
    // Two rollout parts per round.
    assert_eq!(
        find(Stage::Rollout, 3),
        ["policy=1/update/0", "select=2/select/0"]
    );
    assert_eq!(
        find(Stage::Select, 1),
        [
            "rollout.2=2/rollout/2",
            "rollout.3=2/rollout/3",
            "before=2/select/0"
        ]
    );
    assert!(find(Stage::Advantage, 0).contains(&"select=2/select/2".to_owned()));
    assert_eq!(find(Stage::LogProbs, 5)[0], "rollout=2/rollout/5");
    let mut progress = run_to(&plan, usize::MAX);
    assert!(progress.finished(&plan));
}

#[test]
fn a_preference_run_is_a_chain_of_parts_against_its_start() {
    let dpo = |more: &[&str]| {
        let mut all = vec![
            "run.pipeline=dpo",
            "dpo.expert_file=a.json",
            "dpo.experience_file=b.json",
            "dpo.steps=120",
        ];
        all.extend(more);
        all.iter().map(|o| (*o).to_owned()).collect::<Vec<_>>()
    };
    let plan = |more: &[&str]| {
        let config = ResolvedConfig::parse("run", Path::new("run.yaml"), RUN, &dpo(more)).unwrap();
        Plan::new(config, Path::new(".")).unwrap()
    };
    let inputs = |plan: &Plan, part: u32| -> Vec<String> {
        let all = parts(plan, 0);
        let found = all
            .into_iter()
            .find(|p| p.id.stage == Stage::Dpo && p.id.part == part);
        let inputs = found.unwrap().inputs.into_iter();
        inputs.map(|i| format!("{}={}", i.name, i.from)).collect()
    };
    let plain = plan(&[]);
    assert_eq!((plain.iterations, plain.dpo_parts()), (0, 3));
    assert_eq!(policy_of(&plain, 0).to_string(), "0/dpo/2");
    assert_eq!(
        inputs(&plain, 1),
        ["init=0/init/0", "policy=0/dpo/0", "reference=0/init/0"]
    );
    let other = plan(&["actor_rollout_ref.ref.model.path=elsewhere"]);
    assert_eq!(inputs(&other, 0)[2], "reference=0/init/1");
    assert!(run_to(&plain, usize::MAX).finished(&plain));
    for (given, word) in [
        ("dpo.loss_type=kto", "sigmoid, hinge, ipo"),
        ("dpo.steps=0", "dpo.steps"),
        ("dpo.experience_file=null", "dpo.experience_file"),
        ("dpo.beta=0", "dpo.beta"),
    ] {
        let config = ResolvedConfig::parse("run", Path::new("run.yaml"), RUN, &dpo(&[given]));
        let message = config.err().unwrap().to_string();
        assert!(message.contains(word), "{given}: {message}");
    }
}

#[test]
fn an_adapter_is_read_with_its_base_and_measured_against_it() {
    let plan = |more: &[&str]| {
        let adapter = ["actor_rollout_ref.model.lora_rank=4"];
        let kl = ["actor_rollout_ref.actor.use_kl_loss=true"];
        plan(&[&adapter[..], &kl[..], more].concat())
    };
    let inputs = |plan: &Plan, iteration: u32, stage: Stage| -> Vec<String> {
        let all = parts(plan, iteration);
        let part = all.iter().find(|part| part.id.stage == stage).unwrap();
        part.inputs
            .iter()
            .map(|input| format!("{}={}", input.name, input.from))
            .collect()
    };
    let own = plan(&[]);
    assert_eq!(inputs(&own, 1, Stage::Rollout), ["policy=0/init/0"]);
    assert_eq!(
        inputs(&own, 2, Stage::Rollout),
        ["policy=1/update/0", "base=0/init/0"]
    );
    let update = ["batch=2/advantage/0", "policy=1/update/0", "base=0/init/0"];
    assert_eq!(inputs(&own, 2, Stage::Update), update);
    let scored = inputs(&own, 2, Stage::LogProbs);
    assert!(scored.contains(&"reference=0/init/0".to_owned()));
    let other = plan(&["actor_rollout_ref.ref.model.path=elsewhere"]);
    let scored = inputs(&other, 2, Stage::LogProbs);
    assert!(scored.contains(&"reference=0/init/1".to_owned()));
    // After a warm start, training does not start from the base.
    let warm = [
        "sft.steps=2",
        "sft.sources=[{env: textcraft, ids: 100..120}]",
    ];
    let scored = inputs(&plan(&warm), 2, Stage::LogProbs);
    assert!(
        scored.contains(&"reference=0/init/0".to_owned()),
        "{scored:?}"
    );
    let off = [&warm[..], &["actor_rollout_ref.model.lora_rank=0"]].concat();
    let scored = inputs(&plan(&off), 2, Stage::LogProbs);
    assert!(
        scored.contains(&"reference=0/sft/0".to_owned()),
        "{scored:?}"
    );
}

#[test]
fn keys_of_an_adapter_are_checked_by_name() {
    for (text, words) in [
        ("lora_rank=-1", ["lora_rank", "-1"]),
        ("lora_alpha=0", ["lora_alpha", "above 0"]),
        (
            "target_modules=[q_proj,lm_head]",
            ["`lm_head`", "down_proj"],
        ),
        ("target_modules=[]", ["target_modules", "all-linear"]),
    ] {
        let text = format!("actor_rollout_ref.model.{text}");
        let message = read(&[&text]).unwrap_err().to_string();
        assert!(words.iter().all(|word| message.contains(word)), "{message}");
    }
    // Off by default; setting it to off explicitly gives the same run.
    let off = plan(&["actor_rollout_ref.model.lora_rank=0"]);
    assert_eq!(off.identity, plan(&[]).identity);
    assert_ne!(
        plan(&["actor_rollout_ref.model.lora_rank=2"]).identity,
        off.identity
    );
}

#[test]
fn machinery_that_does_not_exist_here_is_reported_not_refused() {
    let config = read(&[
        "actor_rollout_ref.rollout.gpu_memory_utilization=0.7",
        "trainer.nnodes=2",
    ])
    .unwrap();
    assert_eq!(
        config.unused,
        [
            "actor_rollout_ref.rollout.gpu_memory_utilization",
            "trainer.nnodes"
        ]
    );
    assert_eq!(plan(&["trainer.nnodes=2"]).identity, plan(&[]).identity);
}

#[test]
fn bindings_leave_the_identity_alone_and_identity_keys_do_not() {
    let base = plan(&[]);
    assert_eq!(
        base.identity,
        plan(&["jobs.threads=7", "storage.url=s3://elsewhere/x"]).identity
    );
    assert_ne!(base.identity, plan(&["run.seed=2"]).identity);
    assert_eq!(
        base.revised(read(&["jobs.threads=7"]).unwrap(), Path::new("."))
            .unwrap()
            .revision,
        1
    );
    let error = base
        .revised(read(&["run.seed=2"]).unwrap(), Path::new("."))
        .unwrap_err()
        .to_string();
    assert!(error.contains("run.seed (was 1, now 2)"), "{error}");
}

#[test]
fn a_stored_plan_reads_back_and_holds_no_urls() {
    let written = plan(&[
        "storage.url=s3://key:secret@bucket/x",
        "queue.url=redis://:secret@host",
    ]);
    let bytes = written.to_bytes();
    assert!(!String::from_utf8_lossy(&bytes).contains("secret"));
    let read = Plan::from_bytes(&bytes).unwrap();
    assert_eq!(
        (read.identity, read.iterations),
        (written.identity, written.iterations)
    );
    assert_eq!(read.tasks.draws(17), written.tasks.draws(17));
}

#[test]
fn references_take_the_value_with_its_type() {
    let plan = plan(&["data.max_prompt_length=77"]);
    assert_eq!(plan.config.actor_rollout_ref.rollout.prompt_length, 77);
}

#[test]
fn a_run_from_one_process_commits_every_part_once_and_ends() {
    let plan = plan(&["trainer.total_training_steps=3", "trainer.test_freq=2"]);
    let all: usize = (0..=3).map(|n| parts(&plan, n).len()).sum();
    let mut progress = run_to(&plan, usize::MAX);
    assert_eq!(progress.len(), all);
    assert!(progress.finished(&plan));
}

#[test]
fn evaluation_never_holds_training_up() {
    let plan = plan(&["trainer.total_training_steps=3", "trainer.test_freq=1"]);
    let mut progress = Progress::default();
    loop {
        let frontier = progress.frontier(&plan);
        let Some(part) = frontier.blocking().next() else {
            break;
        };
        progress.insert(part.id);
    }
    assert_eq!(progress.latest_policy(&plan), Some(3));
    assert!(!progress.finished(&plan));
}

#[test]
fn with_a_lag_rollouts_overlap_the_update() {
    let plan = plan(&[
        "algorithm.lag=1",
        "algorithm.rollout_correction.rollout_is=token",
        "trainer.total_training_steps=4",
    ]);
    let mut progress = Progress::default();
    while !progress.contains(&policy_of(&plan, 1)) {
        let frontier = progress.frontier(&plan);
        let part = frontier
            .blocking()
            .find(|p| p.id.iteration <= 1)
            .unwrap()
            .clone();
        progress.insert(part.id);
    }
    let frontier = progress.frontier(&plan);
    let rollouts: Vec<_> = frontier
        .of_stage(Stage::Rollout)
        .map(|p| p.id.iteration)
        .collect();
    assert!(
        rollouts.contains(&2) && rollouts.contains(&3),
        "{rollouts:?}"
    );
}

#[test]
fn the_horizon_at_every_resume_point_of_300_iterations() {
    let plan = plan(&[]);
    for resumed in 0..300u32 {
        // A resumed process has only the stored plan and the commits.
        let again = Plan::from_bytes(&plan.to_bytes()).unwrap();
        for iteration in [resumed + 1, resumed + 2] {
            let stage = ((iteration - 1) / 100).min(2) as usize;
            assert_eq!(
                again.rounds_max(iteration),
                [5, 8, 10][stage],
                "resumed at {resumed}, iteration {iteration}"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4))]

    /// The process ends before each of 300 iterations, and another one with other bindings
    /// continues with only the stored plan.
    #[test]
    fn resumed_and_cut_otherwise_a_run_keeps_its_horizons(
        rounds in prop::collection::vec(1u32..60, 1..6),
        step in 1u32..130,
        part_tasks in 1usize..9,
    ) {
        let identity = [
            format!("algorithm.rounds_ctrl.rounds={rounds:?}"),
            format!("algorithm.rounds_ctrl.steps_scaling_inter={step}"),
            format!("jobs.rollout_part_tasks={part_tasks}"),
        ];
        let overrides: Vec<&str> = identity.iter().map(String::as_str).collect();
        let mut stored = plan(&overrides).to_bytes();
        // The schedule as defined in arXiv:2509.08755: a stage lasts `step` iterations.
        let stages = rounds.iter().flat_map(|&r| std::iter::repeat_n(r, step as usize));
        let schedule = stages.chain(std::iter::repeat(rounds[rounds.len() - 1]));
        for (iteration, horizon) in (1u32..=300).zip(schedule) {
            let resumed = Plan::from_bytes(&stored).unwrap();
            prop_assert_eq!(resumed.rounds_max(iteration), horizon, "iteration {}", iteration);
            let threads = format!("jobs.threads={}", iteration % 7 + 1);
            let newer = read(&[&overrides[..], &[&threads]].concat()).unwrap();
            let revised = resumed.revised(newer, Path::new(".")).unwrap();
            prop_assert_eq!(revised.rounds_max(iteration), horizon);
            stored = revised.to_bytes();
        }
    }
}

proptest! {
    #[test]
    fn any_part_size_plays_every_draw_once(part_tasks in 1usize..12, batch in 1usize..5) {
        let (size, batch) = (format!("jobs.rollout_part_tasks={part_tasks}"), batch * 4);
        let plan = plan(&[&size, &format!("data.train_batch_size={batch}")]);
        let draws: Vec<usize> = (0..plan.rollout_parts()).flat_map(|p| plan.rollout_draws(p)).collect();
        prop_assert_eq!(draws, (0..batch).collect::<Vec<_>>());
    }

    #[test]
    fn whatever_is_runnable_has_its_inputs_and_planning_twice_agrees(commits in 0usize..60, order in any::<u64>()) {
        let plan = plan(&["trainer.total_training_steps=3", "trainer.test_freq=1"]);
        let mut progress = Progress::default();
        let mut pick = order;
        for _ in 0..commits {
            let frontier = progress.frontier(&plan);
            prop_assert_eq!(&frontier, &progress.clone().frontier(&plan));
            if frontier.runnable.is_empty() { break }
            for part in &frontier.runnable {
                prop_assert!(part.inputs.iter().all(|i| progress.contains(&i.from)));
                prop_assert!(!progress.contains(&part.id));
            }
            pick = pick.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let chosen = frontier.runnable[(pick >> 33) as usize % frontier.runnable.len()].id;
            progress.insert(chosen);
        }
        // A process that sees the same commits in another order computes the same frontier.
        let mut other = Progress::default();
        let mut known: Vec<PartId> = (0..=3).flat_map(|n| parts(&plan, n)).map(|p| p.id).filter(|id| progress.contains(id)).collect();
        known.reverse();
        for id in known { other.insert(id); }
        prop_assert_eq!(progress.frontier(&plan), other.frontier(&plan));
    }
}

#[test]
fn an_evolution_explores_filters_and_trains_the_base_anew() {
    let evolution = |more: &[&str]| {
        let all = [
            "run.pipeline=agentevol",
            "sft.sources=[{env: textcraft, ids: 0..4}]",
            "agentevol.steps=500",
            "trainer.total_training_steps=3",
        ];
        plan(&[&all[..], more].concat())
    };
    let inputs = |plan: &Plan, iteration: u32, stage: Stage, part: u32| -> Vec<String> {
        let all = parts(plan, iteration);
        let found = all
            .into_iter()
            .find(|p| p.id.stage == stage && p.id.part == part);
        let inputs = found.map(|p| p.inputs).into_iter().flatten();
        inputs.map(|i| format!("{}={}", i.name, i.from)).collect()
    };
    let plain = evolution(&[]);
    assert_eq!(policy_of(&plain, 0).to_string(), "0/init/0");
    assert_eq!(policy_of(&plain, 2).to_string(), "2/sft/2");
    assert_eq!(inputs(&plain, 3, Stage::Rollout, 1), ["policy=2/sft/2"]);
    assert_eq!(
        inputs(&plain, 2, Stage::Filter, 0),
        [
            "rollout.0=2/rollout/0",
            "rollout.1=2/rollout/1",
            "before=1/filter/0"
        ]
    );
    assert_eq!(
        inputs(&plain, 2, Stage::Sft, 0),
        ["init=0/init/0", "policy=0/init/0", "kept=2/filter/0"]
    );
    assert_eq!(inputs(&plain, 2, Stage::Sft, 1)[1], "policy=2/sft/0");
    assert!(run_to(&plain, usize::MAX).finished(&plain));
    let alone = evolution(&["agentevol.accumulate=false"]);
    assert_eq!(inputs(&alone, 2, Stage::Filter, 0).len(), 2);
    // Estimators of other pipelines have no effect.
    assert!(!evolution(&["algorithm.adv_estimator=remax"]).plays_baselines());
    for (given, word) in [
        ("agentevol.share=1", "between 0 and 1"),
        ("agentevol.steps=0", "agentevol.steps"),
        (
            "agentevol.threshold={webshop: 1}",
            "`webshop` is not declared",
        ),
        ("agentevol.keep=none", "agentevol.keep"),
    ] {
        let message = read(&["run.pipeline=agentevol", "agentevol.steps=1", given]);
        let message = message.err().unwrap().to_string();
        assert!(message.contains(word), "{given}: {message}");
    }
}

#[test]
fn a_fork_has_what_its_iterations_read_and_nothing_else_of_its_parent() {
    let fork = |more: &[&str]| {
        let all = ["run.fork.run=parent", "run.fork.iteration=40"];
        plan(&[&all[..], more].concat())
    };
    let taken = |plan: &Plan| -> Vec<String> {
        let all = (0..=40).flat_map(|n| parts(plan, n));
        all.map(|p| {
            assert!(p.inputs.is_empty());
            p.id.to_string()
        })
        .collect()
    };
    let plain = fork(&[]);
    assert_eq!(taken(&plain), ["40/update/0"]);
    assert_ne!(plain.identity, plan(&[]).identity);
    assert!(run_to(&plain, usize::MAX).finished(&plain));
    let own = parts(&plain, 41);
    let parent = parts(&plan(&[]), 41);
    assert_eq!(own, parent, "its own iterations are as any run's");
    let all = fork(&[
        "algorithm.adv_estimator=gae",
        "algorithm.use_kl_in_reward=true",
        "algorithm.kl_ctrl.type=adaptive",
        "algorithm.lag=1",
        "algorithm.rollout_correction.rollout_is=token",
    ]);
    assert_eq!(
        taken(&all),
        [
            "0/init/0",
            "39/update/0",
            "40/advantage/0",
            "40/update/0",
            "40/critic_update/0"
        ]
    );
}

/// Plans created by an older program version keep their format.
#[test]
fn an_older_format_is_read_and_stays_through_revisions_and_forks() {
    let new = plan(&["run.id=r"]);
    assert_eq!(new.format, 3);
    let text = String::from_utf8(new.to_bytes()).unwrap();
    let stored = text.replacen("\"version\": 3", "\"version\": 1", 1);
    assert_ne!(text, stored);
    let old = Plan::from_bytes(stored.as_bytes()).unwrap();
    assert_eq!((old.format, &old.identity), (1, &new.identity));
    assert_eq!(old.to_bytes(), stored.as_bytes());
    let newer = read(&["run.id=r", "jobs.threads=7"]).unwrap();
    let revised = old.revised(newer, Path::new(".")).unwrap();
    assert_eq!((revised.format, revised.revision), (1, 1));
    let read_back = Plan::from_bytes(&revised.to_bytes()).unwrap();
    assert_eq!(
        (read_back.format, read_back.config.jobs.threads),
        (1, Some(7))
    );
    assert_eq!(plan(&["run.id=child"]).of_format(old.format).format, 1);
    let next = text.replacen("\"version\": 3", "\"version\": 4", 1);
    let error = Plan::from_bytes(next.as_bytes()).unwrap_err().to_string();
    assert!(
        error.contains("format 4") && error.contains("formats 1 to 3"),
        "{error}"
    );
}

/// By rules 1 BabyAI and the maze of this program were other games, and prompts named no tools.
#[test]
fn a_stored_plan_by_rules_1_is_refused_where_it_plays_what_changed() {
    let read = |name: &str, address: &str, rules: u32| {
        let gym = format!("{{task_name: {name}, env_addr: '{address}', rules: {rules}}}");
        let text = format!(
            "{{data: {{tasks: [{{env: {name}, ids: 0..9}}]}}, actor_rollout_ref: {{agentgym: {gym}, rollout: {{n: 2}}}}}}"
        );
        let path = Path::new("x.yaml");
        let stored = ResolvedConfig::parse_stored(path, &text, &[]).expect("readable");
        (
            stored.config.check_rules(),
            ResolvedConfig::parse("x", path, &text, &[]),
        )
    };
    for (name, address, changed) in [
        ("babyai", "builtin:babyai", true),
        ("maze", "builtin:maze", true),
        ("weather", "http://h:1", true),
        ("babyai", "http://h:1", false),
        ("textcraft", "builtin", false),
    ] {
        let (stored, new) = read(name, address, 1);
        let said = stored.err().map(|e| e.to_string());
        assert_eq!(said.is_some(), changed, "{name} at {address}: {said:?}");
        for said in said.into_iter().chain(new.err().map(|e| e.to_string())) {
            assert!(said.contains("agentgym.rules`"), "{said}");
            assert!(said.contains("by rules 1 of the built-in games"), "{said}");
            assert!(said.contains("version 0.3 plays"), "{said}");
        }
        let (stored, new) = read(name, address, 2);
        assert!(stored.is_ok() && new.is_ok(), "{name} at {address}");
        // A new run plays by ours, whatever its game.
        assert!(read(name, address, 1).1.is_err(), "{name} at {address}");
    }
}
