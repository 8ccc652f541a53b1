//! Errors of the queue. Since the queue is only a hint, every failure except a wrong setting is
//! worth a retry.

use agentgym_text::without_secrets;
use std::fmt::Display;

/// Results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the queue. URLs in messages never contain a password.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The URL names no queue.
    #[error(
        "queue.url `{url}`: {found}. Use `sqlite:PATH`, `redis://HOST:PORT/DB`, \
         `rediss://…` (TLS) or `memory:` (one process)"
    )]
    Url {
        /// The URL without password.
        url: String,
        /// What is wrong with it.
        found: String,
    },
    /// Options that contradict each other.
    #[error("{0}")]
    Options(String),
    /// A job that does not fit into a payload.
    #[error("job {key} cannot be queued: {reason}; shorten the run id")]
    Payload {
        /// The job's key.
        key: String,
        /// The reason.
        reason: String,
    },
    /// The queue cannot be opened.
    #[error("cannot open the queue {url}: {source}. {advice}")]
    Open {
        /// The URL without password.
        url: String,
        /// Advice for the user.
        advice: &'static str,
        /// The backend's error.
        source: Source,
    },
    /// The server refuses this user, or the user lacks a permission.
    #[error(
        "the queue {url} refuses: {source}. User and password are part of the URL, \
         `redis://USER:PASSWORD@HOST:PORT` (`redis://:PASSWORD@…` without a user), and the user needs \
         every command on the names of the queue: \
         `ACL SETUSER USER ~{prefix}:* ~core:apalis:* &{prefix}:* +@all -@admin`"
    )]
    Refused {
        /// The URL without password.
        url: String,
        /// The common prefix of all names of the queue.
        prefix: String,
        /// The server's error.
        source: Source,
    },
    /// Redis in cluster mode.
    #[error(
        "the queue {url} is a Redis in cluster mode, which cannot be used: give one without \
         (`cluster-enabled no`, at a managed service \"cluster mode disabled\"), or `sqlite:PATH` on one \
         machine"
    )]
    Cluster {
        /// The URL without password.
        url: String,
    },
    /// The queue was opened and then failed.
    #[error(
        "queue {url}: cannot {action}: {source}. No job is lost: workers ask again, and a command is typed again"
    )]
    Backend {
        /// The URL without password.
        url: String,
        /// The action that failed.
        action: &'static str,
        /// The backend's error.
        source: Source,
    },
}

/// An error of apalis, sqlx or redis.
pub type Source = Box<dyn std::error::Error + Send + Sync>;

/// Turns a backend's error into [`Error::Backend`]; used as `.map_err(failed(url, "push"))`.
pub(crate) fn failed<E: Into<Source>>(url: &str, action: &'static str) -> impl FnOnce(E) -> Error {
    move |source| Error::Backend {
        url: url.to_owned(),
        action,
        source: source.into(),
    }
}

/// An error for a URL that names no queue.
pub(crate) fn bad_url(url: &str, found: impl Display) -> Error {
    Error::Url {
        url: without_secrets(url),
        found: found.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_never_show() {
        let error = bad_url("http://me:secret@host/", "no such scheme");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}
