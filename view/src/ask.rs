//! The questions that a URL can ask. Every piece of a path is parsed to a number or a name before
//! anything is done with it; nothing of a URL is ever used as a key of the store or as a file name.

use crate::refusal::{Refusal, RefusalKind};

/// A question to a [`crate::Answers`].
#[derive(Debug, Clone, PartialEq)]
pub enum Ask {
    /// Every run of the store.
    Runs,
    /// A run's state, evaluations and config.
    Run(String),
    /// How far the store has been read for it.
    Progress(String),
    /// Its curves.
    Series(String),
    /// Its episodes.
    Episodes(String, Box<EpisodeFilter>),
    /// A part's commit.
    Part(String, PartRef),
    /// An episode of a part, by its place there.
    Episode(String, PartRef, u32),
    /// Why its tokens have their advantages.
    Credit(String, PartRef, u32),
    /// What its environment looked like at each turn.
    Scenes(String, PartRef, u32),
    /// Tasks by evaluations.
    Tasks(String),
    /// Every attempt.
    Attempts(String),
    /// What it cost; with a price of a worker-hour for workers whose operators named none.
    Ledger(String, Option<f64>),
    /// The optimizer steps of an iteration.
    Update(String, u32),
    /// How the probabilities of its tokens changed: its batch, scored with the policy it made.
    Ratios(String, u32),
    /// An episode, scored with the policy that an iteration made.
    Rescored(String, PartRef, u32, u32),
    /// Two policies on the same tasks; each is `RUN` or `RUN:ITERATION`.
    Compare(String, String),
}

/// A part of a run.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PartRef {
    /// Its iteration.
    pub iteration: u32,
    /// Name of its stage.
    pub stage: String,
    /// Its number.
    pub part: u32,
}

/// Which episodes, and in which order.
#[derive(Debug, Clone, PartialEq)]
pub struct EpisodeFilter {
    /// Equal to one of these, by field: `env`, `task`, `outcome`, `stage`, `worker`, `parse`,
    /// `finish`, `greedy`.
    pub named: Vec<(String, String)>,
    /// Between two numbers, both inclusive, by field: `reward`, `advantage`, `turns`, `length`,
    /// `iteration`, `group`, `sample`.
    pub between: Vec<(String, f64, f64)>,
    /// Contains this text.
    pub text: Option<String>,
    /// `best`, `worst`, `unlucky` or `loops`.
    pub preset: Option<String>,
    /// Field to sort by; `-` before it for the largest first.
    pub sort: Option<String>,
    /// Rows to skip.
    pub cursor: usize,
    /// Rows to send.
    pub limit: usize,
}

/// Fields that are compared as names.
const NAMED: [&str; 8] = [
    "env", "task", "outcome", "stage", "worker", "parse", "finish", "greedy",
];
/// The values of fields that have a few fixed ones.
const PARSES: [&str; 3] = ["clean", "normalised", "invalid"];
const FINISHES: [&str; 2] = ["eos", "length"];
const YES_NO: [&str; 2] = ["true", "false"];
/// Fields that are compared as numbers: `x`, `x_min`, `x_max`.
const NUMBERS: [&str; 7] = [
    "reward",
    "advantage",
    "turns",
    "length",
    "iteration",
    "group",
    "sample",
];
const PRESETS: [&str; 4] = ["best", "worst", "unlucky", "loops"];
const SORTS: [&str; 7] = [
    "reward",
    "advantage",
    "length",
    "turns",
    "surprise",
    "mismatch",
    "iteration",
];
/// Rows of one answer.
const LIMIT: usize = 200;
const LIMIT_MAX: usize = 10_000;
/// Longest name or text in a URL.
const TEXT_MAX: usize = 200;

fn bad(message: String) -> Refusal {
    Refusal::new(RefusalKind::BadQuestion, message)
}

