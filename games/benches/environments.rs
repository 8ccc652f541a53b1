//! The cost of an environment: CPU time of the server process per step and per new session, over
//! loopback HTTP, with few and with many clients; the memory of an open session, and of a thousand
//! open at once; and TextCraft's game alone. Run with
//! `cargo bench --workspace --bench environments`, optionally with names of environments after
//! `--`. The numbers depend on the machine, so nothing is asserted.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use agentgym_envs::{ClientOptions, EnvClient, Session, spec};
use agentgym_games::textcraft::{RecipeBook, Tasks, Worlds, solve};
use tokio::task::JoinSet;

const RUN: Duration = Duration::from_secs(2);
/// Sessions open at once.
const SESSIONS: usize = 1000;
/// Concurrent calls while they are opened and played.
const CALLS: usize = 64;

/// A server, and a text that is valid in any state of its environment.
struct Environment {
    name: &'static str,
    spec: &'static str,
    arguments: &'static [&'static str],
    text: &'static str,
}

const ENVIRONMENTS: [Environment; 6] = [
    Environment {
        name: "textcraft",
        spec: "textcraft",
        arguments: &["textcraft"],
        text: "Action: inventory",
    },
    Environment {
        name: "textcraft, worlds",
        spec: "textcraft",
        arguments: &["textcraft", "--worlds", "1-3"],
        text: "Action: inventory",
    },
    Environment {
        name: "babyai",
        spec: "babyai",
        arguments: &["babyai"],
        text: "Action: turn left",
    },
    Environment {
        name: "searchqa",
        spec: "searchqa",
        arguments: &["searchqa"],
        text: "<search>Who made the Tide Clock?</search>",
    },
    Environment {
        name: "maze",
        spec: "maze",
        arguments: &["maze"],
        text: "Action: move up",
    },
    Environment {
        name: "wordle",
        spec: "wordle",
        arguments: &["wordle"],
        text: "Action: c r a n e",
    },
];

struct Server {
    process: Child,
    url: String,
    environment: &'static Environment,
}

impl Server {
    fn start(environment: &'static Environment) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_agentgym-env"))
            .args(environment.arguments)
            .args(["--port", "0", "--sessions-max", "100000"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("the server starts");
        let mut line = String::new();
        BufReader::new(process.stdout.take().expect("piped"))
            .read_line(&mut line)
            .expect("the server says where it listens");
        let url = line.trim().rsplit(' ').next().expect("a URL").to_owned();
        Self {
            process,
            url,
            environment,
        }
    }

    fn client(&self) -> EnvClient {
        let spec = spec(self.environment.spec).expect("known");
        let urls = std::slice::from_ref(&self.url);
        EnvClient::new(spec, urls, ClientOptions::default()).expect("a URL")
    }

    /// An item that every environment has; SearchQA has only 128 questions of its own.
    fn item(number: usize) -> i64 {
        (number % 25) as i64
    }

    /// Resident memory, in bytes.
    fn memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id()))
            .unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.split_whitespace().next());
        kib.and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) * 1024
    }

    /// CPU time of all threads so far, in seconds, with the kernel's resolution of 10 ms.
    fn cpu_s(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.process.id()))
            .unwrap_or_default();
        let after_name = stat.rsplit(") ").next().unwrap_or_default();
        let ticks: u64 = after_name
            .split(' ')
            .skip(11)
            .take(2)
            .filter_map(|field| field.parse::<u64>().ok())
            .sum();
        ticks as f64 / 100.0
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Steps in each session's own task; when a task ends the next one starts.
async fn steps(server: &Server, clients: usize) {
    let client = server.client();
    let (cpu, start) = (server.cpu_s(), Instant::now());
    let tasks: Vec<_> = (0..clients)
        .map(|number| {
            let (client, text) = (client.clone(), server.environment.text);
            tokio::spawn(async move {
                let mut session = client.open(Server::item(number)).await.expect("opened");
                let mut count = 0u64;
                while start.elapsed() < RUN {
                    let done = session.step(text).await.expect("a reply").done;
                    count += 1;
                    if done {
                        session.close().await.expect("closed");
                        session = client.open(Server::item(number)).await.expect("opened");
                    }
                }
                session.close().await.expect("closed");
                count
            })
        })
        .collect();
    report("steps", server, clients, cpu, start, sum(tasks).await);
}

