//! Preemption notices: before a cloud stops a spot machine, its metadata server announces it. A
//! worker that watches for it drains at once instead of waiting for a signal that comes later or
//! never.
//!
//! One function covers the different answers of the three large clouds; another base URL
//! (`AGENTGYM_METADATA_URL`) serves tests and emulators.
//!
//! Sources: the documentation of EC2 (spot instance interruption notices, IMDSv2),
//! Compute Engine (metadata entry `instance/preempted`) and Azure (Scheduled Events, and
//! Instance Metadata Service for the machine's own name).

use crate::{Error, Result};
use agentgym_envs::{Unread, body, http_client};
use reqwest::{Client, StatusCode};
use serde_json::Value;
use std::str::FromStr;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Instances get a notice of 30 s (Azure, Compute Engine) to two minutes (EC2).
const ASK_EVERY: Duration = Duration::from_secs(2);
/// The metadata server is on the same host.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// An answer is a few hundred bytes.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// The cloud whose metadata server is polled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cloud {
    /// EC2: a document exists once the instance is to be stopped or terminated.
    Aws,
    /// Compute Engine: a value that turns to `TRUE`.
    Gcp,
    /// Azure: a list of events, one of type `Preempt` that names this machine. All machines of a
    /// scale set or of an availability set read the same list.
    Azure,
}

impl FromStr for Cloud {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "aws" => Ok(Self::Aws),
            "gcp" => Ok(Self::Gcp),
            "azure" => Ok(Self::Azure),
            _ => Err(format!(
                "`{name}` gives no notice that is known; known are aws, gcp and azure"
            )),
        }
    }
}

impl Cloud {
    fn url(self) -> &'static str {
        match self {
            Self::Aws | Self::Azure => "http://169.254.169.254",
            Self::Gcp => "http://metadata.google.internal",
        }
    }
}

/// Cancels `drain` once the cloud has given notice. If the metadata server does not answer, this is
/// logged once and polling continues: the machine may not be a spot machine.
pub async fn drain_on_notice(cloud: Cloud, drain: CancellationToken) {
    let url = std::env::var("AGENTGYM_METADATA_URL").unwrap_or_else(|_| cloud.url().to_owned());
    let client = match http_client(&url).timeout(ANSWER_MAX).no_proxy().build() {
        Ok(client) => client,
        Err(e) => return tracing::warn!("no notice of preemption will be seen: {e}"),
    };
    let mut told = false;
    loop {
        match is_given(cloud, &client, &url).await {
            Ok(true) => {
                tracing::warn!("{cloud:?} takes this machine away: draining");
                return drain.cancel();
            }
            Ok(false) => told = false,
            Err(e) if !told => {
                tracing::warn!("{e}; asked on");
                told = true;
            }
            Err(_) => {}
        }
        tokio::select! {
            () = drain.cancelled() => return,
            () = tokio::time::sleep(ASK_EVERY) => {}
        }
    }
}

/// Asks once.
async fn is_given(cloud: Cloud, client: &Client, url: &str) -> Result<bool> {
    let (path, header) = match cloud {
        Cloud::Aws => {
            let token = client
                .put(format!("{url}/latest/api/token"))
                .header("X-aws-ec2-metadata-token-ttl-seconds", "60");
            let (_, token) = ask(token, url).await?;
            (
                "/latest/meta-data/spot/instance-action",
                ("X-aws-ec2-metadata-token", token),
            )
        }
        Cloud::Gcp => (
            "/computeMetadata/v1/instance/preempted",
            ("Metadata-Flavor", "Google".to_owned()),
        ),
        Cloud::Azure => (
            "/metadata/scheduledevents?api-version=2020-07-01",
            ("Metadata", "true".to_owned()),
        ),
    };
    let request = client
        .get(format!("{url}{path}"))
        .header(header.0, header.1);
    let (status, body) = ask(request, url).await?;
    if status == StatusCode::NOT_FOUND && cloud == Cloud::Aws {
        return Ok(false);
    }
    if !status.is_success() {
        return Err(unreadable(url, &format!("answers {status}")));
    }
    match cloud {
        Cloud::Gcp => Ok(body.trim().eq_ignore_ascii_case("true")),
        Cloud::Aws => {
            let action = document(&body, url)?;
            Ok(action["action"].as_str() != Some("hibernate"))
        }
        Cloud::Azure => {
            let events = document(&body, url)?;
            let events = events["Events"].as_array().map_or(&[][..], Vec::as_slice);
            let taken = events.iter().filter(|e| e["EventType"] == "Preempt");
            let taken: Vec<&Value> = taken.map(|event| &event["Resources"]).collect();
            if taken.is_empty() {
                return Ok(false);
            }
            let own = azure_name(client, url).await?;
            Ok(taken.into_iter().any(|resources| names(resources, &own)))
        }
    }
}

/// This machine's name as in Scheduled Events: in a uniform scale set, the set's name and the
/// number of the instance.
async fn azure_name(client: &Client, url: &str) -> Result<String> {
    const PATH: &str = "/metadata/instance/compute/name?api-version=2021-02-01&format=text";
    let request = client
        .get(format!("{url}{PATH}"))
        .header("Metadata", "true");
    let (status, body) = ask(request, url).await?;
    match body.trim() {
        name if status.is_success() && !name.is_empty() => Ok(name.to_owned()),
        _ => Err(unreadable(
            url,
            "takes a machine away and does not say whether it is this one",
        )),
    }
}

