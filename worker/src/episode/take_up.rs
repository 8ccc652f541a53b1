//! Going on with an episode whose session was lost: a fresh session is played
//! up to the same point with the recorded texts, and what the environment says
//! on the way is compared with what it said before.
//!
//! Nothing of this shows in the episode: its observations are the recorded
//! ones, so an episode that was taken up has the bytes of one that was never
//! interrupted. Where the environment says something else, or declares that
//! playing again gives something else, the episode begins anew.

use super::{Interruption, Player};
use crate::environments::Environment;
use agentgym_envs::spec::Replay;
use agentgym_envs::{EnvError, Session, StepOutput};
use agentgym_jobs::episode::Turn;
use std::sync::atomic::Ordering;

/// What an episode has behind it.
pub(super) struct Played<'a> {
    pub(super) item_id: i64,
    /// The first observation.
    pub(super) prompt: &'a str,
    /// Turns with their answers.
    pub(super) turns: &'a [Turn],
}

/// Why a fresh session did not get to the same point.
enum Lost {
    /// It answers otherwise.
    Differs(String),
    /// It failed as well.
    Failed(EnvError),
}

impl From<EnvError> for Lost {
    fn from(error: EnvError) -> Self {
        Self::Failed(error)
    }
}

impl Player {
    /// Takes the step that failed in a fresh session, which stays in `session`.
    pub(super) async fn take_up(
        &self,
        environment: &Environment,
        session: &mut Session,
        played: Played<'_>,
        text: &str,
        mut error: EnvError,
    ) -> Result<StepOutput, Interruption> {
        let spec = environment.spec;
        if spec.replay == Replay::None {
            return Err(Interruption::Fault(error.to_string()));
        }
        for _ in 0..self.rules.fault_retries {
            tracing::info!(
                task = format!("{}_{}", spec.name, played.item_id), turns = played.turns.len(), %error,
                "the episode is taken up in a fresh session"
            );
            match self.timed(environment.client.open(played.item_id)).await {
                // The old session is closed in the background.
                Ok(fresh) => *session = fresh,
                Err(unreachable @ EnvError::Unreachable { .. }) => {
                    return Err(Interruption::Unreachable(unreachable));
                }
                Err(other) => {
                    error = other;
                    continue;
                }
            }
            let step = match self.replay(spec.replay, session, &played).await {
                Ok(()) => self.timed(session.step(text)).await.map_err(Lost::Failed),
                Err(lost) => Err(lost),
            };
            match step {
                Ok(step) => {
                    self.taken_up.fetch_add(1, Ordering::Relaxed);
                    return Ok(step);
                }
                Err(Lost::Failed(other)) => error = other,
                Err(Lost::Differs(how)) => {
                    return Err(Interruption::Fault(format!(
                        "{error}; in a fresh session {how}"
                    )));
                }
            }
        }
        Err(Interruption::Fault(error.to_string()))
    }

    /// Plays the recorded turns in a fresh session.
    async fn replay(
        &self,
        replay: Replay,
        session: &mut Session,
        played: &Played<'_>,
    ) -> Result<(), Lost> {
        if !replay.accepts(played.prompt, session.observation()) {
            return Err(Lost::Differs("the first observation is another".to_owned()));
        }
        for (index, turn) in played.turns.iter().enumerate() {
            // An answer that the client gave by itself changed nothing.
            if turn.action.is_none() {
                continue;
            }
            let step = self.timed(session.step(&turn.text)).await?;
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
        Ok(())
    }
}
