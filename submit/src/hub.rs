//! `pull` and `push`: a model from the Hugging Face hub into the cache of the hub's tools, where hub
//! ids are looked up, and a folder to a repository there. The transfer is the work of the hub's own
//! crate, which a program has if it was built with the feature `hub`.

use crate::cli::{Global, PushArgs};
use crate::{Error, Result};

/// The variable of the hub's tools for another hub.
#[cfg(feature = "hub")]
const ENDPOINT: &str = "HF_ENDPOINT";

#[cfg(not(feature = "hub"))]
fn unbuilt(command: &str, instead: &str) -> Error {
    Error::Usage(format!(
        "this program was built without the hub: build it with --features agentgym-submit/hub to have `{command}`, \
         or use `{instead}` of the hub's Python tools"
    ))
}

#[cfg(not(feature = "hub"))]
pub(crate) async fn pull(id: &str, _revision: Option<&str>, _global: &Global) -> Result<()> {
    Err(unbuilt("pull", &format!("hf download {id}")))
}

#[cfg(not(feature = "hub"))]
pub(crate) async fn push(args: &PushArgs, _global: &Global) -> Result<()> {
    let (to, folder) = (&args.to, args.folder.display());
    Err(unbuilt("push", &format!("hf upload {to} {folder}")))
}

#[cfg(feature = "hub")]
pub(crate) use linked::{pull, push};

#[cfg(feature = "hub")]
mod linked {
    use super::{ENDPOINT, Error, Global, PushArgs, Result};
    use crate::text;
    use crate::transfer::Transfer;
    use hf_hub::progress::{
        DownloadEvent, FileProgress, ProgressEvent, ProgressHandler, UploadEvent,
    };
    use hf_hub::repository::{RepoTypeModel, RepoUrl};
    use hf_hub::{HFClient, HFError};
    use reqwest::redirect::{Attempt, Policy};
    use serde_json::json;
    use std::collections::HashMap;
    use std::sync::atomic::Ordering;
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    /// What a run reads of a model; repositories hold the same weights in other formats too.
    const READ: [&str; 4] = ["*.json", "*.safetensors", "*.jinja", "*.txt"];
    /// Where the hub keeps large files, beside the host that is asked.
    const STORES: [&str; 2] = ["huggingface.co", "hf.co"];
    const NO_MODEL: &str = "there is no such model, or it is private";
    const REDIRECTS_MAX: usize = 5;
    const PATIENCE: Duration = Duration::from_secs(60);

    /// Fetches a model, and prints its folder.
    pub(crate) async fn pull(id: &str, revision: Option<&str>, global: &Global) -> Result<()> {
        let hub = Hub::open()?;
        let (owner, name) = parts(id)?;
        let transfer = Arc::new(Transfer::new("pull", global));
        let repository = hub.client.model(owner, name);
        let snapshot = repository
            .snapshot_download()
            .maybe_revision(revision)
            .allow_patterns(READ.map(str::to_owned).to_vec())
            .progress(Moved::of(&transfer))
            .send();
        let folder = transfer.during(snapshot).await;
        let folder = folder.map_err(|e| hub.said(id, e))?;
        if !folder.join("config.json").is_file() {
            return Err(Error::Usage(format!(
                "{id} at {} has no config.json: it is no model in Hugging Face layout (of GGUF repositories give \
                 the one that they were made from)",
                hub.endpoint
            )));
        }
        let document = json!({"id": id, "revision": revision, "folder": folder});
        match global.json {
            true => text::emit_json(&document),
            false => text::emit(&folder.display().to_string()),
        }
        let path = match revision {
            None => id.to_owned(),
            Some(_) => folder.display().to_string(),
        };
        if !global.quiet {
            text::tell(&format!(
                "pull: a run takes it as actor_rollout_ref.model.path={path}"
            ));
        }
        Ok(())
    }

