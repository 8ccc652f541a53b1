//! What an episode's environment looked like at each turn: its recorded actions are played again in
//! a game of this program, and shown only if every answer is the recorded one.

use super::episode::one;
use super::known::Known;
use crate::{Error, Result};
use agentgym_games::{PlayedTask, Scenes, scenes as play_again};
use agentgym_jobs::episode::Episode;
use agentgym_jobs::pipeline::PartId;
use agentgym_jobs::plan::Plan;
use serde::Serialize;

/// The pictures of an episode, or why there are none.
#[derive(Debug, Serialize)]
pub(crate) struct ScenesPage {
    run: String,
    part: String,
    k: u32,
    scenes: Option<Scenes>,
    why: Option<String>,
}

pub(super) async fn scenes(known: &Known, id: PartId, k: u32) -> Result<ScenesPage> {
    let plan = known.plan().await;
    let (_, _, e) = one(known, id, k).await?;
    let run = plan.run.to_string();
    // Files may have to be read, and some games take long to set up.
    let drawn = tokio::task::spawn_blocking(move || drawn(&plan, &e)).await;
    let drawn = drawn.map_err(|e| Error::Usage(format!("the game that was played again: {e}")))?;
    let (scenes, why) = match drawn {
        Ok(scenes) => (Some(scenes), None),
        Err(why) => (None, Some(why)),
    };
    Ok(ScenesPage {
        run,
        part: id.to_string(),
        k,
        scenes,
        why,
    })
}

fn drawn(plan: &Plan, e: &Episode) -> Result<Scenes, String> {
    plan.config.check_rules().map_err(|e| e.to_string())?;
    let environments = plan.config.environments();
    let declared = environments
        .get(&e.task.env)
        .ok_or_else(|| format!("the plan has no environment {}", e.task.env))?;
    let turns = e.turns.iter();
    let played = PlayedTask {
        item_id: e.task.item_id,
        prompt: &e.prompt,
        turns: turns
            .map(|turn| (turn.action.as_deref(), turn.observation.as_str()))
            .collect(),
    };
    play_again(&declared.task_name, &declared.env_addr, &played)
}
