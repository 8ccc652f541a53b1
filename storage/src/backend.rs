//! Opens the object store that a URL names: the only module that knows the kinds of stores.
//! Credentials come from the environment, never from the URL, because URLs are written into plans,
//! logs and messages.

mod folder_parts;

use crate::{Error, Result};
use folder_parts::FolderParts;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, S3ConditionalPut};
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::multipart::MultipartStore;
use object_store::prefix::PrefixStore;
use object_store::{BackoffConfig, ClientConfigKey, ObjectStore, RetryConfig};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use url::Url;

/// Retries of one request by the S3 client, in addition to the job's own.
const RETRIES_MAX: usize = 6;
/// No retry starts later than this after the first try.
const RETRY_TIMEOUT_S: u64 = 60;
/// Limit for one request with its body; bodies are at most 64 MiB.
const REQUEST_TIMEOUT_S: u64 = 120;
const CONNECT_TIMEOUT_S: u64 = 5;
/// All parts of a large object but the last have this size, as some servers require. S3 allows
/// 10 000 parts: 156 GiB.
pub(crate) const PART_BYTES: usize = 16 << 20;

/// An opened backend.
pub(crate) struct Backend {
    pub(crate) objects: Arc<dyn ObjectStore>,
    /// The same objects, for those that are written in parts; without it in one piece.
    pub(crate) parts: Option<Arc<dyn MultipartStore>>,
    /// For messages: without secrets; for a folder, its absolute path.
    pub(crate) url: String,
    /// Opens the same store again in the same environment; contains no secrets either.
    pub(crate) address: String,
    pub(crate) local_root: Option<PathBuf>,
}

/// Opens what `url` names; `options` take precedence over the `AWS_*` environment.
pub(crate) fn open(url: &str, options: &[(&str, &str)]) -> Result<Backend> {
    if let Some(name) = url.strip_prefix("memory:") {
        return Ok(memory(name.trim_start_matches('/')));
    }
    let Some((scheme, _)) = url.split_once("://") else {
        return folder(&home(url)?);
    };
    match (scheme, Url::parse(url)) {
        ("file", Ok(parsed)) => match parsed.to_file_path() {
            Ok(path) => folder(&path),
            Err(()) => Err(bad(
                url,
                "a file URL has three slashes and an absolute path: file:///data/runs",
            )),
        },
        ("s3" | "s3a", Ok(parsed)) => s3(&parsed, options),
        (_, Err(e)) => Err(bad(scheme, format!("it is not a valid URL ({e})"))),
        (_, Ok(_)) => Err(bad(
            &format!("{scheme}://…"),
            "this kind is not known; use a folder, file:///folder, s3://bucket/prefix, or memory: for a trial",
        )),
    }
}

fn bad(url: &str, why: impl Into<String>) -> Error {
    Error::BadUrl {
        url: url.to_owned(),
        why: why.into(),
    }
}

/// Expands `~`: a shell does, a YAML file does not.
fn home(path: &str) -> Result<PathBuf> {
    let Some(rest) = path.strip_prefix("~/") else {
        return Ok(PathBuf::from(path));
    };
    match std::env::var_os("HOME") {
        Some(home) => Ok(Path::new(&home).join(rest)),
        None => Err(bad(
            path,
            "`~` needs the environment variable HOME; write the folder out",
        )),
    }
}

