//! Plays a list of episodes, for `rollout` and `evaluate`.
//!
//! All events of the episodes are journalled periodically. A part that is killed loses only the
//! events after the last segment, and a part that is asked to end loses nothing that it can finish
//! in time. The next attempt continues from the journal; what it samples again is the same, token
//! for token (I7).

use super::{artifacts, probes, spoiled};
use crate::candle_engine::CandleEngine;
use crate::decoder::{Decoder, DecoderOptions};
use crate::episode::{Player, Request, Rules};
use crate::inference::chat::ChatServer;
use crate::inference::{InferenceServer, Served};
use crate::meters::FaultsSeen;
use crate::policies::POLICY;
use crate::turn_engine::TurnEngine;
use crate::turn_journal::{Tape, TurnJournal};
use crate::{Error, Report, Result, StageContext, panics};
use agentgym_envs::FaultKind;
use agentgym_jobs::episode::{Episode, Episodes, Outcome};
use agentgym_jobs::pipeline::{PartId, Stage};
use agentgym_jobs::plan::Plan;
use agentgym_model::PolicyText;
use agentgym_storage::Outputs;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

/// Episodes in flight per decoder row: while some wait for their environment, others keep the rows
/// busy.
pub const EPISODES_PER_ROW: usize = 2;

/// How often to check whether environments keep their callers waiting.
const TROUBLE_EVERY: Duration = Duration::from_secs(3);

/// The limits of both stages; only the rounds differ.
pub(super) fn rules(context: &StageContext, rounds_max: u32) -> Rules {
    let config = &context.plan.config;
    let rollout = &config.actor_rollout_ref.rollout;
    Rules {
        rounds_max,
        prompt_tokens_max: config.data.max_prompt_length.min(rollout.prompt_length),
        response_tokens_max: config.response_tokens_max(),
        context_tokens_max: rollout.max_model_len,
        turn_tokens_max: rollout.max_tokens,
        deadline: Duration::from_secs_f64(rollout.episode_deadline_s),
        fault_retries: rollout.fault_retries,
        leaves_out: rollout.empty_share_max > 0.0,
        journals_first: config.jobs.journal_interval_s == 0.0,
        gym: config.actor_rollout_ref.agentgym.clone(),
        records_cuts: context.plan.format >= 2,
        records_entropies: false,
    }
}