impl Ask {
    /// Reads a path below `/api/v1/` and a query, both still percent-encoded.
    ///
    /// # Errors
    /// No such question.
    pub fn parse(path: &str, query: &str) -> Result<Self, Refusal> {
        let pieces = path.trim_end_matches('/').split('/').map(decoded);
        let pieces: Vec<String> = pieces.collect::<Result<_, _>>()?;
        let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
        let query = pairs(query)?;
        let part = |n: &str, stage: &str, part: &str| {
            Ok::<_, Refusal>(PartRef {
                iteration: number("iteration", n)?,
                stage: name("stage", stage)?,
                part: number("part", part)?,
            })
        };
        let ask = match pieces.as_slice() {
            ["runs"] => Self::Runs,
            ["runs", run] => Self::Run(name("run", run)?),
            ["runs", run, "progress"] => Self::Progress(name("run", run)?),
            ["runs", run, "series"] => Self::Series(name("run", run)?),
            ["runs", run, "tasks"] => Self::Tasks(name("run", run)?),
            ["runs", run, "attempts"] => Self::Attempts(name("run", run)?),
            ["runs", run, "ledger"] => {
                return Ok(Self::Ledger(name("run", run)?, price(&query)?));
            }
            ["runs", run, "update", n] => Self::Update(name("run", run)?, number("iteration", n)?),
            ["runs", run, "update", n, "ratios"] => {
                Self::Ratios(name("run", run)?, number("iteration", n)?)
            }
            ["runs", run, "episodes"] => {
                let filter = EpisodeFilter::of(&query)?;
                return Ok(Self::Episodes(name("run", run)?, Box::new(filter)));
            }
            ["runs", run, "parts", n, stage, p] => {
                Self::Part(name("run", run)?, part(n, stage, p)?)
            }
            ["runs", run, "parts", n, stage, p, "episodes", k] => {
                let k = number("episode", k)?;
                Self::Episode(name("run", run)?, part(n, stage, p)?, k)
            }
            ["runs", run, "parts", n, stage, p, "episodes", k, "credit"] => {
                let k = number("episode", k)?;
                Self::Credit(name("run", run)?, part(n, stage, p)?, k)
            }
            ["runs", run, "parts", n, stage, p, "episodes", k, "scenes"] => {
                let k = number("episode", k)?;
                Self::Scenes(name("run", run)?, part(n, stage, p)?, k)
            }
            [
                "runs",
                run,
                "parts",
                n,
                stage,
                p,
                "episodes",
                k,
                "rescored",
                policy,
            ] => {
                let (k, policy) = (number("episode", k)?, number("policy", policy)?);
                Self::Rescored(name("run", run)?, part(n, stage, p)?, k, policy)
            }
            ["compare"] => {
                let side = |key: &str| {
                    let found = query.iter().find(|(known, _)| known == key);
                    let found = found.ok_or_else(|| bad(format!("compare needs {key}=RUN:N")))?;
                    name(key, &found.1)
                };
                return Ok(Self::Compare(side("a")?, side("b")?));
            }
            _ => {
                return Err(Refusal::new(
                    RefusalKind::NotFound,
                    "no such question; the data API begins at /api/v1/runs",
                ));
            }
        };
        match query.first() {
            None => Ok(ask),
            Some((key, _)) => Err(bad(format!("this question takes no `{key}`"))),
        }
    }
}

impl Default for EpisodeFilter {
    fn default() -> Self {
        Self {
            named: Vec::new(),
            between: Vec::new(),
            text: None,
            preset: None,
            sort: None,
            cursor: 0,
            limit: LIMIT,
        }
    }
}

impl EpisodeFilter {
    fn of(query: &[(String, String)]) -> Result<Self, Refusal> {
        let mut out = Self::default();
        for (key, value) in query {
            out.add(key, value)?;
        }
        Ok(out)
    }

