//! An episode that an agent behind a harness plays: the harness starts the agent and judges what it did,
//! and the agent asks the gateway for each message.
//!
//! After a fault the agent is started again and gets the answers that it got before, so it is led back to
//! where it was; what an earlier attempt recorded counts as much. An agent that fails is led back once,
//! since what it met may have been the machine's fault. What happens again is its own.

use super::answers::{Answers, Played, digest};
use super::asked::Reading;
use super::player::{Interruption, Player, Request};
use super::scene::{EnvironmentClock, Scene};
use crate::environments::Environment;
use crate::gateway::{Attendance, Call};
use crate::turn_engine::{TurnAsk, TurnSeat};
use crate::turn_journal::Tape;
use crate::{Error, Result};
use agentgym_envs::spec::{AgentHistory, End, Ended};
use agentgym_envs::{EnvError, Session, StepOutput};
use agentgym_jobs::agent_record::{AGENT, AgentRecord};
use agentgym_jobs::episode::{Episode, Episodes, JUDGEMENT, Judgement, Outcome, TOOLS};
use agentgym_jobs::journal::{Answered, Event, RecordedMessage, Told};
use agentgym_model::{FinishReason, Generation};
use agentgym_serve::Refusal;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use serde_json::{Map, Value, json};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// How long a harness keeps a call waiting that asks whether its agent has ended.
const WAIT_S: f64 = 10.0;

/// A try at an episode.
struct Try<'a> {
    player: &'a Player,
    request: &'a Request,
    /// Most messages.
    rounds_max: u32,
    turn_tokens_max: usize,
    history: AgentHistory,
    answers: &'a mut Answers,
    /// From it the seats of the conversations are made.
    seat: TurnSeat,
    work: FuturesUnordered<BoxFuture<'a, Done>>,
    record: AgentRecord,
    /// A request was refused since no message was left, or no room for one.
    limit: Option<Outcome>,
}

/// What was worked on.
enum Done {
    /// A request, and its prompt's ids or why it has none.
    Read(Box<Call>, Result<Reading, Refusal>),
    /// An answer, and where it was sampled.
    Sampled(usize, TurnSeat, Result<Generation>),
    /// An answer that is in the journal.
    Written(usize),
}

impl Player {
    /// Plays an episode to its outcome, faults included.
    ///
    /// # Errors
    /// As [`Player::play`].
    pub(super) async fn play_agent(
        &self,
        request: &Request,
        environment: &Environment,
        tape: &mut Tape,
    ) -> Result<Episode> {
        let (recorded, played) = tape.answers();
        if let Some(episode) = played {
            return Ok(episode);
        }
        // What a chat API took for them is not known any more.
        (recorded.iter()).for_each(|_| self.engine.count(&Told::default()));
        let mut answers = Answers::recorded(recorded);
        let mut fault = String::new();
        for tries in 0..=self.rules.fault_retries {
            answers.begin();
            let mut scene = Scene {
                environment,
                item_id: request.task.item_id,
                clock: EnvironmentClock::new(self, &request.task.env, &environment.url),
                session: None,
            };
            let tried = (self.attend(request, &mut scene, (tape, &mut answers), tries == 0)).await;
            if let Some(session) = scene.session.take() {
                // The client counts and logs a failure to close.
                let _ = scene.clock.call("close a session", session.close()).await;
            }
            fault = match tried {
                Ok(episode) => {
                    tape.record(Event::Played(Box::new(Episodes::of(vec![episode.clone()]))));
                    return Ok(episode);
                }
                Err(Interruption::Error(error)) => return Err(error),
                Err(Interruption::Useless(error)) => {
                    return Err(Error::Environment(error.to_string()));
                }
                Err(Interruption::Empty(outcome, why)) => return Ok(request.empty(outcome, why)),
                Err(Interruption::Fault(why) | Interruption::Differs(why)) => why,
            };
            tracing::warn!(task = %request.task, sample = request.sample, fault, "an agent is started again");
        }
        Ok(request.empty(Outcome::EnvFault, fault))
    }

