//! Checks what a run reads from this machine before anything is written or started: models,
//! training files, addresses of built-in environments. An existing run has already read them and
//! can resume on a machine without them.

use crate::plan::device::{self, Gpu};
use crate::plan::memory;
use crate::plan::model_size;
use crate::{Error, Result, text};
use agentgym_envs::builtin;
use agentgym_jobs::config::{History, Pipeline};
use agentgym_jobs::files::{self, TRAJECTORIES_BYTES_MAX};
use agentgym_jobs::plan::{InitRole, Plan};
use agentgym_model::{Chat, ForeignPolicy, Policy, TinyShape, Tokenizer, tiny_text};
use agentgym_worker::{model_folder, offering, template_settings};
use std::path::{Path, PathBuf};

/// For `run` and `plan`: checks everything that the workers of this process will read.
///
/// # Errors
/// The first key whose model or file is missing or cannot be used.
pub(crate) fn check(plan: &Plan, config: &Path, gpu: Option<Gpu>) -> Result<()> {
    named(plan)?;
    match plan.config.jobs.workers {
        0 => Ok(()),
        _ => models(plan, config, gpu),
    }
}

/// Checks what the config names in addition to models.
fn named(plan: &Plan) -> Result<()> {
    training_files(plan)?;
    addresses(plan)?;
    styles(plan)
}

/// Checks the addresses of built-in environments, which start inside the workers.
fn addresses(plan: &Plan) -> Result<()> {
    for (name, environment) in plan.config.environments() {
        if !builtin::is_builtin(&environment.env_addr) {
            continue;
        }
        let gym = &plan.config.actor_rollout_ref.agentgym;
        let key = match gym.envs.contains_key(&name) {
            true => format!("actor_rollout_ref.agentgym.envs.{name}.env_addr"),
            false => "actor_rollout_ref.agentgym.env_addr".to_owned(),
        };
        let said = |why: String| Error::Usage(format!("key `{key}`: {why}"));
        let address = builtin::parse(&environment.env_addr).map_err(|e| said(e.to_string()))?;
        let (played, named) = (address.source.env(), &environment.task_name);
        if played != named {
            return Err(said(format!(
                "{:?} serves {played}, but task_name is {named}; name one environment in both",
                environment.env_addr
            )));
        }
        if plan.config.jobs.workers > 0 {
            let found = address.source.check_files();
            found.map_err(|e| said(e.to_string()))?;
        }
    }
    Ok(())
}

/// Checks the styles in which solvers express their solutions.
fn styles(plan: &Plan) -> Result<()> {
    let environments = plan.config.environments();
    for (index, source) in plan.config.sft.sources.iter().enumerate() {
        let env = source.env.as_ref().and_then(|env| environments.get(env));
        let (Some(env), Some(style)) = (env, &source.style) else {
            continue;
        };
        if builtin::is_builtin(&env.env_addr) {
            builtin::parse(&env.env_addr)
                .and_then(|address| address.source.check_style(style))
                .map_err(|e| Error::Usage(format!("key `sft.sources[{index}].style`: {e}")))?;
        }
    }
    Ok(())
}

/// Checks the files that `init` copies or makes pairs of.
fn training_files(plan: &Plan) -> Result<()> {
    let config = &plan.config;
    if config.jobs.workers == 0 {
        // They are read on the workers' machines.
        return Ok(());
    }
    for (index, source) in config.sft.sources.iter().enumerate() {
        if let Some(file) = &source.file {
            let key = format!("sft.sources[{index}].file");
            files::check(&key, Path::new(file), TRAJECTORIES_BYTES_MAX)?;
        }
    }
    if config.run.pipeline == Pipeline::Dpo {
        for (key, file) in [
            ("dpo.expert_file", &config.dpo.expert_file),
            ("dpo.experience_file", &config.dpo.experience_file),
        ] {
            if let Some(file) = file {
                files::check(key, Path::new(file), TRAJECTORIES_BYTES_MAX)?;
            }
        }
    }
    Ok(())
}

/// The models that parts of `init` copy, with their keys; a model without its own path starts as a
/// copy of the policy.
fn model_paths(plan: &Plan) -> Vec<(InitRole, &'static str, &str)> {
    let actor = &plan.config.actor_rollout_ref;
    let roles = plan.init_roles().into_iter();
    let paths = roles.filter_map(|role| {
        let (key, path) = match role {
            InitRole::Policy => ("actor_rollout_ref.model.path", Some(&actor.model.path)),
            InitRole::Reference => (
                "actor_rollout_ref.ref.model.path",
                actor.reference.model.path.as_ref(),
            ),
            InitRole::Critic => ("critic.model.path", plan.config.critic.model.path.as_ref()),
        };
        Some((role, key, path?.as_str()))
    });
    paths.collect()
}

