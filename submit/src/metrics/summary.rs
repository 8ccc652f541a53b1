//! The output of a run: a line per iteration while it runs; the table of evaluations and the plot
//! at its end.

use crate::documents::InOrder;
use crate::metrics::plot::{Series, plot};
use crate::metrics::{Evaluated, Row, RunMetrics, SetScore, Training, Validated, finite};
use crate::status::WarningDocument;
use crate::{evaluation, text};
use agentgym_jobs::pipeline::PartId;
use agentgym_jobs::plan::Plan;
use agentgym_record::metrics::Metrics;
use serde::Serialize;

/// Columns and rows of the plot: with its axis and the range of the horizon it fits a terminal of
/// 80 × 24.
const PLOT_SIZE: (usize, usize) = (54, 11);

/// `sft  200 of 500 steps  loss 0.412  4 800 tokens/s  42 s, about 1 min 03 s left`.
pub fn sft_line(row: &Row, plan: &Plan, part: u32) -> String {
    let (steps, all) = (plan.sft_steps(0, part), plan.sft_steps_of(0));
    let mut words = vec![format!("sft  {} of {all} steps", steps.end)];
    if let Some(Metrics::Sft(of)) = &row.metrics {
        words.extend(finite(of.loss).map(|loss| format!("loss {loss:.3}")));
        let held_out = of.validation.as_ref().and_then(|of| of.validation_loss);
        words.extend(held_out.map(|loss| format!("validation {loss:.3}")));
        let spoiled = Some(of.non_finite_steps).filter(|steps| *steps > 0);
        words.extend(spoiled.map(|steps| format!("{steps} not finite")));
    }
    let rate = row.measured.trained_tokens_per_s;
    words.extend(rate.map(|rate| format!("{} tokens/s", text::count(rate.round() as u64))));
    if let Some(wall_s) = row.wall_s {
        let left_s = wall_s / steps.len().max(1) as f64 * f64::from(all - steps.end.min(all));
        words.push(text::seconds(wall_s));
        words.extend((left_s > 0.0).then(|| format!("about {} left", text::seconds(left_s))));
    }
    words.join("  ")
}

/// `iteration 3/20  success 0.412  reward …`; the reward only if it differs from the success.
pub fn training_line(row: &Training, iterations: u32) -> String {
    let digits = iterations.to_string().len();
    let within = (row.success_within).map_or_else(String::new, |within| format!(" ±{within:.2}"));
    let mut parts = vec![
        format!("iteration {:>digits$}/{iterations}", row.iteration),
        format!("success {}{within}", text::share(row.success)),
    ];
    parts.extend((row.signal).map(|share| format!("signal {:.0} %", 100.0 * share)));
    parts.extend((row.entropy).map(|entropy| format!("entropy {entropy:.3}")));
    parts.extend((row.kl).map(|kl| format!("kl {kl:.4}")));
    if text::share(row.reward) != text::share(row.success) {
        parts.push(format!("reward {}", text::share(row.reward)));
    }
    match row.rounds {
        Some(rounds) => parts.push(format!("rounds {rounds:>4.1} of {}", row.horizon)),
        None => parts.push(format!("horizon {}", row.horizon)),
    }
    parts.extend(row.kept.map(|kept| format!("kept {kept}")));
    if let Some(rate) = row.tokens_per_s {
        parts.push(format!("{} tokens/s", text::count(rate.round() as u64)));
    }
    parts.push(text::seconds(row.wall_s));
    parts.join("  ")
}

/// `evaluation  iteration 10  easy 0.500/0.562  … all 0.4/0.5`; wraps at `width` columns, never
/// within a set.
pub fn evaluation_line(row: &Evaluated, plan: &Plan, width: usize) -> String {
    const INDENT: &str = "            ";
    let names = plan.config.evaluation.sets.iter().map(|s| s.name.as_str());
    let mut cells: Vec<String> = vec![row.label.clone()];
    cells.extend(
        names
            .zip(&row.sets)
            .map(|(name, score)| format!("{name} {}", cell(*score))),
    );
    if row.sets.len() > 1 {
        cells.push(format!("all {}", cell(row.overall())));
    }
    let mut out = String::new();
    let mut line = "evaluation".to_owned();
    for cell in cells {
        if line.chars().count() + 2 + cell.chars().count() <= width {
            line = format!("{line}  {cell}");
        } else {
            out += &line;
            out.push('\n');
            line = format!("{INDENT}{cell}");
        }
    }
    out + &line
}

