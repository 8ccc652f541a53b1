//! How long a run would take on this machine and what memory it would need, where its store has seen
//! no run of its model: the first iteration, made small, is run by a process of its own in a folder
//! that goes again. It may take some seconds and then is ended, unless somebody asked for it; memory
//! and threads of `plan` stay its own.

use crate::cli::Global;
use crate::plan::measured::Measured;
use crate::plan::model_size;
use crate::plan::sizes::{Sizes, narrow};
use crate::{Error, existing_store, text};
use agentgym_envs::builtin::is_builtin;
use agentgym_jobs::config::{Pipeline, ResolvedConfig};
use agentgym_jobs::plan::Plan;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tokio::process::{Child, Command};

/// How long the small iteration may take where nobody has asked for it.
const LIMIT: Duration = Duration::from_secs(5);
/// A model with more parameters would not get through it.
const PARAMETERS_MAX: u128 = 20_000_000;
/// How often one that was asked for is heard of.
const SAID_EVERY: Duration = Duration::from_secs(10);
/// Episodes of the small iteration, about.
const EPISODES: usize = 64;
/// Optimizer steps of its warm start and of what a pipeline does once: the second one holds the policy
/// before it too, and of several the longest one is seen.
const STEPS: u32 = 2;
const STEPS_ASKED: u32 = 8;
const PROGRAM: &str = "agentgym-submit";

/// What the plan takes by a small iteration just now, or why none was run. One that is asked for
/// takes what time it needs.
pub(crate) async fn tried(
    plan: &Plan,
    config: &ResolvedConfig,
    global: &Global,
    asked: bool,
) -> Result<Measured, String> {
    if let Some(why) = untried(plan).or_else(|| too_large(plan).filter(|_| !asked)) {
        return Err(why);
    }
    let folder = tempfile::tempdir().map_err(|e| format!("no temporary folder: {e}"))?;
    let begun = Instant::now();
    let mut small = small_iteration(plan, config, global, folder.path(), asked)?;
    let limit = if asked { Duration::MAX } else { LIMIT };
    let shown_since = (asked && !global.quiet).then_some(begun);
    let waited = ended(&mut small, limit, shown_since).await;
    if waited.is_err() {
        // Its folder goes after it.
        let _ = small.kill().await;
    }
    succeeded(waited?, folder.path())?;
    let took_s = begun.elapsed().as_secs_f64();
    let said = |e: Error| e.to_string();
    let store = store_in(folder.path());
    let store = existing_store(&store).await.map_err(said)?;
    let found = Measured::of(&store, plan, global.dtype)
        .await
        .map_err(said)?;
    let nothing = || "a small iteration measured nothing".to_owned();
    Ok(found.ok_or_else(nothing)?.by_trial(plan, took_s))
}

fn store_in(folder: &Path) -> String {
    folder.join("store").display().to_string()
}

fn log_in(folder: &Path) -> PathBuf {
    folder.join("said")
}

/// Why a trial would touch what is not this machine's, or try nothing.
fn untried(plan: &Plan) -> Option<String> {
    let config = &plan.config;
    let named = |what: &str| Some(what.to_owned());
    if config.jobs.workers == 0 {
        return named("the workers are elsewhere (jobs.workers=0)");
    }
    if config.run.pipeline == Pipeline::Eval {
        return named("only a run that trains is tried");
    }
    if plan.forked_at().is_some() {
        return named("a fork goes on from what its parent made");
    }
    let environments = config.environments();
    let mut environments = environments.values();
    if let Some(env) = environments.find(|env| !is_builtin(&env.env_addr)) {
        let address = &env.env_addr;
        return Some(format!("it would play on the environment server {address}"));
    }
    if plan.generates_by_server() {
        return named("it would ask the inference server");
    }
    if plan.has_reward_function() {
        return named("it would ask the reward server");
    }
    match model_size::of(&config.actor_rollout_ref.model) {
        Err(_) => named("the model is not here"),
        Ok(_) => None,
    }
}

