//! The section of supervised training: its length, in steps or in passes over the data, and the
//! share held out for validation.

use super::check::demonstrations;
use super::keys::limits::TASKS_MAX;
use super::{Config, Pipeline, Sft, SftSource};
use crate::{Error, Result};

impl SftSource {
    /// Number of rows, if the plan knows it; for a file, once it was counted.
    pub fn rows_known(&self) -> Option<usize> {
        match &self.ids {
            Some(ids) => ids.count("sft.sources").ok(),
            None => self.rows,
        }
    }
}

/// Minimum number of held-out rows of a source: other rows of the same tasks are held out too.
pub fn rows_held_out(share: f64, rows: usize) -> usize {
    (share * rows as f64).round() as usize
}

impl Sft {
    /// Optimizer steps of one pass over `rows` rows; the last batch may be smaller.
    pub fn steps_per_epoch(&self, rows: usize) -> u32 {
        u32::try_from(rows.div_ceil(self.batch_size)).unwrap_or(u32::MAX)
    }

    /// Upper bound of the rows trained on in one pass, over sources whose size the plan knows.
    pub fn rows_of_an_epoch(&self) -> usize {
        let rows = self.sources.iter().filter_map(SftSource::rows_known);
        rows.map(|rows| rows - rows_held_out(self.validation_share, rows).min(rows))
            .sum()
    }

    /// Planned optimizer steps. With epochs this is an upper bound, because rows may be left out or
    /// held out with others of their task.
    pub fn steps_planned(&self) -> u32 {
        match self.epochs {
            None => self.steps,
            Some(epochs) => self
                .steps_per_epoch(self.rows_of_an_epoch())
                .saturating_mul(epochs),
        }
    }

    /// True if there is held-out data.
    pub fn validates(&self) -> bool {
        self.validation_share > 0.0 || !self.validation_sources.is_empty()
    }
}

impl Config {
    pub(super) fn check_sft(&self) -> Result<()> {
        let sft = &self.sft;
        demonstrations("sft.sources", &sft.sources)?;
        demonstrations("sft.validation_sources", &sft.validation_sources)?;
        let trains = sft.steps > 0 || sft.epochs.is_some();
        if trains && sft.sources.is_empty() {
            let key = if sft.steps > 0 { "steps" } else { "epochs" };
            return Err(Error::value(
                "sft.sources",
                format!("sft.{key} is set, but there is nothing to learn from"),
            ));
        }
        if self.run.pipeline == Pipeline::Sft && !trains {
            return Err(Error::value(
                "sft.steps",
                "an sft run needs at least one step, or sft.epochs",
            ));
        }
        self.check_epochs()?;
        self.check_validation()
    }

    fn check_epochs(&self) -> Result<()> {
        let sft = &self.sft;
        let Some(epochs) = sft.epochs else {
            return Ok(());
        };
        if sft.steps > 0 {
            return Err(Error::value(
                "sft.epochs",
                format!(
                    "give either sft.epochs or sft.steps, not both (found {epochs} and {}); sft.steps=0 leaves the epochs",
                    sft.steps
                ),
            ));
        }
        if let Some(index) = sft.sources.iter().position(|s| s.rows > Some(TASKS_MAX)) {
            return Err(Error::value(
                format!("sft.sources[{index}].rows"),
                format!(
                    "at most {TASKS_MAX} rows can be passed over; leave it out, and the file is counted"
                ),
            ));
        }
        match sft.sources.iter().position(|s| s.share.is_some()) {
            None => Ok(()),
            Some(index) => Err(Error::value(
                format!("sft.sources[{index}].share"),
                "an epoch takes every row once, whatever its share; leave shares out, or give sft.steps",
            )),
        }
    }

