//! A server process and what a test asks it.

use agentgym_tests::program::program;
use serde_json::Value;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};

/// A server, killed when dropped.
pub(crate) struct Server {
    child: Option<Child>,
    pub(crate) url: String,
    pub(crate) model: String,
    http: reqwest::Client,
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Server {
    /// Serves a policy at a free port.
    pub(crate) async fn of(policy: &str, words: &[&str]) -> Self {
        Self::with_key(policy, words, None).await
    }

    pub(crate) async fn with_key(policy: &str, words: &[&str], key: Option<&str>) -> Self {
        let mut command = program("agentgym-submit");
        command
            .args(["serve", policy, "--json"])
            .args(words)
            .env_remove("AGENTGYM_SERVER_KEY")
            .stdout(Stdio::piped());
        if !words.contains(&"--addr") {
            command.args(["--addr", "127.0.0.1:0"]);
        }
        if let Some(key) = key {
            command.env("AGENTGYM_SERVER_KEY", key);
        }
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        let out = child.stdout.take().unwrap();
        BufReader::new(out).read_line(&mut line).unwrap();
        let said: Value = serde_json::from_str(&line).unwrap();
        let text = |name: &str| said[name].as_str().unwrap().to_owned();
        assert_eq!(said["version"], 1);
        Self {
            child: Some(child),
            url: text("url"),
            model: text("model"),
            http: agentgym_envs::http_client("http://127.0.0.1")
                .build()
                .unwrap(),
        }
    }

    pub(crate) async fn post(&self, route: &str, body: &Value) -> reqwest::Response {
        let request = self.http.post(format!("{}{route}", self.url)).json(body);
        request.send().await.unwrap()
    }

    pub(crate) async fn get(&self, route: &str) -> reqwest::Response {
        let request = self.http.get(format!("{}{route}", self.url));
        request.send().await.unwrap()
    }

    pub(crate) fn request(&self, method: &str, route: &str) -> reqwest::RequestBuilder {
        let method = method.parse().unwrap();
        self.http.request(method, format!("{}{route}", self.url))
    }

    /// An answer that must be one.
    pub(crate) async fn answer(&self, route: &str, body: &Value) -> Value {
        let response = self.post(route, body).await;
        let status = response.status();
        let text = response.text().await.unwrap();
        assert_eq!(status, 200, "{text}");
        serde_json::from_str(&text).unwrap()
    }

    pub(crate) fn terminate(&self) {
        let id = self.child.as_ref().unwrap().id().to_string();
        let sent = std::process::Command::new("kill")
            .args(["-TERM", &id])
            .status();
        assert!(sent.unwrap().success());
    }

    /// Waits for its end; it must be a good one.
    pub(crate) async fn ended(mut self) {
        let mut child = self.child.take().unwrap();
        let ended = tokio::task::spawn_blocking(move || child.wait()).await;
        assert_eq!(ended.unwrap().unwrap().code(), Some(0));
    }

    pub(crate) async fn end(self) {
        self.terminate();
        self.ended().await;
    }
}

/// The documents of a stream that has come to its end.
pub(crate) fn events(stream: &str) -> Vec<Value> {
    let lines = stream
        .lines()
        .filter_map(|line| line.strip_prefix("data: "));
    let mut lines: Vec<&str> = lines.collect();
    assert_eq!(lines.pop(), Some("[DONE]"), "{stream}");
    let read = |line: &str| serde_json::from_str(line).unwrap();
    lines.into_iter().map(read).collect()
}

pub(crate) fn ids(value: &Value) -> Vec<u32> {
    let all = value.as_array().unwrap_or_else(|| panic!("{value}"));
    all.iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// Numbers, which were of single precision when they were written.
pub(crate) fn floats(value: &Value) -> Vec<f32> {
    let all = value.as_array().unwrap_or_else(|| panic!("{value}"));
    all.iter().map(|x| x.as_f64().unwrap() as f32).collect()
}
