//! Counts the rows of demonstration files if the run trains by epochs. The count is taken when the
//! plan is made, because the plan defines the number of steps.

use crate::config::{Pipeline, ResolvedConfig, SftSource};
use crate::files::{self, TRAJECTORIES_BYTES_MAX};
use crate::{Error, Result};
use serde::de::IgnoredAny;
use std::path::Path;

/// Writes the number of rows next to each file of `sft.sources`.
pub(crate) fn absorb(config: &mut ResolvedConfig, base: &Path) -> Result<()> {
    let pipeline = config.config.run.pipeline;
    if config.config.sft.epochs.is_none() || pipeline == Pipeline::Eval {
        return Ok(());
    }
    for (index, source) in config.config.sft.sources.iter_mut().enumerate() {
        let (Some(file), None) = (&source.file, source.rows) else {
            continue;
        };
        let rows = count(&format!("sft.sources[{index}].file"), &base.join(file))?;
        source.rows = Some(rows);
        config.tree["sft"]["sources"][index]["rows"] = rows.into();
    }
    let sft = &config.config.sft;
    let rows = sft.sources.iter().filter_map(SftSource::rows_known);
    let (rows, trained) = (rows.sum::<usize>(), sft.rows_of_an_epoch());
    if trained == 0 {
        return Err(Error::value(
            "sft.epochs",
            format!("of the {rows} rows of sft.sources none is left to pass over"),
        ));
    }
    if sft.validation_share > 0.0 && trained == rows {
        return Err(Error::value(
            "sft.validation_share",
            format!(
                "{} holds out none of {rows} rows; raise it",
                sft.validation_share
            ),
        ));
    }
    Ok(())
}

fn count(key: &str, path: &Path) -> Result<usize> {
    let bytes = files::read(key, path, TRAJECTORIES_BYTES_MAX)?;
    let rows: Vec<IgnoredAny> = serde_json::from_slice(&bytes).map_err(|e| Error::Format {
        path: path.into(),
        message: format!("is not a JSON array of conversations: {e}"),
    })?;
    Ok(rows.len())
}
