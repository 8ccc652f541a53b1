//! The request validation of the original's framework: which values are accepted as whole numbers,
//! and how invalid ones are reported.

use serde_json::{Map, Value, json};

use crate::quantity::Quantity;
use crate::task_index::TaskIndex;

/// Longest text that is read as a number.
const DIGITS_MAX: usize = 4300;

/// Problems found in a request, each in the shape of an entry of `detail`.
#[derive(Default)]
pub struct Problems(Vec<Value>);

impl Problems {
    fn add(&mut self, kind: &str, loc: &[&str], message: &str, input: &Value) {
        self.0
            .push(json!({"type": kind, "loc": loc, "msg": message, "input": input}));
    }

    /// The body of the error reply; `None` if there are no problems.
    pub fn detail(&self) -> Option<Value> {
        (!self.0.is_empty()).then(|| json!({"detail": self.0}))
    }

    /// Fails if there are any problems.
    pub fn none(self) -> Result<(), Self> {
        if self.0.is_empty() { Ok(()) } else { Err(self) }
    }

    /// The value that was read, or the problems if there are any.
    pub fn some<T>(self, read: Option<T>) -> Result<T, Self> {
        match read {
            Some(value) if self.0.is_empty() => Ok(value),
            _ => Err(self),
        }
    }

    fn one(kind: &str, loc: &[&str], message: &str, input: &Value) -> Self {
        let mut problems = Self::default();
        problems.add(kind, loc, message, input);
        problems
    }
}

/// The fields of a request's body. Every route wants a JSON object.
pub fn fields(content_type: Option<&str>, body: &[u8]) -> Result<Map<String, Value>, Problems> {
    if body.is_empty() {
        return Err(Problems::one(
            "missing",
            &["body"],
            "Field required",
            &Value::Null,
        ));
    }
    let media_type = content_type.map(|text| text.split(';').next().unwrap_or_default().trim());
    let is_json = media_type.is_none_or(|media| {
        media.eq_ignore_ascii_case("application/json") || media.ends_with("+json")
    });
    let value = if is_json {
        serde_json::from_slice(body).map_err(|_| {
            // The original reports the position of the error; clients only look at the type.
            Problems(vec![json!({
                "type": "json_invalid",
                "loc": ["body", 0],
                "msg": "JSON decode error",
                "input": {},
                "ctx": {"error": "Expecting value"},
            })])
        })?
    } else {
        Value::String(String::from_utf8_lossy(body).into_owned())
    };
    match value {
        Value::Object(fields) => Ok(fields),
        other => Err(Problems::one(
            "model_attributes_type",
            &["body"],
            "Input should be a valid dictionary or object to extract fields from",
            &other,
        )),
    }
}

/// The session and the action of a step.
pub fn step<'a>(
    fields: &'a Map<String, Value>,
    id_key: &str,
) -> Result<(TaskIndex, &'a str), Problems> {
    let mut problems = Problems::default();
    let id = integer(fields, id_key, &mut problems);
    let action = text(fields, "action", &mut problems);
    problems.some(id.zip(action))
}

/// The session and the task of a reset.
pub fn reset(
    fields: &Map<String, Value>,
    id_key: &str,
    task_key: &str,
) -> Result<(TaskIndex, TaskIndex), Problems> {
    let mut problems = Problems::default();
    let id = integer(fields, id_key, &mut problems);
    let task = integer(fields, task_key, &mut problems);
    problems.some(id.zip(task))
}

/// A required whole number. `None`: a problem has been recorded.
pub fn integer(
    fields: &Map<String, Value>,
    key: &str,
    problems: &mut Problems,
) -> Option<TaskIndex> {
    let Some(value) = fields.get(key) else {
        missing(fields, key, problems);
        return None;
    };
    checked(value, &["body", key], problems)
}

