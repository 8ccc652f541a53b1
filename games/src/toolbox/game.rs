//! One task and its store. A task is a function of its item and the source's seed, and is made from
//! its solution: every number on the way has one or two digits.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use crate::draws::Draws;
use agentgym_envs::parser::tool_call::{Call, CallError};
use agentgym_envs::server::games::{Reply, TextGame};
use agentgym_envs::spec::games::toolbox::TOOLS;

/// Short, so that a small vocabulary has each as one token. Keys and numbers are told as calls name
/// them: a network of two layers copies what stands behind the same tokens.
const KEYS: [&str; 16] = [
    "ash", "bay", "cod", "dew", "elm", "fig", "gem", "hut", "ink", "jar", "kit", "log", "map",
    "net", "oak", "pit",
];
/// Longest key that a call may make, so that a store stays small.
const KEY_MAX: usize = 64;
const NUMBER_MAX: i64 = 99;
const DRAWN_MAX: i64 = 40;
const FACTOR_MAX: i64 = 9;

/// How many numbers a task may begin with.
pub(super) const TERMS: RangeInclusive<u32> = 1..=4;

/// What joins the number so far with the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sign {
    Plus,
    Minus,
    Times,
}

impl Sign {
    pub(super) const ALL: [Self; 3] = [Self::Plus, Self::Minus, Self::Times];

    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Plus => "plus",
            Self::Minus => "minus",
            Self::Times => "times",
        }
    }

    fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|sign| sign.word() == word)
    }

    /// `None` where 64 bits do not hold it.
    pub(super) fn of(self, a: i64, b: i64) -> Option<i64> {
        match self {
            Self::Plus => a.checked_add(b),
            Self::Minus => a.checked_sub(b),
            Self::Times => a.checked_mul(b),
        }
    }
}

/// What is to be done: the keys to read, and what joins each with those before it.
#[derive(Clone, Debug)]
pub(super) struct Task {
    pub(super) target: &'static str,
    pub(super) first: &'static str,
    pub(super) then: Vec<(Sign, &'static str)>,
}

#[derive(Clone, Debug)]
pub(super) struct Toolbox {
    task: Task,
    wanted: i64,
    stored: BTreeMap<String, i64>,
    last: Reply,
}

impl Toolbox {
    pub(super) fn start(seed: u64, terms: &RangeInclusive<u32>, item: &str) -> Self {
        let mut draws = Draws::new("toolbox", &[&seed.to_le_bytes(), item.as_bytes()]);
        let mut keys = KEYS;
        draws.shuffle(&mut keys);
        let [target, first, others @ ..] = keys;
        let between = |draws: &mut Draws, low: i64, high: i64| {
            low + draws.below((high - low + 1) as usize) as i64
        };
        let mut wanted = between(&mut draws, 1, DRAWN_MAX);
        let mut stored = BTreeMap::from([(first.to_owned(), wanted)]);
        let count = draws.between(terms.clone()) as usize;
        let mut then = Vec::new();
        for key in &others[..count - 1] {
            // Each range holds a number for every `wanted` from 0 to NUMBER_MAX that may take it.
            let factors = FACTOR_MAX.min(NUMBER_MAX / wanted.max(1));
            let (sign, low, high) = match draws.below(3) {
                0 if wanted < NUMBER_MAX => (Sign::Plus, 1, DRAWN_MAX.min(NUMBER_MAX - wanted)),
                1 if factors > 1 => (Sign::Times, 2, factors),
                _ => (Sign::Minus, 0, wanted.min(DRAWN_MAX)),
            };
            let number = between(&mut draws, low, high);
            wanted = sign.of(wanted, number).expect("both are small");
            stored.insert((*key).to_owned(), number);
            then.push((sign, *key));
        }
        let task = Task {
            target,
            first,
            then,
        };
        let observation = task.told();
        Self {
            task,
            wanted,
            stored,
            last: Reply {
                observation,
                reward: 0.0,
                done: false,
            },
        }
    }

    pub(super) fn task(&self) -> &Task {
        &self.task
    }

    fn played(&mut self, call: &Call) -> (String, bool) {
        let key = call.text("from").or(call.text("to"));
        let observation = match (call.tool, key, call.number("value")) {
            ("finish", ..) => return ("The task is over.".to_owned(), true),
            ("get", Some(key), _) => match self.stored.get(key) {
                Some(number) => value(*number),
                None => "Error: there is nothing under that key.".to_owned(),
            },
            ("put", Some(key), _) if key.chars().count() > KEY_MAX => {
                format!("Error: a key has at most {KEY_MAX} letters.")
            }
            ("put", Some(key), Some(number)) => {
                self.stored.insert(key.to_owned(), number);
                "Stored.".to_owned()
            }
            _ => computed(call),
        };
        (observation, false)
    }
}

impl TextGame for Toolbox {
    const NOUN: &'static str = "task";

