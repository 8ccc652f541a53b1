//! The client against our server and against misbehaving servers.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::error::{FaultKind, Verdict};
use crate::spec::spec;
use agentgym_games::textcraft::{Tasks, Worlds, solve};

fn quick() -> ClientOptions {
    ClientOptions {
        call_timeout_s: 0.5,
        connect_timeout_s: 0.5,
        body_max_bytes: 64 << 10,
        attempts_max: 3,
        backoff_first_s: 0.01,
        backoff_max_s: 0.02,
        avoid_s: 0.2,
        sessions_max: None,
        checks_servers: true,
        lenient_actions: false,
    }
}

fn client(url: &str, options: ClientOptions) -> EnvClient {
    let spec = spec("textcraft").expect("known");
    EnvClient::new(spec, &[url.to_owned()], options).expect("a valid address")
}

/// How a misbehaving server answers a request.
#[derive(Clone)]
enum Answer {
    /// This status and body.
    Reply(u16, String),
    /// A 500, after which the connection is closed without notice.
    FailAndDrop,
    /// Never answers.
    Hang,
    /// Half of the announced body, then the connection closes.
    Half,
    /// The connection closes before any byte.
    Nothing,
    /// This many bytes, in chunks without a total length.
    Flood(usize),
}

struct Fake {
    url: String,
    requests: Arc<AtomicU32>,
}

const CREATED: &str = r#"{"id": 7, "observation": "o", "done": false, "reward": 0}"#;

/// A server that creates and resets normally (unless `path` is one of these) and gives the listed
/// answers on `path`, the last one repeatedly.
async fn fake(path: &'static str, answers: Vec<Answer>) -> Fake {
    fake_of(path, answers, false).await
}

static CREATIONS: AtomicU32 = AtomicU32::new(7);

/// With `distinct`, every session has its own id.
async fn fake_of(path: &'static str, answers: Vec<Answer>, distinct: bool) -> Fake {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    let requests = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&requests);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (answers, counted) = (answers.clone(), Arc::clone(&counted));
            tokio::spawn(async move { converse(stream, path, answers, counted, distinct).await });
        }
    });
    Fake { url, requests }
}

async fn converse(
    mut stream: TcpStream,
    path: &str,
    answers: Vec<Answer>,
    counted: Arc<AtomicU32>,
    distinct: bool,
) -> Option<()> {
    loop {
        let asked = request_path(&mut stream).await?;
        let answer = if asked == path {
            let turn = counted.fetch_add(1, Ordering::SeqCst) as usize;
            answers[turn.min(answers.len() - 1)].clone()
        } else if asked == "/close" {
            Answer::Reply(200, "true".to_owned())
        } else {
            // Only the reply to /create has an id, and only some servers give each session its own.
            let id = match (asked.as_str(), distinct) {
                ("/create", true) => {
                    format!("\"id\": {}, ", CREATIONS.fetch_add(1, Ordering::SeqCst))
                }
                ("/create", false) => "\"id\": 7, ".to_owned(),
                _ => String::new(),
            };
            Answer::Reply(200, CREATED.replace("\"id\": 7, ", &id))
        };
        match answer {
            Answer::Reply(status, body) => {
                let head = format!(
                    "HTTP/1.1 {status} X\r\ncontent-length: {}\r\n\r\n",
                    body.len()
                );
                stream.write_all((head + &body).as_bytes()).await.ok()?;
            }
            Answer::FailAndDrop => {
                let head = b"HTTP/1.1 500 X\r\ncontent-length: 4\r\n\r\noops";
                stream.write_all(head).await.ok()?;
                // Late enough that the client may already treat the connection as idle.
                tokio::time::sleep(Duration::from_millis(20)).await;
                return None;
            }
            Answer::Hang => std::future::pending().await,
            Answer::Half => {
                let head = b"HTTP/1.1 200 OK\r\ncontent-length: 400\r\n\r\n{\"observ";
                stream.write_all(head).await.ok()?;
                return None;
            }
            Answer::Nothing => return None,
            Answer::Flood(bytes) => {
                let head = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n";
                stream.write_all(head).await.ok()?;
                for _ in 0..bytes / 8192 {
                    stream.write_all(&[b' '; 8192]).await.ok()?;
                }
                return None;
            }
        }
    }
}

