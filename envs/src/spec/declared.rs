//! Specs of environments that this program does not know: a person's YAML file, which a plan holds
//! with every field filled in and whoever plays reads from there. A spec names no file and no command.

use super::calls;
use super::types::{Actions, AgentHistory, EnvSpec, Items, SuccessRule};
use crate::files::read_text_within;
use crate::parser::Parser;
use crate::parser::tool_call::Call;
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use serde_saphyr::Spanned;
use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// Longest file. An instruction costs every episode its length.
pub const BYTES_MAX: u64 = 64 << 10;
/// Longest name: it stands in item ids, tables and tags.
const NAME_MAX: usize = 40;
/// Most sessions that a server may be asked to open at once.
const CREATES_MAX: usize = 1024;
/// More than a journal numbers.
const ROUNDS_MAX: u32 = 1_000_000;

/// What is wrong with a spec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The field, such as `success.reward_at_least`; empty for the whole.
    pub field: String,
    /// What was found, and what to do.
    pub message: String,
}

impl Problem {
    fn of<T>(field: impl Into<String>, message: impl Into<String>) -> Result<T, Self> {
        let (field, message) = (field.into(), message.into());
        Err(Self { field, message })
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.field.as_str() {
            "" => f.write_str(&self.message),
            field => write!(f, "{field}: {}", self.message),
        }
    }
}

/// The spec that a plan holds. Equal ones are one.
///
/// # Errors
/// The first field that is wrong.
pub fn declared(value: &Value) -> Result<&'static EnvSpec, Problem> {
    static READ: Mutex<Option<HashMap<String, &'static EnvSpec>>> = Mutex::new(None);
    let text = value.to_string();
    let mut read = READ.lock().unwrap_or_else(PoisonError::into_inner);
    let read = read.get_or_insert_default();
    if let Some(spec) = read.get(&text) {
        return Ok(spec);
    }
    // As long as the program, like the specs in its source.
    let kept: &'static Value = Box::leak(Box::new(value.clone()));
    let spec: EnvSpec = serde_path_to_error::deserialize(kept).map_err(|error| {
        let message = error.inner().to_string();
        let field = error.path().to_string();
        Problem { field, message }
    })?;
    check(&spec)?;
    tools(&spec)?;
    let spec: &'static EnvSpec = Box::leak(Box::new(spec));
    read.insert(text, spec);
    Ok(spec)
}

/// Reads a file.
///
/// # Errors
/// A file that cannot be read, or those of [`from_yaml`].
pub fn from_file(path: &Path) -> Result<&'static EnvSpec, String> {
    let text = read_text_within(path, BYTES_MAX);
    from_yaml(
        path,
        &text.map_err(|why| format!("{}: {why}", path.display()))?,
    )
}

/// Reads a file's text; `path` names it in the message, with line and column.
///
/// # Errors
/// YAML that cannot be read, or the first field that is wrong.
pub fn from_yaml(path: &Path, text: &str) -> Result<&'static EnvSpec, String> {
    let shown = path.display();
    let options = serde_saphyr::options! { strict_booleans: true, with_snippet: false };
    let read = serde_saphyr::from_str_with_options::<Spanned<Node>>(text, options);
    let read = read.map_err(|error| format!("{shown}: {error}"))?;
    let Node::Map(_) = &read.value else {
        return Err(format!(
            "{shown}: a spec is a map of fields such as `name: mygame`"
        ));
    };
    declared(&read.value.plain()).map_err(|problem| {
        let (line, column) = place(&read, &problem.field);
        format!("{shown}:{line}:{column}: {problem}")
    })
}

/// A value of a file, with the place of each part.
enum Node {
    Map(Vec<(String, Spanned<Node>)>),
    List(Vec<Spanned<Node>>),
    Leaf(Value),
}

impl Node {
    fn plain(&self) -> Value {
        match self {
            Self::Map(fields) => {
                let fields = fields.iter();
                let fields = fields.map(|(name, node)| (name.clone(), node.value.plain()));
                Value::Object(fields.collect::<Map<_, _>>())
            }
            Self::List(all) => all.iter().map(|node| node.value.plain()).collect(),
            Self::Leaf(value) => value.clone(),
        }
    }
}

/// Line and column of a field, or of what encloses it.
fn place(root: &Spanned<Node>, field: &str) -> (u64, u64) {
    let mut node = root;
    let steps = field.split(['.', '[', ']']).filter(|step| !step.is_empty());
    for step in steps {
        let below = match &node.value {
            Node::Map(fields) => fields.iter().find(|(name, _)| name == step).map(|(_, n)| n),
            Node::List(all) => step.parse().ok().and_then(|index: usize| all.get(index)),
            Node::Leaf(_) => None,
        };
        match below {
            Some(below) => node = below,
            None => break,
        }
    }
    (node.referenced.line(), node.referenced.column())
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Node;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }
            fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
                Ok(Node::Leaf(value.into()))
            }
            fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
                Ok(Node::Leaf(value.into()))
            }
            fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
                Ok(Node::Leaf(value.into()))
            }
            fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
                Ok(Node::Leaf(value.into()))
            }
            fn visit_str<E>(self, value: &str) -> Result<Node, E> {
                Ok(Node::Leaf(value.into()))
            }
            fn visit_unit<E>(self) -> Result<Node, E> {
                Ok(Node::Leaf(Value::Null))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<Node, A::Error> {
                let mut nodes = Vec::new();
                while let Some(node) = all.next_element()? {
                    nodes.push(node);
                }
                Ok(Node::List(nodes))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut all: A) -> Result<Node, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = all.next_entry()? {
                    fields.push(field);
                }
                Ok(Node::Map(fields))
            }
        }
        deserializer.deserialize_any(Any)
    }
}

