//! `log_probs`: scores the samples of a rollout part by teacher forcing, under the policy at the
//! start of the update and, if a KL term needs it, under the reference policy. Writes
//! `log_probs.bin`, one entry per episode; with a critic also `values.bin`, the critic's value of
//! every sampled token.

use super::artifacts::{self, read, write};
use crate::blocking::blocking;
use crate::policies::{CRITIC, POLICY};
use crate::{Error, Report, Result, StageContext};
use agentgym_jobs::artifact_names;
use agentgym_jobs::episode::{Episode, Episodes};
use agentgym_jobs::records::{EpisodeLogProbs, LogProbs, Values};
use agentgym_model::{ComputeOptions, Policy, ScoreRequest, Scores, score, values};
use agentgym_storage::Outputs;
use std::sync::Arc;
use std::time::Instant;

pub(super) async fn run(context: &mut StageContext, outputs: &mut Outputs) -> Result<Report> {
    let start = Instant::now();
    let episodes: Arc<Vec<Episode>> = Arc::new(
        read::<Episodes>(&context.inputs, "rollout", artifact_names::EPISODES)
            .await?
            .into_vec(),
    );
    let policy = artifacts::policy(context, POLICY).await?;
    let old = scores(context, policy, &episodes).await?;
    let reference = match context.plan.needs_reference() {
        true => {
            let reference = artifacts::plain_policy(context, "reference").await?;
            Some(scores(context, reference, &episodes).await?)
        }
        false => None,
    };

    let values = match context.plan.config.has_critic() {
        true => Some(token_values(context, &episodes).await?),
        false => None,
    };

    let mut old = old.into_iter();
    let mut reference = reference.map(Vec::into_iter);
    let mut entries = Vec::with_capacity(episodes.len());
    for episode in episodes.iter() {
        let count = episode.sequences.len();
        let (log_probs, entropies) = old
            .by_ref()
            .take(count)
            .map(|s| (s.log_probs, s.entropies))
            .unzip();
        let reference = reference
            .as_mut()
            .map(|all| all.by_ref().take(count).map(|s| s.log_probs).collect());
        entries.push(EpisodeLogProbs {
            old: log_probs,
            entropies,
            reference,
        });
    }
    write(
        outputs,
        artifact_names::LOG_PROBS,
        "log_probs",
        &LogProbs::V1(entries),
    )
    .await?;

    if let Some(values) = &values {
        write(outputs, artifact_names::VALUES, "values", values).await?;
    }

    let tokens: usize = episodes
        .iter()
        .flat_map(|e| &e.sequences)
        .map(|s| s.token_ids.len())
        .sum();
    let passes = 1 + usize::from(context.plan.needs_reference()) + usize::from(values.is_some());
    let mut report = Report::default();
    let wall_s = start.elapsed().as_secs_f64();
    report.tokens("scored", (tokens * passes) as u64, wall_s);
    Ok(report)
}

/// The critic's values, by episode and sequence.
async fn token_values(context: &StageContext, episodes: &Arc<Vec<Episode>>) -> Result<Values> {
    let critic = artifacts::critic(context, CRITIC).await?;
    let rows = teacher_forced(context, episodes, move |requests, options| {
        values(&critic, requests, options)
    });
    let mut rows = rows.await?.into_iter();
    let by_episode = episodes
        .iter()
        .map(|e| rows.by_ref().take(e.sequences.len()).collect());
    Ok(Values::V1(by_episode.collect()))
}

fn requests(episodes: &[Episode]) -> Vec<ScoreRequest<'_>> {
    episodes
        .iter()
        .flat_map(|e| &e.sequences)
        .map(|s| ScoreRequest {
            token_ids: &s.token_ids,
            loss_mask: &s.loss_mask,
        })
        .collect()
}

/// Log-probs and entropies under a policy.
async fn scores(
    context: &StageContext,
    policy: Arc<Policy>,
    episodes: &Arc<Vec<Episode>>,
) -> Result<Vec<Scores>> {
    let temperature = context.plan.config.actor_rollout_ref.rollout.temperature;
    teacher_forced(context, episodes, move |requests, options| {
        score(&policy, requests, temperature, options)
    })
    .await
}

/// Runs `ask` on the sampled sequences: one result per sequence, in the order of episodes and
/// sequences.
async fn teacher_forced<T: Send + 'static>(
    context: &StageContext,
    episodes: &Arc<Vec<Episode>>,
    ask: impl FnOnce(&[ScoreRequest<'_>], &ComputeOptions<'_>) -> agentgym_model::Result<Vec<T>>
    + Send
    + 'static,
) -> Result<Vec<T>> {
    let (threads, pack_tokens) = (
        context.resources.threads,
        context.plan.config.jobs.pack_tokens,
    );
    let (beat, episodes) = (context.beat.clone(), Arc::clone(episodes));
    let rows = blocking(move || {
        let tick = || beat.tick();
        let options = ComputeOptions {
            threads,
            pack_tokens,
            beat: &tick,
            ..Default::default()
        };
        let _call = beat.busy();
        Ok(ask(&requests(&episodes), &options)?)
    })
    .await?;
    if context.cancel.is_cancelled() {
        return Err(Error::Cancelled);
    }
    Ok(rows)
}