/// Why nobody waits for a trial of the plan's model unasked.
fn too_large(plan: &Plan) -> Option<String> {
    let size = model_size::of(&plan.config.actor_rollout_ref.model).ok()?;
    (size.parameters > PARAMETERS_MAX).then(|| {
        format!(
            "a model of {} parameters takes longer than the {} s of a trial; plan --trial takes its time, and {} of {}",
            text::count(narrow(size.parameters)),
            LIMIT.as_secs(),
            text::bytes(Sizes::new(plan, &size).once),
            std::env::temp_dir().display()
        )
    })
}

/// The keys that make the plan small. What a part does stays as it is.
fn small(plan: &Plan, tree: &Value, asked: bool) -> Vec<String> {
    let steps = if asked { STEPS_ASKED } else { STEPS };
    let config = &plan.config;
    let actor = &config.actor_rollout_ref;
    let mut drawn = tree["data"]["tasks"].clone();
    let sources = drawn.as_array().map_or(0, Vec::len);
    let tasks = EPISODES / (actor.rollout.n as usize).max(1);
    let tasks = tasks
        .max(sources)
        .clamp(1, config.data.train_batch_size.max(1));
    // Whole minibatches: half of one is no measure of a step.
    let mini = actor.actor.ppo_mini_batch_size.clamp(1, tasks);
    let tasks = tasks.next_multiple_of(mini);
    let mut keys = vec![
        "run.id=trial".to_owned(),
        "queue.url=null".to_owned(),
        "evaluation.sets=[]".to_owned(),
        "trainer.total_training_steps=1".to_owned(),
        format!("data.train_batch_size={tasks}"),
        format!("actor_rollout_ref.actor.ppo_mini_batch_size={mini}"),
        "jobs.workers=1".to_owned(),
        "jobs.hold=false".to_owned(),
        format!("sft.steps={}", config.sft.steps.min(steps)),
        format!("dpo.steps={}", config.dpo.steps.min(steps)),
        format!("agentevol.steps={}", config.agentevol.steps.min(steps)),
    ];
    // A small share of a small batch is no task.
    if sources > 1 {
        let all = drawn.as_array_mut().into_iter().flatten();
        all.for_each(|source| source["share"] = Value::from(1));
        keys.push(format!("data.tasks={drawn}"));
    }
    // Rewards that are all alike would train nothing; with a term for entropy every episode trains.
    if config.run.pipeline == Pipeline::Rl && actor.actor.entropy_coeff == 0.0 {
        keys.push("actor_rollout_ref.actor.entropy_coeff=1e-6".to_owned());
    }
    if config.has_critic() {
        keys.push(format!("critic.ppo_mini_batch_size={mini}"));
        keys.push("trainer.critic_warmup=0".to_owned());
    }
    keys
}

/// Starts the small iteration in another process, which ends with its handle.
fn small_iteration(
    plan: &Plan,
    config: &ResolvedConfig,
    global: &Global,
    folder: &Path,
    asked: bool,
) -> Result<Child, String> {
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    if program.file_stem().is_none_or(|stem| stem != PROGRAM) {
        return Err(format!("only the program {PROGRAM} can try it"));
    }
    let file = folder.join("trial.yaml");
    let written = std::fs::write(&file, config.tree.to_string());
    written.map_err(|e| format!("{}: {e}", file.display()))?;
    let said = log_in(folder);
    let log = std::fs::File::create(&said).map_err(|e| format!("{}: {e}", said.display()))?;
    Command::new(program)
        .args(["run", "--quiet", "--device", &global.device])
        .args(["--dtype", &global.dtype.to_string()])
        .args(["--store", &store_in(folder)])
        .arg(&file)
        .args(small(plan, &config.tree, asked))
        .env("AGENTGYM_CACHE", folder.join("cache"))
        .env("AGENTGYM_LOG", "off")
        .env_remove("AGENTGYM_STORE")
        .env_remove("AGENTGYM_QUEUE")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .kill_on_drop(true)
        .spawn()
        .map_err(|e| e.to_string())
}

