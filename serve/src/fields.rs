//! The fields of a request. One that would change the answer and that this server does not have is
//! refused with its name, as is one that nobody knows: a client must not take an answer for something
//! else than it is.

use crate::refusal::Refusal;
use serde_json::{Map, Value, json};
use std::ops::RangeInclusive;

/// Fields that change nothing of an answer.
const WITHOUT_EFFECT: [&str; 7] = [
    "user",
    "metadata",
    "store",
    "service_tier",
    "parallel_tool_calls",
    "prompt_cache_key",
    "safety_identifier",
];

/// Fields that may be given with the value that switches them off.
fn is_off(name: &str, value: &Value) -> bool {
    let number = |off: f64| value.as_f64() == Some(off);
    match name {
        "presence_penalty" | "frequency_penalty" | "min_p" | "min_tokens" => number(0.0),
        "repetition_penalty" | "length_penalty" | "best_of" => number(1.0),
        "logit_bias" => *value == json!({}),
        "suffix" => *value == json!(""),
        "tools" | "functions" => *value == json!([]),
        "tool_choice" => *value == json!("none") || *value == json!("auto"),
        "response_format" => *value == json!({"type": "text"}),
        "modalities" => *value == json!(["text"]),
        "skip_special_tokens" | "spaces_between_special_tokens" | "add_generation_prompt" => {
            *value == json!(true)
        }
        "add_special_tokens"
        | "continue_final_message"
        | "include_stop_str_in_output"
        | "use_beam_search" => *value == json!(false),
        _ => false,
    }
}

/// The object of a request. `null` is as good as absent.
pub(crate) struct Fields(Map<String, Value>);

impl Fields {
    /// Reads a body.
    pub(crate) fn parse(body: &[u8]) -> Result<Map<String, Value>, Refusal> {
        let all = serde_json::from_slice(body);
        all.map_err(|e| Refusal::bad("", format!("the body is no JSON object: {e}")))
    }

    /// The fields of a request, which have these names.
    pub(crate) fn of(mut all: Map<String, Value>, names: &[&str]) -> Result<Self, Refusal> {
        all.retain(|_, value| !value.is_null());
        let known = |name: &str| names.contains(&name) || WITHOUT_EFFECT.contains(&name);
        let strange = |(name, value): &(&String, &Value)| !known(name) && !is_off(name, value);
        if let Some((name, value)) = all.iter().find(strange) {
            let value = shown(value);
            let message = format!("this server cannot do {name} = {value}; leave it out");
            return Err(Refusal::bad(name, message));
        }
        Ok(Self(all))
    }

    /// A field, if it is given.
    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }

    /// A number within a range.
    pub(crate) fn number(
        &self,
        name: &str,
        default: f64,
        range: RangeInclusive<f64>,
    ) -> Result<f64, Refusal> {
        let Some(value) = self.get(name) else {
            return Ok(default);
        };
        let number = value.as_f64().filter(|number| range.contains(number));
        number.ok_or_else(|| {
            let (least, most) = range.into_inner();
            let value = shown(value);
            let message = format!("{name} must be a number from {least} to {most}, not {value}");
            Refusal::bad(name, message)
        })
    }

    /// A whole number within a range.
    pub(crate) fn whole(
        &self,
        name: &str,
        range: RangeInclusive<i64>,
    ) -> Result<Option<i64>, Refusal> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        let number = value.as_i64().filter(|number| range.contains(number));
        number.map(Some).ok_or_else(|| {
            let (least, most) = range.into_inner();
            let value = shown(value);
            let message =
                format!("{name} must be a whole number from {least} to {most}, not {value}");
            Refusal::bad(name, message)
        })
    }

    /// Yes or no; no where it is not given.
    pub(crate) fn flag(&self, name: &str) -> Result<bool, Refusal> {
        match self.get(name) {
            None => Ok(false),
            Some(value) => (value.as_bool()).ok_or_else(|| {
                let value = shown(value);
                Refusal::bad(name, format!("{name} must be true or false, not {value}"))
            }),
        }
    }

    /// A text, or several; none where it is not given.
    pub(crate) fn texts(&self, name: &str) -> Result<Vec<String>, Refusal> {
        let one = |value: &Value| value.as_str().filter(|s| !s.is_empty()).map(str::to_owned);
        let found = match self.get(name) {
            None => return Ok(Vec::new()),
            Some(Value::Array(all)) => all.iter().map(one).collect(),
            Some(value) => one(value).map(|text| vec![text]),
        };
        let wrong = || Refusal::bad(name, format!("{name} must be texts that are not empty"));
        found.ok_or_else(wrong)
    }

    /// Ids; none where the field is not given.
    pub(crate) fn ids(&self, name: &str) -> Result<Vec<u32>, Refusal> {
        match self.get(name) {
            None => Ok(Vec::new()),
            Some(value) => {
                let found = value.as_array().and_then(|all| ids(all));
                found.ok_or_else(|| Refusal::bad(name, format!("{name} must be a list of ids")))
            }
        }
    }
}

/// The beginning of a value, for a message.
fn shown(value: &Value) -> String {
    value.to_string().chars().take(60).collect()
}

/// A list that holds ids alone.
pub(crate) fn ids(all: &[Value]) -> Option<Vec<u32>> {
    all.iter()
        .map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok()))
        .collect()
}

/// A text, or parts of text of these types put together.
pub(crate) fn text(content: &Value, types: &[&str]) -> Option<String> {
    let part = |part: &Value| {
        let is_text = part["type"]
            .as_str()
            .is_some_and(|kind| types.contains(&kind));
        is_text.then(|| part["text"].as_str())?.map(str::to_owned)
    };
    match content {
        Value::String(text) => Some(text.clone()),
        Value::Array(parts) => parts.iter().map(part).collect(),
        _ => None,
    }
}
