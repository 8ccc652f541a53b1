//! An inference server that generates the rollouts of a part.
//!
//! Three guarantees. An answer is used only if it is wholly what was asked for: ids and a log-prob for
//! each, behind the prompt that was sent. A server that fails, or answers anything else, is asked again
//! for a while and then fails the attempt; it never makes an episode's reward 0 (I8). And it is never
//! assumed to serve the policy of the part: what it generates is journalled and committed only between
//! two probes that found this policy ([`crate::probe`]).

pub(crate) mod chat;
pub(crate) mod client;
pub(crate) mod dialect;
pub(crate) mod http;
mod patience;

use crate::probe::{Probe, Reading};
use crate::{Beat, Result};
use agentgym_jobs::config::RolloutServer;
use agentgym_model::{FinishReason, Generation, PolicyText, Sampling};
use client::Client;
use dialect::Ask;
use futures::stream::{self, StreamExt};
use http::Failure;
use patience::Patience;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tokio_util::sync::CancellationToken;

/// Prompts of a probe that are asked at once.
const PROBES_AT_ONCE: usize = 8;
/// The seed of an ask for the likeliest id, which needs none.
const NO_SEED: u32 = 0;

/// A server, and the policy that it is to serve.
pub(crate) struct InferenceServer {
    client: Client,
    probe: Probe,
    /// The policy, for messages.
    policy: String,
    text: PolicyText,
    /// `guard.mismatch_max`.
    distance_max: f64,
    patience: Patience,
    beat: Beat,
    sampled_tokens: AtomicU64,
    /// How many of them a later probe has confirmed.
    confirmed_tokens: AtomicU64,
    busy_us: AtomicU64,
    reading: Mutex<Option<Reading>>,
}

/// What a part knows of its server before it asks.
pub(crate) struct Served<'a> {
    pub(crate) config: &'a RolloutServer,
    pub(crate) probe: Probe,
    /// The policy, for messages.
    pub(crate) policy: String,
    pub(crate) text: &'a PolicyText,
    pub(crate) distance_max: f64,
    /// The longest sequence of the part.
    pub(crate) context_tokens: usize,
}

/// What a look at the server has shown.
enum Seen {
    Right(Reading),
    /// Not now, or not yet; why.
    Wrong(String),
}

impl InferenceServer {
    /// Waits until the server serves the policy, and says how well that can be told.
    ///
    /// # Errors
    /// [`crate::Error::Server`]: it answers what cannot be used, its context is too short, or the patience is
    /// over. [`crate::Error::Cancelled`].
    pub(crate) async fn open(
        served: Served<'_>,
        beat: Beat,
        cancel: CancellationToken,
    ) -> Result<Arc<Self>> {
        let client = Client::new(served.config)?;
        let seconds = served.config.patience_s;
        let server = Self {
            patience: Patience::new(client.name(), seconds, &beat, cancel),
            client,
            probe: served.probe,
            policy: served.policy,
            text: served.text.clone(),
            distance_max: served.distance_max,
            beat,
            sampled_tokens: AtomicU64::new(0),
            confirmed_tokens: AtomicU64::new(0),
            busy_us: AtomicU64::new(0),
            reading: Mutex::new(None),
        };
        let told = server.patience.ask(|| server.client.context_max()).await?;
        if let Some(told) = told.filter(|told| *told < served.context_tokens as u64) {
            return Err(server.patience.failed(&format!(
                "its context holds {told} tokens, an episode of this run up to {} \
                 (actor_rollout_ref.rollout.max_model_len, data.max_prompt_length and \
                 data.max_response_length); start it with a longer one",
                served.context_tokens
            )));
        }
        let reading = server.awaited().await?;
        server.say(&reading);
        Ok(Arc::new(server))
    }

    /// A message behind `known`.
    ///
    /// # Errors
    /// As [`InferenceServer::open`].
    pub(crate) async fn generate(
        &self,
        known: &[u32],
        tokens_max: usize,
        (sampling, seed): (Sampling, u32),
    ) -> Result<Generation> {
        let ask = Ask {
            prompt: known,
            tokens_max,
            greedy: sampling.greedy,
            seed,
            stop_ids: self.text.eos_ids(),
        };
        let start = Instant::now();
        let call = self.beat.busy();
        let answer = self
            .patience
            .ask(|| self.client.generate(&ask, self.text.vocab_size()));
        let answer = self.patience.alive_during(answer).await?;
        drop(call);
        let tokens = answer.token_ids.len() as u64;
        // For a killed process, this is the only record of what it had sampled.
        tracing::trace!("sampled tokens={tokens}");
        self.sampled_tokens.fetch_add(tokens, Ordering::Relaxed);
        let elapsed = start.elapsed().as_micros() as u64;
        self.busy_us.fetch_add(elapsed, Ordering::Relaxed);
        Ok(Generation {
            sequence: 0,
            token_ids: answer.token_ids,
            log_probs: answer.log_probs,
            entropies: Vec::new(),
            log_kept_masses: None,
            finish: match answer.ended {
                true => FinishReason::Eos,
                false => FinishReason::Length,
            },
        })
    }

