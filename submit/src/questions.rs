//! The viewer's questions on the terminal: `ledger`, `episodes`, `compare` and `credit --pull`. The
//! answers are the documents that the pages draw, computed in one place ([`crate::api`]); here they
//! become tables.

use crate::api::Reader;
use crate::api::episodes::{EpisodeList, EpisodeRow};
use crate::api::fleet::{Idle, Ledger, Moved, Spent};
use crate::api::tasks::{Comparison, Pair, ShownCell, Side};
use crate::api::update::PullingToken;
use crate::cli::{CompareArgs, EpisodesArgs, Global};
use crate::workers::short_worker;
use crate::{Error, Result, text};
use agentgym_storage::Store;
use agentgym_view::EpisodeFilter;
use serde::Serialize;

/// Tasks that a comparison names on each side.
const TASKS_MAX: usize = 20;

/// Money with three digits that say something, and at least cents.
fn money(cost: Option<f64>) -> String {
    match cost {
        None => "–".to_owned(),
        Some(0.0) => "0".to_owned(),
        Some(cost) => {
            let digits = 2 - cost.abs().log10().floor() as i32;
            format!("{cost:.*}", digits.clamp(2, 9) as usize)
        }
    }
}

fn seconds(spent: f64) -> String {
    match spent {
        0.0 => "0 s".to_owned(),
        spent => text::seconds(spent),
    }
}

fn show<T: Serialize>(found: &T, global: &Global, render: impl FnOnce(&T) -> String) {
    match global.json {
        true => text::emit_json(found),
        false => text::emit(&render(found)),
    }
}

/// `ledger RUN`.
pub(crate) async fn ledger(store: Store, run: &str, global: &Global) -> Result<()> {
    let found = Reader::new(store, global).ledger(run, None).await?;
    show(&found, global, ledger_text);
    Ok(())
}

fn ledger_text(found: &Ledger) -> String {
    let total = &found.total;
    let priced = total.spent.cost.is_some();
    let moved = total.spent.moved != Moved::default();
    let row = |name: String, spent: &Spent, idle: Option<&Idle>| {
        let mut cells = vec![
            name,
            format!("{} of {}", spent.lost_attempts, spent.attempts),
            seconds(spent.useful_s),
            seconds(spent.lost_s),
            idle.map_or_else(|| "–".to_owned(), |idle| seconds(idle.idle_s)),
        ];
        if moved {
            let of = spent.moved;
            cells.extend([of.put_bytes, of.got_bytes].map(text::bytes));
            cells.push(seconds(of.store_waited_s));
        }
        if priced {
            cells.extend([spent.cost, spent.lost_cost].map(money));
        }
        cells
    };
    let table = |name: &str, rows: Vec<Vec<String>>| {
        let mut head = vec![name, "lost", "useful", "lost time", "idle"];
        if moved {
            head.extend(["put", "got", "waited for store"]);
        }
        if priced {
            head.extend(["cost", "of it lost"]);
        }
        text::table(&head, &rows)
    };
    let stages = found.stages.iter();
    let mut stages: Vec<_> = stages
        .map(|of| row(of.stage.clone(), &of.spent, None))
        .collect();
    stages.push(row(total.stage.clone(), &total.spent, Some(&total.idle)));
    let workers = found.workers.iter();
    let workers = workers.map(|of| row(short_worker(&of.worker), &of.spent, Some(&of.idle)));
    let mut out = format!("run {}\n", found.run);
    out += &table("stage", stages);
    out += &table("worker", workers.collect());
    let lost = found.lost.iter().map(|line| {
        vec![
            line.part.clone(),
            line.attempt.to_string(),
            short_worker(&line.worker),
            line.outcome.to_owned(),
            seconds(line.lost_s),
            money(line.lost_cost),
        ]
    });
    let lost: Vec<Vec<String>> = lost.collect();
    if !lost.is_empty() {
        let head = ["lost part", "attempt", "worker", "how", "time", "cost"];
        out += &text::table(&head, &lost);
        out += "lost time ends with the next attempt's start; turns that this took up from a journal are in it\n";
    }
    let again = total.spent.moved;
    if again.updates_made_again > 0 {
        out += &format!(
            "{} made again in {}, since the optimizer's state was not stored when its worker died (trainer.state_freq)\n",
            text::many(again.updates_made_again, "update"),
            text::seconds(again.made_again_s)
        );
    }
    if again.environments_s > 0.0 {
        out += &format!(
            "environments and harnesses took {} of their episodes' time, summed over those played at once\n",
            text::seconds(again.environments_s)
        );
    }
    out += &format!("solved episodes trained on: {}", found.solved_episodes);
    if let Some(each) = found.worker_s_per_solved_episode {
        out += &format!("; {} of a worker for each", text::seconds(each));
    }
    if let Some(each) = found.cost_per_solved_episode {
        out += &format!(", {} in money", money(Some(each)));
    }
    out.push('\n');
    if !priced {
        out += "no worker has said what it costs; `agentgym-worker --price` does\n";
    } else if total.unpriced_s > 0.0 {
        out += &format!(
            "{} are of workers without a price, and in no cost\n",
            text::seconds(total.unpriced_s)
        );
    }
    out
}

