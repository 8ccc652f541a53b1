//! The error type of this crate. Each message names the key, file or URL, says what was found, and
//! what to do about it.

use std::path::PathBuf;

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Errors between a `run.yaml` and a queued job.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file that the user named cannot be read.
    #[error(
        "cannot read {path}: {source}. Check the path; relative paths start at the current folder"
    )]
    Read {
        /// The file.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// A file has the wrong format.
    #[error("{path}: {message}")]
    Format {
        /// The file.
        path: PathBuf,
        /// What was found and what to do.
        message: String,
    },
    /// A key in the config does not exist.
    #[error("unknown key `{key}`{hint} `agentgym-submit keys` lists all of them")]
    UnknownKey {
        /// The key as written.
        key: String,
        /// `: did you mean …?` or `.`
        hint: String,
    },
    /// A value has the wrong type or cannot be used.
    #[error("key `{key}`: {message}")]
    Value {
        /// The key.
        key: String,
        /// What was found and what to do.
        message: String,
    },
    /// Several of the above.
    #[error("{} keys cannot be used:{}", .0.len(), listed(.0))]
    Several(Vec<Error>),
    /// Bytes that are not a valid payload of this program.
    #[error("{what}: {message}")]
    Payload {
        /// Which payload was expected.
        what: String,
        /// What was found.
        message: String,
    },
    /// The run exists with different identity keys.
    #[error("run `{run}` exists with another identity; these keys differ: {keys}")]
    Identity {
        /// The run.
        run: String,
        /// The keys with both values.
        keys: String,
        /// The new values, as overrides.
        changed: Vec<String>,
    },
    /// A run without a plan.
    #[error("unknown run `{run}`: the store at {url} holds {known}")]
    UnknownRun {
        /// The run asked for.
        run: String,
        /// The store.
        url: String,
        /// The runs it holds, or "no runs".
        known: String,
    },
    /// The object store failed.
    #[error(transparent)]
    Storage(#[from] agentgym_storage::Error),
}

/// A line for each of these errors, of very many the first ones.
fn listed(errors: &[Error]) -> String {
    const LINES_MAX: usize = 50;
    let line = |e: &Error| match e {
        Error::UnknownKey { key, hint } => format!("\n  unknown key `{key}`{hint}"),
        other => format!("\n  {other}"),
    };
    let lines: String = errors.iter().take(LINES_MAX).map(line).collect();
    let more = match errors.len().saturating_sub(LINES_MAX) {
        0 => String::new(),
        n => format!("\n  and {n} more"),
    };
    format!("{lines}{more}\n`agentgym-submit keys` lists every key and its range")
}

impl Error {
    /// These errors as one.
    pub(crate) fn all(mut errors: Vec<Self>) -> Result<()> {
        match errors.len() {
            0 => Ok(()),
            1 => Err(errors.remove(0)),
            _ => Err(Self::Several(errors)),
        }
    }

    /// A value error; `message` says what was found and what to do. Key and message are shortened,
    /// because both may quote the config.
    pub fn value(key: impl Into<String>, message: impl Into<String>) -> Self {
        const KEY_CHARS_MAX: usize = 200;
        const MESSAGE_CHARS_MAX: usize = 3000;
        Self::Value {
            key: beginning(key.into(), KEY_CHARS_MAX),
            message: beginning(message.into(), MESSAGE_CHARS_MAX),
        }
    }
}

/// The text, or its beginning with an ellipsis.
pub(crate) fn beginning(mut text: String, chars_max: usize) -> String {
    if let Some((at, _)) = text.char_indices().nth(chars_max) {
        text.truncate(at);
        text.push('…');
    }
    text
}
