//! Models from and to the Hugging Face hub, by the hub's own crate; only in builds with the feature
//! `hub`. What is fetched is kept in the cache of the hub's tools, where [`crate::model_folder`] looks.

use crate::model_folder::hub_id;
use agentgym_envs::{causes, http_client, shown};
use agentgym_storage::BytesRead;
use hf_hub::progress::{DownloadEvent, FileProgress, ProgressEvent, ProgressHandler, UploadEvent};
use hf_hub::repository::{RepoTypeModel, RepoUrl};
use hf_hub::{HFClient, HFError};
use reqwest::redirect::{Attempt, Policy};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The variable of the hub's tools for another hub.
const ENDPOINT: &str = "HF_ENDPOINT";
const DEFAULT: &str = "https://huggingface.co";
/// What a run reads of a model; repositories hold the same weights in other formats too.
const READ: [&str; 4] = ["*.json", "*.safetensors", "*.jinja", "*.txt"];
/// Where the hub keeps large files, beside the host that is asked.
const STORES: [&str; 2] = ["huggingface.co", "hf.co"];
const NO_MODEL: &str = "there is no such model, or it is private";
const REDIRECTS_MAX: usize = 5;
const PATIENCE: Duration = Duration::from_secs(60);

/// Why the hub was of no use.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// It says no, or what was asked for makes no sense; what to do is said.
    #[error("{0}")]
    Refused(String),
    /// It does not answer as it should.
    #[error("{endpoint} cannot be reached: {found}")]
    Unreachable {
        /// Its address.
        endpoint: String,
        /// What happened.
        found: String,
    },
    /// A local file.
    #[error("{path}: {source}")]
    Local {
        /// The file, or the folder that it is in.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
}

type Result<T, E = HubError> = std::result::Result<T, E>;

/// What [`Hub::push`] made.
#[derive(Debug)]
pub struct Pushed {
    /// The address of the repository.
    pub url: String,
    /// The commit, if the hub named it.
    pub commit: Option<String>,
}

/// A hub.
#[derive(Debug)]
pub struct Hub {
    client: HFClient,
    endpoint: String,
}

impl Hub {
    /// The hub that the environment names.
    ///
    /// # Errors
    /// An address that is none.
    pub fn open() -> Result<Self> {
        let refused = |e: &dyn std::fmt::Display| {
            HubError::Refused(format!("the hub's address ({ENDPOINT}) is unusable: {e}"))
        };
        let address = std::env::var(ENDPOINT).unwrap_or_else(|_| DEFAULT.to_owned());
        // Large files are kept elsewhere.
        let http = http_client(&address)
            .redirect(Policy::custom(followed))
            .read_timeout(PATIENCE)
            .build()
            .map_err(|e| refused(&e))?;
        let client = HFClient::builder().client(http).build();
        let client = client.map_err(|e| refused(&e))?;
        let endpoint = client.endpoint().to_owned();
        Ok(Self { client, endpoint })
    }

    /// Fetches a model into the cache; its folder there.
    ///
    /// # Errors
    /// No such model or revision, one in another layout, a hub that does not answer.
    pub async fn pull(
        &self,
        id: &str,
        revision: Option<&str>,
        read: &Arc<BytesRead>,
    ) -> Result<PathBuf> {
        let (owner, name) = parts(id)?;
        let folder = self
            .client
            .model(owner, name)
            .snapshot_download()
            .maybe_revision(revision)
            .allow_patterns(READ.map(str::to_owned).to_vec())
            .progress(Moved::of(read))
            .send()
            .await
            .map_err(|e| self.said(id, e))?;
        match folder.join("config.json").is_file() {
            true => Ok(folder),
            false => Err(HubError::Refused(format!(
                "{id} at {} has no config.json: it is no model in Hugging Face layout (of GGUF repositories give \
                 the one that they were made from)",
                self.endpoint
            ))),
        }
    }

    /// Writes a folder to a repository in one commit; a repository that is missing is made, private
    /// unless `public`.
    ///
    /// # Errors
    /// A folder that holds no model, a hub that does not permit it or does not answer.
    pub async fn push(
        &self,
        folder: &Path,
        (id, public, message): (&str, bool, &str),
        read: &Arc<BytesRead>,
    ) -> Result<Pushed> {
        let (owner, name) = parts(id)?;
        if !folder.join("config.json").is_file() {
            return Err(HubError::Refused(format!(
                "{} is no model's folder: it has no config.json. `export RUN --iteration N --to DIR` writes \
                 one, DIR/policy_after",
                folder.display()
            )));
        }
        let made: Result<RepoUrl, HFError> = self
            .client
            .create_repository()
            .repo_id(id)
            .repo_type(RepoTypeModel)
            .private(!public)
            .exist_ok(true)
            .send()
            .await;
        made.map_err(|e| self.said(id, e))?;
        let commit = self
            .client
            .model(owner, name)
            .upload_folder()
            .folder_path(folder)
            .commit_message(message)
            .ignore_patterns(vec![".*".to_owned()])
            .progress(Moved::of(read))
            .send()
            .await
            .map_err(|e| self.said(id, e))?;
        Ok(Pushed {
            url: format!("{}/{id}", self.endpoint),
            commit: commit.commit_oid,
        })
    }

