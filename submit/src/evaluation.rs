//! The report at the end of an eval run: a table per set with its categories, and the lines of all
//! items as one file. The metrics were computed by the stage that played the episodes; here they
//! are only shown.

use crate::documents::InOrder;
use crate::metrics::{Row, RunMetrics};
use crate::runs::RunView;
use crate::{Error, Result, text};
use agentgym_jobs::artifact_names;
use agentgym_jobs::pipeline::{PartId, Stage};
use agentgym_jobs::plan::Plan;
use agentgym_record::metrics::{Estimate, EvaluationScore};
use agentgym_text::without_secrets;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn part(set: usize) -> PartId {
    PartId {
        iteration: 0,
        stage: Stage::Evaluate,
        part: set as u32,
    }
}

/// The rows of the committed evaluation sets.
fn rows<'a>(book: &'a RunMetrics, plan: &'a Plan) -> impl Iterator<Item = (&'a str, &'a Row)> {
    let sets = plan.config.evaluation.sets.iter().enumerate();
    sets.filter_map(|(i, set)| Some((set.name.as_str(), book.row(part(i))?)))
}

/// One table for all sets: a line per set, followed by its categories.
pub fn report(book: &RunMetrics, plan: &Plan) -> String {
    let evaluation = &plan.config.evaluation;
    let ks = evaluation.ks();
    let mut head: Vec<String> = ["set", "items"].map(String::from).to_vec();
    head.push(format!("avg@{}", evaluation.samples));
    head.extend(ks.iter().map(|k| format!("pass@{k}")));
    let greedy = evaluation.greedy_beside() > 0;
    head.extend(greedy.then(|| "greedy".to_owned()));
    head.extend(["rounds", "env faults"].map(String::from));
    let chat = plan.evaluates_by_chat();
    if chat {
        head.extend(["tokens in", "tokens out", "cost"].map(String::from));
    }
    let mut table = Vec::new();
    for (name, row) in rows(book, plan) {
        let line = |name: &str, score: &EvaluationScore, solved: Option<f64>, of: Option<&Row>| {
            let avg = mean_estimate(score.avg.as_ref());
            let mut cells = vec![name.to_owned(), items(score), avg];
            cells.extend(ks.iter().map(|k| estimate(score.pass.get(k))));
            cells.extend(greedy.then(|| text::share(solved)));
            let rounds = score.rounds_mean;
            cells.push(rounds.map_or_else(|| "–".into(), |r| format!("{r:.1}")));
            cells.push(estimate(score.fault_rate.as_ref()));
            // A set is asked for as a whole: its categories have no costs of their own.
            if chat {
                let none = || ["–"; 3].map(String::from);
                cells.extend(of.map_or_else(none, spent));
            }
            cells
        };
        if let Some(of) = row.evaluated() {
            table.push(line(name, &of.score, of.success_greedy, Some(row)));
            for (category, score) in &of.categories {
                table.push(line(&format!("  {category}"), score, None, None));
            }
        }
    }
    if table.is_empty() {
        return String::new();
    }
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    format!(
        "{} at temperature {}, at most {} rounds; mean with 95 % interval\n{}",
        model(plan),
        evaluation.temperature,
        evaluation.max_rounds,
        text::table(&head, &table)
    )
}

/// What is evaluated: the model of a config, or that of a chat API.
pub(crate) fn model(plan: &Plan) -> String {
    let actor = &plan.config.actor_rollout_ref;
    match plan.evaluates_by_chat() {
        false if plan.evaluates_by_candle() => format!("{}, by candle,", actor.model.path),
        false => actor.model.path.clone(),
        true => format!(
            "{} of the chat API at {}",
            actor.rollout.server.model.as_deref().unwrap_or_default(),
            without_secrets(actor.rollout.server.url.as_deref().unwrap_or_default())
        ),
    }
}

