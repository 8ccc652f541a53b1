//! Plays a list of episodes: what `rollout` and `evaluate` have in common.
//!
//! Finished episodes are journalled now and then, so a part that is cut off
//! loses the episodes in flight and no others; what the next attempt plays
//! again comes out the same, token for token (I7).

use crate::decoder::{Decoder, DecoderOptions};
use crate::episode::{Player, Request, Rules};
use crate::policies::POLICY;
use crate::{Error, Report, Result, StageContext};
use agentgym_envs::FaultKind;
use agentgym_jobs::codec::{decode, encode};
use agentgym_jobs::episode::{Episode, Episodes, Outcome};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// Episodes in flight per row that the decoder has: while some wait for their
/// environment, others keep the rows busy.
const EPISODES_PER_ROW: usize = 2;

/// Most episodes in one segment of the journal, which is read in one piece.
const SEGMENT_EPISODES: usize = 64;

/// How often it is looked whether environments make their callers wait.
const TROUBLE_EVERY: Duration = Duration::from_secs(3);

/// The limits that both stages share; the rounds differ.
pub(super) fn rules(context: &StageContext, rounds_max: u32) -> Rules {
    let config = &context.plan.config;
    let rollout = &config.actor_rollout_ref.rollout;
    Rules {
        rounds_max,
        prompt_tokens_max: config.data.max_prompt_length.min(rollout.prompt_length),
        response_tokens_max: config.data.max_response_length.min(rollout.response_length),
        context_tokens_max: rollout.max_model_len,
        turn_tokens_max: rollout.max_tokens,
        deadline: Duration::from_secs_f64(rollout.episode_deadline_s),
        fault_retries: rollout.fault_retries,
        gym: config.actor_rollout_ref.agentgym.clone(),
    }
}

/// Plays all requests with the input `policy`. The episodes come back sorted
/// by (group, sample).
///
/// # Errors
/// The environment cannot be reached, the worker drains, or a task does not
/// fit. Finished episodes are journalled before that is reported.
pub(super) async fn all(
    context: &mut StageContext,
    requests: Vec<Request>,
    rules: Rules,
) -> Result<(Vec<Episode>, Report)> {
    let start = Instant::now();
    let mut finished = replayed(context, &requests)?;
    let replayed_count = finished.len();
    let player = player(context, &requests, rules).await?;
    let todo: Vec<Request> = requests
        .into_iter()
        .filter(|r| !finished.contains_key(&(r.group, r.sample)))
        .collect();
    let total = (todo.len() + replayed_count) as u64;

    let jobs = &context.plan.config.jobs;
    let places = jobs.decode_rows * context.resources.threads.max(1) * EPISODES_PER_ROW;
    let places = Arc::new(Semaphore::new(places.max(1)));
    let mut playing = JoinSet::new();
    for request in todo {
        let (player, places) = (Arc::clone(&player), Arc::clone(&places));
        playing.spawn(async move {
            // The semaphore is never closed.
            let _place = places.acquire().await;
            player.play(&request).await
        });
    }

    let mut interval =
        tokio::time::interval(Duration::from_secs_f64(jobs.journal_interval_s.max(0.1)));
    let mut environments = tokio::time::interval(TROUBLE_EVERY);
    environments.tick().await;
    let mut unsaved: Vec<Episode> = Vec::new();
    let mut failure: Option<Error> = None;
    let cancel = context.cancel.clone();
    loop {
        tokio::select! {
            () = cancel.cancelled() => {
                failure = Some(Error::Cancelled);
                break;
            }
            _ = interval.tick() => save(context, &mut unsaved).await?,
            _ = environments.tick() => tell_trouble(context, &player),
            ended = playing.join_next() => match ended {
                None => break,
                Some(Ok(Ok(episode))) => {
                    // A fault is not journalled: the next attempt may fare better.
                    if episode.outcome != Outcome::EnvFault {
                        unsaved.push(episode.clone());
                    }
                    finished.insert((episode.group, episode.sample), episode);
                    context.beat.progress_with(finished.len() as u64, total, "episodes", || {
                        let tokens = player.decoder.sampled_tokens() as f64;
                        vec![("tokens/s", tokens / start.elapsed().as_secs_f64().max(1e-9))]
                    });
                }
                // The others may finish: what they play is not lost.
                Some(Ok(Err(error @ Error::Environment(_)))) => {
                    failure.get_or_insert(error);
                }
                Some(Ok(Err(error))) => {
                    failure = Some(error);
                    break;
                }
                Some(Err(error)) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                Some(Err(_)) => {}
            },
        }
    }
    playing.shutdown().await;
    if let Some(error) = failure {
        save(context, &mut unsaved).await?;
        return Err(error);
    }

    let episodes: Vec<Episode> = finished.into_values().collect();
    refuse_if_all_failed(&player, &episodes)?;
    let mut report = Report::default();
    let (tokens, wall_s) = (
        player.decoder.sampled_tokens(),
        start.elapsed().as_secs_f64(),
    );
    report.tokens("sampled", tokens, wall_s);
    report.set("policy_s", player.decoder.busy_s());
    report.set("env_s", player.env_us.load(Ordering::Relaxed) as f64 / 1e6);
    report.set("episodes_replayed", replayed_count);
    environment_report(&player, &mut report);
    Ok((episodes, report))
}