/// `credit RUN N --pull`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct PullDocument {
    run: String,
    iteration: u32,
    /// `loss_agg_mode`; none while the update is being computed.
    aggregation: Option<String>,
    kl_loss: bool,
    tokens: Vec<PullingToken>,
}

pub(crate) async fn pull(store: Store, run: &str, n: u32, global: &Global) -> Result<()> {
    let found = Reader::new(store, global).update(run, n).await?;
    let loss = found.settings.map(|settings| settings.loss);
    let found = PullDocument {
        run: found.run,
        iteration: n,
        aggregation: loss.as_ref().map(|loss| loss.aggregation.to_string()),
        kl_loss: loss.is_some_and(|loss| loss.kl.is_some()),
        tokens: found.tokens,
    };
    show(&found, global, pull_text);
    Ok(())
}

/// Characters of a token's text.
const PIECE_MAX: usize = 14;

fn pull_text(found: &PullDocument) -> String {
    let small = |value: f64| format!("{value:.2e}");
    let row = |token: &PullingToken| {
        let at = &token.place;
        let place = match (&at.part, at.k) {
            (Some(part), Some(k)) => format!("{part}/{k}"),
            _ => format!("{}/{}", at.group, at.sample),
        };
        let piece = match &token.piece {
            Some(piece) => format!("{piece:?}"),
            None => format!("id {}", token.id),
        };
        vec![
            small(token.pull),
            format!("{:+.3}", token.advantage),
            small(token.weight),
            match token.p {
                p if p < 1e-3 => format!("{p:.0e}"),
                p => format!("{p:.4}"),
            },
            place,
            token
                .turn
                .map_or_else(|| "–".into(), |turn| (turn + 1).to_string()),
            at.index.to_string(),
            match piece.chars().count() > PIECE_MAX {
                true => piece.chars().take(PIECE_MAX - 1).chain(['…']).collect(),
                false => piece,
            },
        ]
    };
    let rows: Vec<Vec<String>> = found.tokens.iter().map(row).collect();
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
        match found.kl_loss {
            true => " + the KL term's",
            false => "",
        },
        found.aggregation.as_deref().unwrap_or("loss_agg_mode"),
    )
}