/// A whole number that may be missing (`default`) or null (`None`). `Some(None)`: a problem has
/// been recorded.
pub fn integer_or_null(
    fields: &Map<String, Value>,
    key: &str,
    default: i64,
    problems: &mut Problems,
) -> Option<Option<TaskIndex>> {
    match fields.get(key) {
        None => Some(Some(TaskIndex::from(default))),
        Some(Value::Null) => None,
        Some(value) => Some(checked(value, &["body", key], problems)),
    }
}

/// Like [`integer`], but a missing or null value passes here and fails later: `Some(None)`.
pub fn integer_nullable(
    fields: &Map<String, Value>,
    key: &str,
    problems: &mut Problems,
) -> Option<Option<TaskIndex>> {
    match fields.get(key) {
        None | Some(Value::Null) => Some(None),
        _ => integer(fields, key, problems).map(Some),
    }
}

/// A required text.
pub fn text<'a>(
    fields: &'a Map<String, Value>,
    key: &str,
    problems: &mut Problems,
) -> Option<&'a str> {
    match fields.get(key) {
        None => missing(fields, key, problems),
        Some(Value::String(text)) => return Some(text),
        Some(value) => not_a_text(value, key, problems),
    }
    None
}

/// A text that may be missing or null; only its type is checked.
pub fn text_or_null(fields: &Map<String, Value>, key: &str, problems: &mut Problems) {
    if let Some(value) = fields.get(key)
        && !value.is_string()
        && !value.is_null()
    {
        not_a_text(value, key, problems);
    }
}

/// A number in the query string; the last occurrence counts.
pub fn query_integer(query: &str, key: &str, problems: &mut Problems) -> Option<TaskIndex> {
    let value = url::form_urlencoded::parse(query.as_bytes())
        .filter(|(name, _)| name == key)
        .last()
        .map(|(_, value)| Value::String(value.into_owned()));
    let loc = ["query", key];
    match value {
        None => {
            problems.add("missing", &loc, "Field required", &Value::Null);
            None
        }
        Some(value) => checked(&value, &loc, problems),
    }
}

fn missing(fields: &Map<String, Value>, key: &str, problems: &mut Problems) {
    let all = Value::Object(fields.clone());
    problems.add("missing", &["body", key], "Field required", &all);
}

fn not_a_text(value: &Value, key: &str, problems: &mut Problems) {
    problems.add(
        "string_type",
        &["body", key],
        "Input should be a valid string",
        value,
    );
}

fn checked(value: &Value, loc: &[&str], problems: &mut Problems) -> Option<TaskIndex> {
    match whole_number(value) {
        Ok(number) => Some(number),
        Err((kind, message)) => {
            problems.add(kind, loc, message, value);
            None
        }
    }
}

/// Accepts numbers without a fraction, booleans, and texts of digits.
fn whole_number(value: &Value) -> Result<TaskIndex, (&'static str, &'static str)> {
    const TYPE: (&str, &str) = ("int_type", "Input should be a valid integer");
    match value {
        Value::Bool(flag) => Ok(TaskIndex::from(i64::from(*flag))),
        Value::Number(number) => {
            let text = match number.as_f64() {
                _ if number.is_i64() || number.is_u64() => number.to_string(),
                Some(float) if float.fract() == 0.0 => format!("{float:.0}"),
                _ => {
                    return Err((
                        "int_from_float",
                        "Input should be a valid integer, got a number with a fractional part",
                    ));
                }
            };
            signed(&text).ok_or(TYPE)
        }
        Value::String(text) if text.len() > DIGITS_MAX => Err((
            "int_parsing_size",
            "Unable to parse input string as an integer, exceeded maximum size",
        )),
        Value::String(text) => signed(text.trim()).ok_or((
            "int_parsing",
            "Input should be a valid integer, unable to parse string as an integer",
        )),
        _ => Err(TYPE),
    }
}

fn signed(text: &str) -> Option<TaskIndex> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    is_number.then(|| {
        let size = Quantity::from_digits(digits);
        TaskIndex {
            negative: negative && !size.is_zero(),
            size,
        }
    })
}
