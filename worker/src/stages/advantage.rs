//! `advantage`: all parts of an iteration → one batch by slot, with an advantage per token, the
//! targets of a critic, and the iteration's metrics.
//!
//! A slot is draw × n + sample; if groups are selected, the group's position in the selection
//! replaces the draw. A slot is empty if its episode failed because of the environment, is the only
//! one left in its group, has no baseline, or (with `algorithm.overlong: mask`) ran out of rounds
//! or tokens. No other slot moves, so every minibatch keeps its members (I8).

use super::artifacts::write;
use super::spoiled;
use crate::metrics::{self, write_json};
use crate::{Error, Report, Result, StageContext};
use agentgym_jobs::artifact_names;
use agentgym_jobs::curriculum::Curriculum;
use agentgym_jobs::episode::Episode;
use agentgym_record::credit::{Credit, summarise};
use agentgym_record::iteration::{BEFORE, Iteration};
use agentgym_record::{documents, figures};
use agentgym_storage::Outputs;

pub(super) async fn run(context: &mut StageContext, outputs: &mut Outputs) -> Result<Report> {
    let (plan, number) = (&context.plan, context.part.id.iteration);
    let beat = || context.beat.tick();
    let iteration = Iteration::read(plan, number, &context.inputs, beat).await?;
    let episodes: Vec<&Episode> = iteration.episodes.iter().map(|s| &s.episode).collect();
    spoiled::refuse_iteration(context, episodes.iter().copied())?;
    let credit = Credit::assign(plan, &iteration.episodes, &iteration.given)?;
    let mut metrics = summarise(plan, &iteration, &credit)?;
    write(outputs, artifact_names::BATCH, "batch", &credit.batch).await?;
    if let Some(targets) = &credit.targets {
        write(outputs, artifact_names::TARGETS, "targets", targets).await?;
    }
    if let Some(state) = &credit.kl {
        write_json(outputs, artifact_names::KL, "kl", state).await?;
    }
    if plan.has_curriculum() {
        let state = next_sources(context, episodes.iter().copied()).await?;
        write_json(outputs, artifact_names::CURRICULUM, "curriculum", &state).await?;
        metrics.sources_entered = Some(state.entered);
    }
    metrics::write(outputs, &metrics).await?;
    let mut report = Report::default();
    report.stats.turns = Some(figures::turns(&episodes));
    Ok(report)
}

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
