//! A server of one's own to begin with: a small game that can be played, its spec and its tests,
//! written into a new folder under another name.

use agentgym_envs::spec::declared;
use clap::ValueEnum;
use std::io;
use std::path::{Path, PathBuf};

/// What the server is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Language {
    /// FastAPI, as AgentGym's own servers.
    Python,
    /// axum.
    Rust,
}

/// The name that the texts below have.
const NAME: &str = "mygame";

const SPEC: &str = include_str!("../templates/mygame.yaml");

impl Language {
    fn files(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Python => &[
                ("server.py", include_str!("../templates/python/server.py")),
                (
                    "test_server.py",
                    include_str!("../templates/python/test_server.py"),
                ),
                (
                    "requirements.txt",
                    include_str!("../templates/python/requirements.txt"),
                ),
            ],
            Self::Rust => &[
                // Not under its own name: this folder would be a package of its own.
                (
                    "Cargo.toml",
                    include_str!("../templates/rust/Cargo.toml.in"),
                ),
                ("src/main.rs", include_str!("../templates/rust/src/main.rs")),
                (
                    "tests/server.rs",
                    include_str!("../templates/rust/tests/server.rs"),
                ),
            ],
        }
    }
}

/// Writes the folder `name` below `parent`, which must not be there yet, and returns the files.
///
/// # Errors
/// A name that no spec may have, or a folder that is there or cannot be written.
pub fn write(name: &str, language: Language, parent: &Path) -> Result<Vec<PathBuf>, String> {
    let spec = SPEC.replace(NAME, name);
    let file = PathBuf::from(format!("{name}.yaml"));
    declared::from_yaml(&file, &spec)?;
    let folder = parent.join(name);
    let failed = |path: &Path| {
        let shown = path.display().to_string();
        move |error: io::Error| format!("cannot write {shown}: {error}")
    };
    if folder.exists() {
        let shown = folder.display();
        return Err(format!(
            "{shown} is there already; give another name, or another folder with --to"
        ));
    }
    std::fs::create_dir(&folder).map_err(failed(&folder))?;
    let files = (language.files().iter())
        .map(|(file, text)| (PathBuf::from(file), text.replace(NAME, name)));
    let mut written = Vec::new();
    for (file, text) in std::iter::once((file, spec)).chain(files) {
        let path = folder.join(file);
        let within = path.parent().unwrap_or(&folder);
        std::fs::create_dir_all(within).map_err(failed(within))?;
        std::fs::write(&path, text).map_err(failed(&path))?;
        written.push(path);
    }
    Ok(written)
}