/// Success at the sampling temperature and, after the slash, greedy.
fn cell(score: Option<SetScore>) -> String {
    match score {
        None => "–".into(),
        Some(s) => match s.greedy {
            Some(greedy) => format!("{:.3}/{greedy:.3}", s.success),
            None => format!("{:.3}", s.success),
        },
    }
}

/// Evaluations by set, and the plot of the run so far.
pub fn report(book: &RunMetrics, plan: &Plan) -> String {
    if crate::metrics::is_all(plan) {
        return evaluation::report(book, plan);
    }
    let mut out = String::new();
    let evaluations = book.evaluations(plan);
    if !evaluations.is_empty() {
        out += &format!(
            "success by evaluation set, at temperature {}{}\n",
            plan.config.evaluation.temperature,
            if plan.config.evaluation.greedy {
                " / greedy"
            } else {
                ""
            }
        );
        out += &evaluation_table(&evaluations, plan);
    }
    out += &validation_table(book);
    let training: Vec<Training> = (1..=plan.iterations)
        .filter_map(|i| book.training(plan, i))
        .collect();
    out += &training_table(&training);
    if !training.is_empty() {
        let series = [
            Series {
                mark: '•',
                label: "training".into(),
                points: training
                    .iter()
                    .filter_map(|t| Some((t.iteration, t.success?)))
                    .collect(),
            },
            Series {
                mark: '◆',
                label: "held out".into(),
                points: evaluations
                    .iter()
                    .filter_map(|e| Some((e.iteration, e.overall()?.success)))
                    .collect(),
            },
        ];
        let horizon: Vec<_> = training.iter().map(|t| (t.iteration, t.horizon)).collect();
        if !out.is_empty() {
            out.push('\n');
        }
        out += &plot(&series, &horizon, plan.iterations, PLOT_SIZE);
        let solved = |series: &Series| series.points.iter().any(|(_, success)| *success > 0.0);
        if !series.iter().any(solved) {
            out += "no episode was solved, which is why the plot is empty: where every reward is the same there is \
                    nothing to learn from. Try easier tasks, or a warm start (sft.sources)\n";
        }
    }
    let (recorded, checked) = book.recorded_parts(plan);
    if recorded > 0 {
        out += &format!(
            "log-probs of {} are those recorded while sampling; {checked} scored again: {}\n",
            text::many(recorded as u64, "part"),
            if checked == 0 {
                "not checked"
            } else {
                "all equal"
            }
        );
    }
    out
}

/// Loss, KL, entropy and gradient norm by iteration: the first, the last, and evenly spaced ones
/// between them; all of them are in metrics.jsonl and `--json`.
fn training_table(training: &[Training]) -> String {
    const LINES_MAX: usize = 12;
    let every = training.len().div_ceil(LINES_MAX).max(1);
    let shown = training
        .iter()
        .enumerate()
        .filter(|(at, _)| at.is_multiple_of(every) || at + 1 == training.len());
    let number = |value: Option<f64>| match value {
        None => "–".to_owned(),
        Some(value) if value != 0.0 && value.abs() < 0.001 => format!("{value:.2e}"),
        Some(value) => format!("{value:.4}"),
    };
    let rows: Vec<Vec<String>> = shown
        .map(|(_, t)| {
            let mut cells = vec![t.iteration.to_string(), text::share(t.success)];
            cells.push(text::share(t.reward));
            cells.extend([t.loss, t.kl, t.ref_kl, t.entropy, t.grad_norm].map(number));
            cells
        })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    let head = [
        "iteration",
        "success",
        "reward",
        "loss",
        "kl",
        "ref kl",
        "entropy",
        "grad norm",
    ];
    format!("training by iteration\n{}", text::table(&head, &rows))
}

