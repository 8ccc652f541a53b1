//! `init`: writes the initial models, one to a part, and with the policy its
//! adapter, where one is trained, and copies of the demonstration files, so that everything later stages read is an
//! artifact of this run.
//!
//! `actor_rollout_ref.model.path` is a preset (`tiny?hidden=…`), a folder in
//! Hugging Face layout, or a hub id that is in the local cache. Nothing is
//! downloaded; where something is missing, the message gives the command.

mod data;

use super::artifacts;
use super::training::{upload_adapter, upload_critic, upload_policy};
use crate::blocking::blocking;
use crate::model_folder;
use crate::policies::{ADAPTER, CRITIC, POLICY};
use crate::{Error, Report, Result, StageContext};
use agentgym_envs::builtin;
use agentgym_envs::textcraft::lexicon;
use agentgym_jobs::config::History;
use agentgym_jobs::plan::{InitRole, Plan};
use agentgym_jobs::random::{Purpose, StreamKey, head};
use agentgym_model::{
    Adapter, Critic, Device, LoraOptions, Policy, TinyShape, tiny_text, tiny_words,
};
use agentgym_storage::Outputs;
use std::path::PathBuf;
use std::sync::Arc;

const KEY: &str = "actor_rollout_ref.model.path";
const REFERENCE_KEY: &str = "actor_rollout_ref.ref.model.path";
const CRITIC_KEY: &str = "critic.model.path";
const RANK_KEY: &str = "actor_rollout_ref.model.lora_rank";
const ADAPTER_KEY: &str = "actor_rollout_ref.model.lora_adapter_path";

/// What a preset's tokenizer is trained on: tasks of the generated worlds and of BabyAI,
/// invented lines and their words, and how often each word of invented worlds
/// is shown so that most become one token.
const CORPUS_TASKS: i64 = 400;
const CORPUS_LINES: usize = 4_000;
const CORPUS_WORDS: usize = 200;
/// Of each task, at most; BabyAI's largest worlds take hundreds.
const CORPUS_MESSAGES: usize = 120;
const CORPUS_SEED: u64 = 1;
const WORD_WEIGHT: usize = 60;

pub(super) async fn run(context: &mut StageContext, outputs: &mut Outputs) -> Result<Report> {
    let roles = context.plan.init_roles();
    match roles.get(context.part.id.part as usize) {
        Some(InitRole::Policy) => policy(context, outputs).await,
        Some(InitRole::Reference) => reference(context, outputs).await,
        Some(InitRole::Critic) => critic(context, outputs).await,
        None => Err(Error::stage(format!(
            "the plan has no part {} of init; it was planned by another program version",
            context.part.id.part
        ))),
    }
}

/// The reference policy of `ref.model.path`: another model, the same tokens.
async fn reference(context: &mut StageContext, outputs: &mut Outputs) -> Result<Report> {
    let plan = Arc::clone(&context.plan);
    let path = plan.config.actor_rollout_ref.reference.model.path.clone();
    let trained = artifacts::policy(context, POLICY).await?;
    let (device, folder) = (
        context.resources.device.clone(),
        context.scratch.join(POLICY),
    );
    let reference = blocking({
        let folder = folder.clone();
        move || {
            let path = path.unwrap_or_default();
            let reference = load(&plan, REFERENCE_KEY, &path, &device)?;
            same_tokens(
                REFERENCE_KEY,
                &path,
                reference.config().vocab_size,
                &trained,
            )?;
            reference.save(&folder)?;
            Ok(reference)
        }
    })
    .await?;
    let files = upload_policy(outputs, &folder).await?;
    let mut report = Report::default();
    report.set("parameters", reference.parameter_count());
    context
        .resources
        .policies
        .insert(&files, Arc::new(reference))
        .await;
    Ok(report)
}

