//! Decides, before anything is committed, whether environments left enough of what was played.
//!
//! A single item may be broken: its episodes are excluded and counted (I8). A server that fails must
//! not become a commit, since a commit is final. The two look alike in a part with one task, so a
//! part of which anything was spoiled first tries an item that works or was not played. If it works,
//! the spoiled episodes are played once more: the server may have been away for a moment.

use crate::episode::Player;
use crate::{Error, Result, StageContext};
use agentgym_jobs::episode::{Episode, Outcome};
use agentgym_jobs::pipeline::Stage;
use agentgym_jobs::plan::Plan;
use agentgym_text::without_secrets;
use std::collections::BTreeSet;

/// The config key of the limit.
const LIMIT: &str = "actor_rollout_ref.agentgym.fault_share_max";

/// Items tried before a server counts as failing: a few items of a set may be broken.
const ITEMS_TRIED: usize = 3;

/// Iterations whose tasks are looked at for such an item.
const ITERATIONS_SEARCHED: u32 = 8;

/// What became of a list of episodes.
struct Tally<'a> {
    played: usize,
    spoiled: Vec<&'a Episode>,
}

impl<'a> Tally<'a> {
    fn of(episodes: impl Iterator<Item = &'a Episode>) -> Self {
        let (mut played, mut spoiled) = (0, Vec::new());
        for episode in episodes {
            played += 1;
            // One that a reward function left out has been played.
            if episode.outcome == Outcome::EnvFault && episode.turns.is_empty() {
                spoiled.push(episode);
            }
        }
        Self { played, spoiled }
    }

    fn is_all(&self) -> bool {
        self.played > 0 && self.spoiled.len() == self.played
    }

    fn is_too_much(&self, plan: &Plan) -> bool {
        let limit = plan.config.actor_rollout_ref.agentgym.fault_share_max;
        self.is_all() || self.spoiled.len() as f64 > limit * self.played as f64
    }

    fn items(&self) -> BTreeSet<i64> {
        self.spoiled.iter().map(|e| e.task.item_id).collect()
    }

    fn first_fault(&self) -> &str {
        let mut faults = self.spoiled.iter().filter_map(|e| e.fault.as_deref());
        faults.next().unwrap_or("not recorded")
    }
}

/// True if the spoiled episodes of a part should be played once more; `again` says that they were.
///
/// # Errors
/// An environment fails, or spoiled more than the config allows.
pub(super) async fn plays_again(
    context: &StageContext,
    player: &Player,
    episodes: &[&Episode],
    again: bool,
) -> Result<bool> {
    let plan = &context.plan;
    let nothing_left = Tally::of(episodes.iter().copied()).is_all() && is_alone(context);
    let mut replay = false;
    for (name, environment) in &player.environments {
        let own = || episodes.iter().copied().filter(|e| e.task.env == *name);
        let tally = Tally::of(own());
        if tally.spoiled.is_empty() {
            continue;
        }
        let (items, spoiled, played) = (tally.items(), tally.spoiled.len(), tally.played);
        let what = format!(
            "environment `{name}` at {} spoiled {spoiled} of {played} episodes, the first so: {}",
            environment.url,
            tally.first_fault()
        );
        // An item with a usable episode works, whatever another sample of it met.
        let usable = own().filter(|e| e.usable()).map(|e| e.task.item_id);
        let others = usable.chain(drawn(plan, name).filter(|item| !items.contains(item)));
        works(player, (name, tally.first_fault()), others)
            .await
            .map_err(|why| {
                Error::Environment(format!("{what}. {why}. Nothing of this part is committed"))
            })?;
        replay = !again;
        if again && tally.is_too_much(plan) && (nothing_left || !tally.is_all() || items.len() > 1)
        {
            let (nothing, limit) = (tally.is_all() && nothing_left, limit(plan));
            return Err(Error::Environment(match nothing {
                true => format!(
                    "{what}. Other items work, but nothing else was played here, and an iteration or evaluation \
                     without an episode is not counted. Mend the item on the server. Nothing of this part is committed"
                ),
                false => format!(
                    "{what}. Other items work, but this is above {limit}. Mend the server, or raise the limit. \
                     Nothing of this part is committed"
                ),
            }));
        }
    }
    Ok(replay)
}

/// Refuses an iteration that has too little to train on, whichever parts it was spoiled in.
///
/// # Errors
/// Every episode was spoiled, or more than the config allows.
pub(super) fn refuse_iteration<'a>(
    context: &StageContext,
    episodes: impl Iterator<Item = &'a Episode>,
) -> Result<()> {
    let (plan, iteration) = (&context.plan, context.part.id.iteration);
    let exclude = &plan.config.actor_rollout_ref.rollout.exclude;
    let chosen = |e: &&Episode| !exclude.contains(&(iteration, e.group, e.sample));
    let episodes: Vec<&Episode> = episodes.filter(chosen).collect();
    let tally = Tally::of(episodes.iter().copied());
    if !tally.is_too_much(plan) {
        return refuse_empty(context, &episodes);
    }
    let fork = format!("play the iteration again with `{}`", fork(context));
    let remedy = match tally.is_all() {
        true => format!("It is not trained on. When the cause is gone, {fork}"),
        false => format!(
            "This is above {}. Raise it, or, when the cause is gone, {fork}",
            limit(plan)
        ),
    };
    Err(Error::Environment(format!(
        "{} of {} episodes of iteration {iteration} were spoiled, the first, of {}, so: {}. {remedy}",
        tally.spoiled.len(),
        tally.played,
        tally.spoiled[0].task,
        tally.first_fault()
    )))
}

