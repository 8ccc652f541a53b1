//! Whatever a config says, `plan` answers with the key, the value found and the allowed values, in
//! time and memory that do not depend on the config. Each command is run as a user types it, with a
//! limit of the address space and a timeout.

use crate::bad_input::{Scene, refused};
use agentgym_jobs::config::keys::KEYS;
use agentgym_tests::program::{finish, program, workspace};
use std::process::{Command, Output};

/// The address space that the program reserves before it reads anything (`keys` peaks at 280 MB:
/// libraries, stacks, arenas of the allocator), plus 60 MB.
const ADDRESSES_KB: u32 = 280_000 + 60_000;
/// It takes a second; the rest is for a machine that is busy otherwise.
const SECONDS: u32 = 60;

fn guarded(scene: &Scene, arguments: &[&str]) -> Output {
    within(scene, ADDRESSES_KB, arguments)
}

fn within(scene: &Scene, addresses_kb: u32, arguments: &[&str]) -> Output {
    let path = program("agentgym-submit").get_program().to_owned();
    let mut command = Command::new("sh");
    command
        .args(["-c", "ulimit -v \"$0\" && exec timeout -s KILL \"$@\""])
        .arg(addresses_kb.to_string())
        .arg(SECONDS.to_string())
        .arg(path)
        .args(arguments)
        .current_dir(scene.folder())
        // Each thread reserves a stack; the number of cores must not matter here.
        .env("TOKIO_WORKER_THREADS", "2")
        .env("AGENTGYM_CACHE", scene.path("cache"));
    finish(command)
}

/// `plan` of the scene's config with one more override refuses the override, naming its key.
fn refuses(scene: &Scene, given: &str, words: &[&str]) -> String {
    let output = guarded(scene, &["plan", "run.yaml", given]);
    refused(given, &output, 2, words)
}

#[test]
fn numbers_beyond_any_run() {
    let scene = Scene::new();
    for key in KEYS.iter().filter(|key| key.limit.is_some()) {
        let value = match key.default.starts_with('[') {
            true => "[18446744073709551615, 0.5]".to_owned(),
            false => u64::MAX.to_string(),
        };
        // Values that the type itself rejects are reported with the key too.
        refuses(&scene, &format!("{}={value}", key.path), &[key.path]);
    }
    for (given, words) in [
        (
            "trainer.total_training_steps=4294967295",
            &["1000000", "4294967295"][..],
        ),
        (
            "data.train_batch_size=1000000000000",
            &["1000000", "1000000000000"],
        ),
        (
            "data.tasks=[{env: textcraft, ids: 0..1000000000000}]",
            &["data.tasks[0].ids", "10000000"],
        ),
        (
            "data.tasks=[{env: textcraft, ids: -9223372036854775808..9223372036854775807}]",
            &["data.tasks[0].ids", "18446744073709551615"],
        ),
        (
            "data.tasks=[{env: textcraft, ids: 0..10000000}, {env: textcraft, ids: 0..10000000}, {env: textcraft, ids: 0..10000000}, {env: textcraft, ids: 0..10000000}]",
            &["data.tasks[1].ids", "20000000"],
        ),
        (
            "sft={steps: 10000000, sources: [{env: textcraft, ids: 0..9}], batch_size: 1}",
            &[][..],
        ),
        (
            "trainer={total_training_steps: null, total_epochs: 1000000}",
            &["trainer.total_epochs", "4000000"],
        ),
        (
            "jobs={rollout_part_tasks: 1, update_shards: 10000, sft_part_steps: 1}",
            &[],
        ),
        (
            "sft={sources: [{env: textcraft, ids: 0..9, share: -1}]}",
            &["sft.sources[0].share", "-1"],
        ),
        (
            "data.tasks=[{env: textcraft, ids: 0..9, share: 0}]",
            &["data.tasks[0].share"],
        ),
        (
            "actor_rollout_ref.model.path=tiny?layers=1000000000",
            &["num_hidden_layers", "1000000000"],
        ),
        (
            "actor_rollout_ref.model.path=tiny?vocab=18446744073709551615",
            &["vocab_size"],
        ),
    ] {
        if words.is_empty() {
            // Large but possible: it is planned within the same limits.
            let output = guarded(&scene, &["plan", "run.yaml", given]);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{given}: {said}");
        } else {
            refuses(&scene, given, words);
        }
    }
    let line = [
        "plan",
        "run.yaml",
        "data.train_batch_size=1000000",
        "actor_rollout_ref.actor.ppo_mini_batch_size=1000000",
        "jobs.rollout_part_tasks=1",
    ];
    refused(
        "parts",
        &guarded(&scene, &line),
        2,
        &["jobs.rollout_part_tasks", "100000"],
    );
    let line = ["run", "run.yaml", "jobs.threads=1000000", "--store", "s"];
    refused(
        "threads",
        &guarded(&scene, &line),
        2,
        &["jobs.threads", "4096"],
    );
    assert!(!scene.path("s").exists(), "a store was made");
}