/// The filter that the options of `episodes` make.
fn filter(args: &EpisodesArgs) -> Result<EpisodeFilter> {
    let mut filter = EpisodeFilter::default();
    let mut add = |key: &str, value: &str| {
        let added = filter.add(key, value);
        added.map_err(|e| Error::Usage(e.message))
    };
    let presets = [
        (args.best, "best"),
        (args.worst, "worst"),
        (args.unlucky, "unlucky"),
        (args.loops, "loops"),
    ];
    for (_, name) in presets.iter().filter(|(asked, _)| *asked) {
        add("preset", name)?;
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
        add(key, value)?;
    }
    let options = [("text", &args.text), ("sort", &args.sort)];
    for (key, value) in options {
        value.as_deref().map_or(Ok(()), |value| add(key, value))?;
    }
    add("limit", &args.limit.to_string())?;
    Ok(filter)
}

/// `episodes RUN`.
pub(crate) async fn episodes(store: Store, args: &EpisodesArgs, global: &Global) -> Result<()> {
    let (filter, place) = (filter(args)?, store.argument());
    let found = Reader::new(store, global)
        .episodes(&args.run, &filter)
        .await?;
    show(&found, global, |found| episodes_text(found, &place));
    Ok(())
}

fn episodes_text(found: &EpisodeList, store: &str) -> String {
    let row = |listed: &EpisodeRow| {
        let row = &listed.row;
        let flags = [
            (listed.loops, "loops"),
            (row.cut > 0, "cut"),
            (row.invalid > 0, "no action"),
            (row.normalised > 0, "normalised"),
        ];
        let flags = flags.iter().filter(|(is_so, _)| *is_so);
        let flags: Vec<&str> = flags.map(|(_, word)| *word).collect();
        vec![
            format!("{}/{}", listed.part, row.k),
            listed.task.clone(),
            match listed.greedy {
                true => format!("{}/greedy", row.group),
                false => format!("{}/{}", row.group, row.sample),
            },
            row.outcome.name().to_owned(),
            text::share(Some(row.reward)),
            text::share(listed.advantage),
            row.turns.to_string(),
            row.length.to_string(),
            flags.join(", "),
        ]
    };
    let rows: Vec<Vec<String>> = found.rows.iter().map(row).collect();
    let (total, all) = (found.total as u64, found.of as u64);
    let mut out = match total {
        0 => format!("0 of {}", text::many(all, "episode")),
        _ => format!("{} of {}", rows.len(), text::many(total, "episode")),
    };
    if 0 < total && total < all {
        out += &format!(", of {} in all", text::count(all));
    }
    out.push('\n');
    for message in &found.absent {
        out += &format!("{message}\n");
    }
    if let Some(first) = found.rows.first() {
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
        out += &format!(
            "in full: agentgym-submit inspect {} {} --group {} --sample {} --store {store}\n",
            found.run,
            first.part.replace('/', " "),
            first.row.group,
            first.row.sample
        );
    }
    for message in &found.unreadable {
        out += &format!("not among them, since it cannot be read: {message}\n");
    }
    out
}

/// `compare A B C…`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct PairsDocument {
    pairs: Vec<Comparison>,
}

/// `compare A B`, or a table of A, B and more.
pub(crate) async fn compare(store: Store, args: &CompareArgs, global: &Global) -> Result<()> {
    let place = store.argument();
    let reader = Reader::new(store, global);
    if args.more.is_empty() {
        let found = reader.compare(&args.a, &args.b).await?;
        show(&found, global, |found| compare_text(found, &place));
        return Ok(());
    }
    let mut pairs = Vec::new();
    for other in [&args.a, &args.b].into_iter().chain(&args.more) {
        pairs.push(reader.compare(&args.a, other).await?);
    }
    match global.json {
        true => text::emit_json(&PairsDocument {
            pairs: pairs.split_off(1),
        }),
        false => text::emit(&several_text(&pairs)),
    }
    Ok(())
}

