//! Calls of tools in the text of a message as it comes, in the form of Qwen and Hermes:
//! `<tool_call>{"name": …, "arguments": {…}}</tool_call>`. What is no call stays text.

use serde_json::{Map, Value, json};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

/// Finds calls in pieces of text.
#[derive(Debug)]
pub(crate) struct Calls {
    /// Of this and its number the id of a call is made: equal answers have equal ids.
    key: [u8; 32],
    /// Calls so far.
    found: u64,
    /// At most one is wanted.
    one: bool,
    /// Text that may be white space before a call, the beginning of a mark, or within a call.
    held: String,
}

/// What a piece of text adds to a message.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Said {
    pub(crate) text: String,
    /// In OpenAI's form, with their numbers.
    pub(crate) calls: Vec<(u64, Value)>,
    /// The one call that was wanted is there.
    pub(crate) is_over: bool,
}

impl Calls {
    pub(crate) fn new(key: [u8; 32], one: bool) -> Self {
        Self {
            key,
            found: 0,
            one,
            held: String::new(),
        }
    }

    /// How many calls there were.
    pub(crate) fn found(&self) -> u64 {
        self.found
    }

    /// Takes text; returns what is complete of it.
    pub(crate) fn push(&mut self, text: &str) -> Said {
        self.held.push_str(text);
        let mut said = Said::default();
        while let Some(start) = self.held.find(OPEN) {
            let Some(length) = self.held[start..].find(CLOSE) else {
                // A call never begins again before it ends.
                self.release(start, &mut said.text);
                return said;
            };
            let end = start + length + CLOSE.len();
            let written = &self.held[start + OPEN.len()..end - CLOSE.len()];
            match self.read(written) {
                Some(call) => {
                    said.text.push_str(self.held[..start].trim_end());
                    said.calls.push((self.found, call));
                    self.found += 1;
                    self.held.drain(..end);
                    if self.one {
                        self.held.clear();
                        said.is_over = true;
                        return said;
                    }
                }
                None => said.text.extend(self.held.drain(..end)),
            }
        }
        let ends = |length: &usize| self.held.ends_with(&OPEN[..*length]);
        let open = (1..OPEN.len()).rev().find(ends).unwrap_or(0);
        self.release(self.held.len() - open, &mut said.text);
        said
    }

    /// What was held back at the end of the message.
    pub(crate) fn rest(&mut self) -> String {
        let rest = std::mem::take(&mut self.held);
        match self.found > 0 && rest.trim().is_empty() {
            true => String::new(),
            false => rest,
        }
    }

    /// Moves what is held up to `end` into `text`, but for white space, which a call may follow.
    fn release(&mut self, end: usize, text: &mut String) {
        let length = self.held[..end].trim_end().len();
        text.extend(self.held.drain(..length));
    }

    /// A call in OpenAI's form, whose arguments are text.
    fn read(&self, written: &str) -> Option<Value> {
        let call: Map<String, Value> = serde_json::from_str(written).ok()?;
        let (name, arguments) = (call.get("name")?.as_str()?, call.get("arguments")?);
        if call.len() != 2 || !arguments.is_object() {
            return None;
        }
        let id = blake3::keyed_hash(&self.key, &self.found.to_le_bytes()).to_hex();
        Some(json!({
            "id": format!("call_{}", &id[..24]), "type": "function",
            "function": {"name": name, "arguments": arguments.to_string()},
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A text cut at every place in turn, into three pieces: the text, names and arguments of the
    /// calls, and whether it was over.
    fn read_in_pieces(text: &str, one: bool) -> (String, Vec<(String, String)>, bool) {
        let mut all = None;
        let cuts: Vec<usize> = (0..=text.len())
            .filter(|at| text.is_char_boundary(*at))
            .collect();
        for (number, first) in cuts.iter().enumerate() {
            for second in cuts[number..].iter().step_by(5) {
                let mut calls = Calls::new([1; 32], one);
                let (mut out, mut found, mut is_over) = (String::new(), Vec::new(), false);
                for piece in [&text[..*first], &text[*first..*second], &text[*second..]] {
                    let said = calls.push(piece);
                    out += &said.text;
                    found.extend(said.calls);
                    is_over |= said.is_over;
                    if is_over {
                        break;
                    }
                }
                out += &calls.rest();
                let ids: std::collections::BTreeSet<_> = found
                    .iter()
                    .map(|(_, call)| call["id"].to_string())
                    .collect();
                assert_eq!(ids.len(), found.len(), "each has an id of its own");
                let words = |(_, call): &(u64, Value)| {
                    let word = |of: &str| call["function"][of].as_str().unwrap().to_owned();
                    (word("name"), word("arguments"))
                };
                let found = (out, found.iter().map(words).collect(), is_over);
                assert_eq!(*all.get_or_insert(found.clone()), found, "{first} {second}");
            }
        }
        all.unwrap()
    }

    fn call(name: &str, arguments: &str) -> (String, String) {
        (name.to_owned(), arguments.to_owned())
    }

    #[test]
    fn calls_are_found_wherever_the_text_is_cut() {
        let first = "<tool_call>\n{\"name\": \"get\", \"arguments\": {\"b\": \"é </x>\", \"a\": 1}}\n</tool_call>";
        let second = "<tool_call>{\"name\":\"end\",\"arguments\":{}}</tool_call>";
        let both = vec![call("get", "{\"b\":\"é </x>\",\"a\":1}"), call("end", "{}")];
        let text = format!("I look.\n\n{first}\n{second}\n");
        assert_eq!(
            read_in_pieces(&text, false),
            ("I look.".to_owned(), both.clone(), false)
        );
        let (said, found, is_over) = read_in_pieces(&text, true);
        assert_eq!(
            (said.as_str(), &found[..], is_over),
            ("I look.", &both[..1], true)
        );
        let (said, found, _) = read_in_pieces(&format!("{first} and {second} so"), false);
        assert_eq!((said.as_str(), found), (" and so", both));
    }

    #[test]
    fn what_is_no_call_stays_text() {
        for text in [
            "a < b <tool b> \n",
            "<tool_call>get()</tool_call> done",
            "<tool_call>{\"name\": 5, \"arguments\": {}}</tool_call>",
            "<tool_call>{\"name\": \"a\", \"arguments\": \"b\"}</tool_call>",
            "<tool_call>{\"name\": \"a\", \"arguments\": {}, \"more\": 1}</tool_call>",
            "never ended <tool_call>{\"name\": \"a\", ",
            "  ",
        ] {
            assert_eq!(
                read_in_pieces(text, false),
                (text.to_owned(), vec![], false),
                "{text}"
            );
        }
    }
}
