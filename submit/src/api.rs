//! What the viewer's pages ask: each answer is one JSON document, computed from the plan, the
//! commits and the attempt records, and verified against digests like everything else that this
//! program shows. What is slow to read is kept by digest, so that it is read once.

mod episodes;
mod fleet;
mod known;
mod overview;
mod reading;
mod refusals;
mod rescore;
mod rows;
mod scenes;
mod tasks;
mod update;

use crate::cli::{Global, ViewArgs};
use crate::run::signals::Interrupts;
use crate::runs::RunView;
use crate::{Error, Result, text};
use agentgym_jobs::pipeline::{PartId, Stage};
use agentgym_storage::{RunId, Store};
use agentgym_view::{Answers, Ask, PartRef, Refusal, RefusalKind, ViewerOptions, bundle_page};
use bytes::Bytes;
use known::Known;
use refusals::refusal;
use rows::RowCache;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;

/// Age of a listing that is good enough for a list of episodes: a filter is answered without the
/// store.
const LIST_PATIENCE: Duration = Duration::from_secs(20);

/// Reads a store for the viewer.
pub(crate) struct Reader {
    store: Store,
    /// Says where a run's queue is, if that is not beside the store.
    global: Global,
    runs: Mutex<BTreeMap<RunId, Arc<Known>>>,
    rows: RowCache,
}

impl Reader {
    pub(crate) fn new(store: Store, global: &Global) -> Self {
        Self {
            store,
            global: global.clone(),
            runs: Mutex::default(),
            rows: RowCache::default(),
        }
    }

    /// A run as it is now.
    async fn run(&self, name: &str) -> Result<Arc<Known>> {
        self.run_within(name, Duration::ZERO).await
    }

    /// A run as it is now, or as it was this long ago at most: then it is listed again meanwhile,
    /// for the next question.
    async fn run_within(&self, name: &str, patience: Duration) -> Result<Arc<Known>> {
        let kept = match RunId::from_str(name) {
            Ok(id) => self.runs.lock().await.get(&id).cloned(),
            Err(_) => None,
        };
        let known = match kept {
            Some(known) => known,
            None => {
                let view = RunView::open(&self.store, name).await?;
                let id = view.plan.run.clone();
                let known = Arc::new(Known::new(view, &self.global));
                let mut runs = self.runs.lock().await;
                Arc::clone(runs.entry(id).or_insert(known))
            }
        };
        if known.age().await.is_some_and(|age| age < patience) {
            let listing = Arc::clone(&known);
            tokio::spawn(async move { listing.refresh().await });
            return Ok(known);
        }
        let refreshed = known.refresh().await;
        if refreshed
            .as_ref()
            .is_err_and(|e| refusal(e).kind == RefusalKind::NotFound)
        {
            // It has vanished; should it come back, it is read anew.
            let id = known.plan().await.run.clone();
            self.runs.lock().await.remove(&id);
        }
        refreshed.map(|()| known)
    }

    /// How far a read that another page waits for has come; asks the store nothing.
    async fn progress(&self, name: &str) -> Value {
        let known = match RunId::from_str(name) {
            Ok(id) => self.runs.lock().await.get(&id).cloned(),
            Err(_) => None,
        };
        let reading = known.map_or(Value::Null, |known| known.reading.to_json());
        json!({"run": name, "reading": reading})
    }

    /// A line per run.
    async fn every_run(&self) -> Result<Value> {
        let mut all = Vec::new();
        for run in self.store.runs().await? {
            // One that cannot be read does not hide the others.
            let read = async { overview::line(&*self.run(run.as_str()).await?).await };
            all.push(match read.await {
                Ok(line) => line,
                Err(e) => json!({"run": run.to_string(), "error": e.to_string()}),
            });
        }
        Ok(json!({"store": agentgym_text::without_secrets(self.store.url()), "runs": all}))
    }