/// A table of a policy, compared with itself, and others.
fn several_text(pairs: &[Comparison]) -> String {
    let line = |(index, found): (usize, &Comparison)| {
        let beside = match index {
            0 => ["–"; 4].map(str::to_owned),
            _ => [
                text::share(found.a.success),
                found.gained.to_string(),
                found.lost.to_string(),
                chance(found.p),
            ],
        };
        let policy = &found.b;
        let own = [
            format!("{} {}", policy.run, policy.iteration),
            found.tasks.to_string(),
            text::share(policy.success),
            text::share(policy.greedy),
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
fn chance(p: f64) -> String {
    match p {
        p if p < 1e-3 => format!("{p:.1e}"),
        p => format!("{p:.4}"),
    }
}

fn compare_text(found: &Comparison, store: &str) -> String {
    let sides = [("a", &found.a), ("b", &found.b)];
    let line = |(name, side): (&str, &Side)| {
        format!(
            "{name}  {} iteration {}  success {}\n",
            side.run,
            side.iteration,
            text::share(side.success)
        )
    };
    let mut out: String = sides.map(line).concat();
    if found.tasks == 0 {
        return out + "no task was evaluated by both: nothing can be compared\n";
    }
    out += &format!(
        "{} of both: {} gained, {} lost, {} the same; exact sign test p = {}\n\
         success is that of the samples; greedy episodes are not among them\n",
        text::many(u64::from(found.tasks), "task"),
        found.gained,
        found.lost,
        found.same,
        chance(found.p)
    );
    for (word, sign) in [("gained", 1.0), ("lost", -1.0)] {
        let rows = found.rows.iter().filter(|row| row.change * sign > 0.0);
        let mut rows: Vec<&Pair> = rows.collect();
        rows.sort_by(|x, y| y.change.abs().total_cmp(&x.change.abs()));
        let Some(first) = rows.first() else {
            continue;
        };
        let lines = rows.iter().take(TASKS_MAX).map(|row| {
            vec![
                row.task.clone(),
                text::share(row.a.success),
                text::share(row.b.success),
                format!("{:+.3}", row.change),
                row.b.part.clone().unwrap_or_else(|| "–".into()),
            ]
        });
        let lines: Vec<Vec<String>> = lines.collect();
        out += &text::table(&[word, "a", "b", "change", "part of b"], &lines);
        if rows.len() > TASKS_MAX {
            out += &format!(
                "  and {} more; --json has them all\n",
                rows.len() - TASKS_MAX
            );
        }
        let cells: [&ShownCell; 2] = [&first.a, &first.b];
        for ((name, side), cell) in sides.iter().zip(cells) {
            out += &format!(
                "{} of {name} in full: agentgym-submit inspect {} {} --group {} --store {store}\n",
                first.task,
                side.run,
                cell.part.as_deref().unwrap_or("–").replace('/', " "),
                cell.group
            );
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::fleet::{LostAttempt, TotalLine};
    use crate::api::rescore::TokenPlace;

    fn side(run: &str, iteration: u32, success: f64, greedy: Option<f64>) -> Side {
        Side {
            run: run.to_owned(),
            iteration,
            success: Some(success),
            greedy,
        }
    }

    #[test]
    fn tasks_gained_and_lost_are_named_by_size() {
        let cell = |success: f64, part: &str| ShownCell {
            part: Some(part.to_owned()),
            group: 2,
            success: Some(success),
            ..ShownCell::default()
        };
        let row = |task: &str, a: f64, b: f64| Pair {
            task: task.to_owned(),
            a: cell(a, "0/evaluate/0"),
            b: cell(b, "4/evaluate/0"),
            change: b - a,
        };
        let found = Comparison {
            a: side("r", 0, 0.25, None),
            b: side("r", 4, 0.5, None),
            tasks: 4,
            gained: 2,
            lost: 1,
            same: 1,
            p: 1.0,
            rows: vec![
                row("w_1", 0.0, 0.25),
                row("w_2", 0.0, 1.0),
                row("w_3", 0.5, 0.25),
                row("w_4", 0.5, 0.5),
            ],
        };
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
        let pair = |run: &str, success: f64, gained: u32, lost: u32, p: f64| Comparison {
            a: side("ours", 4, 0.5, Some(0.75)),
            b: side(run, 0, success, None),
            tasks: 20,
            gained,
            lost,
            p,
            ..Comparison::default()
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
        let shown = [0.0, 12.3456, 1.5, 0.0301, 0.000_277_4].map(|cost| money(Some(cost)));
        assert_eq!(shown, ["0", "12.35", "1.50", "0.0301", "0.000277"]);
        assert_eq!(money(None), "–");
    }

    #[test]
    fn a_ledger_without_prices_says_so() {
        let mut found = Ledger {
            run: "r".into(),
            total: TotalLine {
                spent: Spent {
                    useful_s: 12.0,
                    ..Spent::default()
                },
                unpriced_s: 17.0,
                ..TotalLine::default()
            },
            worker_s_per_solved_episode: Some(4.25),
            ..Ledger::default()
        };
        let told = ledger_text(&found);
        assert!(told.contains("no worker has said what it costs"), "{told}");
        assert!(told.contains("4.2 s of a worker for each"), "{told}");
        found.total.spent.cost = Some(0.5);
        let told = ledger_text(&found);
        assert!(
            told.contains("of it lost") && told.contains("in no cost"),
            "{told}"
        );
    }

    #[test]
    fn a_condition_is_a_field_with_a_value() {
        let asked = |key: &str, value: &str| {
            let mut filter = EpisodeFilter::default();
            filter.add(key, value).map(|()| filter)
        };
        let filter = asked("text", "a b&c=d%20").unwrap();
        assert_eq!(filter.text.as_deref(), Some("a b&c=d%20"));
        let wrong = asked("colour", "red").unwrap_err().message;
        assert!(wrong.contains("cannot be filtered by `colour`"), "{wrong}");
    }

    #[test]
    fn lost_attempts_are_named_and_tables_keep_80_columns() {
        let worker = "gpu-box-d08d2c76-4026531836:2143:5300419/0";
        let lost = LostAttempt {
            part: "12/log_probs/7".into(),
            attempt: 1,
            worker: worker.into(),
            outcome: "superseded",
            lost_s: 4.0,
            lost_cost: Some(0.00222),
            message: String::new(),
        };
        let found = Ledger {
            run: "r".into(),
            total: TotalLine {
                spent: Spent {
                    useful_s: 12345.0,
                    cost: Some(0.5),
                    lost_cost: Some(0.00222),
                    ..Spent::default()
                },
                ..TotalLine::default()
            },
            lost: vec![lost],
            ..Ledger::default()
        };
        let told = ledger_text(&found);
        let line = told.lines().find(|line| line.contains("12/log_probs/7"));
        let line = line.unwrap_or_else(|| panic!("{told}"));
        assert!(
            line.contains("gpu-box:2143/0") && line.ends_with("0.00222"),
            "{told}"
        );
        let token = PullingToken {
            place: TokenPlace {
                part: Some("12/rollout/7".into()),
                k: Some(63),
                index: 12345,
                ..TokenPlace::default()
            },
            pull: 2.5e-4,
            advantage: -1.25,
            weight: 2.5e-4,
            p: 0.2,
            turn: Some(18),
            piece: Some(" incomprehensible\n".into()),
            ..PullingToken::default()
        };
        let told = pull_text(&PullDocument {
            run: "r".into(),
            iteration: 12,
            aggregation: Some("seq_mean_token_mean".into()),
            kl_loss: true,
            tokens: vec![token],
        });
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
        let found = EpisodeList {
            of: 255,
            absent: vec!["no episode has task=x: there are a_1".into()],
            ..EpisodeList::default()
        };
        let told = episodes_text(&found, "s");
        assert_eq!(
            told,
            "0 of 255 episodes\nno episode has task=x: there are a_1\n"
        );
    }
}
