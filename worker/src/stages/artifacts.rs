//! Reads inputs and writes outputs of stages: payloads, and models, which are taken from memory if
//! they are there.

use crate::blocking::blocking;
use crate::policies::{BASE, POLICY};
use crate::{Error, Result, StageContext};
use agentgym_jobs::codec::{Payload, encode};
use agentgym_model::{Critic, Policy, PolicyText};
pub(super) use agentgym_record::documents::payload as read;
use agentgym_storage::Outputs;
use bytes::Bytes;
use std::sync::Arc;

/// The policy of an input, from memory if it is there; with its adapter if the run trains one.
pub(super) async fn policy(context: &StageContext, input: &str) -> Result<Arc<Policy>> {
    if !context.plan.has_adapter() {
        return plain_policy(context, input).await;
    }
    let resources = &context.resources;
    let names = (base_of(context, input), input);
    resources
        .policies
        .adapted(&resources.device, &context.inputs, names)
        .await
}

/// The text side of an input's policy. Its weights are not fetched.
pub(super) async fn policy_text(context: &StageContext, input: &str) -> Result<PolicyText> {
    let base = match context.plan.has_adapter() {
        true => base_of(context, input),
        false => input,
    };
    let folder = context.scratch.join("policy-text");
    let failed = |source| Error::Io {
        what: format!("cannot write into {}", folder.display()),
        source,
    };
    tokio::fs::create_dir_all(&folder).await.map_err(failed)?;
    for artifact in context.inputs.artifacts(base)? {
        let name = artifact.name.strip_prefix(POLICY);
        let Some(name) = name.and_then(|name| name.strip_prefix('/')) else {
            continue;
        };
        if name.contains(".safetensors") {
            continue;
        }
        let bytes = context.inputs.bytes(base, &artifact.name).await?;
        let written = tokio::fs::write(folder.join(name), bytes).await;
        written.map_err(failed)?;
    }
    blocking(move || Ok(PolicyText::load(&folder)?)).await
}

/// The input that holds the base model below the adapter of `input`: `init` commits both in one
/// part.
pub(super) fn base_of<'a>(context: &StageContext, input: &'a str) -> &'a str {
    match context.inputs.names().any(|name| name == BASE) {
        true => BASE,
        false => input,
    }
}

/// The policy of an input without an adapter: the reference.
pub(super) async fn plain_policy(context: &StageContext, input: &str) -> Result<Arc<Policy>> {
    context
        .resources
        .policies
        .get(&context.resources.device, &context.inputs, input)
        .await
}

/// The critic of an input, from memory if it is there.
pub(super) async fn critic(context: &StageContext, input: &str) -> Result<Arc<Critic>> {
    context
        .resources
        .critics
        .get(&context.resources.device, &context.inputs, input)
        .await
}

/// Writes a payload.
pub(super) async fn write<T: Payload>(
    outputs: &mut Outputs,
    name: &str,
    kind: &str,
    value: &T,
) -> Result<()> {
    outputs
        .bytes(name, kind, Bytes::from(encode(value)?))
        .await?;
    Ok(())
}
