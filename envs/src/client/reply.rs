//! What a reply says: its JSON, the value at a key, and the words for what is not as declared.

use crate::http_client::excerpt;
use serde_json::Value;

/// A body as JSON, and how many characters in it UTF-8 cannot hold. Each is replaced by U+FFFD: half
/// of a pair of surrogates, which JSON can write, or a byte of another encoding.
///
/// # Errors
/// What is no JSON.
pub(super) fn read(bytes: &[u8]) -> Result<(Value, u64), String> {
    let error = match serde_json::from_slice(bytes) {
        Ok(reply) => return Ok((reply, 0)),
        Err(error) => error,
    };
    let (text, replaced) = whole_characters(bytes);
    if replaced > 0
        && let Ok(reply) = serde_json::from_str(&text)
    {
        return Ok((reply, replaced));
    }
    let before = text
        .split_inclusive('\n')
        .take(error.line().saturating_sub(1));
    let at = before.map(str::len).sum::<usize>() + error.column().saturating_sub(1);
    let number = ["NaN", "-Infinity", "Infinity"].into_iter();
    let rest = |back: usize| text.get(at.saturating_sub(back)..).unwrap_or_default();
    let found = number.map(|number| {
        (
            number,
            rest(0).starts_with(number) || rest(1).starts_with(number),
        )
    });
    Err(match found.into_iter().find(|(_, is_there)| *is_there) {
        Some((number, _)) => format!(
            "not JSON, which has no {number} (column {}): {}",
            error.column(),
            excerpt(bytes)
        ),
        None => format!("not JSON ({error}): {}", excerpt(bytes)),
    })
}

/// The text with U+FFFD in place of what UTF-8 cannot hold, and how many there are.
fn whole_characters(bytes: &[u8]) -> (String, u64) {
    let text = String::from_utf8_lossy(bytes);
    let own = String::from_utf8_lossy(bytes).matches('\u{fffd}').count();
    let sent = std::str::from_utf8(bytes).map_or(0, |text| text.matches('\u{fffd}').count());
    let mut replaced = (own - sent) as u64;
    let (mut whole, mut rest) = (String::with_capacity(text.len()), &*text);
    while let Some(at) = rest.find('\\') {
        let (before, escape) = rest.split_at(at);
        whole.push_str(before);
        let (kept, length) = match (unit(escape), escape.get(6..).and_then(unit)) {
            (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => (true, 12),
            (Some(0xd800..=0xdfff), _) => (false, 6),
            _ => (
                true,
                1 + escape[1..].chars().next().map_or(0, char::len_utf8),
            ),
        };
        let (escape, after) = escape.split_at(length);
        whole.push_str(if kept { escape } else { "\\ufffd" });
        replaced += u64::from(!kept);
        rest = after;
    }
    (whole + rest, replaced)
}

/// The UTF-16 unit of an escape at the beginning of a text.
fn unit(text: &str) -> Option<u32> {
    u32::from_str_radix(text.strip_prefix("\\u")?.get(..4)?, 16).ok()
}

/// The value at a key, or at a path of keys such as `observation.text`; null where there is none.
pub(super) fn at<'v>(reply: &'v Value, key: &str) -> &'v Value {
    match reply.get(key) {
        Some(value) => value,
        None => key.split('.').fold(reply, |value, key| &value[key]),
    }
}

/// Why the value at a key is not what it should be.
pub(super) fn unlike(reply: &Value, key: &str, wanted: &str) -> String {
    let found = match at(reply, key) {
        Value::Null => "missing or null".to_owned(),
        Value::Bool(value) => format!("{value}"),
        Value::Number(number) => format!("the number {number}"),
        Value::String(text) => format!("the text {:?}", excerpt(text.as_bytes())),
        Value::Array(all) => format!("a list of {}", all.len()),
        Value::Object(fields) => {
            let names: Vec<String> = fields
                .keys()
                .take(3)
                .map(|name| format!("{key}.{name}"))
                .collect();
            format!(
                "an object; a spec can name a field of it: {}",
                names.join(", ")
            )
        }
    };
    format!("`{key}` is no {wanted} but {found},")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_utf_8_cannot_hold_is_replaced_and_counted() {
        for (body, text, count) in [
            (&br#"{"o": "cut \ud83d"}"#[..], "cut \u{fffd}", 1),
            (
                br#"{"o": "\ude00\ud83d\ud83d\ude00"}"#,
                "\u{fffd}\u{fffd}\u{1f600}",
                2,
            ),
            (b"{\"o\": \"caf\xe9\"}", "caf\u{fffd}", 1),
            (br#"{"o": "\\ud83d \ud83d\n"}"#, "\\ud83d \u{fffd}\n", 1),
            (br#"{"o": "\ud83d\u0041"}"#, "\u{fffd}A", 1),
        ] {
            let (reply, replaced) = read(body).unwrap();
            assert_eq!((reply["o"].as_str(), replaced), (Some(text), count));
        }
        let sent = "{\"o\": \"\u{fffd}\"}";
        assert_eq!(
            read(sent.as_bytes()).unwrap(),
            (json!({"o": "\u{fffd}"}), 0)
        );
    }

    #[test]
    fn what_is_no_json_is_said() {
        for (body, found) in [
            (r#"{"reward": NaN}"#, "no NaN (column 12): {\"reward\""),
            ("{\"a\": 1,\n \"b\": -Infinity}", "no -Infinity"),
            ("<html>", "expected value"),
            (r#"{"o": "\ud83d", "r": NaN}"#, "not JSON"),
            ("", "an empty body"),
            ("\\", "not JSON"),
            ("\"\\u\u{e9}", "not JSON"),
        ] {
            let error = read(body.as_bytes()).unwrap_err();
            assert!(error.contains(found), "{body}: {error}");
        }
    }

    #[test]
    fn keys_may_be_paths() {
        let reply = json!({"a.b": 1, "a": {"b": 2, "c": {"d": 3}}, "o": {"text": "x"}, "r": "1.0"});
        let found = ["a.b", "a.c.d", "a.x", "o.text.x"].map(|key| at(&reply, key).clone());
        assert_eq!(found, [json!(1), json!(3), json!(null), json!(null)]);
        for (key, found) in [
            ("o", "an object; a spec can name a field of it: o.text"),
            ("r", "the text \"1.0\""),
            ("x", "missing or null"),
        ] {
            assert!(unlike(&reply, key, "number").contains(found));
        }
    }
}
