//! Finds a model on this machine: a folder, or the snapshot of a hub model in the hub tools' cache.
//! Nothing is downloaded; if no model is found, the error names the searched places and the
//! command that fetches it.

use agentgym_jobs::files::shipped;
use agentgym_model::{gguf_at, import_line};
use serde::{Deserialize, Serialize};
use std::io::Read as _;
use std::path::{Path, PathBuf};

const MADE_BYTES_MAX: u64 = 1 << 16;

/// A file of exported policies: the run, iteration and stage that made it, and in which numeric class.
pub const MADE: &str = "made.json";

/// What stands in it; the folder may come from anywhere, and say less.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Made {
    pub run: String,
    pub iteration: u32,
    pub stage: String,
    pub numeric_class: String,
    /// The program's commit.
    pub code_version: String,
}

/// The numeric class that a model's folder says it was trained in; `None` if it says nothing.
pub fn class_made_in(folder: &Path) -> Option<String> {
    let mut text = String::new();
    let file = std::fs::File::open(folder.join(MADE)).ok()?;
    file.take(MADE_BYTES_MAX).read_to_string(&mut text).ok()?;
    let made: Made = serde_json::from_str(&text).ok()?;
    Some(made.numeric_class).filter(|class| !class.is_empty())
}

/// The folder of `actor_rollout_ref.model.path`.
///
/// # Errors
/// A message for the user: what was searched, and what to pass instead.
pub fn model_folder(path: &str) -> Result<PathBuf, String> {
    let folder = &*shipped(Path::new(path));
    if folder.is_dir() {
        return Ok(folder.to_owned());
    }
    let looked = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    let looked = looked.display();
    if let Some(file) = gguf_at(folder) {
        return Err(format!(
            "{looked} is a GGUF file, and no folder; {}",
            import_line(&file)
        ));
    }
    if folder.exists() {
        return Err(format!(
            "{looked} is a file; give the folder that holds config.json and model.safetensors"
        ));
    }
    let Some((owner, name)) = hub_id(path) else {
        return Err(format!(
            "there is no folder {looked}; relative paths start at the current folder. Give a folder in \
             Hugging Face layout, a hub id such as Qwen/Qwen2.5-0.5B-Instruct, or tiny"
        ));
    };
    let cache = hub_cache();
    let repository = cache.join(format!("models--{owner}--{name}"));
    let snapshot = std::fs::read_to_string(repository.join("refs/main"))
        .ok()
        .map(|revision| repository.join("snapshots").join(revision.trim()))
        .filter(|snapshot| snapshot.is_dir());
    snapshot.ok_or_else(|| {
        // Without the hub, `pull` only refuses.
        let pull = match cfg!(feature = "hub") {
            true => format!("`agentgym-submit pull {path}` or "),
            false => String::new(),
        };
        format!(
            "there is no folder {looked} (relative paths start at the current folder), and no copy of a hub \
             model of this name in {}; fetch it with {pull}`hf download {path}`, or give the folder",
            cache.display()
        )
    })
}

/// The owner and the name of a model on the hub, if it may be one.
pub(crate) fn hub_id(path: &str) -> Option<(&str, &str)> {
    let (owner, name) = path.split_once('/')?;
    let plain = |part: &str| {
        !part.is_empty()
            && !part.starts_with('.')
            && part
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
    };
    (plain(owner) && plain(name)).then_some((owner, name))
}

/// Where the hub's tools keep their downloads.
fn hub_cache() -> PathBuf {
    let folder = |name: &str| {
        std::env::var_os(name)
            .filter(|v| !v.is_empty())
            .map(PathBuf::from)
    };
    folder("HF_HUB_CACHE")
        .or_else(|| folder("HF_HOME").map(|home| home.join("hub")))
        .or_else(|| folder("HOME").map(|home| home.join(".cache/huggingface/hub")))
        .unwrap_or_else(|| PathBuf::from(".cache/huggingface/hub"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hub_id_without_a_copy_names_the_command() {
        let message = model_folder("No-Such-Owner/No-Such-Model-7B").unwrap_err();
        assert!(
            message.contains("hf download No-Such-Owner/No-Such-Model-7B"),
            "{message}"
        );
        for path in ["/no/such/folder", "plain", "../up", "a/b/c"] {
            let message = model_folder(path).unwrap_err();
            assert!(
                message.contains(path) && !message.contains("hf download"),
                "{message}"
            );
        }
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        assert!(model_folder(file).unwrap_err().contains("is a file"));
    }
}
