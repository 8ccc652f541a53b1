//! A server that is killed in the middle of episodes and started again: they go
//! on in fresh sessions, and nobody can tell from the bytes.

use super::*;
use agentgym_tests::program::finish;
use tempfile::TempDir;

/// An episode may be interrupted as often as the server is killed.
const OFTEN: &str = "actor_rollout_ref.rollout.fault_retries=20";
const KILLS: usize = 4;

#[tokio::test(flavor = "multi_thread")]
async fn episodes_go_on_after_their_server_was_killed() {
    let patient = [PATIENT, OFTEN];
    let whole = TempDir::new().unwrap();
    let mut server = Server::start(600);
    let output = finish(train(whole.path(), &server.url(), &patient));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(stat(whole.path(), "episodes_taken_up"), 0.0);

    let folder = TempDir::new().unwrap();
    let log = folder.path().join("log");
    let mut running = Running::start_logged(train(folder.path(), &server.url(), &patient), &log);
    let (mut kills, begun) = (0, Instant::now());
    while !running.has_ended() {
        assert!(begun.elapsed() < Duration::from_secs(300), "the run hangs");
        if kills < KILLS && server.sessions().is_some_and(|open| open > 2) {
            server.kill();
            kills += 1;
            std::thread::sleep(Duration::from_millis(300));
            server.start_again();
        }
        std::thread::sleep(Duration::from_millis(40));
    }
    let said = std::fs::read_to_string(&log).unwrap();
    assert_eq!(running.wait(), Some(0), "{said}");
    let (undisturbed, disturbed) = (view(whole.path()).await, view(folder.path()).await);
    let digest = async |view: &RunView| view.store.run_digest(&view.plan.run).await.unwrap();
    assert_eq!(
        digest(&disturbed).await,
        digest(&undisturbed).await,
        "{said}"
    );
    let taken_up = stat(folder.path(), "episodes_taken_up");
    println!("{kills} kills, {taken_up} episodes taken up");
    assert!(kills > 0, "the run was over before a server was killed");
    assert!(taken_up > 0.0, "every episode began anew: {said}");
}
