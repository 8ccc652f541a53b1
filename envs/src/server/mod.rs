//! TextCraft over HTTP, with the wire behaviour of AgentGym's server: its routes, its shapes
//! of replies and errors, its lenient numbers.
//!
//! Added: `GET /health`, an end to sessions that nobody uses, a limit on their number, and
//! texts that depend on the task alone. Not copied: dropping connections.

mod routes;
mod sessions;
#[cfg(test)]
mod tests;
mod validation;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::serve::ListenerExt;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::error::EnvError;
use crate::textcraft::Tasks;
use sessions::Sessions;

/// How long open requests may take to end after a stop.
const STOP_MAX: Duration = Duration::from_secs(5);

/// Limits of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerOptions {
    /// A session that is not used for so long is closed, in seconds.
    pub session_ttl_s: u64,
    /// Sessions open at a time; a further create is refused with status 503.
    pub sessions_max: usize,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            session_ttl_s: 3600,
            sessions_max: 10_000,
        }
    }
}

/// A running server. Dropping it stops it without waiting.
pub struct ServerHandle {
    /// Base URL for clients.
    pub url: String,
    sessions: Arc<Sessions>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<std::io::Result<()>>,
}

impl ServerHandle {
    /// Sessions open now.
    pub fn sessions(&self) -> usize {
        self.sessions.count()
    }

    /// Ends open requests, then the server.
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

/// Starts a server of these tasks. Port 0 takes a free one.
pub async fn serve(
    tasks: Arc<Tasks>,
    addr: SocketAddr,
    options: ServerOptions,
) -> Result<ServerHandle, EnvError> {
    let listener = tokio::net::TcpListener::bind(addr)
        .await
        .map_err(|source| EnvError::Bind { addr, source })?;
    let bound = listener
        .local_addr()
        .map_err(|source| EnvError::Bind { addr, source })?;
    let listener = listener.tap_io(|stream| {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "cannot switch off delayed sending");
        }
    });
    let sessions = Arc::new(Sessions::new(tasks, options));
    let (stop, stopped) = oneshot::channel::<()>();
    let sweeper = tokio::spawn(Arc::clone(&sessions).sweep());
    let router = routes::router(Arc::clone(&sessions));
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
        url: format!("http://{bound}"),
        sessions,
        stop: Some(stop),
        task,
    })
}
