//! The project's own programs as child processes: run as a user runs them, and killed like a
//! machine that fails.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

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
        .env_remove("AGENTGYM_QUEUE");
    command
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