/// The validation loss by optimizer step: the first, the last and the lowest point of the curve,
/// and evenly spaced points between them.
fn validation_table(book: &RunMetrics) -> String {
    const LINES_MAX: usize = 12;
    let points: Vec<(PartId, Validated)> = book.validations().collect();
    let Some(least) =
        (0..points.len()).min_by(|a, b| points[*a].1.loss.total_cmp(&points[*b].1.loss))
    else {
        return String::new();
    };
    let every = points.len().div_ceil(LINES_MAX);
    let shown = points.iter().enumerate().filter(|(index, _)| {
        *index == least || *index + 1 == points.len() || index.is_multiple_of(every)
    });
    let rows: Vec<Vec<String>> = shown
        .map(|(index, (id, point))| {
            let step = match id.iteration {
                0 => point.step.to_string(),
                n => format!("{} of iteration {n}", point.step),
            };
            let epoch = point
                .epoch
                .map_or_else(|| "–".into(), |e| format!("{e:.2}"));
            let mark = if index == least { " least" } else { "" };
            vec![step, epoch, format!("{:.4}{mark}", point.loss)]
        })
        .collect();
    format!(
        "loss on what is held out, nats per reply token\n{}",
        text::table(&["step", "epoch", "loss"], &rows)
    )
}

fn evaluation_table(evaluations: &[Evaluated], plan: &Plan) -> String {
    let names: Vec<&str> = plan
        .config
        .evaluation
        .sets
        .iter()
        .map(|s| s.name.as_str())
        .collect();
    let mut head = vec!["policy"];
    head.extend(&names);
    if names.len() > 1 {
        head.push("all");
    }
    let rows: Vec<Vec<String>> = evaluations
        .iter()
        .map(|row| {
            let mut cells = vec![row.label.clone()];
            cells.extend(row.sets.iter().map(|s| cell(*s)));
            if names.len() > 1 {
                cells.push(cell(row.overall()));
            }
            cells
        })
        .collect();
    text::table(&head, &rows)
}

/// A policy's success by set, and over all that count.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct EvaluatedPolicy {
    policy: String,
    iteration: u32,
    /// None for a set that is not committed.
    sets: InOrder<Option<SetScore>>,
    all: Option<SetScore>,
}

/// A loss on held-out data, nats per reply token.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Validation {
    iteration: u32,
    step: u32,
    epoch: Option<f64>,
    loss: f64,
}

/// Parts whose log-probs are those recorded while sampling, and how many were scored again.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct RecordedParts {
    recorded_parts: usize,
    checked_parts: usize,
}

/// Of a run that trains.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TrainingReport {
    run: String,
    evaluations: Vec<EvaluatedPolicy>,
    training: Vec<Training>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    validation: Vec<Validation>,
    #[serde(skip_serializing_if = "Option::is_none")]
    log_probs: Option<RecordedParts>,
}

/// What a run came to.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum Report {
    /// It trains.
    Training(TrainingReport),
    /// It evaluates a model.
    Evaluation(evaluation::Report),
}

/// What a command adds that has followed a run to its end.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct EndOfRun {
    pub(crate) warnings: Vec<WarningDocument>,
    pub(crate) digest: String,
    pub(crate) commits: usize,
    pub(crate) written: Vec<String>,
}

/// `metrics RUN`; the end of `run`, `eval`, `resume` and `fork`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ReportDocument {
    #[serde(flatten)]
    pub(crate) report: Report,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(crate) end: Option<EndOfRun>,
}

