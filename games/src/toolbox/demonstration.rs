//! Solved tasks, as conversations of calls and answers.

use std::ops::RangeInclusive;

use serde_json::Value;

use super::game::{Sign, Toolbox};
use crate::draws::Draws;
use agentgym_envs::demonstration::{Demonstration, Talk};
use agentgym_envs::parser::tool_call::Call;
use agentgym_envs::server::games::TextGame;
use agentgym_envs::spec::first_message;
use agentgym_envs::spec::games::toolbox::SPEC;

/// After this many calls nothing is tried any more, so that a demonstration ends.
const WANDERED_MAX: usize = 24;

/// How a demonstration is played.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Play {
    /// Chance, in percent, that a call of the task's own keys and numbers stands where the useful
    /// one would. It is trained on like the others: what is imitated makes every call and seldom
    /// gets to the end in time, so that rewards have something to teach.
    pub(super) wander_percent: u32,
}

impl std::str::FromStr for Play {
    type Err = String;

    /// Parses `wander=PERCENT` or an empty text.
    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        let percent = text
            .strip_prefix("wander=")
            .ok_or_else(|| format!("unknown style {text:?}; toolbox knows wander=PERCENT"))?;
        match percent.parse() {
            Ok(wander_percent @ 0..=90) => Ok(Self { wander_percent }),
            _ => Err(format!("style {text:?}: wander is from 0 to 90 percent")),
        }
    }
}

/// Reads the numbers, joins them one by one, puts the result where it is wanted, and finishes.
pub(super) fn demonstration(
    (seed, terms): (u64, &RangeInclusive<u32>),
    play: Play,
    item_id: i64,
    instruction: &str,
) -> Demonstration {
    let mut game = Toolbox::start(seed, terms, &item_id.to_string());
    let mut draws = Draws::new(
        "toolbox demonstration",
        &[&seed.to_le_bytes(), &item_id.to_le_bytes()],
    );
    let first = first_message(instruction, &game.last().observation);
    let mut talk = Talk::calling(first, SPEC.offered());
    let mut calls = 0;
    let mut say = |game: &mut Toolbox, call: Call| {
        let reply = game.play(&call.to_string()).observation.clone();
        talk.say(call.said(), true, reply.clone());
        let answer: Option<Value> = serde_json::from_str(&reply).ok();
        answer?["value"].as_i64()
    };
    let mut seen: Vec<i64> = Vec::new();
    let mut useful = |game: &mut Toolbox, call: Call| -> i64 {
        while calls < WANDERED_MAX && draws.percent(play.wander_percent as usize) {
            let aimless = aimless(game, &seen, &mut draws);
            seen.extend(say(game, aimless));
            calls += 1;
        }
        let number = say(game, call).unwrap_or_default();
        seen.push(number);
        calls += 1;
        number
    };
    let task = game.task().clone();
    let mut number = useful(&mut game, get(task.first));
    for (sign, key) in task.then {
        let other = useful(&mut game, get(key));
        number = useful(&mut game, joined(sign, number, other));
    }
    useful(&mut game, put(task.target, number));
    // At once: anything that is put between would undo it.
    say(&mut game, call("finish", vec![]));
    talk.told(format!("toolbox_{item_id}"))
}

/// A call that the task's keys and the numbers seen so far allow and that ends nothing.
fn aimless(game: &Toolbox, seen: &[i64], draws: &mut Draws) -> Call {
    let task = game.task();
    let keys: Vec<&str> = task
        .then
        .iter()
        .map(|(_, key)| *key)
        .chain([task.first])
        .collect();
    let number = |draws: &mut Draws| seen[draws.below(seen.len())];
    // A number that was never seen, or a sign that no goal has, is nothing to imitate.
    let kinds = match (seen.is_empty(), task.then.is_empty()) {
        (true, _) => 1,
        (false, true) => 2,
        (false, false) => 3,
    };
    match draws.below(kinds) {
        0 => get(keys[draws.below(keys.len())]),
        1 => put(task.target, number(draws)),
        _ => {
            let sign = Sign::ALL[draws.below(3)];
            joined(sign, number(draws), number(draws))
        }
    }
}

fn get(key: &str) -> Call {
    call("get", vec![("from", key.into())])
}

fn put(key: &str, number: i64) -> Call {
    call("put", vec![("to", key.into()), ("value", number.into())])
}

fn joined(sign: Sign, a: i64, b: i64) -> Call {
    let sign = ("sign", sign.word().into());
    call("calculate", vec![("a", a.into()), sign, ("b", b.into())])
}

fn call(tool: &'static str, arguments: Vec<(&'static str, Value)>) -> Call {
    Call { tool, arguments }
}
