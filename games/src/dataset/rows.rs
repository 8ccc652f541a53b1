//! The rows of a file: JSON lines, or one JSON array.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::grade::{Grade, Key};

/// Names that a column goes by where none is given.
const PROMPTS: [&str; 4] = ["prompt", "question", "messages", "problem"];
const ANSWERS: [&str; 3] = ["answer", "answers", "target"];
const IDS: [&str; 1] = ["id"];
/// Most rows.
const ROWS_MAX: usize = 4_000_000;

/// Names of columns, where they are given.
#[derive(Clone, Debug, Default)]
pub(crate) struct Columns {
    pub(crate) prompt: Option<String>,
    pub(crate) answer: Option<String>,
    pub(crate) id: Option<String>,
}

/// A question.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) prompt: String,
    pub(super) key: Key,
    /// The first answer as it is written, with what leads to it.
    pub(super) shown: String,
}

/// Reads all rows, by their numbers. `Err` names the row.
pub(super) fn read(
    text: &str,
    columns: &Columns,
    grade: Grade,
) -> Result<BTreeMap<i64, Row>, String> {
    let mut rows = BTreeMap::new();
    let mut places: BTreeMap<i64, String> = BTreeMap::new();
    let mut with_ids = None;
    for (index, (place, value)) in values(text)?.into_iter().enumerate() {
        let bad = |why: String| format!("{place}: {why}");
        let Value::Object(fields) = value else {
            return Err(bad(
                "is no JSON object with a prompt and an answer".to_owned()
            ));
        };
        let (number, has_id) = match column(&fields, columns.id.as_ref(), &IDS) {
            Ok(id) => (id_number(id).map_err(bad)?, true),
            Err(why) if columns.id.is_some() => return Err(bad(why)),
            Err(_) => (index as i64, false),
        };
        if *with_ids.get_or_insert(has_id) != has_id {
            let why = match has_id {
                true => "has an id, and rows before it have none",
                false => "has no id, and rows before it have one",
            };
            return Err(bad(format!("{why}; give one to every row or to none")));
        }
        let prompt = column(&fields, columns.prompt.as_ref(), &PROMPTS).and_then(prompt);
        let answers = column(&fields, columns.answer.as_ref(), &ANSWERS).and_then(answers);
        let (prompt, answers) = (prompt.map_err(bad)?, answers.map_err(bad)?);
        let key = grade.key(&answers).map_err(bad)?;
        if let Some(other) = places.insert(number, place.clone()) {
            return Err(bad(format!("has the id of {other}; give each row its own")));
        }
        let shown = answers.into_iter().next().unwrap_or_default();
        rows.insert(number, Row { prompt, key, shown });
    }
    match rows.is_empty() {
        true => Err("holds no row".to_owned()),
        false => Ok(rows),
    }
}

/// Each value with its place.
fn values(text: &str) -> Result<Vec<(String, Value)>, String> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let all: Vec<(String, Value)> = match text.trim_start().starts_with('[') {
        true => {
            let all: Vec<Value> = serde_json::from_str(text)
                .map_err(|error| format!("is no JSON array of rows: {error}"))?;
            let all = all.into_iter().enumerate();
            all.map(|(row, value)| (format!("row {row}"), value))
                .collect()
        }
        false => {
            let lines = text.lines().enumerate();
            let lines = lines.filter(|(_, line)| !line.trim().is_empty());
            let read = lines.map(|(at, line)| {
                let place = format!("line {}", at + 1);
                let value = serde_json::from_str(line);
                let value = value.map_err(|error| format!("{place}: is not JSON: {error}"))?;
                Ok((place, value))
            });
            read.collect::<Result<_, String>>()?
        }
    };
    match all.len() > ROWS_MAX {
        true => Err(format!(
            "has {} rows, at most {ROWS_MAX} are read",
            all.len()
        )),
        false => Ok(all),
    }
}

