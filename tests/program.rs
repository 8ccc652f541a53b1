//! The project's own programs as child processes: run as a user runs them, and killed like a
//! machine that fails.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The folder that holds `configs` and `models`.
pub fn workspace() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().unwrap_or(tests).to_owned()
}

/// A program of this workspace, run from the workspace's folder. `AGENTGYM_PROGRAMS` names another
/// folder with built programs than the test's own.
///
/// # Panics
/// If it is not built: `cargo test` alone does not build binaries.
pub fn program(name: &str) -> Command {
    let folder = std::env::var_os("AGENTGYM_PROGRAMS").map_or_else(built, PathBuf::from);
    let path = folder.join(name);
    assert!(
        path.exists(),
        "{} is missing; run `cargo build --release --workspace --bins --examples` first, as scripts/test.sh does",
        path.display()
    );
    let mut command = Command::new(path);
    command
        .current_dir(workspace())
        .env_remove("AGENTGYM_STORE")
        .env_remove("AGENTGYM_QUEUE")
        .env("AGENTGYM_CACHE", machine());
    command
}

/// A cache folder of its own, as if each process had a machine to itself. Those of machines that are
/// gone are removed.
fn machine() -> PathBuf {
    const IDLE: Duration = Duration::from_secs(120);
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let all = std::env::temp_dir().join("agentgym-machines");
    for entry in std::fs::read_dir(&all).into_iter().flatten().flatten() {
        let path = entry.path();
        let lock = File::open(path.join("agentgym-models.lock"));
        let used = lock
            .as_ref()
            .map_or_else(|_| path.metadata(), File::metadata);
        let is_old = used.and_then(|file| file.modified()).is_ok_and(|used| {
            let age: Result<Duration, _> = used.elapsed();
            age.is_ok_and(|age| age > IDLE)
        });
        if is_old && lock.map_or(true, |lock| lock.try_lock().is_ok()) {
            let _ = std::fs::remove_dir_all(path);
        }
    }
    let own = NEXT.fetch_add(1, Ordering::Relaxed);
    all.join(format!("{}-{own}", std::process::id()))
}

/// The folder in which cargo puts the programs.
fn built() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own path");
    let folder = test.ancestors().nth(2);
    folder
        .expect("tests lie in <target>/<profile>/deps")
        .to_owned()
}

/// Runs a program to its end.
///
/// # Panics
/// If it cannot be started.
pub fn finish(mut command: Command) -> Output {
    command
        .stdin(Stdio::null())
        .output()
        .expect("the program can be started")
}

/// A running program, killed when dropped.
pub struct Running(Child);

impl Running {
    /// Starts a program and discards its output.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(mut command: Command) -> Self {
        let quiet = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Self(quiet.spawn().expect("the program can be started"))
    }

    /// Starts a program and appends its output to a file.
    ///
    /// # Panics
    /// If it cannot be started, or the file cannot be written.
    pub fn start_logged(mut command: Command, log: &Path) -> Self {
        let file = std::fs::File::options().create(true).append(true).open(log);
        let file = file.expect("the test's folder can be written");
        let copy = file.try_clone().expect("an open file can be shared");
        command.stdin(Stdio::null()).stdout(copy).stderr(file);
        Self(command.spawn().expect("the program can be started"))
    }

    /// Whether the program has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(Some(_)))
    }

    /// Waits for the program to end; returns its exit code, or `None` if a signal ended it.
    ///
    /// # Panics
    /// If the program is not this process's child.
    pub fn wait(mut self) -> Option<i32> {
        self.0.wait().expect("a child can be waited for").code()
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Sends a signal by name: `STOP`, `CONT`, `TERM`.
    ///
    /// # Panics
    /// If the process no longer exists.
    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill")
            .args([format!("-{name}"), self.id().to_string()])
            .status();
        assert!(
            sent.is_ok_and(|status| status.success()),
            "SIG{name} to {}",
            self.id()
        );
    }

    /// Sends SIGSTOP and waits until each thread stands still: one that is in the middle of a system call
    /// ends it first.
    ///
    /// # Panics
    /// If the process no longer exists.
    pub fn pause(&self) {
        self.signal("STOP");
        let tasks = format!("/proc/{}/task", self.id());
        // The state follows the name of the program, which ends with the last parenthesis. A thread that
        // is gone has none.
        let state = |task: std::io::Result<std::fs::DirEntry>| {
            let stat = std::fs::read_to_string(task.ok()?.path().join("stat")).ok()?;
            stat.rsplit(')').next()?.trim().chars().next()
        };
        let runs = |task| state(task).is_some_and(|state| !"TtZX".contains(state));
        while std::fs::read_dir(&tasks).is_ok_and(|mut all| all.any(runs)) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Sends `kill -9` and waits until the process is gone.
    pub fn kill(mut self) {
        self.stop();
    }

    fn stop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
    }
}