    /// Writes a folder to a repository in one commit, and prints where it is.
    pub(crate) async fn push(args: &PushArgs, global: &Global) -> Result<()> {
        let hub = Hub::open()?;
        let (id, folder) = (args.to.as_str(), &args.folder);
        let (owner, name) = parts(id)?;
        if !folder.join("config.json").is_file() {
            return Err(Error::Usage(format!(
                "{} is no model's folder: it has no config.json. `export RUN --iteration N --to DIR` writes \
                 one, DIR/policy_after",
                folder.display()
            )));
        }
        let made: Result<RepoUrl, HFError> = hub
            .client
            .create_repository()
            .repo_id(id)
            .repo_type(RepoTypeModel)
            .private(!args.public)
            .exist_ok(true)
            .send()
            .await;
        made.map_err(|e| hub.said(id, e))?;
        let transfer = Arc::new(Transfer::new("push", global));
        let repository = hub.client.model(owner, name);
        let upload = repository
            .upload_folder()
            .folder_path(folder.clone())
            .commit_message(args.message.clone())
            .ignore_patterns(vec![".*".to_owned()])
            .progress(Moved::of(&transfer))
            .send();
        let commit = transfer.during(upload).await;
        let commit = commit.map_err(|e| hub.said(id, e))?;
        let url = format!("{}/{id}", hub.endpoint);
        match global.json {
            true => text::emit_json(&json!({"id": id, "url": url, "commit": commit.commit_oid})),
            false => text::emit(&url),
        }
        Ok(())
    }

    fn parts(id: &str) -> Result<(&str, &str)> {
        let plain = |part: &str| {
            let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
            !part.is_empty() && !part.starts_with('.') && part.chars().all(known)
        };
        id.split_once('/')
            .filter(|(owner, name)| plain(owner) && plain(name))
            .ok_or_else(|| {
                Error::Usage(format!(
                    "`{id}` is no id of a model on the hub: it is OWNER/NAME, such as Qwen/Qwen2.5-0.5B-Instruct"
                ))
            })
    }

    struct Hub {
        client: HFClient,
        endpoint: String,
    }

    impl Hub {
        fn open() -> Result<Self> {
            let refused = |e: &dyn std::fmt::Display| {
                Error::Usage(format!("the hub's address ({ENDPOINT}) is unusable: {e}"))
            };
            let http = reqwest::Client::builder()
                .redirect(Policy::custom(followed))
                .connect_timeout(PATIENCE)
                .read_timeout(PATIENCE)
                .build()
                .map_err(|e| refused(&e))?;
            let client = HFClient::builder().client(http).build();
            let client = client.map_err(|e| refused(&e))?;
            let endpoint = client.endpoint().to_owned();
            Ok(Self { client, endpoint })
        }

        /// The failure in the words of this program.
        fn said(&self, id: &str, error: HFError) -> Error {
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
                (Some(what), _) => Error::Usage(format!(
                    "{id} at {}: {what}. A token is read from HF_TOKEN, or from the file that `hf auth login` writes",
                    self.endpoint
                )),
                (None, HFError::Io(source)) => Error::Local {
                    path: self.client.cache_dir().to_owned(),
                    source: std::io::Error::new(source.kind(), source.to_string()),
                },
                (None, _) => Error::Unreachable {
                    what: format!("model {id} of the hub"),
                    url: self.endpoint.clone(),
                    found: causes(&error),
                    remedy: "What was transferred whole is kept; the same command goes on".into(),
                },
            }
        }
    }

    /// An error with everything that it was caused by.
    fn causes(error: &dyn std::error::Error) -> String {
        let causes = std::iter::successors(Some(error), |error| error.source());
        let said: Vec<String> = causes.map(ToString::to_string).collect();
        said.join(": ")
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

    /// Tells the transfer how far it is.
    struct Moved {
        transfer: Arc<Transfer>,
        files: Mutex<HashMap<String, u64>>,
    }

    impl Moved {
        fn of(transfer: &Arc<Transfer>) -> Self {
            Self {
                transfer: Arc::clone(transfer),
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
            self.transfer.bytes.done.store(bytes, Ordering::Relaxed);
        }
    }

    impl ProgressHandler for Moved {
        fn on_progress(&self, event: &ProgressEvent) {
            match event {
                ProgressEvent::Download(DownloadEvent::Start { total_bytes, .. })
                | ProgressEvent::Upload(UploadEvent::Start { total_bytes, .. }) => {
                    let listed = &self.transfer.bytes.listed;
                    listed.store(*total_bytes, Ordering::Relaxed);
                }
                ProgressEvent::Download(DownloadEvent::Progress { files }) => self.add(files),
                ProgressEvent::Download(DownloadEvent::AggregateProgress {
                    bytes_completed,
                    ..
                })
                | ProgressEvent::Upload(UploadEvent::Progress {
                    bytes_completed, ..
                }) => self.done(*bytes_completed),
                _ => {}
            }
        }
    }
}