/// What an API read, wrote and costs for a set; `≥` where some answers did not say what they took.
fn spent(row: &Row) -> [String; 3] {
    let of = &row.measured;
    let more = match of.chat_answers_uncounted {
        Some(0) => "",
        _ => "≥ ",
    };
    let tokens = |count: Option<u64>| {
        count.map_or_else(|| "–".to_owned(), |n| format!("{more}{}", text::count(n)))
    };
    [
        tokens(of.chat_tokens_in),
        tokens(of.chat_tokens_out),
        of.chat_cost
            .map_or_else(|| "–".to_owned(), |cost| format!("{cost:.4}")),
    ]
}

/// `90`, or `88 of 90` if environment faults spoiled every sample of two items.
fn items(score: &EvaluationScore) -> String {
    match score.items_lost {
        0 => score.items.to_string(),
        lost => format!("{} of {}", score.items.saturating_sub(lost), score.items),
    }
}

/// `0.750 [0.655, 0.824]`.
fn estimate(value: Option<&Estimate>) -> String {
    match value {
        Some(Estimate {
            mean, low, high, ..
        }) => format!("{mean:.3} [{low:.3}, {high:.3}]"),
        None => "–".to_owned(),
    }
}

/// The mean reward with its interval, mean ± 1.96 standard errors; no interval for a few items,
/// where it means little.
fn mean_estimate(value: Option<&Estimate>) -> String {
    const ITEMS_MIN: usize = 10;
    match value {
        Some(Estimate { mean, of, .. }) if *of < ITEMS_MIN => format!("{mean:.3} [–]"),
        _ => estimate(value),
    }
}

/// What a chat API read, wrote and costs.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Usage {
    answers: Option<u64>,
    answers_uncounted: Option<u64>,
    tokens_in: Option<u64>,
    tokens_out: Option<u64>,
    cost: Option<f64>,
}

/// A set, as its stage measured it.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct SetReport {
    env: Option<String>,
    #[cfg_attr(test, schemars(with = "Option<serde_json::Map<String, Value>>"))]
    score: Option<EvaluationScore>,
    #[cfg_attr(test, schemars(with = "Option<serde_json::Map<String, Value>>"))]
    categories: Option<BTreeMap<String, EvaluationScore>>,
    success_greedy: Option<f64>,
    outcomes: Option<BTreeMap<String, usize>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
}

/// Of a run that evaluates a model.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Report {
    run: String,
    model: String,
    samples: u32,
    temperature: f64,
    max_rounds: u32,
    sets: InOrder<SetReport>,
}

/// [`report`] as a document.
pub fn document(book: &RunMetrics, plan: &Plan) -> Report {
    let evaluation = &plan.config.evaluation;
    let set = |row: &Row| {
        let (of, measured) = (row.evaluated(), &row.measured);
        let categories = of.map(|of| of.categories.clone());
        SetReport {
            env: of.map(|of| of.env.clone()),
            score: of.map(|of| of.score.clone()),
            categories: categories.filter(|all| !all.is_empty()),
            success_greedy: of.and_then(|of| of.success_greedy),
            outcomes: of.map(|of| of.sampled.outcomes.clone()),
            usage: plan.evaluates_by_chat().then_some(Usage {
                answers: measured.chat_answers,
                answers_uncounted: measured.chat_answers_uncounted,
                tokens_in: measured.chat_tokens_in,
                tokens_out: measured.chat_tokens_out,
                cost: measured.chat_cost,
            }),
        }
    };
    let sets = rows(book, plan).map(|(name, row)| (name.to_owned(), set(row)));
    Report {
        run: plan.run.to_string(),
        model: model(plan),
        samples: evaluation.samples,
        temperature: evaluation.temperature,
        max_rounds: evaluation.max_rounds,
        sets: InOrder(sets.collect()),
    }
}

