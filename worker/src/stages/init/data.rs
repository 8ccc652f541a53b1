//! The training files, checked row by row before any training: a bad row is reported by the first
//! part of a run, with its file and row number, and not hours later by the step that draws it.

use crate::blocking::blocking;
use crate::demonstrations::{Conversation, parse_file};
use crate::metrics::{self, write_json};
use crate::pairs::Pair;
use crate::stages::dpo::PAIRS;
use crate::stages::sft::mixture::{source_file, validation_file};
use crate::{Beat, Error, Result, StageContext};
use agentgym_jobs::config::{OverlongRows, Pipeline};
use agentgym_jobs::files::{self, TRAJECTORIES_BYTES_MAX};
use agentgym_jobs::plan::Plan;
use agentgym_model::Policy;
use agentgym_record::metrics::{InitMetrics, Pairs};
use agentgym_storage::Outputs;
use bytes::Bytes;
use std::path::PathBuf;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// Copies the demonstration files, and builds the pairs of a preference run.
pub(super) async fn write(
    context: &StageContext,
    outputs: &mut Outputs,
    policy: &Arc<Policy>,
) -> Result<()> {
    let plan = &context.plan;
    let sft = &plan.config.sft;
    let leaves_out = sft.overlong == OverlongRows::LeaveOut;
    let mut metrics = InitMetrics::default();
    let trained = sft.sources.iter().enumerate();
    let trained = trained.map(|(i, source)| ("sources", i, source_file(i), source));
    let held_out = sft.validation_sources.iter().enumerate();
    let held_out =
        held_out.map(|(i, source)| ("validation_sources", i, validation_file(i), source));
    for (list, index, name, source) in trained.chain(held_out) {
        let Some(file) = &source.file else { continue };
        let key = format!("sft.{list}[{index}].file");
        let what = format!("{key} {file}");
        let bytes = read(key, file).await?;
        let prefix = plan.reply_prefix();
        let rows = parse_file(&what, &bytes, prefix)?;
        if let Some(planned) = source.rows.filter(|planned| *planned != rows.len()) {
            return Err(Error::stage(format!(
                "{what}: has {} rows, it had {planned} when the run was planned; put the file back, or start a new run",
                rows.len()
            )));
        }
        let bytes = match trains(plan) {
            false => bytes,
            true => {
                let fits = fitting(context, policy, what.clone(), rows).await?;
                let left_out = fits.iter().filter(|fits| !**fits).count();
                if leaves_out {
                    *metrics.sft_rows_left_out.get_or_insert(0) += left_out;
                }
                match left_out {
                    0 => bytes,
                    _ => without(&what, &bytes, &fits, sft.max_length)?,
                }
            }
        };
        outputs
            .bytes(&name, "demonstrations", Bytes::from(bytes))
            .await?;
    }
    if plan.config.run.pipeline == Pipeline::Dpo {
        let (pairs, counts) = pairs(context, policy).await?;
        write_json(outputs, PAIRS, "pairs", &pairs).await?;
        metrics.pairs = Some(counts);
    }
    if metrics.pairs.is_some() || metrics.sft_rows_left_out.is_some() {
        metrics::write(outputs, &metrics).await?;
    }
    Ok(())
}

async fn read(key: String, file: &str) -> Result<Vec<u8>> {
    let path = PathBuf::from(file);
    blocking(move || Ok(files::read(&key, &path, TRAJECTORIES_BYTES_MAX)?)).await
}

/// True if any part of the run trains on demonstrations.
fn trains(plan: &Plan) -> bool {
    (0..=plan.iterations.min(1)).any(|iteration| plan.sft_parts(iteration) > 0)
}

/// For each row, whether it fits `sft.max_length`.
///
/// # Errors
/// A row that cannot be encoded, or a row that is too long where `sft.overlong` refuses those.
async fn fitting(
    context: &StageContext,
    policy: &Arc<Policy>,
    what: String,
    rows: Vec<Conversation>,
) -> Result<Vec<bool>> {
    let sft = &context.plan.config.sft;
    let limit = Limit {
        key: "sft.max_length",
        tokens_max: sft.max_length,
        leaves_out: sft.overlong == OverlongRows::LeaveOut,
        option: "sft.overlong=leave_out",
    };
    let (policy, patience) = (Arc::clone(policy), Patience::of(context));
    blocking(move || {
        let rows = rows.iter().enumerate();
        rows.map(|(row, conversation)| {
            patience.check()?;
            limit.fits(&policy, conversation, &format!("{what} row {row}"))
        })
        .collect()
    })
    .await
}

