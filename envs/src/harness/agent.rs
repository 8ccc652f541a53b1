//! One agent: a process group in a folder of its own, with limits, and what is made of its end.

use super::options::HarnessOptions;
use serde_json::{Map, Value, json};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Component, Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often an agent is looked at.
const LOOK: Duration = Duration::from_millis(20);
/// Bytes of its output that are part of a reason.
const SHOWN: usize = 600;
/// Bytes of what a judge or an agent says of the reward.
const VERDICT_BYTES_MAX: u64 = 1 << 20;
/// How long a judge may take.
const JUDGING: Duration = Duration::from_secs(300);

/// An agent that was started.
#[derive(Default)]
pub(super) struct Run {
    /// The reply to a step, once there is one.
    ended: Mutex<Option<Value>>,
    changed: Condvar,
    closed: AtomicBool,
    /// Microseconds in which the gateway has computed.
    computed_us: AtomicU64,
}

/// The files that a task puts into the agent's folder.
///
/// # Errors
/// A name that leads out of it.
pub(super) fn files<'a>(task: &'a Value) -> Result<Vec<(&'a Path, &'a str)>, String> {
    let Some(all) = task.get("files") else {
        return Ok(Vec::new());
    };
    let all = all
        .as_object()
        .ok_or("`files` is an object of names and texts")?;
    let file = |(name, text): (&'a String, &'a Value)| {
        let path = Path::new(name);
        let plain = path
            .components()
            .all(|part| matches!(part, Component::Normal(_)));
        let text = text.as_str().filter(|_| plain && !name.is_empty());
        let wrong = || format!("{name:?} is no text file below the agent's folder");
        Ok((path, text.ok_or_else(wrong)?))
    };
    all.iter().map(file).collect()
}

impl Run {
    /// Starts the agent of an episode; `keys` are the gateway's address, the episode's key and the most
    /// messages.
    ///
    /// # Errors
    /// No folder or no process can be had.
    pub(super) fn start(
        options: Arc<HarnessOptions>,
        task: Arc<Value>,
        (url, key, calls_max): (&str, &str, u64),
    ) -> Result<Arc<Self>, String> {
        // The key is nobody else's, so neither is the folder.
        let name: String = key.chars().filter(char::is_ascii_alphanumeric).collect();
        let folder = options.folder.join(name);
        let episode = Episode {
            work: folder.join("work"),
            environment: [
                ("OPENAI_BASE_URL", format!("{url}/v1")),
                ("OPENAI_API_KEY", key.to_owned()),
                ("ANTHROPIC_BASE_URL", url.to_owned()),
                ("ANTHROPIC_API_KEY", key.to_owned()),
                (
                    "AGENTGYM_TASK",
                    folder.join("task.json").display().to_string(),
                ),
                (
                    "AGENTGYM_REWARD",
                    folder.join("verdict.json").display().to_string(),
                ),
                ("AGENTGYM_CALLS_MAX", calls_max.to_string()),
            ],
            key: key.to_owned(),
            folder,
            options,
        };
        episode.prepare(&task).map_err(|error| {
            format!(
                "The folder {} cannot be made: {error}",
                episode.folder.display()
            )
        })?;
        let child = episode.command(&episode.options.command).spawn();
        let child = child.map_err(|error| format!("sh cannot be started: {error}"))?;
        let run = Arc::new(Self::default());
        let own = Arc::clone(&run);
        let follow = move || {
            let ended = episode.follow(child, &own);
            if !episode.options.keeps_folders {
                // What is left is of no more use; a file that cannot be removed stays.
                let _ = std::fs::remove_dir_all(&episode.folder);
            }
            *own.ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(ended);
            own.changed.notify_all();
        };
        let started = std::thread::Builder::new()
            .name("agent".to_owned())
            .spawn(follow);
        started.map_err(|error| format!("a thread cannot be started: {error}"))?;
        Ok(run)
    }

    /// The gateway has computed for so many seconds.
    pub(super) fn computed(&self, seconds: f64) {
        let microseconds = (seconds.max(0.0) * 1e6) as u64;
        self.computed_us.fetch_max(microseconds, Ordering::Relaxed);
    }