async fn sessions(server: &Server, clients: usize) {
    let client = server.client();
    let (cpu, start) = (server.cpu_s(), Instant::now());
    let tasks: Vec<_> = (0..clients)
        .map(|number| {
            let client = client.clone();
            tokio::spawn(async move {
                let mut count = 0u64;
                while start.elapsed() < RUN {
                    let item = Server::item(number + count as usize);
                    let session = client.open(item).await.expect("opened");
                    session.close().await.expect("closed");
                    count += 1;
                }
                count
            })
        })
        .collect();
    report("open+close", server, clients, cpu, start, sum(tasks).await);
}

/// A thousand sessions at once: the memory of each, and a few steps in all of them.
async fn crowd(server: &Server) {
    const STEPS: usize = 5;
    let client = server.client();
    let text = server.environment.text;
    // Memory that the first sessions make the server allocate permanently is not counted.
    let warm = open(&client, CALLS).await;
    let before = server.memory();
    let start = Instant::now();
    let crowd = open(&client, SESSIONS).await;
    let opened_s = start.elapsed().as_secs_f64();
    let each = server.memory().saturating_sub(before) as f64 / SESSIONS as f64 / 1024.0;
    let start = Instant::now();
    let played = all(crowd.into_iter().map(|mut session| async move {
        let mut count = 0;
        // Some tasks end earlier.
        while count < STEPS && !session.step(text).await.expect("a reply").done {
            count += 1;
        }
        (session, count)
    }))
    .await;
    let count: usize = played.iter().map(|(_, count)| count).sum();
    let per_second = count as f64 / start.elapsed().as_secs_f64();
    println!(
        "  {SESSIONS} sessions at once: opened in {opened_s:.2} s, {each:.1} KiB each, server {:.0} MiB, \
         {count} steps at {per_second:.0}/s",
        server.memory() as f64 / f64::from(1 << 20)
    );
    let played = played.into_iter().map(|(session, _)| session);
    for session in played.chain(warm) {
        session.close().await.expect("closed");
    }
}

async fn open(client: &EnvClient, count: usize) -> Vec<Session> {
    let calls = (0..count).map(|number| {
        let client = client.clone();
        async move { client.open(Server::item(number)).await.expect("opened") }
    });
    all(calls).await
}

/// Awaits all calls, with a limited number of them in flight at once.
async fn all<F>(calls: impl Iterator<Item = F>) -> Vec<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    let (mut running, mut done) = (JoinSet::new(), Vec::new());
    for call in calls {
        if running.len() == CALLS {
            done.push(running.join_next().await.expect("one runs"));
        }
        running.spawn(call);
    }
    while let Some(ended) = running.join_next().await {
        done.push(ended);
    }
    let outputs = done.into_iter().map(|ended| ended.expect("a client"));
    outputs.collect()
}

async fn sum(tasks: Vec<tokio::task::JoinHandle<u64>>) -> u64 {
    let mut total = 0;
    for task in tasks {
        total += task.await.expect("a client");
    }
    total
}

fn report(what: &str, server: &Server, clients: usize, cpu: f64, start: Instant, count: u64) {
    let per_second = count as f64 / start.elapsed().as_secs_f64();
    let cpu_us = (server.cpu_s() - cpu) * 1e6 / count as f64;
    println!(
        "  {what:<10} {clients:>3} clients  {per_second:>7.0}/s  {cpu_us:>6.1} µs server CPU each"
    );
}

fn in_process(name: &str, tasks: &Tasks) {
    let (mut count, start) = (0u64, Instant::now());
    let mut steps = 0u64;
    let mut playing = Duration::ZERO;
    while start.elapsed() < RUN {
        let world = tasks.world(count as i64);
        let actions = solve(&world.book, world.goal).expect("solvable");
        let mut game = world.game();
        let played = Instant::now();
        for action in &actions {
            game.step(action).expect("small numbers");
        }
        playing += played.elapsed();
        steps += actions.len() as u64;
        count += 1;
    }
    println!(
        "  {name}: {:.2} µs a task made and solved, {:.2} µs a step",
        start.elapsed().as_secs_f64() * 1e6 / count as f64,
        playing.as_secs_f64() * 1e6 / steps as f64
    );
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let wanted: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with("--"))
        .collect();
    let is_wanted =
        |name: &str| wanted.is_empty() || wanted.iter().any(|word| name.contains(word.as_str()));
    if is_wanted("textcraft") {
        println!("textcraft, in process:");
        in_process("table", &Tasks::of_book(RecipeBook::builtin()));
        in_process("worlds", &Tasks::Worlds(Worlds::default()));
    }
    for environment in ENVIRONMENTS.iter().filter(|e| is_wanted(e.name)) {
        println!("{}, over HTTP:", environment.name);
        let server = Server::start(environment);
        for clients in [1, 8, 64] {
            steps(&server, clients).await;
            sessions(&server, clients).await;
        }
        crowd(&server).await;
    }
}
