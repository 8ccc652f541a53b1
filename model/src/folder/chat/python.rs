//! Functions that published templates expect beyond Jinja itself: templates are
//! written for Python, down to the spaces of its JSON.

use minijinja::value::{Kwargs, Rest, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};
use serde_json::Value as Json;
use std::io::{Result as Written, Write};

/// Bytes of an indent or a separator of `tojson`.
const STYLE_BYTES_MAX: usize = 64;

/// The function with which templates refuse a conversation.
pub(super) fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

/// Whether Python iterates over a value: not over `none`, which the engine does.
pub(super) fn is_iterable(value: &Value) -> bool {
    value.kind() == ValueKind::Iterable || is_sequence(value)
}

/// Whether a value of Python has a length and elements, as texts and maps have.
pub(super) fn is_sequence(value: &Value) -> bool {
    use ValueKind::{Bytes, Map, Seq, String, Undefined};
    matches!(value.kind(), Bytes | Map | Seq | String | Undefined)
}

/// Methods of Python's values, beyond those that the engine's companion knows.
pub(super) fn method(
    state: &mut State<'_, '_>,
    value: &Value,
    name: &str,
    arguments: &[Value],
) -> Result<Value, Error> {
    let known = minijinja_contrib::pycompat::unknown_method_callback;
    let affix = arguments.first().and_then(Value::as_str);
    let (Some(text), Some(affix), 1) = (value.as_str(), affix, arguments.len()) else {
        return known(state, value, name, arguments);
    };
    let parted = |found: Option<(&str, &str)>, none: [&str; 3]| {
        let parts = found.map_or(none, |(before, after)| [before, affix, after]);
        Ok(Value::from_iter(parts))
    };
    match name {
        "removeprefix" => Ok(text.strip_prefix(affix).unwrap_or(text).into()),
        "removesuffix" => Ok(text.strip_suffix(affix).unwrap_or(text).into()),
        "partition" => parted(text.split_once(affix), [text, "", ""]),
        "rpartition" => parted(text.rsplit_once(affix), ["", "", text]),
        _ => known(state, value, name, arguments),
    }
}

/// `tojson` as `transformers` defines it: Python's `json.dumps`, without ASCII escapes unless they
/// are asked for. The engine's own filter escapes HTML, which changes the prompt.
pub(super) fn to_json(
    value: Value,
    positional: Rest<Value>,
    options: Kwargs,
) -> Result<String, Error> {
    const NAMES: [&str; 4] = ["ensure_ascii", "indent", "separators", "sort_keys"];
    if positional.len() > NAMES.len() {
        return Err(Error::from(ErrorKind::TooManyArguments));
    }
    let [escapes, indent, separators, sorts] = std::array::from_fn(|at| {
        let named = options.get::<Option<Value>>(NAMES[at]);
        let given = named.map(|named| named.or(positional.get(at).cloned()));
        given.map(|given| given.filter(|given| !given.is_none()))
    });
    let (escapes, sorts) = (escapes?, sorts?);
    options.assert_all_used()?;
    let indent = match indent? {
        None => None,
        Some(text) if text.as_str().is_some() => Some(short(&text)?),
        Some(spaces) => Some(" ".repeat(usize::try_from(spaces)?.min(STYLE_BYTES_MAX))),
    };
    let (item, key) = match separators? {
        Some(both) => match both.try_iter()?.collect::<Vec<Value>>().as_slice() {
            [item, key] => (short(item)?, short(key)?),
            _ => return Err(Error::from(ErrorKind::InvalidOperation)),
        },
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
    };
    let style = Style {
        escapes: escapes.is_some_and(|given| given.is_true()),
        indent,
        item,
        key,
        depth: 0,
        filled: false,
    };
    let bad =
        |e: serde_json::Error| Error::new(ErrorKind::BadSerialization, "tojson").with_source(e);
    match sorts.is_some_and(|given| given.is_true()) {
        true => {
            let mut json = serde_json::to_value(&value).map_err(bad)?;
            Json::sort_all_objects(&mut json);
            written(&json, style)
        }
        false => written(&value, style),
    }
    .map_err(bad)
}

