//! The environment's side of one try at an episode, and the time spent in environment calls. The
//! policy's time and the waits for a row or a permit are excluded: rounds and tokens limit the
//! policy, and a long episode is not an environment's failure.

use super::player::{Interruption, Player};
use crate::environments::Environment;
use agentgym_envs::Session;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;

pub(super) struct EnvironmentClock<'a> {
    player: &'a Player,
    environment: &'a str,
    address: String,
    spent: Duration,
    calls: u32,
}

impl<'a> EnvironmentClock<'a> {
    pub(super) fn new(player: &'a Player, environment: &'a str, address: &str) -> Self {
        Self {
            player,
            environment,
            address: address.to_owned(),
            spent: Duration::ZERO,
            calls: 0,
        }
    }

    /// Sets the address of the following calls.
    pub(super) fn is_at(&mut self, address: &str) {
        address.clone_into(&mut self.address);
    }

    /// Waits for a call, within the time that the deadline leaves.
    pub(super) async fn call<T>(
        &mut self,
        what: &str,
        call: impl Future<Output = T>,
    ) -> Result<T, Interruption> {
        let deadline = self.player.rules.deadline;
        let start = Instant::now();
        let busy = self.player.beat.busy();
        let answer = tokio::time::timeout(deadline.saturating_sub(self.spent), call).await;
        drop(busy);
        let took = start.elapsed();
        self.spent += took;
        self.calls += 1;
        self.player
            .env_us
            .fetch_add(took.as_micros() as u64, Ordering::Relaxed);
        (self.player.meters).env_call(self.environment, took.as_secs_f64());
        self.player.beat.tick();
        answer.map_err(|tokio::time::error::Elapsed { .. }| {
            Interruption::Fault(format!(
                "environment `{}` at {} used up the {} s that an episode may spend in its environment's calls \
                 (actor_rollout_ref.rollout.episode_deadline_s): the call to {what} was given up after {:.1} s, \
                 {} calls before it took {:.1} s",
                self.environment,
                self.address,
                deadline.as_secs_f64(),
                took.as_secs_f64(),
                self.calls - 1,
                (self.spent - took).as_secs_f64(),
            ))
        })
    }
}

/// The environment's side of one try at an episode.
pub(super) struct Scene<'a> {
    pub(super) environment: &'a Environment,
    pub(super) item_id: i64,
    pub(super) clock: EnvironmentClock<'a>,
    /// `None` until a call is needed that no earlier attempt has recorded.
    pub(super) session: Option<Session>,
}

impl Scene<'_> {
    pub(super) fn enter(&mut self, session: Session) -> &mut Session {
        self.clock.is_at(session.url());
        self.session.insert(session)
    }
}