    /// Ends the agent, whatever it is at.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    /// The reply of its end, if that comes in time.
    pub(super) fn ended_within(&self, wait: Duration) -> Option<Value> {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self
            .changed
            .wait_timeout_while(ended, wait, |ended| ended.is_none());
        let (ended, _) = waited.unwrap_or_else(PoisonError::into_inner);
        ended.clone()
    }

    /// Until the agent has ended.
    pub(super) fn await_end(&self) {
        self.ended_within(JUDGING);
    }
}

struct Episode {
    options: Arc<HarnessOptions>,
    folder: PathBuf,
    work: PathBuf,
    key: String,
    environment: [(&'static str, String); 7],
}

/// How an agent's process ended.
enum End {
    Exited(ExitStatus),
    Stopped(String),
}

impl Episode {
    fn prepare(&self, task: &Value) -> std::io::Result<()> {
        std::fs::create_dir_all(&self.work)?;
        for (name, text) in files(task).unwrap_or_default() {
            let path = self.work.join(name);
            std::fs::create_dir_all(path.parent().unwrap_or(&self.work))?;
            std::fs::write(path, text)?;
        }
        std::fs::write(self.folder.join("task.json"), task.to_string())
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new("sh");
        command
            .args(["-c", line])
            .current_dir(&self.work)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        command
    }

    /// Waits for the end, within the limits, and judges it.
    fn follow(&self, mut child: Child, run: &Run) -> Value {
        let output = Output::of(&mut child, self.options.output_bytes_max);
        let started = Instant::now();
        let end = loop {
            match child.try_wait() {
                Ok(Some(status)) => break End::Exited(status),
                Ok(None) => {}
                Err(error) => break End::Stopped(format!("it cannot be waited for: {error}")),
            }
            let computed = Duration::from_micros(run.computed_us.load(Ordering::Relaxed));
            let own = started.elapsed().saturating_sub(computed);
            if run.closed.load(Ordering::SeqCst) {
                break End::Stopped("its session was closed".to_owned());
            }
            if own.as_secs_f64() > self.options.time_limit_s {
                let most = self.options.time_limit_s;
                break End::Stopped(format!("it took more than {most} s (--time-limit-s)"));
            }
            if output.is_flood() {
                let most = self.options.output_bytes_max;
                break End::Stopped(format!(
                    "it wrote more than {most} bytes (--output-max-mib)"
                ));
            }
            std::thread::sleep(LOOK);
        };
        self.kill(&mut child);
        let said = output.text();
        if self.options.keeps_folders {
            // It helps people; without it nothing is lost.
            let _ = std::fs::write(self.folder.join("agent.log"), &said);
        }
        let shown = said[said.ceil_char_boundary(said.len().saturating_sub(SHOWN))..].trim();
        let reply = |how: &str, verdict: &Value| {
            let components = verdict.get("components").filter(|all| !all.is_null());
            json!({
                "observation": shown, "done": true, "ended": how, "reward": verdict["reward"],
                "reason": verdict["reason"].as_str().unwrap_or_default(),
                "components": components.cloned().unwrap_or_else(|| json!({})),
            })
        };
        let ends = |why: &str| json!(format!("{why}; its output ends: {shown}"));
        let status = match end {
            End::Stopped(why) => return reply("stopped", &json!({"reason": ends(&why)})),
            End::Exited(status) => status,
        };
        let judged = match (&self.options.judge, self.options.judges_by_exit) {
            (Some(judge), _) => self.judged(judge),
            (None, true) => {
                let reward = if status.success() { 1.0 } else { 0.0 };
                let verdict = json!({"reward": reward, "reason": status.to_string()});
                return reply("finished", &verdict);
            }
            (None, false) => read_within(&self.folder.join("verdict.json")),
        };
        match judged {
            Ok(verdict) if status.success() => reply("finished", &verdict),
            Err(why) if status.success() => json!({"error": format!("No reward: {why}")}),
            judged => {
                let mut verdict = judged.unwrap_or_else(|_| json!({}));
                if !verdict["reason"].is_string() {
                    verdict["reason"] = ends(&status.to_string());
                }
                reply("failed", &verdict)
            }
        }
    }

    /// What the judge says: JSON, a number, or nothing, where its exit code says it.
    fn judged(&self, line: &str) -> Result<Value, String> {
        let child = self.command(line).spawn();
        let mut child = child.map_err(|error| format!("the judge cannot be started: {error}"))?;
        let output = Output::of(&mut child, VERDICT_BYTES_MAX);
        let started = Instant::now();
        let status = loop {
            match child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if started.elapsed() < JUDGING && !output.is_flood() => {
                    std::thread::sleep(LOOK);
                }
                _ => {
                    self.kill(&mut child);
                    return Err("the judge does not end, or writes too much".to_owned());
                }
            }
        };
        self.kill(&mut child);
        let said = output.text();
        let last = said.trim().lines().last().unwrap_or_default().trim();
        match serde_json::from_str(last) {
            Ok(Value::Object(verdict)) => Ok(Value::Object(verdict)),
            Ok(reward @ Value::Number(_)) => Ok(json!({ "reward": reward })),
            _ if status.success() => Ok(json!({"reward": 1.0})),
            _ if status.code() == Some(1) => Ok(json!({"reward": 0.0, "reason": last})),
            _ => Err(format!("the judge failed ({status}): {last}")),
        }
    }

    /// Ends the group, and whoever has left it.
    fn kill(&self, child: &mut Child) {
        let line = format!("kill -KILL -{}", child.id());
        let mut kill = Command::new("sh");
        kill.args(["-c", &line])
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        // A group that has ended is as good.
        let _ = kill.status();
        let _ = child.wait();
        for stray in strays(&self.key) {
            let line = format!("kill -KILL {stray}");
            let _ = Command::new("sh").args(["-c", &line]).status();
        }
    }
}

/// Processes that hold an episode's key in their environment; none where /proc does not say.
fn strays(key: &str) -> Vec<u32> {
    let key = format!("OPENAI_API_KEY={key}");
    let Ok(all) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    let numbers = all
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let holds = |number: &u32| {
        let environment = std::fs::read(format!("/proc/{number}/environ"));
        let environment = environment.unwrap_or_default();
        environment
            .split(|byte| *byte == 0)
            .any(|entry| entry == key.as_bytes())
    };
    numbers.filter(holds).collect()
}

/// A verdict in a file.
fn read_within(path: &Path) -> Result<Value, String> {
    let text = crate::files::read_text_within(path, VERDICT_BYTES_MAX);
    let text = text.map_err(|why| format!("{} ($AGENTGYM_REWARD): {why}", path.display()))?;
    let verdict: Result<Map<String, Value>, _> = serde_json::from_str(&text);
    match (verdict, text.trim().parse::<f64>()) {
        (Ok(verdict), _) => Ok(Value::Object(verdict)),
        (_, Ok(reward)) if reward.is_finite() => Ok(json!({ "reward": reward })),
        (_, Ok(reward)) => Err(format!(
            "{} ($AGENTGYM_REWARD) holds {reward}, which is no reward; write a finite number",
            path.display()
        )),
        (Err(error), _) => Err(format!("{} ($AGENTGYM_REWARD): {error}", path.display())),
    }
}

/// What a process writes, up to a limit.
struct Output {
    said: Arc<Mutex<Vec<u8>>>,
    bytes: Arc<AtomicU64>,
    bytes_max: u64,
}

impl Output {
    fn of(child: &mut Child, bytes_max: u64) -> Self {
        let (said, bytes) = (Arc::default(), Arc::new(AtomicU64::new(0)));
        let streams: [Option<Box<dyn Read + Send>>; 2] = [
            child.stdout.take().map(|stream| Box::new(stream) as _),
            child.stderr.take().map(|stream| Box::new(stream) as _),
        ];
        for mut stream in streams.into_iter().flatten() {
            let (said, bytes) = (Arc::clone(&said), Arc::clone(&bytes));
            // Ends with the last process that holds the stream.
            std::thread::spawn(move || {
                let mut piece = [0; 8192];
                while let Ok(read @ 1..) = stream.read(&mut piece) {
                    let before = bytes.fetch_add(read as u64, Ordering::Relaxed);
                    let said: &Mutex<Vec<u8>> = &said;
                    if before < bytes_max {
                        let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
                        said.extend_from_slice(&piece[..read]);
                    }
                }
            });
        }
        Self {
            said,
            bytes,
            bytes_max,
        }
    }

    fn is_flood(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) > self.bytes_max
    }

    fn text(&self) -> String {
        // The last words may still be on their way.
        std::thread::sleep(LOOK);
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&said).into_owned()
    }
}
