//! `evaluate`, `evaluate_init`: plays every held-out task of one set, `evaluation.samples` times at
//! `evaluation.temperature` and once greedily, and writes the episodes, a line per task, and the
//! metrics of the set and of each of its categories. No training stage waits for it.

mod items;

use super::play;
use crate::episode::Request;
use crate::metrics;
use crate::{Error, Report, Result, StageContext};
use agentgym_jobs::artifact_names;
use agentgym_jobs::config::EvaluationSet;
use agentgym_jobs::episode::{Episode, Task};
use agentgym_jobs::pipeline::{PartId, Stage};
use agentgym_jobs::plan::Plan;
use agentgym_jobs::random::{Purpose, StreamKey};
use agentgym_model::Sampling;
use agentgym_record::figures::{mean, summary};
use agentgym_record::metrics::EvaluationMetrics;
use agentgym_storage::Outputs;
use bytes::Bytes;

pub(super) async fn run(context: &mut StageContext, outputs: &mut Outputs) -> Result<Report> {
    let id = context.part.id;
    let plan = std::sync::Arc::clone(&context.plan);
    let set = plan
        .config
        .evaluation
        .sets
        .get(id.part as usize)
        .ok_or_else(|| {
            Error::stage(format!(
                "evaluation.sets has no set {}; it was planned by another program version",
                id.part
            ))
        })?;
    let requests = requests(&plan, set, id)?;
    let rules = play::rules(context, plan.config.evaluation.max_rounds);
    let (episodes, report) = play::all(context, requests, rules).await?;
    let items = items::of(&plan, set, id.part, &episodes)?;
    let metrics = summarise(&plan, set, &episodes, &items)?;
    metrics::write(outputs, &metrics).await?;
    let lines = items::to_jsonl(&items);
    outputs
        .bytes(artifact_names::ITEMS, "items", Bytes::from(lines))
        .await?;
    play::write(outputs, artifact_names::EPISODES, episodes).await?;
    Ok(report)
}

/// The episodes of a part: a pure function of the plan.
pub(super) fn requests(plan: &Plan, set: &EvaluationSet, id: PartId) -> Result<Vec<Request>> {
    let PartId {
        iteration,
        stage,
        part,
    } = id;
    let evaluation = &plan.config.evaluation;
    let rollout = &plan.config.actor_rollout_ref.rollout;
    let ids = set.ids.resolve(&format!("evaluation.sets[{part}].ids"))?;
    let greedy = evaluation.greedy_beside();
    let mut requests = Vec::with_capacity(ids.len() * (evaluation.samples + greedy) as usize);
    for (index, item_id) in ids.into_iter().enumerate() {
        for sample in 0..evaluation.samples + greedy {
            let stream = StreamKey {
                seed: plan.config.run.seed,
                // Both stages may evaluate iteration 0.
                purpose: match stage {
                    Stage::EvaluateInit => Purpose::EvaluateInit,
                    _ => Purpose::Evaluate,
                },
                iteration,
                draw: u64::from(part) << 32 | index as u64,
                sample,
            };
            requests.push(Request {
                task: Task {
                    env: set.env.clone(),
                    item_id,
                },
                group: index as u32,
                sample,
                stream: stream.stream(),
                sampling: Sampling {
                    temperature: match evaluation.temperature {
                        0.0 => 1.0,
                        temperature => temperature,
                    },
                    top_k: usize::try_from(rollout.top_k).unwrap_or(0),
                    top_p: rollout.top_p,
                    greedy: sample == evaluation.samples || evaluation.temperature == 0.0,
                },
            });
        }
    }
    Ok(requests)
}

fn summarise(
    plan: &Plan,
    set: &EvaluationSet,
    episodes: &[Episode],
    items: &[items::Item],
) -> Result<EvaluationMetrics> {
    let evaluation = &plan.config.evaluation;
    let (greedy, sampled): (Vec<&Episode>, Vec<&Episode>) = episodes
        .iter()
        .partition(|e| e.sample == evaluation.samples);
    let by_task: Vec<f64> = sampled
        .chunk_by(|a, b| a.group == b.group)
        .filter_map(|group| {
            let solved: Vec<f64> = group
                .iter()
                .filter(|e| e.usable())
                .map(|e| f64::from(u8::from(e.success)))
                .collect();
            (!solved.is_empty()).then(|| mean(solved))
        })
        .collect();
    let success = mean(by_task.iter().copied());
    let tasks = by_task.len() as f64;
    let squares: f64 = by_task.iter().map(|s| (s - success).powi(2)).sum();
    let stderr = if tasks > 1.0 {
        (squares / (tasks - 1.0) / tasks).sqrt()
    } else {
        0.0
    };
    let solved_greedily = greedy
        .iter()
        .filter(|e| e.usable())
        .map(|e| f64::from(u8::from(e.success)));
    let sampled = summary(&sampled);
    let ks = evaluation.ks();
    Ok(EvaluationMetrics {
        score: items::score(items, &ks, None)?,
        categories: items::by_category(items, set, &ks)?,
        set: set.name.clone(),
        env: set.env.clone(),
        tasks: by_task.len(),
        success,
        stderr,
        success_greedy: (plan.config.evaluation.greedy_beside() > 0).then(|| mean(solved_greedily)),
        episodes: episodes.len(),
        reward: sampled.reward,
        rounds_mean: sampled.rounds_mean,
        horizon: evaluation.max_rounds,
        faults: episodes.iter().filter(|e| !e.usable()).count(),
        sampled,
    })
}
