//! Which worker holds which part, by the queue of a run. Records in the store alone cannot tell a
//! worker that computes from one that has vanished.

use crate::cli::Global;
use crate::runs::RunView;
use crate::{Error, Result, text};
use agentgym_jobs::pipeline::PartId;
use agentgym_jobs::plan::Plan;
use agentgym_queue::{Error as QueueError, Job, Queue, QueueOptions};
use agentgym_storage::Store;

/// Whether the attempt that began last is still somebody's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Liveness {
    /// Its worker renews its claim.
    Held,
    /// Nobody holds the claim: the worker has vanished, and the next one takes the part up.
    Free,
    /// No queue was asked, or it does not answer: which, in words.
    Unknown(String),
}

impl Liveness {
    /// An attempt of such a worker, in a word.
    pub fn state(&self) -> &'static str {
        match self {
            Self::Free => "lost",
            Self::Held | Self::Unknown(_) => "running",
        }
    }

    /// Whether the worker is still there, if that is known.
    pub fn is_alive(&self) -> Option<bool> {
        match self {
            Self::Held => Some(true),
            Self::Free => Some(false),
            Self::Unknown(_) => None,
        }
    }

    /// Before a queue was asked.
    pub fn unasked() -> Self {
        Self::Unknown("no queue answers".to_owned())
    }
}

/// Opens the queue of a run; without a URL the one beside its store.
pub(crate) async fn open_queue(store: &Store, plan: &Plan, url: Option<String>) -> Result<Queue> {
    let url = match url {
        Some(url) => url,
        None => {
            agentgym_worker::default_queue_url(store).map_err(|e| Error::Usage(e.to_string()))?
        }
    };
    let jobs = &plan.config.jobs;
    let options = QueueOptions {
        length_max: jobs.length_max,
        ..QueueOptions::leasing(jobs.lease_ttl_s)
    };
    Queue::open(&url, options).await.map_err(|e| match e {
        QueueError::Url { .. } | QueueError::Options(_) => Error::Usage(e.to_string()),
        other => Error::Queue(other),
    })
}

/// The queue of a run, if it exists: a read-only command must not create one. One that does not
/// answer is said, and hides nothing else.
pub(crate) async fn queue(view: &RunView, global: &Global) -> Option<Queue> {
    match try_queue(view, global).await {
        Ok(queue) => queue,
        Err(e) => {
            text::tell(&format!("the queue cannot say who is alive: {e}"));
            None
        }
    }
}

/// [`queue`] for a caller that asks again and again.
pub(crate) async fn try_queue(view: &RunView, global: &Global) -> Result<Option<Queue>> {
    let url = match &global.queue {
        Some(url) => url.clone(),
        None => {
            let root = view.store.local_root();
            let file = root.map(|root| root.join("queue.sqlite"));
            match file.filter(|file| file.exists()) {
                Some(file) => format!("sqlite:{}", file.display()),
                None => return Ok(None),
            }
        }
    };
    open_queue(&view.store, &view.plan, Some(url))
        .await
        .map(Some)
}

/// Whether somebody holds a part.
pub(crate) async fn liveness(view: &RunView, part: PartId, queue: Option<&Queue>) -> Liveness {
    let Some(queue) = queue else {
        return Liveness::unasked();
    };
    match queue.holder(&job(view, part)).await {
        Ok(Some(_)) => Liveness::Held,
        Ok(None) => Liveness::Free,
        Err(e) => Liveness::Unknown(e.to_string()),
    }
}

/// The job of a part.
fn job(view: &RunView, part: PartId) -> Job {
    Job {
        run: view.plan.run.to_string(),
        iteration: part.iteration,
        stage: part.stage.name().to_owned(),
        part: part.part,
        offer: 0,
    }
}
