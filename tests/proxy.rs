//! A TCP proxy in front of a real server, with which one client of it is made to suffer what no
//! other does.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// What becomes of a new connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Manner {
    /// It leads to this server.
    To(String),
    /// Every request is answered with these bytes.
    Answers(String),
    /// HTTP requests of this method are answered with these bytes, others lead to this server.
    AnswersOnly(&'static str, String, String),
    /// No request is answered.
    Hangs,
    /// Connections end at once.
    Ends,
}

/// A running proxy; it stops when dropped.
#[derive(Debug)]
pub struct Proxy {
    /// Where it listens.
    pub address: SocketAddr,
    manner: Arc<Mutex<Manner>>,
    cut: Arc<Notify>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    /// Starts a proxy.
    ///
    /// # Panics
    /// If no port is free.
    pub async fn start(manner: Manner) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener
            .local_addr()
            .expect("a bound socket has an address");
        let (manner, cut) = (Arc::new(Mutex::new(manner)), Arc::new(Notify::new()));
        let (held, cuts) = (Arc::clone(&manner), Arc::clone(&cut));
        let accepting = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let manner = held.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let cuts = Arc::clone(&cuts);
                tokio::spawn(async move {
                    tokio::select! {
                        () = cuts.notified() => {}
                        () = serve(socket, manner) => {}
                    }
                });
            }
        });
        Self {
            address,
            manner,
            cut,
            accepting,
        }
    }

    /// Changes what becomes of new connections; the open ones stay.
    pub fn set(&self, manner: Manner) {
        *self.manner.lock().unwrap_or_else(PoisonError::into_inner) = manner;
    }

    /// Cuts all open connections.
    pub fn cut(&self) {
        self.cut.notify_waiters();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

async fn serve(mut socket: TcpStream, manner: Manner) {
    match manner {
        Manner::To(server) => {
            if let Ok(mut server) = TcpStream::connect(server).await {
                // A side that hangs up is not an error.
                let _ = copy_bidirectional(&mut socket, &mut server).await;
            }
        }
        Manner::Answers(text) => {
            let mut request = [0; 4096];
            let _ = socket.read(&mut request).await;
            answer(socket, &text).await;
        }
        Manner::AnswersOnly(method, text, server) => {
            let mut request = vec![0; 4096];
            let length = socket.read(&mut request).await.unwrap_or_default();
            request.truncate(length);
            if request.starts_with(method.as_bytes()) {
                answer(socket, &text).await;
            } else if let (Ok(mut server), Some(line)) = (
                TcpStream::connect(server).await,
                request.windows(2).position(|end| end == b"\r\n"),
            ) {
                // One request a connection, so that each is looked at.
                let (line, rest) = request.split_at(line + 2);
                let once = [line, b"Connection: close\r\n", rest].concat();
                if server.write_all(&once).await.is_ok() {
                    let _ = copy_bidirectional(&mut socket, &mut server).await;
                }
            }
        }
        Manner::Hangs => std::future::pending().await,
        Manner::Ends => {}
    }
}

/// Answers, and reads what is still sent: a socket that is closed before resets its connection, and the
/// answer may be lost.
async fn answer(mut socket: TcpStream, text: &str) {
    let _ = socket.write_all(text.as_bytes()).await;
    let _ = socket.shutdown().await;
    let mut nowhere = tokio::io::sink();
    let rest = tokio::io::copy(&mut socket, &mut nowhere);
    let _ = tokio::time::timeout(Duration::from_secs(1), rest).await;
}
