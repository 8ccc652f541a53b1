//! The viewer's server as a browser meets it, over runs of every pipeline that an older program
//! left: what it answers, whom it answers, and what it says where something is wrong. And `credit`
//! over the same runs. What the pages do with the answers is tested in `tests/browser`.

use crate::old_runs::OldRuns;
use agentgym_tests::files::files_below;
use agentgym_tests::program::{finish, program};
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

const COMMIT: &str = "93d9dea";

/// A viewer, ended when dropped.
struct Viewer {
    child: Child,
    port: u16,
    token: String,
}

impl Drop for Viewer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Status, headers and body of a response.
struct Response {
    status: u16,
    head: String,
    body: String,
}

impl Response {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }

    fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        let mut found = lines.filter(|(key, _)| key.eq_ignore_ascii_case(name));
        found.next().map(|(_, value)| value)
    }
}

fn submit(runs: &OldRuns, words: &[&str]) -> Output {
    let mut command = program("agentgym-submit");
    command
        .args(words)
        .args(["--store", "store"])
        .current_dir(runs.path(""))
        .env("AGENTGYM_CACHE", runs.path("cache"));
    finish(command)
}

impl Viewer {
    fn open(runs: &OldRuns) -> Self {
        Self::of(runs, "store")
    }

    fn of(runs: &OldRuns, store: &str) -> Self {
        let mut command = program("agentgym-submit");
        command
            .args(["view", "--port", "0", "--json", "--store", store])
            .current_dir(runs.path(""))
            .env("AGENTGYM_CACHE", runs.path("cache"))
            .env("AWS_ACCESS_KEY_ID", "somebody")
            .env("AWS_SECRET_ACCESS_KEY", "not-for-any-log-5")
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        let out = child.stdout.take().unwrap();
        BufReader::new(out).read_line(&mut line).unwrap();
        let said: Value = serde_json::from_str(&line).unwrap();
        let url = said["url"].as_str().unwrap();
        let (address, token) = url.split_once("/?token=").unwrap();
        let port = address.rsplit_once(':').unwrap().1.parse().unwrap();
        assert!(address.starts_with("http://127.0.0.1:"), "{address}");
        Self {
            child,
            port,
            token: token.to_owned(),
        }
    }

    fn request(&self, line: &str, headers: &[(&str, &str)]) -> Response {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let mut text = format!("{line} HTTP/1.1\r\nConnection: close\r\n");
        if !headers.iter().any(|(name, _)| *name == "Host") {
            text += &format!("Host: 127.0.0.1:{}\r\n", self.port);
        }
        for (name, value) in headers {
            text += &format!("{name}: {value}\r\n");
        }
        stream.write_all((text + "\r\n").as_bytes()).unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        let all = String::from_utf8(all).unwrap();
        let (head, body) = all.split_once("\r\n\r\n").unwrap();
        Response {
            status: head.split(' ').nth(1).unwrap().parse().unwrap(),
            head: head.to_owned(),
            body: body.to_owned(),
        }
    }

    /// A question with the token.
    fn ask(&self, question: &str) -> Response {
        let bearer = format!("Bearer {}", self.token);
        let line = format!("GET /api/v1/{question}");
        self.request(&line, &[("Authorization", &bearer)])
    }

    fn answer(&self, question: &str) -> Value {
        let response = self.ask(question);
        assert_eq!(response.status, 200, "{question}: {}", response.body);
        let answer = response.json();
        assert_eq!(answer["version"], 1, "{question}");
        answer
    }
}

/// The names of an object's fields.
fn fields(value: &Value) -> Vec<&str> {
    let object = value.as_object().unwrap_or_else(|| panic!("{value}"));
    object.keys().map(String::as_str).collect()
}

