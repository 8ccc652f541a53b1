//! The HTTP server: who may ask, how much at once, and how it ends.

use crate::ask::Ask;
use crate::owner::Owner;
use crate::refusal::Refusal;
use crate::reply::{Reply, ServedPolicy, Serving, pieces};
use crate::spelling::Special;
use crate::wire::{self, Route};
use agentgym_model::EngineOptions;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method};
use axum::response::Response;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};

/// Known tokens (prefill) of a step.
const PREFILL_TOKENS: usize = 512;
/// How long connections may take to close once everything is answered.
const CLOSING: Duration = Duration::from_secs(5);

/// Where a server listens, and how much it takes on.
#[derive(Debug, Clone)]
pub struct ServeOptions {
    /// The address; port 0 for a free one.
    pub address: SocketAddr,
    /// Sequences that are generated at once.
    pub rows: usize,
    /// Sequences that may wait for a row or to be scored.
    pub waiting: usize,
    /// Tokens whose keys and values are kept over all sequences.
    pub cache_tokens: usize,
    /// Threads that score.
    pub threads: usize,
    /// What clients send as bearer, if anything.
    pub key: Option<String>,
}

/// A server that listens.
pub struct PolicyServer {
    /// Where it listens.
    pub address: SocketAddr,
    /// Ids of the longest sequence.
    pub context: usize,
    app: Arc<App>,
    close: oneshot::Sender<()>,
    task: tokio::task::JoinHandle<std::io::Result<()>>,
    ended: watch::Receiver<bool>,
}

struct App {
    serving: Arc<Serving>,
    /// One for each sequence that is under way or waits.
    places: Arc<Semaphore>,
    places_max: usize,
    bodies: Semaphore,
    leaving: AtomicBool,
    key: Option<String>,
}

/// Starts a server.
///
/// # Errors
/// The address cannot be had, or no thread can be started.
pub async fn start(served: ServedPolicy, options: &ServeOptions) -> std::io::Result<PolicyServer> {
    let (address, listener) = wire::listen(options.address).await?;
    let places_max = options.rows.max(1) + options.waiting;
    let engine = EngineOptions {
        rows_max: options.rows,
        cache_tokens_max: options.cache_tokens,
        prefill_chunk: PREFILL_TOKENS,
        threads: EngineOptions::team(&served.policy, options.threads),
    };
    let engine = engine
        .on_device_of(&served.policy)
        .map_err(std::io::Error::other)?;
    let (owner, ended) = Owner::start(served.policy.clone(), engine, options.threads.max(1))?;
    let context = served.policy.config().max_position_embeddings;
    let serving = Serving {
        special: Special::of(served.policy.tokenizer()),
        served,
        owner,
        answers: AtomicUsize::new(0),
    };
    let app = Arc::new(App {
        serving: Arc::new(serving),
        places: Arc::new(Semaphore::new(places_max)),
        places_max,
        bodies: Semaphore::new(wire::BODIES_MAX),
        leaving: AtomicBool::new(false),
        key: options.key.clone(),
    });
    let router = axum::Router::new().fallback(handle);
    let router = router.with_state(Arc::clone(&app));
    let (close, closed) = oneshot::channel::<()>();
    let server = axum::serve(listener, router).with_graceful_shutdown(async {
        let _ = closed.await;
    });
    Ok(PolicyServer {
        address,
        context,
        app,
        close,
        task: tokio::spawn(async move { server.await }),
        ended,
    })
}

impl PolicyServer {
    /// Serves until `drain` is over, and answers then what it has taken on. New requests are refused
    /// meanwhile.
    ///
    /// # Errors
    /// Why the engine or the server ended before.
    pub async fn run(mut self, drain: impl Future<Output = ()>) -> Result<(), String> {
        let (app, owner) = (&self.app, &self.app.serving.owner);
        tokio::select! {
            () = drain => {}
            ended = &mut self.task => {
                let why = ended.map_err(std::io::Error::other).and_then(|ended| ended);
                return Err(why.map_or_else(|e| e.to_string(), |()| "it was closed".to_owned()));
            }
            () = over(&mut self.ended) => {}
        }
        app.leaving.store(true, Ordering::SeqCst);
        if owner.ended().is_none() {
            // Free places are all that is left once everything is answered.
            let all = u32::try_from(app.places_max).unwrap_or(u32::MAX);
            tokio::select! {
                _ = app.places.acquire_many(all) => {}
                () = over(&mut self.ended) => {}
            }
        }
        let _ = self.close.send(());
        // What a client does not read is not waited for.
        let _ = tokio::time::timeout(CLOSING, &mut self.task).await;
        match owner.ended() {
            None => Ok(()),
            Some(why) => Err(why.to_owned()),
        }
    }
}