/// Waits for its end, and tells somebody who waits too since when it runs.
async fn ended(
    trial: &mut Child,
    limit: Duration,
    shown_since: Option<Instant>,
) -> Result<ExitStatus, String> {
    let telling = async {
        let Some(begun) = shown_since else {
            return std::future::pending().await;
        };
        loop {
            tokio::time::sleep(SAID_EVERY).await;
            let runs = text::seconds(begun.elapsed().as_secs_f64());
            text::tell(&format!("trial  a small first iteration  {runs}"));
        }
    };
    tokio::select! {
        ended = trial.wait() => ended.map_err(|e| e.to_string()),
        () = tokio::time::sleep(limit) => Err(format!("a small iteration takes more than {} s here; plan --trial takes its time", limit.as_secs())),
        () = agentgym_worker::wait_for_signal() => Err("interrupted".to_owned()),
        () = telling => unreachable!("it tells until it is dropped"),
    }
}

fn succeeded(status: ExitStatus, folder: &Path) -> Result<(), String> {
    if status.success() {
        return Ok(());
    }
    let said = std::fs::read_to_string(log_in(folder)).unwrap_or_default();
    let why = said.lines().find_map(|line| line.strip_prefix("error: "));
    let why = why.map_or_else(|| status.to_string(), |why| text::one_line(why, 200));
    Err(format!("a small iteration ends with: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use agentgym_jobs::config::ResolvedConfig;

    fn plan(overrides: &[&str]) -> (Plan, ResolvedConfig) {
        let text = "
run: {id: r}
data: {tasks: [{env: textcraft, ids: 0..8}, {env: textcraft, ids: 8..9}], train_batch_size: 100}
actor_rollout_ref: {rollout: {n: 8}, actor: {ppo_mini_batch_size: 5}}
trainer: {total_training_steps: 10}
";
        let overrides: Vec<String> = overrides.iter().map(|o| (*o).to_owned()).collect();
        let config = ResolvedConfig::parse("x", Path::new("x.yaml"), text, &overrides).unwrap();
        (Plan::new(config.clone(), Path::new("")).unwrap(), config)
    }

    #[test]
    fn what_is_not_of_this_machine_or_too_large_is_not_tried() {
        for (given, word) in [
            ("jobs.workers=0", "elsewhere"),
            ("actor_rollout_ref.model.path=no/folder", "not here"),
            (
                "actor_rollout_ref.agentgym.env_addr=http://host:1",
                "server http://",
            ),
            (
                "reward={function: judge-1, url: 'http://host:1'}",
                "reward server",
            ),
        ] {
            let (plan, _) = plan(&[given]);
            let why = untried(&plan).unwrap_or_default();
            assert!(why.contains(word), "{given}: {why:?}");
        }
        let small = plan(&[]).0;
        assert_eq!((untried(&small), too_large(&small)), (None, None));
        let large = "actor_rollout_ref.model.path=tiny?hidden=1024&layers=8&heads=16&kv_heads=16&intermediate=4096&vocab=1024";
        let large = plan(&[large]).0;
        assert_eq!(untried(&large), None);
        let why = too_large(&large).unwrap_or_default();
        assert!(why.contains("5 s of a trial; plan --trial"), "{why}");
    }

    #[test]
    fn a_small_iteration_has_whole_minibatches_of_every_source() {
        let (whole, config) = plan(&[]);
        let keys = small(&whole, &config.tree, false);
        let config =
            ResolvedConfig::parse("x", Path::new("x.yaml"), &config.tree.to_string(), &keys)
                .unwrap();
        let plan = Plan::new(config, Path::new("")).unwrap();
        assert_eq!((plan.iterations, plan.minibatches()), (1, 2));
        assert_eq!(plan.config.data.train_batch_size, 10);
        assert!(plan.config.evaluation.sets.is_empty());
    }
}
