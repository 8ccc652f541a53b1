//! `init`: writes the initial models, one per part. With the policy it also writes its adapter, if
//! one is trained, and copies of the demonstration files, so that later stages read only artifacts
//! of this run.
//!
//! `actor_rollout_ref.model.path` is a preset (`tiny?hidden=…`), a folder in Hugging Face layout,
//! or a hub id in the local cache. Nothing is downloaded; if a model is missing, the error gives
//! the command to fetch it.

mod data;

use super::training::{upload_adapter, upload_critic, upload_policy};
use super::{artifacts, probes};
use crate::blocking::blocking;
use crate::environments::tasks;
use crate::model_folder;
use crate::offered_tools::{offering, template_settings};
use crate::policies::{ADAPTER, CRITIC, POLICY};
use crate::{Error, Report, Result, StageContext};
use agentgym_envs::builtin;
use agentgym_jobs::config::{History, SaveDtype};
use agentgym_jobs::plan::{InitRole, Plan};
use agentgym_jobs::random::{Purpose, StreamKey, head};
use agentgym_model::{
    Adapter, Chat, ComputeOptions, Critic, Device, Dtype, ForeignPolicy, LoraOptions, Message,
    Policy, Role, TinyShape, Tokenizer, tiny_text, tiny_words,
};
use agentgym_storage::Outputs;
use std::path::PathBuf;
use std::sync::Arc;

const KEY: &str = "actor_rollout_ref.model.path";
const REFERENCE_KEY: &str = "actor_rollout_ref.ref.model.path";
const CRITIC_KEY: &str = "critic.model.path";
const RANK_KEY: &str = "actor_rollout_ref.model.lora_rank";
const ADAPTER_KEY: &str = "actor_rollout_ref.model.lora_adapter_path";

/// The training corpus of a preset's tokenizer: tasks of the generated worlds and of BabyAI,
/// invented lines and their words. `WORD_WEIGHT` is how often each word of invented worlds is
/// repeated, so that most become one token.
const CORPUS_TASKS: i64 = 400;
const CORPUS_LINES: usize = 4_000;
const CORPUS_WORDS: usize = 200;
/// Most messages per task; BabyAI's largest worlds take hundreds.
const CORPUS_MESSAGES: usize = 120;
const CORPUS_SEED: u64 = 1;
const WORD_WEIGHT: usize = 60;

pub(super) async fn run(context: &mut StageContext, outputs: &mut Outputs) -> Result<Report> {
    let roles = context.plan.init_roles();
    match roles.get(context.part.id.part as usize) {
        Some(InitRole::Policy) if context.plan.evaluates_by_candle() => {
            foreign(context, outputs).await
        }
        Some(InitRole::Policy) => policy(context, outputs).await,
        Some(InitRole::Reference) => reference(context, outputs).await,
        Some(InitRole::Critic) => critic(context, outputs).await,
        None => Err(Error::stage(format!(
            "the plan has no part {} of init; it was planned by another program version",
            context.part.id.part
        ))),
    }
}

/// The reference policy of `ref.model.path`: another model with the same vocabulary.
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
    report.stats.parameters = Some(reference.parameter_count() as u64);
    context
        .resources
        .policies
        .insert(&files, Arc::new(reference))
        .await;
    Ok(report)
}

/// The critic: a new head on the policy's trunk, or the critic in the named folder.
async fn critic(context: &mut StageContext, outputs: &mut Outputs) -> Result<Report> {
    let plan = Arc::clone(&context.plan);
    let start = artifacts::policy(context, POLICY).await?;
    let (device, folder) = (
        context.resources.device.clone(),
        context.scratch.join(CRITIC),
    );
    let critic = blocking(move || {
        let critic = match plan.config.critic.model.path.as_deref() {
            None if start.weights().dtype() == Dtype::Bf16 => Critic::new(&start)?.saying_float32(),
            None => Critic::new(&start)?,
            Some(path) => named_critic(&plan, path, &start, &device)?,
        };
        critic.save(&folder)?;
        Ok(critic)
    })
    .await?;
    let mut report = Report::default();
    report.stats.parameters = Some(critic.parameter_count() as u64);
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

/// Models that exchange token ids must have the same vocabulary size.
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
            let policy = initial(&plan, &device)?.with_settings(&template_settings(&plan))?;
            let policy = match plan.config.actor_rollout_ref.model.dtype {
                SaveDtype::F32 => policy,
                SaveDtype::Bf16 => policy.rounded(&ComputeOptions::default())?,
            };
            let adapted = match adapter(&plan, &policy)? {
                None => None,
                Some(adapter) => {
                    adapter.save(&scratch.join(ADAPTER))?;
                    Some(policy.with_adapter(adapter)?)
                }
            };
            check_template(&plan, policy.chat(), policy.tokenizer())?;
            policy.save(&folder)?;
            Ok((policy, adapted))
        }
    })
    .await?;
    context.beat.tick();
    let files = upload_policy(outputs, &folder).await?;
    let mut report = Report::default();
    report.stats.parameters = Some(policy.parameter_count() as u64);
    let policy = Arc::new(policy);
    if adapted.is_none() {
        probes::write(context, outputs, &policy, None).await?;
    }
    if let Some(adapted) = adapted {
        let trained = adapted.trained_weights().parameter_count();
        report.stats.adapter_parameters = Some(trained as u64);
        let policies = &context.resources.policies;
        let adapted = Arc::new(adapted);
        probes::write(context, outputs, &adapted, None).await?;
        upload_adapter(policies, outputs, &files, &context.scratch, adapted).await?;
    }
    data::write(context, outputs, &policy).await?;
    context.resources.policies.insert(&files, policy).await;
    Ok(report)
}

