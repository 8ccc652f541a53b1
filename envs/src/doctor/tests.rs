//! The doctor on our own servers, on servers of the wrong kind, and on one that lies.

use super::*;
use crate::spec::spec;

fn quick() -> DoctorOptions {
    DoctorOptions {
        leaks: 20,
        clients: vec![1, 4],
        measure_s: 0.2,
        call_timeout_s: 30.0,
    }
}

async fn examined(address: &str, task: &str) -> Report {
    let server = agentgym_games::start(address).await.expect("started");
    let spec = spec(task).expect("known");
    let report = examine(spec, &server.url, &quick(), |_| {})
        .await
        .expect("a report");
    assert!(report.to_string().contains(&server.url));
    server.stop().await;
    report
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn our_own_servers_are_healthy() {
    // ScienceWorld needs Java and its JAR; its own test examines it.
    let rows = agentgym_games::ALL
        .iter()
        .filter(|row| row.spec.name != "sciworld");
    let questions = tempfile::NamedTempFile::new().expect("a file");
    let text = "{\"prompt\": \"One?\", \"answer\": 1}\n".repeat(2000);
    std::fs::write(&questions, text).expect("written");
    let file = questions.path().display().to_string();
    for row in rows {
        let address = match row.spec.name {
            "dataset" => crate::builtin::address("dataset", &[("file", &file)]),
            _ => format!("builtin{}", row.addresses[0].suffix),
        };
        let report = examined(&address, row.spec.name).await;
        assert_ne!(report.verdict(), Verdict::Bad, "{report}");
        assert_eq!(report.speeds.len(), 2, "{report}");
        let healthy = |speed: &Speed| speed.failures == 0 && speed.steps_per_s > 0.0;
        assert!(report.speeds.iter().all(healthy), "{report}");
        eprintln!("{report}\n");
    }
}

#[tokio::test]
async fn a_server_of_another_environment_is_told_apart() {
    for (address, task) in [
        ("builtin", "searchqa"),
        ("builtin:searchqa", "textcraft"),
        ("builtin:maze", "wordle"),
    ] {
        let report = examined(address, task).await;
        assert_eq!(report.verdict(), Verdict::Bad, "{report}");
        assert!(
            report.speeds.is_empty() && report.to_string().contains("Not fit"),
            "{report}"
        );
    }
}

#[tokio::test]
async fn nobody_at_the_address_is_one_clear_line() {
    let spec = spec("textcraft").expect("known");
    let told = std::sync::Mutex::new(Vec::new());
    let tell = |what: &str| told.lock().unwrap().push(what.to_owned());
    let report = examine(spec, "http://127.0.0.1:9", &quick(), tell)
        .await
        .expect("a report");
    assert_eq!(
        (report.checks.len(), report.verdict()),
        (1, Verdict::Bad),
        "{report}"
    );
    assert_eq!(
        told.into_inner().unwrap().len(),
        1,
        "said what it waits for"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn there_is_no_verdict_without_a_step_and_no_figure_that_is_none() {
    let server = agentgym_games::start("builtin").await.expect("started");
    let known = spec("textcraft").expect("known");
    let told = std::sync::Mutex::new(Vec::new());
    let tell = |what: &str| told.lock().unwrap().push(what.to_owned());
    // Opening takes longer than that.
    let options = DoctorOptions {
        measure_s: 0.0,
        ..quick()
    };
    let mut report = examine(known, &server.url, &options, tell)
        .await
        .expect("a report");
    server.stop().await;
    assert!(
        report.speeds.iter().all(|speed| speed.steps > 0),
        "{report}"
    );
    let told = told.into_inner().unwrap();
    assert!(
        told.len() > 6 && told.iter().any(|line| line.starts_with("measuring with 4")),
        "{told:?}"
    );
    // A server whose steps all fail is unfit, whatever the other checks found.
    let speed = &mut report.speeds[0];
    (speed.steps, speed.steps_per_s, speed.step_ms, speed.open_ms) = (0, 0.0, None, None);
    assert!(!report.to_string().contains("NaN"), "{report}");
    assert_eq!(report.verdict(), Verdict::Bad);
    assert!(report.to_string().contains("Not fit"), "{report}");
}

/// On the original, sessions that were never reset cannot be closed.
#[tokio::test]
async fn sessions_that_stay_are_counted() {
    let report = examined("builtin:babyai", "babyai").await;
    let leaks = report
        .checks
        .iter()
        .find(|check| check.name == "leaks")
        .expect("made");
    assert_eq!(leaks.verdict, Verdict::Note, "{report}");
    assert!(
        leaks
            .found
            .contains("20 not closed, 20 more open than before"),
        "{report}"
    );
}