#[test]
fn every_run_answers_every_question() {
    let runs = OldRuns::of(COMMIT);
    let viewer = Viewer::open(&runs);
    let all = viewer.answer("runs");
    let names: Vec<&str> = (all["runs"].as_array().unwrap().iter())
        .map(|run| run["run"].as_str().unwrap())
        .collect();
    assert_eq!(names.len(), 13, "{names:?}");
    for run in names {
        let of = |what: &str| viewer.answer(&format!("runs/{run}{what}"));
        assert_eq!(of("")["run"], run);
        let series = of("/series");
        assert!(series["iterations"].is_array() && series["evaluations"].is_array());
        assert!(of("/tasks")["tasks"].is_array());
        let ledger = of("/ledger");
        let useful = ledger["total"]["useful_s"].as_f64().unwrap();
        let by_stage = ledger["stages"].as_array().unwrap().iter();
        let sum: f64 = by_stage.map(|s| s["useful_s"].as_f64().unwrap()).sum();
        assert!((useful - sum).abs() < 0.1, "{run}: {useful} {sum}");
        let bars = of("/attempts");
        let columns = bars["columns"].as_array().unwrap().len();
        for bar in bars["bars"].as_array().unwrap() {
            assert_eq!(bar.as_array().unwrap().len(), columns);
        }
        // Every row leads to its episode, and the episode has the row's figures.
        let listed = of("/episodes?limit=10000");
        let rows = listed["rows"].as_array().unwrap();
        assert_eq!(rows.len() as u64, listed["total"].as_u64().unwrap());
        for row in rows.iter().step_by(5) {
            let part = row["part"].as_str().unwrap();
            let place = format!("/parts/{part}/episodes/{}", row["k"]);
            let episode = of(&place);
            for field in [
                "task",
                "group",
                "sample",
                "reward",
                "outcome",
                "slot",
                "advantage",
            ] {
                assert_eq!(episode[field], row[field], "{run} {place} {field}");
            }
            for sequence in episode["sequences"].as_array().unwrap() {
                let tokens = sequence["ids"].as_array().unwrap().len();
                for (name, stream) in sequence.as_object().unwrap() {
                    let length = stream.as_array().map(Vec::len);
                    assert!(length.is_none_or(|n| n == tokens), "{run} {place} {name}");
                }
            }
            assert!(of(&format!("/parts/{part}"))["manifest"].is_object());
            // The built-in game of these runs, played again, answers as it did for an older program.
            let drawn = of(&format!("{place}/scenes"));
            let turns = episode["turns"].as_array().unwrap().len();
            let scenes = drawn["scenes"]["turns"].as_array();
            assert_eq!(scenes.map(Vec::len), Some(turns), "{run} {place}: {drawn}");
            assert_eq!(drawn["why"], Value::Null, "{run} {place}");
        }
    }
    // Fields may be added; a page or a script that reads one of these finds it.
    let row = &viewer.answer("runs/grpo/episodes?limit=1")["rows"][0];
    assert_eq!(
        fields(row).join(" "),
        "part iteration stage task greedy k env item group sample outcome success reward turns length invalid \
         normalised cut repeats surprise loops worker slot advantage mismatch place places"
    );
    let episode = viewer.answer("runs/grpo/parts/1/rollout/0/episodes/0");
    assert_eq!(
        fields(&episode).join(" "),
        "run part k episodes iteration stage task env item group sample outcome success reward fault \
         prompt tools slot advantage greedy worker attempt turns available summaries judgement agent sequences siblings \
         version"
    );
}

/// Groups, a critic's values, an adapter, a filter; the other kinds are in the worker's tests.
#[test]
fn credit_is_computed_anew_and_equals_what_was_recorded() {
    let runs = OldRuns::of(COMMIT);
    let viewer = Viewer::open(&runs);
    for run in ["finished", "grpo", "critic", "lora"] {
        let output = submit(&runs, &["credit", run, "1"]);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("= batch.bin, bit for bit"), "{run}: {text}");
        let listed = viewer.answer(&format!("runs/{run}/episodes?iteration=1&limit=100"));
        let rows = listed["rows"].as_array().unwrap();
        let trained = rows.iter().find(|row| row["slot"].is_number()).unwrap();
        let part = trained["part"].as_str().unwrap();
        let question = format!("runs/{run}/parts/{part}/episodes/{}/credit", trained["k"]);
        let credit = viewer.answer(&question);
        assert_eq!(credit["batch"], json!({"compared": "equal"}), "{run}");
        assert_eq!(credit["advantage"], trained["advantage"], "{run}");
        let place = format!("{}/{}", trained["group"], trained["sample"]);
        let words = ["credit", run, "1", "--episode", &place, "--json"];
        let said: Value = serde_json::from_slice(&submit(&runs, &words).stdout).unwrap();
        assert_eq!(said["explanation"], credit["explanation"], "{run}");
    }
    let text = String::from_utf8(submit(&runs, &["credit", "evolved", "1"]).stdout).unwrap();
    assert!(
        text.contains("kept: its advantage is 1") && text.contains("left for"),
        "{text}"
    );
    let refused = submit(&runs, &["credit", "sft", "0"]);
    assert_eq!(refused.status.code(), Some(4));
}

