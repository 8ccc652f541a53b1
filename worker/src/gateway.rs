//! The gateway of a worker: where agents behind a harness ask the policy for messages. Each try at an
//! episode has a key of its own, which is in no artifact.

use crate::{Error, Result};
use agentgym_serve::{AgentAnswer, AgentRequest, Gateway, Refusal, Sampler, gateway};
use futures::future::BoxFuture;
use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{OnceCell, mpsc, oneshot};

/// Where the gateway listens, and how others reach it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayOptions {
    /// The address; port 0 takes a free one.
    pub address: SocketAddr,
    /// How harnesses reach it, if not by the address.
    pub url: Option<String>,
}

impl Default for GatewayOptions {
    /// For harnesses on this machine.
    fn default() -> Self {
        Self {
            address: SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0),
            url: None,
        }
    }
}

/// A request of an agent, and where its answer goes.
pub(crate) struct Call {
    pub(crate) asked: AgentRequest,
    pub(crate) reply: oneshot::Sender<Result<AgentAnswer, Refusal>>,
}

/// The gateway of a process; it listens from the first episode on at the latest.
#[derive(Default)]
pub struct AgentGateway {
    options: GatewayOptions,
    listening: OnceCell<(Gateway, String)>,
    episodes: Arc<Attended>,
}

/// By key, where requests of an episode go.
#[derive(Default)]
struct Attended(Mutex<HashMap<String, mpsc::UnboundedSender<Call>>>);

impl Attended {
    fn all(&self) -> MutexGuard<'_, HashMap<String, mpsc::UnboundedSender<Call>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A try at an episode that takes requests, until it is dropped.
pub(crate) struct Attendance {
    /// What its agent sends as key.
    pub(crate) key: String,
    /// The address of the gateway.
    pub(crate) url: String,
    pub(crate) calls: mpsc::UnboundedReceiver<Call>,
    episodes: Arc<Attended>,
}

impl Drop for Attendance {
    fn drop(&mut self) {
        self.episodes.all().remove(&self.key);
    }
}

impl AgentGateway {
    /// A gateway with these options. Where they are somebody's own it listens at once, so that a worker
    /// that cannot is not there, and spoils no part.
    ///
    /// # Errors
    /// It cannot listen, or nobody could reach it.
    pub(crate) async fn open(options: GatewayOptions) -> Result<Self> {
        let is_own = options != GatewayOptions::default();
        let gateway = Self {
            options,
            ..Self::default()
        };
        if is_own {
            gateway.listening().await?;
        }
        Ok(gateway)
    }

    async fn listening(&self) -> Result<&str> {
        let (_, url) = self.listening.get_or_try_init(|| self.listen()).await?;
        Ok(url)
    }

    /// Takes requests with a fresh key.
    ///
    /// # Errors
    /// The gateway cannot listen.
    pub(crate) async fn attend(&self) -> Result<Attendance> {
        let url = self.listening().await?.to_owned();
        let mut key = [0; 16];
        getrandom::fill(&mut key).map_err(|e| Error::stage(format!("no random numbers: {e}")))?;
        let key = key.iter().map(|byte| format!("{byte:02x}")).collect();
        let key = format!("agentgym-{}", String::from_iter::<Vec<String>>(key));
        let (sender, calls) = mpsc::unbounded_channel();
        self.episodes.all().insert(key.clone(), sender);
        Ok(Attendance {
            key,
            url,
            calls,
            episodes: Arc::clone(&self.episodes),
        })
    }

    async fn listen(&self) -> Result<(Gateway, String)> {
        let address = self.options.address;
        if address.ip().is_unspecified() && self.options.url.is_none() {
            return Err(Error::stage(format!(
                "the gateway is to listen at {address}, which is no address to reach it by; say one with \
                 --gateway-url, such as http://HOST:{}",
                address.port()
            )));
        }
        let sampler = Arc::clone(&self.episodes) as Arc<dyn Sampler>;
        let listening = gateway(address, sampler).await.map_err(|e| {
            Error::stage(format!(
                "the gateway cannot listen at {address} (--gateway-addr): {e}"
            ))
        })?;
        let own = || format!("http://{}", listening.address);
        let url = self.options.url.clone().unwrap_or_else(own);
        let url = url.trim_end_matches('/').to_owned();
        tracing::info!(address = %listening.address, %url, "the gateway for agents listens");
        Ok((listening, url))
    }
}

impl Sampler for Attended {
    fn sample(
        &self,
        key: String,
        asked: AgentRequest,
    ) -> BoxFuture<'static, Result<AgentAnswer, Refusal>> {
        let calls = self.all().get(&key).cloned();
        Box::pin(async move {
            let (reply, answer) = oneshot::channel();
            let sent = match calls {
                Some(calls) => calls.send(Call { asked, reply }).is_ok(),
                None => false,
            };
            if !sent {
                return Err(Refusal::no_key(
                    "no episode that is played has this key; an agent uses the one that its harness was given",
                ));
            }
            answer.await.unwrap_or_else(|_| Err(Refusal::leaving()))
        })
    }
}