/// Whether actions are calls or text, and not half of each; an agent behind a harness acts by itself.
fn tools(spec: &EnvSpec) -> Result<(), Problem> {
    if spec.harness && (!spec.calls.is_empty() || spec.actions != Actions::None) {
        let field = if spec.calls.is_empty() {
            "actions"
        } else {
            "calls"
        };
        let found = "the agent behind a harness acts by itself; leave it out";
        return Problem::of(field, found);
    }
    let of_agents = [
        (spec.failed_reward.is_some(), "failed_reward"),
        (spec.history != AgentHistory::AsSampled, "history"),
    ];
    if let Some((_, field)) = of_agents
        .iter()
        .find(|(is_set, _)| *is_set && !spec.harness)
    {
        let found = "is for agents that play behind a harness; say harness: true, or leave it out";
        return Problem::of(*field, found);
    }
    let calls = spec.parser == Parser::ToolCall;
    if calls == spec.calls.is_empty() {
        let found = "tools that are called need parser: tool_call, and that needs tools; give both or neither";
        return Problem::of("calls", found);
    }
    calls::check(spec.calls)
        .or_else(|(field, found)| Problem::of(format!("calls{field}"), found))?;
    match Call::read(spec.calls, spec.probe) {
        Err(why) if calls => Problem::of("probe", why.to_string()),
        _ => Ok(()),
    }
}

/// The first field that no server could have.
fn check(spec: &EnvSpec) -> Result<(), Problem> {
    let routes = spec.routes;
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_');
    let name = spec.name;
    if name.is_empty() || name.len() > NAME_MAX || !name.chars().all(plain) {
        let found = format!(
            "{name:?} is not 1 to {NAME_MAX} of a-z, 0-9, - and _, which item ids are made of"
        );
        return Problem::of("name", found);
    }
    if super::spec(name).is_ok() {
        let found = format!("`{name}` is an environment of this program; give another name");
        return Problem::of("name", found);
    }
    for (field, key) in [
        ("id_key", spec.id_key),
        ("reset_key", spec.reset_key),
        ("observation_key", spec.observation_key),
        ("reward_key", spec.reward_key),
        ("done_key", spec.done_key),
        ("truncated_key", spec.truncated_key.unwrap_or("-")),
        ("finished_text", spec.finished_text),
        ("probe", spec.probe),
    ] {
        if key.trim().is_empty() {
            return Problem::of(field, "is empty");
        }
    }
    let listed = match spec.actions {
        Actions::Endpoint { path, .. } => path,
        _ => routes.step,
    };
    let prefix = spec.path_prefix;
    for (field, path) in [
        ("routes.create", routes.create),
        ("routes.reset", routes.reset),
        ("routes.step", routes.step),
        ("routes.observation", routes.observation),
        ("routes.close", routes.close),
        ("actions.endpoint.path", listed),
        ("path_prefix", if prefix.is_empty() { "/" } else { prefix }),
    ] {
        let odd = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '?' | '#');
        if !path.starts_with('/') || path.starts_with("//") || path.contains(odd) {
            let found = format!("{path:?} is no path below the server's address, such as /step");
            return Problem::of(field, found);
        }
    }
    let (field, number) = match spec.success {
        SuccessRule::RewardAtLeast(number) => ("success.reward_at_least", number),
        SuccessRule::RewardAbove(number) => ("success.reward_above", number),
    };
    if !number.is_finite() {
        return Problem::of(field, format!("{number} is no reward"));
    }
    if !spec.reward_scale.is_finite() || spec.reward_scale == 0.0 {
        let found = format!("{} would make every reward the same", spec.reward_scale);
        return Problem::of("reward_scale", found);
    }
    if !(1..=CREATES_MAX).contains(&spec.creates_at_once) {
        let found = format!("{} is not 1 to {CREATES_MAX}", spec.creates_at_once);
        return Problem::of("creates_at_once", found);
    }
    if !(1..=ROUNDS_MAX).contains(&spec.rounds_max) {
        let found = format!("{} is not 1 to {ROUNDS_MAX}", spec.rounds_max);
        return Problem::of("rounds_max", found);
    }
    if matches!(spec.items, Items::Wrapping(..=0)) {
        return Problem::of("items.wrapping", "is the number of items, at least 1");
    }
    if !spec.close && !spec.reuse {
        let found = "sessions that are not closed pile up on the server; say reuse: true, where a finished session \
                     can be reset";
        return Problem::of("close", found);
    }
    if spec.first_lists_actions.is_some() && spec.actions == Actions::None {
        let found = "no actions are listed anywhere; say where under actions";
        return Problem::of("first_lists_actions", found);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
