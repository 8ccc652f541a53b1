//! Reading stored plans. A plan defines everything a run does, so a damaged, edited, misplaced or
//! unsupported plan is refused with an error that names its object.

use super::{FORMAT, Plan, PlanFile, code_version, identity};
use crate::config::ResolvedConfig;
use crate::{Error, Result};
use agentgym_storage::{Key, RunId};
use serde::Deserialize;
use std::str::FromStr;

/// Fields that every format has.
#[derive(Deserialize)]
struct Head {
    version: u32,
    #[serde(default)]
    code_version: String,
}

impl Plan {
    /// Reads a stored plan.
    ///
    /// # Errors
    /// Damaged JSON, or a format that this program does not support.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let bad = |message: String| Error::Payload {
            what: "plan".into(),
            message,
        };
        // The format first: another format may have other fields.
        let head: Head = serde_json::from_slice(bytes).map_err(|e| bad(e.to_string()))?;
        if !(1..=FORMAT).contains(&head.version) {
            return Err(bad(format!(
                "is of format {}, written by program version {}; this program, {}, reads formats 1 to {FORMAT}",
                head.version,
                head.code_version,
                code_version()
            )));
        }
        let file: PlanFile = serde_json::from_slice(bytes).map_err(|e| bad(e.to_string()))?;
        let read = ResolvedConfig::from_tree(file.config)?;
        let run = RunId::from_str(&file.run).map_err(|e| bad(e.to_string()))?;
        let plan = Self::build(
            (run, file.revision),
            file.version,
            file.identity,
            read.tree,
            read.config,
        )?;
        if plan.iterations != file.iterations || identity(&plan.tree) != plan.identity {
            return Err(bad(
                "does not reproduce its own identity: it was edited, or written by another program version"
                    .into(),
            ));
        }
        Ok(plan)
    }

    /// Reads a revision of a run's plan from the store at `url`.
    ///
    /// # Errors
    /// As [`Plan::from_bytes`], or the plan belongs to another run or revision; the error names the
    /// object.
    pub fn stored(run: &RunId, revision: u32, bytes: &[u8], url: &str) -> Result<Self> {
        let unreadable = |why: String| {
            let key = Key::Plan {
                run: run.clone(),
                revision,
            };
            Error::Payload {
                what: format!("{} in {url}", key.path()),
                message: format!(
                    "cannot be read as a plan ({why}); restore the object from a copy, or use the program that wrote it"
                ),
            }
        };
        let plan = Self::from_bytes(bytes).map_err(|e| match e {
            // The inner error does not know the object's key.
            Error::Payload { message, .. } => unreadable(message),
            other => unreadable(other.to_string()),
        })?;
        if (&plan.run, plan.revision) != (run, revision) {
            return Err(unreadable(format!(
                "it is revision {} of run {}; was it copied here?",
                plan.revision, plan.run
            )));
        }
        Ok(plan)
    }
}
