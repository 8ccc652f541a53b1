//! The recipes of `deploy/envs`: what they refuse, and that a stop leaves no process behind. The
//! servers here are of Python's standard library, so nothing is downloaded.

use agentgym_tests::ports::free_port;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn recipes() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/envs")
}

/// Runs a recipe to its end; what it said on stderr.
fn refused(recipe: &Path, arguments: &[&str], clone: Option<&Path>) -> String {
    let mut command = Command::new(recipe);
    command.args(arguments).env_remove("AGENTGYM_ORIGINALS");
    if let Some(clone) = clone {
        command.env("AGENTGYM_ORIGINALS", clone);
    }
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(
        output.status.code(),
        Some(1),
        "{}: {said}",
        recipe.display()
    );
    said
}

/// The recipes, in order of their names.
fn all() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(recipes()).unwrap();
    let folders = entries.map(|entry| entry.unwrap().path());
    let mut all: Vec<PathBuf> = folders
        .map(|folder| folder.join("start.sh"))
        .filter(|recipe| recipe.exists())
        .collect();
    all.sort();
    all
}

#[test]
fn each_recipe_pins_its_packages_and_says_what_is_missing() {
    let names: Vec<String> = all()
        .iter()
        .map(|recipe| recipe.parent().unwrap().file_name().unwrap())
        .map(|name| name.to_string_lossy().into_owned())
        .collect();
    let expected = [
        "alfworld",
        "babyai",
        "maze",
        "sciworld",
        "searchqa",
        "sqlgym",
        "textcraft",
        "webarena",
        "webshop",
        "wordle",
    ];
    assert_eq!(names, expected);
    let empty = tempfile::tempdir().unwrap();
    for recipe in all() {
        let pins = std::fs::read_to_string(recipe.with_file_name("requirements.txt")).unwrap();
        for pin in pins.lines() {
            let exact = pin
                .split_once("==")
                .is_some_and(|(_, version)| !version.contains('*'));
            assert!(exact, "{}: {pin}", recipe.display());
        }
        let said = refused(&recipe, &[], None);
        assert!(said.contains("AGENTGYM_ORIGINALS names no clone"), "{said}");
        let said = refused(&recipe, &[], Some(empty.path()));
        assert!(
            said.contains("is missing; is AGENTGYM_ORIGINALS a whole clone"),
            "{said}"
        );
        let said = refused(&recipe, &["--replica", "2"], None);
        assert!(said.contains("does not know --replica"), "{said}");
        let said = refused(&recipe, &["--replicas", "0"], None);
        assert!(said.contains("are numbers"), "{said}");
    }
}

/// A server in the manner of AgentGym's, with a child process of its own.
const SERVER: &str = "
import argparse, http.server, subprocess
def launch():
    parser = argparse.ArgumentParser()
    parser.add_argument('--host'); parser.add_argument('--port', type=int)
    given = parser.parse_args()
    child = subprocess.Popen(['sleep', '1000'])
    print('child', child.pid, flush=True)
    http.server.ThreadingHTTPServer((given.host, given.port), http.server.SimpleHTTPRequestHandler).serve_forever()
";

/// A recipe of its own beside a copy of the shared file, and a clone with its server.
fn scene(folder: &Path, port: u16, pins: &str) -> PathBuf {
    let own = folder.join("recipes/tried");
    let module = folder.join("clone/agentenv-tried/agentenv_tried");
    for made in [&own, &module] {
        std::fs::create_dir_all(made).unwrap();
    }
    std::fs::copy(
        recipes().join("common.sh"),
        folder.join("recipes/common.sh"),
    )
    .unwrap();
    std::fs::write(own.join("requirements.txt"), pins).unwrap();
    std::fs::write(module.join("__init__.py"), SERVER).unwrap();
    let recipe = own.join("start.sh");
    let text = format!(
        "#!/usr/bin/env bash\nsource \"$(dirname \"$0\")/../common.sh\"\nname=tried \
         source_of=agentenv-tried module=agentenv_tried python='3.8 3.13' port={port} suffix=/x\n\
         serve \"$@\"\n"
    );
    std::fs::write(&recipe, text).unwrap();
    let mut mode = std::fs::metadata(&recipe).unwrap().permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut mode, 0o755);
    std::fs::set_permissions(&recipe, mode).unwrap();
    recipe
}

fn is_alive(process: u32) -> bool {
    // A process that has ended and was not waited for has no memory.
    std::fs::read_to_string(format!("/proc/{process}/statm"))
        .is_ok_and(|text| !text.starts_with("0 "))
}

#[test]
fn replicas_are_told_and_stopped_with_what_they_started() {
    let folder = tempfile::tempdir().unwrap();
    // Both are taken, so that no other test is given the second.
    let mut pairs = std::iter::repeat_with(|| [free_port(), free_port()]);
    let [port, next] = pairs.find(|[port, next]| port + 1 == *next).unwrap();
    let recipe = scene(folder.path(), port, "");
    let mut running = Command::new(&recipe)
        .args(["--replicas", "2"])
        .env("AGENTGYM_ORIGINALS", folder.path().join("clone"))
        .env("AGENTGYM_ENVS_HOME", folder.path().join("home"))
        .process_group(0)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut out = BufReader::new(running.stdout.take().unwrap());
    out.read_line(&mut line).unwrap();
    if line.is_empty() {
        let mut said = String::new();
        running
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut said)
            .unwrap();
        panic!("{said}");
    }
    assert_eq!(
        line.trim(),
        format!("env_addr: http://127.0.0.1:{port}/x,http://127.0.0.1:{next}/x")
    );
    let children: Vec<u32> = [port, next]
        .iter()
        .map(|port| {
            let log = folder.path().join(format!("home/tried/server-{port}.log"));
            let text = std::fs::read_to_string(log).unwrap();
            let child = text.lines().find_map(|line| line.strip_prefix("child "));
            child.unwrap().trim().parse().unwrap()
        })
        .collect();
    assert!(children.iter().all(|child| is_alive(*child)));
    let said = refused(&recipe, &[], Some(&folder.path().join("nowhere")));
    assert!(said.contains("tried"), "{said}");
    let stopped = Command::new("kill")
        .args(["-TERM", &running.id().to_string()])
        .status();
    assert!(stopped.unwrap().success());
    assert_eq!(running.wait().unwrap().code(), Some(0));
    let begun = Instant::now();
    while children.iter().any(|child| is_alive(*child)) {
        assert!(
            begun.elapsed() < Duration::from_secs(10),
            "{children:?} are left"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    std::net::TcpListener::bind(("127.0.0.1", port)).unwrap();
}

#[test]
fn ports_of_outgoing_connections_and_pins_that_do_not_install_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let clone = folder.path().join("clone");
    // The system gives free ports out of that range.
    let given = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let recipe = scene(folder.path(), given.local_addr().unwrap().port(), "");
    let said = refused(&recipe, &[], Some(&clone));
    assert!(
        said.contains("takes ports for outgoing connections"),
        "{said}"
    );
    let recipe = scene(folder.path(), free_port(), "not a package\n");
    let mut command = Command::new(&recipe);
    command
        .env("AGENTGYM_ORIGINALS", &clone)
        .env("AGENTGYM_ENVS_HOME", folder.path().join("home"));
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && said.contains("do not install on Python"),
        "{said}"
    );
}