    /// One try, from the start of the agent.
    async fn attend(
        &self,
        request: &Request,
        scene: &mut Scene<'_>,
        (tape, answers): (&mut Tape, &mut Answers),
        is_first: bool,
    ) -> Result<Episode, Interruption> {
        let environment = scene.environment;
        let mut attendance = self.gateway.attend().await?;
        let session = self.opened(scene).await?;
        let prompt = session.observation().to_owned();
        let mut table = Try {
            player: self,
            request,
            rounds_max: self.rules.rounds_max.min(environment.rounds_max),
            turn_tokens_max: self.rules.turn_tokens_max.min(environment.turn_tokens_max),
            history: environment.spec.history,
            answers,
            seat: self.engine.open((request.group, request.sample)),
            work: FuturesUnordered::new(),
            record: AgentRecord::default(),
            limit: None,
        };
        let step = table.wait(session, &mut attendance, tape).await?;
        let ended = step.ended.clone().unwrap_or_default();
        let failed = ended.how != End::Finished;
        let why = || format!("the agent {}: {}", ended.how.name(), ended.reason);
        if failed && is_first && self.rules.fault_retries > 0 {
            return Err(Interruption::Fault(why()));
        }
        if ended.reward.is_none() {
            return Err(Interruption::Empty(Outcome::EnvFault, why()));
        }
        let episode = table.episode(prompt, &step, ended)?;
        match episode.turns.is_empty() {
            false => Ok(episode),
            true => {
                let why = format!(
                    "the agent ended without asking the policy for anything: {}",
                    step.observation
                );
                Err(Interruption::Empty(Outcome::NoTurn, why))
            }
        }
    }
}

/// Asks the harness until its agent has ended. The first call starts the agent.
async fn ended(
    session: &mut Session,
    order: Map<String, Value>,
    (computed_us, player): (&AtomicU64, &Player),
) -> Result<StepOutput, EnvError> {
    loop {
        let mut order = order.clone();
        let computed_s = computed_us.load(Ordering::Relaxed) as f64 / 1e6;
        order.insert("gateway_s".to_owned(), json!(computed_s));
        let step = session.step(&Value::Object(order).to_string()).await?;
        player.beat.tick();
        if step.done {
            return Ok(step);
        }
    }
}

impl<'a> Try<'a> {
    /// Answers the agent until it has ended.
    async fn wait(
        &mut self,
        session: &mut Session,
        attendance: &mut Attendance,
        tape: &mut Tape,
    ) -> Result<StepOutput, Interruption> {
        let player = self.player;
        let timeout = player.environments[&self.request.task.env].call_timeout_s;
        let order = json!({
            "base_url": attendance.url, "api_key": attendance.key, "model": "policy",
            "calls_max": self.rounds_max, "wait_s": WAIT_S.min(timeout / 2.0),
        });
        let order = order.as_object().cloned().unwrap_or_default();
        let computed_us = AtomicU64::new(0);
        let ending = ended(session, order, (&computed_us, player));
        tokio::pin!(ending);
        let deadline = player.rules.deadline;
        let (mut over, mut idle, mut since) = (None, Duration::ZERO, Instant::now());
        let step = loop {
            let computes = !self.work.is_empty();
            let leaves = player.cancel.is_cancelled();
            if !computes && leaves {
                return Err(Error::Cancelled.into());
            }
            if !computes && let Some(ended) = over.take() {
                break ended;
            }
            let left = deadline.saturating_sub(idle);
            tokio::select! {
                ended = &mut ending, if over.is_none() => over = Some(ended),
                Some(call) = attendance.calls.recv() => match leaves {
                    true => _ = call.reply.send(Err(Refusal::leaving())),
                    false => self.read(call),
                },
                Some(done) = self.work.next(), if computes => self.done(done, tape)?,
                () = player.cancel.cancelled(), if !leaves => {}
                () = tokio::time::sleep(left), if !computes && over.is_none() => {
                    return Err(Interruption::Fault(format!(
                        "the agent of environment `{}` has spent the {} s that an episode may spend outside of the \
                         policy (actor_rollout_ref.rollout.episode_deadline_s)",
                        self.request.task.env,
                        deadline.as_secs_f64()
                    )));
                }
            }
            let took = since.elapsed();
            since = Instant::now();
            let microseconds = took.as_micros() as u64;
            match computes {
                true => _ = computed_us.fetch_add(microseconds, Ordering::Relaxed),
                false => {
                    idle += took;
                    player.env_us.fetch_add(microseconds, Ordering::Relaxed);
                }
            }
        };
        step.map_err(|error: EnvError| Interruption::Fault(error.to_string()))
    }

