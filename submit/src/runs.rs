//! A read-only view of a run in the store: its newest plan, its commits and its artifacts, read and
//! verified. Every command that reads a run uses it.

use crate::text::quoted;
use crate::{Error, Result};
use agentgym_jobs::codec::{Payload, decode};
use agentgym_jobs::pipeline::{PartId, Stage, parts};
use agentgym_jobs::plan::Plan;
use agentgym_jobs::planner::Progress;
use agentgym_record::documents::Document;
use agentgym_storage::{Inputs, Manifest, PartKey, RunId, Store};
use agentgym_text::has_secrets;
use serde_json::Value;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

/// Store used if neither the command line nor the config names one.
pub const DEFAULT_STORE: &str = "agentgym-data";

/// The name of a commit that is read by itself.
pub(crate) const COMMIT: &str = "commit";

/// A run in a store.
#[derive(Clone)]
pub struct RunView {
    /// The store.
    pub store: Store,
    /// The newest plan revision.
    pub plan: Arc<Plan>,
    /// The queue that the command was given, for commands that it names.
    pub queue: Option<String>,
}

/// The newest plan of a run, if there is one.
pub async fn newest_plan(store: &Store, run: &RunId) -> Result<Option<Plan>> {
    match store.plans(run).await?.pop() {
        Some((revision, bytes)) => Ok(Some(Plan::stored(run, revision, &bytes, store.url())?)),
        None => Ok(None),
    }
}

/// The error for an unknown run; it lists the known runs.
pub(crate) async fn unknown(store: &Store, run: &str) -> Result<Error> {
    let runs = store.runs().await?;
    let names: Vec<_> = runs.iter().map(ToString::to_string).collect();
    let known = if names.is_empty() {
        "no runs; another store? give --store URL".to_owned()
    } else {
        names.join(", ")
    };
    Ok(agentgym_jobs::Error::UnknownRun {
        run: run.to_owned(),
        url: store.url().to_owned(),
        known,
    }
    .into())
}

/// The one run that begins with this text; none for an empty one.
///
/// # Errors
/// Several begin with it.
pub(crate) async fn begins_with(store: &Store, text: &str) -> Result<Option<RunId>> {
    if text.is_empty() {
        return Ok(None);
    }
    let mut all = store.runs().await?;
    if let Some(exact) = all.iter().find(|id| id.as_str() == text) {
        return Ok(Some(exact.clone()));
    }
    all.retain(|id| id.as_str().starts_with(text));
    if all.len() > 1 {
        let names: Vec<String> = all.iter().map(ToString::to_string).collect();
        return Err(Error::Missing(format!(
            "several runs begin with `{text}`: {}; give more of the one that is meant",
            names.join(", ")
        )));
    }
    Ok(all.pop())
}

impl RunView {
    /// Opens a run by its id, or by the beginning of it if no other run begins so.
    ///
    /// # Errors
    /// An unknown run; the error lists the runs of the store. Several that begin so.
    pub async fn open(store: &Store, run: &str) -> Result<Self> {
        let found = async |id: &RunId| {
            let plan = newest_plan(store, id).await?;
            Ok::<_, Error>(plan.map(|plan| Self {
                store: store.clone(),
                plan: Arc::new(plan),
                queue: None,
            }))
        };
        if let Ok(id) = RunId::from_str(run)
            && let Some(view) = found(&id).await?
        {
            return Ok(view);
        }
        if let Some(id) = begins_with(store, run).await?
            && let Some(view) = found(&id).await?
        {
            return Ok(view);
        }
        Err(unknown(store, run).await?)
    }

    /// The same with the queue that a command was given.
    pub(crate) fn with_queue(self, queue: Option<String>) -> Self {
        Self { queue, ..self }
    }

    /// The run as arguments of a command that can be pasted: its id and its store.
    pub(crate) fn arguments(&self) -> String {
        format!("{} {}", self.plan.run, self.places())
    }

