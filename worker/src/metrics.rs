//! `metrics.json` of a stage: figures that depend only on the stage's inputs. Rates and times go
//! into the attempt's [`Report`](crate::Report) instead, since equal runs have equal artifacts.

use crate::Result;
use agentgym_jobs::artifact_names;
use agentgym_storage::Outputs;
use bytes::Bytes;
use serde::Serialize;

/// Writes `metrics.json`.
pub(crate) async fn write(outputs: &mut Outputs, metrics: &impl Serialize) -> Result<()> {
    write_json(outputs, artifact_names::METRICS, "metrics", metrics).await
}

/// Writes a JSON artifact in a human-readable layout.
pub(crate) async fn write_json(
    outputs: &mut Outputs,
    name: &str,
    kind: &str,
    value: &impl Serialize,
) -> Result<()> {
    let mut text = serde_json::to_vec_pretty(value).expect("metrics are plain numbers and text");
    text.push(b'\n');
    outputs.bytes(name, kind, Bytes::from(text)).await?;
    Ok(())
}
