//! A real S3 server inside the test process, backed by files: requests are signed, parsed and
//! answered as over any network. It can also misbehave in the two ways that matter for commits.

use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

const ACCESS_KEY: &str = "test";
/// The secret key that signs requests: a distinctive word that occurs nowhere else.
pub const SECRET_KEY: &str = "not-for-any-log-3";
const BUCKET: &str = "bucket";

/// How the server treats create-only writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manners {
    /// Correctly.
    Good,
    /// Accepts the condition and ignores it, as several servers do.
    IgnoresConditions,
    /// Looks whether the object exists and then writes, with a moment between.
    ChecksThenWrites,
    /// Executes the first write of each object, or the completion of its upload, but answers 503.
    LosesFirstAnswers,
    /// Cuts the connection of the first write of each object before it has read the bytes.
    CutsFirstWrites,
}

/// A running server. It stops when dropped; its files stay.
#[derive(Debug)]
pub struct S3Server {
    /// URL of a prefix in its bucket, including the endpoint.
    pub url: String,
    endpoint: String,
    bucket: PathBuf,
    requests: Requests,
    away: Arc<AtomicBool>,
    refuses_parts: Arc<AtomicBool>,
    accepting: JoinHandle<()>,
}

/// Requests by kind (HTTP method, LIST for a listing GET, or REFUSED) and by folder of a run: `PUT commits`.
type Requests = Arc<std::sync::Mutex<BTreeMap<String, u64>>>;

impl S3Server {
    /// Serves `dir`, creating the bucket if it does not exist.
    ///
    /// # Panics
    /// If no port is free or the folder cannot be used.
    pub async fn start(dir: &Path) -> Self {
        Self::start_with(dir, Manners::Good).await
    }