/// [`report`] as a document.
pub fn report_document(book: &RunMetrics, plan: &Plan) -> Report {
    if crate::metrics::is_all(plan) {
        return Report::Evaluation(evaluation::document(book, plan));
    }
    let names = || plan.config.evaluation.sets.iter().map(|s| s.name.clone());
    let evaluations = book
        .evaluations(plan)
        .into_iter()
        .map(|row| EvaluatedPolicy {
            all: row.overall(),
            policy: row.label,
            iteration: row.iteration,
            sets: InOrder(names().zip(row.sets).collect()),
        });
    let validation = book.validations().map(|(id, v)| Validation {
        iteration: id.iteration,
        step: v.step,
        epoch: v.epoch,
        loss: v.loss,
    });
    let (recorded_parts, checked_parts) = book.recorded_parts(plan);
    Report::Training(TrainingReport {
        run: plan.run.to_string(),
        evaluations: evaluations.collect(),
        training: (1..=plan.iterations)
            .filter_map(|i| book.training(plan, i))
            .collect(),
        validation: validation.collect(),
        log_probs: (recorded_parts > 0).then_some(RecordedParts {
            recorded_parts,
            checked_parts,
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use agentgym_jobs::config::ResolvedConfig;
    use agentgym_record::Stats;
    use agentgym_record::metrics::SftMetrics;
    use std::path::Path;

    fn plan() -> Plan {
        let text = "
data: {tasks: [{env: textcraft, ids: 0..4}]}
actor_rollout_ref: {rollout: {n: 2}}
sft: {steps: 500, sources: [{env: textcraft, ids: 0..4}]}
jobs: {sft_part_steps: 200}
evaluation:
  sets:
    - {name: worlds d1, env: textcraft, ids: 0..2}
    - {name: worlds d2, env: textcraft, ids: 0..2}
    - {name: real d1, env: textcraft, ids: 0..2}
";
        let config = ResolvedConfig::parse("x", Path::new("x.yaml"), text, &[]).unwrap();
        Plan::new(config, Path::new("")).unwrap()
    }

    #[test]
    fn a_long_evaluation_breaks_between_sets() {
        let score = |success| {
            Some(SetScore {
                success,
                greedy: Some(success / 2.0),
                tasks: 2.0,
            })
        };
        let row = Evaluated {
            label: "before training".into(),
            iteration: 0,
            before_warm_start: true,
            sets: vec![score(0.5), score(0.25), score(0.125)],
            apart: vec![false; 3],
        };
        insta::assert_snapshot!(evaluation_line(&row, &plan(), 80), @r"
        evaluation  before training  worlds d1 0.500/0.250  worlds d2 0.250/0.125
                    real d1 0.125/0.062  all 0.292/0.146
        ");
        for width in 50..200 {
            let text = evaluation_line(&row, &plan(), width);
            assert!(text.lines().all(|l| l.chars().count() <= width), "{text}");
        }
    }

    #[test]
    fn parts_of_an_sft_stage_are_told() {
        let row = Row {
            metrics: Some(Metrics::Sft(SftMetrics {
                loss: 0.4321,
                ..SftMetrics::default()
            })),
            measured: Stats {
                trained_tokens_per_s: Some(4812.3),
                ..Stats::default()
            },
            wall_s: Some(40.0),
            ..Row::default()
        };
        insta::assert_snapshot!(sft_line(&row, &plan(), 1), @"sft  400 of 500 steps  loss 0.432  4 812 tokens/s  40 s  about 20 s left");
        insta::assert_snapshot!(sft_line(&row, &plan(), 2), @"sft  500 of 500 steps  loss 0.432  4 812 tokens/s  40 s");
    }

    #[test]
    fn an_iteration_is_told_with_its_interval_signal_entropy_and_kl() {
        let row = Training {
            iteration: 3,
            success: Some(0.25),
            success_within: Some(0.15),
            signal: Some(0.40625),
            entropy: Some(0.1234),
            kl: Some(0.00056),
            loss: Some(0.5),
            ref_kl: None,
            grad_norm: Some(1.25),
            reward: Some(0.25),
            horizon: 10,
            rounds: Some(8.25),
            kept: None,
            tokens_per_s: Some(5000.0),
            wall_s: 12.0,
        };
        insta::assert_snapshot!(training_line(&row, 20), @"iteration  3/20  success 0.250 ±0.15  signal 41 %  entropy 0.123  kl 0.0006  rounds  8.2 of 10  5 000 tokens/s  12 s");
    }

    #[test]
    fn what_was_not_checked_is_said() {
        let told = |checked: u32, plan: &Plan| {
            let mut book = RunMetrics::default();
            for part in 0..3 {
                let id = PartId {
                    iteration: 1,
                    stage: agentgym_jobs::pipeline::Stage::LogProbs,
                    part,
                };
                let mut row = Row::default();
                if part < checked {
                    row.measured.log_prob_mismatch_max = Some(0.0);
                }
                book.insert(id, row);
            }
            report(&book, plan)
        };
        let none = told(0, &plan());
        assert!(
            none.contains("of 3 parts") && none.ends_with("0 scored again: not checked\n"),
            "{none}"
        );
        let two = told(2, &plan());
        assert!(two.ends_with("2 scored again: all equal\n"), "{two}");
        let mut scored = plan();
        scored.config.actor_rollout_ref.rollout.record_entropies = false;
        assert_eq!(told(0, &scored), "");
    }
}