    fn last(&self) -> &Reply {
        &self.last
    }

    /// Plays a call as a client sends it. One that no tool takes is answered and changes nothing.
    fn play(&mut self, action: &str) -> &Reply {
        let (observation, done) = match Call::read(TOOLS, action) {
            Ok(call) => self.played(&call),
            Err(error) => (refused(&error), false),
        };
        let solved = done && self.stored.get(self.task.target) == Some(&self.wanted);
        self.last = Reply {
            observation,
            reward: f64::from(u8::from(solved)),
            done,
        };
        &self.last
    }
}

fn computed(call: &Call) -> String {
    let Some(sign) = call.text("sign").and_then(Sign::named) else {
        return "Error: the sign is plus, minus or times.".to_owned();
    };
    let (a, b) = (call.number("a"), call.number("b"));
    let result = a.zip(b).and_then(|(a, b)| sign.of(a, b));
    result.map_or_else(
        || "Error: the result has more than 64 bits.".to_owned(),
        value,
    )
}

/// A number in an answer.
fn value(number: i64) -> String {
    format!(r#"{{"value": {number}}}"#)
}

fn refused(error: &CallError) -> String {
    format!("Error: {error}.")
}

impl Task {
    fn told(&self) -> String {
        let mut goal = format!(
            r#"Goal: {{"to": "{}"}} is {{"from": "{}"}}"#,
            self.target, self.first
        );
        for (sign, key) in &self.then {
            goal += &format!(r#" {{"sign": "{}"}} {{"from": "{key}"}}"#, sign.word());
        }
        goal
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_differ_and_stay_small() {
        let mut goals = std::collections::BTreeSet::new();
        for item in 0..2000 {
            let game = Toolbox::start(3, &TERMS, &item.to_string());
            let numbers = game.stored.values().chain([&game.wanted]);
            assert!(
                numbers
                    .clone()
                    .all(|number| (0..=NUMBER_MAX).contains(number)),
                "{game:?}"
            );
            assert_eq!(game.stored.len(), game.task.then.len() + 1);
            assert!(!game.stored.contains_key(game.task.target));
            goals.insert(format!("{game:?}"));
        }
        assert!(goals.len() > 1900, "{}", goals.len());
        let goal = |seed: u64| Toolbox::start(seed, &(2..=2), "7").last.observation;
        assert_eq!(goal(0), goal(0));
        assert_ne!(goal(0), goal(1));
    }

    #[test]
    fn tools_answer_and_mistakes_change_nothing() {
        let mut game = Toolbox::start(0, &(2..=2), "7");
        let before = game.stored.clone();
        let call = |name: &str, arguments: &str| {
            format!(r#"{{"name": "{name}", "arguments": {arguments}}}"#)
        };
        let calculated = |a: i64, sign: &str, b: i64| {
            call(
                "calculate",
                &format!(r#"{{"a": {a}, "sign": "{sign}", "b": {b}}}"#),
            )
        };
        for (action, words) in [
            (calculated(2, "plus", 3), r#"{"value": 5}"#),
            (calculated(2, "minus", 3), r#"{"value": -1}"#),
            (calculated(4, "times", 3), r#"{"value": 12}"#),
            (calculated(i64::MAX, "times", 3), "Error: the result"),
            (calculated(2, "over", 3), "Error: the sign"),
            (
                call("get", r#"{"from": "zebra"}"#),
                "Error: there is nothing under",
            ),
            (
                call(
                    "put",
                    &format!(r#"{{"to": "{}", "value": 1}}"#, "a".repeat(65)),
                ),
                "Error: a key",
            ),
            (call("get", "{}"), "Error: get needs the argument from."),
            ("finish".to_owned(), "Error: the call is not JSON"),
        ] {
            let reply = game.play(&action);
            assert!(
                reply.observation.starts_with(words),
                "{action}: {}",
                reply.observation
            );
            assert!(!reply.done && reply.reward == 0.0);
        }
        assert_eq!(game.stored, before);
        let target = game.task.target;
        let put = call(
            "put",
            &format!(r#"{{"to": "{target}", "value": {}}}"#, game.wanted),
        );
        assert_eq!(game.play(&put).observation, "Stored.");
        assert!(game.last.reward == 0.0 && !game.last.done);
        let mut wrong = game.clone();
        wrong.play(&call(
            "put",
            &format!(r#"{{"to": "{target}", "value": {}}}"#, game.wanted + 1),
        ));
        let finish = call("finish", "{}");
        assert!(wrong.play(&finish).reward == 0.0 && wrong.last.done);
        assert!(game.play(&finish).reward == 1.0 && game.last.done);
    }
}
