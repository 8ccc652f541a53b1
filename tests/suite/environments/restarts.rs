//! A server that is killed in the middle of episodes and started again: they go
//! on in fresh sessions, and nobody can tell from the bytes.

use super::*;
use agentgym_tests::program::finish;
use tempfile::TempDir;

#[tokio::test(flavor = "multi_thread")]
async fn episodes_go_on_after_their_server_was_killed() {
    let whole = TempDir::new().unwrap();
    let server = Server::start();
    let output = finish(train(whole.path(), &server.url(), &[]));
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(stat(whole.path(), "episodes_taken_up"), 0.0);
    drop(server);

    let folder = TempDir::new().unwrap();
    let mut server = Server::start();
    let mut running = Running::start(train(folder.path(), &server.url(), &[]));
    let (mut kills, begun) = (0, Instant::now());
    while !running.has_ended() {
        assert!(begun.elapsed() < Duration::from_secs(300), "the run hangs");
        if kills < 4 && server.sessions().is_some_and(|open| open > 2) {
            server.kill();
            kills += 1;
            std::thread::sleep(Duration::from_millis(300));
            server.start_again();
        }
        std::thread::sleep(Duration::from_millis(40));
    }
    assert!(kills >= 2, "killed {kills} times only");
    let (undisturbed, disturbed) = (view(whole.path()).await, view(folder.path()).await);
    let digest = async |view: &RunView| view.store.run_digest(&view.plan.run).await.unwrap();
    assert_eq!(digest(&disturbed).await, digest(&undisturbed).await);
    let taken_up = stat(folder.path(), "episodes_taken_up");
    println!("{kills} kills, {taken_up} episodes taken up");
    assert!(taken_up > 0.0, "every episode began anew");
}