    /// [`S3Server::start`] with another behaviour.
    ///
    /// # Panics
    /// See [`S3Server::start`].
    pub async fn start_with(dir: &Path, manners: Manners) -> Self {
        let bucket = dir.join(BUCKET);
        std::fs::create_dir_all(&bucket).expect("the test's folder can be written");
        let files = s3s_fs::FileSystem::new(dir).expect("the test's folder can be served");
        let mut builder = S3ServiceBuilder::new(files);
        builder.set_auth(SimpleAuth::from_single(ACCESS_KEY, SECRET_KEY));
        let service = builder.build();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let endpoint = format!(
            "http://{}",
            listener
                .local_addr()
                .expect("a bound socket has an address")
        );
        // The server checks a condition and then writes, so requests are serialised; in real
        // servers this is atomic.
        let one_by_one = Arc::new(Mutex::new(BTreeSet::new()));
        let root = dir.to_owned();
        let requests = Requests::default();
        let counts = Arc::clone(&requests);
        let away = Arc::new(AtomicBool::new(false));
        let is_away = Arc::clone(&away);
        let refuses_parts = Arc::new(AtomicBool::new(false));
        let refuses = Arc::clone(&refuses_parts);
        let accepting = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let (service, one_by_one, root) =
                    (service.clone(), Arc::clone(&one_by_one), root.clone());
                let (counts, is_away) = (Arc::clone(&counts), Arc::clone(&is_away));
                let refuses = Arc::clone(&refuses);
                let answer = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
                    let query = request.uri().query().unwrap_or_default();
                    let is_part = query.contains("uploads") || query.contains("uploadId=");
                    let completes = request.method() == "POST" && query.contains("uploadId=");
                    let is_refused = is_part && refuses.load(Ordering::SeqCst);
                    count(&counts, &request, is_refused);
                    let is_away = is_away.load(Ordering::SeqCst);
                    let (service, one_by_one, root) =
                        (service.clone(), Arc::clone(&one_by_one), root.clone());
                    async move {
                        if is_away {
                            return Err(s3s::HttpError::new("the server is away".into()));
                        }
                        let path = request.uri().path().trim_start_matches('/').to_owned();
                        let bucket = path.split('/').next().unwrap_or_default();
                        if !root.join(bucket).is_dir() {
                            return Ok(no_such_bucket());
                        }
                        if is_refused {
                            return Ok(unavailable());
                        }
                        let is_create = request.headers().contains_key("if-none-match");
                        if !is_create && !completes {
                            return Service::call(&service, request).await;
                        }
                        if manners == Manners::ChecksThenWrites && !root.join(&path).exists() {
                            tokio::time::sleep(Duration::from_millis(50)).await;
                            let _ = std::fs::remove_file(root.join(&path));
                            return Service::call(&service, request).await;
                        }
                        let mut seen = one_by_one.lock().await;
                        if manners == Manners::IgnoresConditions {
                            let _ = std::fs::remove_file(root.join(&path));
                        }
                        if manners == Manners::CutsFirstWrites && seen.insert(path.clone()) {
                            return Err(s3s::HttpError::new("the connection is cut".into()));
                        }
                        let mut response = Service::call(&service, request).await?;
                        if manners == Manners::LosesFirstAnswers && seen.insert(path) {
                            response = unavailable();
                        }
                        Ok(response)
                    }
                });
                tokio::spawn(async move {
                    // A client that hangs up is not an error.
                    let _ = auto::Builder::new(TokioExecutor::new())
                        .serve_connection(TokioIo::new(socket), answer)
                        .await;
                });
            }
        });
        let url = format!("s3://{BUCKET}/a/prefix?endpoint={endpoint}");
        Self {
            url,
            endpoint,
            bucket,
            requests,
            away,
            refuses_parts,
            accepting,
        }
    }

    /// While set, every connection is cut.
    pub fn set_away(&self, away: bool) {
        self.away.store(away, Ordering::SeqCst);
    }

    /// While set, requests of uploads in parts are answered 503; the others are served.
    pub fn set_refuses_parts(&self, refuses: bool) {
        self.refuses_parts.store(refuses, Ordering::SeqCst);
    }

    /// The environment variables with which any S3 client finds this server.
    pub fn env(&self) -> [(&'static str, &str); 5] {
        [
            ("AWS_ENDPOINT_URL", self.endpoint.as_str()),
            ("AWS_ALLOW_HTTP", "true"),
            ("AWS_REGION", "us-east-1"),
            ("AWS_ACCESS_KEY_ID", ACCESS_KEY),
            ("AWS_SECRET_ACCESS_KEY", SECRET_KEY),
        ]
    }

    /// The same bucket by another address, that of a proxy.
    pub fn url_by(&self, address: std::net::SocketAddr) -> String {
        format!("s3://{BUCKET}/a/prefix?endpoint=http://{address}")
    }

    /// Ends the uploads in progress, as a lifecycle rule does.
    pub fn forget_uploads(&self) {
        let root = self
            .bucket
            .parent()
            .expect("a bucket is a folder of the server's root");
        for entry in std::fs::read_dir(root).expect("the root is there") {
            let path = entry.expect("the root can be listed").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name.starts_with(".upload") {
                std::fs::remove_file(&path).expect("nobody else removes it");
            }
        }
    }

    /// Where it listens.
    pub fn address(&self) -> String {
        self.endpoint.trim_start_matches("http://").to_owned()
    }

    /// Requests so far, by kind, regardless of the answer.
    pub fn requests(&self) -> BTreeMap<String, u64> {
        let mut by_kind = BTreeMap::new();
        for (name, count) in self.requests_by_folder() {
            let kind = name.split(' ').next().unwrap_or_default().to_owned();
            *by_kind.entry(kind).or_default() += count;
        }
        by_kind
    }

    /// Requests so far, by kind and folder of a run: `LIST commits`. Requests about no run or about
    /// all runs are counted under `store`.
    pub fn requests_by_folder(&self) -> BTreeMap<String, u64> {
        let counts = self.requests.lock();
        counts.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The file that holds the object `key` of the store at [`S3Server::url`].
    pub fn file_of(&self, key: &str) -> PathBuf {
        self.bucket.join("a/prefix").join(key)
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

fn count<B>(requests: &Requests, request: &hyper::Request<B>, is_refused: bool) {
    let query = request.uri().query().unwrap_or_default();
    let kind = match request.method().as_str() {
        _ if is_refused => "REFUSED",
        "GET" if query.contains("list-type") => "LIST",
        method => method,
    };
    let prefix = query
        .split('&')
        .find_map(|pair| pair.strip_prefix("prefix="));
    let about = match prefix {
        Some(prefix) => prefix.replace("%2F", "/"),
        None => request.uri().path().to_owned(),
    };
    let below_run = about.split_once("/runs/").map_or("", |(_, rest)| rest);
    let folder = below_run.split('/').nth(1).filter(|name| !name.is_empty());
    let name = format!("{kind} {}", folder.unwrap_or("store"));
    let mut counts = requests.lock().unwrap_or_else(PoisonError::into_inner);
    *counts.entry(name).or_default() += 1;
}

fn unavailable() -> s3s::HttpResponse {
    let text = "<Error><Code>SlowDown</Code><Message>please reduce your rate</Message></Error>";
    let mut response = s3s::HttpResponse::new(s3s::Body::from(text.to_owned()));
    *response.status_mut() = hyper::StatusCode::SERVICE_UNAVAILABLE;
    response
}

/// The file server would create the bucket; S3 does not.
fn no_such_bucket() -> s3s::HttpResponse {
    let text = "<Error><Code>NoSuchBucket</Code><Message>no such bucket</Message></Error>";
    let mut response = s3s::HttpResponse::new(s3s::Body::from(text.to_owned()));
    *response.status_mut() = hyper::StatusCode::NOT_FOUND;
    response
}