/// Whether an event concerns the machine of this name. An event without names concerns all.
fn names(resources: &Value, own: &str) -> bool {
    let resources = resources.as_array().map_or(&[][..], Vec::as_slice);
    // Names of Azure resources are case-insensitive.
    let is_own = |name: &Value| {
        let name = name.as_str().unwrap_or_default();
        name.trim_start_matches('_').eq_ignore_ascii_case(own)
    };
    resources.is_empty() || resources.iter().any(is_own)
}

async fn ask(request: reqwest::RequestBuilder, url: &str) -> Result<(StatusCode, String)> {
    let failed = |e: reqwest::Error| unreadable(url, &e.without_url().to_string());
    let mut response = request.send().await.map_err(failed)?;
    let status = response.status();
    let body = body(&mut response, ANSWER_BYTES_MAX);
    let body = body.await.map_err(|unread| match unread {
        Unread::Failed(e) => failed(e),
        Unread::TooLarge => unreadable(url, "answers without an end"),
    })?;
    Ok((status, String::from_utf8_lossy(&body).into_owned()))
}

fn document(body: &str, url: &str) -> Result<Value> {
    serde_json::from_str(body).map_err(|e| unreadable(url, &format!("answers no JSON ({e})")))
}

fn unreadable(url: &str, found: &str) -> Error {
    Error::stage(format!(
        "the metadata server at {url} gives no notices: it {found}. Is this a machine of that cloud (--preemption)?"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// A minimal metadata server: answers as the clouds document it, and refuses requests without
    /// the header that the cloud requires.
    async fn metadata(preempted: Arc<AtomicBool>) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = vec![0; 4096];
                let read = stream.read(&mut request).await.unwrap();
                let request = String::from_utf8_lossy(&request[..read]).to_lowercase();
                let (status, body) = answer(&request, preempted.load(SeqCst));
                let reply = format!(
                    "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                    body.len()
                );
                stream.write_all(reply.as_bytes()).await.unwrap();
            }
        });
        url
    }

    fn answer(request: &str, preempted: bool) -> (&'static str, &'static str) {
        let has = |header: &str| request.contains(header);
        let path = request.split(' ').nth(1).unwrap();
        match path {
            "/latest/api/token" if has("x-aws-ec2-metadata-token-ttl-seconds: 60") => {
                ("200 OK", "abc")
            }
            "/latest/meta-data/spot/instance-action" if has("x-aws-ec2-metadata-token: abc") => {
                match preempted {
                    true => (
                        "200 OK",
                        r#"{"action": "terminate", "time": "2026-11-20T08:22:00Z"}"#,
                    ),
                    false => ("404 Not Found", "none"),
                }
            }
            "/computemetadata/v1/instance/preempted" if has("metadata-flavor: google") => {
                ("200 OK", if preempted { "TRUE" } else { "FALSE" })
            }
            "/metadata/scheduledevents?api-version=2020-07-01" if has("metadata: true") => {
                match preempted {
                    true => (
                        "200 OK",
                        r#"{"DocumentIncarnation": 3, "Events": [{"EventType": "Preempt", "ResourceType": "VirtualMachine", "Resources": ["fleet_6", "Fleet_7"], "NotBefore": ""}]}"#,
                    ),
                    // A freeze of this machine, and a preemption of another.
                    false => (
                        "200 OK",
                        r#"{"DocumentIncarnation": 2, "Events": [{"EventType": "Freeze", "Resources": ["fleet_7"]}, {"EventType": "Preempt", "Resources": ["fleet_70"]}]}"#,
                    ),
                }
            }
            "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
                if has("metadata: true") =>
            {
                ("200 OK", "fleet_7")
            }
            _ => ("403 Forbidden", "no"),
        }
    }

    #[tokio::test]
    async fn each_cloud_gives_notice_in_its_own_way() {
        let preempted = Arc::new(AtomicBool::new(false));
        let url = metadata(Arc::clone(&preempted)).await;
        let client = http_client("http://127.0.0.1").build().unwrap();
        for cloud in ["aws", "gcp", "azure"].map(|name| name.parse::<Cloud>().unwrap()) {
            preempted.store(false, SeqCst);
            assert!(!is_given(cloud, &client, &url).await.unwrap(), "{cloud:?}");
            preempted.store(true, SeqCst);
            assert!(is_given(cloud, &client, &url).await.unwrap(), "{cloud:?}");
        }
    }

    #[tokio::test]
    async fn what_is_no_metadata_server_is_named() {
        let client = http_client("http://127.0.0.1").build().unwrap();
        let closed = "http://127.0.0.1:1";
        let error = is_given(Cloud::Gcp, &client, closed).await.unwrap_err();
        assert!(error.to_string().contains(closed), "{error}");
        assert!("oracle".parse::<Cloud>().unwrap_err().contains("azure"));
    }
}
