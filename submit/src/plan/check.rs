//! `plan --check`: whether each environment address of a config answers, is the environment that its
//! name says, and has the tasks that the plan names.

use crate::{Error, Result, text};
use agentgym_envs::{ClientOptions, EnvClient, EnvError, builtin};
use agentgym_jobs::plan::Plan;
use agentgym_text::without_secrets;

/// Nobody waits longer for an answer here, whatever a rollout may.
const CALL_MAX_S: f64 = 60.0;

/// Opens the plan's last item at every address. Built-in environments start inside the workers.
///
/// # Errors
/// The first address that cannot be played, with what it is instead.
pub(crate) async fn environments(plan: &Plan) -> Result<()> {
    for (name, environment) in plan.config.environments() {
        if builtin::is_builtin(&environment.env_addr) {
            continue;
        }
        let item = last_item(plan, &name)?;
        for address in environment.env_addr.split(',').map(str::trim) {
            let unfit = unfit(&name);
            let client = client(plan, (&name, &environment.task_name), address)?;
            // The client counts and logs a failure to close.
            let _ = client.open(item).await.map_err(unfit)?.close().await;
            client.drain().await;
            let at = without_secrets(address);
            text::tell(&format!(
                "environment `{name}` at {at} opens item {item}, the last one of the plan"
            ));
        }
    }
    Ok(())
}

/// Whether a server that answers is the environment of its name, by what it says at `/`.
///
/// # Errors
/// Another one, named.
pub(crate) async fn greeting(plan: &Plan, name: &str, task: &str, address: &str) -> Result<()> {
    let client = client(plan, (name, task), address)?;
    client.greet().await.map_err(unfit(name))
}

fn unfit(name: &str) -> impl FnOnce(EnvError) -> Error {
    let name = name.to_owned();
    |error| Error::Environment {
        name,
        found: error.to_string(),
    }
}

fn client(plan: &Plan, (name, task): (&str, &str), address: &str) -> Result<EnvClient> {
    let gym = &plan.config.actor_rollout_ref.agentgym;
    let options = ClientOptions {
        call_timeout_s: gym.timeout.min(CALL_MAX_S),
        attempts_max: 1,
        checks_servers: gym.check_servers,
        ..ClientOptions::default()
    };
    let spec = plan.config.spec(task)?;
    EnvClient::new(spec, &[address.to_owned()], options).map_err(unfit(name))
}

/// The largest item id of an environment in the plan; 0 where it has none.
fn last_item(plan: &Plan, env: &str) -> Result<i64> {
    let drawn = plan.tasks.draws(1).into_iter();
    let drawn = drawn.filter(|task| task.env == env);
    let mut last = drawn.map(|task| task.item_id).max();
    let config = &plan.config;
    let tasks = config.data.tasks.iter();
    let tasks = tasks.map(|source| ("data.tasks", &source.env, &source.ids));
    let sets = config.evaluation.sets.iter();
    let sets = sets.map(|set| ("evaluation.sets", &set.env, &set.ids));
    for (key, _, ids) in tasks.chain(sets).filter(|(_, own, _)| *own == env) {
        last = last.max(ids.resolve(key)?.into_iter().max());
    }
    Ok(last.unwrap_or(0))
}