/// The files of a model that candle evaluates, as they are.
async fn foreign(context: &mut StageContext, outputs: &mut Outputs) -> Result<Report> {
    let plan = Arc::clone(&context.plan);
    let path = &plan.config.actor_rollout_ref.model.path;
    let folder = local_folder(KEY, path)?;
    let (found, text) = blocking({
        let (folder, tokens) = (folder.clone(), plan.context_tokens());
        move || Ok(ForeignPolicy::check(&folder, tokens)?)
    })
    .await?;
    let text = text.with_settings(&template_settings(&plan))?;
    check_template(&plan, text.chat(), text.tokenizer())?;
    if let Some(name) = text.chat().save_settings(&context.scratch)? {
        let from = context.scratch.join(name);
        outputs
            .file(&format!("{POLICY}/{name}"), POLICY, &from)
            .await?;
    }
    for name in &found.files {
        let (kept, from) = (format!("{POLICY}/{name}"), folder.join(name));
        outputs.file(&kept, POLICY, &from).await?;
        context.beat.tick();
    }
    let mut report = Report::default();
    report.stats.parameters = Some(found.parameters);
    Ok(report)
}

/// That the template fits episodes, those with tools too.
fn check_template(plan: &Plan, chat: &Chat, tokenizer: &Tokenizer) -> Result<()> {
    let offering = offering(plan, chat)?;
    if plan.config.actor_rollout_ref.rollout.history == History::Template {
        for chat in offering.iter().chain([chat]) {
            for said in chat.check(tokenizer)? {
                tracing::info!("{said}");
            }
        }
    }
    Ok(())
}

/// The adapter at the start of training, if the run trains one: loaded from a folder, or a new one
/// that does not change the base's outputs.
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

/// The model at `path`, the value of `key`.
fn load(plan: &Plan, key: &str, path: &str, device: &Device) -> Result<Policy> {
    let policy = match preset(plan, key, path, device)? {
        Some(policy) => policy,
        None => Policy::load(&local_folder(key, path)?, device)?.in_f32(),
    };
    Ok(match says_dtype(plan) {
        true => policy.saying_float32(),
        false => policy,
    })
}

/// Whether `config.json` of the run's models states float32, the dtype in which they are saved.
/// With older plans it repeats the start folder's value.
fn says_dtype(plan: &Plan) -> bool {
    plan.format >= 2
}

/// A small model with random weights and its own tokenizer, if `path` names a preset.
fn preset(plan: &Plan, key: &str, path: &str, device: &Device) -> Result<Option<Policy>> {
    let shape = TinyShape::preset(path).map_err(|why| Error::stage(format!("{key}: {why}")))?;
    let Some(shape) = shape else { return Ok(None) };
    let stream = weights_key(plan.config.run.seed).stream();
    let chat = tiny_text::chat(shape.template);
    let tokenizer = tiny_text::train_tokenizer(
        shape.splitting,
        corpus(plan, &chat)?.into_iter(),
        shape.vocab,
    )?;
    let policy = shape.policy(head(&stream), tokenizer)?;
    Ok(Some(policy.on(device)?))
}

/// The random key of a preset's weights.
pub(super) fn weights_key(seed: u64) -> StreamKey {
    StreamKey {
        seed,
        purpose: Purpose::Init,
        iteration: 0,
        draw: 0,
        sample: 0,
    }
}

/// Text that a preset's tokenizer should encode well: tasks and solutions of the plan's generated
/// worlds and of BabyAI, the words of invented worlds, the chat around them, and similar invented
/// lines, so that other worlds are not encoded byte by byte.
fn corpus(plan: &Plan, chat: &Chat) -> Result<Vec<String>> {
    let words = tiny_words::words(CORPUS_SEED, CORPUS_WORDS);
    let mut texts: Vec<String> = tiny_words::lines(CORPUS_SEED, &words, CORPUS_LINES).collect();
    let rows = builtin::all()
        .map_err(|e| Error::stage(format!("{e}, whose words a preset's tokenizer knows")))?;
    for word in rows.iter().flat_map(|row| (row.corpus_words)()) {
        texts.extend(std::iter::repeat_n(format!(" {word}"), WORD_WEIGHT));
    }
    for (name, declared) in plan.config.environments() {
        if !builtin::is_builtin(&declared.env_addr) {
            continue;
        }
        let bad = |e: String| Error::stage(format!("actor_rollout_ref.agentgym.envs.{name}: {e}"));
        let source = tasks(plan, &declared.env_addr).map_err(|e| bad(e.to_string()))?;
        let Some(style) = source.corpus_style() else {
            continue;
        };
        let solver = source.solver(style).map_err(|e| bad(e.to_string()))?;
        for id in 0..CORPUS_TASKS {
            // The planner cannot solve some of BabyAI's worlds.
            let Some(shown) = solver.demonstrate(id, "") else {
                continue;
            };
            if let Some(tools) = &shown.tools {
                let asked = [Message::new(Role::User, "")];
                texts.push(chat.with_tools(tools)?.render(&asked, false)?);
            }
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
