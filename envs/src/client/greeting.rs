//! Whether a server is the environment that its address is configured as: by what it says at `/`, asked
//! once and again after every connection that failed, since another program may have taken the port.

use super::http::Server;
use crate::error::EnvError;
use crate::spec::EnvSpec;
use crate::spec::signs::{begins_as_another, greeted_as_another};

/// Refuses a server that greets as another environment. One that says nothing passes.
pub(super) async fn check(spec: &EnvSpec, server: &Server) -> Result<(), EnvError> {
    if !server.is_checked() {
        return Ok(());
    }
    // Others wait, so that no episode begins in another game.
    let mut known = server.known().lock().await;
    let failures = server.failures();
    if *known == Some(failures) {
        return Ok(());
    }
    let url = server.url();
    let root = url.strip_suffix(spec.path_prefix).unwrap_or(url);
    let greeting = server.greeting(root).await.unwrap_or_default();
    if let Some(found) = greeted_as_another(spec, &greeting) {
        return Err(server.another(spec.name, found, format!("it answers / with {greeting:?}")));
    }
    *known = Some(failures);
    Ok(())
}

/// Refuses a task that begins as those of another environment do.
pub(super) fn check_first(spec: &EnvSpec, server: &Server, first: &str) -> Result<(), EnvError> {
    match begins_as_another(spec, first) {
        Some(found) if server.is_checked() => {
            let start: String = first.chars().take(80).collect();
            Err(server.another(spec.name, found, format!("a task begins with {start:?}")))
        }
        _ => Ok(()),
    }
}
