//! `verify RUN`: checks that everything a run has committed is still there, byte for byte. It
//! changes nothing. Each finding is a line with the object's key and the remedy.

use crate::cli::Global;
use crate::runs::{begins_with, part_id, unknown};
use crate::transfer::Transfer;
use crate::{Error, Result, text};
use agentgym_jobs::pipeline::{PartId, parts};
use agentgym_jobs::plan::Plan;
use agentgym_storage::{Fault, Finding, Key, PartKey, Planned, RunId, Store, Verified};
use indicatif::ProgressBar;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// An object that is not as the run left it.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct FindingDocument {
    /// `damaged`, `missing`, `foreign` or `stray`.
    fault: &'static str,
    key: String,
    found: String,
    remedy: String,
}

/// `verify RUN`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct VerifyDocument {
    run: String,
    store: String,
    whole: bool,
    plan_revisions: usize,
    commits: u64,
    artifacts: u64,
    bytes: u64,
    taken_over: u64,
    removed: u64,
    not_stored: u64,
    attempt_records: u64,
    tombstones: u64,
    pins: u64,
    journal_segments: u64,
    left_behind: u64,
    findings: Vec<FindingDocument>,
}

/// Findings so far: printed at once, or collected for the single document of `--json`.
#[derive(Default)]
struct Report {
    is_json: bool,
    bar: Option<ProgressBar>,
    kept: Vec<FindingDocument>,
    counts: BTreeMap<&'static str, u64>,
}

impl Report {
    fn take(&mut self, finding: &Finding) {
        let kind = finding.fault.name();
        *self.counts.entry(kind).or_default() += 1;
        let Finding {
            key, found, remedy, ..
        } = finding;
        if self.is_json {
            self.kept.push(FindingDocument {
                fault: kind,
                key: key.clone(),
                found: found.clone(),
                remedy: remedy.clone(),
            });
            return;
        }
        let remedy = match remedy.is_empty() {
            true => String::new(),
            false => format!("; {remedy}"),
        };
        // Text from the store may contain control characters; keep them from the terminal.
        let line = format!("{kind:<8} {key}: {found}{remedy}");
        let line = line.replace(char::is_control, "\u{fffd}");
        match &self.bar {
            Some(bar) => bar.suspend(|| text::emit(&line)),
            None => text::emit(&line),
        }
    }

    /// Counts of faults, if any. Strays are not faults: they belong to no run and damage nothing.
    fn faults(&self) -> Option<String> {
        let faults = self.counts.iter().filter(|(kind, _)| **kind != "stray");
        let faults: Vec<_> = faults.map(|(kind, n)| format!("{n} {kind}")).collect();
        (!faults.is_empty()).then(|| faults.join(", "))
    }
}

/// Verifies a run.
///
/// # Errors
/// An unknown run, a store that fails, or [`Error::NotWhole`].
pub(crate) async fn verify(store: &Store, run: &str, global: &Global) -> Result<()> {
    // Not by its plan, which may be what is damaged.
    let Some(id) = begins_with(store, run).await? else {
        return Err(unknown(store, run).await?);
    };
    let mut report = Report {
        is_json: global.json,
        ..Report::default()
    };
    let transfer = Transfer::new("verify", global);
    report.bar.clone_from(&transfer.bar);
    let plans = plans(store, &id, &mut report).await?;
    let revisions = plans.len();
    let mut known = Known::new(plans);
    let verified = {
        let mut planned = |slot: &PartKey| known.planned(slot);
        let mut told = |finding: Finding| report.take(&finding);
        let verifying = store.verify(&id, &mut planned, &transfer.bytes, &mut told);
        transfer.during(verifying).await?
    };
    let faults = report.faults();
    if global.json {
        text::emit_json(&VerifyDocument {
            run: id.to_string(),
            store: store.url().to_owned(),
            whole: faults.is_none(),
            plan_revisions: revisions,
            commits: verified.commits,
            artifacts: verified.artifacts,
            bytes: verified.bytes,
            taken_over: verified.taken_over,
            removed: verified.removed,
            not_stored: verified.not_stored,
            attempt_records: verified.attempt_records,
            tombstones: verified.tombstones,
            pins: verified.pins,
            journal_segments: verified.journal_segments,
            left_behind: verified.left_behind,
            findings: report.kept,
        });
    } else {
        text::emit(&summary(run, faults.is_none(), revisions, &verified));
    }
    match faults {
        None => Ok(()),
        Some(faults) => Err(Error::NotWhole {
            run: run.to_owned(),
            faults,
        }),
    }
}

