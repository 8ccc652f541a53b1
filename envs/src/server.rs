//! Environments over HTTP, with the wire behaviour of AgentGym's servers: their routes, shapes of
//! replies and errors, and lenient parsing of numbers.
//!
//! Additions: `GET /health`, expiry of unused sessions, a limit on the number of sessions, and
//! texts that depend only on the task. Not copied: dropping connections.

pub mod games;
pub mod http;
mod options;
pub mod sessions;
pub mod validation;

use crate::error::EnvError;
use axum::serve::ListenerExt;
use http::App;
pub use options::ServerOptions;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// How long open requests may take to finish after a stop.
const STOP_MAX: Duration = Duration::from_secs(5);

/// A running server. Dropping it stops it without waiting.
pub struct ServerHandle {
    /// Base URL for clients.
    pub url: String,
    app: Arc<dyn App>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<std::io::Result<()>>,
}

impl ServerHandle {
    /// Number of open sessions.
    pub fn sessions(&self) -> usize {
        self.app.open().count()
    }

    /// Lets open requests finish, then stops the server.
    pub async fn stop(mut self) {
        self.stop.take();
        if tokio::time::timeout(STOP_MAX, &mut self.task)
            .await
            .is_err()
        {
            self.task.abort();
        }
    }
}

impl Drop for ServerHandle {
    fn drop(&mut self) {
        self.stop.take();
    }
}

/// Starts a server. Port 0 picks a free one; `prefix` is the suffix of the base URL for clients.
pub async fn serve(
    app: Arc<dyn App>,
    prefix: &str,
    addr: SocketAddr,
    options: ServerOptions,
) -> Result<ServerHandle, EnvError> {
    let listener = tokio::net::TcpListener::bind(addr)
        .await
        .map_err(|why| EnvError::Bind { addr, why })?;
    let bound = listener
        .local_addr()
        .map_err(|why| EnvError::Bind { addr, why })?;
    let listener = listener.tap_io(|stream| {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "cannot switch off delayed sending");
        }
    });
    let url = format!("http://{bound}{prefix}");
    let (stop, stopped) = oneshot::channel::<()>();
    let sweeper = tokio::spawn(sweep(Arc::clone(&app), options.session_ttl_s));
    let router = http::router(Arc::clone(&app));
    let task = tokio::spawn(async move {
        let served = axum::serve(listener, router)
            .with_graceful_shutdown(async move {
                // Both a message and a dropped sender mean stop.
                let _ = stopped.await;
            })
            .await;
        sweeper.abort();
        served
    });
    Ok(ServerHandle {
        url,
        app,
        stop: Some(stop),
        task,
    })
}

/// Frees the memory of expired sessions, for as long as the server runs.
async fn sweep(app: Arc<dyn App>, ttl_s: u64) {
    let ttl = Duration::from_secs(ttl_s);
    let pause = (ttl / 4).clamp(Duration::from_millis(250), Duration::from_secs(30));
    loop {
        tokio::time::sleep(pause).await;
        app.open().remove_unused();
    }
}
