//! The template of a policy's folder: where it stands, the names of its special tokens, and what it
//! is given beside the conversation.

use super::{Chat, TemplateSettings};
use crate::folder::tokenizer::read_files;
use crate::folder::twice::spelling;
use crate::{Error, Result};
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::path::Path;

/// Files that hold a template, the names of its special tokens and its settings.
const FILES: [&str; 5] = [
    "chat_template.jinja",
    "tokenizer_config.json",
    "tokenizer.json",
    "special_tokens_map.json",
    SETTINGS,
];

/// What the template of a run's policy is given beside the conversation; a folder of `transformers`
/// has no such file.
const SETTINGS: &str = "chat_template_settings.json";

/// Special tokens that a template can name.
const NAMED: [&str; 7] = [
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
];

impl Chat {
    /// Reads the template of a policy folder: `chat_template.jinja`, else
    /// `chat_template` of `tokenizer_config.json` (a string, or the `default` entry of
    /// a list). `None` if the folder has neither.
    pub fn load(dir: &Path) -> Result<Option<Self>> {
        Self::from_files(&read_files(dir, &FILES)?, dir)
    }

    /// Builds from the contents of a policy folder's files, by name; `dir` appears in
    /// messages.
    pub fn from_files(files: &BTreeMap<String, Vec<u8>>, dir: &Path) -> Result<Option<Self>> {
        let [file, config_file, tokenizer_file, map_file, settings_file] = FILES;
        let config: Json = json(files, config_file, dir)?.unwrap_or_default();
        // A file of older versions, which transformers 5 reads where the newer one is not whole.
        let map: Json = match config.get("added_tokens_decoder") {
            None => json(files, map_file, dir)?.unwrap_or_default(),
            Some(_) => Json::Null,
        };
        let tokenizer: TokenizerFile = json(files, tokenizer_file, dir)?.unwrap_or_default();
        let (path, template) = match (files.get(file), embedded_template(&config)) {
            (Some(bytes), _) => {
                let path = dir.join(file);
                let template = String::from_utf8(bytes.clone()).map_err(|e| Error::Template {
                    path: path.clone(),
                    message: format!("is not UTF-8: {e}"),
                })?;
                (path, template)
            }
            (None, Some(template)) => (dir.join(config_file), template),
            (None, None) => return Ok(None),
        };
        let named_tokens = NAMED
            .into_iter()
            .filter_map(|name| {
                let token = map.get(name).or(config.get(name)).and_then(spelling)?;
                Some((name.to_owned(), token.to_owned()))
            })
            .collect();
        let special = (tokenizer.added_tokens.as_array())
            .into_iter()
            .flatten()
            .filter(|token| token.get("special").and_then(Json::as_bool) == Some(true))
            .filter_map(spelling)
            .map(str::to_owned)
            .collect();
        let chat = Self::new(template, named_tokens, special, path)?;
        match json(files, settings_file, dir)? {
            None => Ok(Some(chat)),
            Some(settings) => match chat.with_settings(&settings) {
                Err(Error::Template { message, .. }) => Err(Error::Template {
                    path: dir.join(settings_file),
                    message,
                }),
                chat => chat.map(Some),
            },
        }
    }

    /// Writes the template as `chat_template.jinja`, and what it is given.
    pub fn save(&self, dir: &Path) -> Result<()> {
        let path = dir.join(FILES[0]);
        std::fs::write(&path, &self.template).map_err(Error::io(&path))?;
        self.save_settings(dir).map(drop)
    }

    /// Writes what the template is given, if that is anything; the file's name.
    pub fn save_settings(&self, dir: &Path) -> Result<Option<&'static str>> {
        if self.settings == TemplateSettings::default() {
            return Ok(None);
        }
        let text = serde_json::to_string_pretty(&self.settings).expect("settings are JSON");
        let path = dir.join(SETTINGS);
        std::fs::write(&path, text + "\n").map_err(Error::io(&path))?;
        Ok(Some(SETTINGS))
    }
}

/// The part of `tokenizer.json` that is read here, without the vocabulary of several megabytes.
#[derive(Default, serde::Deserialize)]
struct TokenizerFile {
    #[serde(default)]
    added_tokens: Json,
}

/// Parses a JSON file; `None` where it is missing.
fn json<T: serde::de::DeserializeOwned>(
    files: &BTreeMap<String, Vec<u8>>,
    name: &str,
    dir: &Path,
) -> Result<Option<T>> {
    let Some(bytes) = files.get(name) else {
        return Ok(None);
    };
    serde_json::from_slice(bytes)
        .map(Some)
        .map_err(|e| Error::Json {
            path: dir.join(name),
            message: e.to_string(),
        })
}

fn embedded_template(config: &Json) -> Option<String> {
    match config.get("chat_template")? {
        Json::String(template) => Some(template.clone()),
        Json::Array(named) => named
            .iter()
            .find(|entry| entry.get("name").and_then(Json::as_str) == Some("default"))
            .and_then(|entry| entry.get("template")?.as_str())
            .map(str::to_owned),
        _ => None,
    }
}