/// Whether a worker could load the model; uses the worker's own reader.
fn usable(plan: &Plan, role: InitRole, path: &str) -> Result<(), String> {
    if plan.evaluates_by_candle() {
        return candle(plan, path);
    }
    if let Some(shape) = TinyShape::preset(path)? {
        if role == InitRole::Policy {
            tools(plan, tiny_text::chat(shape.template), || None)?;
        }
        return model_size::config(path).map(drop);
    }
    let folder = model_folder(path)?;
    match role {
        InitRole::Policy | InitRole::Reference => Policy::check(&folder).map(drop),
        // A critic's folder holds only weights, no tokenizer.
        InitRole::Critic => return model_size::config(path).map(drop),
    }
    .map_err(|e| model_size::told(&e))?;
    if role != InitRole::Policy {
        return Ok(());
    }
    match Chat::load(&folder).map_err(|e| e.to_string())? {
        Some(chat) => tools(plan, chat, || Some(Tokenizer::load(&folder))),
        None => Ok(()),
    }
}

/// Whether the template asks for what the plan gives it, has a place for the tools of the plan's
/// environments, and keeps what stands before it where that is asked for.
fn tools(
    plan: &Plan,
    chat: Chat,
    tokenizer: impl FnOnce() -> Option<Result<Tokenizer, agentgym_model::Error>>,
) -> Result<(), String> {
    let chat = chat.with_settings(&template_settings(plan));
    let offering = offering(plan, &chat.map_err(|e| e.to_string())?).map_err(|e| e.to_string())?;
    let keeps = plan.config.actor_rollout_ref.rollout.history == History::Template;
    // A large tokenizer takes a second to read.
    let tokenizer = (keeps && !offering.is_empty()).then(tokenizer).flatten();
    let Some(tokenizer) = tokenizer else {
        return Ok(());
    };
    let tokenizer = tokenizer.map_err(|e| e.to_string())?;
    let checked = offering
        .iter()
        .try_for_each(|chat| chat.check(&tokenizer).map(drop));
    checked.map_err(|e| e.to_string())
}

/// Whether candle could compute the model.
fn candle(plan: &Plan, path: &str) -> Result<(), String> {
    let folder = model_folder(path)?;
    let found = ForeignPolicy::check(&folder, plan.context_tokens());
    let (found, text) = found.map_err(|e| model_size::told(&e))?;
    tools(plan, text.chat().clone(), || {
        Some(Ok(text.tokenizer().clone()))
    })?;
    let (bytes, machine) = (
        found.parameters.saturating_mul(4),
        agentgym_worker::machine_bytes(),
    );
    match found.gguf || bytes <= machine {
        true => Ok(()),
        false => Err(format!(
            "candle computes its {} parameters in f32, {}, and this machine has {}; give a GGUF file of it, or a larger \
             machine",
            found.parameters,
            text::bytes(bytes),
            text::bytes(machine)
        )),
    }
}

fn models(plan: &Plan, config: &Path, gpu: Option<Gpu>) -> Result<()> {
    let model = &plan.config.actor_rollout_ref.model;
    model_size::adapter_of(model).map_err(|why| {
        let key = match model.lora_adapter_path {
            Some(_) => "lora_adapter_path",
            None => "lora_rank",
        };
        Error::Usage(format!("key `actor_rollout_ref.model.{key}`: {why}"))
    })?;
    for (role, key, path) in model_paths(plan) {
        let fits = || match role {
            _ if plan.evaluates_by_candle() => Ok(()),
            InitRole::Policy => model_size::of(model).and_then(|size| {
                memory::check_fits(plan, &size, agentgym_worker::machine_bytes())?;
                gpu.map_or(Ok(()), |gpu| device::check_fits(plan, &size, gpu))
            }),
            InitRole::Reference | InitRole::Critic => Ok(()),
        };
        usable(plan, role, path)
            .and_then(|()| fits())
            .map_err(|why| {
                let hint = found_above(config, path).map_or_else(String::new, |folder| {
                    format!(
                        ". It is in {0}: run the command there, or give {key}={0}/{path}",
                        folder.display()
                    )
                });
                Error::Usage(format!("key `{key}`: {why}{hint}"))
            })?;
    }
    Ok(())
}

/// If `path` does not exist here: the folder of the config, or the nearest one above it, in which
/// it does.
fn found_above(config: &Path, path: &str) -> Option<PathBuf> {
    if Path::new(path).is_dir() {
        return None;
    }
    let config = std::path::absolute(config).ok()?;
    let found = config.ancestors().skip(1).find(|at| at.join(path).is_dir());
    found.map(Path::to_owned)
}
