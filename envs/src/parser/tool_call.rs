//! The one call in a model's text, `<tool_call>\n{"name": …, "arguments": {…}}\n</tool_call>`: the
//! form in which the templates of Qwen and Hermes write calls.
//!
//! What is sent is read strictly: nothing is repaired, guessed or left out, since a lenient reader
//! shifts scores. Everything else is answered without a call, in a line that says what was wrong.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde_json::Value;
use serde_json::error::Category;

use crate::spec::calls::Tool;

pub(super) const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
/// Longest call that is read. Its length is paid for in tokens, so this is out of their reach.
const BYTES_MAX: usize = 64 << 10;
/// A call has two levels; more than this is not read at all.
const DEPTH_MAX: usize = 8;
/// Most letters of the model's own that an answer repeats.
const SHOWN_MAX: usize = 80;

/// What is wrong with a text that should hold a call; the model reads the message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// No call is begun.
    #[error("no tool was called; write {OPEN} {{\"name\": …, \"arguments\": {{…}}}} {CLOSE}")]
    None,
    /// More than one call.
    #[error("{0} tools were called; call one at a time")]
    Several(usize),
    /// A call without an end.
    #[error("the call is not ended by {CLOSE}")]
    Unclosed,
    /// A call that is not read for its length.
    #[error("the call has {0} bytes, at most {BYTES_MAX} are read")]
    TooLong(usize),
    /// A call that is not read for its depth.
    #[error("the call is nested deeper than {DEPTH_MAX} levels")]
    TooDeep,
    /// No JSON.
    #[error("the call is not JSON: {0}")]
    Json(String),
    /// JSON without exactly a name and arguments.
    #[error("the call is not {{\"name\": …, \"arguments\": {{…}}}}: {0}")]
    Shape(String),
    /// A tool that there is not.
    #[error("there is no tool {name}; there are {known}")]
    UnknownTool {
        /// What was called.
        name: String,
        /// What there is.
        known: String,
    },
    /// An argument that has to be given.
    #[error("{tool} needs the argument {argument}")]
    Missing {
        /// The tool.
        tool: &'static str,
        /// The argument.
        argument: &'static str,
    },
    /// An argument that there is not.
    #[error("{tool} has no argument {argument}")]
    UnknownArgument {
        /// The tool.
        tool: &'static str,
        /// What was given.
        argument: String,
    },
    /// A value of another type.
    #[error("the argument {argument} of {tool} is of type {expected}, found {found}")]
    WrongType {
        /// The tool.
        tool: &'static str,
        /// The argument.
        argument: &'static str,
        /// Its type.
        expected: &'static str,
        /// What was given.
        found: String,
    },
}

/// A call that its tool takes.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// The tool's name.
    pub tool: &'static str,
    /// In the order in which the tool declares them.
    pub arguments: Vec<(&'static str, Value)>,
}

impl Call {
    /// Reads a call from its JSON.
    ///
    /// # Errors
    /// What the tools do not take.
    pub fn read(tools: &[Tool], json: &str) -> Result<Self, CallError> {
        if json.len() > BYTES_MAX {
            return Err(CallError::TooLong(json.len()));
        }
        if depth(json) > DEPTH_MAX {
            return Err(CallError::TooDeep);
        }
        let Written { name, arguments } =
            serde_json::from_str(json).map_err(|error| match error.classify() {
                Category::Data => CallError::Shape(shown(&error.to_string())),
                _ => CallError::Json(shown(&error.to_string())),
            })?;
        let Some(tool) = tools.iter().find(|tool| tool.name == name) else {
            let known: Vec<&str> = tools.iter().map(|tool| tool.name).collect();
            return Err(CallError::UnknownTool {
                name: shown(&name),
                known: known.join(", "),
            });
        };
        let mut given = arguments.0;
        let mut taken = Vec::new();
        for (argument, declared) in tool.arguments {
            let at = given.iter().position(|(name, _)| name == argument);
            let (_, value) = match at {
                Some(at) => given.remove(at),
                None if declared.optional => continue,
                None => {
                    return Err(CallError::Missing {
                        tool: tool.name,
                        argument,
                    });
                }
            };
            if !declared.kind.takes(&value) {
                return Err(CallError::WrongType {
                    tool: tool.name,
                    argument,
                    expected: declared.kind.name(),
                    found: shown(&value.to_string()),
                });
            }
            taken.push((*argument, value));
        }
        match given.first() {
            None => Ok(Self {
                tool: tool.name,
                arguments: taken,
            }),
            Some((argument, _)) => Err(CallError::UnknownArgument {
                tool: tool.name,
                argument: shown(argument),
            }),
        }
    }

