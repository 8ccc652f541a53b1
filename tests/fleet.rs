//! A realistic fleet: separate worker processes, a real Redis as the queue and a real S3 server as
//! the store.

use crate::program::{Running, finish, program};
use crate::redis::RedisServer;
use crate::s3::S3Server;
use agentgym_storage::{AttemptRecord, PartKey, RunId, Store};
use std::path::Path;
use std::process::Command;

/// The run that a fleet works on.
pub const RUN: &str = "smoke";

/// Servers and workers; all of them are stopped when it is dropped.
pub struct Fleet {
    /// The store.
    pub s3: S3Server,
    /// The queue.
    pub redis: RedisServer,
    /// The workers, one process each.
    pub workers: Vec<Running>,
    lease_s: u64,
}

impl Fleet {
    /// Starts servers, with their files in `folder`, and `workers` workers with a lease of
    /// `lease_s`.
    pub async fn of(folder: &Path, workers: usize, lease_s: u64) -> Self {
        let mut fleet = Self {
            s3: S3Server::start(folder).await,
            redis: RedisServer::start(),
            workers: Vec::new(),
            lease_s,
        };
        fleet.workers = (0..workers).map(|_| fleet.worker(&[])).collect();
        fleet
    }

    /// Starts another worker with one thread and further arguments.
    pub fn worker(&self, arguments: &[&str]) -> Running {
        Running::start(self.worker_command(arguments))
    }

    /// The command that starts such a worker.
    pub fn worker_command(&self, arguments: &[&str]) -> Command {
        let mut command = program("agentgym-worker");
        command
            .args(["--threads", "1", "--lease-ttl-s", &self.lease_s.to_string()])
            .args(["--store", &self.s3.url, "--queue", &self.redis.url()])
            .args(arguments)
            .envs(self.s3.env());
        command
    }

    /// The command that plans, enqueues and follows the run; the workers are separate processes.
    pub fn submit(&self, arguments: &[&str]) -> Command {
        self.submit_as(RUN, arguments)
    }

    /// The same for a run with another name.
    pub fn submit_as(&self, run: &str, arguments: &[&str]) -> Command {
        let mut command = self.type_in(&["run", "configs/smoke.yaml"]);
        command
            .args(arguments)
            .arg(format!("run.id={run}"))
            .arg(format!("jobs.lease_ttl_s={}", self.lease_s))
            .arg("jobs.workers=0");
        command
    }

    /// An `agentgym-submit` command for this store and queue.
    pub fn type_in(&self, words: &[&str]) -> Command {
        let mut command = program("agentgym-submit");
        command
            .args(words)
            .args(["--store", &self.s3.url, "--queue", &self.redis.url()])
            .envs(self.s3.env());
        command
    }

    /// Kills a worker with SIGKILL and starts a new one in its place.
    pub fn replace(&mut self, index: usize) {
        let new = self.worker(&[]);
        std::mem::replace(&mut self.workers[index], new).kill();
    }

    /// The attempt in flight in a process, for the run [`RUN`].
    ///
    /// # Panics
    /// If the store cannot be read.
    pub async fn in_flight(store: &Store, pid: u32) -> Option<(PartKey, AttemptRecord)> {
        in_flight(store, &RUN.parse().expect("it is a run id"), pid).await
    }

    /// The digest of the run.
    ///
    /// # Panics
    /// If the run has none.
    pub fn digest(&self) -> String {
        let output = finish(self.type_in(&["digest", RUN]));
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let complaint = String::from_utf8_lossy(&output.stderr);
        let digest = said.split_whitespace().find(|word| word.len() == 64);
        digest
            .unwrap_or_else(|| panic!("no digest: {complaint}"))
            .to_owned()
    }
}

/// The attempt that a process has begun and not ended, of a part without a commit.
///
/// # Panics
/// If the store cannot be read.
pub async fn in_flight(store: &Store, run: &RunId, pid: u32) -> Option<(PartKey, AttemptRecord)> {
    let own = format!(":{pid}:");
    // Commits are read first: a part committed in between still counts as in flight.
    let commits = store.all_commits(run).await.expect("the store answers");
    let attempts = store.all_attempts(run).await.expect("the store answers");
    attempts.into_iter().find_map(|(slot, mut attempts)| {
        let last = attempts.pop()?;
        let is_own = last.start.worker.contains(&own) && last.end.is_none();
        (is_own && !commits.contains(&slot)).then_some((slot, last))
    })
}