/// Plays all requests with the input `policy`. The episodes are returned sorted by (group, sample).
///
/// # Errors
/// The environment cannot be reached, the worker drains, or a task does not fit. Events are
/// journalled before the error is returned.
pub(super) async fn all(
    context: &mut StageContext,
    requests: Vec<Request>,
    rules: Rules,
) -> Result<(Vec<Episode>, Report)> {
    let start = Instant::now();
    let mut journal = TurnJournal::read(context, requests.iter().map(Into::into))?;
    let mut finished = journal.take_finished();
    let player = player(context, &requests, rules).await?;
    let total = requests.len() as u64;

    let mut todo = Vec::new();
    for request in requests {
        let key = (request.group, request.sample);
        if finished.contains_key(&key) {
            continue;
        }
        let mut tape = journal.tape(request.group, request.sample);
        // A complete tape needs neither the decoder nor an environment.
        if tape.is_whole() {
            let episode = player.play(&request, &mut tape).await?;
            finished.insert(key, episode);
            context.beat.tick();
        } else {
            todo.push((request, tape));
        }
    }
    let replayed_count = finished.len();

    let episodes = todo.iter();
    (player.engine).expect(episodes.map(|(request, _)| (request.group, request.sample)));

    let jobs = &context.plan.config.jobs;
    let threads = context.resources.threads.max(1);
    let rows = player.engine.rows(jobs.decode_rows, threads);
    let places = rows.saturating_mul(EPISODES_PER_ROW).min(todo.len());
    let places = Arc::new(Semaphore::new(places.max(1)));
    let mut playing = JoinSet::new();
    let mut spoiled: Vec<(Request, Tape)> = Vec::new();
    let mut again = false;
    for (request, tape) in todo {
        playing.spawn(in_turn(
            Arc::clone(&player),
            Arc::clone(&places),
            request,
            tape,
        ));
    }

    let mut interval =
        tokio::time::interval(Duration::from_secs_f64(jobs.journal_interval_s.max(0.1)));
    // If writing a segment takes long, the next one still follows a full interval later.
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut environments = tokio::time::interval(TROUBLE_EVERY);
    environments.tick().await;
    let mut faults_seen = FaultsSeen::new();
    let mut failure: Option<Error> = None;
    let (cancel, grace) = (context.cancel.clone(), context.resources.drain_grace);
    let out_of_time = async {
        cancel.cancelled().await;
        tokio::time::sleep(grace).await;
    };
    tokio::pin!(out_of_time);
    let sampled = || player.engine.sampled_tokens();
    let wanted = journal.wanted();
    loop {
        let due = async {
            tokio::select! {
                _ = interval.tick() => {}
                () = wanted.notified() => {}
            }
        };
        tokio::select! {
            () = &mut out_of_time => {
                failure = Some(Error::Cancelled);
                break;
            }
            () = due => {
                journal.collect();
                match player.engine.confirm().await {
                    Ok(true) => journal.write(context, sampled, false).await?,
                    // It stays collected.
                    Ok(false) => {}
                    Err(error) => {
                        failure = Some(error);
                        break;
                    }
                }
            }
            _ = environments.tick() => {
                tell_trouble(context, &player);
                count_faults(&player, &mut faults_seen);
            }
            ended = playing.join_next() => match ended {
                None if failure.is_some() => break,
                None => {
                    let episodes: Vec<&Episode> = finished.values().collect();
                    let judged = tokio::select! {
                        judged = spoiled::plays_again(context, &player, &episodes, again) => judged,
                        () = &mut out_of_time => Err(Error::Cancelled),
                    };
                    match judged {
                        Ok(true) => again = true,
                        Ok(false) => break,
                        Err(error) => {
                            failure = Some(error);
                            break;
                        }
                    }
                    for (request, tape) in spoiled.drain(..) {
                        playing.spawn(in_turn(Arc::clone(&player), Arc::clone(&places), request, tape));
                    }
                }
                Some(Ok((request, tape, Ok(episode)))) => {
                    if episode.outcome == Outcome::EnvFault {
                        spoiled.push((request, tape));
                    }
                    finished.insert((episode.group, episode.sample), episode);
                    context.beat.progress_with(finished.len() as u64, total, "episodes", || {
                        vec![("tokens/s", sampled() as f64 / start.elapsed().as_secs_f64().max(1e-9))]
                    });
                }
                // The worker drains: the other episodes finish their turns.
                Some(Ok((_, _, Err(Error::Cancelled)))) => failure = Some(Error::Cancelled),
                // The other episodes may finish: their results are not lost.
                Some(Ok((_, _, Err(error @ (Error::Environment(_) | Error::Server(_)))))) => {
                    failure.get_or_insert(error);
                }
                Some(Ok((_, _, Err(error)))) => {
                    failure = Some(error);
                    break;
                }
                Some(Err(error)) if error.is_panic() => {
                    failure = Some(Error::Internal(panics::message(&*error.into_panic())));
                    break;
                }
                Some(Err(_)) => {}
            },
        }
    }
    playing.shutdown().await;
    count_faults(&player, &mut faults_seen);
    tell_trouble(context, &player);
    if let Some(error) = failure {
        // What cannot be seen to be the policy's own is left out, and sampled again.
        journal.collect();
        if matches!(player.engine.confirm().await, Ok(true)) {
            journal.write(context, sampled, true).await?;
        }
        journal.report(sampled(), &mut context.measured);
        return Err(error);
    }

    if sampled() > 0 {
        player.engine.confirmed().await?;
    }
    let episodes: Vec<Episode> = finished.into_values().collect();
    spoiled::refuse_part(context, &episodes)?;
    let mut report = Report::default();
    report
        .stats
        .sampled(sampled(), start.elapsed().as_secs_f64());
    journal.report(sampled(), &mut report);
    player.engine.report(&mut report);
    report.stats.env_s = Some(player.env_us.load(Ordering::Relaxed) as f64 / 1e6);
    report.stats.episodes_replayed = Some(replayed_count);
    environment_report(&player, &mut report);
    Ok((episodes, report))
}

/// Plays an episode when there is a place for it.
async fn in_turn(
    player: Arc<Player>,
    places: Arc<Semaphore>,
    request: Request,
    mut tape: Tape,
) -> (Request, Tape, Result<Episode>) {
    // With limited sessions, episodes wait here, before their deadline starts.
    let environment = player.environments.get(&request.task.env);
    let _turn = match environment {
        Some(environment) => environment.turn().await,
        None => None,
    };
    // The semaphore is never closed.
    let _place = places.acquire().await;
    let played = player.play(&request, &mut tape).await;
    (request, tape, played)
}

/// Reports the environment servers' faults during this attempt.
fn environment_report(player: &Player, report: &mut Report) {
    let mut faults: BTreeMap<String, u64> = BTreeMap::new();
    let (mut calls, mut failed, mut leaked, mut replaced) = (0, 0, 0, 0);
    let mut away = Vec::new();
    for environment in player.environments.values() {
        let counters = environment.client.counters();
        (calls, leaked) = (calls + counters.calls, leaked + counters.leaked);
        replaced += counters.replaced;
        away.extend(environment.client.away());
        // Each retry follows a failed call.
        failed += counters.retries;
        for kind in FaultKind::ALL {
            let count = counters.faults(kind);
            failed += count;
            if count > 0 {
                *faults.entry(kind.name().to_owned()).or_default() += count;
            }
        }
    }
    let stats = &mut report.stats;
    stats.env_calls = Some(calls);
    stats.env_call_fault_rate = Some(failed as f64 / calls.max(1) as f64);
    stats.env_call_faults = Some(faults);
    stats.env_sessions_leaked = Some(leaked);
    stats.env_servers_away = Some(away).filter(|away| !away.is_empty());
    stats.env_characters_replaced = Some(replaced).filter(|replaced| *replaced > 0);
    stats.episodes_taken_up = Some(player.taken_up.load(Ordering::Relaxed));
    stats.episodes_resumed = Some(player.resumed.load(Ordering::Relaxed));
}