async fn request_path(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).expect("ASCII");
    let length = head.lines().find_map(|line| {
        line.to_ascii_lowercase()
            .strip_prefix("content-length:")?
            .trim()
            .parse()
            .ok()
    });
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).await.ok()?;
    Some(head.split(' ').nth(1).expect("a path").to_owned())
}

/// Opens a session and steps once; returns the error of the call that fails.
async fn error_of(client: &EnvClient) -> EnvError {
    let opened = client.open(3).await;
    let error = match opened {
        Err(error) => error,
        Ok(mut session) => {
            let error = session
                .step("Action: inventory")
                .await
                .expect_err("the step fails");
            let again = session
                .step("Action: inventory")
                .await
                .expect_err("it is over");
            assert_eq!(again.kind(), FaultKind::Finished);
            error
        }
    };
    client.drain().await;
    error
}

#[tokio::test]
async fn each_misbehaviour_is_its_own_error() {
    use Answer::*;
    let reply = |status, body: &str| Reply(status, body.to_owned());
    for (answer, kind, verdict, words) in [
        (
            reply(500, "Internal Server Error"),
            FaultKind::Refused,
            Verdict::Retry,
            "HTTP 500: Internal",
        ),
        (
            reply(404, "{}"),
            FaultKind::Refused,
            Verdict::GiveUp,
            "correct the address",
        ),
        (
            reply(307, ""),
            FaultKind::Refused,
            Verdict::GiveUp,
            "redirects are not followed",
        ),
        (
            reply(200, "<html>hello"),
            FaultKind::Protocol,
            Verdict::GiveUp,
            "<html>hello",
        ),
        (
            reply(200, ""),
            FaultKind::Protocol,
            Verdict::GiveUp,
            "an empty body",
        ),
        (
            reply(200, "\u{0}\u{1}"),
            FaultKind::Protocol,
            Verdict::GiveUp,
            "not JSON",
        ),
        (
            reply(200, "{\"reward\": 1}"),
            FaultKind::Protocol,
            Verdict::GiveUp,
            "{\"reward\":1}",
        ),
        (
            reply(200, r#"{"error": "The id 7 is not valid."}"#),
            FaultKind::Faulted,
            Verdict::Retry,
            "The id 7",
        ),
        (
            reply(200, r#"{"error": ""}"#),
            FaultKind::Faulted,
            Verdict::Retry,
            "\"\"",
        ),
        (
            reply(
                200,
                r#"{"error": "The task with environment 7 has finished."}"#,
            ),
            FaultKind::Finished,
            Verdict::GiveUp,
            "over",
        ),
        (Hang, FaultKind::TimedOut, Verdict::Retry, "within 0.5 s"),
        (
            Half,
            FaultKind::Dropped,
            Verdict::Retry,
            "before a whole reply",
        ),
        (
            Nothing,
            FaultKind::Dropped,
            Verdict::Retry,
            "before a whole reply",
        ),
        (
            Flood(100 << 20),
            FaultKind::TooLarge,
            Verdict::GiveUp,
            "65536 bytes",
        ),
        (FailAndDrop, FaultKind::Refused, Verdict::Retry, "oops"),
    ] {
        for path in ["/create", "/reset", "/step"] {
            let server = fake(path, vec![answer.clone()]).await;
            let client = client(&server.url, quick());
            if path == "/create" && words.contains("reward") {
                continue;
            }
            let error = error_of(&client).await;
            let message = error.to_string();
            assert_eq!(error.kind(), kind, "{path}: {message}");
            assert_eq!(error.verdict(), verdict, "{path}: {message}");
            assert!(
                message.contains(&format!("{}{path}", server.url)),
                "{message}"
            );
            assert!(message.contains(words), "{path}: {message}");
            // A step may have run, so it is never sent again; other calls are, if that can help.
            let tried = server.requests.load(Ordering::SeqCst);
            let may_pass = verdict == Verdict::Retry && kind != FaultKind::Faulted;
            assert_eq!(
                tried,
                if path != "/step" && may_pass { 3 } else { 1 },
                "{path}: {message}"
            );
            let counters = client.counters();
            // `error_of` steps once more after a failed step; that is a step after the end.
            let extra = u64::from(path == "/step" && kind == FaultKind::Finished);
            assert_eq!(counters.faults(kind), 1 + extra, "{path}: {counters:?}");
            assert_eq!(counters.open(), 0, "{path}: {counters:?}");
            assert_eq!(counters.leaked, 0, "{path}: {counters:?}");
        }
    }
}

#[tokio::test]
async fn rewards_and_flags_of_other_types_are_refused() {
    for body in [
        r#"{"observation": 1, "reward": 0, "done": false}"#,
        r#"{"observation": "", "reward": "1", "done": false}"#,
        r#"{"observation": "", "reward": 0, "done": 0}"#,
    ] {
        let server = fake("/step", vec![Answer::Reply(200, body.to_owned())]).await;
        let error = error_of(&client(&server.url, quick())).await;
        assert_eq!(error.kind(), FaultKind::Protocol, "{body}: {error}");
    }
}

#[tokio::test]
async fn passing_failures_are_got_over() {
    let answers = vec![
        Answer::FailAndDrop,
        Answer::Nothing,
        Answer::Reply(200, CREATED.to_owned()),
    ];
    for path in ["/create", "/reset", "/close"] {
        let server = fake(path, answers.clone()).await;
        let client = client(&server.url, quick());
        let session = client.open(0).await.expect("the third attempt succeeds");
        session.close().await.expect("closed");
        assert_eq!(client.counters().retries, 2);
    }
}

#[tokio::test]
async fn a_connection_dropped_after_a_500_is_not_used_again() {
    let step = r#"{"observation": "ok", "reward": 0, "done": false}"#;
    let server = fake_of(
        "/step",
        vec![Answer::FailAndDrop, Answer::Reply(200, step.to_owned())],
        true,
    )
    .await;
    let client = client(&server.url, quick());
    let mut one = client.open(0).await.expect("opened");
    let mut two = client.open(0).await.expect("opened");
    one.step("Action: inventory").await.expect_err("500");
    let reply = two
        .step("Action: inventory")
        .await
        .expect("a step of another session");
    assert_eq!(reply.observation, "ok");
}

#[tokio::test]
async fn an_unreachable_server_is_named_after_some_patience() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    drop(listener);
    let client = client(
        &url,
        ClientOptions {
            backoff_first_s: 0.1,
            backoff_max_s: 1.0,
            ..quick()
        },
    );
    let started = Instant::now();
    let error = client.open(0).await.err().expect("nobody listens");
    assert!(started.elapsed() > Duration::from_millis(200), "two pauses");
    let message = error.to_string();
    assert_eq!(
        (error.kind(), error.verdict()),
        (FaultKind::Unreachable, Verdict::Retry)
    );
    assert!(
        message.contains(&format!("{url}/create")) && message.contains("3 attempts"),
        "{message}"
    );
}

#[tokio::test]
async fn a_session_ends_with_its_server() {
    let server = agentgym_games::start("builtin").await.expect("started");
    let client = client(&server.url, quick());
    let mut session = client.open(0).await.expect("opened");
    server.stop().await;
    let error = session
        .step("Action: inventory")
        .await
        .expect_err("stopped");
    assert_eq!(error.kind(), FaultKind::Unreachable, "{error}");
    // A repeated step might reach a new server, and another session with the same number.
    assert_eq!(client.counters().retries, 0);
    session.close().await.expect("nothing is left to close");
    let counters = client.counters();
    assert_eq!((counters.closed, counters.leaked), (1, 0));
}

/// A server restarted under the same address counts sessions from 0 again. A client that noticed
/// must neither act in nor close sessions that may now belong to another client.
#[tokio::test]
async fn sessions_from_before_a_restart_are_left_alone() {
    let start = async |port: u16| {
        let asked = agentgym_games::parse("builtin:worlds?depths=1-2&lines=4-5").expect("possible");
        let addr = std::net::SocketAddr::from(([127, 0, 0, 1], port));
        (asked.source.serve(addr, asked.options, |_, _| {}))
            .await
            .expect("started")
    };
    let server = start(0).await;
    let url = server.url.clone();
    let port = url.rsplit(':').next().and_then(|p| p.parse().ok());
    let port = port.expect("a URL with a port");
    let client = client(&url, quick());
    let (mut one, mut two) = (
        client.open(0).await.expect("opened"),
        client.open(1).await.expect("opened"),
    );
    server.stop().await;
    one.step("Action: inventory").await.expect_err("stopped");
    let server = start(port).await;
    let other = EnvClient::new(client.spec(), &[url], quick()).expect("a valid address");
    let mut stranger = other.open(5).await.expect("the new server's session 0");
    let error = two.step("Action: inventory").await.expect_err("lost");
    assert_eq!(error.kind(), FaultKind::Dropped, "{error}");
    assert_eq!(error.verdict(), Verdict::Retry);
    one.close().await.expect("let go");
    drop(two);
    client.drain().await;
    assert_eq!(server.sessions(), 1, "the stranger's session was closed");
    stranger.step("Action: inventory").await.expect("its own");
    client
        .open(2)
        .await
        .expect("a new session")
        .close()
        .await
        .expect("closed");
}

/// Replies that cannot be true are faults: a reply for another session, an end without a solution,
/// a solution without an end.
#[tokio::test]
async fn a_server_that_contradicts_itself_is_not_believed() {
    for body in [
        r#"{"id": 8, "observation": "o", "reward": 0, "done": false}"#,
        r#"{"observation": "o", "reward": 0, "done": true}"#,
        r#"{"observation": "o", "reward": 1, "done": false}"#,
    ] {
        let server = fake("/step", vec![Answer::Reply(200, body.to_owned())]).await;
        let error = error_of(&client(&server.url, quick())).await;
        assert_eq!(error.kind(), FaultKind::Protocol, "{body}: {error}");
    }
}

#[tokio::test]
async fn addresses_that_cannot_work_are_refused_at_once() {
    let spec = spec("textcraft").expect("known");
    for address in ["", "localhost:1", "ftp://a", "http://a?b", "builtin"] {
        let error = EnvClient::new(spec, &[address.to_owned()], quick()).err();
        let message = error.unwrap_or_else(|| panic!("{address:?}")).to_string();
        assert!(message.contains(&format!("{address:?}")), "{message}");
    }
    assert!(EnvClient::new(spec, &[], quick()).is_err());
}

#[tokio::test]
async fn a_connection_outlives_a_pause_of_five_seconds() {
    let server = agentgym_games::start("builtin:worlds")
        .await
        .expect("started");
    // A gate in front of the server closes connections after 5 s without a byte, as the original
    // server does.
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let gate = format!("http://{}", listener.local_addr().expect("bound"));
    let target = server.url.trim_start_matches("http://").to_owned();
    tokio::spawn(async move {
        while let Ok((mut from, _)) = listener.accept().await {
            let target = target.clone();
            tokio::spawn(async move {
                let mut to = TcpStream::connect(target).await.expect("the server");
                let (mut up, mut down) = ([0; 4096], [0; 4096]);
                loop {
                    let quiet = tokio::time::sleep(Duration::from_secs(5));
                    tokio::select! {
                        read = from.read(&mut up) => match read {
                            Ok(n) if n > 0 => to.write_all(&up[..n]).await.expect("sent"),
                            _ => return,
                        },
                        read = to.read(&mut down) => match read {
                            Ok(n) if n > 0 => from.write_all(&down[..n]).await.expect("sent"),
                            _ => return,
                        },
                        () = quiet => return,
                    }
                }
            });
        }
    });
    let client = client(&gate, quick());
    let mut session = client.open(1).await.expect("opened");
    for pause_ms in [4950, 5500] {
        tokio::time::sleep(Duration::from_millis(pause_ms)).await;
        let reply = session
            .step("Action: inventory")
            .await
            .expect("a step after a pause");
        assert!(!reply.done);
    }
    assert_eq!(client.counters().retries, 0);
    session.close().await.expect("closed");
    server.stop().await;
}

#[tokio::test]
async fn sessions_are_closed_when_dropped_and_when_their_opening_fails() {
    let server = agentgym_games::start("builtin").await.expect("started");
    let client = client(&server.url, quick());
    let sessions = open_many(&client, 5).await;
    assert_eq!((server.sessions(), client.counters().open()), (5, 5));
    drop(sessions);
    client.drain().await;
    assert_eq!(server.sessions(), 0);
    let counters = client.counters();
    assert_eq!(
        (counters.opened, counters.closed, counters.leaked),
        (5, 5, 0)
    );
}

async fn open_many(client: &EnvClient, count: i64) -> Vec<Session> {
    let mut sessions = Vec::new();
    for id in 0..count {
        sessions.push(client.open(id).await.expect("opened"));
    }
    sessions
}

#[tokio::test]
async fn texts_with_several_actions_are_not_sent() {
    let server = agentgym_games::start("builtin").await.expect("started");
    let client = client(&server.url, quick());
    let mut session = client.open(0).await.expect("opened");
    let calls = client.counters().calls;
    let reply = session
        .step("Action: a\nAction: b")
        .await
        .expect("a local reply");
    assert!(reply.local && !reply.done && reply.reward == 0.0 && reply.action.is_none());
    assert!(reply.observation.starts_with("Error: Only one 'Action'"));
    assert_eq!(
        (client.counters().calls, client.counters().local_replies),
        (calls, 1)
    );
    let reply = session.step("Action: inventory!").await.expect("a reply");
    assert_eq!(
        reply.observation,
        "Inventory: You are not carrying anything."
    );
    assert!(reply.parsed.normalised);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_episodes_run_at_once_and_are_solved() {
    let server = agentgym_games::start("builtin:worlds?depths=1-3")
        .await
        .expect("started");
    let client = client(
        &server.url,
        ClientOptions {
            call_timeout_s: 30.0,
            ..quick()
        },
    );
    let tasks = Arc::new(Tasks::Worlds(Worlds::default()));
    let episodes: Vec<_> = (0..64)
        .map(|id| {
            let (client, tasks) = (client.clone(), Arc::clone(&tasks));
            tokio::spawn(async move {
                let world = tasks.world(id);
                let mut session = client.open(id).await.expect("opened");
                assert_eq!(session.observation(), world.observation());
                let actions = solve(&world.book, world.goal).expect("solvable");
                for (at, action) in actions.iter().enumerate() {
                    let reply = session
                        .step(&format!("Action: {action}"))
                        .await
                        .expect("a reply");
                    let last = at + 1 == actions.len();
                    assert_eq!(
                        (reply.done, reply.success, reply.reward),
                        (last, last, f64::from(u8::from(last)))
                    );
                }
                let error = session
                    .step("Action: inventory")
                    .await
                    .expect_err("it is over");
                assert_eq!(error.kind(), FaultKind::Finished);
                session.close().await.expect("closed");
            })
        })
        .collect();
    for episode in episodes {
        episode.await.expect("an episode");
    }
    assert_eq!(server.sessions(), 0);
    let counters = client.counters();
    assert_eq!((counters.opened, counters.closed), (64, 64));
    assert!(counters.call_time_s > 0.0 && counters.retries == 0);
}

/// Both servers are used; when one dies, its share goes to the other immediately.
#[tokio::test]
async fn sessions_go_to_the_least_loaded_server_that_answers() {
    let first = agentgym_games::start("builtin").await.expect("started");
    let second = agentgym_games::start("builtin").await.expect("started");
    let urls = [first.url.clone(), second.url.clone()];
    let spec = spec("textcraft").expect("known");
    let options = ClientOptions {
        avoid_s: 60.0,
        call_timeout_s: 30.0,
        ..quick()
    };
    let client = EnvClient::new(spec, &urls, options).expect("valid addresses");
    let mut sessions = open_many(&client, 6).await;
    assert_eq!((first.sessions(), second.sessions()), (3, 3));
    for session in sessions.drain(..3) {
        session.close().await.expect("closed");
    }
    sessions.extend(open_many(&client, 3).await);
    assert_eq!((first.sessions(), second.sessions()), (3, 3));
    second.stop().await;
    let more = open_many(&client, 4).await;
    assert_eq!(first.sessions(), 7);
    // One attempt at the dead server, without a pause; after that it is avoided.
    assert_eq!(client.counters().retries, 1);
    drop((sessions, more));
    client.drain().await;
    assert_eq!(first.sessions(), 0);
    // The sessions of the other server ended with it.
    assert_eq!(client.counters().leaked, 0);
}

/// A specification like ScienceWorld's, with a server that counts sessions.
#[tokio::test]
async fn dear_sessions_are_kept_for_the_next_episode() {
    let server = agentgym_games::start("builtin").await.expect("started");
    let dear = EnvSpec {
        reuse: true,
        ..spec("textcraft").expect("known").clone()
    };
    let dear: &'static EnvSpec = Box::leak(Box::new(dear));
    let client =
        EnvClient::new(dear, std::slice::from_ref(&server.url), quick()).expect("a valid address");
    for item in 0..5 {
        let mut session = client.open(item).await.expect("opened");
        session.step("Action: inventory").await.expect("a reply");
        match item % 2 {
            0 => session.close().await.expect("kept"),
            _ => drop(session),
        }
    }
    let counters = client.counters();
    assert_eq!((counters.opened, counters.reused), (1, 4));
    assert_eq!(server.sessions(), 1);
    client.drain().await;
    assert_eq!(server.sessions(), 0);
    // The same if `drain` is not called.
    client
        .open(1)
        .await
        .expect("opened")
        .close()
        .await
        .expect("kept");
    assert_eq!(server.sessions(), 1);
    drop(client);
    for _ in 0..100 {
        if server.sessions() == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("a kept session was left on the server");
}

/// A restarted server does not know the kept session.
#[tokio::test]
async fn a_lost_session_is_replaced() {
    let reset = [
        Answer::Reply(200, CREATED.to_owned()),
        Answer::Reply(200, r#"{"error": "The id 7 is not valid."}"#.to_owned()),
        Answer::Reply(200, CREATED.to_owned()),
    ];
    let server = fake("/reset", reset.to_vec()).await;
    let dear = EnvSpec {
        reuse: true,
        ..spec("textcraft").expect("known").clone()
    };
    let dear: &'static EnvSpec = Box::leak(Box::new(dear));
    let client =
        EnvClient::new(dear, std::slice::from_ref(&server.url), quick()).expect("a valid address");
    client
        .open(0)
        .await
        .expect("opened")
        .close()
        .await
        .expect("kept");
    client.open(1).await.expect("opened anew");
    let counters = client.counters();
    assert_eq!((counters.opened, counters.reused), (2, 0));
}

/// A server that opens ScienceWorld sessions with this handler; returns its URL.
async fn opening_by(create: axum::routing::MethodRouter) -> String {
    let reset =
        || async { axum::Json(serde_json::json!({"task_description": "t", "observation": "o"})) };
    let router = axum::Router::new()
        .route("/create", create)
        .route("/reset", axum::routing::post(reset));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    tokio::spawn(async move { axum::serve(listener, router).await });
    url
}

/// A server that takes 700 ms to open a session, and records how many were opening at once.
#[tokio::test]
async fn dear_sessions_are_opened_few_at_a_time_and_one_after_the_other() {
    let at_once = Arc::new((AtomicU32::new(0), AtomicU32::new(0)));
    let counted = Arc::clone(&at_once);
    let given = Arc::new(AtomicU32::new(0));
    let create = move || {
        let (counted, given) = (Arc::clone(&counted), Arc::clone(&given));
        async move {
            let now = counted.0.fetch_add(1, Ordering::SeqCst) + 1;
            counted.1.fetch_max(now, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(700)).await;
            counted.0.fetch_sub(1, Ordering::SeqCst);
            axum::Json(serde_json::json!({"id": given.fetch_add(1, Ordering::SeqCst)}))
        }
    };
    let url = opening_by(axum::routing::post(create)).await;
    let options = ClientOptions {
        call_timeout_s: 30.0,
        ..quick()
    };
    let spec = spec("sciworld").expect("known");
    let client = EnvClient::new(spec, &[url], options).expect("a valid address");
    let started = Instant::now();
    let opening = (0..6).map(|item| {
        let client = client.clone();
        tokio::spawn(async move {
            client
                .open(item)
                .await
                .map(|session| session.observation().to_owned())
        })
    });
    let opening: Vec<_> = opening.collect();
    for opened in opening {
        let text = opened.await.expect("no panic").expect("opened");
        assert_eq!(text, "t\no");
    }
    assert_eq!(
        at_once.1.load(Ordering::SeqCst),
        2,
        "all that the specification allows"
    );
    // Some episodes ended before others began and left their session; the others waited.
    let counters = client.counters();
    assert_eq!(counters.opened + counters.reused, 6);
    let pairs = counters.opened.div_ceil(2) as u32;
    assert!(started.elapsed() >= Duration::from_millis(700) * pairs.saturating_sub(1));
}

#[tokio::test]
async fn a_session_whose_id_went_to_another_one_is_given_up() {
    let step = r#"{"observation": "o", "done": false, "reward": 0}"#;
    let server = fake("/step", vec![Answer::Reply(200, step.to_owned())]).await;
    let client = client(&server.url, quick());
    let mut first = client.open(0).await.expect("opened");
    first.step("Action: inventory").await.expect("a reply");
    let mut second = client.open(1).await.expect("opened under the same id");
    let error = first
        .step("Action: inventory")
        .await
        .expect_err("another's");
    assert_eq!(
        (error.kind(), error.verdict()),
        (FaultKind::SharedSession, Verdict::Retry)
    );
    let text = error.to_string();
    assert!(
        text.contains(&server.url) && text.contains("session 7"),
        "{text}"
    );
    assert_eq!(client.counters().faults(FaultKind::SharedSession), 1);
    assert_eq!(
        server.requests.load(Ordering::SeqCst),
        1,
        "the step was not sent"
    );
    // The other session's game is not closed either.
    drop(first);
    client.drain().await;
    second.step("Action: inventory").await.expect("a reply");
    second.close().await.expect("closed");
    // A released id can be used again.
    for _ in 0..3 {
        let mut session = client.open(2).await.expect("opened");
        session.step("Action: inventory").await.expect("a reply");
        session.close().await.expect("closed");
    }
    assert_eq!((client.counters().open(), client.counters().opened), (0, 5));
}

#[tokio::test]
async fn a_reward_that_no_training_can_compute_with_is_no_reward() {
    for (reward, fits) in [
        ("1e308", false),
        ("-1e308", false),
        ("3.5e38", false),
        ("-3.4e38", true),
        ("1e-60", true),
    ] {
        let body = format!(r#"{{"observation": "o", "done": false, "reward": {reward}}}"#);
        let server = fake("/step", vec![Answer::Reply(200, body)]).await;
        let mut session = client(&server.url, quick()).open(0).await.expect("opened");
        match session.step("Action: inventory").await {
            Ok(step) => assert!(fits && (step.reward as f32).is_finite(), "{reward}"),
            Err(error) => {
                assert!(
                    !fits && error.to_string().contains("beyond all bounds"),
                    "{error}"
                );
                assert_eq!(error.kind(), FaultKind::Protocol);
            }
        }
    }
}

#[tokio::test]
async fn only_so_many_sessions_are_open_at_a_server() {
    let server = agentgym_games::start("builtin").await.expect("started");
    let options = ClientOptions {
        sessions_max: Some(2),
        ..ClientOptions::default()
    };
    let client = client(&server.url, options);
    let first = client.open(0).await.expect("opened");
    let mut second = client.open(1).await.expect("opened");
    let third = tokio::spawn({
        let client = client.clone();
        async move { client.open(2).await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!third.is_finished() && client.counters().open() == 2);
    drop(first);
    let third = third.await.expect("no panic").expect("opened");
    // An episode that replaces its own session does not wait for itself.
    second.let_go();
    let error = second.step("Action: inventory").await.expect_err("let go");
    assert!(error.to_string().contains("let go"), "{error}");
    let fresh = client.open(1).await.expect("opened");
    for session in [third, fresh] {
        session.close().await.expect("closed");
    }
    client.drain().await;
    assert_eq!((client.counters().open(), client.counters().opened), (0, 4));
    server.stop().await;
}

/// Idle sessions count as open, too.
#[tokio::test]
async fn kept_sessions_are_taken_before_new_ones_are_opened() {
    let most = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&most);
    let create = move || {
        let id = counted.fetch_add(1, Ordering::SeqCst);
        async move { axum::Json(serde_json::json!({"id": id})) }
    };
    let url = opening_by(axum::routing::post(create)).await;
    let options = ClientOptions {
        sessions_max: Some(2),
        ..ClientOptions::default()
    };
    let client = EnvClient::new(spec("sciworld").expect("known"), &[url], options).expect("valid");
    let opening: Vec<_> = (0..8)
        .map(|item| {
            let client = client.clone();
            tokio::spawn(async move {
                let session = client.open(item).await?;
                tokio::time::sleep(Duration::from_millis(20)).await;
                session.close().await
            })
        })
        .collect();
    for played in opening {
        played.await.expect("no panic").expect("played");
    }
    assert_eq!(most.load(Ordering::SeqCst), 2);
    assert_eq!((client.counters().opened, client.counters().reused), (2, 6));
}

/// Where the key is on, a reply that names one action on offer is that action; else nothing is.
#[tokio::test]
async fn a_reply_in_other_words_is_an_action_on_offer() {
    for (env, text, action) in [
        ("babyai", "I will Turn Left now.", "turn left"),
        ("maze", "Let us MOVE UP!", "move up"),
    ] {
        let asked = agentgym_games::parse(&format!("builtin:{env}")).unwrap();
        let addr = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
        let serving = asked.source.serve(addr, asked.options, |_, _| {});
        let server = serving.await.unwrap();
        for lenient_actions in [true, false] {
            let options = ClientOptions {
                lenient_actions,
                ..quick()
            };
            let client = EnvClient::new(
                spec(env).unwrap(),
                std::slice::from_ref(&server.url),
                options,
            )
            .unwrap();
            let mut session = client.open(2).await.unwrap();
            let step = session.step(text).await.unwrap();
            let read = step.action.as_deref() == Some(action) && step.parsed.normalised;
            assert_eq!(read, lenient_actions, "{env}: {step:?}");
            session.close().await.unwrap();
        }
    }
}
