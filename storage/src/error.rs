//! Errors of a store, grouped by what the user can do about them. Each message names the key, file
//! or URL, what was found, and the remedy.

use object_store::Error as BackendError;
use std::error::Error as StdError;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What an error means for the job that met it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Try again; it counts as a failed attempt.
    Retry,
    /// Try again after this time; an operator has to act first.
    Wait(Duration),
    /// A retry cannot succeed.
    GiveUp,
    /// Another attempt committed first.
    Superseded,
}

/// All errors of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A run id, stage or artifact name that cannot be part of a key.
    #[error("{what} `{value}` is not usable: {rule}")]
    BadName {
        /// What kind of name.
        what: &'static str,
        /// As given.
        value: String,
        /// The rule it breaks.
        rule: &'static str,
    },
    /// A path that is no key of this layout.
    #[error("`{path}` is not a key of this layout: {why}")]
    BadKey {
        /// As given.
        path: String,
        /// What is wrong with it.
        why: String,
    },
    /// A store URL that cannot be understood.
    #[error("the store `{url}` cannot be opened: {why}")]
    BadUrl {
        /// As given, without secrets.
        url: String,
        /// What is wrong with it.
        why: String,
    },
    /// An object that should be there is not.
    #[error("{key} is not in the store {url}")]
    NotFound {
        /// The key.
        key: String,
        /// The store.
        url: String,
    },
    /// A folder that this user may not write (or read).
    #[error(
        "the store {url} does not let this user {doing} in it ({why}); choose another one with storage.url, or give this user the permission"
    )]
    NoPermission {
        /// The store.
        url: String,
        /// What was tried.
        doing: &'static str,
        /// What the operating system said.
        why: String,
    },
    /// The store has no space left.
    #[error(
        "the store {url} is full ({why}); free some space. Workers ask again, and a command is typed again"
    )]
    Full {
        /// The store.
        url: String,
        /// What the operating system said.
        why: String,
    },
    /// The credentials are missing, wrong, or not allowed to do this.
    #[error("the store {url} refuses this process ({why}); {cure}")]
    Denied {
        /// The store.
        url: String,
        /// What the server said.
        why: String,
        /// What to do.
        cure: &'static str,
    },
    /// The bucket does not exist.
    #[error("the bucket of {url} does not exist ({why}); create it, or correct storage.url")]
    NoBucket {
        /// The store.
        url: String,
        /// What the server said.
        why: String,
    },
    /// The server would let two attempts commit the same part.
    #[error(
        "the store {url} does not honour create-only writes ({found}); two workers could overwrite each other's commits, so it cannot be used: take a server that implements If-None-Match (AWS S3, MinIO, Cloudflare R2, Ceph), or a folder"
    )]
    NoConditionalPut {
        /// The store.
        url: String,
        /// What the probe saw.
        found: String,
    },
    /// The store does not answer, or returns an error that may be temporary.
    #[error(
        "the store {url} failed to {doing} {key}: {why}; {}. Workers ask again, and a command is typed again",
        after_failure(why)
    )]
    Unavailable {
        /// The store.
        url: String,
        /// The operation.
        doing: &'static str,
        /// The key.
        key: String,
        /// What it said.
        why: String,
    },
    /// An artifact that differs from what its commit says.
    #[error(
        "artifact {key} is damaged: expected {expected}, found {found}; restore the object from a copy, or delete {commit} so that the part is made again"
    )]
    Damaged {
        /// Key of the artifact.
        key: String,
        /// Key of the commit that names it.
        commit: String,
        /// Size or digest in the commit.
        expected: String,
        /// Size or digest of what the store returned.
        found: String,
    },
    /// An artifact that the retention rules removed.
    #[error(
        "artifact {key} was removed by the retention rules (see {tombstone}); keep more with trainer.save_freq, or fork from an iteration whose files are still there"
    )]
    Removed {
        /// Key of the artifact.
        key: String,
        /// Key of the tombstone that names it.
        tombstone: String,
    },
    /// An artifact that is written after its commit, and is not there.
    #[error(
        "artifact {key} is not in the store: an optimizer state is written after its commit, or at trainer.state_freq above 1 for some iterations never; a worker that needs it makes it again"
    )]
    NotStored {
        /// Key of the artifact.
        key: String,
    },
    /// A record of this crate that cannot be read.
    #[error("{key} cannot be read: {why}")]
    Malformed {
        /// Its key.
        key: String,
        /// What is wrong with it.
        why: String,
    },
    /// An object larger than the limit for its kind.
    #[error("{key} has {size} bytes; the limit for {what} is {limit}")]
    TooLarge {
        /// Its key or name.
        key: String,
        /// What kind of object.
        what: &'static str,
        /// Its size in bytes.
        size: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// An object that can be created only once exists with different content.
    #[error("{key} exists with another content, and objects are never overwritten: {hint}")]
    Conflict {
        /// Its key.
        key: String,
        /// What it means.
        hint: &'static str,
    },
    /// An input or artifact name that the stage does not have.
    #[error("there is no {what} `{name}`; there are: {known}")]
    Unknown {
        /// Input or artifact.
        what: &'static str,
        /// The name asked for.
        name: String,
        /// The known names.
        known: String,
    },
    /// A second output with the same name.
    #[error("output `{name}` of {slot} is written twice")]
    DuplicateOutput {
        /// The name.
        name: String,
        /// The part.
        slot: String,
    },
    /// A failure on a local file or folder outside the store.
    #[error("cannot {doing} {}: {source}", path.display())]
    Local {
        /// What was tried.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
}

impl Error {
    /// What the error means for the job.
    pub fn verdict(&self) -> Verdict {
        /// An operator has to free space first.
        const FULL_WAIT_S: u64 = 60;
        match self {
            Self::Unavailable { .. } | Self::Denied { .. } => Verdict::Retry,
            Self::Full { .. } => Verdict::Wait(Duration::from_secs(FULL_WAIT_S)),
            Self::Local { source, .. } if is_full(source.kind()) => {
                Verdict::Wait(Duration::from_secs(FULL_WAIT_S))
            }
            Self::Local { .. } => Verdict::Retry,
            _ => Verdict::GiveUp,
        }
    }

    /// True if the object asked for is not to blame: the same request may succeed later, or from
    /// another machine.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Unavailable { .. }
            | Self::Full { .. }
            | Self::Denied { .. }
            | Self::NoPermission { .. }
            | Self::NoBucket { .. } => true,
            Self::Local { source, .. } => is_full(source.kind()),
            _ => false,
        }
    }

    /// True if the object is blamed. The connection may have damaged the answer, so it is read
    /// again first.
    pub(crate) fn blames_object(&self) -> bool {
        matches!(
            self,
            Self::NotFound { .. } | Self::Damaged { .. } | Self::Malformed { .. }
        )
    }

    pub(crate) fn malformed(key: impl Into<String>, why: impl ToString) -> Self {
        Self::Malformed {
            key: key.into(),
            why: why.to_string(),
        }
    }

    pub(crate) fn local(
        doing: &'static str,
        path: impl Into<PathBuf>,
        source: std::io::Error,
    ) -> Self {
        Self::Local {
            doing,
            path: path.into(),
            source,
        }
    }

    /// Classifies a backend's error by what the user can do about it.
    pub(crate) fn backend(url: &str, doing: &'static str, key: &str, error: &BackendError) -> Self {
        let (url, why) = (url.to_owned(), chain(error));
        if let Some(kind) = io_kind(error) {
            match kind {
                kind if is_full(kind) => return Self::Full { url, why },
                ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
                    return Self::NoPermission { url, doing, why };
                }
                _ => {}
            }
        }
        // Listings wrap the server's answer, so only its text is left to match on.
        let said = |texts: &[&str]| texts.iter().any(|text| why.contains(text));
        let no_bucket = said(&["NoSuchBucket"]);
        // S3 answers an expired token with 400.
        let denied = said(&["403 Forbidden", "401 Unauthorized", "ExpiredToken"]);
        match error {
            BackendError::NotFound { .. } | BackendError::Generic { .. } if no_bucket => {
                Self::NoBucket { url, why }
            }
            BackendError::NotFound { .. } => Self::NotFound {
                key: key.to_owned(),
                url,
            },
            BackendError::PermissionDenied { .. } | BackendError::Unauthenticated { .. } => {
                Self::Denied {
                    url,
                    cure: cure(&why),
                    why,
                }
            }
            BackendError::Generic { .. } if denied => Self::Denied {
                url,
                cure: cure(&why),
                why,
            },
            BackendError::NotImplemented { .. } | BackendError::NotSupported { .. } => {
                Self::NoConditionalPut { url, found: why }
            }
            _ => Self::Unavailable {
                url,
                doing,
                key: key.to_owned(),
                why,
            },
        }
    }
}