/// Everything at its maximum: sums and products overflow, but nothing is refused.
#[test]
fn the_largest_of_everything_is_planned() {
    let scene = Scene::new();
    let line = [
        "--json",
        "plan",
        "run.yaml",
        "data.train_batch_size=100000",
        "data.tasks=[{env: textcraft, ids: 0..10000000}]",
        "data.max_prompt_length=100000000",
        "data.max_response_length=100000000",
        "actor_rollout_ref.actor.ppo_mini_batch_size=100000",
        "actor_rollout_ref.actor.ppo_epochs=10000",
        "actor_rollout_ref.rollout.n=100000",
        "actor_rollout_ref.rollout.max_model_len=100000000",
        "actor_rollout_ref.model.path=tiny?hidden=1048576&heads=4096&kv_heads=4096&layers=4096&intermediate=4194304&vocab=16777216",
        "actor_rollout_ref.model.lora_rank=65536",
        "algorithm.adv_estimator=gae",
        "critic.ppo_epochs=10000",
        "evaluation.sets=[{name: all, env: textcraft, ids: 0..10000000}]",
        "evaluation.samples=100000",
        "jobs={workers: 0, threads: 4096, rollout_part_tasks: 1000000, unit_tokens: 1000000000, pack_tokens: 1000000000, decode_rows: 65536, cache_tokens: 1000000000000}",
        "sft={steps: 100000000, batch_size: 1000000, sources: [{env: textcraft, ids: 0..10000000}]}",
        "jobs.sft_part_steps=1000",
        "trainer.total_training_steps=1000000",
        "trainer.test_freq=1",
    ];
    // It uses 200 MB of this address space; growing lists of a million leave holes in it.
    let output = within(&scene, 800_000, &line);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    let plan: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(plan["iterations"], 1_000_000);
    assert_eq!(plan["sizes"]["update_memory_bytes"], u64::MAX);
}