/// Until the engine has ended.
async fn over(ended: &mut watch::Receiver<bool>) {
    let _ = ended.wait_for(|ended| *ended).await;
}

async fn handle(State(app): State<Arc<App>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let answered = answered(&app, &parts, body).await;
    answered.unwrap_or_else(|refusal| wire::refused(parts.uri.path(), &refusal))
}

async fn answered(app: &Arc<App>, parts: &Parts, body: Body) -> Result<Response, Refusal> {
    wire::check_origin(&parts.headers)?;
    let path = parts.uri.path();
    if path == "/health" && parts.method == Method::GET {
        return health(app);
    }
    check_key(app, &parts.headers)?;
    let Some(route) = Route::of(path) else {
        return models(app, parts);
    };
    if parts.method != Method::POST {
        return Err(wire::wrong_method(path, "POST"));
    }
    if app.leaving.load(Ordering::SeqCst) {
        return Err(Refusal::leaving());
    }
    let (ask, repeated) = read(app, route, body).await?;
    let held = take_places(app, ask.places())?;
    let streams = ask.stream;
    let (reply, seats) = Reply::begin(Arc::clone(&app.serving), ask, held).await?;
    if !streams {
        let found = reply.whole(seats).await?;
        return Ok(wire::document(&route.whole(repeated, found)));
    }
    let read = reply.read();
    Ok(route.stream((repeated, read), pieces(reply, seats)))
}

fn health(app: &App) -> Result<Response, Refusal> {
    if app.serving.owner.ended().is_some() {
        return Err(app.serving.owner.gone());
    }
    match app.leaving.load(Ordering::SeqCst) {
        true => Err(Refusal::leaving()),
        false => Ok(wire::document(&json!({"status": "ok"}))),
    }
}

fn models(app: &App, parts: &Parts) -> Result<Response, Refusal> {
    let path = parts.uri.path();
    let name = &app.serving.served.name;
    let config = app.serving.served.policy.config();
    let model = json!({
        "id": name, "object": "model", "created": 0, "owned_by": "agentgym",
        "max_model_len": config.max_position_embeddings,
    });
    let found = match path.strip_prefix("/v1/models") {
        Some("" | "/") => json!({"object": "list", "data": [model]}),
        Some(one) if one.strip_prefix('/') == Some(name) => model,
        Some(_) => return Err(Refusal::no_model(format!("the policy here is {name:?}"))),
        None => {
            return Err(wire::no_path(path));
        }
    };
    match parts.method == Method::GET {
        true => Ok(wire::document(&found)),
        false => Err(wire::wrong_method(path, "GET")),
    }
}

/// Whether the request has the key, in a time that does not depend on where it differs.
fn check_key(app: &App, headers: &HeaderMap) -> Result<(), Refusal> {
    let Some(key) = &app.key else {
        return Ok(());
    };
    let given = wire::key(headers);
    let differ = (given.iter().zip(key.as_bytes())).fold(0, |all, (x, y)| all | (x ^ y));
    match given.len() == key.len() && differ == 0 {
        true => Ok(()),
        false => {
            let message = "this server wants its key, as bearer or x-api-key";
            Err(Refusal::no_key(message))
        }
    }
}

/// Reads a body: what it asks for, and what the answer repeats of it.
async fn read(app: &App, route: Route, body: Body) -> Result<(Ask, Value), Refusal> {
    let (body, _permit) = wire::body(&app.bodies, body).await?;
    let serving = Arc::clone(&app.serving);
    let read = move || {
        let served = &serving.served;
        let (fields, repeated) = route.fields(&body)?;
        let ask = Ask::read(route.form(), fields, (&served.policy, &served.name))?;
        Ok((ask, repeated))
    };
    let read = tokio::task::spawn_blocking(read).await;
    read.map_err(|e| Refusal::failed(format!("reading the request: {e}")))?
}

/// Takes places for sequences, until the permit is dropped.
fn take_places(app: &App, places: usize) -> Result<OwnedSemaphorePermit, Refusal> {
    if places > app.places_max {
        let most = app.places_max;
        let message = format!(
            "{places} sequences (prompts times n, and each prompt that is scored), where this server takes \
             up to {most} at once; ask for fewer"
        );
        return Err(Refusal::bad("", message));
    }
    let wanted = u32::try_from(places).unwrap_or(u32::MAX);
    let taken = Arc::clone(&app.places).try_acquire_many_owned(wanted);
    taken.map_err(|_| match app.leaving.load(Ordering::SeqCst) {
        true => Refusal::leaving(),
        false => Refusal::full(format!(
            "all {} places are taken, or too few are free for {places} sequences",
            app.places_max
        )),
    })
}
