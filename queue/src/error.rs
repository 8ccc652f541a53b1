//! What can go wrong with a queue. Since the queue is only a hint, everything
//! but a wrong setting is worth another try.

use agentgym_text::without_secrets;
use std::fmt::Display;

/// Results of this module.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the queue. URLs in messages never hold a password.
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
        /// Why not.
        reason: String,
    },
    /// The queue cannot be opened.
    #[error("cannot open the queue {url}: {source}. {advice}")]
    Open {
        /// The URL without password.
        url: String,
        /// What to do.
        advice: &'static str,
        /// What the backend says.
        source: Source,
    },
    /// The server does not let this user in, or not far enough.
    #[error(
        "the queue {url} refuses: {source}. User and password are part of the URL, \
         `redis://USER:PASSWORD@HOST:PORT` (`redis://:PASSWORD@…` without a user), and the user needs \
         every command on the names of the queue: \
         `ACL SETUSER USER ~{prefix}:* ~core:apalis:* &{prefix}:* +@all -@admin`"
    )]
    Refused {
        /// The URL without password.
        url: String,
        /// What all names of the queue begin with.
        prefix: String,
        /// What the server says.
        source: Source,
    },
    /// The queue was opened and then failed.
    #[error("queue {url}: cannot {action}: {source}. It is tried again; jobs are not lost with it")]
    Backend {
        /// The URL without password.
        url: String,
        /// What was tried.
        action: &'static str,
        /// What the backend says.
        source: Source,
    },
}

/// An error of apalis, sqlx or redis.
pub type Source = Box<dyn std::error::Error + Send + Sync>;

/// Turns a backend's error into ours; used as `.map_err(failed(url, "push"))`.
pub(crate) fn failed<E: Into<Source>>(url: &str, action: &'static str) -> impl FnOnce(E) -> Error {
    move |source| Error::Backend {
        url: url.to_owned(),
        action,
        source: source.into(),
    }
}

/// An error for a URL that is not one of ours.
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
