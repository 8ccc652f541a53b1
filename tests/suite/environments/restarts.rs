//! A server that is killed in the middle of episodes and restarted: the episodes continue in fresh
//! sessions, and the resulting bytes are the same.

use super::proxy::Proxy;
use super::*;
use agentgym_tests::program::finish;
use tempfile::TempDir;

/// An episode may be interrupted as often as the server is killed.
const OFTEN: &str = "actor_rollout_ref.rollout.fault_retries=20";
/// Number of calls after which the server is killed, repeatedly; the run makes more than four times
/// as many.
const CALLS: u64 = 130;
const KILLS: u64 = 4;

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
    let proxy = Proxy::start(server.addr, 0.0, -1, 1).await;
    let mut running = Running::start_logged(train(folder.path(), &proxy.url, &patient), &log);
    let (mut kills, begun) = (0, Instant::now());
    proxy.let_pass(CALLS);
    while !running.has_ended() {
        assert!(begun.elapsed() < Duration::from_secs(300), "the run hangs");
        // The next call waits, so at any speed there are episodes in progress.
        if kills < KILLS && proxy.counts().0 > (kills + 1) * CALLS {
            server.kill();
            kills += 1;
            server.start_again();
            proxy.let_pass(match kills {
                KILLS => u64::MAX,
                _ => (kills + 1) * CALLS,
            });
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let said = std::fs::read_to_string(&log).unwrap();
    assert_eq!(running.wait(), Some(0), "{said}");
    let (undisturbed, disturbed) = (view(whole.path()).await, view(folder.path()).await);
    println!("{}", learnt(&undisturbed.store, "tried").await);
    let digest = async |view: &RunView| view.store.run_digest(&view.plan.run).await.unwrap();
    assert_eq!(
        digest(&disturbed).await,
        digest(&undisturbed).await,
        "{said}"
    );
    let taken_up = stat(folder.path(), "episodes_taken_up");
    println!("{kills} kills, {taken_up} episodes taken up");
    assert_eq!(kills, KILLS, "the run was over before the last kill");
    assert!(taken_up > 0.0, "every episode began anew: {said}");
}
