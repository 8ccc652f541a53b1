//! The address at which a worker process answers Prometheus (`/metrics`) and a supervisor
//! (`/health`). It only reads, and answers while every worker thread computes.

use crate::meters::Meters;
use crate::{Error, Result};
use agentgym_storage::Store;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::json;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// How long the store or the queue may fail before `/health` says so: short pauses are normal.
const TROUBLE_TOLD_S: f64 = 5.0;

#[derive(Clone)]
struct Told {
    meters: Arc<Meters>,
    store: Store,
    name: Arc<str>,
    drain: CancellationToken,
}

/// Answers at `address` for as long as the process lives, and returns where that is: the port may be
/// asked for as 0. An address that other machines reach needs `public`.
///
/// # Errors
/// The address is not of this machine alone and nobody asked for that, or it cannot be listened on.
pub async fn serve_metrics(
    address: SocketAddr,
    public: bool,
    (name, meters): (&str, Arc<Meters>),
    store: Store,
    drain: CancellationToken,
) -> Result<SocketAddr> {
    if !address.ip().is_loopback() && !public {
        return Err(Error::stage(format!(
            "--metrics {address}: other machines reach this address, and everybody there could read it; \
             use 127.0.0.1:{}, or add --metrics-public",
            address.port()
        )));
    }
    let listener = TcpListener::bind(address).await.map_err(|e| {
        Error::stage(match e.kind() {
            std::io::ErrorKind::AddrInUse => format!(
                "--metrics {address}: the port is in use, perhaps by another worker of this machine; give every worker its own"
            ),
            _ => format!("--metrics {address}: cannot listen: {e}"),
        })
    })?;
    let told = Told {
        meters,
        store,
        name: name.into(),
        drain,
    };
    let bound = listener
        .local_addr()
        .map_err(|e| Error::stage(format!("--metrics {address}: {e}")))?;
    let pages = Router::new()
        .route("/metrics", get(metrics))
        .route("/health", get(health))
        .with_state(told);
    tokio::spawn(async move {
        if let Err(e) = axum::serve(listener, pages).await {
            tracing::warn!("the metrics endpoint ended: {e}");
        }
    });
    Ok(bound)
}

async fn metrics(State(told): State<Told>) -> Response {
    let text = told.meters.text(&told.store);
    ([(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response()
}

/// 200 while the worker can take parts; 503 while it drains, or its store or queue fails.
async fn health(State(told): State<Told>) -> Response {
    let draining = told.drain.is_cancelled();
    let trouble = told.meters.trouble();
    let trouble = trouble.filter(|(lasted_s, _)| *lasted_s >= TROUBLE_TOLD_S);
    let (code, status) = match (draining, &trouble) {
        (true, _) => (StatusCode::SERVICE_UNAVAILABLE, "draining"),
        (false, Some(_)) => (StatusCode::SERVICE_UNAVAILABLE, "in trouble"),
        (false, None) => (StatusCode::OK, "ok"),
    };
    let answer = json!({
        "version": 1, "status": status, "worker": *told.name,
        "trouble": trouble.map(|(lasted_s, why)| json!({"lasted_s": lasted_s, "why": why})),
    });
    (code, Json(answer)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn serve(address: &str, public: bool) -> Result<(SocketAddr, CancellationToken)> {
        let store = Store::open("memory:").await.unwrap();
        let drain = CancellationToken::new();
        let told = ("w", Arc::default());
        let address = address.parse().unwrap();
        let bound = serve_metrics(address, public, told, store, drain.clone()).await?;
        Ok((bound, drain))
    }

    #[tokio::test]
    async fn a_port_in_use_and_an_open_address_are_refused() {
        let (bound, _) = serve("127.0.0.1:0", false).await.unwrap();
        let again = serve(&bound.to_string(), false).await.unwrap_err();
        assert!(again.to_string().contains("in use"), "{again}");
        let open = serve("0.0.0.0:0", false).await.unwrap_err().to_string();
        assert!(open.contains("--metrics-public"), "{open}");
        assert!(serve("0.0.0.0:0", true).await.is_ok());
    }

    #[tokio::test]
    async fn health_says_when_it_drains() {
        let client = agentgym_envs::http_client("http://127.0.0.1")
            .build()
            .unwrap();
        let (bound, drain) = serve("127.0.0.1:0", false).await.unwrap();
        let ask = async |page: &str| {
            let asked = client.get(format!("http://{bound}/{page}"));
            let answer = asked.send().await.unwrap();
            (answer.status().as_u16(), answer.text().await.unwrap())
        };
        let (code, text) = ask("health").await;
        assert!(code == 200 && text.contains(r#""status":"ok""#), "{text}");
        let (code, text) = ask("metrics").await;
        assert!(code == 200 && text.contains("# TYPE agentgym_in_trouble gauge"));
        drain.cancel();
        let (code, text) = ask("health").await;
        assert!(code == 503 && text.contains("draining"), "{text}");
    }
}
