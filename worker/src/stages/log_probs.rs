//! `log_probs`: the log-probs and entropies of the samples of a rollout part under the policy at the
//! start of the update and, if a KL term needs it, under the reference policy. Writes
//! `log_probs.bin`, one entry per episode; with a critic also `values.bin`, the critic's value of
//! every sampled token.
//!
//! All of it is scored by teacher forcing. Where the sampler was that policy, in the run's numeric
//! class and without a cut, scoring gives what the rollout recorded, bit for bit; then it is taken
//! from there, and a share of the parts (`algorithm.verify_log_probs`) is scored as a check. What
//! was checked stands in the attempt's stats alone, so that the artifacts do not depend on the
//! share.

use super::artifacts::{self, read, write};
use crate::blocking::blocking;
use crate::policies::{CRITIC, POLICY};
use crate::{Error, Report, Result, StageContext};
use agentgym_jobs::artifact_names;
use agentgym_jobs::episode::{Episode, Episodes, Sequence};
use agentgym_jobs::pipeline::PartId;
use agentgym_jobs::records::{EpisodeLogProbs, LogProbs, Values};
use agentgym_model::{ComputeOptions, Policy, ScoreRequest, Scores, score, values};
use agentgym_storage::{Outputs, RunId};
use std::sync::Arc;
use std::time::Instant;

pub(super) async fn run(context: &mut StageContext, outputs: &mut Outputs) -> Result<Report> {
    let start = Instant::now();
    let (plan, id) = (Arc::clone(&context.plan), context.part.id);
    let episodes: Arc<Vec<Episode>> = Arc::new(
        read::<Episodes>(&context.inputs, "rollout", artifact_names::EPISODES)
            .await?
            .into_vec(),
    );
    let mut report = Report::default();
    let scored = match plan.scores_again(id.iteration, id.part) {
        true => {
            let policy = artifacts::policy(context, POLICY).await?;
            Some(scores(context, policy, &episodes).await?)
        }
        false => None,
    };
    let mut passes = usize::from(scored.is_some());
    let old = match scored {
        Some(scored) if plan.samples_are_scores() => {
            check(&episodes, &scored, &plan.run, id)?;
            // A part with a difference is never committed.
            report.stats.log_prob_mismatch_max = Some(0.0);
            scored
        }
        Some(scored) => scored,
        None => recorded(&episodes)?,
    };
    let reference = match plan.needs_reference() {
        true => {
            passes += 1;
            let reference = artifacts::plain_policy(context, "reference").await?;
            Some(scores(context, reference, &episodes).await?)
        }
        false => None,
    };
    if plan.config.has_critic() {
        passes += 1;
        let values = token_values(context, &episodes).await?;
        write(outputs, artifact_names::VALUES, "values", &values).await?;
    }

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

    let tokens: usize = sequences(&episodes)
        .map(|(_, _, s)| s.token_ids.len())
        .sum();
    let wall_s = start.elapsed().as_secs_f64();
    report.stats.scored((tokens * passes) as u64, wall_s);
    Ok(report)
}

/// Every sequence with its episode and its number there.
fn sequences(episodes: &[Episode]) -> impl Iterator<Item = (&Episode, usize, &Sequence)> {
    episodes.iter().flat_map(|episode| {
        let own = episode.sequences.iter().enumerate();
        own.map(move |(number, sequence)| (episode, number, sequence))
    })
}

/// What the rollout recorded, as scoring gives it.
fn recorded(episodes: &[Episode]) -> Result<Vec<Scores>> {
    sequences(episodes)
        .map(|(episode, _, sequence)| {
            let entropies = sequence.entropies.clone().ok_or_else(|| {
                Error::stage(format!(
                    "{}: its rollout recorded no entropies, which the plan says that it does",
                    episode.task
                ))
            })?;
            Ok(Scores {
                log_probs: sequence.sampled_log_probs.clone(),
                entropies,
            })
        })
        .collect()
}

/// Compares what the policy before this part's iteration sampled with its scores, bit for bit.
///
/// # Errors
/// [`Error::Unequal`], for the first token with a difference.
fn check(episodes: &[Episode], scored: &[Scores], run: &RunId, part: PartId) -> Result<()> {
    let policy = part.iteration - 1;
    let recorded = recorded(episodes)?;
    let rows = sequences(episodes).zip(recorded.iter().zip(scored));
    for ((episode, number, _), (recorded, scored)) in rows {
        let streams = [
            ("log-prob", &recorded.log_probs, &scored.log_probs),
            ("entropy", &recorded.entropies, &scored.entropies),
        ];
        for (name, recorded, scored) in streams {
            let mut pairs = recorded.iter().zip(scored);
            let Some(token) = pairs.position(|(a, b)| a.to_bits() != b.to_bits()) else {
                continue;
            };
            return Err(Error::Unequal {
                place: format!(
                    "token {token} of sequence {number} of {} sample {}, sampled by the policy of iteration {policy}",
                    episode.task, episode.sample
                ),
                recorded: format!("a {name} of {}", recorded[token]),
                scored: scored[token].to_string(),
                rollout: format!("{run} {} rollout {}", part.iteration, part.part),
                fork: format!("{run} --iteration {policy}"),
            });
        }
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stages::testing::episode;
    use agentgym_jobs::episode::Outcome;
    use agentgym_jobs::pipeline::Stage;

    #[test]
    fn the_first_difference_is_named_and_ends_the_run() {
        let mut episodes = vec![
            episode(0, 0, Outcome::Solved, 1.0),
            episode(0, 1, Outcome::Failed, 0.0),
        ];
        let task = episodes[1].task.to_string();
        for episode in &mut episodes {
            let sequence = &mut episode.sequences[0];
            sequence.entropies = Some(sequence.sampled_log_probs.iter().map(|p| -p).collect());
        }
        let equal = recorded(&episodes).unwrap();
        let part = PartId {
            iteration: 7,
            stage: Stage::LogProbs,
            part: 2,
        };
        let run = "a-run".parse().unwrap();
        check(&episodes, &equal, &run, part).unwrap();
        let change = |change: fn(&mut Scores)| {
            let mut scored = equal.clone();
            change(&mut scored[1]);
            check(&episodes, &scored, &run, part).unwrap_err()
        };
        for (name, error) in [
            ("log-prob", change(|s| s.log_probs[3] = -0.500_000_06)),
            ("entropy", change(|s| s.entropies[3] = 0.500_000_06)),
        ] {
            assert!(error.is_for_good());
            let text = error.to_string();
            for word in [
                "token 3 of",
                &task,
                "sample 1",
                "iteration 6",
                "inspect a-run 7 rollout 2`",
                "fork a-run --iteration 6`",
                name,
                "0.50000006",
            ] {
                assert!(text.contains(word), "{word}: {text}");
            }
        }
        episodes[0].sequences[0].entropies = None;
        assert!(recorded(&episodes).is_err());
    }
}
