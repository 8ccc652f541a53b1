//! `init`: writes the initial models, one to a part, and with the policy copies
//! of the demonstration files, so that everything later stages read is an
//! artifact of this run.
//!
//! `actor_rollout_ref.model.path` is a preset (`tiny?hidden=…`), a folder in
//! Hugging Face layout, or a hub id that is in the local cache. Nothing is
//! downloaded; where something is missing, the message gives the command.

use super::blocking;
use super::dpo::PAIRS;
use super::training::{upload_critic, upload_policy};
use crate::demonstrations::{parse_file, solved};
use crate::metrics::{self, write_json};
use crate::model_folder;
use crate::policies::{CRITIC, POLICY};
use crate::{Error, Report, Result, StageContext};
use agentgym_envs::builtin::{self, TaskSource};
use agentgym_envs::textcraft::{Style, Tasks, lexicon};
use agentgym_jobs::config::{History, Pipeline};
use agentgym_jobs::plan::{InitRole, Plan};
use agentgym_jobs::random::{Purpose, StreamKey};
use agentgym_model::{Critic, Device, Policy, TinyShape, tiny_text, tiny_words};
use agentgym_storage::Outputs;
use bytes::Bytes;
use std::path::PathBuf;
use std::sync::Arc;

const KEY: &str = "actor_rollout_ref.model.path";
const REFERENCE_KEY: &str = "actor_rollout_ref.ref.model.path";
const CRITIC_KEY: &str = "critic.model.path";

/// What a preset's tokenizer is trained on: tasks of the generated worlds,
/// invented lines and their words, and how often each word of invented worlds
/// is shown so that most become one token.
const CORPUS_TASKS: i64 = 400;
const CORPUS_LINES: usize = 4_000;
const CORPUS_WORDS: usize = 200;
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
    let trained = super::policy(context, POLICY).await?;
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
    let start = super::policy(context, POLICY).await?;
    let (device, folder) = (
        context.resources.device.clone(),
        context.scratch.join(CRITIC),
    );
    let critic = blocking(move || {
        let critic = match plan.config.critic.model.path.as_deref() {
            None => Critic::new(&start)?,
            Some(path) if is_preset(path) => Critic::new(&preset(&plan, CRITIC_KEY, path)?)?,
            Some(path) => {
                let critic = Critic::load(&local_folder(CRITIC_KEY, path)?, &device)?;
                same_tokens(CRITIC_KEY, path, critic.vocab_size(), &start)?;
                critic
            }
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
    let policy = blocking({
        let (plan, folder) = (Arc::clone(&plan), folder.clone());
        move || {
            let policy = initial(&plan, &device)?;
            if plan.config.actor_rollout_ref.rollout.history == History::Template {
                policy.chat().check(policy.tokenizer())?;
            }
            policy.save(&folder)?;
            Ok(policy)
        }
    })
    .await?;
    context.beat.tick();
    let files = upload_policy(outputs, &folder).await?;
    let parameters = policy.parameter_count();
    context
        .resources
        .policies
        .insert(&files, Arc::new(policy))
        .await;
    for (index, source) in plan.config.sft.sources.iter().enumerate() {
        let Some(file) = &source.file else { continue };
        let what = format!("sft.sources[{index}].file {file}");
        let bytes = tokio::fs::read(file).await.map_err(|source| Error::Io {
            what: format!("reading {what}"),
            source,
        })?;
        // A bad row is reported now, not after hours of other stages.
        parse_file(&what, &bytes)?;
        outputs
            .bytes(
                &format!("sft/{index}.json"),
                "demonstrations",
                Bytes::from(bytes),
            )
            .await?;
    }
    if plan.config.run.pipeline == Pipeline::Dpo {
        pairs(&plan, outputs).await?;
    }
    let mut report = Report::default();
    report.set("parameters", parameters);
    Ok(report)
}

/// Builds the pairs of a preference run, so that a bad row is reported now.
async fn pairs(plan: &Plan, outputs: &mut Outputs) -> Result<()> {
    let dpo = &plan.config.dpo;
    let read = async |key: &str, file: &Option<String>| {
        let file = file.clone().unwrap_or_default();
        let what = format!("{key} {file}");
        let bytes = tokio::fs::read(&file).await.map_err(|source| Error::Io {
            what: format!("reading {what}"),
            source,
        })?;
        Ok::<_, Error>((what, bytes))
    };
    let expert = read("dpo.expert_file", &dpo.expert_file).await?;
    let experience = read("dpo.experience_file", &dpo.experience_file).await?;
    let (pairs, counts) =
        crate::pairs::build(dpo, (&expert.0, &expert.1), (&experience.0, &experience.1))?;
    write_json(outputs, PAIRS, "pairs", &pairs).await?;
    metrics::write(outputs, &counts).await
}

fn initial(plan: &Plan, device: &Device) -> Result<Policy> {
    load(plan, KEY, &plan.config.actor_rollout_ref.model.path, device)
}

/// The model that `key` names by `path`.
fn load(plan: &Plan, key: &str, path: &str, device: &Device) -> Result<Policy> {
    match is_preset(path) {
        true => preset(plan, key, path),
        false => Ok(Policy::load(&local_folder(key, path)?, device)?),
    }
}

fn is_preset(path: &str) -> bool {
    path == "tiny" || path.starts_with("tiny?")
}

/// A small model with random weights and a tokenizer of its own.
fn preset(plan: &Plan, key: &str, path: &str) -> Result<Policy> {
    let mut shape = TinyShape::default();
    let options = path.split_once('?').map_or("", |(_, options)| options);
    for option in options.split('&').filter(|option| !option.is_empty()) {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        let field = match name {
            "hidden" => &mut shape.hidden,
            "layers" => &mut shape.layers,
            "heads" => &mut shape.heads,
            "kv_heads" => &mut shape.kv_heads,
            "intermediate" => &mut shape.intermediate,
            "vocab" => &mut shape.vocab,
            _ => {
                return Err(Error::stage(format!(
                    "{key}: `tiny` has no option `{name}`; known are hidden, layers, heads, kv_heads, \
                     intermediate, vocab"
                )));
            }
        };
        *field = value
            .parse()
            .ok()
            .filter(|number| *number > 0)
            .ok_or_else(|| {
                Error::stage(format!(
                    "{key}: `{name}={value}` is not a positive whole number"
                ))
            })?;
    }
    let stream = weights_key(plan.config.run.seed).stream();
    let tokenizer = tiny_text::train_tokenizer(corpus(plan)?.into_iter(), shape.vocab)?;
    Ok(shape.policy(super::head(&stream), tokenizer)?)
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
/// generated worlds are shown and solved, the words that invented worlds are
/// made of, the chat around them, and invented lines in the same manner, so
/// that other worlds are not spelled out byte by byte.
///
/// Recipe books, the real table first of all, are no part of it: a model that
/// was made from a seed has never seen a goal that it will be asked for.
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
        let TaskSource::Worlds(worlds) = source else {
            continue;
        };
        let tasks = Tasks::Worlds(worlds);
        for id in 0..CORPUS_TASKS {
            let shown = solved(
                &tasks,
                id,
                "",
                Style {
                    thought: true,
                    ..Style::default()
                },
            )?;
            texts.extend(shown.conversations.into_iter().map(|line| line.value));
        }
    }
    Ok(texts)
}

fn local_folder(key: &str, path: &str) -> Result<PathBuf> {
    model_folder(path).map_err(|why| Error::stage(format!("{key}: {why}")))
}

#[cfg(test)]
mod tests;
