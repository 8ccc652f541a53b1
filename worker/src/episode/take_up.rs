//! Continues an episode whose session was lost, with its server or with the attempt that played it:
//! the recorded texts are played in a fresh session up to the same point, and the environment's
//! answers are compared with the recorded ones.
//!
//! The episode does not show this: its observations are the recorded ones, so an episode that was
//! continued is byte-identical to one that was never interrupted. If the environment answers
//! differently, or its spec declares that replays differ, the episode starts over.

use super::player::{Interruption, Player};
use super::scene::Scene;
use crate::Error;
use agentgym_envs::spec::Replay;
use agentgym_envs::{EnvError, Session, StepOutput};
use agentgym_jobs::episode::Turn;
use std::sync::atomic::Ordering;

/// Why a fresh session did not reach the same point.
enum Lost {
    /// It answers differently.
    Differs(String),
    /// It failed too.
    Failed(EnvError),
    /// No further try is possible.
    Interrupted(Interruption),
}

impl From<EnvError> for Lost {
    fn from(error: EnvError) -> Self {
        Self::Failed(error)
    }
}

impl From<Interruption> for Lost {
    fn from(interruption: Interruption) -> Self {
        Self::Interrupted(interruption)
    }
}

impl Player {
    /// Ensures that the episode has a session at this point. If an earlier attempt played it up to
    /// here, a fresh session is opened and the turns are replayed.
    pub(super) async fn session(
        &self,
        scene: &mut Scene<'_>,
        first: &str,
        turns: &[Turn],
    ) -> Result<(), Interruption> {
        if scene.session.is_some() {
            return Ok(());
        }
        if scene.environment.spec.replay == Replay::None {
            let name = scene.environment.spec.name;
            return Err(Interruption::Differs(format!(
                "{name} does not play an episode twice"
            )));
        }
        let mut failed = 0;
        loop {
            match self.play_again(scene, first, turns).await {
                Ok(session) => {
                    scene.enter(session);
                    self.resumed.fetch_add(1, Ordering::Relaxed);
                    return Ok(());
                }
                Err(Lost::Differs(how)) => return Err(Interruption::Differs(how)),
                Err(Lost::Interrupted(interruption)) => return Err(interruption),
                Err(Lost::Failed(error)) if failed == self.rules.fault_retries => {
                    return Err(Interruption::Fault(error.to_string()));
                }
                Err(Lost::Failed(_)) => failed += 1,
            }
        }
    }

    /// Takes a step; a step that fails is repeated in a fresh session.
    pub(super) async fn stepped(
        &self,
        scene: &mut Scene<'_>,
        first: &str,
        turns: &[Turn],
        text: &str,
    ) -> Result<StepOutput, Interruption> {
        let mut error = match step(scene, text).await {
            Ok(step) => return Ok(step),
            Err(Lost::Failed(error)) => error,
            Err(Lost::Interrupted(interruption)) => return Err(interruption),
            Err(Lost::Differs(how)) => return Err(Interruption::Fault(how)),
        };
        let spec = scene.environment.spec;
        if spec.replay == Replay::None {
            return Err(Interruption::Fault(error.to_string()));
        }
        for _ in 0..self.rules.fault_retries {
            tracing::info!(
                task = format!("{}_{}", spec.name, scene.item_id), turns = turns.len(), %error,
                "the episode is taken up in a fresh session"
            );
            // The old session is closed in the background.
            scene.session = None;
            let again = match self.play_again(scene, first, turns).await {
                Ok(session) => {
                    scene.enter(session);
                    step(scene, text).await
                }
                Err(lost) => Err(lost),
            };
            match again {
                Ok(step) => {
                    self.taken_up.fetch_add(1, Ordering::Relaxed);
                    return Ok(step);
                }
                Err(Lost::Failed(other)) => error = other,
                Err(Lost::Interrupted(interruption)) => return Err(interruption),
                Err(Lost::Differs(how)) => {
                    return Err(Interruption::Fault(format!(
                        "{error}; in a fresh session {how}"
                    )));
                }
            }
        }
        Err(Interruption::Fault(error.to_string()))
    }

    /// A fresh session in which the recorded turns have been replayed.
    async fn play_again(
        &self,
        scene: &mut Scene<'_>,
        first: &str,
        turns: &[Turn],
    ) -> Result<Session, Lost> {
        let replay = scene.environment.spec.replay;
        let opening = scene.environment.client.open(scene.item_id);
        let mut session = match scene.clock.call("open a session", opening).await? {
            Ok(session) => session,
            Err(useless @ (EnvError::Unreachable { .. } | EnvError::Another { .. })) => {
                return Err(Interruption::from(useless).into());
            }
            Err(other) => return Err(other.into()),
        };
        scene.clock.is_at(session.url());
        if !replay.accepts(first, session.observation()) {
            return Err(Lost::Differs("the first observation is another".to_owned()));
        }
        for (index, turn) in turns.iter().enumerate() {
            // A reply that the client gave by itself changed nothing in the environment.
            if turn.action.is_none() {
                continue;
            }
            if self.cancel.is_cancelled() {
                return Err(Interruption::Error(Error::Cancelled).into());
            }
            let stepping = session.step(&turn.text);
            let step = scene.clock.call("take a step", stepping).await??;
            let same = replay.accepts(&turn.observation, &step.observation)
                && turn.reward == Some(step.reward)
                && turn.done == step.done;
            if !same {
                let turn = index + 1;
                return Err(Lost::Differs(format!(
                    "turn {turn} brought something else than before"
                )));
            }
        }
        Ok(session)
    }
}

async fn step(scene: &mut Scene<'_>, text: &str) -> Result<StepOutput, Lost> {
    let session = scene.session.as_mut();
    let stepping = session
        .expect("a session is there before a step")
        .step(text);
    Ok(scene.clock.call("take a step", stepping).await??)
}
