//! Plays one episode of a task: renders the prompt, then samples, acts and observes turn by turn,
//! until the environment is done, the rounds or the tokens are used up, or the environment fails.
//!
//! Three guarantees. Ids are kept as sampled, and the loss mask says who produced them (I6). A
//! budget ends an episode before it is exceeded, with its own outcome; nothing is cut silently. An
//! environment's failure is never a reward of zero (I8): the episode continues in a fresh session
//! ([`take_up`]), or is played again from the start with the same random stream, and if that fails
//! too it becomes an `env_fault`.
//!
//! Every event is recorded on the episode's tape. Events that an earlier attempt recorded are taken
//! from the tape: they are neither sampled nor requested again. A session is opened at the end of
//! the tape, and not at all if the tape holds the whole episode.

mod agent;
mod answers;
mod asked;
mod player;
mod scene;
mod take_up;
mod texts;
mod tokens;
mod transcript;

use crate::environments::Environment;
use crate::turn_journal::Tape;
use crate::{Error, Result};
use agentgym_envs::spec::{Actions, EnvSpec, first_message};
use agentgym_envs::{Session, StepOutput};
use agentgym_jobs::episode::{
    AVAILABLE_ACTIONS, Episode, OPENING, Outcome, Parse, SUMMARIES, TOOLS, Turn,
};
use agentgym_jobs::journal::{Event, Step};
use player::Interruption;
pub(crate) use player::{Player, Request, Rules};
use scene::{EnvironmentClock, Scene};
use transcript::Transcript;

impl Player {
    /// Plays an episode to its outcome, faults included, from the end of its tape.
    ///
    /// # Errors
    /// The environment cannot be reached at all, the task does not fit the
    /// config, the model failed, or the worker drains.
    pub(crate) async fn play(&self, request: &Request, tape: &mut Tape) -> Result<Episode> {
        let harness = self.environments.get(&request.task.env);
        if let Some(harness) = harness.filter(|environment| environment.spec.harness) {
            return self.play_agent(request, harness, tape).await;
        }
        let (mut fault, mut plays) = (String::new(), 0);
        while plays <= self.rules.fault_retries {
            match self.attempt(request, tape).await {
                Ok(episode) => return Ok(episode),
                Err(Interruption::Error(error)) => return Err(error),
                Err(Interruption::Empty(Outcome::NoRoom, why)) if !self.rules.leaves_out => {
                    return Err(Error::stage(format!(
                        "{why}. `actor_rollout_ref.rollout.empty_share_max=0.5`, a key that `resume` takes, \
                         leaves such episodes out and counts them; only a new run or a fork can have larger limits"
                    )));
                }
                Err(Interruption::Empty(outcome, why)) => {
                    tracing::warn!(task = %request.task, sample = request.sample, why, "an episode is left out");
                    return Ok(request.empty(outcome, why));
                }
                Err(Interruption::Useless(error)) => {
                    return Err(Error::Environment(error.to_string()));
                }
                Err(Interruption::Fault(message)) => {
                    (fault, plays) = (message, plays + 1);
                    tracing::warn!(task = %request.task, sample = request.sample, fault, "environment fault");
                }
                // An uninterrupted run would not have met this, so it uses up no retry. When the
                // episode starts over, no recorded event is left that could differ.
                Err(Interruption::Differs(how)) => {
                    tracing::warn!(task = %request.task, sample = request.sample, how, "a journalled episode begins anew");
                }
            }
            tape.begin_anew();
        }
        Ok(request.empty(Outcome::EnvFault, fault))
    }

    async fn attempt(&self, request: &Request, tape: &mut Tape) -> Result<Episode, Interruption> {
        let environment = self.environments.get(&request.task.env).ok_or_else(|| {
            Error::stage(format!("no client for environment `{}`", request.task.env))
        })?;
        let mut scene = Scene {
            environment,
            item_id: request.task.item_id,
            clock: EnvironmentClock::new(self, &request.task.env, &environment.url),
            session: None,
        };
        let played = self.converse(request, &mut scene, tape).await;
        if let Some(session) = scene.session.take() {
            // The client counts and logs a failure to close.
            let _ = scene.clock.call("close a session", session.close()).await;
        }
        played
    }

    /// Opens an item and takes a step in it, to see whether its environment works. Where the spec names
    /// no action that is valid in every state, a refused step would say nothing: none is taken.
    ///
    /// # Errors
    /// What failed.
    pub(crate) async fn try_item(&self, env: &str, item_id: i64) -> Result<(), String> {
        let environment = (self.environments.get(env)).ok_or("it has no client")?;
        let mut clock = EnvironmentClock::new(self, env, &environment.url);
        let tried = async {
            let opening = environment.client.open(item_id);
            let mut session = clock.call("open a session", opening).await??;
            let probe = environment.spec.probe_text();
            let has_probe = environment.spec.probe != EnvSpec::default().probe;
            if has_probe && !session.is_over() {
                clock.call("take a step", session.step(&probe)).await??;
            }
            // The client counts and logs a failure to close.
            let _ = clock.call("close a session", session.close()).await?;
            Ok(())
        };
        tried.await.map_err(|tried| match tried {
            Interruption::Useless(error) => error.to_string(),
            Interruption::Fault(why) | Interruption::Differs(why) | Interruption::Empty(_, why) => {
                why
            }
            Interruption::Error(error) => error.to_string(),
        })
    }

