//! A proxy in front of an environment server that corrupts a share of the calls, each in a way that
//! real servers have failed. Which calls, and how, depends only on the seed and the number of the
//! call.

use super::*;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net as async_net;
use tokio::sync::watch;

/// The possible faults of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Wrong {
    /// Never answers. The server does not get the call.
    Hangs,
    /// The server executes the call, but the connection ends before the answer.
    Dies,
    /// Status 500; the server does not get the call.
    Fails,
    /// The call reaches, or the answer names, another session.
    OtherSession,
    /// The connection ends in the middle of the answer.
    Half,
    /// 100 MB instead of the answer, with the length announced.
    Huge,
    /// The same without an announced length.
    Flood,
    /// A step's `done` is inverted.
    LiesAboutDone,
}

const KINDS: [Wrong; 8] = [
    Wrong::Hangs,
    Wrong::Dies,
    Wrong::Fails,
    Wrong::OtherSession,
    Wrong::Half,
    Wrong::Huge,
    Wrong::Flood,
    Wrong::LiesAboutDone,
];
const HUGE_BYTES: usize = 100_000_000;

pub(super) struct Proxy {
    pub(super) url: String,
    inner: Arc<Inner>,
}

struct Inner {
    server: SocketAddr,
    share: f64,
    /// Sessions on this item never get an answer to a step.
    doomed: i64,
    state: Mutex<State>,
    /// Number of calls that may pass so far; later ones wait.
    calls_max: watch::Sender<u64>,
}

struct State {
    random: u64,
    calls: u64,
    wrong: BTreeMap<Wrong, u64>,
    doomed: std::collections::BTreeSet<u64>,
}

impl Inner {
    /// Counts a call, and waits until it may pass.
    async fn count(&self) -> Option<()> {
        let number = {
            let mut state = self.state.lock().unwrap();
            state.calls += 1;
            state.calls
        };
        let mut calls_max = self.calls_max.subscribe();
        calls_max.wait_for(|max| number <= *max).await.ok()?;
        Some(())
    }

    fn draw(&self, path: &str) -> Option<Wrong> {
        let mut state = self.state.lock().unwrap();
        let mut next = || {
            state.random = state
                .random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state.random >> 33) as f64 / (1u64 << 31) as f64
        };
        if next() >= self.share {
            return None;
        }
        let kind = KINDS[(next() * KINDS.len() as f64) as usize];
        let kind = match (kind, path) {
            (Wrong::LiesAboutDone, "/step") => kind,
            (Wrong::LiesAboutDone, _) => Wrong::Fails,
            _ => kind,
        };
        *state.wrong.entry(kind).or_default() += 1;
        Some(kind)
    }
}

impl Proxy {
    pub(super) async fn start(server: SocketAddr, share: f64, doomed: i64, seed: u64) -> Self {
        let listener = async_net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let state = State {
            random: seed,
            calls: 0,
            wrong: BTreeMap::new(),
            doomed: Default::default(),
        };
        let inner = Arc::new(Inner {
            server,
            share,
            doomed,
            state: Mutex::new(state),
            calls_max: watch::Sender::new(u64::MAX),
        });
        let shared = Arc::clone(&inner);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&shared)));
            }
        });
        Self { url, inner }
    }

    /// Lets this many calls pass in total; later ones wait until the limit is raised.
    pub(super) fn let_pass(&self, calls: u64) {
        self.inner.calls_max.send_replace(calls);
    }

    /// Calls so far, and the number of faults of each kind.
    pub(super) fn counts(&self) -> (u64, BTreeMap<Wrong, u64>) {
        let state = self.inner.state.lock().unwrap();
        (state.calls, state.wrong.clone())
    }
}

