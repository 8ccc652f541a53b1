//! The metrics of a run as files: `metrics.jsonl` for programs, event files for TensorBoard. Both
//! are functions of the [`RunMetrics`] alone, so writing is idempotent and any machine may do it.

use crate::metrics::tensorboard;
use crate::metrics::tensorboard::Scalars;
use crate::metrics::{Row, RunMetrics};
use crate::text::replace;
use crate::{Error, Result};
use agentgym_jobs::config::Trainer;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

impl RunMetrics {
    /// `metrics.jsonl`: one committed part per line, in the order of the run.
    pub fn to_jsonl(&self) -> String {
        self.rows()
            .filter(|(_, row)| !row.metrics.is_empty() || !row.stats.is_empty())
            .map(|(id, row)| {
                let line = json!({
                    "iteration": id.iteration,
                    "stage": id.stage.name(),
                    "part": id.part,
                    "set": row.set,
                    "metrics": row.metrics,
                    "started_unix_s": row.started_unix_s,
                    "wall_s": row.wall_s,
                    "stats": row.stats,
                });
                format!("{line}\n")
            })
            .collect()
    }

    /// The same metrics as TensorBoard scalars; the step is the iteration.
    pub fn to_scalars(&self) -> Vec<Scalars> {
        self.rows()
            .flat_map(|(id, row)| {
                let head = match (&row.set, id.stage) {
                    (Some(set), stage) => format!("{stage}/{set}"),
                    (None, stage) if id.part > 0 => format!("{stage}/part_{}", id.part),
                    (None, stage) => stage.name().to_owned(),
                };
                let mut values = Vec::new();
                flatten(&head, &row.metrics, &mut values);
                flatten(&format!("stats/{head}"), &row.stats, &mut values);
                if let Some(wall_s) = row.wall_s {
                    values.push((format!("stats/{head}/wall_s"), wall_s));
                }
                let whole = Scalars {
                    wall_time_s: row.ended_unix_s(),
                    step: id.iteration,
                    values,
                };
                // Curves of later iterations would overlap the steps of the first one.
                let first = id.iteration == 0;
                curve(row).filter(move |_| first).chain([whole])
            })
            .collect()
    }

    /// Writes `metrics.jsonl` and TensorBoard events below `dir`.
    pub fn write(&self, dir: &Path, trainer: &Trainer) -> Result<Vec<PathBuf>> {
        let wants = |name: &str| trainer.logger.iter().any(|l| l == name);
        let mut written = Vec::new();
        if wants("jsonl") {
            let path = dir.join("metrics.jsonl");
            replace(&path, self.to_jsonl().as_bytes())?;
            written.push(path);
        }
        if wants("tensorboard") {
            let path = dir.join(tensorboard_folder(trainer)).join(EVENT_FILE);
            extend_or_replace(&path, &tensorboard::events(&self.to_scalars()))?;
            written.push(path);
        }
        Ok(written)
    }
}

/// TensorBoard names a run after its folder: project and experiment, if set.
pub(crate) fn tensorboard_folder(trainer: &Trainer) -> PathBuf {
    let folder = PathBuf::from("tensorboard");
    if !trainer.names_its_folder() {
        return folder;
    }
    let plain = |c: char| match c.is_alphanumeric() || "-_.".contains(c) {
        true => c,
        false => '-',
    };
    let name = |text: &str| -> String {
        let text: String = text.trim_start_matches('.').chars().map(plain).collect();
        match text.is_empty() {
            true => "-".into(),
            false => text,
        }
    };
    let (project, experiment) = (&trainer.project_name, &trainer.experiment_name);
    folder.join(name(project)).join(name(experiment))
}

/// Points inside a long stage, such as the losses of an sft part; their step is the optimizer step,
/// not the iteration.
fn curve(row: &Row) -> impl Iterator<Item = Scalars> {
    let points =
        ["curve", "validation"].map(|name| row.metrics.get(name).and_then(Value::as_array));
    points
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(Value::as_object)
        .filter_map(|point| {
            let step = point.get("step").and_then(Value::as_u64)?;
            let mut values = Vec::new();
            flatten("sft_steps", point, &mut values);
            values.retain(|(tag, _)| tag != "sft_steps/step");
            Some(Scalars {
                wall_time_s: row.ended_unix_s(),
                step: u32::try_from(step).ok()?,
                values,
            })
        })
}

/// A fixed name, so that writing again replaces the file and never adds a second copy.
const EVENT_FILE: &str = "events.out.tfevents.0000000000.agentgym";

