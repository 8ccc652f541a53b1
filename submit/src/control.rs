//! `cancel` and `retry`: control of workers elsewhere through a new revision of the plan, which
//! they read within seconds. No connection to a worker or the queue is needed, so both commands
//! work while either is down.

use crate::cli::Global;
use crate::runs::RunView;
use crate::{Result, run, text};
use agentgym_jobs::plan::Plan;
use agentgym_storage::Store;
use serde::Serialize;

/// The run as `cancel` or `retry` leaves it.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ControlDocument {
    run: String,
    revision: u32,
    on_hold: bool,
}

/// `cancel RUN`.
pub(crate) async fn cancel(store: &Store, name: &str, global: &Global) -> Result<()> {
    let view = RunView::open(store, name).await?;
    let finished = view.progress().await?.finished(&view.plan);
    let was_on_hold = view.plan.config.jobs.hold;
    let plan = if finished {
        view.plan
    } else {
        run::revise(
            store,
            name,
            &["jobs.hold=true".to_owned()],
            async |_| Ok(()),
        )
        .await?
    };
    let said = match (finished, was_on_hold) {
        (true, _) => format!("run {name} is finished: there is nothing to cancel"),
        (false, true) => format!("run {name} is on hold already"),
        (false, false) => format!(
            "run {name} is on hold from revision {}: no part begins, and within {} s those under way are \
             journalled or committed",
            plan.revision,
            plan.config.jobs.lease_ttl_s.div_ceil(3) + 5
        ),
    };
    tell(global, &said, (store, &plan), !finished);
    Ok(())
}

/// `retry RUN [KEY=VALUE]…`.
pub(crate) async fn retry(
    store: &Store,
    name: &str,
    overrides: &[String],
    global: &Global,
) -> Result<()> {
    let view = RunView::open(store, name).await?;
    if view.progress().await?.finished(&view.plan) {
        let said = format!("run {name} is finished: there is nothing to try again");
        tell(global, &said, (store, &view.plan), false);
        return Ok(());
    }
    run::may_play(&view).await?;
    let before = view.plan.revision;
    let plan = run::go_on(store, name, overrides, async |_| Ok(())).await?;
    let said = if plan.revision == before {
        format!(
            "run {name} has no part without attempts left, and no binding changes: nothing to do"
        )
    } else {
        format!(
            "run {name} goes on from revision {}: its workers begin within seconds",
            plan.revision
        )
    };
    tell(global, &said, (store, &plan), false);
    Ok(())
}

fn tell(global: &Global, said: &str, (store, plan): (&Store, &Plan), resumable: bool) {
    if global.json {
        text::emit_json(&ControlDocument {
            run: plan.run.to_string(),
            revision: plan.revision,
            on_hold: plan.config.jobs.hold,
        });
        return;
    }
    text::emit(said);
    if resumable {
        text::emit(&format!(
            "`agentgym-submit resume {0} --store {1}` (or `retry`, for workers elsewhere) carries on",
            plan.run,
            store.argument()
        ));
    }
}