    /// The failure in the words of this program.
    fn said(&self, id: &str, error: HFError) -> HubError {
        let what = match &error {
            HFError::RepoNotFound { .. } => Some(NO_MODEL),
            // The crate asks for a revision first; the hub says what it did not find.
            HFError::RevisionNotFound { context, .. }
                if context.as_ref().and_then(|c| c.error_code.as_deref())
                    == Some("RepoNotFound") =>
            {
                Some(NO_MODEL)
            }
            HFError::RevisionNotFound { .. } => Some("the model has no such revision"),
            HFError::AuthRequired { .. } => {
                Some("there is no such model, or it wants a token, or another one")
            }
            HFError::Forbidden { .. } => Some("the token does not permit it"),
            _ => None,
        };
        match (what, &error) {
            (Some(what), _) => HubError::Refused(format!(
                "{id} at {}: {what}. A token is read from HF_TOKEN, or from the file that `hf auth login` writes",
                self.endpoint
            )),
            (None, HFError::Io(source)) => HubError::Local {
                path: self.client.cache_dir().to_owned(),
                source: std::io::Error::new(source.kind(), source.to_string()),
            },
            (None, _) => HubError::Unreachable {
                endpoint: shown(&self.endpoint),
                found: causes(&error),
            },
        }
    }
}

fn parts(id: &str) -> Result<(&str, &str)> {
    hub_id(id).ok_or_else(|| {
        HubError::Refused(format!(
            "`{id}` is no id of a model on the hub: it is OWNER/NAME, such as Qwen/Qwen2.5-0.5B-Instruct"
        ))
    })
}

/// Redirects stay with the host that was asked, or go to the hub's own stores of large files.
fn followed(attempt: Attempt<'_>) -> reqwest::redirect::Action {
    let host = |url: &reqwest::Url| url.host_str().unwrap_or_default().to_owned();
    let (to, from) = (host(attempt.url()), attempt.previous().first().map(host));
    let is_store = STORES.iter().any(|store| {
        to == *store
            || to
                .strip_suffix(store)
                .is_some_and(|rest| rest.ends_with('.'))
    });
    if attempt.previous().len() > REDIRECTS_MAX {
        return attempt.error("it redirects in circles");
    }
    if is_store || from.as_deref() == Some(&to) {
        return attempt.follow();
    }
    let url = attempt.url().clone();
    attempt.error(format!(
        "it redirects to another host ({url}), which is not followed"
    ))
}

/// Says how far it is.
struct Moved {
    read: Arc<BytesRead>,
    files: Mutex<HashMap<String, u64>>,
}

impl Moved {
    fn of(read: &Arc<BytesRead>) -> Self {
        Self {
            read: Arc::clone(read),
            files: Mutex::default(),
        }
    }

    /// Files that are moved one by one are added up.
    fn add(&self, moved: &[FileProgress]) {
        let mut files = self.files.lock().unwrap_or_else(|e| e.into_inner());
        for file in moved {
            files.insert(file.filename.clone(), file.bytes_completed);
        }
        self.done(files.values().sum());
    }

    fn done(&self, bytes: u64) {
        self.read.done.store(bytes, Ordering::Relaxed);
    }
}

impl ProgressHandler for Moved {
    fn on_progress(&self, event: &ProgressEvent) {
        match event {
            ProgressEvent::Download(DownloadEvent::Start { total_bytes, .. })
            | ProgressEvent::Upload(UploadEvent::Start { total_bytes, .. }) => {
                let listed = &self.read.listed;
                listed.store(*total_bytes, Ordering::Relaxed);
            }
            ProgressEvent::Download(DownloadEvent::Progress { files }) => self.add(files),
            ProgressEvent::Download(DownloadEvent::AggregateProgress {
                bytes_completed, ..
            })
            | ProgressEvent::Upload(UploadEvent::Progress {
                bytes_completed, ..
            }) => self.done(*bytes_completed),
            _ => {}
        }
    }
}