    async fn read(&self, ask: &Ask) -> Result<Value> {
        match ask {
            Ask::Runs => self.every_run().await,
            Ask::Progress(run) => Ok(self.progress(run).await),
            Ask::Run(run) => overview::run(&*self.run(run).await?).await,
            Ask::Series(run) => overview::series(&*self.run(run).await?).await,
            Ask::Episodes(run, filter) => {
                let known = self.run_within(run, LIST_PATIENCE).await?;
                episodes::list(&known, &self.rows, filter).await
            }
            Ask::Part(run, part) => overview::part(&*self.run(run).await?, id(part)?).await,
            Ask::Episode(run, part, k) => {
                let known = self.run(run).await?;
                episodes::episode(&known, &self.rows, id(part)?, *k).await
            }
            Ask::Credit(run, part, k) => {
                episodes::credit(&*self.run(run).await?, id(part)?, *k).await
            }
            Ask::Scenes(run, part, k) => {
                scenes::scenes(&*self.run(run).await?, id(part)?, *k).await
            }
            Ask::Tasks(run) => tasks::matrix(&*self.run(run).await?, &self.rows).await,
            Ask::Attempts(run) => fleet::attempts(&*self.run(run).await?).await,
            Ask::Ledger(run, price) => fleet::ledger(&*self.run(run).await?, *price).await,
            Ask::Update(run, n) => update::update(&*self.run(run).await?, &self.rows, *n).await,
            Ask::Ratios(run, n) => rescore::ratios(&*self.run(run).await?, &self.rows, *n).await,
            Ask::Rescored(run, part, k, n) => {
                rescore::episode(&*self.run(run).await?, id(part)?, *k, *n).await
            }
            Ask::Compare(a, b) => {
                let side = async |side: &str| {
                    let (run, n) = tasks::side(side)?;
                    let known = self.run(run).await?;
                    tasks::policy(&known, &self.rows, n).await
                };
                Ok(tasks::compare(&side(a).await?, &side(b).await?))
            }
        }
    }
}

fn id(part: &PartRef) -> Result<PartId> {
    Ok(PartId {
        iteration: part.iteration,
        stage: Stage::from_str(&part.stage).map_err(Error::Missing)?,
        part: part.part,
    })
}

#[async_trait::async_trait]
impl Answers for Reader {
    async fn answer(&self, ask: &Ask) -> Result<Bytes, Refusal> {
        let mut answer = self.read(ask).await.map_err(|e| refusal(&e))?;
        answer["version"] = json!(agentgym_view::API_VERSION);
        Ok(Bytes::from(answer.to_string()))
    }

    async fn pulse(&self, run: Option<&str>) -> Result<String, Refusal> {
        let counted = async {
            match run {
                Some(run) => self.run(run).await?.pulse().await,
                None => {
                    let mut all = String::new();
                    for run in self.store.runs().await? {
                        let commits = self.store.all_commits(&run).await?.len();
                        all += &format!("{run} {commits}\n");
                    }
                    Ok(all)
                }
            }
        };
        counted.await.map_err(|e: Error| refusal(&e))
    }
}

/// The answer to one question, for the terminal: what a page shows, a command prints.
pub(crate) async fn answer(store: Store, ask: &Ask, global: &Global) -> Result<Value> {
    let mut answer = Reader::new(store, global).read(ask).await?;
    answer["version"] = json!(agentgym_view::API_VERSION);
    Ok(answer)
}

/// Ports of `view`, if none is given.
const PORT: u16 = 7576;
const PORT_MAX: u16 = PORT + 20;