/// One request per connection is the simplest, and as valid as keeping the connection.
async fn serve(mut stream: async_net::TcpStream, inner: Arc<Inner>) -> Option<()> {
    let (path, mut body) = request(&mut stream).await?;
    let session = body["id"].as_u64();
    inner.count().await?;
    if path == "/step" && session.is_some_and(|id| inner.state.lock().unwrap().doomed.contains(&id))
    {
        return reply(&mut stream, 500, "out of order").await;
    }
    let wrong = inner.draw(&path);
    match wrong {
        Some(Wrong::Hangs) => {
            tokio::time::sleep(Duration::from_secs(30)).await;
            return None;
        }
        Some(Wrong::Fails) => return reply(&mut stream, 500, "Internal Server Error").await,
        Some(Wrong::OtherSession) if session.is_some() => {
            body["id"] = (session? + 1_000_000_000).into();
        }
        _ => {}
    }
    let (status, text) = forward(inner.server, &path, &body).await?;
    if path == "/reset" && body["data_idx"] == inner.doomed && status == 200 {
        inner.state.lock().unwrap().doomed.extend(session);
    }
    match wrong {
        Some(Wrong::Dies) => None,
        Some(Wrong::Half) => {
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", text.len());
            let half = &text[..text.len() / 2];
            stream.write_all((head + half).as_bytes()).await.ok()
        }
        Some(Wrong::Huge | Wrong::Flood) => {
            let head: &[u8] = match wrong {
                Some(Wrong::Huge) => b"HTTP/1.1 200 OK\r\ncontent-length: 100000000\r\n\r\n",
                _ => b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n",
            };
            stream.write_all(head).await.ok()?;
            let piece = vec![b' '; 1 << 20];
            for _ in 0..HUGE_BYTES / piece.len() {
                stream.write_all(&piece).await.ok()?;
            }
            None
        }
        Some(Wrong::OtherSession) if path == "/create" => {
            let mut answer: Value = serde_json::from_str(&text).ok()?;
            answer["id"] = (answer["id"].as_u64()? + 1_000_000_000).into();
            reply(&mut stream, status, &answer.to_string()).await
        }
        Some(Wrong::LiesAboutDone) => {
            let mut answer: Value = serde_json::from_str(&text).ok()?;
            if let Some(done) = answer["done"].as_bool() {
                answer["done"] = (!done).into();
            }
            reply(&mut stream, status, &answer.to_string()).await
        }
        _ => reply(&mut stream, status, &text).await,
    }
}

async fn reply(stream: &mut async_net::TcpStream, status: u16, body: &str) -> Option<()> {
    let head = format!(
        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all((head + body).as_bytes()).await.ok()?;
    stream.shutdown().await.ok()
}

/// Path and body of a request.
async fn request(stream: &mut async_net::TcpStream) -> Option<(String, Value)> {
    let (head, mut body) = message(stream).await?;
    let path = head.split(' ').nth(1)?.to_owned();
    if body.is_empty() {
        body = b"{}".to_vec();
    }
    Some((path, serde_json::from_slice(&body).ok()?))
}

async fn forward(server: SocketAddr, path: &str, body: &Value) -> Option<(u16, String)> {
    let mut stream = async_net::TcpStream::connect(server).await.ok()?;
    let body = body.to_string();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes()).await.ok()?;
    let (head, body) = message(&mut stream).await?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some((status, String::from_utf8(body).ok()?))
}

/// Head and body of a message that declares its length.
async fn message(stream: &mut async_net::TcpStream) -> Option<(String, Vec<u8>)> {
    let mut bytes = Vec::new();
    loop {
        let end = bytes.windows(4).position(|w| w == b"\r\n\r\n");
        if let Some(end) = end {
            let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
            let head_as_sent = String::from_utf8_lossy(&bytes[..end]).into_owned();
            let length: usize = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length:"))
                .and_then(|text| text.trim().parse().ok())
                .unwrap_or(0);
            while bytes.len() < end + 4 + length {
                if stream.read_buf(&mut bytes).await.ok()? == 0 {
                    return None;
                }
            }
            return Some((head_as_sent, bytes[end + 4..end + 4 + length].to_vec()));
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
}