/// The file without the rows that do not fit; the others are unchanged.
fn without(what: &str, bytes: &[u8], fits: &[bool], tokens_max: usize) -> Result<Vec<u8>> {
    let rows: Vec<serde_json::Value> =
        serde_json::from_slice(bytes).map_err(|e| Error::stage(format!("{what}: {e}")))?;
    let kept: Vec<_> = rows
        .into_iter()
        .zip(fits)
        .filter_map(|(row, fits)| fits.then_some(row))
        .collect();
    if kept.is_empty() {
        return Err(Error::stage(format!(
            "{what}: every one of its {} rows is longer than sft.max_length = {tokens_max}; raise it",
            fits.len()
        )));
    }
    Ok(serde_json::to_vec(&kept).expect("what was JSON is JSON"))
}

/// The pairs that fit, and counts of the others.
async fn pairs(context: &StageContext, policy: &Arc<Policy>) -> Result<(Vec<Pair>, Pairs)> {
    let dpo = &context.plan.config.dpo;
    let open = async |key: &str, file: &Option<String>| {
        let file = file.clone().unwrap_or_default();
        let what = format!("{key} {file}");
        let bytes = read(key.to_owned(), &file).await?;
        Ok::<_, Error>((what, bytes))
    };
    let expert = open("dpo.expert_file", &dpo.expert_file).await?;
    let experience = open("dpo.experience_file", &dpo.experience_file).await?;
    let (pairs, mut counts) =
        crate::pairs::build(dpo, (&expert.0, &expert.1), (&experience.0, &experience.1))?;
    let limit = Limit {
        key: "dpo.max_length",
        tokens_max: dpo.max_length,
        leaves_out: dpo.overlong == OverlongRows::LeaveOut,
        option: "dpo.overlong=leave_out",
    };
    let (policy, patience) = (Arc::clone(policy), Patience::of(context));
    let prefix = context.plan.reply_prefix().map(str::to_owned);
    let all = pairs.len();
    let kept = blocking(move || {
        let mut kept = Vec::with_capacity(pairs.len());
        for pair in pairs {
            patience.check()?;
            let mut fits = true;
            for chosen in [true, false] {
                let answer = pair.conversation(chosen, prefix.as_deref());
                fits &= limit.fits(&policy, &answer, pair.from(chosen))?;
            }
            kept.extend(fits.then_some(pair));
        }
        Ok(kept)
    })
    .await?;
    if kept.is_empty() {
        return Err(Error::stage(format!(
            "{} and {}: every one of their {all} pairs has an answer longer than dpo.max_length = {}; raise it",
            expert.0, experience.0, dpo.max_length
        )));
    }
    counts.pairs = kept.len();
    counts.too_long = all - kept.len();
    Ok((kept, counts))
}

/// The longest allowed row, and what happens to a longer one.
struct Limit {
    key: &'static str,
    tokens_max: usize,
    leaves_out: bool,
    /// The override that leaves out such rows.
    option: &'static str,
}

impl Limit {
    fn fits(&self, policy: &Policy, row: &Conversation, what: &str) -> Result<bool> {
        let tokens = row.tokens(policy, what)?.token_ids.len();
        if tokens <= self.tokens_max || self.leaves_out {
            return Ok(tokens <= self.tokens_max);
        }
        Err(Error::stage(format!(
            "{what} ({}): has {tokens} tokens, {} = {} is too small; raise it, or leave such rows out with {}",
            row.name(),
            self.key,
            self.tokens_max,
            self.option
        )))
    }
}

/// Ticks the beat for every row, and stops when the worker drains.
struct Patience(Beat, CancellationToken);

impl Patience {
    fn of(context: &StageContext) -> Self {
        Self(context.beat.clone(), context.cancel.clone())
    }

    fn check(&self) -> Result<()> {
        self.0.tick();
        match self.1.is_cancelled() {
            true => Err(Error::Cancelled),
            false => Ok(()),
        }
    }
}