    fn check_validation(&self) -> Result<()> {
        let sft = &self.sft;
        let share = sft.validation_share;
        if share > 0.0 && !sft.validation_sources.is_empty() {
            return Err(Error::value(
                "sft.validation_share",
                "give either sft.validation_share or sft.validation_sources, not both",
            ));
        }
        if let Some(index) = sft
            .validation_sources
            .iter()
            .position(|s| s.share.is_some())
        {
            return Err(Error::value(
                format!("sft.validation_sources[{index}].share"),
                "every row is judged once; leave the share out",
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::Result;
    use crate::config::ResolvedConfig;
    use crate::plan::Plan;
    use std::path::Path;

    const RUN: &str = "
run: {pipeline: sft}
sft: {batch_size: 4, sources: [{file: rows.json}, {env: textcraft, ids: 0..7}]}
";

    /// The plan in a folder whose file has `rows` rows.
    fn plan(rows: usize, overrides: &[&str]) -> Result<Plan> {
        let folder = tempfile::tempdir().unwrap();
        let text = serde_json::to_vec(&vec![serde_json::json!({}); rows]).unwrap();
        std::fs::write(folder.path().join("rows.json"), text).unwrap();
        let overrides: Vec<String> = overrides.iter().map(ToString::to_string).collect();
        let config = ResolvedConfig::parse("x", Path::new("x.yaml"), RUN, &overrides)?;
        Plan::new(config, folder.path())
    }

    #[test]
    fn passes_over_files_are_steps_of_a_plan() {
        let passes = plan(10, &["sft.epochs=3"]).unwrap();
        assert_eq!(passes.sft_steps_of(0), 3 * 5);
        // Three of ten rows are held out, or two of seven.
        let held_out = plan(10, &["sft.epochs=3", "sft.validation_share=0.3"]).unwrap();
        assert_eq!(held_out.sft_steps_of(0), 3 * 3);
        // Reading a plan does not need the file; a different file gives a different run.
        let stored = Plan::from_bytes(&passes.to_bytes()).unwrap();
        assert_eq!(
            (stored.sft_steps_of(0), &stored.identity),
            (15, &passes.identity)
        );
        assert_ne!(
            plan(11, &["sft.epochs=3"]).unwrap().identity,
            passes.identity
        );
        // With a number of steps the plan does not depend on the file; only the first part reads
        // it.
        let steps = plan(10, &["sft.steps=3"]).unwrap();
        assert_eq!(steps.identity, plan(11, &["sft.steps=3"]).unwrap().identity);
        for same in [
            "sft.validation_share=0.0",
            "sft.epochs=null",
            "sft.validation_sources=[]",
        ] {
            assert_eq!(
                plan(10, &["sft.steps=3", same]).unwrap().identity,
                steps.identity
            );
        }
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        for (given, words) in [
            (&[][..], "needs at least one step, or sft.epochs"),
            (&["sft.epochs=2", "sft.steps=5"], "not both"),
            (&["sft.epochs=0"], "sft.epochs"),
            (&["sft.epochs=1.5"], "sft.epochs"),
            (
                &[
                    "sft.epochs=2",
                    "sft.sources=[{file: rows.json, share: 0.5}]",
                ],
                "sft.sources[0].share",
            ),
            (&["sft.steps=2", "sft.validation_share=1"], "below 1"),
            (
                &["sft.epochs=2", "sft.validation_share=0.01"],
                "holds out none of 17",
            ),
            (
                &[
                    "sft.steps=2",
                    "sft.validation_share=0.1",
                    "sft.validation_sources=[{file: h.json}]",
                ],
                "not both",
            ),
            (
                &["sft.steps=2", "sft.validation_sources=[{env: textcraft}]"],
                "sft.validation_sources[0].ids",
            ),
            (
                &[
                    "sft.steps=2",
                    "sft.validation_sources=[{env: moon, ids: 0..3}]",
                ],
                "`moon` is not declared",
            ),
            (
                &["sft.epochs=2", "sft.sources=[{file: gone.json}]"],
                "gone.json",
            ),
        ] {
            let message = plan(10, given).unwrap_err().to_string();
            assert!(message.contains(words), "{given:?}: {message}");
        }
    }
}
