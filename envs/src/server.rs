//! Environments over HTTP, with the wire behaviour of AgentGym's servers: their routes, their
//! shapes of replies and errors, their lenient numbers.
//!
//! Added: `GET /health`, an end to sessions that nobody uses, a limit on their number, and
//! texts that depend on the task alone. Not copied: dropping connections.

pub(crate) mod http;
pub(crate) mod options;
pub(crate) mod sessions;

#[cfg(test)]
mod tests;
pub(crate) mod validation;

use crate::env;
use crate::env::babyai::Compat;
use crate::env::searchqa::Library;
use crate::env::textcraft::Tasks;
use crate::error::EnvError;
use axum::serve::ListenerExt;
use http::App;
pub use options::ServerOptions;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// How long open requests may take to end after a stop.
const STOP_MAX: Duration = Duration::from_secs(5);

/// What a server plays.
#[derive(Clone, Debug)]
pub enum Served {
    /// Crafting.
    Textcraft(Arc<Tasks>),
    /// Grids of rooms; every world is a function of its id and this seed.
    Babyai {
        /// Which habits of the original are kept.
        compat: Compat,
        /// Mixed into every world; 0 is what the ids alone give.
        seed: u64,
    },
    /// Questions over a corpus.
    Searchqa(Arc<Library>),
    /// The maze of two Ts.
    Maze,
    /// Guessing words.
    Wordle {
        /// Mixed into every game; 0 is what the seeds of the requests alone give.
        seed: u64,
    },
}

impl From<Arc<Tasks>> for Served {
    fn from(tasks: Arc<Tasks>) -> Self {
        Self::Textcraft(tasks)
    }
}

impl Served {
    /// What the base URL for clients ends in.
    fn path_prefix(&self) -> &'static str {
        match self {
            Self::Maze => env::maze::server::PREFIX,
            Self::Wordle { .. } => env::wordle::server::PREFIX,
            _ => "",
        }
    }

    fn app(self, options: &ServerOptions) -> Arc<dyn App> {
        match self {
            Self::Textcraft(tasks) => {
                Arc::new(env::textcraft::server::Textcraft::new(tasks, options))
            }
            Self::Babyai { compat, seed } => {
                Arc::new(env::babyai::server::Babyai::new(compat, seed, options))
            }
            Self::Searchqa(library) => {
                Arc::new(env::searchqa::server::Searchqa::new(library, options))
            }
            Self::Maze => Arc::new(env::maze::server::MazeServer::new(options)),
            Self::Wordle { seed } => {
                Arc::new(env::wordle::server::WordleServer::new(seed, options))
            }
        }
    }
}

/// A running server. Dropping it stops it without waiting.
pub struct ServerHandle {
    /// Base URL for clients.
    pub url: String,
    app: Arc<dyn App>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<std::io::Result<()>>,
}

impl ServerHandle {
    /// Sessions open now.
    pub fn sessions(&self) -> usize {
        self.app.sessions().count()
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

/// Starts a server. Port 0 takes a free one.
pub async fn serve(
    served: impl Into<Served>,
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
    let served = served.into();
    let url = format!("http://{bound}{}", served.path_prefix());
    let app = served.app(&options);
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
        app.sessions().remove_unused();
    }
}