    /// Adds a condition, an order or a size.
    ///
    /// # Errors
    /// No such field, or a value that it cannot have.
    pub fn add(&mut self, key: &str, value: &str) -> Result<(), Refusal> {
        let plain = key.trim_end_matches("_min").trim_end_matches("_max");
        match key {
            "text" => self.text = Some(short("text", value)?).filter(|t| !t.is_empty()),
            "preset" => self.preset = Some(one_of("preset", value, &PRESETS)?),
            "sort" => {
                one_of("sort", value.trim_start_matches('-'), &SORTS)?;
                self.sort = Some(value.to_owned());
            }
            "cursor" => self.cursor = number("cursor", value)? as usize,
            "limit" => self.limit = (number("limit", value)? as usize).min(LIMIT_MAX),
            _ if NAMED.contains(&key) => {
                match key {
                    _ if value.is_empty() => return Ok(()),
                    "parse" => one_of(key, value, &PARSES)?,
                    "finish" => one_of(key, value, &FINISHES)?,
                    "greedy" => one_of(key, value, &YES_NO)?,
                    _ => short(key, value)?,
                };
                self.named.push((key.to_owned(), value.to_owned()));
            }
            _ if NUMBERS.contains(&plain) => {
                let parsed: Result<f64, _> = value.parse();
                let bound = parsed
                    .ok()
                    .filter(|v| v.is_finite())
                    .ok_or_else(|| bad(format!("{key}={}: give a number", shown(value))))?;
                self.between.push(match key {
                    k if k.ends_with("_min") => (plain.to_owned(), bound, f64::INFINITY),
                    k if k.ends_with("_max") => (plain.to_owned(), f64::NEG_INFINITY, bound),
                    _ => (plain.to_owned(), bound, bound),
                });
            }
            _ => {
                return Err(bad(format!(
                    "episodes cannot be filtered by `{}`; they can by {}, {} (also _min, _max), text, preset; \
                     and sort, cursor, limit",
                    shown(key),
                    NAMED.join(", "),
                    NUMBERS.join(", ")
                )));
            }
        }
        Ok(())
    }
}

fn one_of(what: &str, value: &str, known: &[&str]) -> Result<String, Refusal> {
    match known.contains(&value) {
        true => Ok(value.to_owned()),
        false => Err(bad(format!(
            "{what}={}: it is one of {}",
            shown(value),
            known.join(", ")
        ))),
    }
}

/// The `price` of a query that has nothing else.
fn price(query: &[(String, String)]) -> Result<Option<f64>, Refusal> {
    match query {
        [] => Ok(None),
        [(key, value)] if key == "price" => {
            let price = value.parse().ok();
            let price = price.filter(|price: &f64| price.is_finite() && *price >= 0.0);
            price.map(Some).ok_or_else(|| {
                bad(format!(
                    "price={}: give the price of a worker-hour as a number, e.g. 2.10",
                    shown(value)
                ))
            })
        }
        [(key, _), ..] => Err(bad(format!("this question takes no `{}`", shown(key)))),
    }
}

fn number(what: &str, text: &str) -> Result<u32, Refusal> {
    text.parse()
        .map_err(|_| bad(format!("{what} {}: give a whole number", shown(text))))
}

/// A name as runs and stages have them.
fn name(what: &str, text: &str) -> Result<String, Refusal> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
    let is_name = !text.is_empty() && text.chars().all(fits) && !text.starts_with('.');
    match is_name && text.len() <= TEXT_MAX {
        true => Ok(text.to_owned()),
        false => Err(bad(format!("{what} `{}` is no name", shown(text)))),
    }
}

fn short(what: &str, text: &str) -> Result<String, Refusal> {
    match text.len() <= TEXT_MAX {
        true => Ok(text.to_owned()),
        false => Err(bad(format!("{what} is longer than {TEXT_MAX} bytes"))),
    }
}

/// Foreign text in a message: its start, without characters that a terminal obeys.
fn shown(text: &str) -> String {
    let plain = text.chars().take(40);
    plain
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}