#[test]
fn references_that_grow() {
    let scene = Scene::new();
    let refuses = |given: &str, words: &[&str]| {
        refuses(&scene, given, words);
    };
    // Each name is twice as long as the previous one.
    let mut bomb = String::from("a: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa");
    for (before, name) in ('a'..='n').zip('b'..='o') {
        bomb += &format!(
            ", {name}: '${{actor_rollout_ref.agentgym.envs.{before}}}${{actor_rollout_ref.agentgym.envs.{before}}}'"
        );
    }
    refuses(
        &format!("actor_rollout_ref.agentgym.envs={{{bomb}}}"),
        &["key `"],
    );
    refuses(
        "actor_rollout_ref.agentgym.envs={a: '${actor_rollout_ref}'}",
        &["key `"],
    );
    refuses(
        "actor_rollout_ref.agentgym.envs={a: '${actor_rollout_ref}', b: '${actor_rollout_ref}', c: '${data}', d: '${actor_rollout_ref}'}",
        &["key `"],
    );
    let many: Vec<String> = (0..2000)
        .map(|i| format!("e{i}: '${{data.tasks}}'"))
        .collect();
    let ids: Vec<String> = (0..2000).map(|i| i.to_string()).collect();
    scene.write(
        "many.yaml",
        format!(
            "data: {{tasks: [{{env: textcraft, ids: [{}]}}]}}\nactor_rollout_ref: {{agentgym: {{envs: {{{}}}}}}}\n",
            ids.join(","),
            many.join(", ")
        )
        .as_bytes(),
    );
    let output = guarded(&scene, &["plan", "many.yaml"]);
    refused("many", &output, 2, &["references add more than"]);
    let deep = format!("data.tasks={}1{}", "[".repeat(500), "]".repeat(500));
    refuses(&deep, &["data"]);
    refuses(&format!("{}=1", "x".repeat(100_000)), &["unknown key"]);
    refuses(
        &format!("algorithm.kl_penalty={}", "x".repeat(100_000)),
        &["algorithm.kl_penalty"],
    );
}

/// Only regular files are opened, for every key.
#[test]
fn paths_to_what_never_ends() {
    let scene = Scene::new();
    let fifo = std::process::Command::new("mkfifo")
        .arg(scene.path("fifo.md"))
        .status();
    assert!(fifo.unwrap().success());
    std::fs::create_dir(scene.path("folder.md")).unwrap();
    scene.write("questions.jsonl", b"{}\n");
    let dpo = "run.pipeline=dpo dpo.steps=1";
    let keys = [
        ("actor_rollout_ref.agentgym.style", "@", ""),
        ("actor_rollout_ref.agentgym.summary", "@", ""),
        ("actor_rollout_ref.agentgym.prompt", "@", ""),
        ("data.train_file", "@", "data.tasks=[]"),
        ("data.train_file", "[@]", "data.tasks=[]"),
        (
            "evaluation.sets",
            "[{name: a, env: textcraft, file: '@'}]",
            "",
        ),
        ("sft.sources", "[{file: '@'}]", "sft.steps=1"),
        ("dpo.expert_file", "@", "dpo.experience_file=run.yaml"),
        ("dpo.experience_file", "@", "dpo.expert_file=run.yaml"),
        (
            "actor_rollout_ref.agentgym.env_addr",
            "builtin:searchqa?corpus=@&questions=questions.jsonl",
            "",
        ),
        (
            "actor_rollout_ref.agentgym.env_addr",
            "builtin:searchqa?corpus=questions.jsonl&questions=@",
            "",
        ),
        (
            "actor_rollout_ref.agentgym.env_addr",
            "builtin:folder?path=folder.md&order=@",
            "",
        ),
    ];
    for path in ["/dev/zero", "fifo.md", "folder.md", "no/such.md"] {
        for (key, value, more) in keys {
            let given = format!("{key}={}", value.replace('@', path));
            let mut line = vec!["plan", "run.yaml", &given];
            line.extend(more.split_whitespace());
            if key.starts_with("dpo") {
                line.extend(dpo.split_whitespace());
            }
            refused(&given, &guarded(&scene, &line), 2, &[key, path]);
        }
    }
    for key in [
        "actor_rollout_ref.model.path",
        "actor_rollout_ref.model.lora_adapter_path",
    ] {
        let given = format!("{key}=/dev/zero");
        // It opens its store first, with threads that reserve more than they use.
        let line = ["run", "run.yaml", "--store", "s", &given];
        let output = within(&scene, 2_000_000, &line);
        refused(&given, &output, 2, &[key, "/dev/zero"]);
    }
    let output = guarded(&scene, &["plan", "/dev/zero"]);
    refused("/dev/zero", &output, 2, &["longer than"]);
    // Sparse files that are one byte larger than allowed.
    for (given, tasks, bytes) in [
        ("data.train_file=long.json", "data.tasks=[]", (64 << 20) + 1),
        (
            "sft.sources=[{file: long.json}]",
            "data.seed=1",
            (4 << 30) + 1,
        ),
    ] {
        let long = std::fs::File::create(scene.path("long.json")).unwrap();
        long.set_len(bytes).unwrap();
        let output = guarded(&scene, &["plan", "run.yaml", tasks, given]);
        refused(given, &output, 2, &["long.json", &format!("{bytes} bytes")]);
    }
}