fn column<'a>(
    fields: &'a Map<String, Value>,
    given: Option<&String>,
    known: &[&str],
) -> Result<&'a Value, String> {
    let value = match given {
        Some(name) => fields.get(name),
        None => known.iter().find_map(|name| fields.get(*name)),
    };
    value.filter(|value| !value.is_null()).ok_or_else(|| {
        let wanted = match given {
            Some(name) => format!("`{name}`"),
            None => format!("`{}`", known.join("` or `")),
        };
        let found: Vec<&str> = fields.keys().map(String::as_str).collect();
        format!(
            "has no {wanted}; its fields are {}; `columns` names the one to take",
            found.join(", ")
        )
    })
}

/// A whole number stands for itself, other texts by their digest, so that rows may be added and moved.
fn id_number(id: &Value) -> Result<i64, String> {
    // A number that 64-bit floats hold exactly, which other programs write as `7.0`.
    let is_whole = |number: &f64| number.fract() == 0.0 && (0.0..9e15).contains(number);
    let text = match id {
        Value::Number(number) => {
            let whole = number.as_f64().filter(is_whole);
            let whole = number.as_u64().or_else(|| Some(whole? as u64));
            let whole = whole.and_then(|whole| i64::try_from(whole).ok());
            return whole.ok_or_else(|| {
                format!("has the id {number}; an id is text, or a whole number from 0 on")
            });
        }
        Value::String(text) => text.trim().to_owned(),
        other => {
            return Err(format!(
                "has the id {other}, which is neither a number nor text"
            ));
        }
    };
    let number = text.parse::<i64>().ok().filter(|number| *number >= 0);
    match number {
        Some(number) => Ok(number),
        None if text.is_empty() => Err("has an empty id".to_owned()),
        None => {
            let hash = blake3::hash(text.as_bytes());
            let head: [u8; 8] = std::array::from_fn(|byte| hash.as_bytes()[byte]);
            // As exact as numbers in JSON are.
            Ok((u64::from_le_bytes(head) >> 16) as i64)
        }
    }
}

/// A text, or messages that the policy has said nothing in.
fn prompt(value: &Value) -> Result<String, String> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Array(all) => {
            let texts = all.iter().map(|message| {
                let role = message["role"].as_str().unwrap_or_default();
                if !matches!(role, "system" | "user" | "developer") {
                    return Err(format!(
                        "has a message of {role:?} in its prompt; a prompt is text, or messages of system and user"
                    ));
                }
                let parts = message["content"].as_array();
                let parts = parts.map(|parts| parts.iter().map(|part| part["text"].as_str()));
                let content = match parts {
                    Some(parts) => parts.collect::<Option<Vec<&str>>>().map(|all| all.concat()),
                    None => message["content"].as_str().map(str::to_owned),
                };
                content.ok_or_else(|| format!("has a message of {role} whose content is no text"))
            });
            texts.collect::<Result<Vec<String>, String>>()?.join("\n\n")
        }
        other => {
            return Err(format!(
                "has the prompt {other}; it must be text, or a list of messages"
            ));
        }
    };
    match text.trim().is_empty() {
        true => Err("has an empty prompt".to_owned()),
        false => Ok(text),
    }
}