fn flatten(head: &str, map: &Map<String, Value>, out: &mut Vec<(String, f64)>) {
    for (name, value) in map {
        let tag = format!("{head}/{name}");
        match value {
            Value::Object(below) => flatten(&tag, below, out),
            Value::Bool(flag) => out.push((tag, f64::from(u8::from(*flag)))),
            other => out.extend(other.as_f64().map(|v| (tag, v))),
        }
    }
}

/// Appends if the existing file is a prefix of `content`, because a running TensorBoard follows the
/// open file; otherwise replaces it.
fn extend_or_replace(path: &Path, content: &[u8]) -> Result<()> {
    match std::fs::read(path) {
        Ok(old) if content.starts_with(&old) => {
            let mut file = std::fs::OpenOptions::new()
                .append(true)
                .open(path)
                .map_err(Error::local(path))?;
            std::io::Write::write_all(&mut file, &content[old.len()..]).map_err(Error::local(path))
        }
        _ => replace(path, content),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use agentgym_jobs::config::ResolvedConfig;
    use agentgym_jobs::pipeline::{PartId, Stage};

    fn row(json: Value) -> Row {
        let Value::Object(metrics) = json else {
            panic!("an object");
        };
        Row {
            metrics,
            started_unix_s: 100,
            wall_s: Some(2.0),
            ..Row::default()
        }
    }

    fn id(iteration: u32, stage: Stage, part: u32) -> PartId {
        PartId {
            iteration,
            stage,
            part,
        }
    }

    #[test]
    fn scalars_are_flat_and_finite() {
        let mut book = RunMetrics::default();
        let figures = json!({"success": 0.5, "outcomes": {"solved": 3}, "ok": true, "name": "x"});
        book.insert(id(4, Stage::Advantage, 0), row(figures));
        let scalars = book.to_scalars();
        assert_eq!(scalars[0].step, 4);
        let tags: Vec<_> = scalars[0].values.iter().map(|(t, _)| t.as_str()).collect();
        assert_eq!(
            tags,
            [
                "advantage/success",
                "advantage/outcomes/solved",
                "advantage/ok",
                "stats/advantage/wall_s"
            ]
        );
    }

    #[test]
    fn a_warm_start_has_a_point_per_entry_of_its_curve() {
        let mut book = RunMetrics::default();
        let figures =
            json!({"loss": 1.0, "curve": [{"step": 10, "loss": 2.0}, {"step": 20, "loss": 1.0}]});
        book.insert(id(0, Stage::Sft, 0), row(figures));
        let scalars = book.to_scalars();
        let steps: Vec<_> = scalars.iter().map(|s| s.step).collect();
        assert_eq!(steps, [10, 20, 0]);
        assert_eq!(scalars[1].values, [("sft_steps/loss".to_owned(), 1.0)]);
    }

    fn trainer(overrides: &[&str]) -> Trainer {
        let overrides: Vec<String> = overrides.iter().map(|o| (*o).to_owned()).collect();
        let text = "run: {pipeline: sft}
sft: {steps: 1, sources: [{file: f.json}]}";
        let config = ResolvedConfig::parse("x", Path::new("x.yaml"), text, &overrides).unwrap();
        config.config.trainer
    }

    #[test]
    fn the_events_lie_in_a_folder_named_after_project_and_experiment() {
        let folder = |overrides: &[&str]| tensorboard_folder(&trainer(overrides));
        assert_eq!(folder(&[]), Path::new("tensorboard"));
        let named = folder(&["trainer.project_name=xxx", "trainer.experiment_name=test 1"]);
        assert_eq!(named, Path::new("tensorboard/xxx/test-1"));
        let hostile = folder(&["trainer.project_name=..", "trainer.experiment_name=../../a"]);
        assert_eq!(hostile, Path::new("tensorboard/-/-..-a"));
    }

    #[test]
    fn writing_twice_changes_nothing_and_growing_appends() {
        let dir = tempfile::tempdir().unwrap();
        let trainer = trainer(&["trainer.logger=[jsonl, tensorboard]"]);
        let mut book = RunMetrics::default();
        book.insert(id(1, Stage::Advantage, 0), row(json!({"success": 0.5})));
        let files = book.write(dir.path(), &trainer).unwrap();
        let before: Vec<_> = files.iter().map(|f| std::fs::read(f).unwrap()).collect();
        book.write(dir.path(), &trainer).unwrap();
        let again: Vec<_> = files.iter().map(|f| std::fs::read(f).unwrap()).collect();
        assert_eq!(before, again);
        book.insert(id(2, Stage::Advantage, 0), row(json!({"success": 0.6})));
        book.write(dir.path(), &trainer).unwrap();
        let events = std::fs::read(&files[1]).unwrap();
        assert!(events.starts_with(&before[1]) && events.len() > before[1].len());
    }
}
