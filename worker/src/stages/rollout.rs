//! `rollout`: plays the tasks that a part draws, each `rollout.n` times, with
//! the policy it is given, and writes `episodes.bin`.

use super::{play, write};
use crate::episode::Request;
use crate::{Report, Result, StageContext};
use agentgym_jobs::plan::Plan;
use agentgym_jobs::random::{Purpose, StreamKey};
use agentgym_model::Sampling;
use agentgym_storage::Outputs;

pub(super) async fn run(context: &mut StageContext, outputs: &mut Outputs) -> Result<Report> {
    let id = context.part.id;
    let requests = requests(&context.plan, id.iteration, id.part);
    let rules = play::rules(context, context.plan.rounds_max(id.iteration));
    let (episodes, report) = play::all(context, requests, rules).await?;
    write(
        outputs,
        "episodes.bin",
        "episodes",
        &play::checked(episodes)?,
    )
    .await?;
    Ok(report)
}

/// The episodes of a part: a pure function of the plan.
fn requests(plan: &Plan, iteration: u32, part: u32) -> Vec<Request> {
    let rollout = &plan.config.actor_rollout_ref.rollout;
    let sampling = Sampling {
        temperature: rollout.temperature,
        top_k: usize::try_from(rollout.top_k).unwrap_or(0),
        top_p: rollout.top_p,
        greedy: false,
    };
    let tasks = plan.tasks.draws(iteration);
    plan.rollout_draws(part)
        .flat_map(|draw| (0..rollout.n).map(move |sample| (draw, sample)))
        .map(|(draw, sample)| Request {
            task: tasks[draw].clone(),
            group: draw as u32,
            sample,
            stream: StreamKey {
                seed: plan.config.run.seed,
                purpose: Purpose::Rollout,
                iteration,
                draw: draw as u64,
                sample,
            }
            .stream(),
            sampling,
        })
        .collect()
}