/// What to do about a request that failed.
fn after_failure(why: &str) -> &'static str {
    match why.contains("UnknownIssuer") {
        true => {
            "if a private authority signed the server's certificate, name a file with that authority's \
             certificate in SSL_CERT_FILE"
        }
        false => "check the network and the server",
    }
}

/// What to do about a refusal.
fn cure(why: &str) -> &'static str {
    match why {
        _ if why.contains("RequestTimeTooSkewed") => {
            "the clock of this machine is wrong: set it, for example with NTP"
        }
        _ if why.contains("ExpiredToken") => {
            "its credentials have expired: start it again with fresh ones"
        }
        _ => {
            "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, this machine's clock and the bucket's policy"
        }
    }
}

fn is_full(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge
    )
}

/// The first I/O error in the chain of causes. `EPERM` and `EACCES` have the same kind; a read-only
/// file system has its own.
fn io_kind(error: &(dyn StdError + 'static)) -> Option<ErrorKind> {
    let mut cause = Some(error);
    while let Some(e) = cause {
        if let Some(io) = e.downcast_ref::<std::io::Error>() {
            return Some(io.kind());
        }
        cause = e.source();
    }
    None
}

/// Whether the connection was cut while a request or its answer was under way.
pub(crate) fn is_cut(error: &BackendError) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    let cuts = [
        BrokenPipe,
        ConnectionAborted,
        ConnectionReset,
        UnexpectedEof,
    ];
    io_kind(error).is_some_and(|kind| cuts.contains(&kind))
}

