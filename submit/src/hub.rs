//! `pull` and `push`: a model from the Hugging Face hub into the cache of the hub's tools, where hub
//! ids are looked up, and a folder to a repository there; in programs built with the feature `hub`.

use crate::cli::{Global, PushArgs};
use crate::{Error, Result};

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
    use super::{Error, Global, PushArgs, Result};
    use crate::text;
    use crate::transfer::Transfer;
    use agentgym_worker::hub::{Hub, HubError};
    use serde::Serialize;
    use std::path::Path;

    /// `pull OWNER/NAME`.
    #[derive(Serialize)]
    struct PulledDocument<'a> {
        id: &'a str,
        revision: Option<&'a str>,
        folder: &'a Path,
    }

    /// `push FOLDER --to OWNER/NAME`.
    #[derive(Serialize)]
    struct PushedDocument<'a> {
        id: &'a str,
        url: &'a str,
        commit: Option<&'a str>,
    }

    fn failed(id: &str) -> impl Fn(HubError) -> Error {
        move |error| match error {
            HubError::Refused(why) => Error::Usage(why),
            HubError::Local { path, source } => Error::Local { path, source },
            HubError::Unreachable { endpoint, found } => Error::Unreachable {
                what: format!("model {id} of the hub"),
                url: endpoint,
                found,
                remedy: "What was transferred whole is kept; the same command goes on".into(),
            },
        }
    }

    /// Fetches a model, and prints its folder.
    pub(crate) async fn pull(id: &str, revision: Option<&str>, global: &Global) -> Result<()> {
        let transfer = Transfer::new("pull", global);
        let hub = Hub::open().map_err(failed(id))?;
        let pulling = hub.pull(id, revision, &transfer.bytes);
        let folder = transfer.during(pulling).await.map_err(failed(id))?;
        match global.json {
            true => text::emit_json(&PulledDocument {
                id,
                revision,
                folder: &folder,
            }),
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
        let transfer = Transfer::new("push", global);
        let id = args.to.as_str();
        let hub = Hub::open().map_err(failed(id))?;
        let what = (id, args.public, args.message.as_str());
        let pushing = hub.push(&args.folder, what, &transfer.bytes);
        let pushed = transfer.during(pushing).await.map_err(failed(id))?;
        match global.json {
            true => text::emit_json(&PushedDocument {
                id,
                url: &pushed.url,
                commit: pushed.commit.as_deref(),
            }),
            false => text::emit(&pushed.url),
        }
        Ok(())
    }
}