#[test]
fn arithmetic_that_means_nothing() {
    let scene = Scene::new();
    for (given, words) in [
        (
            "actor_rollout_ref.actor.optim.lr=1e38",
            &["optim.lr", "at most 100"][..],
        ),
        (
            "actor_rollout_ref.actor.optim.lr=0",
            &["optim.lr", "above 0"],
        ),
        (
            "actor_rollout_ref.actor.optim.betas=[0.9, 1.0]",
            &["optim.betas[1]", "below 1", "found 1"],
        ),
        (
            "actor_rollout_ref.actor.optim.betas=[-0.1, 0.9]",
            &["optim.betas[0]"],
        ),
        (
            "actor_rollout_ref.actor.optim.weight_decay=-0.01",
            &["optim.weight_decay"],
        ),
        ("critic.optim.lr=1e38", &["critic.optim.lr"]),
        ("critic.optim.betas=[1.5, 0.9]", &["critic.optim.betas[0]"]),
        (
            "critic.optim.weight_decay=-1",
            &["critic.optim.weight_decay"],
        ),
        ("sft.lr=1e30", &["sft.lr"]),
        ("sft.betas=[0.9, 2]", &["sft.betas[1]"]),
        ("sft.weight_decay=-1", &["sft.weight_decay"]),
        ("sft.grad_clip=-1", &["sft.grad_clip"]),
        ("dpo.lr=-1", &["dpo.lr"]),
        ("dpo.betas=[1, 0]", &["dpo.betas[0]"]),
        ("dpo.weight_decay=-1", &["dpo.weight_decay"]),
        ("dpo.beta=1e300", &["dpo.beta"]),
        (
            "actor_rollout_ref.rollout.top_p=2",
            &["rollout.top_p", "found 2"],
        ),
        ("actor_rollout_ref.rollout.top_p=0", &["rollout.top_p"]),
        ("actor_rollout_ref.rollout.top_k=-5", &["rollout.top_k"]),
        (
            "actor_rollout_ref.rollout.temperature=1e-300",
            &["rollout.temperature", "1e-6"],
        ),
        (
            "evaluation.temperature=1e-300",
            &["evaluation.temperature", "1e-6"],
        ),
        ("evaluation.temperature=-1", &["evaluation.temperature"]),
        (
            "actor_rollout_ref.actor.clip_ratio_low=1.5",
            &["actor.clip_ratio_low"],
        ),
        (
            "actor_rollout_ref.actor.kl_loss_coef=-1",
            &["actor.kl_loss_coef"],
        ),
        (
            "actor_rollout_ref.actor.entropy_coeff=1e300",
            &["actor.entropy_coeff"],
        ),
        ("actor_rollout_ref.actor.grad_clip=0", &["actor.grad_clip"]),
        (
            "actor_rollout_ref.actor.optim.min_lr_ratio=2",
            &["optim.min_lr_ratio"],
        ),
        (
            "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=-1",
            &["lr_warmup_steps_ratio"],
        ),
        ("algorithm.gamma=1.1", &["algorithm.gamma"]),
        ("algorithm.lam=-0.1", &["algorithm.lam"]),
        (
            "algorithm.kl_ctrl.kl_coef=-1",
            &["algorithm.kl_ctrl.kl_coef"],
        ),
        (
            "algorithm.kl_ctrl.target_kl=0",
            &["algorithm.kl_ctrl.target_kl"],
        ),
        ("actor_rollout_ref.model.lora_alpha=1e300", &["lora_alpha"]),
    ] {
        refuses(&scene, given, words);
    }
    // Boundary values that are allowed.
    for given in [
        "actor_rollout_ref.actor.optim.betas=[0, 0]",
        "actor_rollout_ref.actor.optim.weight_decay=0",
        "actor_rollout_ref.rollout.top_k=0",
        "evaluation.temperature=0 evaluation.samples=1",
        "sft.grad_clip=0",
    ] {
        scene.succeeds(&format!("plan run.yaml {}", given.replace(", ", ",")));
    }
}

