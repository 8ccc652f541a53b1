//! A config as a tree of values: parsed from YAML, accessed by dotted paths, with `${a.b}`
//! references replaced.

use crate::error::beginning;
use crate::{Error, Result};
use serde_json::{Map, Value};

/// More levels than any config has; recursive functions make one call per level.
pub(super) const DEPTH_MAX: usize = 64;

/// Limit of the bytes that references may add: some hundred times a long config.
const INSERTED_BYTES_MAX: usize = 4 << 20;

/// Parses YAML. Only `true` and `false` are booleans: `n`, `on` or `yes` is text, as YAML 1.2 has it
/// ([`old_boolean`] reads them where a key takes a boolean). Error messages are the parser's, with the position in the text but without its
/// hints for programmers and source locations.
pub(super) fn yaml(text: &str) -> Result<Value, String> {
    let options = serde_saphyr::options! { strict_booleans: true };
    serde_saphyr::from_str_with_options(text, options).map_err(|e| {
        let said = e.to_string();
        let said = said.split("\n\nnote:").next().unwrap_or_default();
        let said = said
            .split("\n  |\n  | This value comes")
            .next()
            .unwrap_or_default()
            .trim_start_matches("error: ")
            .replace(", set DuplicateKeyPolicy in Options if acceptable", "");
        match said.find("budget breached") {
            None => said.trim_end().to_owned(),
            Some(_) => format!(
                "{}: it unfolds to far more values than a run config has; look at its anchors and aliases",
                said.split(": ").next().unwrap_or_default()
            ),
        }
    })
}

/// What YAML 1.1 takes this word for.
pub(super) fn old_boolean(word: &str) -> Option<bool> {
    let is = |words: [&str; 3]| words.iter().any(|w| word.eq_ignore_ascii_case(w));
    match (is(["yes", "y", "on"]), is(["no", "n", "off"])) {
        (true, _) => Some(true),
        (_, true) => Some(false),
        _ => None,
    }
}

/// A value for a message, shortened.
pub(super) fn shown(value: &Value) -> String {
    const CHARS_MAX: usize = 60;
    beginning(value.to_string(), CHARS_MAX)
}

/// The subtree at a dotted path.
pub(super) fn get<'a>(tree: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(tree, |node, name| node.get(name))
}

pub(super) fn set(tree: &mut Value, path: &str, value: Value) -> Result<()> {
    let mut node = tree;
    let names: Vec<&str> = path.split('.').collect();
    let (last, above) = names.split_last().expect("split yields at least one name");
    for name in above {
        let map = node
            .as_object_mut()
            .ok_or_else(|| Error::value(path, "a key above it holds a plain value"))?;
        node = map
            .entry((*name).to_owned())
            .or_insert_with(|| Value::Object(Map::new()));
    }
    let map = node
        .as_object_mut()
        .ok_or_else(|| Error::value(path, "a key above it holds a plain value"))?;
    map.insert((*last).to_owned(), value);
    Ok(())
}

pub(super) fn remove(tree: &mut Value, path: &str) {
    let Some((above, last)) = path.rsplit_once('.') else {
        if let Some(map) = tree.as_object_mut() {
            map.remove(path);
        }
        return;
    };
    let node = above
        .split('.')
        .try_fold(tree, |node, name| node.get_mut(name));
    if let Some(map) = node.and_then(Value::as_object_mut) {
        map.remove(last);
    }
}

/// Replaces `${a.b}` by the value of that key: a reference that is the whole value keeps its type,
/// one inside a longer text is inserted as text.
pub(super) fn interpolate(tree: &mut Value) -> Result<()> {
    const PASSES_MAX: usize = 16;
    let mut left = INSERTED_BYTES_MAX;
    for _ in 0..PASSES_MAX {
        let snapshot = tree.clone();
        if !replace("", tree, &snapshot, &mut left)? {
            return Ok(());
        }
        // A reference to its own ancestor doubles the depth with every pass.
        if deeper_than(tree, DEPTH_MAX) {
            return Err(Error::value(
                "${…}",
                format!(
                    "a reference to a section that it stands in; the config gets deeper than {DEPTH_MAX} levels"
                ),
            ));
        }
    }
    Err(Error::value(
        "${…}",
        format!("references are nested deeper than {PASSES_MAX}, or in a circle"),
    ))
}

pub(super) fn deeper_than(node: &Value, levels: usize) -> bool {
    let below = |child: &Value| levels == 0 || deeper_than(child, levels - 1);
    match node {
        Value::Object(map) => map.values().any(below),
        Value::Array(list) => list.iter().any(below),
        _ => false,
    }
}

/// Subtracts the size of a value from `left`; false if too little is left.
fn take(node: &Value, left: &mut usize) -> bool {
    let own = size_of::<Value>() + node.as_str().map_or(0, str::len);
    let Some(rest) = left.checked_sub(own) else {
        return false;
    };
    *left = rest;
    match node {
        Value::Object(map) => map.iter().all(|(name, child)| {
            let named = left.checked_sub(name.len()).map(|rest| *left = rest);
            named.is_some() && take(child, left)
        }),
        Value::Array(list) => list.iter().all(|child| take(child, left)),
        _ => true,
    }
}

fn replace(path: &str, node: &mut Value, whole: &Value, left: &mut usize) -> Result<bool> {
    let join = |name: &str| {
        if path.is_empty() {
            name.to_owned()
        } else {
            format!("{path}.{name}")
        }
    };
    match node {
        Value::Object(map) => {
            let mut any = false;
            for (name, child) in map.iter_mut() {
                any |= replace(&join(name), child, whole, left)?;
            }
            Ok(any)
        }
        Value::Array(list) => {
            let mut any = false;
            for (index, child) in list.iter_mut().enumerate() {
                any |= replace(&join(&index.to_string()), child, whole, left)?;
            }
            Ok(any)
        }
        Value::String(text) => {
            let Some(start) = text.find("${") else {
                return Ok(false);
            };
            let Some(length) = text[start..].find('}') else {
                return Err(Error::value(
                    path,
                    format!("`{text}` opens a reference and does not close it"),
                ));
            };
            let name = &text[start + 2..start + length];
            let value = get(whole, name).ok_or_else(|| {
                Error::value(path, format!("refers to `{name}`, which does not exist"))
            })?;
            // The text around a reference is copied too.
            if !take(value, left)
                || left
                    .checked_sub(text.len())
                    .map(|rest| *left = rest)
                    .is_none()
            {
                return Err(Error::value(
                    path,
                    format!(
                        "references add more than {INSERTED_BYTES_MAX} bytes to the config, the last to `{name}`; write \
                         the values themselves"
                    ),
                ));
            }
            *node = if start == 0 && start + length + 1 == text.len() {
                value.clone()
            } else {
                let inserted = value
                    .as_str()
                    .map_or_else(|| value.to_string(), str::to_owned);
                Value::String(format!(
                    "{}{inserted}{}",
                    &text[..start],
                    &text[start + length + 1..]
                ))
            };
            Ok(true)
        }
        _ => Ok(false),
    }
}
