//! What an environment costs: CPU time of the server process per step and per new session,
//! over loopback HTTP, and of the game alone. Run with `cargo bench --workspace --bench
//! textcraft`; numbers depend on the machine, so nothing is asserted.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use agentgym_envs::textcraft::{RecipeBook, Tasks, Worlds, solve};
use agentgym_envs::{ClientOptions, EnvClient, spec};

const RUN: Duration = Duration::from_secs(2);

struct Server {
    process: Child,
    url: String,
}

impl Server {
    fn start(arguments: &[&str]) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_agentgym-env"))
            .args(["textcraft", "--port", "0"])
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the server starts");
        let mut line = String::new();
        BufReader::new(process.stdout.take().expect("piped"))
            .read_line(&mut line)
            .expect("the server says where it listens");
        let url = line.trim().rsplit(' ').next().expect("a URL").to_owned();
        Self { process, url }
    }

    /// CPU time of all threads so far, in seconds; the kernel counts in hundredths.
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
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

async fn steps(server: &Server, clients: usize) {
    let client = client(server);
    let (cpu, start) = (server.cpu_s(), Instant::now());
    let tasks: Vec<_> = (0..clients as i64)
        .map(|id| {
            let client = client.clone();
            tokio::spawn(async move {
                let mut session = client.open(id).await.expect("opened");
                let mut count = 0u64;
                while start.elapsed() < RUN {
                    session.step("Action: inventory").await.expect("a reply");
                    count += 1;
                }
                session.close().await.expect("closed");
                count
            })
        })
        .collect();
    report("steps", server, clients, cpu, start, sum(tasks).await);
}

async fn sessions(server: &Server, clients: usize) {
    let client = client(server);
    let (cpu, start) = (server.cpu_s(), Instant::now());
    let tasks: Vec<_> = (0..clients as i64)
        .map(|first| {
            let client = client.clone();
            tokio::spawn(async move {
                let mut count = 0u64;
                while start.elapsed() < RUN {
                    let id = first + 1000 * count as i64;
                    client
                        .open(id)
                        .await
                        .expect("opened")
                        .close()
                        .await
                        .expect("closed");
                    count += 1;
                }
                count
            })
        })
        .collect();
    report("open+close", server, clients, cpu, start, sum(tasks).await);
}

async fn sum(tasks: Vec<tokio::task::JoinHandle<u64>>) -> u64 {
    let mut total = 0;
    for task in tasks {
        total += task.await.expect("a client");
    }
    total
}

fn client(server: &Server) -> EnvClient {
    let spec = spec("textcraft").expect("known");
    EnvClient::new(
        spec,
        std::slice::from_ref(&server.url),
        ClientOptions::default(),
    )
    .expect("a URL")
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
    println!("in process:");
    in_process("table", &Tasks::of_book(RecipeBook::builtin()));
    in_process("worlds", &Tasks::Worlds(Worlds::default()));
    for (name, arguments) in [("table", &[][..]), ("worlds", &["--worlds", "1-3"][..])] {
        println!("over HTTP, {name}:");
        let server = Server::start(arguments);
        for clients in [1, 8, 64] {
            steps(&server, clients).await;
            sessions(&server, clients).await;
        }
    }
}