#[test]
fn names_that_could_be_taken_for_something_else() {
    let scene = Scene::new();
    let long = "x".repeat(10_000);
    let names = [
        "",
        "a/b",
        "..",
        "a\\\\b",
        "a\\u001b[2Jb",
        "a\\nb",
        " a",
        "a\\u202eb",
        "a\\u200bb",
        &long,
    ];
    for name in names {
        let given = format!("evaluation.sets=[{{name: \"{name}\", env: textcraft, ids: 0..2}}]");
        let said = refuses(&scene, &given, &["evaluation.sets[0].name"]);
        assert!(!said.contains(['\u{1b}', '\u{202e}']), "{said:?}");
        let given = format!(
            "actor_rollout_ref.agentgym.envs={{\"{name}\": {{task_name: textcraft, env_addr: builtin}}}}"
        );
        refuses(&scene, &given, &["agentgym.envs"]);
    }
    refuses(
        &scene,
        "evaluation.sets=[{name: a, env: textcraft, ids: 0..2}, {name: a, env: textcraft, ids: 2..4}]",
        &["evaluation.sets[1].name", "`a`"],
    );
    refuses(
        &scene,
        "evaluation.sets=[{name: a, env: textcraft, ids: 0..2, categories: {\"b/c\": [0, 1]}}]",
        &["evaluation.sets[0].categories"],
    );
    refuses(&scene, "run.id=../other", &["run.id"]);
    let output = guarded(
        &scene,
        &[
            "plan",
            "run.yaml",
            "evaluation.sets=[{name: \"held out, étage 2 (a+b)\", env: textcraft, ids: 0..2}]",
        ],
    );
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn environments_that_nobody_knows() {
    let scene = Scene::new();
    let words = [
        "agentgym.task_name",
        "`mygame`",
        "webshop",
        "docs/environments.md",
    ];
    let games = "data.tasks=[{env: mygame, ids: 0..8}]";
    let line = [
        "plan",
        "run.yaml",
        "actor_rollout_ref.agentgym.task_name=mygame",
        "evaluation.sets=[]",
        games,
    ];
    refused("mygame", &guarded(&scene, &line), 2, &words);
    refuses(
        &scene,
        "actor_rollout_ref.agentgym.envs={b: {task_name: babyia, env_addr: builtin}}",
        &["agentgym.envs.b.task_name", "Did you mean `babyai`?"],
    );
    refuses(
        &scene,
        "actor_rollout_ref.agentgym.env_addr=builtin:wrlds",
        &["agentgym.env_addr", ":worlds"],
    );
}

/// Uses the reader of the workers, so that what they would refuse is refused here.
#[test]
fn models_that_no_worker_can_compute() {
    let scene = Scene::new();
    let base = workspace().join("models/base");
    let file = |name: &str| std::fs::read_to_string(base.join(name)).unwrap();
    let config = file("config.json");
    let cases = [
        (
            "arch",
            config.replace("Qwen2ForCausalLM", "LlamaForCausalLM"),
            "LlamaForCausalLM",
        ),
        (
            "layers",
            config.replace(
                "\"num_hidden_layers\":",
                "\"num_hidden_layers\": 1000000000, \"x\":",
            ),
            "num_hidden_layers",
        ),
        (
            "eps",
            config.replace("\"rms_norm_eps\":", "\"rms_norm_eps\": -1, \"y\":"),
            "rms_norm_eps",
        ),
        ("notjson", "{".to_owned(), "config.json"),
        ("fine", config.clone(), ""),
    ];
    for (folder, config, word) in &cases {
        assert!(!word.is_empty() || *folder == "fine", "{folder}");
        std::fs::create_dir(scene.path(folder)).unwrap();
        for name in ["model.safetensors", "tokenizer.json", "chat_template.jinja"] {
            std::os::unix::fs::symlink(base.join(name), scene.path(&format!("{folder}/{name}")))
                .unwrap();
        }
        scene.write(&format!("{folder}/config.json"), config.as_bytes());
        let key = "actor_rollout_ref.model.path";
        let given = format!("{key}=./{folder}");
        if word.is_empty() {
            scene.succeeds(&format!("plan run.yaml {given}"));
            continue;
        }
        refuses(&scene, &given, &[key, word]);
        let given = format!("actor_rollout_ref.ref.model.path=./{folder}");
        let line = [
            "plan",
            "run.yaml",
            "actor_rollout_ref.actor.use_kl_loss=true",
            &given,
        ];
        refused(
            &given,
            &guarded(&scene, &line),
            2,
            &["ref.model.path", word],
        );
    }
    for name in ["model.safetensors", "tokenizer.json", "chat_template.jinja"] {
        let at = scene.path(&format!("fine/{name}"));
        std::fs::remove_file(&at).unwrap();
        refuses(
            &scene,
            "actor_rollout_ref.model.path=./fine",
            &["model.path", name],
        );
        std::os::unix::fs::symlink("/dev/zero", &at).unwrap();
        refuses(
            &scene,
            "actor_rollout_ref.model.path=./fine",
            &["model.path", name],
        );
        std::fs::remove_file(&at).unwrap();
        std::os::unix::fs::symlink(base.join(name), &at).unwrap();
    }
    // A model that is not here may exist where the workers are.
    scene.succeeds("plan run.yaml actor_rollout_ref.model.path=org/none jobs.workers=0");
}

/// `plan` accepts the configs of `eval`, and `run` names the right command.
#[test]
fn a_config_that_only_evaluates() {
    let scene = Scene::new();
    // Settings that only training needs, such as groups of episodes, are not required.
    let line = "run.yaml data.tasks=[] actor_rollout_ref.rollout.n=1";
    let shown = scene.submit(&format!("plan {line}"));
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.status.success(), "{text}");
    assert!(
        text.contains("pipeline eval") && text.contains("easy (2 tasks)"),
        "{text}"
    );
    scene.refuses(
        &format!("{line} --store s"),
        2,
        &["data.tasks", "agentgym-submit eval"],
    );
    scene.refuses(
        &format!("plan {line} evaluation.sets=[]"),
        2,
        &["data.tasks"],
    );
}

/// Refused before the first part is made, and once; likewise a style that no solver supports.
#[test]
fn training_files_that_are_not_there() {
    let scene = Scene::new();
    let sft = "run.yaml sft.steps=2 sft.sources=[{\"file\":\"no/rows.json\"}]";
    let dpo = "run.yaml run.pipeline=dpo dpo.steps=1 dpo.expert_file=run.yaml dpo.experience_file=no/rows.json";
    for (line, key) in [(sft, "sft.sources[0].file"), (dpo, "dpo.experience_file")] {
        for line in [format!("plan {line}"), format!("{line} --store s")] {
            let said = scene.refuses(&line, 2, &[key, "no/rows.json", "current folder"]);
            assert!(!said.contains("init"), "{said}");
        }
        // With remote workers, the files are assumed to exist.
        scene.succeeds(&format!("plan {line} jobs.workers=0"));
    }
    let style = "run.yaml sft.steps=2 sft.sources=[{\"env\":\"textcraft\",\"ids\":\"0..9\",\"style\":\"loud\"}]";
    for line in [format!("plan {style}"), format!("{style} --store s")] {
        scene.refuses(
            &line,
            2,
            &["sft.sources[0].style", "loud", "refusals=PERCENT"],
        );
    }
}
