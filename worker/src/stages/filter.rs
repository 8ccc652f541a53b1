//! `filter`: which trajectories of an exploration to train on, and where each of them came from.
//! `episodes.bin` holds what the iteration trains on, token for token as sampled; `lineage.json` gives
//! the iteration, part and episode of each row.

use super::{play, spoiled};
use crate::metrics::{self, write_json};
use crate::{Error, Report, Result, StageContext};
use agentgym_jobs::artifact_names::{self, LINEAGE};
use agentgym_jobs::episode::Episode;
use agentgym_jobs::plan::Plan;
use agentgym_jobs::trajectory::Lineage;
use agentgym_record::figures;
use agentgym_record::filter::{Pool, filter};
use agentgym_record::metrics::FilterMetrics;
use agentgym_storage::Outputs;

pub(super) async fn run(context: &mut StageContext, outputs: &mut Outputs) -> Result<Report> {
    let (plan, iteration) = (&context.plan, context.part.id.iteration);
    let beat = || context.beat.tick();
    let pool = Pool::read(plan, iteration, &context.inputs, beat).await?;
    let all: Vec<&Episode> = pool.played.iter().map(|k| &k.episode).collect();
    spoiled::refuse_iteration(context, all.iter().copied())?;
    let (episodes, success_by_env) = (figures::summary(&all), figures::success_by_env(&all));
    let mut report = Report::default();
    report.stats.turns = Some(figures::turns(&all));
    let tokens_max = plan.config.sft.max_length;
    let (kept, counts) = filter(&plan.config.agentevol, tokens_max, iteration, pool.all());
    let metrics = FilterMetrics {
        episodes,
        counts,
        success_by_env,
    };
    refuse_nothing(plan, iteration, &metrics)?;
    let (lineage, kept): (Vec<Lineage>, Vec<Episode>) =
        kept.into_iter().map(|k| (k.lineage, k.episode)).unzip();
    play::write(outputs, artifact_names::EPISODES, kept).await?;
    write_json(outputs, LINEAGE, "lineage", &lineage).await?;
    metrics::write(outputs, &metrics).await?;
    Ok(report)
}

/// If no trajectory is kept and there are no demonstrations, there is nothing to train on.
fn refuse_nothing(plan: &Plan, iteration: u32, metrics: &FilterMetrics) -> Result<()> {
    let config = &plan.config;
    let demonstrated = config.agentevol.add_original_data && !config.sft.sources.is_empty();
    if metrics.counts.kept > 0 || demonstrated {
        return Ok(());
    }
    Err(Error::stage(format!(
        "iteration {iteration} keeps no trajectory and has no demonstrations to train on: of {} episodes {} are below \
         agentevol.threshold, {} are longer than sft.max_length = {}, {} were spoiled by their environment; \
         lower the threshold, play more tasks or samples, or give sft.sources with agentevol.add_original_data",
        metrics.episodes.episodes,
        metrics.counts.below_threshold,
        metrics.counts.too_long,
        config.sft.max_length,
        metrics.episodes.env_faults
    )))
}