    /// Its store, and the queue that was given, as options.
    fn places(&self) -> String {
        let mut places = format!("--store {}", self.store.argument());
        if let Some(queue) = &self.queue {
            // A command line is visible to every user of the machine, so it must not contain a
            // password.
            places += &match has_secrets(queue) {
                true => " --queue \"$AGENTGYM_QUEUE\"".to_owned(),
                false => format!(" --queue {}", quoted(queue)),
            };
        }
        places
    }

    /// The command that gives the run a worker.
    pub(crate) fn start(&self) -> String {
        match self.plan.config.jobs.workers {
            0 => format!("agentgym-worker {}", self.places()),
            _ => format!("agentgym-submit resume {}", self.arguments()),
        }
    }

    /// The slot of a part, where its commit and attempts are stored.
    pub fn slot(&self, id: PartId) -> PartKey {
        PartKey {
            run: self.plan.run.clone(),
            iteration: id.iteration,
            stage: id.stage.name().to_owned(),
            part: id.part,
        }
    }

    /// Every commit of the run: one listing.
    pub async fn commits(&self) -> Result<Vec<PartId>> {
        let slots = self.store.all_commits(&self.plan.run).await?;
        Ok(slots.iter().filter_map(part_id).collect())
    }

    /// The planner's progress, built from those commits.
    pub async fn progress(&self) -> Result<Progress> {
        let mut progress = Progress::default();
        for id in self.commits().await? {
            progress.insert(id);
        }
        Ok(progress)
    }

    /// The commit of a part, if there is one.
    pub async fn manifest(&self, id: PartId) -> Result<Option<Manifest>> {
        Ok(self.store.manifest(&self.slot(id)).await?)
    }

    /// The commit of a part that must be committed.
    pub async fn committed(&self, id: PartId) -> Result<Manifest> {
        self.manifest(id).await?.ok_or_else(|| {
            Error::Missing(format!(
                "{id} of run {} is not committed yet; `agentgym-submit status {}` says what it waits for",
                self.plan.run,
                self.arguments()
            ))
        })
    }

    /// Commits as the named inputs of whoever reads them.
    pub fn inputs<'a>(&self, commits: impl IntoIterator<Item = (&'a str, Manifest)>) -> Inputs {
        let commits = commits.into_iter();
        let commits = commits.map(|(name, manifest)| (name.to_owned(), manifest));
        Inputs::new(self.store.clone(), commits.collect(), cache_dir())
    }

    /// The inputs that the plan gives a part.
    pub async fn inputs_of(&self, id: PartId) -> Result<Inputs> {
        let all = parts(&self.plan, id.iteration);
        let own = all.iter().find(|part| part.id == id);
        let own = own.ok_or_else(|| {
            Error::Missing(format!(
                "the plan of run {} has no part {id}",
                self.plan.run
            ))
        })?;
        let mut commits = Vec::new();
        for input in &own.inputs {
            commits.push((input.name.as_str(), self.committed(input.from).await?));
        }
        Ok(self.inputs(commits))
    }

    /// The verified bytes of an output.
    pub async fn bytes(&self, manifest: &Manifest, name: &str) -> Result<Vec<u8>> {
        let inputs = self.inputs([(COMMIT, manifest.clone())]);
        Ok(inputs.bytes(COMMIT, name).await?.to_vec())
    }

    /// A decoded binary payload.
    pub async fn payload<T: Payload>(&self, manifest: &Manifest, name: &str) -> Result<T> {
        Ok(decode(&self.bytes(manifest, name).await?)?)
    }

    /// A document that a stage wrote.
    pub async fn document<T: Document>(&self, manifest: &Manifest) -> Result<T> {
        let (n, stage, part) = (manifest.iteration, &manifest.stage, manifest.part);
        let bytes = self.bytes(manifest, T::FILE).await?;
        Ok(T::parse(&format_args!("{n}/{stage}/{part}"), &bytes)?)
    }

    /// A JSON output.
    pub async fn json(&self, manifest: &Manifest, name: &str) -> Result<Value> {
        let bytes = self.bytes(manifest, name).await?;
        serde_json::from_slice(&bytes).map_err(|e| {
            agentgym_jobs::Error::Payload {
                what: format!(
                    "{name} of {}/{}/{}",
                    manifest.iteration, manifest.stage, manifest.part
                ),
                message: format!("is not JSON: {e}"),
            }
            .into()
        })
    }

    /// Ids of a stage's parts in an iteration; the error for an unknown stage lists the known ones.
    pub fn stage_parts(&self, iteration: u32, stage: Stage) -> Result<Vec<PartId>> {
        let all = self.iteration_parts(iteration)?;
        let of_stage: Vec<_> = all.iter().copied().filter(|id| id.stage == stage).collect();
        if of_stage.is_empty() {
            let mut names: Vec<_> = all.iter().map(|id| id.stage.name()).collect();
            names.dedup();
            return Err(Error::Missing(format!(
                "iteration {iteration} has no stage {stage}; it has {}",
                names.join(", ")
            )));
        }
        Ok(of_stage)
    }

    /// Ids of an iteration's parts; an error if the plan has no such iteration.
    pub fn iteration_parts(&self, iteration: u32) -> Result<Vec<PartId>> {
        if iteration > self.plan.iterations {
            return Err(Error::Missing(format!(
                "run {} has iterations 0 to {}, not {iteration}",
                self.plan.run, self.plan.iterations
            )));
        }
        Ok(parts(&self.plan, iteration).iter().map(|p| p.id).collect())
    }
}