    /// Begins to read a request.
    fn read(&mut self, call: Call) {
        let player = self.player;
        let known = self.answers.known(&call.asked, &player.text);
        let known = (known, self.history);
        self.work.push(Box::pin(async move {
            let reading = Reading::of(player, &call, known).await;
            Done::Read(Box::new(call), reading)
        }));
    }

    fn done(&mut self, done: Done, tape: &mut Tape) -> Result<()> {
        match done {
            Done::Read(call, Ok(reading)) => self.place(*call, reading),
            Done::Read(call, Err(refusal)) => self.refuse(*call, refusal),
            Done::Sampled(at, seat, said) => {
                let said = said?;
                let slot = &mut self.answers.0[at];
                let entropies =
                    self.player.rules.records_entropies && !self.request.sampling.greedy;
                let message = RecordedMessage {
                    number: slot.number,
                    ended: said.finish == FinishReason::Eos,
                    token_ids: said.token_ids,
                    log_probs: said.log_probs,
                    log_kept_masses: said.log_kept_masses,
                };
                slot.message = Some((message, entropies.then_some(said.entropies)));
                slot.seat = Some(seat);
                let key = slot.stream(&self.request.stream);
                slot.settle(self.player.text.tokenizer(), key);
                if let (Some((message, entropies)), Some(request)) = (&slot.message, &slot.request)
                {
                    tape.record(Event::Answered(Box::new(Answered {
                        prompt: digest(&request.prompt),
                        message: message.clone(),
                        entropies: entropies.clone(),
                    })));
                }
                match self.player.rules.journals_first {
                    false => self.answer(at),
                    true => {
                        let written = tape.written();
                        let written = written.map(move |()| Done::Written(at));
                        self.work.push(Box::pin(written));
                    }
                }
            }
            Done::Written(at) => self.answer(at),
        }
        Ok(())
    }

    fn answer(&mut self, at: usize) {
        let slot = &mut self.answers.0[at];
        let key = slot.stream(&self.request.stream);
        slot.answer(self.player.text.tokenizer(), key);
    }

    fn refuse(&mut self, call: Call, refusal: Refusal) {
        if refusal.is_too_long() {
            self.record.refused += 1;
            self.limit.get_or_insert(Outcome::Length);
        }
        let _ = call.reply.send(Err(refusal));
    }

    /// Gives a request its answer, or begins to sample one.
    fn place(&mut self, call: Call, reading: Reading) {
        let digest = digest(&reading.prompt);
        let known = self.answers.find(&digest, &call.asked);
        let is_asked = known.is_some_and(|at| self.answers.0[at].request.is_some());
        let room = match is_asked {
            true => None,
            false => match self.further(&reading.prompt, &call) {
                Ok(room) => Some(room),
                Err(refusal) => return self.refuse(call, refusal),
            },
        };
        let at = known.unwrap_or_else(|| {
            self.record.equal_at_once += u32::from(self.answers.is_in_flight(&digest));
            let key = call.asked.idempotency_key.clone();
            self.answers.add(digest, key)
        });
        if let Some(room) = room {
            let request = reading.request(self.player, &call, self.request.sampling);
            self.answers.0[at].request = Some(request);
            if known.is_none() {
                self.sample(at, room);
            }
        }
        self.answers.0[at].waiting.push(call);
        if self.answers.0[at].message.is_some() {
            self.answer(at);
        }
    }

    /// The most ids of a further message, unless there is no room or no message is left.
    fn further(&mut self, prompt: &[u32], call: &Call) -> Result<usize, Refusal> {
        let room = self.room(prompt, call)?;
        let asked = self.answers.0.iter().filter(|slot| slot.request.is_some());
        if (asked.count() as u32) < self.rounds_max {
            return Ok(room);
        }
        self.limit = Some(Outcome::Horizon);
        self.record.refused += 1;
        let most = self.rounds_max;
        let message = format!("the episode has had its {most} messages: end here");
        Err(Refusal::bad("", message))
    }

