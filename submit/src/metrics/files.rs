//! The metrics of a run as files: `metrics.jsonl` for programs, event files for TensorBoard. Both
//! are functions of the [`RunMetrics`] alone, so writing is idempotent and any machine may do it.

use crate::metrics::tensorboard;
use crate::metrics::tensorboard::Scalars;
use crate::metrics::{Row, RunMetrics, finite};
use crate::text::replace;
use crate::{Error, Result};
use agentgym_jobs::config::Trainer;
use agentgym_jobs::pipeline::{PartId, Stage};
use agentgym_record::metrics::{EpisodeSummary, Metrics};
use serde_json::{Map, Value, json, to_value};
use std::path::{Path, PathBuf};

impl RunMetrics {
    /// `metrics.jsonl`: one committed part per line, in the order of the run.
    pub fn to_jsonl(&self) -> String {
        self.rows()
            .filter(|(_, row)| !row.figures.is_empty() || !row.stats.is_empty())
            .map(|(id, row)| {
                let line = json!({
                    "iteration": id.iteration,
                    "stage": id.stage.name(),
                    "part": id.part,
                    "set": row.set,
                    "metrics": row.figures,
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
                flatten(&head, &row.figures, &mut values);
                flatten(&stats, &row.stats, &mut values);
                values.extend(row.wall_s.map(|wall_s| (format!("{stats}/wall_s"), wall_s)));
                match (id.stage, &row.set) {
                    // AgentEvol's iterations end in sft; a warm start is none of theirs.
                    (Stage::Update, _) | (Stage::Sft, _) if id.iteration > 0 && last(at) => {
                        values.extend(self.totals(id.iteration));
                    }
                    (Stage::Evaluate, Some(set)) => {
                        let reward = row.evaluated().and_then(|of| finite(of.reward));
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
                curve(row).into_iter().filter(move |_| first).chain([whole])
            })
            .collect()
    }

    /// What an iteration comes to, under the names that verl gives such figures. Of several parts:
    /// the mean of their metrics, the sum of their tokens, and the time from the first one's start
    /// to the last one's end.
    fn totals(&self, iteration: u32) -> Vec<(String, f64)> {
        let mut sums: Vec<(&str, f64, f64)> = Vec::new();
        let rows = self.rows().filter(|(id, _)| id.iteration == iteration);
        let figures = rows.filter_map(|(_, row)| row.metrics.as_ref());
        for (tag, value) in figures.flat_map(named_as_verl) {
            let Some(value) = finite(value) else {
                continue;
            };
            match sums.iter_mut().find(|(known, ..)| *known == tag) {
                Some((_, sum, count)) => (*sum, *count) = (*sum + value, *count + 1.0),
                None => sums.push((tag, value, 1.0)),
            }
        }
        let means = sums
            .into_iter()
            .map(|(tag, sum, count)| (tag.to_owned(), sum / count));
        let mut out: Vec<(String, f64)> = means.collect();
        let tokens = |row: &Row| row.measured.sampled_tokens;
        let tokens: Option<u64> = self.of(iteration, Stage::Rollout).map(tokens).sum();
        out.extend(tokens.map(|sum| ("perf/total_num_tokens".to_owned(), sum as f64)));
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

/// The figures of a part that verl has too, under its names.
fn named_as_verl(metrics: &Metrics) -> Vec<(&'static str, f64)> {
    let played = |of: &EpisodeSummary| {
        vec![
            ("critic/score/mean", of.reward),
            ("response_length/mean", of.response_length_mean),
            ("prompt_length/mean", of.prompt_length_mean),
        ]
    };
    match metrics {
        Metrics::Advantage(of) => {
            let options = [
                ("actor/reward_kl_penalty", of.kl_in_reward),
                ("actor/reward_kl_penalty_coeff", of.kl_coef),
                ("critic/vf_explained_var", of.explained_variance),
            ];
            let mut named = played(&of.episodes);
            named.push(("actor/entropy", of.entropy));
            named.extend(options.into_iter().filter_map(|(tag, of)| Some((tag, of?))));
            named
        }
        Metrics::Update(of) => vec![
            ("actor/pg_loss", of.pg_loss),
            ("actor/kl_loss", of.kl_loss),
            ("actor/pg_clipfrac", of.clip_fraction),
            ("actor/ppo_kl", of.ppo_kl),
            ("actor/grad_norm", of.grad_norm),
            ("actor/lr", of.lr),
        ],
        Metrics::CriticUpdate(of) => vec![
            ("critic/vf_loss", of.vf_loss),
            ("critic/vf_clipfrac", of.vf_clip_fraction),
            ("critic/values/mean", of.value_mean),
            ("critic/grad_norm", of.grad_norm),
            ("critic/lr", of.lr),
        ],
        // AgentEvol: the exploration, and what verl's SFT trainer calls its loss.
        Metrics::Filter(of) => played(&of.episodes),
        Metrics::Sft(of) => vec![("train/loss", of.loss)],
        _ => Vec::new(),
    }
}

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
fn curve(row: &Row) -> Vec<Scalars> {
    let point = |step: u32, figures: serde_json::Result<Value>| {
        let mut values = Vec::new();
        if let Ok(Value::Object(figures)) = &figures {
            flatten("sft_steps", figures, &mut values);
        }
        values.retain(|(tag, _)| tag != "sft_steps/step");
        Scalars {
            wall_time_s: row.ended_unix_s(),
            step,
            values,
        }
    };
    match &row.metrics {
        Some(Metrics::Sft(of)) => {
            let losses = of.curve.iter().map(|at| point(at.step, to_value(at)));
            let held_out = of.validation.iter().flat_map(|of| &of.validation);
            let held_out = held_out.map(|at| point(at.step, to_value(at)));
            losses.chain(held_out).collect()
        }
        Some(Metrics::Dpo(of)) => (of.curve.iter())
            .map(|at| point(at.step, to_value(at)))
            .collect(),
        _ => Vec::new(),
    }
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
    use agentgym_record::metrics::{
        AdvantageMetrics, EvaluationMetrics, FilterMetrics, SftMetrics, SftPoint, UpdateMetrics,
    };

    fn row(metrics: Option<Metrics>) -> Row {
        Row {
            metrics,
            started_unix_s: 100,
            wall_s: Some(2.0),
            ..Row::default()
        }
    }

    fn advantage(reward: f64, entropy: f64) -> Row {
        let of = AdvantageMetrics {
            episodes: played(reward),
            entropy,
            ..AdvantageMetrics::default()
        };
        row(Some(Metrics::Advantage(Box::new(of))))
    }

    fn sft(loss: f64, curve: &[(u32, f64)]) -> Row {
        let point = |(step, loss): &(u32, f64)| SftPoint {
            step: *step,
            loss: *loss,
            ..SftPoint::default()
        };
        row(Some(Metrics::Sft(SftMetrics {
            loss,
            curve: curve.iter().map(point).collect(),
            ..SftMetrics::default()
        })))
    }

    fn played(reward: f64) -> EpisodeSummary {
        EpisodeSummary {
            reward,
            response_length_mean: 8.0,
            prompt_length_mean: 4.0,
            ..EpisodeSummary::default()
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
        let mut shown = row(None);
        shown.figures = figures.as_object().unwrap().clone();
        book.insert(id(4, Stage::Advantage, 0), shown);
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
            let mut played = row(None);
            played.measured.sampled_tokens = Some(30);
            played.stats = played.measured.to_map();
            played.started_unix_s = 100 + u64::from(part);
            book.insert(id(2, Stage::Rollout, part), played);
        }
        book.insert(id(2, Stage::Advantage, 0), advantage(0.25, 1.5));
        let mut update = row(Some(Metrics::Update(UpdateMetrics {
            pg_loss: 0.5,
            grad_norm: 2.0,
            ..UpdateMetrics::default()
        })));
        update.started_unix_s = 110;
        book.insert(id(2, Stage::Update, 0), update);
        let of = EvaluationMetrics {
            reward: 0.75,
            ..EvaluationMetrics::default()
        };
        let mut evaluated = row(Some(Metrics::Evaluation(Box::new(of))));
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
        let filter = FilterMetrics {
            episodes: played(0.5),
            ..FilterMetrics::default()
        };
        book.insert(id(1, Stage::Filter, 0), row(Some(Metrics::Filter(filter))));
        for (part, loss) in [(0, 2.0), (1, 1.0)] {
            book.insert(id(1, Stage::Sft, part), sft(loss, &[]));
        }
        let scalars = book.to_scalars();
        let values = || scalars.iter().flat_map(|s| &s.values);
        for (tag, expected) in [
            ("critic/score/mean", 0.5),
            ("response_length/mean", 8.0),
            ("prompt_length/mean", 4.0),
            ("train/loss", 1.5),
        ] {
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
        book.insert(id(0, Stage::Sft, 0), sft(1.0, &[(10, 2.0), (20, f64::NAN)]));
        let scalars = book.to_scalars();
        let steps: Vec<_> = scalars.iter().map(|s| s.step).collect();
        assert_eq!(steps, [10, 20, 0]);
        let tags = |at: usize| -> Vec<&str> {
            let values = scalars[at].values.iter();
            values.map(|(tag, _)| tag.as_str()).collect()
        };
        assert_eq!(
            tags(0),
            ["sft_steps/loss", "sft_steps/grad_norm", "sft_steps/lr"]
        );
        assert_eq!(tags(1), ["sft_steps/grad_norm", "sft_steps/lr"]);
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
        book.insert(id(1, Stage::Advantage, 0), advantage(0.5, 1.0));
        let files = book.write(dir.path(), &trainer).unwrap();
        let before: Vec<_> = files.iter().map(|f| std::fs::read(f).unwrap()).collect();
        book.write(dir.path(), &trainer).unwrap();
        let again: Vec<_> = files.iter().map(|f| std::fs::read(f).unwrap()).collect();
        assert_eq!(before, again);
        book.insert(id(2, Stage::Advantage, 0), advantage(0.6, 1.0));
        book.write(dir.path(), &trainer).unwrap();
        let events = std::fs::read(&files[1]).unwrap();
        assert!(events.starts_with(&before[1]) && events.len() > before[1].len());
    }
}