/// The part that a slot identifies; `None` for a stage this program does not know.
pub fn part_id(slot: &PartKey) -> Option<PartId> {
    Some(PartId {
        iteration: slot.iteration,
        stage: slot.stage.parse().ok()?,
        part: slot.part,
    })
}

/// Where downloads are cached: `$AGENTGYM_CACHE`, else the user's cache folder.
pub fn cache_dir() -> PathBuf {
    let under = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty());
    if let Some(dir) = under("AGENTGYM_CACHE") {
        return dir.into();
    }
    if let Some(dir) = under("XDG_CACHE_HOME") {
        return PathBuf::from(dir).join("agentgym");
    }
    match under("HOME") {
        Some(home) => PathBuf::from(home).join(".cache").join("agentgym"),
        None => std::env::temp_dir().join("agentgym"),
    }
}

/// Opens a store to read an existing run: a folder must exist and is not created.
pub(crate) async fn existing_store(url: &str) -> Result<Store> {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let home = url
        .strip_prefix("~/")
        .and_then(|rest| Some(home?.join(rest)));
    let home = home.map(|path| path.to_string_lossy().into_owned());
    let url = home.as_deref().unwrap_or(url);
    let local = !url.contains(':');
    if local && !std::path::Path::new(url).is_dir() {
        return Err(Error::Missing(format!(
            "there is no store at {url}; give --store URL (or set AGENTGYM_STORE)"
        )));
    }
    Ok(Store::open(url).await?)
}

/// The config inside a stored plan.
pub(crate) fn stored_tree(plan: &Plan) -> serde_json::Value {
    let mut file: serde_json::Value =
        serde_json::from_slice(&plan.to_bytes()).expect("a plan is written as JSON");
    file["config"].take()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_run_is_known_by_the_beginning_of_its_id() {
        let store = Store::open("memory:").await.unwrap();
        for run in ["quick-1a", "quick-1abc", "other"] {
            let run: RunId = run.parse().unwrap();
            store.put_plan(&run, 0, "{}".into()).await.unwrap();
        }
        let found = async |text: &str| match begins_with(&store, text).await {
            Ok(run) => run.map_or_else(|| "none".to_owned(), |run| run.to_string()),
            Err(e) => e.to_string(),
        };
        assert_eq!(found("o").await, "other");
        assert_eq!(
            found("quick-1a").await,
            "quick-1a",
            "a whole id comes first"
        );
        assert_eq!(found("quick-1ab").await, "quick-1abc");
        for unknown in ["", "quicker", "ther"] {
            assert_eq!(found(unknown).await, "none", "{unknown}");
        }
        let several = found("qui").await;
        assert!(several.contains("quick-1a, quick-1abc"), "{several}");
    }
}