/// The error and its causes in one line, without causes that add nothing to the text before them.
fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(e) = cause {
        let more = e.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = e.source();
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generic(kind: ErrorKind) -> BackendError {
        BackendError::Generic {
            store: "LocalFileSystem",
            source: Box::new(std::io::Error::from(kind)),
        }
    }

    #[test]
    fn disk_conditions_are_told_apart() {
        let sorted = |kind| Error::backend("/data", "write", "k", &generic(kind));
        let full = sorted(ErrorKind::StorageFull);
        assert!(matches!(full, Error::Full { .. }), "{full}");
        assert_eq!(full.verdict(), Verdict::Wait(Duration::from_secs(60)));
        assert!(matches!(
            sorted(ErrorKind::QuotaExceeded),
            Error::Full { .. }
        ));
        assert!(matches!(
            sorted(ErrorKind::PermissionDenied),
            Error::NoPermission { .. }
        ));
        assert!(matches!(
            sorted(ErrorKind::ReadOnlyFilesystem),
            Error::NoPermission { .. }
        ));
        let passing = sorted(ErrorKind::ConnectionReset);
        assert!(matches!(passing, Error::Unavailable { .. }), "{passing}");
        assert_eq!(passing.verdict(), Verdict::Retry);
    }

    /// S3 answers an expired token with 400, which says nothing to the client's classification.
    #[test]
    fn a_refusal_names_its_cure() {
        let refused = |text: &str| {
            let source = text.to_owned().into();
            let error = BackendError::Generic {
                store: "S3",
                source,
            };
            Error::backend("s3://b", "write", "k", &error)
        };
        for (said, cure) in [
            ("400 Bad Request: <Code>ExpiredToken</Code>", "fresh ones"),
            ("403 Forbidden: <Code>RequestTimeTooSkewed</Code>", "clock"),
            (
                "403 Forbidden: <Code>AccessDenied</Code>",
                "bucket's policy",
            ),
        ] {
            let error = refused(said);
            assert!(matches!(error, Error::Denied { .. }), "{error}");
            assert!(
                error.to_string().contains(cure) && error.may_pass(),
                "{error}"
            );
        }
    }

    #[test]
    fn a_certificate_of_a_private_authority_is_no_matter_of_the_network() {
        let failed = |why: &str| {
            let source = why.to_owned().into();
            let error = BackendError::Generic {
                store: "S3",
                source,
            };
            Error::backend("s3://b", "write", "k", &error).to_string()
        };
        let unknown = failed("invalid peer certificate: UnknownIssuer");
        assert!(unknown.contains("SSL_CERT_FILE") && !unknown.contains("network"));
        assert!(failed("connection reset").contains("check the network"));
    }

    #[test]
    fn a_missing_bucket_is_not_a_missing_object() {
        let missing = |text: &str| BackendError::NotFound {
            path: "k".into(),
            source: text.to_owned().into(),
        };
        let sorted = |text| Error::backend("s3://b", "write", "k", &missing(text));
        assert!(matches!(
            sorted("<Code>NoSuchBucket</Code>"),
            Error::NoBucket { .. }
        ));
        assert!(matches!(
            sorted("<Code>NoSuchKey</Code>"),
            Error::NotFound { .. }
        ));
    }
}
