//! The probe of a policy among the artifacts of its commit. Runs whose rollouts a server generates have
//! one with every policy.

use super::artifacts;
use crate::blocking::blocking;
use crate::metrics::write_json;
use crate::policies::POLICY;
use crate::probe::Probe;
use crate::{Result, StageContext};
use agentgym_jobs::artifact_names::PROBE;
use agentgym_model::Policy;
use agentgym_storage::Outputs;
use std::sync::Arc;

/// Writes the probe of a policy that is committed, if the run needs one.
pub(super) async fn write(
    context: &StageContext,
    outputs: &mut Outputs,
    policy: &Arc<Policy>,
    before: Option<Arc<Policy>>,
) -> Result<()> {
    if !context.plan.generates_by_server() {
        return Ok(());
    }
    let (policy, threads) = (Arc::clone(policy), context.resources.threads);
    let made = blocking(move || Probe::of(&policy, before.as_deref(), threads));
    write_json(outputs, PROBE, "probe", &made.await?).await
}

/// The probe of the input policy. A fork of a run without a server may begin with a policy that has
/// none: it is computed here, from the policy's weights.
pub(super) async fn of(context: &StageContext) -> Result<Probe> {
    let all = context.inputs.artifacts(POLICY)?;
    if !all.iter().any(|artifact| artifact.name == PROBE) {
        let policy = artifacts::policy(context, POLICY).await?;
        let threads = context.resources.threads;
        return blocking(move || Probe::of(&policy, None, threads)).await;
    }
    Probe::read_from(&context.inputs.bytes(POLICY, PROBE).await?)
}