/// Calls are retried with back-off for a while before anything fails; meanwhile the operator should
/// see what is being waited for.
fn tell_trouble(context: &StageContext, player: &Player) {
    for (name, environment) in &player.environments {
        if let Some(trouble) = environment.client.counters().trouble {
            context.beat.waiting(format!(
                "environment `{name}` fails and is asked again: {trouble}"
            ));
        }
        for away in environment.client.away() {
            context.beat.waiting(format!(
                "environment `{name}` is played at its other addresses: {away}"
            ));
        }
    }
}

fn count_faults(player: &Player, seen: &mut FaultsSeen) {
    for (name, environment) in &player.environments {
        let counters = environment.client.counters();
        player.meters.env_faults(name, &counters, seen);
    }
}

async fn player(context: &StageContext, requests: &[Request], rules: Rules) -> Result<Arc<Player>> {
    let (plan, resources) = (&context.plan, &context.resources);
    let mut environments = BTreeMap::new();
    for request in requests {
        let name = &request.task.env;
        if !environments.contains_key(name) {
            environments.insert(name.clone(), resources.environments.open(plan, name).await?);
        }
    }
    let source = context
        .part
        .inputs
        .iter()
        .find(|input| input.name == POLICY);
    let (text, engine) = engine(context, source.map(|input| input.from)).await?;
    let mut calling = BTreeMap::new();
    for (name, environment) in &environments {
        if let Some(tools) = environment.spec.offered() {
            calling.insert(name.clone(), text.with_tools(&tools)?);
        }
    }
    Ok(Arc::new(Player {
        text,
        calling,
        policy_iteration: source.map_or(0, |input| input.from.iteration),
        engine,
        environments,
        rules,
        beat: context.beat.clone(),
        env_us: AtomicU64::new(0),
        gateway: Arc::clone(&resources.gateway),
        meters: Arc::clone(&resources.meters),
        taken_up: AtomicU64::new(0),
        resumed: AtomicU64::new(0),
        cancel: context.cancel.clone(),
    }))
}

/// Who generates, and the text side of the policy `from`. Evaluations of a run that trains are played by
/// our own engine: one may lag behind, and a server has one policy at a time.
async fn engine(context: &StageContext, from: Option<PartId>) -> Result<(PolicyText, TurnEngine)> {
    let (plan, resources) = (&context.plan, &context.resources);
    if context.part.id.stage == Stage::Rollout && plan.generates_by_server() {
        let text = as_planned(plan, &artifacts::policy_text(context, POLICY).await?);
        let served = Served {
            config: &plan.config.actor_rollout_ref.rollout.server,
            probe: probes::of(context).await?,
            policy: from.map_or_else(|| POLICY.to_owned(), |from| format!("the policy of {from}")),
            text: &text,
            distance_max: plan.config.guard.mismatch_max.unwrap_or(f64::MAX),
            context_tokens: plan.context_tokens(),
        };
        let opened = InferenceServer::open(served, context.beat.clone(), context.cancel.clone());
        let server = opened.await?;
        return Ok((text, TurnEngine::Server(server)));
    }
    if plan.evaluates_by_chat() {
        // The weights are not used: the tokenizer makes the record.
        let text = artifacts::policy_text(context, POLICY).await?;
        let config = &plan.config.actor_rollout_ref.rollout.server;
        let (beat, cancel) = (context.beat.clone(), context.cancel.clone());
        let server = ChatServer::open(config, &text, beat, cancel)?;
        return Ok((text, TurnEngine::Chat(server)));
    }
    if plan.evaluates_by_candle() {
        let (device, tokens) = (&resources.device, plan.context_tokens());
        let policy = (resources.foreign).get(device, &context.inputs, POLICY, tokens);
        let policy = policy.await?;
        let text = as_planned(plan, policy.text());
        let engine = CandleEngine::start(policy, resources.threads, context.beat.clone())?;
        return Ok((text, TurnEngine::Candle(engine)));
    }
    let policy = artifacts::policy(context, POLICY).await?;
    let options = DecoderOptions {
        threads: resources.threads,
        rows: plan.config.jobs.decode_rows,
        cache_tokens: plan.config.jobs.cache_tokens,
    };
    let decoder = Decoder::start(&policy, options, &context.beat)?;
    Ok((as_planned(plan, policy.text()), TurnEngine::Own(decoder)))
}

/// How plans of this format end replies. An API's messages end with the template's end in every plan.
fn as_planned(plan: &Plan, text: &PolicyText) -> PolicyText {
    match plan.format >= 3 {
        true => text.clone(),
        false => text.of_older_plans(),
    }
}

/// Writes episodes; rejects an inconsistent one.
pub(super) async fn write(outputs: &mut Outputs, name: &str, episodes: Vec<Episode>) -> Result<()> {
    for episode in &episodes {
        episode.check().map_err(Error::Stage)?;
    }
    artifacts::write(outputs, name, "episodes", &Episodes::of(episodes)).await
}