/// What the update did: the steps, the tokens with their places, and the batch scored again.
#[test]
fn an_update_is_shown_and_its_policy_scores_its_batch() {
    let runs = OldRuns::of(COMMIT);
    let viewer = Viewer::open(&runs);
    let update = viewer.answer("runs/grpo/update/1");
    let token = &update["tokens"][0];
    let place = format!(
        "parts/{}/episodes/{}",
        token["part"].as_str().unwrap(),
        token["k"]
    );
    let episode = viewer.answer(&format!("runs/grpo/{place}"));
    let at = (
        token["sequence"].as_u64().unwrap(),
        token["token"].as_u64().unwrap(),
    );
    let sequence = &episode["sequences"][at.0 as usize];
    assert_eq!(sequence["ids"][at.1 as usize], token["id"]);
    assert_eq!(sequence["advantages"][at.1 as usize], token["advantage"]);
    // The sampler's own log-probs are used: no ratio to show.
    assert_eq!(update["sampler"], Value::Null);

    let scored = viewer.answer("runs/grpo/update/1/ratios");
    let histogram = &scored["histogram"];
    let counts = histogram["counts"].as_array().unwrap().iter();
    let all: u64 = counts.map(|c| c.as_u64().unwrap()).sum();
    assert_eq!(Some(all), histogram["tokens"].as_u64());
    assert!(
        histogram["largest"].as_f64().unwrap() > 0.0,
        "an update moves something"
    );
    // The policy that the episodes were sampled with gives them the log-probs that it gave them.
    let before = viewer.answer(&format!("runs/grpo/{place}/rescored/0"));
    let sampled = sequence["sampled"].as_array().unwrap();
    for (t, wanted) in sampled.iter().enumerate() {
        if sequence["mask"][t] == 1 {
            let found = before["log_probs"][at.0 as usize][t].as_f64().unwrap();
            assert!((found - wanted.as_f64().unwrap()).abs() < 1e-5, "token {t}");
        }
    }
    let refused = viewer.ask(&format!("runs/grpo/{place}/rescored/99"));
    assert_eq!(refused.status, 404, "{}", refused.body);
}

#[test]
fn a_run_that_vanishes_is_said_to_be_gone_and_found_again_when_it_is_back() {
    let runs = OldRuns::of(COMMIT);
    let viewer = Viewer::open(&runs);
    assert!(viewer.answer("runs/finished")["status"]["finished"] == true);
    let (there, away) = (runs.path("store/runs/finished"), runs.path("finished-away"));
    std::fs::rename(&there, &away).unwrap();
    // A listing is good for a moment.
    std::thread::sleep(Duration::from_millis(1100));
    for question in [
        "runs/finished",
        "runs/finished/episodes",
        "runs/finished/series",
    ] {
        let gone = viewer.ask(question);
        assert_eq!(gone.status, 404, "{question}: {}", gone.body);
        let said = gone.json()["error"]["message"].to_string();
        assert!(
            said.contains("finished") && said.contains("holds baselines"),
            "{said}"
        );
    }
    assert_eq!(viewer.ask("runs/grpo").status, 200);
    std::fs::rename(&away, &there).unwrap();
    assert_eq!(viewer.ask("runs/finished").status, 200);
}

