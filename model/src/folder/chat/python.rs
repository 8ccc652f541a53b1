//! Functions that published templates expect beyond Jinja itself: templates are
//! written for Python, down to the spaces of its JSON.

use minijinja::ErrorKind;
use minijinja::value::{Kwargs, Value};

/// The function with which templates refuse a conversation.
pub(super) fn raise_exception(message: String) -> Result<Value, minijinja::Error> {
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
}

/// `tojson` as templates expect it: Python's `json.dumps` without ASCII escapes.
/// The engine's own filter escapes HTML, which changes the prompt.
pub(super) fn to_json(value: Value, options: Kwargs) -> Result<String, minijinja::Error> {
    let bad = |e: serde_json::Error| {
        minijinja::Error::new(ErrorKind::BadSerialization, "tojson").with_source(e)
    };
    let indent: Option<usize> = options.get("indent")?;
    // Accepted and ignored: published templates pass `false`, which is the behaviour here.
    let _: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    let mut bytes = Vec::new();
    match indent {
        Some(indent) => {
            let spaces = " ".repeat(indent);
            let style = serde_json::ser::PrettyFormatter::with_indent(spaces.as_bytes());
            let mut to = serde_json::Serializer::with_formatter(&mut bytes, style);
            serde::Serialize::serialize(&value, &mut to).map_err(bad)?;
        }
        None => {
            let mut to = serde_json::Serializer::with_formatter(&mut bytes, OneLine);
            serde::Serialize::serialize(&value, &mut to).map_err(bad)?;
        }
    }
    Ok(String::from_utf8(bytes).expect("JSON is UTF-8"))
}

/// JSON with a space after `,` and `:`.
struct OneLine;

impl serde_json::ser::Formatter for OneLine {
    fn begin_array_value<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        writer.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        writer.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
    ) -> std::io::Result<()> {
        writer.write_all(b": ")
    }
}