    /// The most ids of an answer.
    fn room(&self, prompt: &[u32], call: &Call) -> Result<usize, Refusal> {
        let rules = &self.player.rules;
        let first = self
            .answers
            .first_prompt(prompt)
            .min(rules.prompt_tokens_max);
        let most = (first + rules.response_tokens_max).min(rules.context_tokens_max);
        let room = most.saturating_sub(prompt.len());
        let wanted = call.asked.tokens_max.unwrap_or(usize::MAX);
        match room.min(self.turn_tokens_max).min(wanted) {
            0 => Err(Refusal::too_long(
                call.asked.prompt_field(),
                format!(
                    "the conversation has {} ids, and the policy may read and say {most} in all",
                    prompt.len()
                ),
            )),
            room => Ok(room),
        }
    }

    fn sample(&mut self, at: usize, tokens_max: usize) {
        let slot = &self.answers.0[at];
        let stream = slot.stream(&self.request.stream);
        let Some(asked) = &slot.request else {
            return;
        };
        let (known, messages) = (asked.prompt.clone(), asked.messages.clone());
        let tools = asked.tools.clone();
        let sampled = self.answers.mask(&known);
        let before = self.answers.before(&known);
        let taken = before.and_then(|(before, ids)| {
            let seat = self.answers.0[before].seat.take()?;
            Some((seat, ids))
        });
        let (seat, given) = taken.unwrap_or_else(|| (self.seat.another(), 0));
        let (player, sampling) = (self.player, self.request.sampling);
        self.work.push(Box::pin(async move {
            let said = seat.turn(TurnAsk {
                known: &known,
                sampled: &sampled,
                messages: &messages,
                tools: tools.as_ref(),
                given,
                stream,
                number: 0,
                sampling,
                tokens_max,
                stop_ids: player.text.eos_ids(),
            });
            let said = said.await.map(|(said, told)| {
                told.iter().for_each(|told| player.engine.count(told));
                said
            });
            Done::Sampled(at, seat, said)
        }));
    }

    /// The record of the episode.
    fn episode(mut self, prompt: String, step: &StepOutput, ended: Ended) -> Result<Episode> {
        let (player, request) = (self.player, self.request);
        let Played {
            sequences,
            mut turns,
            continues,
            slots,
        } = (self.answers).played(player.text.tokenizer(), &player.rules);
        for turn in &mut turns {
            turn.policy_iteration = player.policy_iteration;
        }
        if let Some(last) = turns.last_mut() {
            last.observation.clone_from(&step.observation);
            (last.reward, last.done) = (Some(step.reward), true);
        }
        let record = &mut self.record;
        record.continues = continues;
        record.ended = ended.how.name().to_owned();
        record.not_asked_again = (self.answers.0.len() - slots.len()) as u32;
        let mut tools = None;
        for asked in slots
            .iter()
            .filter_map(|at| self.answers.0[*at].request.as_ref())
        {
            record.unsampled_messages += asked.unsampled_messages;
            record.kept_thoughts += asked.kept_thoughts;
            for field in &asked.overridden {
                *record.overridden.entry(field.clone()).or_default() += 1;
            }
            tools = tools.or(asked.tools.as_ref());
        }
        let mut extra = vec![(AGENT.to_owned(), json!(record).to_string())];
        extra.extend(tools.map(|tools| (TOOLS.to_owned(), tools.to_string())));
        if !ended.components.is_empty() || !ended.reason.is_empty() {
            let judgement = Judgement {
                components: ended.components,
                reason: ended.reason,
            };
            extra.push((JUDGEMENT.to_owned(), json!(judgement).to_string()));
        }
        let success = step.success && ended.how == End::Finished;
        Ok(Episode {
            task: request.task.clone(),
            group: request.group,
            sample: request.sample,
            outcome: match self.limit {
                _ if success => Outcome::Solved,
                Some(limit) => limit,
                None => Outcome::Failed,
            },
            success,
            reward: step.reward,
            prompt,
            sequences,
            turns,
            fault: None,
            extra,
        })
    }
}
