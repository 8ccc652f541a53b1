//! The viewer's questions on the terminal: `ledger`, `episodes` and `compare`. The answers are the
//! documents that the pages draw, computed in one place ([`crate::api`]); here they become tables.

use crate::api::answer;
use crate::cli::{CompareArgs, EpisodesArgs, Global};
use crate::workers::short_worker;
use crate::{Error, Result, text};
use agentgym_storage::Store;
use agentgym_view::Ask;
use serde_json::{Value, json};

/// Tasks that a comparison names on each side.
const TASKS_MAX: usize = 20;

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(0.0)
}

fn words(value: &Value) -> &str {
    value.as_str().unwrap_or("–")
}

fn figure(value: &Value) -> String {
    text::share(value.as_f64())
}

/// Money with three digits that say something, and at least cents.
fn money(value: &Value) -> String {
    match value.as_f64() {
        None => "–".to_owned(),
        Some(0.0) => "0".to_owned(),
        Some(cost) => {
            let digits = 2 - cost.abs().log10().floor() as i32;
            format!("{cost:.*}", digits.clamp(2, 9) as usize)
        }
    }
}

fn spent(value: &Value) -> String {
    match value.as_f64() {
        None => "–".to_owned(),
        Some(0.0) => "0 s".to_owned(),
        Some(seconds) => text::seconds(seconds),
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn parsed(path: &str, query: &[(String, String)]) -> Result<Ask> {
    let mut encoded = url::form_urlencoded::Serializer::new(String::new());
    encoded.extend_pairs(query);
    Ask::parse(path, &encoded.finish()).map_err(|e| Error::Usage(e.message))
}

async fn show(
    store: Store,
    ask: &Ask,
    global: &Global,
    render: impl FnOnce(&Value) -> String,
) -> Result<()> {
    let found = answer(store, ask, global).await?;
    match global.json {
        true => text::emit_json(&found),
        false => text::emit(&render(&found)),
    }
    Ok(())
}

/// `ledger RUN`.
pub(crate) async fn ledger(store: Store, run: &str, global: &Global) -> Result<()> {
    show(
        store,
        &Ask::Ledger(run.to_owned(), None),
        global,
        ledger_text,
    )
    .await
}

fn ledger_text(found: &Value) -> String {
    let total = &found["total"];
    let priced = !total["cost"].is_null();
    let row = |line: &Value, name: &str| {
        let who = words(&line[name]);
        let mut cells = vec![
            match name {
                "worker" => short_worker(who),
                _ => who.to_owned(),
            },
            format!("{} of {}", line["lost_attempts"], line["attempts"]),
            spent(&line["useful_s"]),
            spent(&line["lost_s"]),
            spent(&line["idle_s"]),
        ];
        if priced {
            cells.extend(["cost", "lost_cost"].map(|key| money(&line[key])));
        }
        cells
    };
    let table = |name: &str, lines: &[&Value]| {
        let mut head = vec![name, "lost", "useful", "lost time", "idle"];
        if priced {
            head.extend(["cost", "of it lost"]);
        }
        let rows: Vec<Vec<String>> = lines.iter().map(|line| row(line, name)).collect();
        text::table(&head, &rows)
    };
    let mut stages: Vec<&Value> = list(&found["stages"]).iter().collect();
    stages.push(total);
    let workers: Vec<&Value> = list(&found["workers"]).iter().collect();
    let mut out = format!("run {}\n", words(&found["run"]));
    out += &table("stage", &stages);
    out += &table("worker", &workers);
    let lost: Vec<Vec<String>> = list(&found["lost"])
        .iter()
        .map(|line| {
            vec![
                words(&line["part"]).to_owned(),
                line["attempt"].to_string(),
                short_worker(words(&line["worker"])),
                words(&line["outcome"]).to_owned(),
                spent(&line["lost_s"]),
                money(&line["lost_cost"]),
            ]
        })
        .collect();
    if !lost.is_empty() {
        let head = ["lost part", "attempt", "worker", "how", "time", "cost"];
        out += &text::table(&head, &lost);
        out += "lost time ends with the next attempt's start; turns that this took up from a journal are in it\n";
    }
    out += &format!(
        "solved episodes trained on: {}",
        number(&found["solved_episodes"])
    );
    if let Some(each) = found["worker_s_per_solved_episode"].as_f64() {
        out += &format!("; {} of a worker for each", text::seconds(each));
    }
    if let Some(each) = found["cost_per_solved_episode"].as_f64() {
        out += &format!(", {} in money", money(&json!(each)));
    }
    out.push('\n');
    let unpriced = number(&total["unpriced_s"]);
    if !priced {
        out += "no worker has said what it costs; `agentgym-worker --price` does\n";
    } else if unpriced > 0.0 {
        out += &format!(
            "{} are of workers without a price, and in no cost\n",
            text::seconds(unpriced)
        );
    }
    out
}

/// `credit RUN N --pull`.
pub(crate) async fn pull(store: Store, run: &str, n: u32, global: &Global) -> Result<()> {
    let ask = Ask::Update(run.to_owned(), n);
    let found = answer(store, &ask, global).await?;
    let found = json!({
        "run": found["run"], "iteration": n, "aggregation": found["settings"]["loss"]["aggregation"],
        "kl_loss": found["settings"]["loss"]["kl"].is_object(), "tokens": found["tokens"],
    });
    match global.json {
        true => text::emit_json(&found),
        false => text::emit(&pull_text(&found)),
    }
    Ok(())
}

/// Characters of a token's text.
const PIECE_MAX: usize = 14;

fn pull_text(found: &Value) -> String {
    let small = |value: &Value| format!("{:.2e}", number(value));
    let rows: Vec<Vec<String>> = list(&found["tokens"])
        .iter()
        .map(|token| {
            let place = match token["part"].as_str() {
                Some(part) => format!("{part}/{}", token["k"]),
                None => format!("{}/{}", token["group"], token["sample"]),
            };
            let piece = match token["piece"].as_str() {
                Some(piece) => format!("{piece:?}"),
                None => format!("id {}", token["id"]),
            };
            vec![
                small(&token["pull"]),
                format!("{:+.3}", number(&token["advantage"])),
                small(&token["weight"]),
                match number(&token["p"]) {
                    p if p < 1e-3 => format!("{p:.0e}"),
                    p => format!("{p:.4}"),
                },
                place,
                (token["turn"].as_u64()).map_or_else(|| "–".into(), |turn| (turn + 1).to_string()),
                token["index"].to_string(),
                match piece.chars().count() > PIECE_MAX {
                    true => piece.chars().take(PIECE_MAX - 1).chain(['…']).collect(),
                    false => piece,
                },
            ]
        })
        .collect();
    if rows.is_empty() {
        return "no token pulls: none has an advantage\n".to_owned();
    }
    let head = [
        "pull", "A", "weight", "p", "episode", "turn", "token", "text",
    ];
    format!(
        "{}pull = |∂loss/∂log p| · (1 − p) where the policy is still the old one;\n\
         ∂loss/∂log p = −A · weight{}; weight: {}'s\n",
        text::table(&head, &rows),
        match found["kl_loss"].as_bool() {
            Some(true) => " + the KL term's",
            _ => "",
        },
        found["aggregation"].as_str().unwrap_or("loss_agg_mode"),
    )
}

/// `episodes RUN`.
pub(crate) async fn episodes(store: Store, args: &EpisodesArgs, global: &Global) -> Result<()> {
    let mut query = Vec::new();
    let mut add = |key: &str, value: &str| query.push((key.to_owned(), value.to_owned()));
    let presets = [
        (args.best, "best"),
        (args.worst, "worst"),
        (args.unlucky, "unlucky"),
        (args.loops, "loops"),
    ];
    for (_, name) in presets.iter().filter(|(asked, _)| *asked) {
        add("preset", name);
    }
    for condition in &args.conditions {
        let (key, value) = condition.split_once('=').ok_or_else(|| {
            Error::Usage(format!(
                "--where {condition}: write KEY=VALUE, e.g. env=textcraft or reward_max=0.5"
            ))
        })?;
        if matches!(key, "preset" | "sort" | "cursor" | "limit") {
            return Err(Error::Usage(format!(
                "--where {key}: this is an option of its own"
            )));
        }
        add(key, value);
    }
    if let Some(text) = &args.text {
        add("text", text);
    }
    if let Some(sort) = &args.sort {
        add("sort", sort);
    }
    add("limit", &args.limit.to_string());
    let ask = parsed(&format!("runs/{}/episodes", args.run), &query)?;
    let place = store.argument();
    show(store, &ask, global, |found| episodes_text(found, &place)).await
}

fn episodes_text(found: &Value, store: &str) -> String {
    let rows: Vec<Vec<String>> = list(&found["rows"])
        .iter()
        .map(|row| {
            let flags = [
                ("loops", "loops"),
                ("cut", "cut"),
                ("invalid", "no action"),
                ("normalised", "normalised"),
            ];
            let of = |key: &str| match &row[key] {
                Value::Bool(flag) => *flag,
                count => number(count) > 0.0,
            };
            let flags: Vec<&str> = flags
                .iter()
                .filter(|(key, _)| of(key))
                .map(|(_, w)| *w)
                .collect();
            vec![
                format!("{}/{}", words(&row["part"]), row["k"]),
                words(&row["task"]).to_owned(),
                match row["greedy"] {
                    Value::Bool(true) => format!("{}/greedy", row["group"]),
                    _ => format!("{}/{}", row["group"], row["sample"]),
                },
                words(&row["outcome"]).to_owned(),
                figure(&row["reward"]),
                figure(&row["advantage"]),
                row["turns"].to_string(),
                row["length"].to_string(),
                flags.join(", "),
            ]
        })
        .collect();
    let count = |key: &str| number(&found[key]) as u64;
    let (total, all) = (count("total"), count("of"));
    let mut out = match total {
        0 => format!("0 of {}", text::many(all, "episode")),
        _ => format!("{} of {}", rows.len(), text::many(total, "episode")),
    };
    if 0 < total && total < all {
        out += &format!(", of {} in all", text::count(all));
    }
    out.push('\n');
    for message in list(&found["absent"]) {
        out += &format!("{}\n", words(message));
    }
    if !rows.is_empty() {
        let head = [
            "episode",
            "task",
            "group",
            "outcome",
            "reward",
            "advantage",
            "turns",
            "tokens",
            "notes",
        ];
        out += &text::table(&head, &rows);
        let first = &list(&found["rows"])[0];
        let part = words(&first["part"]).replace('/', " ");
        out += &format!(
            "in full: agentgym-submit inspect {} {part} --group {} --sample {} --store {store}\n",
            words(&found["run"]),
            first["group"],
            first["sample"]
        );
    }
    for message in list(&found["unreadable"]) {
        out += &format!(
            "not among them, since it cannot be read: {}\n",
            words(message)
        );
    }
    out
}

/// `compare A B`, or a table of A, B and more.
pub(crate) async fn compare(store: Store, args: &CompareArgs, global: &Global) -> Result<()> {
    let ask = |other: &String| {
        let sides = [("a", &args.a), ("b", other)];
        let query = sides.map(|(key, side)| (key.to_owned(), side.clone()));
        parsed("compare", &query)
    };
    if args.more.is_empty() {
        let place = store.argument();
        let render = |found: &Value| compare_text(found, &place);
        return show(store, &ask(&args.b)?, global, render).await;
    }
    let mut pairs = Vec::new();
    for other in [&args.a, &args.b].into_iter().chain(&args.more) {
        pairs.push(answer(store.clone(), &ask(other)?, global).await?);
    }
    match global.json {
        true => text::emit_json(&json!({"pairs": pairs.split_off(1)})),
        false => text::emit(&several_text(&pairs)),
    }
    Ok(())
}

/// A table of a policy, compared with itself, and others.
fn several_text(pairs: &[Value]) -> String {
    let count = |found: &Value, key: &str| (number(&found[key]) as u64).to_string();
    let line = |(index, found): (usize, &Value)| {
        let beside = match index {
            0 => ["–"; 4].map(str::to_owned),
            _ => [
                figure(&found["a"]["success"]),
                count(found, "gained"),
                count(found, "lost"),
                chance(found),
            ],
        };
        let policy = &found["b"];
        let name = format!("{} {}", words(&policy["run"]), policy["iteration"]);
        let own = [
            name,
            count(found, "tasks"),
            figure(&policy["success"]),
            figure(&policy["greedy"]),
        ];
        own.into_iter().chain(beside).collect::<Vec<_>>()
    };
    let lines: Vec<_> = pairs.iter().enumerate().map(line).collect();
    let head = [
        "run, iteration",
        "tasks",
        "success",
        "greedy",
        "first's",
        "gained",
        "lost",
        "p",
    ];
    let note = "on the tasks of both, beside the first; success is that of the samples, p the exact sign test's";
    format!("{}{note}\n", text::table(&head, &lines))
}

/// The p of a comparison.
fn chance(found: &Value) -> String {
    match number(&found["p"]) {
        p if p < 1e-3 => format!("{p:.1e}"),
        p => format!("{p:.4}"),
    }
}

fn compare_text(found: &Value, store: &str) -> String {
    let side = |key: &str| {
        let side = &found[key];
        format!(
            "{key}  {} iteration {}  success {}\n",
            words(&side["run"]),
            side["iteration"],
            figure(&side["success"])
        )
    };
    let count = |key: &str| number(&found[key]) as u64;
    let mut out = side("a") + &side("b");
    if count("tasks") == 0 {
        return out + "no task was evaluated by both: nothing can be compared\n";
    }
    out += &format!(
        "{} of both: {} gained, {} lost, {} the same; exact sign test p = {}\n\
         success is that of the samples; greedy episodes are not among them\n",
        text::many(count("tasks"), "task"),
        count("gained"),
        count("lost"),
        count("same"),
        chance(found)
    );
    for (word, sign) in [("gained", 1.0), ("lost", -1.0)] {
        let mut rows: Vec<&Value> = list(&found["rows"])
            .iter()
            .filter(|row| number(&row["change"]) * sign > 0.0)
            .collect();
        let size = |row: &Value| number(&row["change"]).abs();
        rows.sort_by(|x, y| size(y).total_cmp(&size(x)));
        if rows.is_empty() {
            continue;
        }
        let lines: Vec<Vec<String>> = rows
            .iter()
            .take(TASKS_MAX)
            .map(|row| {
                vec![
                    words(&row["task"]).to_owned(),
                    figure(&row["a"]["success"]),
                    figure(&row["b"]["success"]),
                    format!("{:+.3}", number(&row["change"])),
                    words(&row["b"]["part"]).to_owned(),
                ]
            })
            .collect();
        out += &text::table(&[word, "a", "b", "change", "part of b"], &lines);
        if rows.len() > TASKS_MAX {
            out += &format!(
                "  and {} more; --json has them all\n",
                rows.len() - TASKS_MAX
            );
        }
        for key in ["a", "b"] {
            let cell = &rows[0][key];
            out += &format!(
                "{} of {key} in full: agentgym-submit inspect {} {} --group {} --store {store}\n",
                words(&rows[0]["task"]),
                words(&found[key]["run"]),
                words(&cell["part"]).replace('/', " "),
                cell["group"]
            );
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_gained_and_lost_are_named_by_size() {
        let row = |task: &str, a: f64, b: f64| json!({"task": task, "a": {"success": a, "part": "0/evaluate/0", "group": 2}, "b": {"success": b, "part": "4/evaluate/0", "group": 2}, "change": b - a});
        let found = json!({
            "a": {"run": "r", "iteration": 0, "success": 0.25}, "b": {"run": "r", "iteration": 4, "success": 0.5},
            "tasks": 4, "gained": 2, "lost": 1, "same": 1, "p": 1.0,
            "rows": [row("w_1", 0.0, 0.25), row("w_2", 0.0, 1.0), row("w_3", 0.5, 0.25), row("w_4", 0.5, 0.5)],
        });
        insta::assert_snapshot!(compare_text(&found, "s"), @r"
        a  r iteration 0  success 0.250
        b  r iteration 4  success 0.500
        4 tasks of both: 2 gained, 1 lost, 1 the same; exact sign test p = 1.0000
        success is that of the samples; greedy episodes are not among them
          gained      a      b  change     part of b
          w_2     0.000  1.000  +1.000  4/evaluate/0
          w_1     0.000  0.250  +0.250  4/evaluate/0
        w_2 of a in full: agentgym-submit inspect r 0 evaluate 0 --group 2 --store s
        w_2 of b in full: agentgym-submit inspect r 4 evaluate 0 --group 2 --store s
          lost      a      b  change     part of b
          w_3   0.500  0.250  -0.250  4/evaluate/0
        w_3 of a in full: agentgym-submit inspect r 0 evaluate 0 --group 2 --store s
        w_3 of b in full: agentgym-submit inspect r 4 evaluate 0 --group 2 --store s
        ");
    }

    #[test]
    fn several_policies_stand_in_one_table() {
        let pair = |run: &str, success: f64, gained: u32, lost: u32, p: f64| {
            json!({
                "a": {"run": "ours", "iteration": 4, "success": 0.5, "greedy": 0.75},
                "b": {"run": run, "iteration": 0, "success": success, "greedy": null},
                "tasks": 20, "gained": gained, "lost": lost, "same": 0, "p": p, "rows": [],
            })
        };
        let found = [
            pair("ours", 0.5, 0, 0, 1.0),
            pair("phi3", 0.0, 0, 14, 1.2e-4),
            pair("chat", 0.625, 4, 2, 0.6875),
        ];
        insta::assert_snapshot!(several_text(&found), @"
          run, iteration  tasks  success  greedy  first's  gained  lost       p
          ours 0             20    0.500       –        –       –     –       –
          phi3 0             20    0.000       –    0.500       0    14  1.2e-4
          chat 0             20    0.625       –    0.500       4     2  0.6875
        on the tasks of both, beside the first; success is that of the samples, p the exact sign test's
        ");
    }

    #[test]
    fn money_keeps_three_digits_that_say_something() {
        let shown = [0.0, 12.3456, 1.5, 0.0301, 0.000_277_4].map(|cost| money(&json!(cost)));
        assert_eq!(shown, ["0", "12.35", "1.50", "0.0301", "0.000277"]);
        assert_eq!(money(&Value::Null), "–");
    }

    #[test]
    fn a_ledger_without_prices_says_so() {
        let total = json!({"stage": "all", "attempts": 3, "lost_attempts": 1, "useful_s": 12.0, "lost_s": 4.0, "idle_s": 1.0, "cost": null, "unpriced_s": 17.0});
        let mut found = json!({"run": "r", "total": total, "stages": [], "workers": [], "solved_episodes": 4.0, "worker_s_per_solved_episode": 4.25, "cost_per_solved_episode": null});
        let told = ledger_text(&found);
        assert!(told.contains("no worker has said what it costs"), "{told}");
        assert!(told.contains("4.2 s of a worker for each"), "{told}");
        found["total"]["cost"] = json!(0.5);
        let told = ledger_text(&found);
        assert!(
            told.contains("of it lost") && told.contains("in no cost"),
            "{told}"
        );
    }

    #[test]
    fn a_condition_is_a_field_with_a_value() {
        let asked = |key: &str, value: &str| {
            parsed("runs/r/episodes", &[(key.to_owned(), value.to_owned())])
        };
        let Ask::Episodes(_, filter) = asked("text", "a b&c=d%20").unwrap() else {
            panic!("these are episodes");
        };
        assert_eq!(filter.text.as_deref(), Some("a b&c=d%20"));
        let wrong = asked("colour", "red").unwrap_err().to_string();
        assert!(wrong.contains("cannot be filtered by `colour`"), "{wrong}");
    }

    #[test]
    fn lost_attempts_are_named_and_tables_keep_80_columns() {
        let worker = "gpu-box-d08d2c76-4026531836:2143:5300419/0";
        let total = json!({"stage": "all", "attempts": 3, "lost_attempts": 1, "useful_s": 12345.0, "lost_s": 4.0, "idle_s": 1.0, "cost": 0.5, "lost_cost": 0.00222, "unpriced_s": 0.0});
        let lost = json!({"part": "12/log_probs/7", "attempt": 1, "worker": worker, "outcome": "superseded", "lost_s": 4.0, "lost_cost": 0.00222, "message": ""});
        let found = json!({"run": "r", "total": total, "stages": [], "workers": [], "lost": [lost], "solved_episodes": 4.0});
        let told = ledger_text(&found);
        let line = told.lines().find(|line| line.contains("12/log_probs/7"));
        let line = line.unwrap_or_else(|| panic!("{told}"));
        assert!(
            line.contains("gpu-box:2143/0") && line.ends_with("0.00222"),
            "{told}"
        );
        let token = json!({"pull": 2.5e-4, "advantage": -1.25, "weight": 2.5e-4, "slope": 3.1e-4, "p": 0.2, "part": "12/rollout/7", "k": 63,
            "group": 31, "sample": 7, "index": 12345, "turn": 18, "id": 9, "piece": " incomprehensible\n"});
        let told = pull_text(
            &json!({"tokens": [token], "aggregation": "seq_mean_token_mean", "kl_loss": true}),
        );
        assert!(
            told.contains("12/rollout/7/63    19  12345  \" incomprehen…"),
            "{told}"
        );
        assert!(told.contains("KL term") && told.contains("seq_mean_token_mean's"));
        for line in told.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }

    #[test]
    fn a_value_that_no_episode_has_is_answered_with_those_that_there_are() {
        let told = episodes_text(
            &json!({"run": "r", "total": 0, "of": 255, "rows": [], "absent": ["no episode has task=x: there are a_1"]}),
            "s",
        );
        assert_eq!(
            told,
            "0 of 255 episodes\nno episode has task=x: there are a_1\n"
        );
    }
}