#[test]
fn one_stream_of_news_too_many_is_refused_and_a_place_that_is_left_is_free() {
    let runs = OldRuns::of(COMMIT);
    let viewer = Viewer::open(&runs);
    let head = format!(
        "GET /api/v1/events HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nAuthorization: Bearer {}\r\n\r\n",
        viewer.port, viewer.token
    );
    let listen = || {
        let mut stream = TcpStream::connect(("127.0.0.1", viewer.port)).unwrap();
        stream.write_all(head.as_bytes()).unwrap();
        let mut line = String::new();
        let mut reader = BufReader::new(stream);
        reader.read_line(&mut line).unwrap();
        (reader, line)
    };
    let mut open: Vec<_> = (0..32).map(|_| listen()).collect();
    assert!(open.iter().all(|(_, line)| line.contains("200")));
    let refused = viewer.ask("events");
    assert_eq!(refused.status, 503, "{}", refused.body);
    let error = &refused.json()["error"];
    assert_eq!(error["kind"], "too_many");
    assert!(
        error["message"].as_str().unwrap().contains("close some"),
        "{error}"
    );
    // Questions are still answered.
    assert_eq!(viewer.ask("runs").status, 200);
    open.clear();
    let begun = Instant::now();
    while !listen().1.contains("200") {
        assert!(
            begun.elapsed() < Duration::from_secs(20),
            "no place became free"
        );
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A server that refuses everybody everything.
#[test]
fn a_store_without_rights_is_said_to_refuse_and_no_key_is_told() {
    let runs = OldRuns::of(COMMIT);
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let store = format!(
        "s3://bucket/a?endpoint=http://{}",
        server.local_addr().unwrap()
    );
    std::thread::spawn(move || {
        for stream in server.incoming().flatten() {
            std::thread::spawn(move || {
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let mut line = String::new();
                while reader.read_line(&mut line).is_ok_and(|n| n > 2) {
                    line.clear();
                }
                let body = "<Error><Code>AccessDenied</Code><Message>no</Message></Error>";
                let answer = format!(
                    "HTTP/1.1 403 Forbidden\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
                    body.len()
                );
                let mut stream = stream;
                let _ = stream.write_all(answer.as_bytes());
            });
        }
    });
    let viewer = Viewer::of(&runs, &store);
    for question in ["runs", "runs/r", "runs/r/episodes"] {
        let refused = viewer.ask(question);
        assert_eq!(refused.status, 502, "{question}: {}", refused.body);
        let error = &refused.json()["error"];
        assert_eq!(error["kind"], "unavailable");
        let said = error["message"].as_str().unwrap();
        assert!(
            said.contains("403") || said.contains("AccessDenied"),
            "{said}"
        );
        assert!(!said.contains("not-for-any-log-5"), "{said}");
    }
}

#[test]
fn only_who_has_the_token_is_answered_and_only_under_its_own_name() {
    let runs = OldRuns::of(COMMIT);
    let viewer = Viewer::open(&runs);
    let bearer = format!("Bearer {}", viewer.token);
    let token = ("Authorization", bearer.as_str());
    assert_eq!(viewer.request("GET /api/v1/runs", &[token]).status, 200);
    assert_eq!(viewer.request("GET /api/v1/runs", &[]).status, 401);
    assert_eq!(viewer.request("GET /main.js", &[]).status, 401);
    for (headers, status) in [
        (vec![token, ("Host", "evil.example")], 421),
        (vec![token, ("Origin", "http://evil.example")], 403),
        (vec![("Authorization", "Bearer 00")], 401),
    ] {
        let refused = viewer.request("GET /api/v1/runs", &headers);
        assert_eq!(refused.status, status, "{headers:?}");
        assert!(!refused.body.contains("grpo"));
    }
    for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"] {
        let refused = viewer.request(&format!("{method} /api/v1/runs"), &[token]);
        assert_eq!(refused.status, 405, "{method}");
    }
    let entered = viewer.request(&format!("GET /?token={}", viewer.token), &[]);
    assert_eq!(entered.status, 303);
    let cookie = entered.header("set-cookie").unwrap();
    assert!(cookie.contains("HttpOnly; SameSite=Strict"), "{cookie}");
    let pair = cookie.split(';').next().unwrap();
    let page = viewer.request("GET /", &[("Cookie", pair)]);
    assert_eq!(page.status, 200);
    assert_eq!(
        page.header("content-security-policy").unwrap(),
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    let again = page.header("etag").unwrap();
    let known = viewer.request("GET /", &[("Cookie", pair), ("If-None-Match", again)]);
    assert_eq!((known.status, known.body.as_str()), (304, ""));
}

#[test]
fn what_cannot_be_answered_is_said_in_one_line() {
    let runs = OldRuns::of(COMMIT);
    // One byte of an artifact, and one file gone.
    let damaged = |run: &str| {
        let folder = runs.path(&format!("store/runs/{run}/files"));
        let mut files = files_below(&folder).into_iter();
        files.find(|f| f.ends_with("episodes.bin") && f.to_string_lossy().contains("rollout"))
    };
    let file = damaged("grpo").unwrap();
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&file, &bytes).unwrap();
    std::fs::remove_file(damaged("critic").unwrap()).unwrap();
    let viewer = Viewer::open(&runs);
    for (question, status, kind, said) in [
        ("runs/nobody", 404, "not_found", "holds baselines, critic"),
        (
            "runs/..%2f..%2fetc%2fpasswd",
            400,
            "bad_question",
            "is no name",
        ),
        ("runs/%2e%2e", 400, "bad_question", "is no name"),
        (
            "runs/grpo/parts/1/rollout/99",
            404,
            "not_found",
            "not committed yet",
        ),
        ("runs/grpo/parts/1/nonsense/0", 404, "not_found", "nonsense"),
        (
            "runs/finished/parts/1/rollout/0/episodes/999",
            404,
            "not_found",
            "has episodes 0 to",
        ),
        (
            "runs/finished/parts/1/update/0/episodes/0",
            404,
            "not_found",
            "holds no episodes",
        ),
        (
            "runs/grpo/parts/1/rollout/0/episodes/0",
            500,
            "damaged",
            "episodes.bin",
        ),
        (
            "runs/critic/parts/1/rollout/0/episodes/0",
            500,
            "damaged",
            "episodes.bin",
        ),
        (
            "runs/finished/episodes?sort=luck",
            400,
            "bad_question",
            "one of reward",
        ),
        ("compare?a=finished&b=nobody", 404, "not_found", "nobody"),
        (
            "runs/finished/parts/1/rollout/0/episodes/999/scenes",
            404,
            "not_found",
            "has episodes 0 to",
        ),
        ("runs/finished/update/999", 404, "not_found", "not 999"),
        (
            "runs/finished/parts/1/rollout/0/episodes/0/rescored/x",
            400,
            "bad_question",
            "whole number",
        ),
        ("events?run=..", 400, "bad_question", "is no name"),
    ] {
        let refused = viewer.ask(question);
        assert_eq!(refused.status, status, "{question}: {}", refused.body);
        let error = &refused.json()["error"];
        assert_eq!(error["kind"], kind, "{question}: {error}");
        assert!(
            error["message"].as_str().unwrap().contains(said),
            "{question}: {error}"
        );
    }
    // What is damaged does not hide the rest of a list.
    let listed = viewer.answer("runs/grpo/episodes?limit=1000");
    let said = listed["unreadable"].as_array().unwrap();
    assert!(
        said.len() == 1 && said[0].as_str().unwrap().contains("episodes.bin"),
        "{said:?}"
    );
    assert!(listed["total"].as_u64().unwrap() > 0);
    // The other runs are still there.
    assert!(viewer.answer("runs/finished/series")["iterations"].is_array());
    // A port that is taken.
    let port = viewer.port.to_string();
    let taken = submit(&runs, &["view", "--port", &port, "--no-open"]);
    let said = String::from_utf8(taken.stderr).unwrap();
    assert_eq!(taken.status.code(), Some(2), "{said}");
    assert!(
        said.contains("is in use") && said.contains("--port 0"),
        "{said}"
    );
    let nothing = submit(&runs, &["view", "nobody", "--port", "0", "--no-open"]);
    assert_eq!(nothing.status.code(), Some(4));
}