/// What the environments' servers did to this attempt.
fn environment_report(player: &Player, report: &mut Report) {
    let mut faults: BTreeMap<&str, u64> = BTreeMap::new();
    let (mut calls, mut failed, mut leaked) = (0, 0, 0);
    for environment in player.environments.values() {
        let counters = environment.client.counters();
        (calls, leaked) = (calls + counters.calls, leaked + counters.leaked);
        // Every further attempt had a failed one before it.
        failed += counters.retries;
        for kind in FaultKind::ALL {
            let count = counters.faults(kind);
            failed += count;
            if count > 0 {
                *faults.entry(kind.name()).or_default() += count;
            }
        }
    }
    report.set("env_calls", calls);
    report.set("env_call_fault_rate", failed as f64 / calls.max(1) as f64);
    report.set("env_call_faults", serde_json::json!(faults));
    report.set("env_sessions_leaked", leaked);
    report.set("episodes_taken_up", player.taken_up.load(Ordering::Relaxed));
}

/// Calls are repeated with back-off for a while before anything fails: people
/// should know meanwhile what is being waited for.
fn tell_trouble(context: &StageContext, player: &Player) {
    for (name, environment) in &player.environments {
        if let Some(trouble) = environment.client.counters().trouble {
            context.beat.waiting(format!(
                "environment `{name}` fails and is asked again: {trouble}"
            ));
        }
    }
}

/// Faults are left out and counted. An environment that spoils every episode
/// of several tasks is broken, and going on would train on nothing.
fn refuse_if_all_failed(player: &Player, episodes: &[Episode]) -> Result<()> {
    for (name, environment) in &player.environments {
        let played = || episodes.iter().filter(|e| e.task.env == *name);
        let tasks: BTreeSet<i64> = played().map(|e| e.task.item_id).collect();
        if tasks.len() > 1 && played().all(|e| e.outcome == Outcome::EnvFault) {
            let fault = played()
                .find_map(|e| e.fault.as_deref())
                .unwrap_or_default();
            return Err(Error::Environment(format!(
                "every episode of environment `{name}` at {} failed; the first: {fault}",
                environment.url
            )));
        }
    }
    Ok(())
}

/// The episodes that earlier attempts finished, as far as they are asked for.
fn replayed(context: &StageContext, requests: &[Request]) -> Result<BTreeMap<(u32, u32), Episode>> {
    let mut finished = BTreeMap::new();
    for segment in &context.replayed {
        for episode in decode::<Episodes>(segment)?.into_vec() {
            let key = (episode.group, episode.sample);
            if requests
                .iter()
                .any(|r| (r.group, r.sample) == key && r.task == episode.task)
            {
                finished.insert(key, episode);
            }
        }
    }
    Ok(finished)
}

async fn player(context: &StageContext, requests: &[Request], rules: Rules) -> Result<Arc<Player>> {
    let (plan, resources) = (&context.plan, &context.resources);
    let policy = super::policy(context, POLICY).await?;
    let mut environments = BTreeMap::new();
    for request in requests {
        let name = &request.task.env;
        if !environments.contains_key(name) {
            environments.insert(name.clone(), resources.environments.open(plan, name).await?);
        }
    }
    let options = DecoderOptions {
        threads: resources.threads,
        rows: plan.config.jobs.decode_rows,
        cache_tokens: plan.config.jobs.cache_tokens,
    };
    let decoder = Decoder::start(&policy, options, &context.beat)?;
    let source = context
        .part
        .inputs
        .iter()
        .find(|input| input.name == POLICY);
    Ok(Arc::new(Player {
        policy,
        policy_iteration: source.map_or(0, |input| input.from.iteration),
        decoder,
        environments,
        rules,
        beat: context.beat.clone(),
        env_us: AtomicU64::new(0),
        taken_up: AtomicU64::new(0),
    }))
}

async fn save(context: &mut StageContext, unsaved: &mut Vec<Episode>) -> Result<()> {
    while !unsaved.is_empty() {
        let some = unsaved
            .drain(..unsaved.len().min(SEGMENT_EPISODES))
            .collect();
        context
            .journal
            .append(Bytes::from(encode(&Episodes::V1(some))?))
            .await?;
    }
    Ok(())
}

/// Refuses an episode that no reader could rely on.
pub(super) fn checked(episodes: Vec<Episode>) -> Result<Episodes> {
    for episode in &episodes {
        episode.check().map_err(Error::Stage)?;
    }
    Ok(Episodes::V1(episodes))
}
