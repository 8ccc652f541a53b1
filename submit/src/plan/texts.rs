//! Lines of the `plan` screen that depend on the plan alone.

use crate::plan::sizes::steps_per_iteration;
use crate::text::{count, many};
use agentgym_envs::builtin;
use agentgym_jobs::config::Pipeline;
use agentgym_jobs::plan::Plan;
use agentgym_model::{Chat, ForeignPolicy, TinyShape, tiny_text};
use agentgym_text::without_secrets;
use agentgym_worker::{model_folder, template_settings};

/// The number of an iteration's tasks per environment, and where it runs.
pub(crate) fn tasks_text(plan: &Plan) -> String {
    let environments = plan.config.environments();
    let told = plan.tasks.shares().into_iter().map(|(name, count)| {
        let Some(environment) = environments.get(name) else {
            return format!("{count} of {name}");
        };
        let limits = [
            (environment.max_rounds).map(|n| format!(", ≤ {}", many(n.into(), "round"))),
            (environment.max_tokens).map(|n| format!(", turn ≤ {n}")),
        ];
        let limits: String = limits.into_iter().flatten().collect();
        format!(
            "{count} of {name} at {}{limits}",
            without_secrets(&environment.env_addr)
        )
    });
    told.collect::<Vec<_>>().join(", ")
}

/// Which API plays the evaluations, and what is not known of its answers.
pub(crate) fn chat_text(plan: &Plan) -> String {
    let actor = &plan.config.actor_rollout_ref;
    let server = &actor.rollout.server;
    let price = match server.price_input.zip(server.price_output) {
        None => "no price given".to_owned(),
        Some((input, output)) => {
            format!("{input} per million tokens in, {output} per million out")
        }
    };
    format!(
        "{} of the chat API at {}, ≤ {} at once; {price}; its texts are recorded as ids of {}, without log-probs",
        server.model.as_deref().unwrap_or_default(),
        without_secrets(server.url.as_deref().unwrap_or_default()),
        many(server.concurrent as u64, "request"),
        actor.model.path,
    )
}

/// What the chat template is told beside the conversation, if the model's folder is at hand.
pub(crate) fn template_text(plan: &Plan) -> Option<String> {
    let path = &plan.config.actor_rollout_ref.model.path;
    let chat = match TinyShape::preset(path).ok()? {
        Some(shape) => tiny_text::chat(shape.template),
        None => Chat::load(&model_folder(path).ok()?).ok()??,
    };
    Some(match chat.with_settings(&template_settings(plan)) {
        Ok(chat) => chat.told()?,
        Err(why) => why.to_string(),
    })
}

/// What candle evaluates.
pub(crate) fn candle_text(plan: &Plan) -> String {
    let path = &plan.config.actor_rollout_ref.model.path;
    let found = model_folder(path).and_then(|folder| {
        ForeignPolicy::check(&folder, plan.context_tokens()).map_err(|e| e.to_string())
    });
    match found {
        Ok((found, _)) => {
            let parameters = count(found.parameters);
            let file = if found.gguf { " in a GGUF file" } else { "" };
            format!(
                "{path}, {}{file}, {parameters} parameters, by candle on the processor",
                found.family
            )
        }
        Err(why) => format!("{path}: {why}"),
    }
}

/// Which server generates, and what is done about its numbers.
pub(crate) fn engine_text(plan: &Plan) -> String {
    let config = &plan.config;
    let server = &config.actor_rollout_ref.rollout.server;
    let correction = &config.algorithm.rollout_correction.rollout_is;
    format!(
        "rollouts by the {} server at {}, whose policy is probed; tokens weighed ({}), paused beyond a \
         difference of {} nats; evaluations by our own engine",
        server.dialect.map_or("unknown", |dialect| dialect.name()),
        without_secrets(server.url.as_deref().unwrap_or_default()),
        correction
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default(),
        config.guard.mismatch_max.unwrap_or(f64::INFINITY),
    )
}

