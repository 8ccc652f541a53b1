//! What a folder's chat template makes of conversations, as ids: read by `tools/templates.py`, which
//! compares them with those of `transformers`.
//!
//! Each line of the input is a JSON object: `folder`, `messages` (strings: a task, a reply, an
//! observation, …), `system` and `tools` where there are some, `settings`; each line of the output
//! has the first prompt's ids, those behind every reply, and the id that ends a reply, or an error.

use agentgym_model::{Chat, Message, Role, TemplateSettings, Tokenizer};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::BufRead as _;
use std::path::{Path, PathBuf};

type Tokenizers = BTreeMap<PathBuf, Tokenizer>;

fn answer(asked: &Value, tokenizers: &mut Tokenizers) -> Result<Value, String> {
    let said = |e: agentgym_model::Error| e.to_string();
    let folder = Path::new(asked["folder"].as_str().unwrap_or_default());
    // Templates share the tokenizer's folder behind a link.
    let place = folder.join("tokenizer.json");
    let place = place.canonicalize().map_err(|e| e.to_string())?;
    if !tokenizers.contains_key(&place) {
        let read = Tokenizer::load(folder).map_err(said)?;
        tokenizers.insert(place.clone(), read);
    }
    let tokenizer = &tokenizers[&place];
    let chat = Chat::load(folder)
        .map_err(said)?
        .ok_or("no chat template")?;
    let settings: TemplateSettings =
        serde_json::from_value(asked["settings"].clone()).map_err(|e| e.to_string())?;
    let mut chat = chat.with_settings(&settings).map_err(said)?;
    if !asked["tools"].is_null() {
        chat = chat.with_tools(&asked["tools"]).map_err(said)?;
    }
    let texts: Vec<&str> = (asked["messages"].as_array().into_iter().flatten())
        .filter_map(Value::as_str)
        .collect();
    let system = asked["system"]
        .as_str()
        .map(|text| Message::new(Role::System, text));
    let task = texts.first().map(|text| Message::new(Role::User, *text));
    let prompt: Vec<Message> = system.into_iter().chain(task).collect();
    let first = chat.prompt_ids(tokenizer, &prompt).map_err(said)?;
    let behind = |text: &&str| chat.observation_ids(tokenizer, true, text);
    let bridges: Result<Vec<_>, _> = texts[1..].iter().skip(1).step_by(2).map(behind).collect();
    Ok(json!({
        "prompt": first,
        "bridges": bridges.map_err(said)?,
        "end": chat.end_of_turn_id(tokenizer).map_err(said)?,
        "check": chat.check(tokenizer).err().map(said),
        "text": chat.render(&prompt, true).map_err(said)?,
    }))
}

fn main() {
    let mut tokenizers = Tokenizers::new();
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let asked: Value = serde_json::from_str(&line).unwrap_or_default();
        let answer = answer(&asked, &mut tokenizers);
        println!("{}", answer.unwrap_or_else(|why| json!({ "error": why })));
    }
}
