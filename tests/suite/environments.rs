//! Training against imperfect environment servers: one that is killed and restarted, one whose
//! every tenth answer is wrong in some way, and a slow one whose worker is interrupted; and from a
//! machine that knows no authorities.

mod brought;
mod chaos;
mod interruptions;
mod named;
mod odd_server;
mod own;
mod proxy;
mod restarts;
mod spoiled;
mod wrong_answers;

use crate::evidence::learnt;
use agentgym_jobs::episode::{Episode, Episodes};
use agentgym_jobs::pipeline::Stage;
use agentgym_storage::Store;
use agentgym_submit::runs::RunView;
use agentgym_tests::ports::free_port;
use agentgym_tests::program::{Running, finish, program, workspace};
use serde_json::Value;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// A run of several rounds that trains in seconds, against the server at a URL. The base solves
/// some of its tasks, and its success depends on what it has collected: a state that is restored
/// incorrectly, or a lost reward, changes what is learned.
const CONFIG: &str = "
run: {id: tried}
actor_rollout_ref:
  model: {path: models/base}
  actor: {ppo_mini_batch_size: 2, entropy_coeff: 0.01, optim: {lr: 1e-4}}
  rollout: {n: 4, max_tokens: 48, max_model_len: 1536, fault_retries: 1}
  agentgym: {timeout: 1, envs: {}}
data:
  train_batch_size: 8
  max_prompt_length: 768
  max_response_length: 768
  tasks: [{env: textcraft, ids: 0..24}]
algorithm: {rounds_ctrl: {rounds: 6}}
trainer: {total_training_steps: 3, test_freq: 0}
jobs: {rollout_part_tasks: 4, threads: 1, backoff_s: 0.1, journal_interval_s: 0.2}
";

/// A limit that no server exceeds just because the machine is busy.
const PATIENT: &str = "actor_rollout_ref.agentgym.timeout=60";

/// `agentgym-env textcraft` as a separate process.
struct Server {
    addr: SocketAddr,
    ttl_s: u32,
    running: Option<Running>,
}

impl Server {
    /// Starts a server whose sessions expire after `ttl_s` seconds without a call.
    fn start(ttl_s: u32) -> Self {
        let mut server = Self {
            addr: SocketAddr::from(([127, 0, 0, 1], free_port())),
            ttl_s,
            running: None,
        };
        server.start_again();
        server
    }

    fn start_again(&mut self) {
        let mut command = program("agentgym-env");
        command
            .args(["textcraft", "--worlds", "1-2"])
            .args(["--ttl-s", &self.ttl_s.to_string()])
            .args(["--port", &self.addr.port().to_string()]);
        self.running = Some(Running::start(command));
        let begun = Instant::now();
        while self.sessions().is_none() {
            assert!(begun.elapsed() < Duration::from_secs(20), "no server");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Kills the server like a machine failure.
    fn kill(&mut self) {
        if let Some(running) = self.running.take() {
            running.kill();
        }
    }

    fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Number of open sessions; `None` if the server does not answer.
    fn sessions(&self) -> Option<u64> {
        let mut stream = TcpStream::connect_timeout(&self.addr, Duration::from_secs(1)).ok()?;
        stream
            .write_all(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            .ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        let (_, body) = text.split_once("\r\n\r\n")?;
        serde_json::from_str::<Value>(body).ok()?["sessions"].as_u64()
    }
}

/// The run below `folder`, against this environment address.
fn train(folder: &Path, address: &str, more: &[&str]) -> Command {
    let config = folder.join("tried.yaml");
    std::fs::write(&config, CONFIG).unwrap();
    let mut command = program("agentgym-submit");
    command
        .arg(config)
        .args(["--quiet", "--store"])
        .arg(folder.join("store"))
        .arg(format!("actor_rollout_ref.agentgym.env_addr={address}"))
        .args(more);
    command
}

async fn view(folder: &Path) -> RunView {
    let store = folder.join("store").display().to_string();
    let store = Store::open(&store).await.unwrap();
    RunView::open(&store, "tried").await.unwrap()
}

/// A metric of the attempts, summed over the run.
/// The episodes of the rollouts, with their iteration.
async fn rollouts(view: &RunView, iterations: u32) -> Vec<(u32, Episode)> {
    let mut all = Vec::new();
    for iteration in 1..=iterations {
        for id in view.stage_parts(iteration, Stage::Rollout).unwrap() {
            let manifest = view.committed(id).await.unwrap();
            let episodes: Episodes = view.payload(&manifest, "episodes.bin").await.unwrap();
            all.extend(
                episodes
                    .into_vec()
                    .into_iter()
                    .map(|episode| (iteration, episode)),
            );
        }
    }
    all
}

fn stat(folder: &Path, name: &str) -> f64 {
    let path = folder.join("store/exports/tried/metrics.jsonl");
    let text = std::fs::read_to_string(path).unwrap();
    let rows = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    rows.filter_map(|row| row["stats"][name].as_f64()).sum()
}

/// In a small container there are none; environments beside it are not spoken to over https.
#[test]
fn a_machine_without_certificates_of_authorities_plays() {
    let folder = tempfile::TempDir::new().unwrap();
    let none = folder.path().join("none.pem");
    std::fs::write(&none, "").unwrap();
    let mut command = program("agentgym-submit");
    command
        .args(["--quiet", "--store"])
        .arg(folder.path().join("store"));
    command.arg(workspace().join("configs/smoke.yaml"));
    command.args(["trainer.total_training_steps=1", "evaluation.sets=[]"]);
    command.args(["data.train_batch_size=4", "sft.steps=2"]);
    command
        .env("SSL_CERT_FILE", &none)
        .env("SSL_CERT_DIR", "/nonexistent");
    let ended = finish(command);
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{said}");
}
