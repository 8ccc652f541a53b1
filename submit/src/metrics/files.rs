//! The metrics of a run as files: `metrics.jsonl` for programs, event files for TensorBoard. Both
//! are functions of the [`RunMetrics`] alone, so writing is idempotent and any machine may do it.

use crate::metrics::tensorboard;
use crate::metrics::tensorboard::Scalars;
use crate::metrics::{Row, RunMetrics};
use crate::text::replace;
use crate::{Error, Result};
use agentgym_jobs::config::Trainer;
use agentgym_jobs::pipeline::{PartId, Stage};
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

    /// The same metrics as TensorBoard scalars; the step is the iteration. What an iteration comes
    /// to has verl's names; figures of single parts stand apart, under `parts/`.
    pub fn to_scalars(&self) -> Vec<Scalars> {
        let rows: Vec<_> = self.rows().collect();
        let last = |at: usize| {
            let next = rows.get(at + 1);
            next.is_none_or(|(next, _)| (next.iteration, next.stage) != of_stage(rows[at].0))
        };
        rows.iter()
            .enumerate()
            .flat_map(|(at, (id, row))| {
                let (head, stats) = heads(id, row);
                let mut values = Vec::new();
                flatten(&head, &row.metrics, &mut values);
                flatten(&stats, &row.stats, &mut values);
                values.extend(row.wall_s.map(|wall_s| (format!("{stats}/wall_s"), wall_s)));
                match (id.stage, &row.set) {
                    // AgentEvol's iterations end in sft; a warm start is none of theirs.
                    (Stage::Update, _) | (Stage::Sft, _) if id.iteration > 0 && last(at) => {
                        values.extend(self.totals(id.iteration));
                    }
                    (Stage::Evaluate, Some(set)) => {
                        let reward = row.metric("reward");
                        values.extend(reward.map(|v| (format!("val/test_score/{set}"), v)));
                    }
                    _ => {}
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

    /// What an iteration comes to, under the names that verl gives such figures. Of several parts:
    /// the mean of their metrics, the sum of their tokens, and the time from the first one's start
    /// to the last one's end.
    fn totals(&self, iteration: u32) -> Vec<(String, f64)> {
        let mut out = Vec::new();
        for (tag, stage, name) in VERL {
            let found = self.of(iteration, stage).filter_map(|row| row.metric(name));
            let found: Vec<f64> = found.collect();
            if !found.is_empty() {
                out.push((
                    tag.to_owned(),
                    found.iter().sum::<f64>() / found.len() as f64,
                ));
            }
        }
        let tokens = |row: &Row| row.stats.get("sampled_tokens").and_then(Value::as_f64);
        let tokens: Option<f64> = self.of(iteration, Stage::Rollout).map(tokens).sum();
        out.extend(tokens.map(|sum| ("perf/total_num_tokens".to_owned(), sum)));
        for (tag, stages) in [
            ("timing_s/gen", &[Stage::Rollout][..]),
            ("timing_s/old_log_prob", &[Stage::LogProbs]),
            ("timing_s/update_critic", &[Stage::CriticUpdate]),
            (
                "timing_s/update_actor",
                &[Stage::Gradient, Stage::Update, Stage::Sft],
            ),
            (
                "timing_s/step",
                &[Stage::Rollout, Stage::Update, Stage::Sft],
            ),
        ] {
            let rows = || stages.iter().flat_map(|stage| self.of(iteration, *stage));
            let begun = rows()
                .map(|row| row.started_unix_s as f64)
                .fold(f64::INFINITY, f64::min);
            let ended = rows().map(Row::ended_unix_s).fold(0.0, f64::max);
            if begun.is_finite() {
                out.push((tag.to_owned(), (ended - begun).max(0.0)));
            }
        }
        out
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

/// verl's names, and which metric of which stage they are here.
const VERL: [(&str, Stage, &str); 22] = [
    ("critic/score/mean", Stage::Advantage, "reward"),
    (
        "response_length/mean",
        Stage::Advantage,
        "response_length_mean",
    ),
    ("prompt_length/mean", Stage::Advantage, "prompt_length_mean"),
    ("actor/entropy", Stage::Advantage, "entropy"),
    ("actor/reward_kl_penalty", Stage::Advantage, "kl_in_reward"),
    ("actor/reward_kl_penalty_coeff", Stage::Advantage, "kl_coef"),
    (
        "critic/vf_explained_var",
        Stage::Advantage,
        "explained_variance",
    ),
    ("actor/pg_loss", Stage::Update, "pg_loss"),
    ("actor/kl_loss", Stage::Update, "kl_loss"),
    ("actor/pg_clipfrac", Stage::Update, "clip_fraction"),
    ("actor/ppo_kl", Stage::Update, "ppo_kl"),
    ("actor/grad_norm", Stage::Update, "grad_norm"),
    ("actor/lr", Stage::Update, "lr"),
    ("critic/vf_loss", Stage::CriticUpdate, "vf_loss"),
    (
        "critic/vf_clipfrac",
        Stage::CriticUpdate,
        "vf_clip_fraction",
    ),
    ("critic/values/mean", Stage::CriticUpdate, "value_mean"),
    ("critic/grad_norm", Stage::CriticUpdate, "grad_norm"),
    ("critic/lr", Stage::CriticUpdate, "lr"),
    // AgentEvol: the exploration, and what verl's SFT trainer calls its loss.
    ("critic/score/mean", Stage::Select, "reward"),
    (
        "response_length/mean",
        Stage::Select,
        "response_length_mean",
    ),
    ("prompt_length/mean", Stage::Select, "prompt_length_mean"),
    ("train/loss", Stage::Sft, "loss"),
];

fn of_stage(id: &PartId) -> (u32, Stage) {
    (id.iteration, id.stage)
}

/// Under which names the metrics and the stats of a part stand.
fn heads(id: &PartId, row: &Row) -> (String, String) {
    // Stages that are cut into parts for speed; a part alone says little.
    let is_cut = matches!(
        id.stage,
        Stage::Rollout | Stage::Reward | Stage::LogProbs | Stage::Gradient
    );
    let head = match (&row.set, id.stage) {
        (Some(set), stage) => format!("{stage}/{set}"),
        (None, stage) if is_cut || id.part > 0 => {
            let head = format!("parts/{stage}/{}", id.part);
            return (head.clone(), format!("{head}/stats"));
        }
        (None, stage) => stage.name().to_owned(),
    };
    let stats = format!("stats/{head}");
    (head, stats)
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
    fn an_iteration_has_verl_s_names_and_parts_stand_apart() {
        let mut book = RunMetrics::default();
        for part in 0..2 {
            let mut played = row(json!({}));
            played.stats.insert("sampled_tokens".into(), json!(30));
            played.started_unix_s = 100 + u64::from(part);
            book.insert(id(2, Stage::Rollout, part), played);
        }
        book.insert(
            id(2, Stage::Advantage, 0),
            row(json!({"reward": 0.25, "entropy": 1.5})),
        );
        let mut update = row(json!({"pg_loss": 0.5, "grad_norm": 2.0}));
        update.started_unix_s = 110;
        book.insert(id(2, Stage::Update, 0), update);
        let mut evaluated = row(json!({"reward": 0.75}));
        evaluated.set = Some("easy".into());
        book.insert(id(2, Stage::Evaluate, 0), evaluated);
        let all: Vec<(String, f64)> = book
            .to_scalars()
            .into_iter()
            .flat_map(|s| s.values)
            .collect();
        let value = |tag: &str| all.iter().find(|(known, _)| known == tag).map(|(_, v)| *v);
        for (tag, expected) in [
            ("critic/score/mean", 0.25),
            ("actor/entropy", 1.5),
            ("actor/pg_loss", 0.5),
            ("actor/grad_norm", 2.0),
            ("perf/total_num_tokens", 60.0),
            ("timing_s/gen", 3.0),
            ("timing_s/step", 12.0),
            ("val/test_score/easy", 0.75),
            ("parts/rollout/1/stats/sampled_tokens", 30.0),
        ] {
            assert_eq!(value(tag), Some(expected), "{tag}");
        }
        assert_eq!(value("critic/vf_loss"), None, "there is no critic");
        let apart = |tag: &&(String, f64)| tag.0.contains("rollout");
        assert!(
            all.iter()
                .filter(apart)
                .all(|(tag, _)| tag.starts_with("parts/"))
        );
    }

    #[test]
    fn an_iteration_of_agentevol_has_them_too() {
        let mut book = RunMetrics::default();
        book.insert(id(1, Stage::Select, 0), row(json!({"reward": 0.5})));
        for (part, loss) in [(0, 2.0), (1, 1.0)] {
            book.insert(id(1, Stage::Sft, part), row(json!({"loss": loss})));
        }
        let scalars = book.to_scalars();
        let values = || scalars.iter().flat_map(|s| &s.values);
        for (tag, expected) in [("critic/score/mean", 0.5), ("train/loss", 1.5)] {
            let found: Vec<f64> = values()
                .filter(|(t, _)| t == tag)
                .map(|(_, v)| *v)
                .collect();
            assert_eq!(found, [expected], "{tag}");
        }
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