/// The critic: a new head on a trunk, or the critic's folder that is named.
async fn critic(context: &mut StageContext, outputs: &mut Outputs) -> Result<Report> {
    let plan = Arc::clone(&context.plan);
    let start = artifacts::policy(context, POLICY).await?;
    let (device, folder) = (
        context.resources.device.clone(),
        context.scratch.join(CRITIC),
    );
    let critic = blocking(move || {
        let critic = match plan.config.critic.model.path.as_deref() {
            None => Critic::new(&start)?,
            Some(path) => named_critic(&plan, path, &start, &device)?,
        };
        critic.save(&folder)?;
        Ok(critic)
    })
    .await?;
    let mut report = Report::default();
    report.set("parameters", critic.parameter_count());
    upload_critic(context, outputs, critic).await?;
    Ok(report)
}

/// The critic of `critic.model.path`.
fn named_critic(plan: &Plan, path: &str, start: &Policy, device: &Device) -> Result<Critic> {
    if let Some(trunk) = preset(plan, CRITIC_KEY, path, device)? {
        return Ok(Critic::new(&trunk)?);
    }
    let critic = Critic::load(&local_folder(CRITIC_KEY, path)?, device)?;
    same_tokens(CRITIC_KEY, path, critic.vocab_size(), start)?;
    Ok(match says_dtype(plan) {
        true => critic.saying_float32(),
        false => critic,
    })
}

/// Models that read each other's token ids must have as many of them.
fn same_tokens(key: &str, path: &str, vocab_size: usize, policy: &Policy) -> Result<()> {
    let expected = policy.config().vocab_size;
    if vocab_size == expected {
        return Ok(());
    }
    Err(Error::stage(format!(
        "{key}: {path} has a vocabulary of {vocab_size}, the policy one of {expected}; \
         give a model with the policy's own tokenizer"
    )))
}

async fn policy(context: &mut StageContext, outputs: &mut Outputs) -> Result<Report> {
    let plan = Arc::clone(&context.plan);
    let (device, folder) = (
        context.resources.device.clone(),
        context.scratch.join(POLICY),
    );
    let scratch = context.scratch.clone();
    let (policy, adapted) = blocking({
        let (plan, folder) = (Arc::clone(&plan), folder.clone());
        move || {
            let policy = initial(&plan, &device)?;
            let adapted = match adapter(&plan, &policy)? {
                None => None,
                Some(adapter) => {
                    adapter.save(&scratch.join(ADAPTER))?;
                    Some(policy.with_adapter(adapter)?)
                }
            };
            if plan.config.actor_rollout_ref.rollout.history == History::Template {
                policy.chat().check(policy.tokenizer())?;
            }
            policy.save(&folder)?;
            Ok((policy, adapted))
        }
    })
    .await?;
    context.beat.tick();
    let files = upload_policy(outputs, &folder).await?;
    let mut report = Report::default();
    report.set("parameters", policy.parameter_count());
    if let Some(adapted) = adapted {
        let trained = adapted.trained_weights().parameter_count();
        report.set("adapter_parameters", trained);
        let policies = &context.resources.policies;
        let adapted = Arc::new(adapted);
        upload_adapter(policies, outputs, &files, &context.scratch, adapted).await?;
    }
    let policy = Arc::new(policy);
    data::write(context, outputs, &policy).await?;
    context.resources.policies.insert(&files, policy).await;
    Ok(report)
}

/// The adapter that training begins with, if the run trains one: that of a
/// folder, or one that changes nothing yet.
fn adapter(plan: &Plan, base: &Policy) -> Result<Option<Adapter>> {
    let model = &plan.config.actor_rollout_ref.model;
    let (rank, alpha) = (model.lora_rank, model.lora_alpha);
    let Some(path) = &model.lora_adapter_path else {
        if !model.has_adapter() {
            return Ok(None);
        }
        let options = LoraOptions::new(rank, alpha, model.target_modules.iter())
            .map_err(|why| Error::stage(format!("{RANK_KEY}: {why}")))?;
        let seed = head(&weights_key(plan.config.run.seed).stream());
        let adapter = Adapter::new(base.config(), options, &model.path, seed);
        return Ok(Some(adapter));
    };
    let adapter = Adapter::load(&local_folder(ADAPTER_KEY, path)?, base.config())?;
    let found = adapter.options().rank();
    match rank == 0 || usize::try_from(rank) == Ok(found) {
        true => Ok(Some(adapter)),
        false => Err(Error::stage(format!(
            "{RANK_KEY} is {rank}, the adapter in {path} has rank {found}; leave the key out to go on with it"
        ))),
    }
}