/// `view [RUN]`.
pub(crate) async fn view(store: Store, args: &ViewArgs, global: &Global) -> Result<()> {
    if let Some(run) = &args.run {
        RunView::open(&store, run).await?;
    }
    let reader = Arc::new(Reader::new(store, global));
    if let Some(dir) = &args.bundle {
        return bundle(&reader, args.run.as_deref(), dir, global.json).await;
    }
    let mut options = ViewerOptions {
        host: args.host.clone(),
        port: args.port.unwrap_or(PORT),
    };
    let server = loop {
        match agentgym_view::serve(reader.clone(), &options).await {
            // Another viewer is open already.
            Err(e)
                if e.kind() == std::io::ErrorKind::AddrInUse
                    && args.port.is_none()
                    && options.port < PORT_MAX =>
            {
                options.port += 1;
            }
            other => break other,
        }
    };
    let server = server.map_err(|e| {
        let (host, port) = (&args.host, options.port);
        Error::Usage(match e.kind() {
            std::io::ErrorKind::AddrInUse => format!(
                "port {port} is in use; is a viewer open already? Give --port N, or --port 0 for a free one"
            ),
            _ => format!("cannot listen on {host} port {port}: {e}; give another --host or --port"),
        })
    })?;
    let mut url = server.url.clone();
    if let Some(run) = &args.run {
        url += &format!("#/runs/{run}");
    }
    if global.json {
        text::emit_json_line(&json!({"version": 1, "url": url}));
    } else {
        text::emit(&format!(
            "{url}\nCtrl-C ends it; nothing is changed by looking."
        ));
    }
    if !args.no_open && !global.json {
        open_browser(&url);
    }
    tokio::select! {
        ended = server.run() => ended.map_err(|e| Error::Usage(format!("the viewer ended: {e}"))),
        () = Interrupts::listen().drain.cancelled_owned() => Ok(()),
    }
}

/// Asks the desktop for a browser; without one the printed URL has to do.
fn open_browser(url: &str) {
    let program = match cfg!(target_os = "macos") {
        true => "open",
        false => "xdg-open",
    };
    let silent = std::process::Stdio::null;
    let mut command = std::process::Command::new(program);
    let _ = command.arg(url).stdout(silent()).stderr(silent()).spawn();
}

/// Episodes of each iteration and evaluation that a bundle holds.
const BUNDLED_EPISODES: usize = 400;

/// Writes a run's pages as one file that needs no server.
async fn bundle(reader: &Reader, run: Option<&str>, dir: &Path, json: bool) -> Result<()> {
    let run = run.ok_or_else(|| Error::Usage("--bundle needs a RUN".into()))?;
    let mut answers = serde_json::Map::new();
    let mut ask = async |question: String| -> Result<Value> {
        let (path, query) = question.split_once('?').unwrap_or((&question, ""));
        let parsed = Ask::parse(path, query).map_err(|e| Error::Usage(e.message))?;
        let mut answer = reader.read(&parsed).await?;
        answer["version"] = json!(agentgym_view::API_VERSION);
        answers.insert(format!("/api/v1/{question}"), answer.clone());
        Ok(answer)
    };
    for question in ["", "/series", "/tasks", "/attempts", "/ledger"] {
        ask(format!("runs/{run}{question}")).await?;
    }
    let question = format!("runs/{run}/episodes?limit={BUNDLED_EPISODES}&sort=-iteration");
    let listed = ask(question).await?;
    for row in listed["rows"].as_array().into_iter().flatten() {
        let (part, k) = (row["part"].as_str().unwrap_or_default(), &row["k"]);
        let episode = format!("runs/{run}/parts/{part}/episodes/{k}");
        ask(episode.clone()).await?;
        ask(format!("{episode}/scenes")).await?;
        if row["slot"].is_number() {
            ask(format!("{episode}/credit")).await?;
        }
    }
    std::fs::create_dir_all(dir).map_err(Error::local(dir))?;
    let path = dir.join("index.html");
    let page = bundle_page(&json!({"run": run, "answers": answers}));
    text::replace(&path, page.as_bytes())?;
    let (file, count, bytes) = (path.display().to_string(), answers.len(), page.len());
    if json {
        text::emit_json_line(
            &json!({"version": 1, "file": file, "answers": count, "bytes": bytes}),
        );
    } else {
        let size = text::bytes(bytes as u64);
        text::emit(&format!("{file}: {count} answers, {size}"));
    }
    Ok(())
}