/// The optimizer steps of an iteration.
pub(crate) fn steps_text(plan: &Plan) -> String {
    let config = &plan.config;
    let iterations = u64::from(plan.iterations);
    let steps = steps_per_iteration(plan);
    let all = count(steps * iterations);
    let iterations = many(iterations, "iteration");
    if config.run.pipeline == Pipeline::AgentEvol {
        let (evol, size) = (&config.agentevol, config.sft.batch_size);
        let beside = match (evol.add_original_data, evol.share) {
            (false, _) => "kept alone".to_owned(),
            (true, None) => "kept beside the demonstrations".to_owned(),
            (true, Some(share)) => format!("{:.0} % kept", 100.0 * share),
        };
        return format!(
            "{steps} optimizer steps × {size} conversations from the base, {beside}; × {iterations} = {all}, lr {:e}",
            config.sft.lr
        );
    }
    let actor = &config.actor_rollout_ref.actor;
    format!(
        "{} × {} = {steps} optimizer steps; × {iterations} = {all}, lr {:e}",
        many(u64::from(plan.minibatches()), "minibatch"),
        many(u64::from(actor.ppo_epochs), "epoch"),
        actor.optim.lr
    )
}

/// The amount of supervised training on demonstrations, and the held-out share.
pub(crate) fn sft_text(plan: &Plan) -> String {
    let sft = &plan.config.sft;
    let (steps, size) = (sft.steps_planned(), sft.batch_size);
    let mut text = match sft.epochs {
        None => format!(
            "{steps} optimizer steps × {size} conversations = {}",
            count(u64::from(steps) * size as u64)
        ),
        Some(epochs) => format!(
            "{} over ≤ {} conversations, {size} to a step: ≤ {} optimizer steps",
            many(epochs.into(), "epoch"),
            count(sft.rows_of_an_epoch() as u64),
            count(steps.into())
        ),
    };
    text += &format!(", lr {:e}, in {} parts", sft.lr, plan.sft_parts(0));
    if sft.validation_share > 0.0 {
        text += &format!("; {:.1} % held out", 100.0 * sft.validation_share);
    } else if sft.validates() {
        text += "; validated on rows of their own";
    }
    text
}

/// The first few and the last of many texts, with `…` for the others.
pub(crate) fn some_of(
    texts: impl DoubleEndedIterator<Item = String> + ExactSizeIterator,
) -> String {
    const NAMED_MAX: usize = 8;
    let mut texts = texts;
    if texts.len() <= NAMED_MAX {
        return texts.collect::<Vec<_>>().join(", ");
    }
    let last = texts.next_back().unwrap_or_default();
    let first: Vec<String> = texts.take(NAMED_MAX - 2).collect();
    format!("{}, … {last}", first.join(", "))
}

/// `1–100: 4 rounds, 101–200: 6 rounds`: ranges of equal horizon.
pub(crate) fn horizons(plan: &Plan) -> String {
    let mut runs: Vec<(u32, u32, u32)> = Vec::new();
    for n in 1..=plan.iterations {
        let rounds = plan.rounds_max(n);
        match runs.last_mut() {
            Some((_, last, same)) if *same == rounds => *last = n,
            _ => runs.push((n, n, rounds)),
        }
    }
    let texts = runs
        .iter()
        .map(|(first, last, rounds)| format!("{first}–{last}: {rounds}"));
    format!("rounds by iteration {}", some_of(texts))
}

/// How many concurrent sessions the environments must support; empty if all are built in and
/// unlimited, because their sessions are small.
pub(crate) fn sessions_text(plan: &Plan) -> String {
    let config = &plan.config;
    let (max, workers) = (
        config.actor_rollout_ref.agentgym.sessions_max,
        config.jobs.workers as u64,
    );
    let environments = config.environments();
    let told = environments.iter().filter_map(|(name, environment)| {
        let address = &environment.env_addr;
        if let Ok(server) = builtin::parse(address) {
            let (max, own) = (max?, count(server.options.sessions_max as u64));
            return Some(format!(
                "{name}: ≤ {max} in each worker's own server, which takes {own}"
            ));
        }
        let address = without_secrets(address);
        Some(match max {
            Some(max) => format!(
                "{name}: ≤ {max} × {} = {} open at once at {address}",
                many(workers, "worker"),
                count((max as u64).saturating_mul(workers))
            ),
            None => format!(
                "{name}: one for each episode that a worker plays, × {}, at {address}; agentgym.sessions_max limits it",
                many(workers, "worker")
            ),
        })
    });
    told.collect::<Vec<_>>().join("; ")
}