fn initial(plan: &Plan, device: &Device) -> Result<Policy> {
    load(plan, KEY, &plan.config.actor_rollout_ref.model.path, device)
}

/// The model that `key` names by `path`.
fn load(plan: &Plan, key: &str, path: &str, device: &Device) -> Result<Policy> {
    let policy = match preset(plan, key, path, device)? {
        Some(policy) => policy,
        None => Policy::load(&local_folder(key, path)?, device)?,
    };
    Ok(match says_dtype(plan) {
        true => policy.saying_float32(),
        false => policy,
    })
}

/// Whether the run's models say in `config.json` that they are saved as float32.
/// Those of older plans repeat what the start folder says.
fn says_dtype(plan: &Plan) -> bool {
    plan.format >= 2
}

/// A small model with random weights and a tokenizer of its own, where `path`
/// names one.
fn preset(plan: &Plan, key: &str, path: &str, device: &Device) -> Result<Option<Policy>> {
    let shape = TinyShape::preset(path).map_err(|why| Error::stage(format!("{key}: {why}")))?;
    let Some(shape) = shape else { return Ok(None) };
    let stream = weights_key(plan.config.run.seed).stream();
    let tokenizer = tiny_text::train_tokenizer(corpus(plan)?.into_iter(), shape.vocab)?;
    let policy = shape.policy(head(&stream), tokenizer)?;
    Ok(Some(policy.on(device)?))
}

/// Where a preset's weights come from.
pub(super) fn weights_key(seed: u64) -> StreamKey {
    StreamKey {
        seed,
        purpose: Purpose::Init,
        iteration: 0,
        draw: 0,
        sample: 0,
    }
}

/// Text that a preset's tokenizer should know well: how tasks of the plan's
/// generated worlds and of BabyAI are shown and solved, the words that invented worlds are
/// made of, the chat around them, and invented lines in the same manner, so
/// that other worlds are not spelled out byte by byte.
fn corpus(plan: &Plan) -> Result<Vec<String>> {
    let words = tiny_words::words(CORPUS_SEED, CORPUS_WORDS);
    let mut texts: Vec<String> = tiny_words::lines(CORPUS_SEED, &words, CORPUS_LINES).collect();
    for word in lexicon() {
        texts.extend(std::iter::repeat_n(format!(" {word}"), WORD_WEIGHT));
    }
    for (name, declared) in plan.config.environments() {
        if !builtin::is_builtin(&declared.env_addr) {
            continue;
        }
        let bad = |e| Error::stage(format!("actor_rollout_ref.agentgym.envs.{name}: {e}"));
        let source = builtin::parse(&declared.env_addr).map_err(bad)?.source;
        let Some(style) = source.corpus_style() else {
            continue;
        };
        let solver = source.solver(style).map_err(bad)?;
        for id in 0..CORPUS_TASKS {
            // Some of BabyAI's worlds are beyond the planner.
            let Some(shown) = solver.demonstrate(id, "") else {
                continue;
            };
            let lines = shown.conversations.into_iter().take(CORPUS_MESSAGES);
            texts.extend(lines.map(|line| line.value));
        }
    }
    Ok(texts)
}

fn local_folder(key: &str, path: &str) -> Result<PathBuf> {
    model_folder(path).map_err(|why| Error::stage(format!("{key}: {why}")))
}

#[cfg(test)]
mod tests;
