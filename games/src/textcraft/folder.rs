//! A book from a folder of recipe files in Minecraft's data format, one recipe per file.
//!
//! Only the two crafting types are read. Files are loaded in order of name, or in the order of a
//! given list: task ids depend on the order, and a directory's own order differs between machines.

use std::io::Read as _;
use std::path::Path;

use serde_json::Value;

use super::book::{BookBuilder, RawInput, RecipeBook};
use agentgym_envs::EnvError;

/// The largest recipe files in known packs have a few kilobytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

impl RecipeBook {
    /// Loads every `.json` file of a folder, in order of name.
    pub fn from_folder(folder: &Path) -> Result<Self, EnvError> {
        let mut files = Vec::new();
        let entries = std::fs::read_dir(folder).map_err(|error| bad(folder, &error))?;
        for entry in entries {
            let name = entry.map_err(|error| bad(folder, &error))?.file_name();
            if let Some(name) = name.to_str().filter(|name| name.ends_with(".json")) {
                files.push(name.to_owned());
            }
        }
        files.sort_unstable();
        Self::from_files(folder, &files)
    }

    /// Loads these files of a folder in the given order, so that task ids match a server that read
    /// its directory in that order.
    pub fn from_files(folder: &Path, files: &[String]) -> Result<Self, EnvError> {
        let mut builder = BookBuilder::default();
        for file in files {
            let path = folder.join(file);
            let mut file =
                agentgym_envs::files::regular(&path).map_err(|problem| bad(&path, &problem))?;
            let size = file.metadata().map_err(|error| bad(&path, &error))?.len();
            if size > FILE_BYTES_MAX {
                return Err(bad(
                    &path,
                    &format!("{size} bytes; at most {FILE_BYTES_MAX}"),
                ));
            }
            let mut text = Vec::new();
            file.read_to_end(&mut text)
                .map_err(|error| bad(&path, &error))?;
            let json: Value = serde_json::from_slice(&text).map_err(|error| bad(&path, &error))?;
            add(&mut builder, &json).map_err(|problem| bad(&path, &problem))?;
        }
        let book = builder.finish();
        if book.goals().is_empty() {
            return Err(bad(
                folder,
                &"no crafting recipe in it; expected one JSON file per recipe, such as \
                  {\"type\": \"minecraft:crafting_shapeless\", …}",
            ));
        }
        Ok(book)
    }
}

fn bad(path: &Path, problem: &dyn std::fmt::Display) -> EnvError {
    EnvError::Recipes {
        path: path.to_owned(),
        problem: problem.to_string(),
    }
}

fn add(builder: &mut BookBuilder, json: &Value) -> Result<(), String> {
    let inputs = match json["type"].as_str().ok_or("no \"type\" text")? {
        "minecraft:crafting_shaped" => shaped(json)?,
        "minecraft:crafting_shapeless" => shapeless(json)?,
        _ => return Ok(()),
    };
    if inputs.is_empty() {
        return Err("a crafting recipe without inputs".to_owned());
    }
    let result = &json["result"];
    let output = result["item"]
        .as_str()
        .ok_or("no \"result\" with an \"item\" text")?;
    let count = match &result["count"] {
        Value::Null => 1,
        count => count
            .as_u64()
            .and_then(|count| u32::try_from(count).ok())
            .filter(|count| *count > 0)
            .ok_or_else(|| format!("result count {count} is not a positive number"))?,
    };
    let group = json["group"].as_str();
    builder.add(bare(output), count, &inputs, group);
    Ok(())
}

/// The amount of an ingredient is the number of its characters in the pattern.
fn shaped(json: &Value) -> Result<Vec<RawInput>, String> {
    let pattern: Vec<&str> = json["pattern"]
        .as_array()
        .and_then(|rows| rows.iter().map(Value::as_str).collect())
        .ok_or("\"pattern\" is not a list of texts")?;
    let key = json["key"].as_object().ok_or("\"key\" is not an object")?;
    let mut inputs = Vec::new();
    for (symbol, choice) in key {
        let count: usize = pattern
            .iter()
            .map(|row| row.matches(symbol.as_str()).count())
            .sum();
        let (id, is_tag) = ingredient(choice)?;
        inputs.push((
            id,
            is_tag,
            u32::try_from(count).map_err(|_| "pattern too large")?,
        ));
    }
    Ok(inputs)
}

fn shapeless(json: &Value) -> Result<Vec<RawInput>, String> {
    let list = json["ingredients"]
        .as_array()
        .ok_or("\"ingredients\" is not a list")?;
    list.iter()
        .map(|choice| ingredient(choice).map(|(id, is_tag)| (id, is_tag, 1)))
        .collect()
}

/// `{"item": id}` or `{"tag": id}`; of a list the first entry is used.
fn ingredient(choice: &Value) -> Result<(String, bool), String> {
    let one = match choice {
        Value::Array(choices) => choices.first().unwrap_or(&Value::Null),
        one => one,
    };
    match (one["item"].as_str(), one["tag"].as_str()) {
        (Some(item), _) => Ok((bare(item).to_owned(), false)),
        (None, Some(tag)) => Ok((bare(tag).to_owned(), true)),
        (None, None) => Err(format!("ingredient {one} has neither \"item\" nor \"tag\"")),
    }
}

fn bare(id: &str) -> &str {
    id.strip_prefix("minecraft:").unwrap_or(id)
}