/// The same for a part that holds all of its iteration or evaluation, before it is committed.
///
/// # Errors
/// No episode is usable, or more than the config allows had no room for a reply.
pub(super) fn refuse_part(context: &StageContext, episodes: &[Episode]) -> Result<()> {
    match is_alone(context) {
        true => refuse_empty(context, &episodes.iter().collect::<Vec<_>>()),
        false => Ok(()),
    }
}

/// Refuses what has too few episodes for a reason other than its environments.
fn refuse_empty(context: &StageContext, episodes: &[&Episode]) -> Result<()> {
    let limit = context
        .plan
        .config
        .actor_rollout_ref
        .rollout
        .empty_share_max;
    let id = context.part.id;
    let evaluates = matches!(id.stage, Stage::Evaluate | Stage::EvaluateInit);
    let place = match evaluates {
        true => format!("evaluation {id}"),
        false => format!("iteration {}", id.iteration),
    };
    let of = |outcome| episodes.iter().filter(move |e| e.outcome == outcome);
    let (no_room, all) = (of(Outcome::NoRoom).count(), episodes.len());
    let nothing = no_room + of(Outcome::NoTurn).count();
    let why = |outcome| {
        of(outcome)
            .find_map(|e| e.fault.as_deref())
            .unwrap_or("not recorded")
    };
    if limit > 0.0 && nothing as f64 > limit * all as f64 {
        let first = [Outcome::NoRoom, Outcome::NoTurn]
            .into_iter()
            .max_by_key(|o| of(*o).count());
        let larger = match (no_room, evaluates) {
            (0, _) => String::new(),
            (_, true) => ". A new run can have larger limits (data.max_prompt_length, actor_rollout_ref.rollout.max_model_len)".to_owned(),
            (_, false) => format!(
                ", or play on under larger limits: `{} data.max_prompt_length=N actor_rollout_ref.rollout.max_model_len=N`",
                fork(context)
            ),
        };
        return Err(Error::stage(format!(
            "{nothing} of {all} episodes of {place} have nothing to train on, {no_room} of them no room for a reply: {}. \
             This is above actor_rollout_ref.rollout.empty_share_max = {limit}. Raise it, where others are left{larger}",
            first.map_or("not recorded", why)
        )));
    }
    if all == 0 || episodes.iter().any(|e| e.usable()) {
        return Ok(());
    }
    let empty = Outcome::ALL.into_iter();
    let empty = empty.filter(|outcome| of(*outcome).count() > 0);
    let empty = empty.map(|outcome| {
        let (count, name, why) = (of(outcome).count(), outcome.name(), why(outcome));
        format!("{count} are {name} ({why})")
    });
    Err(Error::Environment(format!(
        "no episode of {place} can be used: {}. It is not counted",
        empty.collect::<Vec<_>>().join(", ")
    )))
}

/// The command that plays an iteration again.
fn fork(context: &StageContext) -> String {
    let (plan, before) = (&context.plan, context.part.id.iteration.saturating_sub(1));
    let store = without_secrets(&plan.config.storage.url);
    format!(
        "agentgym-submit fork {} --iteration {before} --store {store}",
        plan.run
    )
}

fn limit(plan: &Plan) -> String {
    let limit = plan.config.actor_rollout_ref.agentgym.fault_share_max;
    format!("{LIMIT} = {limit}")
}

/// Whether the part holds all that its iteration or evaluation counts.
fn is_alone(context: &StageContext) -> bool {
    let plan = &context.plan;
    context.part.id.stage != Stage::Rollout || plan.rollout_parts() * plan.rollout_rounds() == 1
}

/// Items of an environment in the plan, those of later iterations first.
fn drawn<'a>(plan: &'a Plan, env: &'a str) -> impl Iterator<Item = i64> + 'a {
    let drawn = (1..=ITERATIONS_SEARCHED)
        .rev()
        .flat_map(|iteration| plan.tasks.draws(iteration));
    let drawn = drawn.filter(move |task| task.env == env);
    let sets = plan.config.evaluation.sets.iter();
    let held_out = sets
        .filter(move |set| set.env == env)
        .flat_map(|set| set.ids.resolve("evaluation.sets").unwrap_or_default());
    drawn.map(|task| task.item_id).chain(held_out)
}

/// Tries items until one opens and takes a step; else what was tried, and what was found if it is not
/// the fault that is known.
async fn works(
    player: &Player,
    (env, fault): (&str, &str),
    items: impl Iterator<Item = i64>,
) -> std::result::Result<(), String> {
    let (mut tried, mut found) = (BTreeSet::new(), None);
    for item in items {
        if tried.len() == ITEMS_TRIED {
            break;
        }
        if !tried.insert(item) {
            continue;
        }
        match player.try_item(env, item).await {
            Ok(()) => return Ok(()),
            Err(why) if why == fault => found = Some(format!("Item {item} fails alike")),
            Err(why) => found = Some(format!("Item {item} fails too: {why}")),
        }
    }
    Err(found.unwrap_or_else(|| "The plan has no other item to try".to_owned()))
}
