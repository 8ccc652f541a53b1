//! Every run of a store, one line each.

use super::status;
use crate::cli::Global;
use crate::runs::RunView;
use crate::{Result, claims, text};
use agentgym_storage::Store;
use serde_json::json;

/// One line per run of a store.
pub(crate) async fn all(store: &Store, global: &Global) -> Result<()> {
    let mut rows = Vec::new();
    let mut documents = Vec::new();
    for run in store.runs().await? {
        // A run that cannot be read does not hide the others.
        let read = async {
            let view = RunView::open(store, run.as_str()).await?;
            let queue = claims::queue(&view, global).await;
            status(&view, queue.as_ref()).await
        };
        let status = match read.await {
            Ok(status) => status,
            Err(e) => {
                let message = e.to_string();
                rows.push(vec![
                    run.to_string(),
                    "–".into(),
                    "–".into(),
                    format!("for you, it cannot be read: {message}"),
                ]);
                documents.push(json!({"run": run.to_string(), "error": message}));
                continue;
            }
        };
        rows.push(vec![
            status.run.clone(),
            format!("{}/{}", status.latest.unwrap_or(0), status.iterations),
            format!("{}/{}", status.committed, status.parts),
            status
                .waiting_line()
                .trim_start_matches("waiting: ")
                .to_owned(),
        ]);
        documents.push(status.to_json());
    }
    if global.json {
        text::emit_json(&json!({"runs": documents}));
    } else if rows.is_empty() {
        text::emit(&format!("no runs in the store at {}", store.url()));
    } else {
        text::emit(&text::table(
            &["run", "iteration", "parts", "waiting"],
            &rows,
        ));
    }
    Ok(())
}
