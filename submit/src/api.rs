//! What the viewer's pages ask: each answer is one JSON document, computed from the plan, the
//! commits and the attempt records, and verified against digests like everything else that this
//! program shows. What is slow to read is kept by digest, so that it is read once.

mod episode;
pub(crate) mod episodes;
pub(crate) mod fleet;
mod known;
mod overview;
mod reading;
mod refusals;
pub(crate) mod rescore;
mod rows;
mod scenes;
pub(crate) mod tasks;
pub(crate) mod update;

use crate::cli::{Global, ViewArgs};
use crate::run::signals::Interrupts;
use crate::runs::RunView;
use crate::{Error, Result, text};
use agentgym_jobs::pipeline::{PartId, Stage};
use agentgym_storage::{RunId, Store};
use agentgym_view::{
    Answers, Ask, EpisodeFilter, PartRef, Refusal, RefusalKind, ViewerOptions, bundle_page,
};
use bytes::Bytes;
use episodes::EpisodeList;
use fleet::Ledger;
use known::Known;
use overview::{ListedRun, Runs};
use refusals::refusal;
use rows::RowCache;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use tasks::Comparison;
use tokio::sync::Mutex;
use update::Update;

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
    async fn progress(&self, name: &str) -> ProgressPage {
        let known = match RunId::from_str(name) {
            Ok(id) => self.runs.lock().await.get(&id).cloned(),
            Err(_) => None,
        };
        ProgressPage {
            run: name.to_owned(),
            reading: known.and_then(|known| known.reading.longest()),
        }
    }

    /// A line per run.
    async fn every_run(&self) -> Result<Runs> {
        let mut runs = Vec::new();
        for run in self.store.runs().await? {
            let read = async { overview::line(&*self.run(run.as_str()).await?).await };
            runs.push(match read.await {
                Ok(line) => ListedRun::Read(Box::new(line)),
                Err(e) => ListedRun::Unreadable {
                    run: run.to_string(),
                    error: e.to_string(),
                },
            });
        }
        let store = agentgym_text::without_secrets(self.store.url());
        Ok(Runs { store, runs })
    }

    pub(crate) async fn ledger(&self, run: &str, price: Option<f64>) -> Result<Ledger> {
        fleet::ledger(&*self.run(run).await?, price).await
    }

    pub(crate) async fn episodes(&self, run: &str, filter: &EpisodeFilter) -> Result<EpisodeList> {
        let known = self.run_within(run, LIST_PATIENCE).await?;
        episodes::list(&known, &self.rows, filter).await
    }

    pub(crate) async fn update(&self, run: &str, n: u32) -> Result<Update> {
        update::update(&*self.run(run).await?, &self.rows, n).await
    }

    pub(crate) async fn compare(&self, a: &str, b: &str) -> Result<Comparison> {
        let side = async |side: &str| {
            let (run, n) = tasks::side(side)?;
            let known = self.run(run).await?;
            tasks::policy(&known, &self.rows, n).await
        };
        Ok(tasks::compare(&side(a).await?, &side(b).await?))
    }

    async fn read(&self, ask: &Ask) -> Result<Value> {
        let run = async |name: &str| self.run(name).await;
        Ok(match ask {
            Ask::Runs => json!(self.every_run().await?),
            Ask::Progress(name) => json!(self.progress(name).await),
            Ask::Run(name) => json!(overview::run(&*run(name).await?).await?),
            Ask::Series(name) => json!(overview::series(&*run(name).await?).await?),
            Ask::Episodes(name, filter) => json!(self.episodes(name, filter).await?),
            Ask::Part(name, part) => json!(overview::part(&*run(name).await?, id(part)?).await?),
            Ask::Episode(name, part, k) => {
                json!(episode::episode(&*run(name).await?, &self.rows, id(part)?, *k).await?)
            }
            Ask::Credit(name, part, k) => {
                json!(episode::credit(&*run(name).await?, id(part)?, *k).await?)
            }
            Ask::Scenes(name, part, k) => {
                json!(scenes::scenes(&*run(name).await?, id(part)?, *k).await?)
            }
            Ask::Tasks(name) => json!(tasks::matrix(&*run(name).await?, &self.rows).await?),
            Ask::Attempts(name) => json!(fleet::attempts(&*run(name).await?).await?),
            Ask::Ledger(name, price) => json!(self.ledger(name, *price).await?),
            Ask::Update(name, n) => json!(self.update(name, *n).await?),
            Ask::Ratios(name, n) => {
                json!(rescore::ratios(&*run(name).await?, &self.rows, *n).await?)
            }
            Ask::Rescored(name, part, k, n) => {
                json!(rescore::episode(&*run(name).await?, id(part)?, *k, *n).await?)
            }
            Ask::Compare(a, b) => json!(self.compare(a, b).await?),
        })
    }
}

/// How far a read has come.
#[derive(Debug, Serialize)]
struct ProgressPage {
    run: String,
    reading: Option<reading::Progress>,
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

/// Ports of `view`, if none is given.
const PORT: u16 = 7576;
const PORT_MAX: u16 = PORT + 20;

/// `view [RUN]`, as one line.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ViewDocument {
    url: String,
}

/// `view RUN --bundle DIR`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct BundleDocument {
    file: String,
    answers: usize,
    bytes: usize,
}

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
        text::emit_json_line(&ViewDocument { url: url.clone() });
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
    let mut keep = |question: String, mut answer: Value| {
        answer["version"] = json!(agentgym_view::API_VERSION);
        answers.insert(format!("/api/v1/{question}"), answer);
    };
    let filter = EpisodeFilter {
        sort: Some("-iteration".to_owned()),
        limit: BUNDLED_EPISODES,
        ..EpisodeFilter::default()
    };
    let listed = reader.episodes(run, &filter).await?;
    let question = format!("runs/{run}/episodes?limit={BUNDLED_EPISODES}&sort=-iteration");
    keep(question, json!(listed));
    let mut ask = async |question: String| -> Result<()> {
        let parsed = Ask::parse(&question, "").map_err(|e| Error::Usage(e.message))?;
        keep(question, reader.read(&parsed).await?);
        Ok(())
    };
    for question in ["", "/series", "/tasks", "/attempts", "/ledger"] {
        ask(format!("runs/{run}{question}")).await?;
    }
    for row in listed.rows {
        let episode = format!("runs/{run}/parts/{}/episodes/{}", row.part, row.row.k);
        ask(episode.clone()).await?;
        ask(format!("{episode}/scenes")).await?;
        if row.slot.is_some() {
            ask(format!("{episode}/credit")).await?;
        }
    }
    std::fs::create_dir_all(dir).map_err(Error::local(dir))?;
    let path = dir.join("index.html");
    let page = bundle_page(&json!({"run": run, "answers": answers}));
    text::replace(&path, page.as_bytes())?;
    let (file, count, bytes) = (path.display().to_string(), answers.len(), page.len());
    if json {
        text::emit_json_line(&BundleDocument {
            file,
            answers: count,
            bytes,
        });
    } else {
        let size = text::bytes(bytes as u64);
        text::emit(&format!("{file}: {count} answers, {size}"));
    }
    Ok(())
}
