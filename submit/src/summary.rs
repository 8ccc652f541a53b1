//! What a run says for itself: a line per iteration while it goes on, the
//! table of evaluations and the plot at its end.

use crate::metrics::{Book, Evaluated, SetScore, Training};
use crate::plot::{Series, plot};
use crate::text;
use agentgym_jobs::plan::Plan;
use serde_json::{Value, json};

/// Columns and rows of the plot: fits a terminal of 80 × 24 beside its axis.
const PLOT_SIZE: (usize, usize) = (60, 11);

/// `iteration 3/20  success 0.412  reward …`.
pub fn training_line(row: &Training, iterations: u32) -> String {
    let mut parts = vec![
        format!("iteration {:>3}/{iterations}", row.iteration),
        format!("success {}", text::share(row.success)),
        format!("reward {}", text::share(row.reward)),
    ];
    match row.rounds {
        Some(rounds) => parts.push(format!("rounds {rounds:.1} of {}", row.horizon)),
        None => parts.push(format!("horizon {}", row.horizon)),
    }
    if let Some(rate) = row.tokens_per_s {
        parts.push(format!("{} tokens/s", text::count(rate.round() as u64)));
    }
    parts.push(text::seconds(row.wall_s));
    parts.join("  ")
}

/// `evaluation  iteration 10  easy 0.500/0.562  … all 0.4/0.5`.
pub fn evaluation_line(row: &Evaluated, plan: &Plan) -> String {
    let mut out = format!("evaluation  {}", row.label);
    let names = plan.config.evaluation.sets.iter().map(|s| s.name.as_str());
    for (name, score) in names.zip(&row.sets) {
        out += &format!("  {name} {}", cell(*score));
    }
    if row.sets.len() > 1 {
        out += &format!("  all {}", cell(row.overall()));
    }
    out
}

/// Success at the sampling temperature and, behind the stroke, greedy.
fn cell(score: Option<SetScore>) -> String {
    match score {
        None => "–".into(),
        Some(s) => match s.greedy {
            Some(greedy) => format!("{:.3}/{greedy:.3}", s.success),
            None => format!("{:.3}", s.success),
        },
    }
}

/// Evaluations by set and the plot of the run so far.
pub fn report(book: &Book, plan: &Plan) -> String {
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
    let training: Vec<Training> = (1..=plan.iterations)
        .filter_map(|i| book.training(plan, i))
        .collect();
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
    }
    out
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

/// The same as one JSON document.
pub fn report_json(book: &Book, plan: &Plan) -> Value {
    let score = |s: Option<SetScore>| {
        s.map(|s| json!({"success": s.success, "success_greedy": s.greedy, "tasks": s.tasks}))
    };
    let evaluations: Vec<Value> = book
        .evaluations(plan)
        .iter()
        .map(|row| {
            let names = plan.config.evaluation.sets.iter().map(|s| s.name.clone());
            let sets: serde_json::Map<String, Value> =
                names.zip(row.sets.iter().map(|s| json!(score(*s)))).collect();
            json!({"policy": row.label, "iteration": row.iteration, "sets": sets, "all": score(row.overall())})
        })
        .collect();
    let training: Vec<Value> = (1..=plan.iterations)
        .filter_map(|i| book.training(plan, i))
        .map(|t| {
            json!({
                "iteration": t.iteration, "success": t.success, "reward": t.reward, "horizon": t.horizon,
                "rounds_mean": t.rounds, "tokens_per_s": t.tokens_per_s, "wall_s": t.wall_s,
            })
        })
        .collect();
    json!({"run": plan.run.to_string(), "evaluations": evaluations, "training": training})
}
