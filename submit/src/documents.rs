//! The form of every document that `--json` prints.

use serde::Serialize;
use serde_json::{Value, json};

/// Version of the documents that `--json` prints, of errors too, and of `schema/v1.json`. Fields may
/// be added under a version; one that moves, goes or changes its meaning makes a new one.
pub(crate) const JSON_VERSION: u32 = agentgym_view::API_VERSION;

/// The document with its version in front.
pub(crate) fn versioned(document: &impl Serialize) -> Value {
    let mut out = serde_json::Map::new();
    out.insert("version".to_owned(), json!(JSON_VERSION));
    match json!(document) {
        Value::Object(fields) => out.extend(fields),
        other => _ = out.insert("value".to_owned(), other),
    }
    Value::Object(out)
}

/// An object whose fields are in the order of a plan.
#[derive(Debug)]
pub(crate) struct InOrder<T>(pub(crate) Vec<(String, T)>);

impl<T: Serialize> Serialize for InOrder<T> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

/// JSON for people and programs: a field a line, and lists of numbers or words on one line.
pub(crate) fn laid_out(document: &Value) -> String {
    let mut out = String::new();
    lay_out(document, 0, &mut out);
    out
}

fn lay_out(value: &Value, depth: usize, out: &mut String) {
    const STEP: usize = 2;
    let nested = |value: &Value| match value {
        Value::Array(all) => !all.is_empty(),
        Value::Object(all) => !all.is_empty(),
        _ => false,
    };
    let line = |depth: usize, out: &mut String| {
        out.push('\n');
        out.extend(std::iter::repeat_n(' ', depth * STEP));
    };
    let separate = |index: usize, out: &mut String| {
        if index > 0 {
            out.push(',');
        }
        line(depth + 1, out);
    };
    match value {
        Value::Array(all) if all.iter().any(nested) => {
            out.push('[');
            for (index, item) in all.iter().enumerate() {
                separate(index, out);
                lay_out(item, depth + 1, out);
            }
            line(depth, out);
            out.push(']');
        }
        Value::Object(all) if !all.is_empty() => {
            out.push('{');
            for (index, (name, item)) in all.iter().enumerate() {
                separate(index, out);
                *out += &format!("{}: ", Value::from(name.as_str()));
                lay_out(item, depth + 1, out);
            }
            line(depth, out);
            out.push('}');
        }
        other => *out += &other.to_string(),
    }
}

#[cfg(test)]
pub(crate) mod testing;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_has_a_version_and_short_lists() {
        let document = json!({"ids": [1, 2, 3], "none": [], "rows": [{"a": null, "b": [0.5, -0.0]}], "text": "a\n\u{1b}"});
        let out = laid_out(&versioned(&document));
        assert_eq!(
            out,
            r#"{
  "version": 1,
  "ids": [1,2,3],
  "none": [],
  "rows": [
    {
      "a": null,
      "b": [0.5,-0.0]
    }
  ],
  "text": "a\n\u001b"
}"#
        );
        let read: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(read["rows"], document["rows"]);
        assert_eq!(
            versioned(&json!({"version": 1, "a": 2}))
                .as_object()
                .unwrap()
                .len(),
            2
        );
    }
}
