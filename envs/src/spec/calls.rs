//! Tools that a model calls by JSON instead of writing an action as text.
//!
//! A chat template is given them as [`offered`] says, in the shape in which published templates
//! expect them. Arguments are plain values: a call has no depth, so that what is wrong with one can
//! be said in a line.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::wire;

/// A tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tool {
    /// What a call names.
    pub name: &'static str,
    /// What it does, for the model.
    #[serde(default)]
    pub description: &'static str,
    /// By name, in the order in which they are told.
    #[serde(default, with = "wire::fields")]
    pub arguments: &'static [(&'static str, Argument)],
}

/// An argument of a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Argument {
    /// What values it takes.
    #[serde(rename = "type")]
    pub kind: ArgumentType,
    /// What it means, for the model.
    #[serde(default)]
    pub description: &'static str,
    /// A call may leave it out.
    #[serde(default)]
    pub optional: bool,
}

/// The values of an argument, by their names in JSON Schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ArgumentType {
    /// A text.
    String,
    /// A whole number of at most 64 bits, written without a fraction.
    Integer,
    /// Any number.
    Number,
    /// `true` or `false`.
    Boolean,
}

impl Argument {
    /// One that every call gives.
    pub(crate) const fn of(kind: ArgumentType, description: &'static str) -> Self {
        Self {
            kind,
            description,
            optional: false,
        }
    }
}

impl ArgumentType {
    /// Name in JSON Schema.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::String => "string",
            Self::Integer => "integer",
            Self::Number => "number",
            Self::Boolean => "boolean",
        }
    }

    /// Whether a value is one of these.
    pub(crate) fn takes(self, value: &Value) -> bool {
        match self {
            Self::String => value.is_string(),
            Self::Integer => value.is_i64(),
            Self::Number => value.is_number(),
            Self::Boolean => value.is_boolean(),
        }
    }
}

/// The list that a chat template is given.
pub(crate) fn offered(tools: &[Tool]) -> Value {
    let one = |tool: &Tool| {
        let arguments = tool.arguments.iter();
        let properties = arguments.clone().map(|(name, argument)| {
            let mut told = json!({"type": argument.kind.name()});
            if !argument.description.is_empty() {
                told["description"] = argument.description.into();
            }
            ((*name).to_owned(), told)
        });
        let required = arguments.filter(|(_, argument)| !argument.optional);
        let required: Vec<&str> = required.map(|(name, _)| *name).collect();
        json!({"type": "function", "function": {
            "name": tool.name, "description": tool.description,
            "parameters": {
                "type": "object", "properties": properties.collect::<Map<_, _>>(),
                "required": required,
            },
        }})
    };
    tools.iter().map(one).collect()
}

/// The first thing that no tool could have: its field below `calls`, and why.
pub(super) fn check(tools: &[Tool]) -> Result<(), (String, String)> {
    /// More than a prompt has room for.
    const TOOLS_MAX: usize = 128;
    const NAME_MAX: usize = 64;
    let is_name = |name: &str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        (1..=NAME_MAX).contains(&name.len()) && name.chars().all(plain)
    };
    let odd = |name: &str| {
        format!("{name:?} is not 1 to {NAME_MAX} of A-Z, a-z, 0-9, - and _, which a call can name")
    };
    if tools.len() > TOOLS_MAX {
        let found = format!("{} tools; give at most {TOOLS_MAX}", tools.len());
        return Err((String::new(), found));
    }
    for (index, tool) in tools.iter().enumerate() {
        if !is_name(tool.name) {
            return Err((format!("[{index}].name"), odd(tool.name)));
        }
        if tools[..index].iter().any(|other| other.name == tool.name) {
            let found = format!("`{}` is a tool before it; give another name", tool.name);
            return Err((format!("[{index}].name"), found));
        }
        if let Some((name, _)) = tool.arguments.iter().find(|(name, _)| !is_name(name)) {
            return Err((format!("[{index}].arguments"), odd(name)));
        }
    }
    Ok(())
}