    /// Whether what it has generated so far is seen to be the policy's: the server still serves it.
    /// False if it cannot be asked now.
    ///
    /// # Errors
    /// It serves another policy, or answers what cannot be used.
    pub(crate) async fn confirm(&self) -> Result<bool> {
        let sampled = self.sampled_tokens();
        if sampled == self.confirmed_tokens.load(Ordering::Relaxed) {
            return Ok(true);
        }
        match self.look().await {
            Ok(Seen::Right(_)) => {
                (self.confirmed_tokens).store(sampled, Ordering::Relaxed);
                Ok(true)
            }
            Ok(Seen::Wrong(why)) => Err(self.patience.failed(&format!(
                "it no longer serves {}: {why}. What it generated since it last did is left out",
                self.policy
            ))),
            Err(Failure::Passing(..)) => Ok(false),
            Err(Failure::Lasting(why)) => Err(self.patience.failed(&why)),
        }
    }

    /// [`InferenceServer::confirm`], as often as it takes to be answered.
    ///
    /// # Errors
    /// As before, and the patience is over.
    pub(crate) async fn confirmed(&self) -> Result<()> {
        let mut waits = self.patience.waits();
        while !self.confirm().await? {
            waits
                .next("it cannot be asked which policy it serves")
                .await?;
        }
        Ok(())
    }

    /// Tokens that it has generated.
    pub(crate) fn sampled_tokens(&self) -> u64 {
        self.sampled_tokens.load(Ordering::Relaxed)
    }

    /// Seconds of waiting for it, summed over requests.
    pub(crate) fn busy_s(&self) -> f64 {
        self.busy_us.load(Ordering::Relaxed) as f64 / 1e6
    }

    /// What the latest probe found.
    pub(crate) fn reading(&self) -> Option<Reading> {
        *self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks until the server serves the policy.
    async fn awaited(&self) -> Result<Reading> {
        let mut waits = self.patience.waits();
        loop {
            let why = match self.look().await {
                Ok(Seen::Right(reading)) => return Ok(reading),
                Ok(Seen::Wrong(why)) => format!("it does not serve {}: {why}", self.policy),
                Err(Failure::Passing(why, _)) => why,
                Err(Failure::Lasting(why)) => return Err(self.patience.failed(&why)),
            };
            waits.next(&why).await?;
        }
    }

    /// One probe.
    async fn look(&self) -> Result<Seen, Failure> {
        let asked: Vec<_> = self.probe.prompts().map(|p| self.likeliest(p)).collect();
        let mut asked = stream::iter(asked).buffered(PROBES_AT_ONCE);
        let mut answers = Vec::new();
        while let Some(answer) = asked.next().await {
            answers.push(answer?);
            self.beat.tick();
        }
        Ok(match self.probe.read(&answers) {
            Err(why) => Seen::Wrong(why),
            Ok(reading) => match reading.other(self.distance_max) {
                Some(why) => Seen::Wrong(why),
                None => {
                    *self.reading.lock().unwrap_or_else(PoisonError::into_inner) = Some(reading);
                    Seen::Right(reading)
                }
            },
        })
    }

    /// The likeliest id after a prompt, and its log-prob.
    async fn likeliest(&self, prompt: &[u32]) -> Result<(u32, f32), Failure> {
        let ask = Ask {
            prompt,
            tokens_max: 1,
            greedy: true,
            seed: NO_SEED,
            stop_ids: self.text.eos_ids(),
        };
        let answer = self.client.generate(&ask, self.text.vocab_size()).await?;
        // One of each: the dialect has counted them.
        Ok((answer.token_ids[0], answer.log_probs[0]))
    }

    /// Says whether the probe can tell this policy from the one before.
    fn say(&self, reading: &Reading) {
        let (name, policy, distance) = (self.client.name(), &self.policy, reading.distance);
        let before = reading.separation.unwrap_or_default();
        match reading.tells_apart() {
            None => tracing::info!(
                "{name} serves {policy}, whose probe it answers within {distance:.1e} nats; there is no policy \
                 before it that differs"
            ),
            Some(true) => tracing::info!(
                "{name} serves {policy}, whose probe it answers within {distance:.1e} nats; the policy before it \
                 answers {before:.1e} nats beside and would be told"
            ),
            Some(false) => tracing::warn!(
                "{name} answers the probe of {policy} within {distance:.1e} nats, and the policy before it \
                 differs by {before:.1e}: which of the two it serves cannot be told"
            ),
        }
    }
}

#[cfg(test)]
pub(crate) mod double;
#[cfg(test)]
mod tests;