    /// The conversation from the first observation to the outcome.
    async fn converse(
        &self,
        request: &Request,
        scene: &mut Scene<'_>,
        tape: &mut Tape,
    ) -> Result<Episode, Interruption> {
        let environment = scene.environment;
        let (opening, instruction) = self.rules.gym.opening_of(&environment.instruction);
        let first = match tape.opened() {
            Some(first) => first,
            None => {
                let session = self.opened(scene).await?;
                let first = session.observation().to_owned();
                if session.is_over() {
                    let why = format!("over before its first turn: {first}");
                    return Err(Interruption::Empty(Outcome::NoTurn, why));
                }
                tape.record(Event::Opened(first.clone()));
                first
            }
        };
        let prompt = first_message(&instruction, &first);
        let rounds_max = self.rules.rounds_max.min(environment.rounds_max);
        let turn_tokens_max = self.rules.turn_tokens_max.min(environment.turn_tokens_max);
        let mut table =
            Transcript::start(self, request, (&opening, &prompt), turn_tokens_max).await?;
        let mut turns: Vec<Turn> = Vec::new();
        let mut available: Vec<Option<Vec<String>>> = Vec::new();
        // The environment's latest reward and success. A reply that the client gave by itself says
        // nothing about the task and changes neither.
        let (mut reward, mut success) = (0.0, false);
        let outcome = loop {
            if turns.len() as u32 == rounds_max {
                break Outcome::Horizon;
            }
            if tape.is_used_up() {
                if self.cancel.is_cancelled() {
                    return Err(Error::Cancelled.into());
                }
                // Before anything is sampled: if the environment now answers differently, the
                // episode starts over.
                self.session(scene, &first, &turns).await?;
            }
            if let Some(turn) = turns.last()
                && !table
                    .observe(self, request, tape, (turns.len() as u32, turn))
                    .await?
            {
                break Outcome::Length;
            }
            if self.rules.gym.record_actions {
                let listed = match tape.actions() {
                    Some(listed) => listed,
                    None => {
                        self.session(scene, &first, &turns).await?;
                        let listed = self.listed(scene).await?;
                        tape.record(Event::Actions(listed.clone()));
                        listed
                    }
                };
                available.push(listed);
            }
            let said = table
                .sample(self, request, tape, turns.len() as u32)
                .await?;
            let Some(mut turn) = said else {
                break Outcome::Length;
            };
            let step = match tape.step() {
                Some(step) => step,
                None => {
                    self.session(scene, &first, &turns).await?;
                    let step = self.stepped(scene, &first, &turns, &turn.text).await?;
                    let mut step = noted(step);
                    step.observation = table.kept(step.observation).await?;
                    tape.record(Event::Step(step.clone()));
                    step
                }
            };
            if !step.local {
                (reward, success) = (step.reward, step.success);
                turn.reward = Some(step.reward);
            }
            turn.parse = step.parse;
            turn.done = step.done;
            turn.action = step.action;
            turn.observation = step.observation;
            turns.push(turn);
            if step.done {
                break if success {
                    Outcome::Solved
                } else {
                    Outcome::Failed
                };
            }
        };
        tape.over();
        let (sequences, summaries) = table.into_parts();
        let mut extra = extra(environment, available, turns.len());
        if let Some(tools) = environment.spec.offered() {
            extra.push((TOOLS.to_owned(), tools.to_string()));
        }
        if !opening.is_empty() {
            let text = serde_json::to_string(&opening).expect("turns are plain JSON");
            extra.push((OPENING.to_owned(), text));
        }
        if !summaries.is_empty() {
            let text = serde_json::to_string(&summaries).expect("summaries are plain JSON");
            extra.push((SUMMARIES.to_owned(), text));
        }
        Ok(Episode {
            task: request.task.clone(),
            group: request.group,
            sample: request.sample,
            outcome,
            success,
            reward,
            prompt,
            sequences,
            extra,
            turns,
            fault: None,
        })
    }

    /// A fresh session.
    async fn opened<'s>(&self, scene: &'s mut Scene<'_>) -> Result<&'s mut Session, Interruption> {
        if self.cancel.is_cancelled() {
            return Err(Error::Cancelled.into());
        }
        let opening = scene.environment.client.open(scene.item_id);
        match scene.clock.call("open a session", opening).await? {
            Ok(session) => Ok(scene.enter(session)),
            Err(error) => Err(error.into()),
        }
    }

    async fn listed(&self, scene: &mut Scene<'_>) -> Result<Option<Vec<String>>, Interruption> {
        let Some(session) = &scene.session else {
            return Ok(None);
        };
        let asked = session.available_actions();
        let listed = scene.clock.call("list the possible actions", asked).await?;
        listed.map_err(|e| Interruption::Fault(e.to_string()))
    }
}

/// Data recorded beside the turns. If the observations contain the actions, they are not stored a
/// second time.
fn extra(
    environment: &Environment,
    mut available: Vec<Option<Vec<String>>>,
    turns: usize,
) -> Vec<(String, String)> {
    // The last list may belong to a turn for which no tokens were left.
    available.truncate(turns);
    let in_text = matches!(environment.spec.actions, Actions::InText(_));
    if in_text || available.iter().all(Option::is_none) {
        return vec![];
    }
    let text = serde_json::to_string(&available).expect("lists of texts are plain JSON");
    vec![(AVAILABLE_ACTIONS.to_owned(), text)]
}

/// The recorded part of an answer.
fn noted(step: StepOutput) -> Step {
    Step {
        parse: match &step.parsed {
            parsed if !parsed.found || parsed.action.is_none() => Parse::Invalid,
            parsed if parsed.normalised => Parse::Normalised,
            _ => Parse::Clean,
        },
        observation: step.observation,
        reward: step.reward,
        done: step.done,
        success: step.success,
        action: step.action,
        local: step.local,
    }
}

#[cfg(test)]
mod tests;
