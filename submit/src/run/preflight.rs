//! Checks that the environments answer, each by its own name, before workers are started, so that a
//! wrong URL gives one clear message instead of many failed attempts; and what would be better.

use super::display::Display;
use crate::plan::check::greeting;
use crate::plan::model_size;
use crate::plan::moves::{Moves, Rates};
use crate::{Error, Result};
use agentgym_envs::{Proxy, shown};
use agentgym_jobs::plan::Plan;
use agentgym_storage::Store;
use agentgym_text::without_secrets;
use std::time::Duration;
use tokio::net::TcpStream;
use url::Url;

const TRIES: u32 = 3;
const TRY_FOR: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(300);

/// Connects once to every environment server of the plan. Built-in environments start inside the
/// workers and are not checked.
///
/// # Errors
/// The first one that cannot be reached, with name and URL.
pub(crate) async fn environments(plan: &Plan, then: &str) -> Result<()> {
    for (name, environment) in plan.config.environments() {
        if environment.env_addr.starts_with("builtin") {
            continue;
        }
        let gym = &plan.config.actor_rollout_ref.agentgym;
        let key = match gym.envs.contains_key(&name) {
            true => format!("actor_rollout_ref.agentgym.envs.{name}.env_addr"),
            false => "actor_rollout_ref.agentgym.env_addr".to_owned(),
        };
        // If there are several servers, one is enough to start.
        let mut result = Ok(());
        for address in environment.env_addr.split(',') {
            let address = address.trim();
            result = server((&name, &key), address, then).await;
            if result.is_ok() {
                greeting(plan, &name, &environment.task_name, address).await?;
                break;
            }
        }
        result?;
    }
    Ok(())
}

/// Says what a run that is begun in a store behind a network would do better with.
pub(crate) fn advise(plan: &Plan, store: &Store, display: &Display) {
    let Ok(model) = model_size::of(&plan.config.actor_rollout_ref.model) else {
        return;
    };
    let better = Moves::new(plan, &model).shards_advice(&Rates::default(), None);
    if let Some(better) = better.filter(|_| store.local_root().is_none()) {
        display.line(&format!("better: {better}"));
    }
}

async fn server((name, key): (&str, &str), address: &str, then: &str) -> Result<()> {
    let unusable = |why: &str| {
        Error::Usage(format!(
            "environment `{name}`: address {:?} {why}; write http://host:port or builtin",
            without_secrets(address)
        ))
    };
    let url = Url::parse(address).map_err(|e| unusable(&e.to_string()))?;
    let host = url.host_str().ok_or_else(|| unusable("names no host"))?;
    let port = url
        .port_or_known_default()
        .ok_or_else(|| unusable("names no port"))?;
    // Who cannot reach the server may reach it through a proxy, as its client does.
    let (host, port) = match Proxy::to(address) {
        Some(proxy) => (proxy.host, proxy.port),
        None => (host.to_owned(), port),
    };
    reach(host.trim_matches(['[', ']']), port)
        .await
        .map_err(|found| Error::Unreachable {
            what: format!("environment `{name}`"),
            url: shown(address),
            found,
            remedy: format!("Start its server, or give another address with {key}=URL{then}"),
        })
}

async fn reach(host: &str, port: u16) -> Result<(), String> {
    let mut found = String::new();
    for attempt in 0..TRIES {
        if attempt > 0 {
            tokio::time::sleep(PAUSE * 2u32.pow(attempt)).await;
        }
        match tokio::time::timeout(TRY_FOR, TcpStream::connect((host, port))).await {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(e)) => found = e.to_string(),
            Err(_) => found = format!("no answer within {} s", TRY_FOR.as_secs()),
        }
    }
    Err(found)
}
