//! A small game behind AgentGym's calls, any answer of which a test may change: each item is three
//! rounds of saying something, and the length of what is said decides the reward.

use agentgym_storage::Store;
use agentgym_submit::runs::RunView;
use agentgym_tests::ports::free_port;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// The game's spec without its fields that tests change.
const SPEC: &str = "
name: oddgame
instruction: Say a word in each round.
parser: raw
rounds_max: 4
success: {reward_at_least: 1}
errors: status
items: any
probe: yes
";

/// A spec without the action that is valid in every state.
pub(super) const NO_PROBE: &str = "# none\n";

const CONFIG: &str = "
run: {id: odd, seed: 5}
actor_rollout_ref:
  model: {path: 'tiny?hidden=32&layers=1&intermediate=64&vocab=420'}
  actor: {ppo_mini_batch_size: 4, optim: {lr: 1.0e-3}}
  rollout: {n: 2, max_tokens: 8, max_model_len: 512, fault_retries: 0}
  agentgym: {task_name: oddgame, timeout: 60, max_retries: 1}
data: {train_batch_size: 4, max_prompt_length: 256, max_response_length: 256, tasks: [{env: oddgame, ids: 0..16}]}
algorithm: {rounds_ctrl: {type: fixed, rounds: 4}}
trainer: {total_training_steps: 2, test_freq: -1, save_freq: -1}
jobs: {threads: 1, backoff_s: 0.05, failures_max: 1, journal_interval_s: 0.1}
";

/// The command of a run of the game below `folder`, with further fields of its spec.
pub(super) fn play(
    folder: &Path,
    address: &str,
    spec: &str,
    more: &[&str],
) -> std::process::Command {
    let (config, described) = (folder.join("odd.yaml"), folder.join("oddgame.yaml"));
    std::fs::write(&config, CONFIG).unwrap();
    let base = match spec == NO_PROBE {
        true => SPEC.replace("probe: yes\n", ""),
        false => SPEC.to_owned(),
    };
    std::fs::write(&described, format!("{base}{spec}")).unwrap();
    let mut command = agentgym_tests::program::program("agentgym-submit");
    command
        .arg(config)
        .arg("--store")
        .arg(store(folder))
        .arg(format!("actor_rollout_ref.agentgym.env_addr={address}"))
        .arg(format!(
            "actor_rollout_ref.agentgym.specs=[{}]",
            described.display()
        ))
        .args(more);
    command
}

pub(super) fn store(folder: &Path) -> PathBuf {
    folder.join("store")
}

/// A run in that store.
pub(super) async fn view_of(folder: &Path, run: &str) -> RunView {
    let url = store(folder).display().to_string();
    RunView::open(&Store::open(&url).await.unwrap(), run)
        .await
        .unwrap()
}

/// What a command says of its trouble.
pub(super) fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A call and the answer that the game gives to it.
pub(super) struct Call {
    pub(super) path: String,
    /// The session that is asked, and its item.
    pub(super) session: u64,
    pub(super) item: i64,
    pub(super) status: u16,
    pub(super) body: Vec<u8>,
}

impl Call {
    pub(super) fn fail(&mut self, status: u16, body: &str) {
        self.status = status;
        self.body = body.into();
    }
}

pub(super) type Twist = Box<dyn FnMut(&mut Call) + Send>;

#[derive(Default)]
struct Game {
    /// Item and steps of each session.
    sessions: BTreeMap<u64, (i64, u32)>,
    opened: u64,
    twist: Option<Twist>,
}

pub(super) struct OddServer {
    addr: SocketAddr,
    game: Arc<Mutex<Game>>,
    listening: Option<(Arc<AtomicBool>, JoinHandle<()>)>,
}

impl OddServer {
    pub(super) fn start() -> Self {
        let mut server = Self {
            addr: SocketAddr::from(([127, 0, 0, 1], free_port())),
            game: Arc::default(),
            listening: None,
        };
        server.listen();
        server
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Changes answers from now on.
    pub(super) fn twist(&self, twist: impl FnMut(&mut Call) + Send + 'static) {
        self.game.lock().unwrap().twist = Some(Box::new(twist));
    }

    pub(super) fn heal(&self) {
        self.game.lock().unwrap().twist = None;
    }

    pub(super) fn listen(&mut self) {
        let listener = TcpListener::bind(self.addr).unwrap();
        let (goes_on, game) = (Arc::new(AtomicBool::new(true)), Arc::clone(&self.game));
        let looks = Arc::clone(&goes_on);
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if !looks.load(Ordering::SeqCst) {
                    break;
                }
                let game = Arc::clone(&game);
                std::thread::spawn(move || answer(stream, &game));
            }
        });
        self.listening = Some((goes_on, thread));
    }

    /// Connections are refused from now on.
    pub(super) fn stop(&mut self) {
        if let Some((goes_on, thread)) = self.listening.take() {
            goes_on.store(false, Ordering::SeqCst);
            let _ = TcpStream::connect(self.addr);
            thread.join().unwrap();
        }
    }
}

impl Drop for OddServer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Answers one request.
fn answer(stream: TcpStream, game: &Mutex<Game>) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let path = line.split(' ').nth(1)?.to_owned();
    let mut length = 0;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        if header.trim().is_empty() {
            break;
        }
        let (name, value) = header.split_once(':')?;
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let asked: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
    let call = game.lock().unwrap().reply(path, &asked);
    let head = format!(
        "HTTP/1.1 {} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        call.status,
        call.body.len()
    );
    (&stream)
        .write_all(&[head.as_bytes(), &call.body].concat())
        .ok()
}

impl Game {
    fn reply(&mut self, path: String, asked: &Value) -> Call {
        let id = asked["id"].as_u64().unwrap_or_default();
        let (mut item, mut step) = self.sessions.get(&id).copied().unwrap_or_default();
        let (status, body) = match path.as_str() {
            "/create" => {
                self.opened += 1;
                (200, json!({"id": self.opened}))
            }
            "/reset" => {
                (item, step) = (asked["data_idx"].as_i64().unwrap(), 0);
                (
                    200,
                    json!({"observation": format!("Task {item}. Say a word.")}),
                )
            }
            "/step" => {
                step += 1;
                let said = asked["action"].as_str().unwrap().len();
                let reward = f64::from(u8::from(
                    step == 3 && (said + item as usize).is_multiple_of(2),
                ));
                (
                    200,
                    json!({"observation": format!("Round {step} over."), "reward": reward, "done": step == 3}),
                )
            }
            "/close" => (200, json!(true)),
            _ => (404, json!({"detail": "Not Found"})),
        };
        self.sessions.insert(id, (item, step));
        let body = body.to_string().into_bytes();
        let mut call = Call {
            path,
            session: id,
            item,
            status,
            body,
        };
        if let Some(twist) = &mut self.twist {
            twist(&mut call);
        }
        call
    }
}