fn folder(path: &Path) -> Result<Backend> {
    let shown = path.display().to_string();
    if shown.is_empty() {
        return Err(bad(
            "",
            "the URL is empty; give a folder, s3://bucket/prefix, or memory:",
        ));
    }
    let failed = |e: std::io::Error| {
        let said = e.to_string();
        let generic = object_store::Error::Generic {
            store: "folder",
            source: Box::new(e),
        };
        match Error::backend(&shown, "create a folder", &shown, &generic) {
            // Not temporary: a file is in the way, or a name is too long.
            Error::Unavailable { url, .. } => {
                let blocked = path.ancestors().find(|at| at.is_file());
                let why = match blocked {
                    Some(file) => {
                        format!("a file is in the way, {}; give a folder", file.display())
                    }
                    None => format!(
                        "the folder cannot be made ({said}); give one that this user can write"
                    ),
                };
                Error::BadUrl { url, why }
            }
            sorted => sorted,
        }
    };
    std::fs::create_dir_all(path).map_err(failed)?;
    let root = path.canonicalize().map_err(failed)?;
    let files = LocalFileSystem::new_with_prefix(&root)
        .map_err(|e| Error::backend(&shown, "open", &shown, &e))?;
    // A commit must survive a power failure.
    let files = Arc::new(files.with_fsync(true).with_automatic_cleanup(true));
    let parts = FolderParts {
        files: Arc::clone(&files),
        root: root.clone(),
        part_bytes: PART_BYTES,
    };
    Ok(Backend {
        objects: files,
        parts: Some(Arc::new(parts)),
        url: root.display().to_string(),
        address: root.display().to_string(),
        local_root: Some(root),
    })
}

/// `memory:` is always a new store; `memory:NAME` is one store per process and name.
fn memory(name: &str) -> Backend {
    static NAMED: OnceLock<Mutex<BTreeMap<String, Arc<InMemory>>>> = OnceLock::new();
    let objects = if name.is_empty() {
        Arc::default()
    } else {
        // The map is consistent even if a holder panicked.
        let mut named = NAMED
            .get_or_init(Mutex::default)
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        Arc::clone(named.entry(name.to_owned()).or_default())
    };
    Backend {
        parts: Some(Arc::clone(&objects) as _),
        objects,
        url: format!("memory:{name}"),
        address: format!("memory:{name}"),
        local_root: None,
    }
}

fn s3(url: &Url, options: &[(&str, &str)]) -> Result<Backend> {
    // Messages show only the bucket, the prefix and harmless options.
    let bucket = url.host_str().unwrap_or_default();
    let prefix = url.path().trim_matches('/');
    let shown = format!("s3://{}", [bucket, prefix].join("/").trim_end_matches('/'));
    if !url.username().is_empty() || url.password().is_some() {
        let why = "it carries credentials, which would end up in plans and logs; \
                   put them into AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY";
        return Err(bad(&shown, why));
    }
    if bucket.is_empty() {
        return Err(bad(
            &shown,
            "the bucket is missing; write s3://bucket/prefix",
        ));
    }
    let mut http_is_decided = std::env::var_os("AWS_ALLOW_HTTP").is_some();
    // The crypto provider for TLS; an error means that the process already has one.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut builder = AmazonS3Builder::from_env();
    for (name, value) in options {
        let key = AmazonS3ConfigKey::from_str(&name.to_ascii_lowercase())
            .map_err(|_| bad(&shown, format!("the option {name} is not known")))?;
        http_is_decided |= name.eq_ignore_ascii_case("AWS_ALLOW_HTTP");
        builder = builder.with_config(key, *value);
    }
    for (name, value) in url.query_pairs() {
        builder = match name.as_ref() {
            "endpoint" => builder.with_endpoint(value),
            "region" => builder.with_region(value),
            "path_style" => {
                builder.with_virtual_hosted_style_request(!flag(&shown, &name, &value)?)
            }
            "allow_http" => {
                http_is_decided = true;
                builder.with_allow_http(flag(&shown, &name, &value)?)
            }
            _ => {
                let why = format!(
                    "the option `{name}` is not known; there are endpoint, region, allow_http and path_style \
                     (credentials go into AWS_* variables)"
                );
                return Err(bad(&shown, why));
            }
        };
    }
    let set = |key| builder.get_config_value(&key).unwrap_or_default();
    let endpoint = match set(AmazonS3ConfigKey::S3Endpoint) {
        special if !special.is_empty() => special,
        _ => set(AmazonS3ConfigKey::Endpoint),
    };
    if endpoint.contains('@') {
        let why = "its endpoint carries a user name or a password, which would end up in logs and \
                   messages; put them into AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY";
        return Err(bad(&shown, why));
    }
    // An `http://` endpoint implies permission to use HTTP.
    if !http_is_decided && endpoint.starts_with("http://") {
        builder = builder.with_allow_http(true);
    }
    let time = |limit_s: u64| format!("{limit_s} seconds");
    let retry = RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(10),
            base: 2.0,
        },
        max_retries: RETRIES_MAX,
        retry_timeout: Duration::from_secs(RETRY_TIMEOUT_S),
    };
    let objects = builder
        .with_bucket_name(bucket)
        .with_conditional_put(S3ConditionalPut::ETagMatch)
        .with_config(
            AmazonS3ConfigKey::Client(ClientConfigKey::Timeout),
            time(REQUEST_TIMEOUT_S),
        )
        .with_config(
            AmazonS3ConfigKey::Client(ClientConfigKey::ConnectTimeout),
            time(CONNECT_TIMEOUT_S),
        )
        .with_retry(retry)
        .build()
        .map_err(|e| bad(&shown, e.to_string()))?;
    let at = if endpoint.is_empty() {
        String::new()
    } else {
        format!(" at {endpoint}")
    };
    // No prefix is an empty one.
    let objects = Arc::new(PrefixStore::new(objects, prefix));
    Ok(Backend {
        parts: Some(Arc::clone(&objects) as _),
        objects,
        url: format!("{shown}{at}"),
        // All options are known here, and none of the known ones is a secret.
        address: match url.query() {
            Some(options) => format!("{shown}?{options}"),
            None => shown,
        },
        local_root: None,
    })
}