    /// The value of an argument that is a text and was given.
    pub fn text(&self, argument: &str) -> Option<&str> {
        self.value(argument)?.as_str()
    }

    /// The value of an argument that is a whole number and was given.
    pub fn number(&self, argument: &str) -> Option<i64> {
        self.value(argument)?.as_i64()
    }

    fn value(&self, argument: &str) -> Option<&Value> {
        let mut all = self.arguments.iter();
        all.find(|(name, _)| *name == argument)
            .map(|(_, value)| value)
    }

    /// A model's text that makes this call and says nothing else.
    pub fn said(&self) -> String {
        spoken(&self.to_string())
    }
}

/// The text around a call's JSON.
pub(crate) fn spoken(json: &str) -> String {
    format!("{OPEN}\n{json}\n{CLOSE}")
}

/// As templates write it: in Python's JSON, and in one order.
impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{\"name\": {}, \"arguments\": {{", quoted(self.tool))?;
        for (at, (name, value)) in self.arguments.iter().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            write!(f, "{comma}{}: {value}", quoted(name))?;
        }
        f.write_str("}}")
    }
}

fn quoted(name: &str) -> Value {
    Value::from(name)
}

/// The only call of a text, and its JSON as the model wrote it.
///
/// # Errors
/// No call, several, or one that its tool does not take.
pub(super) fn only<'a>(tools: &[Tool], text: &'a str) -> Result<(Call, &'a str), CallError> {
    let (_, rest) = text.split_once(OPEN).ok_or(CallError::None)?;
    let more = rest.matches(OPEN).count();
    if more > 0 {
        return Err(CallError::Several(more + 1));
    }
    let (json, _) = rest.split_once(CLOSE).ok_or(CallError::Unclosed)?;
    let json = json.trim();
    Ok((Call::read(tools, json)?, json))
}

/// How deep brackets are nested outside texts; found before anything is built.
fn depth(json: &str) -> usize {
    let (mut open, mut deepest) = (0_usize, 0);
    let (mut in_text, mut escaped) = (false, false);
    for byte in json.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' => in_text = !in_text,
            b'{' | b'[' if !in_text => {
                open += 1;
                deepest = deepest.max(open);
            }
            b'}' | b']' if !in_text => open = open.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

/// The model's own text in an answer: one line of it.
fn shown(text: &str) -> String {
    let mut short: String = text.chars().take(SHOWN_MAX).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short.replace(char::is_control, " ")
}

/// A call as it stands in JSON.
struct Written {
    name: String,
    arguments: Arguments,
}

/// Each name once: of two values the model may have meant either.
struct Arguments(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Written {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Written;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Written, A::Error> {
                let (mut name, mut arguments) = (None, None);
                while let Some(key) = map.next_key::<String>()? {
                    let twice = match key.as_str() {
                        "name" => name.replace(map.next_value()?).is_some(),
                        "arguments" => arguments.replace(map.next_value()?).is_some(),
                        _ => return Err(A::Error::custom(format!("it has no `{key}`"))),
                    };
                    if twice {
                        return Err(A::Error::custom(format!("`{key}` is given twice")));
                    }
                }
                Ok(Written {
                    name: name.ok_or_else(|| A::Error::missing_field("name"))?,
                    arguments: arguments.ok_or_else(|| A::Error::missing_field("arguments"))?,
                })
            }
        }
        from.deserialize_map(Object)
    }
}

impl<'de> Deserialize<'de> for Arguments {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Arguments;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of arguments")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Arguments, A::Error> {
                let mut all: Vec<(String, Value)> = Vec::new();
                while let Some((name, value)) = map.next_entry::<String, Value>()? {
                    if all.iter().any(|(given, _)| *given == name) {
                        return Err(A::Error::custom(format!("`{name}` is given twice")));
                    }
                    all.push((name, value));
                }
                Ok(Arguments(all))
            }
        }
        from.deserialize_map(Object)
    }
}

#[cfg(test)]
mod tests;