fn summary(run: &str, is_whole: bool, revisions: usize, verified: &Verified) -> String {
    let word = if is_whole { "whole" } else { "not whole" };
    let mut out = format!(
        "{run}: {word}; read {}, {}, {} of {}, {}, {} and {}",
        text::many(revisions as u64, "plan revision"),
        text::many(verified.commits, "commit"),
        text::many(verified.artifacts, "artifact"),
        text::bytes(verified.bytes),
        text::many(verified.attempt_records, "attempt record"),
        text::many(verified.tombstones, "tombstone"),
        text::many(verified.pins, "pin"),
    );
    for (count, what) in [
        (verified.taken_over, "taken over from another run"),
        (verified.removed, "removed by retention"),
        (
            verified.not_stored,
            "of optimizer states that are not stored, and can be made again",
        ),
        (verified.journal_segments, "journal segments, not read"),
        (
            verified.left_behind,
            "files of attempts that did not commit, not read",
        ),
    ] {
        if count > 0 {
            out += &format!("\n  {} {what}", text::count(count));
        }
    }
    out
}

/// Every readable revision of the plan.
async fn plans(store: &Store, run: &RunId, report: &mut Report) -> Result<Vec<Plan>> {
    let listed = store.list(&format!("runs/{run}/plan")).await?;
    let mut plans: Vec<Plan> = Vec::new();
    let mut wanted = 0;
    let mut tell = |fault, key: Key, found: String, remedy: &str| {
        report.take(&Finding {
            fault,
            key: key.path(),
            found,
            remedy: remedy.to_owned(),
        });
    };
    for (key, _) in listed {
        let Key::Plan { revision, .. } = key else {
            continue;
        };
        if wanted < revision {
            tell_no_plan(run, wanted, &mut tell);
        }
        wanted = revision.saturating_add(1);
        let content = match store.get(&key).await {
            Err(e @ agentgym_storage::Error::TooLarge { .. }) => {
                tell(Fault::Damaged, key, e.to_string(), "restore it from a copy");
                continue;
            }
            content => content?,
        };
        match Plan::stored(run, revision, &content, store.url()) {
            Err(e) => tell(Fault::Damaged, key, e.to_string(), ""),
            Ok(plan) => {
                if let Some(first) = plans.first().filter(|p| p.identity != plan.identity) {
                    let found = format!(
                        "it has the identity {}, and revision {} has {}",
                        plan.identity, first.revision, first.identity
                    );
                    tell(Fault::Damaged, key, found, "restore it from a copy");
                }
                plans.push(plan);
            }
        }
    }
    if wanted == 0 {
        tell_no_plan(run, 0, &mut tell);
    }
    Ok(plans)
}

fn tell_no_plan(run: &RunId, revision: u32, tell: &mut impl FnMut(Fault, Key, String, &str)) {
    let run = run.clone();
    tell(
        Fault::Missing,
        Key::Plan { run, revision },
        "revisions of a plan have no gaps".to_owned(),
        "restore it from a copy",
    );
}

/// The parts that the plan has. Bindings may change with each revision, so a part of any revision
/// counts.
struct Known {
    plans: Vec<Plan>,
    /// Parts of the iteration asked for last: commits come in order of iteration.
    iteration: Option<u32>,
    parts: BTreeSet<PartId>,
}

impl Known {
    fn new(plans: Vec<Plan>) -> Self {
        Self {
            plans,
            iteration: None,
            parts: BTreeSet::new(),
        }
    }

    fn planned(&mut self, slot: &PartKey) -> Planned {
        if self.plans.is_empty() {
            // The missing plan is reported separately.
            return Planned::TakenOver;
        }
        if self.iteration != Some(slot.iteration) {
            let of = |plan: &Plan| match slot.iteration <= plan.iterations {
                true => parts(plan, slot.iteration),
                false => Vec::new(),
            };
            let all = self.plans.iter().flat_map(of);
            self.parts = all.map(|part| part.id).collect();
            self.iteration = Some(slot.iteration);
        }
        match part_id(slot) {
            Some(id) if !self.parts.contains(&id) => Planned::Unknown,
            None => Planned::Unknown,
            Some(_) => {
                let forked_at = self.plans.iter().find_map(Plan::forked_at);
                match forked_at.is_some_and(|last| slot.iteration <= last) {
                    true => Planned::TakenOver,
                    false => Planned::Made,
                }
            }
        }
    }
}
