//! A picture of a search: the question with its accepted answers, and the passages found.

use super::{Library, Question};
use agentgym_envs::replica::Replica;
use serde_json::{Value, json};

/// A question that is being answered.
pub(super) struct Desk {
    library: Library,
    question: Question,
    last: String,
}

impl Desk {
    /// `Err` if there is no such question.
    pub(super) fn new(library: Library, id: i64) -> Result<Self, String> {
        let question = library.question(id).cloned();
        let question = question.ok_or_else(|| format!("there is no question {id}"))?;
        let last = String::new();
        Ok(Self {
            library,
            question,
            last,
        })
    }
}

impl Replica for Desk {
    fn first(&self) -> String {
        self.library.prompt(&self.question)
    }

    fn step(&mut self, action: &str) -> String {
        let reply = self.library.step(&self.question, action);
        self.last = reply.map_or_else(|e| e.to_string(), |reply| reply.observation);
        self.last.clone()
    }

    fn picture(&self) -> Value {
        let found = self.last.strip_prefix("<information>");
        let found = found.and_then(|text| text.strip_suffix("</information>"));
        let passages: Vec<Value> = passages(found.unwrap_or_default())
            .into_iter()
            .map(|(title, text)| json!({"title": title, "text": text}))
            .collect();
        json!({
            "kind": "passages", "question": self.question.text, "answers": self.question.answers,
            "passages": passages, "says": found.is_none().then_some(&self.last),
        })
    }
}

/// The title and the text of each passage of an answer.
fn passages(text: &str) -> Vec<(String, String)> {
    let mut out: Vec<(String, String)> = Vec::new();
    for line in text.lines() {
        let begun = line.strip_prefix(&format!("Doc {}(Title: ", out.len() + 1));
        match begun.and_then(|rest| rest.split_once(") ")) {
            Some((title, text)) => out.push((title.trim_matches('"').to_owned(), text.to_owned())),
            // A passage may have several lines.
            None => {
                if let Some((_, text)) = out.last_mut() {
                    *text += &format!("\n{line}");
                }
            }
        }
    }
    out
}