/// One answer, or a list of those that are right.
fn answers(value: &Value) -> Result<Vec<String>, String> {
    let one = |value: &Value| match value {
        Value::String(text) => Ok(text.clone()),
        Value::Number(_) | Value::Bool(_) => Ok(value.to_string()),
        other => Err(format!(
            "has the answer {other}; it must be text, a number, or a list of these"
        )),
    };
    let all = match value {
        Value::Array(all) => all.iter().map(one).collect::<Result<Vec<_>, _>>()?,
        one_alone => vec![one(one_alone)?],
    };
    match all.is_empty() || all.iter().any(|text| text.trim().is_empty()) {
        true => Err("has no answer, or an empty one".to_owned()),
        false => Ok(all),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(text: &str) -> Result<BTreeMap<i64, Row>, String> {
        read(text, &Columns::default(), Grade::Exact)
    }

    #[test]
    fn files_are_read_as_people_have_them() {
        let lines = "\u{feff}{\"question\": \"One?\", \"answer\": 1}\r\n\r\n{\"question\": \"Two?\", \"answer\": [\"2\", \"two\"]}\r\n";
        let array =
            r#"[{"question": "One?", "answer": 1}, {"question": "Two?", "answer": ["2", "two"]}]"#;
        for text in [lines, array] {
            let read = rows(text).expect("two rows");
            let shown: Vec<_> = read
                .iter()
                .map(|(id, row)| (*id, &*row.prompt, &*row.shown))
                .collect();
            assert_eq!(shown, [(0, "One?", "1"), (1, "Two?", "2")]);
        }
        // Rows with ids keep their numbers wherever they stand.
        let [one, two] = [
            r#"{"id": "gsm/7", "prompt": [{"role": "system", "content": "S."}, {"role": "user", "content": "U?"}], "answer": "a"}"#,
            r#"{"id": 12.0, "prompt": "P?", "answer": true}"#,
        ];
        let ids = |text: String| rows(&text).expect("rows").into_keys().collect::<Vec<_>>();
        let both = ids(format!("{one}\n{two}"));
        assert_eq!(both, ids(format!("{two}\n{one}")));
        assert_eq!(both[0], 12);
        assert_eq!(
            rows(one)
                .expect("a row")
                .into_values()
                .next()
                .expect("one")
                .prompt,
            "S.\n\nU?"
        );
        let columns = Columns {
            prompt: Some("q".to_owned()),
            answer: Some("gold".to_owned()),
            id: Some("uid".to_owned()),
        };
        let text = r#"{"uid": 3, "q": "Q?", "gold": "g", "answer": "no"}"#;
        let read = read(text, &columns, Grade::Exact).expect("a row");
        assert_eq!(read[&3].shown, "g");
    }

    #[test]
    fn wrong_rows_are_named() {
        for (text, words) in [
            ("", "holds no row"),
            (
                "{\"prompt\": \"p\", \"answer\": \"a\"}\n{",
                "line 2: is not JSON",
            ),
            ("[1]", "row 0: is no JSON object"),
            ("[{]", "no JSON array"),
            (
                r#"{"text": "p", "answer": "a"}"#,
                "no `prompt` or `question`",
            ),
            (r#"{"prompt": "p"}"#, "its fields are prompt"),
            (r#"{"prompt": " ", "answer": "a"}"#, "empty prompt"),
            (r#"{"prompt": 5, "answer": "a"}"#, "the prompt 5"),
            (
                r#"{"prompt": [{"role": "assistant", "content": "x"}], "answer": "a"}"#,
                "\"assistant\"",
            ),
            (r#"{"prompt": "p", "answer": {}}"#, "the answer {}"),
            (r#"{"prompt": "p", "answer": []}"#, "has no answer"),
            (r#"{"prompt": "p", "answer": ["", "x"]}"#, "an empty one"),
            (
                r#"{"id": -1, "prompt": "p", "answer": "a"}"#,
                "whole number",
            ),
            (
                r#"{"id": 0.5, "prompt": "p", "answer": "a"}"#,
                "whole number",
            ),
            (
                r#"{"id": [], "prompt": "p", "answer": "a"}"#,
                "neither a number nor text",
            ),
            (
                "{\"id\": 1, \"prompt\": \"p\", \"answer\": \"a\"}\n{\"prompt\": \"p\", \"answer\": \"a\"}",
                "line 2: has no id",
            ),
            (
                "{\"id\": 1, \"prompt\": \"p\", \"answer\": \"a\"}\n{\"id\": \"1\", \"prompt\": \"p\", \"answer\": \"a\"}",
                "line 2: has the id of line 1",
            ),
        ] {
            let refused = rows(text).expect_err(text);
            assert!(refused.contains(words), "{refused}");
        }
    }
}