/// A value as `tojson` writes it.
pub(super) fn plain_json(value: &Json) -> String {
    let style = Style {
        escapes: false,
        indent: None,
        item: ", ".to_owned(),
        key: ": ".to_owned(),
        depth: 0,
        filled: false,
    };
    written(value, style).expect("a value is JSON")
}

fn written(value: &impl serde::Serialize, style: Style) -> serde_json::Result<String> {
    let mut bytes = Vec::new();
    let mut to = serde_json::Serializer::with_formatter(&mut bytes, style);
    value.serialize(&mut to)?;
    Ok(String::from_utf8(bytes).expect("JSON is UTF-8"))
}

/// What stands around every entry, and so cannot be long.
fn short(text: &Value) -> Result<String, Error> {
    let text = text.to_string();
    match text.len() <= STYLE_BYTES_MAX {
        true => Ok(text),
        false => Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("tojson writes at most {STYLE_BYTES_MAX} bytes around an entry"),
        )),
    }
}

/// How Python's `json.dumps` writes.
struct Style {
    /// Whether what is not ASCII is escaped.
    escapes: bool,
    /// What stands before an entry for each level; none: all in one line.
    indent: Option<String>,
    /// Between entries.
    item: String,
    /// Between a key and its value.
    key: String,
    depth: usize,
    /// Whether the list or object that is open has an entry.
    filled: bool,
}

impl Style {
    fn open<W: ?Sized + Write>(&mut self, to: &mut W, bracket: &[u8]) -> Written<()> {
        self.depth += 1;
        self.filled = false;
        to.write_all(bracket)
    }

    fn entry<W: ?Sized + Write>(&self, to: &mut W, first: bool) -> Written<()> {
        if !first {
            to.write_all(self.item.as_bytes())?;
        }
        self.line(to)
    }

    fn line<W: ?Sized + Write>(&self, to: &mut W) -> Written<()> {
        match &self.indent {
            Some(indent) => write!(to, "\n{}", indent.repeat(self.depth)),
            None => Ok(()),
        }
    }

    fn close<W: ?Sized + Write>(&mut self, to: &mut W, bracket: &[u8]) -> Written<()> {
        self.depth -= 1;
        if self.filled {
            self.line(to)?;
        }
        to.write_all(bracket)
    }
}

impl serde_json::ser::Formatter for Style {
    fn begin_array<W: ?Sized + Write>(&mut self, to: &mut W) -> Written<()> {
        self.open(to, b"[")
    }

    fn end_array<W: ?Sized + Write>(&mut self, to: &mut W) -> Written<()> {
        self.close(to, b"]")
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, to: &mut W, first: bool) -> Written<()> {
        self.entry(to, first)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, _: &mut W) -> Written<()> {
        self.filled = true;
        Ok(())
    }

    fn begin_object<W: ?Sized + Write>(&mut self, to: &mut W) -> Written<()> {
        self.open(to, b"{")
    }

    fn end_object<W: ?Sized + Write>(&mut self, to: &mut W) -> Written<()> {
        self.close(to, b"}")
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, to: &mut W, first: bool) -> Written<()> {
        self.entry(to, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, to: &mut W) -> Written<()> {
        to.write_all(self.key.as_bytes())
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, _: &mut W) -> Written<()> {
        self.filled = true;
        Ok(())
    }

    fn write_string_fragment<W: ?Sized + Write>(&mut self, to: &mut W, text: &str) -> Written<()> {
        if !self.escapes {
            return to.write_all(text.as_bytes());
        }
        for unit in text.encode_utf16() {
            match u8::try_from(unit)
                .ok()
                .filter(|byte| (b' '..=b'~').contains(byte))
            {
                Some(byte) => to.write_all(&[byte])?,
                None => write!(to, "\\u{unit:04x}")?,
            }
        }
        Ok(())
    }
}