/// Writes the items of all evaluations, a line each, as `items.jsonl`; `None` where nothing was
/// evaluated. A run that trains evaluates several policies: its lines say which.
pub(crate) async fn write_items(view: &RunView, dir: &Path) -> Result<Option<PathBuf>> {
    let mut lines = Vec::new();
    let alone = crate::metrics::is_all(&view.plan);
    let commits = view.commits().await?;
    for id in commits.into_iter().filter(|id| id.stage.facts().evaluates) {
        let manifest = view.committed(id).await?;
        // Programs before items had a file left none.
        if !manifest
            .outputs
            .iter()
            .any(|o| o.name == artifact_names::ITEMS)
        {
            continue;
        }
        let items = view.bytes(&manifest, artifact_names::ITEMS).await?;
        match alone {
            true => lines.extend(items),
            false => lines.extend(with_policy(id, &items)?),
        }
    }
    if lines.is_empty() && !alone {
        return Ok(None);
    }
    let path = dir.join(artifact_names::ITEMS);
    std::fs::create_dir_all(dir).map_err(Error::local(dir))?;
    crate::text::replace(&path, &lines)?;
    Ok(Some(path))
}

/// The lines of a set's items with the iteration and stage that evaluated them in front.
fn with_policy(id: PartId, items: &[u8]) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    let broken = |message: String| agentgym_jobs::Error::Payload {
        what: format!("{} of {id}", artifact_names::ITEMS),
        message,
    };
    for line in items
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
    {
        let item: serde_json::Map<String, Value> =
            serde_json::from_slice(line).map_err(|e| broken(format!("is not JSON: {e}")))?;
        let mut whole = serde_json::Map::new();
        whole.insert("iteration".to_owned(), json!(id.iteration));
        whole.insert("stage".to_owned(), json!(id.stage.name()));
        whole.extend(item);
        out.extend(serde_json::to_vec(&whole).map_err(|e| broken(e.to_string()))?);
        out.push(b'\n');
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use agentgym_jobs::config::ResolvedConfig;
    use agentgym_record::Stats;
    use agentgym_record::metrics::{EpisodeSummary, EvaluationMetrics, Metrics};

    fn book() -> (RunMetrics, Plan) {
        book_of(&[], json!({}))
    }

    fn book_of(overrides: &[&str], stats: Value) -> (RunMetrics, Plan) {
        let text = "
run: {pipeline: eval, id: e}
actor_rollout_ref: {model: {path: models/base}}
evaluation:
  samples: 4
  greedy: false
  k: [1, 4]
  sets:
    - {name: real, env: textcraft, ids: 0..3, categories: {d1: [0, 1], d2: [2]}}
    - {name: other, env: textcraft, ids: 5..6}
";
        let overrides: Vec<String> = overrides.iter().map(|o| (*o).to_owned()).collect();
        let config = ResolvedConfig::parse("x", Path::new("x.yaml"), text, &overrides).unwrap();
        let plan = Plan::new(config, Path::new("")).unwrap();
        let estimate = |mean: f64| Estimate {
            mean,
            low: mean / 2.0,
            high: 1.0,
            of: 2,
        };
        let score = |items: usize, items_lost: usize, mean: f64| EvaluationScore {
            items,
            items_lost,
            avg: Some(estimate(mean)),
            pass: [(1, estimate(mean)), (4, estimate(1.0))].into(),
            rounds_mean: Some(6.25),
            fault_rate: Some(estimate(0.0)),
        };
        let lost = EvaluationScore {
            items: 1,
            items_lost: 1,
            ..EvaluationScore::default()
        };
        let of = EvaluationMetrics {
            env: "textcraft".to_owned(),
            score: score(3, 0, 0.5),
            categories: [
                ("d1".to_owned(), score(2, 0, 0.75)),
                ("d2".to_owned(), lost),
            ]
            .into(),
            sampled: EpisodeSummary {
                outcomes: [("solved".to_owned(), 6)].into(),
                ..EpisodeSummary::default()
            },
            ..EvaluationMetrics::default()
        };
        let Value::Object(stats) = stats else {
            unreachable!()
        };
        let mut book = RunMetrics::default();
        let row = Row {
            metrics: Some(Metrics::Evaluation(Box::new(of))),
            measured: Stats::read(part(0), &stats).unwrap(),
            ..Row::default()
        };
        book.insert(part(0), row);
        (book, plan)
    }

    #[test]
    fn a_mean_has_an_interval_where_there_are_items_enough_for_one() {
        let of = |of: usize| {
            let (mean, low, high) = (0.0, -1.96, 1.96);
            mean_estimate(Some(&Estimate {
                mean,
                low,
                high,
                of,
            }))
        };
        assert_eq!(of(2), "0.000 [–]");
        assert_eq!(of(10), "0.000 [-1.960, 1.960]");
        assert_eq!(mean_estimate(None), "–");
    }

    #[test]
    fn a_table_with_categories() {
        let (book, plan) = book();
        insta::assert_snapshot!(report(&book, &plan), @"
        models/base at temperature 1, at most 15 rounds; mean with 95 % interval
          set    items      avg@4                pass@1                pass@4  rounds            env faults
          real       3  0.500 [–]  0.500 [0.250, 1.000]  1.000 [0.500, 1.000]     6.2  0.000 [0.000, 1.000]
            d1       2  0.750 [–]  0.750 [0.375, 1.000]  1.000 [0.500, 1.000]     6.2  0.000 [0.000, 1.000]
            d2  0 of 1          –                     –                     –       –                     –
        ");
        let json = json!(document(&book, &plan));
        assert_eq!(json["sets"]["real"]["score"]["pass"]["1"]["mean"], 0.5);
        assert_eq!(json["sets"]["real"]["outcomes"]["solved"], 6);
        assert!(json["sets"].get("other").is_none(), "not committed yet");
        let (book, plan) = book_of(&["actor_rollout_ref.rollout.engine=candle"], json!({}));
        let said = report(&book, &plan);
        assert!(
            said.starts_with("models/base, by candle, at temperature 1"),
            "{said}"
        );
    }

    /// The same columns and what it cost; where some answers did not say what they took, no cost.
    #[test]
    fn a_chat_api_has_costs_beside_the_same_columns() {
        let chat = [
            "actor_rollout_ref.rollout.engine=chat",
            "actor_rollout_ref.rollout.server={url: 'https://host/v1', model: some-model}",
        ];
        let all = json!({
            "chat_answers": 40, "chat_answers_uncounted": 0, "chat_tokens_in": 123_456,
            "chat_tokens_out": 789, "chat_cost": 0.25,
        });
        let (book, plan) = book_of(&chat, all);
        insta::assert_snapshot!(report(&book, &plan), @"
        some-model of the chat API at https://host/v1 at temperature 1, at most 15 rounds; mean with 95 % interval
          set    items      avg@4                pass@1                pass@4  rounds            env faults  tokens in  tokens out    cost
          real       3  0.500 [–]  0.500 [0.250, 1.000]  1.000 [0.500, 1.000]     6.2  0.000 [0.000, 1.000]    123 456         789  0.2500
            d1       2  0.750 [–]  0.750 [0.375, 1.000]  1.000 [0.500, 1.000]     6.2  0.000 [0.000, 1.000]          –           –       –
            d2  0 of 1          –                     –                     –       –                     –          –           –       –
        ");
        let json = json!(document(&book, &plan));
        assert_eq!(json["sets"]["real"]["usage"]["tokens_in"], 123_456);
        assert_eq!(json["sets"]["real"]["usage"]["cost"], 0.25);
        let some = json!({"chat_answers_uncounted": 1, "chat_tokens_in": 5, "chat_tokens_out": 6, "chat_cost": null});
        let (book, plan) = book_of(&chat, some);
        let row = book.row(part(0)).unwrap();
        assert_eq!(spent(row), ["≥ 5", "≥ 6", "–"]);
        assert!(report(&book, &plan).starts_with("some-model of the chat API at https://"));
    }
}