fn flag(url: &str, name: &str, value: &str) -> Result<bool> {
    value.parse().map_err(|_| {
        bad(
            url,
            format!("the option `{name}` is true or false, not `{value}`"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(url: &str) -> String {
        open(url, &[])
            .err()
            .map(|e| e.to_string())
            .unwrap_or_else(|| panic!("{url} was accepted"))
    }

    #[test]
    fn urls_are_understood() {
        let s3 = open(
            "s3://bucket/a/b?endpoint=http://127.0.0.1:9&region=eu-1&path_style=true",
            &[],
        )
        .unwrap();
        assert_eq!(
            (s3.url.as_str(), s3.local_root),
            ("s3://bucket/a/b at http://127.0.0.1:9", None)
        );
        assert_eq!(open("memory:", &[]).unwrap().url, "memory:");
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        for url in [
            format!("file://{}/deep/er", root.display()),
            format!("{}/deep/er", root.display()),
        ] {
            let folder = open(&url, &[]).unwrap();
            assert_eq!(
                folder.local_root.as_deref(),
                Some(root.join("deep/er").as_path())
            );
        }
    }

    #[test]
    fn bad_urls_say_what_to_write() {
        assert!(refused("gs://bucket").contains("s3://bucket/prefix"));
        assert!(refused("s3:///prefix").contains("bucket is missing"));
        assert!(refused("s3://b?regio=x").contains("`regio` is not known"));
        assert!(refused("s3://b?path_style=yes").contains("true or false"));
        assert!(refused("file://relative/path").contains("three slashes"));
        assert!(refused("").contains("empty"));
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "").unwrap();
        for below in ["file", "file/below"] {
            let message = refused(dir.path().join(below).to_str().unwrap());
            assert!(message.contains("a file is in the way"), "{message}");
        }
    }

    #[test]
    fn secrets_never_come_back() {
        let text = refused("s3://AKIA:topsecret@bucket/p");
        assert!(
            !text.contains("topsecret")
                && !text.contains("AKIA")
                && text.contains("AWS_ACCESS_KEY_ID"),
            "{text}"
        );
        for endpoint in [
            "http://u:topsecret@h",
            "http%3A%2F%2Fu%3Atopsecret%40h",
            "u:topsecret@h",
        ] {
            let text = refused(&format!("s3://bucket/p?endpoint={endpoint}"));
            assert!(
                !text.contains("topsecret") && text.contains("AWS_SECRET_ACCESS_KEY"),
                "{text}"
            );
        }
        let text = refused("s3:///p?endpoint=http://u:topsecret@h");
        assert!(!text.contains("topsecret"), "{text}");
    }
}
