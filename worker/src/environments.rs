//! The environments of a worker: a client per environment of the plan, and the built-in servers
//! behind `builtin…` addresses, started once per process. Episodes are always played over HTTP, so
//! what works with a built-in server works with a remote one.

use crate::{Error, Result};
use agentgym_envs::builtin::{self, BuiltinTasks};
use agentgym_envs::server::ServerHandle;
use agentgym_envs::spec::EnvSpec;
use agentgym_envs::{ClientOptions, EnvClient};
use agentgym_jobs::plan::Plan;
use agentgym_text::without_secrets;
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};

/// An environment that can be played.
#[derive(Clone)]
pub struct Environment {
    /// Its spec.
    pub spec: &'static EnvSpec,
    /// Its instruction, with its tools.
    pub instruction: Cow<'static, str>,
    /// The client of its servers.
    pub client: EnvClient,
    /// Its URL.
    pub url: String,
    /// Longest time for a call, in seconds.
    pub call_timeout_s: f64,
    /// Most rounds of an episode, regardless of the horizon.
    pub rounds_max: u32,
    /// Most tokens of a turn.
    pub turn_tokens_max: usize,
    /// Limits concurrent episodes if the sessions are limited.
    turns: Option<Arc<Semaphore>>,
}

impl Environment {
    /// Waits until another episode may open a session; the permit is held while it plays.
    pub async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        let turns = Arc::clone(self.turns.as_ref()?);
        // The semaphore is never closed.
        turns.acquire_owned().await.ok()
    }
}

/// The tasks behind a built-in address of a plan.
///
/// # Errors
/// An address that cannot be used, and a plan that plays games of before.
pub(crate) fn tasks(plan: &Plan, address: &str) -> Result<BuiltinTasks> {
    check_rules(plan)?;
    let parsed = builtin::parse(address).map_err(|e| Error::stage(e.to_string()))?;
    Ok(parsed.source)
}

fn check_rules(plan: &Plan) -> Result<()> {
    let checked = plan.config.check_rules();
    checked.map_err(|e| Error::stage(e.to_string()))
}

/// Clients and built-in servers of one process.
#[derive(Default)]
pub struct Environments {
    /// By their address.
    servers: Mutex<HashMap<String, ServerHandle>>,
}

impl Environments {
    /// The environment called `name` in the plan.
    ///
    /// # Errors
    /// An unknown spec, or an address that cannot be used.
    pub async fn open(&self, plan: &Plan, name: &str) -> Result<Environment> {
        check_rules(plan)?;
        let all = plan.config.environments();
        let declared = all.get(name).ok_or_else(|| {
            let known: Vec<_> = all.keys().map(String::as_str).collect();
            Error::stage(format!(
                "environment `{name}` is not declared; declared: {}",
                known.join(", ")
            ))
        })?;
        let spec = plan
            .config
            .spec(&declared.task_name)
            .map_err(|e| Error::stage(e.to_string()))?;
        let url = if builtin::is_builtin(&declared.env_addr) {
            self.builtin_url(&declared.env_addr).await?
        } else {
            declared.env_addr.clone()
        };
        let gym = &plan.config.actor_rollout_ref.agentgym;
        let options = ClientOptions {
            call_timeout_s: gym.timeout,
            attempts_max: gym.max_retries.max(1),
            sessions_max: gym.sessions_max,
            checks_servers: gym.check_servers,
            lenient_actions: gym.lenient_actions,
            ..ClientOptions::default()
        };
        // Several servers of one kind are given as comma-separated addresses.
        let urls: Vec<String> = url.split(',').map(|url| url.trim().to_owned()).collect();
        let client = EnvClient::new(spec, &urls, options.clone())
            .map_err(|e| Error::stage(e.to_string()))?;
        let turns = options.sessions_max.map(|each| {
            let all = each.saturating_mul(urls.len());
            Arc::new(Semaphore::new(all.clamp(1, Semaphore::MAX_PERMITS)))
        });
        Ok(Environment {
            turns,
            instruction: spec.told(),
            spec,
            client,
            url: without_secrets(&url),
            call_timeout_s: gym.timeout,
            rounds_max: declared.max_rounds.unwrap_or(u32::MAX),
            turn_tokens_max: declared.max_tokens.unwrap_or(usize::MAX),
        })
    }

    async fn builtin_url(&self, address: &str) -> Result<String> {
        let mut servers = self.servers.lock().await;
        if let Some(server) = servers.get(address) {
            return Ok(server.url.clone());
        }
        let server = builtin::start(address)
            .await
            .map_err(|e| Error::stage(e.to_string()))?;
        tracing::info!(address, url = %server.url, "started a built-in environment");
        let url = server.url.clone();
        servers.insert(address.to_owned(), server);
        Ok(url)
    }

    /// Stops the built-in servers.
    pub async fn stop(&self) {
        for (_, server) in self.servers.lock().await.drain() {
            server.stop().await;
        }
    }
}
