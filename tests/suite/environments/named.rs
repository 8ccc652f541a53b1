//! Another game on the port of an environment: it answers every call, and is not trained on.

use super::{PATIENT, train, view};
use agentgym_tests::ports::free_port;
use agentgym_tests::program::{Running, finish, program};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Output;
use std::time::{Duration, Instant};
use tempfile::TempDir;

fn serve(name: &str, port: u16) -> Running {
    let mut command = program("agentgym-env");
    command.args([name, "--port", &port.to_string()]);
    let running = Running::start(command);
    let (addr, begun) = (SocketAddr::from(([127, 0, 0, 1], port)), Instant::now());
    while TcpStream::connect(addr).is_err() {
        assert!(begun.elapsed() < Duration::from_secs(20), "no server");
        std::thread::sleep(Duration::from_millis(20));
    }
    running
}

fn said(output: &Output) -> String {
    let both = [output.stdout.as_slice(), &output.stderr].concat();
    String::from_utf8_lossy(&both).into_owned()
}

fn assert_names_both(output: &Output, port: u16) {
    let said = said(output);
    assert_eq!(output.status.code(), Some(5), "{said}");
    for part in ["`babyai`", "textcraft", &format!("127.0.0.1:{port}")] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

fn resume(folder: &Path) -> Output {
    let mut command = program("agentgym-submit");
    command.args(["resume", "tried", "--quiet", "--store"]);
    command.arg(folder.join("store"));
    finish(command)
}

async fn digest(folder: &Path) -> String {
    let view = view(folder).await;
    format!("{:?}", view.store.run_digest(&view.plan.run).await.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn another_game_on_the_port_is_named_and_not_played() {
    let (port, folder) = (free_port(), TempDir::new().unwrap());
    let url = format!("http://127.0.0.1:{port}");
    let short = [PATIENT, "trainer.total_training_steps=1"];
    let stranger = serve("babyai", port);
    assert_names_both(&finish(train(folder.path(), &url, &short)), port);

    let mut plan = program("agentgym-submit");
    let address = format!("actor_rollout_ref.agentgym.env_addr={url}");
    plan.arg("plan").arg(folder.path().join("tried.yaml"));
    let ended = finish({
        plan.args(["--check", &address]);
        plan
    });
    assert_names_both(&ended, port);
    let mut doctor = program("agentgym-env");
    doctor.args(["doctor", &url, "--task", "textcraft"]);
    assert_names_both(&finish(doctor), port);

    // Whoever knows better says so.
    let sure = TempDir::new().unwrap();
    let off = "actor_rollout_ref.agentgym.check_servers=false";
    let played = finish(train(sure.path(), &url, &[short[0], short[1], off]));
    assert!(played.status.success(), "{}", said(&played));

    stranger.kill();
    let own = serve("textcraft", port);
    // Nothing is left behind, and the same command begins.
    assert!(!folder.path().join("store/runs").exists());
    let begun = finish(train(folder.path(), &url, &short));
    assert!(begun.status.success(), "{}", said(&begun));
    let mut plan = program("agentgym-submit");
    plan.arg("plan").arg(folder.path().join("tried.yaml"));
    plan.args(["--check", &address]);
    let ended = finish(plan);
    assert!(
        ended.status.success() && said(&ended).contains("opens item 23"),
        "{}",
        said(&ended)
    );
    own.kill();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_comes_back_as_another_game_is_not_played() {
    let port = free_port();
    let url = format!("http://127.0.0.1:{port}");
    let (folder, whole) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let mut own = serve("textcraft", port);
    let command = train(whole.path(), &url, &[PATIENT]);
    assert!(finish(command).status.success());
    let command = train(folder.path(), &url, &[PATIENT]);
    let log = folder.path().join("log");
    let running = Running::start_logged(command, &log);
    let commits = folder
        .path()
        .join("store/runs/tried/commits/00000001/rollout");
    let begun = Instant::now();
    while !commits.is_dir() {
        assert!(begun.elapsed() < Duration::from_secs(120), "no rollout");
        std::thread::sleep(Duration::from_millis(5));
    }
    own.kill();
    let stranger = serve("babyai", port);
    assert_eq!(
        running.wait(),
        Some(5),
        "{}",
        std::fs::read_to_string(&log).unwrap()
    );
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(text.contains("is `babyai` and not `textcraft`"), "{text}");
    stranger.kill();
    own = serve("textcraft", port);
    let resumed = resume(folder.path());
    assert!(resumed.status.success(), "{}", said(&resumed));
    assert_eq!(digest(folder.path()).await, digest(whole.path()).await);
    own.kill();
}
