//! `advantage`: all parts of an iteration → one batch by slot, with an advantage per token, the
//! targets of a critic, and the iteration's metrics.
//!
//! A slot is draw × n + sample; if groups are selected, the group's position in the selection
//! replaces the draw. A slot is empty if its episode failed because of the environment, is the only
//! one left in its group, has no baseline, or (with `algorithm.overlong: mask`) ran out of rounds
//! or tokens. No other slot moves, so every minibatch keeps its members (I8).

mod credit;
mod differences;
mod explained;
mod scored;
mod summary;
mod words;

use super::artifacts::{read, write};
use super::spoiled;
use crate::metrics::{self, write_json};
use crate::rewards::Rewards;
use crate::{Error, Report, Result, StageContext};
use agentgym_jobs::artifact_names;
use agentgym_jobs::curriculum::Curriculum;
use agentgym_jobs::episode::{Episode, Episodes};
use agentgym_jobs::records::{LogProbs, Values};
use agentgym_record::documents::{self, KlState, Selection};
use agentgym_storage::Outputs;
use credit::Credit;
#[cfg(test)]
pub(super) use credit::scramble_key;
pub(super) use credit::{Given, behaviour, compared, is_masked};
pub use differences::Difference;
pub use explained::{
    EpisodeCredit, EpisodeLine, Importance, KlShare, Member, MinibatchPlace, PlayedIteration,
    PlayedPart,
};
use scored::join;
use std::collections::BTreeMap;

pub(super) async fn run(context: &mut StageContext, outputs: &mut Outputs) -> Result<Report> {
    let plan = &context.plan;
    let rewards = Rewards::of(plan)?;
    let (mut all, mut baselines) = (Vec::new(), BTreeMap::new());
    for part in 0..plan.rollout_parts() * plan.rollout_rounds() {
        let (rollout, log_probs) = (format!("rollout.{part}"), format!("log_probs.{part}"));
        let inputs = &context.inputs;
        let episodes = read::<Episodes>(inputs, &rollout, artifact_names::EPISODES)
            .await?
            .into_vec();
        let LogProbs::V1(streams) = read(inputs, &log_probs, artifact_names::LOG_PROBS).await?;
        let values = match plan.config.has_critic() {
            true => {
                let Values::V1(values) = read(inputs, &log_probs, artifact_names::VALUES).await?;
                Some(values)
            }
            false => None,
        };
        if plan.config.algorithm.adv_estimator.needs_baseline() {
            let greedy = read::<Episodes>(inputs, &rollout, artifact_names::BASELINES).await?;
            let usable = greedy.into_vec().into_iter().filter(Episode::usable);
            baselines.extend(usable.map(|e| (e.group, rewards.score(&e))));
        }
        all.extend(join(part, episodes, streams, values)?);
        context.beat.tick();
    }
    all.sort_by_key(|s| (s.episode.group, s.episode.sample));

    spoiled::refuse_iteration(context, all.iter().map(|s| &s.episode))?;
    let iteration = context.part.id.iteration;
    let selected = match plan.selects() {
        true => {
            let selection: Selection = documents::read(&context.inputs, "select").await?;
            Some(selection.groups)
        }
        false => None,
    };
    let given = Given {
        iteration,
        baselines,
        kl_coef: kl_coef(context).await?,
        selected,
    };
    let credit = Credit::assign(plan, &all, &given)?;
    let mut metrics = summary::summarise(plan, iteration, &all, &given, &credit)?;
    write(outputs, artifact_names::BATCH, "batch", &credit.batch).await?;
    if let Some(targets) = &credit.targets {
        write(outputs, artifact_names::TARGETS, "targets", targets).await?;
    }
    if let Some(state) = &credit.kl {
        write_json(outputs, artifact_names::KL, "kl", state).await?;
    }
    if plan.has_curriculum() {
        let state = next_sources(context, all.iter().map(|s| &s.episode)).await?;
        write_json(outputs, artifact_names::CURRICULUM, "curriculum", &state).await?;
        metrics.sources_entered = Some(state.entered);
    }
    metrics::write(outputs, &metrics).await?;
    let mut report = Report::default();
    let episodes: Vec<&Episode> = all.iter().map(|scored| &scored.episode).collect();
    metrics::report_turns(&episodes, &mut report);
    Ok(report)
}

/// Another input of `advantage`: the iteration before.
const BEFORE: &str = "before";

/// The state of the curriculum under which this iteration's tasks are drawn.
pub(super) async fn curriculum(context: &StageContext) -> Result<Curriculum> {
    sources_of(context, "curriculum").await
}

/// The state that an input recorded, or the first one.
async fn sources_of(context: &StageContext, input: &str) -> Result<Curriculum> {
    let sources = context.plan.config.data.tasks.len();
    if !context.part.inputs.iter().any(|known| known.name == input) {
        return Ok(Curriculum::start(sources));
    }
    let state: Curriculum = documents::read(&context.inputs, input).await?;
    match state.recent.len() == sources {
        true => Ok(state),
        false => Err(Error::stage(format!(
            "curriculum.json of an iteration before is of {} sources, and data.tasks has {sources}",
            state.recent.len()
        ))),
    }
}

/// The state of the curriculum after this iteration's episodes.
async fn next_sources(
    context: &StageContext,
    episodes: impl Iterator<Item = &Episode>,
) -> Result<Curriculum> {
    let plan = &context.plan;
    let pattern = plan.tasks.pattern(curriculum(context).await?.entered);
    let source = |episode: &Episode| pattern[episode.group as usize % pattern.len()];
    let played = episodes
        .filter(|episode| episode.usable())
        .map(|episode| (source(episode), episode.success));
    let before = sources_of(context, BEFORE).await?;
    Ok(before.next(&plan.config.data.curriculum, played))
}

/// The coefficient of the KL penalty in this iteration's rewards: the one that the previous
/// iteration recorded, or the initial one.
async fn kl_coef(context: &StageContext) -> Result<Option<f64>> {
    let Some(controller) = context.plan.config.kl_controller()? else {
        return Ok(None);
    };
    if !context.part.inputs.iter().any(|input| input.name == BEFORE) {
        return Ok(Some(controller.initial()));
    }
    let state: KlState = documents::read(&context.inputs, BEFORE).await?;
    Ok(Some(state.next_kl_coef))
}

#[cfg(test)]
mod tests;