fn pairs(query: &str) -> Result<Vec<(String, String)>, Refusal> {
    let fields = query.split('&').filter(|field| !field.is_empty());
    fields
        .map(|field| {
            let (key, value) = field.split_once('=').unwrap_or((field, ""));
            Ok((decoded(key)?, decoded(&value.replace('+', " "))?))
        })
        .collect()
}

/// Undoes percent-encoding.
fn decoded(text: &str) -> Result<String, Refusal> {
    let broken = || bad("the URL is not percent-encoded UTF-8".to_owned());
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || {
            let digit = rest.next().and_then(|b| char::from(b).to_digit(16));
            digit.ok_or_else(broken)
        };
        bytes.push((digit()? * 16 + digit()?) as u8);
    }
    String::from_utf8(bytes).map_err(|_| broken())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Ask, Refusal> {
        let (path, query) = url.split_once('?').unwrap_or((url, ""));
        Ask::parse(path, query)
    }

    #[test]
    fn every_question_is_read() {
        let part = PartRef {
            iteration: 3,
            stage: "rollout".into(),
            part: 1,
        };
        assert_eq!(parse("runs").unwrap(), Ask::Runs);
        assert_eq!(
            parse("runs/r-1/parts/3/rollout/1/episodes/7/credit").unwrap(),
            Ask::Credit("r-1".into(), part.clone(), 7)
        );
        assert_eq!(
            parse("runs/r-1/parts/3/rollout/1/episodes/7/scenes").unwrap(),
            Ask::Scenes("r-1".into(), part, 7)
        );
        assert_eq!(
            parse("compare?a=r%3A3&b=s").unwrap(),
            Ask::Compare("r:3".into(), "s".into())
        );
        let Ask::Episodes(run, filter) =
            parse("runs/r/episodes?env=worlds&reward_max=0.5&text=get+1&sort=-length&cursor=40")
                .unwrap()
        else {
            panic!("these are episodes");
        };
        assert_eq!(
            (run.as_str(), filter.cursor, filter.limit),
            ("r", 40, LIMIT)
        );
        assert_eq!(filter.named, [("env".to_owned(), "worlds".to_owned())]);
        assert_eq!(
            filter.between,
            [("reward".to_owned(), f64::NEG_INFINITY, 0.5)]
        );
        assert_eq!(filter.text.as_deref(), Some("get 1"));
    }

    #[test]
    fn what_is_no_question_is_refused_with_a_reason() {
        for (url, said) in [
            ("runs/..%2f..%2fetc", "is no name"),
            ("runs/..", "is no name"),
            ("runs/a%00b", "is no name"),
            ("runs/r/parts/x/rollout/0", "whole number"),
            ("runs/r/parts/1/rollout/-1", "whole number"),
            ("runs/r/parts/1/rol%2flout/1", "is no name"),
            (
                "runs/r/episodes?colour=red",
                "cannot be filtered by `colour`",
            ),
            ("runs/r/episodes?reward=NaN", "give a number"),
            ("runs/r/episodes?sort=luck", "one of reward"),
            ("runs/r/episodes?greedy=perhaps", "one of true, false"),
            ("runs/r/episodes?parse=bad", "one of clean"),
            ("runs/r/episodes?preset=%1b[2J", "one of best"),
            ("runs/r/series?x=1", "takes no `x`"),
            ("runs/r/ledger?x=1", "takes no `x`"),
            ("runs/r/series?price=2", "takes no `price`"),
            ("runs/r/ledger?price=-1", "price of a worker-hour"),
            ("runs/r/ledger?price=xyz", "price of a worker-hour"),
            ("runs/%zz", "percent-encoded"),
            ("runs/%ff", "percent-encoded"),
            ("compare?a=r", "needs b"),
            ("", "begins at"),
            ("runs/r/secrets", "begins at"),
        ] {
            let refusal = parse(url).unwrap_err();
            assert!(refusal.message.contains(said), "{url}: {refusal}");
            assert!(!refusal.message.contains('\u{1b}'), "{url}");
        }
    }
}
