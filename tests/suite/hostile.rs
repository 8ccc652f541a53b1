//! Malicious input from outside: texts with terminal control sequences, and secrets that a user
//! typed into an address. Both are passed through the programs as users run them.

use agentgym_tests::files::files_below;
use agentgym_tests::program::{finish, program};
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::process::Output;
use tempfile::TempDir;

/// Writes the clipboard, sets the title, erases the line, reverses the writing direction, and
/// contains a one-character control sequence.
const HOSTILE: &str =
    "\x1b]52;c;aGk=\x07\x1b]0;title\x1b\\done\r\x1b[2Kall is well\u{202e}gpj\u{9b}31m";
/// How [`HOSTILE`] must be displayed.
const SHOWN: &str = "␛]52;c;aGk=␇␛]0;title␛\\done␍␛[2Kall is well\\u202egpj\\u009b31m";
const SECRET: &str = "s3cr3t-w0rd";

const RUN: &str = "
actor_rollout_ref:
  model: {path: 'tiny?hidden=32&heads=2&kv_heads=1&layers=1&intermediate=64&vocab=400'}
  actor: {ppo_mini_batch_size: 1}
  rollout: {n: 2, max_tokens: 4, max_model_len: 2048, fault_retries: 0}
  agentgym: {task_name: textcraft, env_addr: 'URL', max_retries: 1}
data:
  train_batch_size: 2
  max_prompt_length: 1024
  max_response_length: 1024
  tasks: [{env: textcraft, ids: 0..4}]
algorithm: {rounds_ctrl: {rounds: 2}}
trainer: {total_training_steps: 1}
jobs: {threads: 1, backoff_s: 0.05, failures_max: 1}
run: {id: r}
";

struct Scene {
    dir: TempDir,
}

impl Scene {
    fn new(url: &str) -> Self {
        let dir = TempDir::new().unwrap();
        std::fs::write(dir.path().join("run.yaml"), RUN.replace("URL", url)).unwrap();
        Self { dir }
    }

    fn submit(&self, words: &[&str]) -> Output {
        self.program("agentgym-submit", words, &[])
    }

    fn program(&self, name: &str, words: &[&str], environment: &[(&str, &str)]) -> Output {
        let mut command = program(name);
        command
            .args(words)
            .current_dir(self.dir.path())
            .env("AGENTGYM_CACHE", self.dir.path().join("cache"))
            .env("AGENTGYM_LOG", "debug")
            .envs(environment.iter().copied());
        finish(command)
    }

    fn assert_written_nowhere(&self, secret: &str) {
        for file in files_below(self.dir.path()) {
            let bytes = std::fs::read(&file).unwrap();
            let found = bytes.windows(secret.len()).any(|w| w == secret.as_bytes());
            assert!(!found, "{} holds the secret", file.display());
        }
    }
}

/// The whole output of a program.
fn said(output: &Output) -> String {
    let both = [output.stdout.as_slice(), &output.stderr].concat();
    String::from_utf8(both).unwrap()
}

/// The program may colour its own log; no other control character may reach a terminal.
fn assert_harmless(what: &str, text: &str) {
    let obeyed = |c: char| {
        (c.is_control() && !matches!(c, '\n' | '\t')) || matches!(c, '\u{202a}'..='\u{202e}')
    };
    let mut rest = text;
    while let Some(at) = rest.find(obeyed) {
        let escape = rest[at..].strip_prefix("\x1b[").unwrap_or_else(|| {
            panic!(
                "{what}: {:?}",
                &rest[at..].chars().take(60).collect::<String>()
            )
        });
        let colour = escape.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';');
        rest = colour
            .strip_prefix('m')
            .unwrap_or_else(|| panic!("{what}: {escape:?}"));
    }
}

/// A TextCraft server whose steps and errors contain [`HOSTILE`].
fn serve(fails: bool) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let sessions = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let sessions = std::sync::Arc::clone(&sessions);
            std::thread::spawn(move || {
                let mut request = [0; 4096];
                let read = stream.read(&mut request).unwrap_or(0);
                let id = sessions.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                let mut reply =
                    serde_json::json!({"observation": HOSTILE, "reward": 0, "done": false});
                if request[..read].starts_with(b"POST /create") {
                    reply["id"] = id.into();
                }
                let (status, body) = match fails {
                    true => ("400 Bad Request", HOSTILE.to_owned()),
                    false => ("200 OK", reply.to_string()),
                };
                let length = body.len();
                let head = format!(
                    "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
                );
                let _ = stream.write_all((head + &body).as_bytes());
            });
        }
    });
    url
}

#[test]
fn a_terminal_obeys_nothing_that_an_environment_says() {
    let scene = Scene::new(&serve(false));
    let output = scene.submit(&["run.yaml", "--store", "store"]);
    assert!(output.status.success(), "{}", said(&output));
    assert_harmless("run", &said(&output));
    let mut seen = false;
    for words in [
        &["inspect", "r", "1", "rollout", "0"][..],
        &["inspect", "r", "1", "rollout", "0", "--tokens"],
        &["inspect", "r", "1", "rollout", "0", "--jsonl"],
        &["inspect", "r", "1", "rollout", "0", "--json"],
        &["inspect", "r", "1"],
        &["status", "r"],
        &["status"],
        &["why", "r"],
        &["metrics", "r"],
    ] {
        let output = scene.submit(&[words, &["--store", "store"]].concat());
        assert!(output.status.success(), "{words:?}: {}", said(&output));
        assert_harmless(&words.join(" "), &said(&output));
        seen |= said(&output).contains(SHOWN);
        if words.contains(&"--json") {
            // Readers of the JSON document get the same text.
            let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            assert!(holds(&document, HOSTILE), "{document}");
        }
    }
    assert!(seen, "no command showed the observation");
}

fn holds(document: &serde_json::Value, text: &str) -> bool {
    match document {
        serde_json::Value::String(found) => found.contains(text),
        serde_json::Value::Array(all) => all.iter().any(|one| holds(one, text)),
        serde_json::Value::Object(all) => all.values().any(|one| holds(one, text)),
        _ => false,
    }
}

#[test]
fn a_terminal_obeys_no_error_of_a_server() {
    let scene = Scene::new(&serve(true));
    for words in [
        &["run.yaml"][..],
        &["status", "r"],
        &["why", "r"],
        &["inspect", "r", "1"],
    ] {
        let output = scene.submit(&[words, &["--store", "store"]].concat());
        assert_harmless(&words.join(" "), &said(&output));
        if words == ["run.yaml"] {
            assert_eq!(output.status.code(), Some(5), "{}", said(&output));
            assert!(
                said(&output).contains("HTTP 400: ␛]52"),
                "{}",
                said(&output)
            );
        }
    }
    let url = serve(true);
    let words = ["doctor", &url, "--task", "textcraft"];
    let output = scene.program("agentgym-env", &words, &[]);
    assert_harmless("doctor", &said(&output));
    assert!(
        said(&output).contains("opening a session"),
        "{}",
        said(&output)
    );
}

#[test]
fn a_secret_in_an_address_is_refused_and_shown_nowhere() {
    let hidden = |address: &str| address.replace("SECRET", SECRET);
    let scene = Scene::new("builtin:worlds?depths=1-1");
    let key = "actor_rollout_ref.agentgym";
    for address in [
        "http://u:SECRET@127.0.0.1:9",
        "http://SECRET@127.0.0.1:9",
        "http://127.0.0.1:9,http://u:SECRET@127.0.0.1:9",
        "https://u:SE/SECRET@127.0.0.1:9",
        "http://127.0.0.1:9/?token=SECRET",
        "u:SECRET@127.0.0.1:9",
    ] {
        let one = format!("{key}.env_addr=\"{}\"", hidden(address));
        let other = format!(
            "{key}.envs={{b: {{task_name: babyai, env_addr: \"{}\"}}}}",
            hidden(address)
        );
        for given in [one, other] {
            for command in ["plan", "run"] {
                let output = scene.submit(&[command, "run.yaml", &given, "--store", "store"]);
                let said = said(&output);
                assert_eq!(output.status.code(), Some(2), "{command} {given}: {said}");
                assert!(
                    !said.contains(SECRET) && said.contains("env_addr"),
                    "{command}: {said}"
                );
                assert!(
                    said.contains("127.0.0.1") && said.contains("proxy"),
                    "{said}"
                );
            }
        }
    }
    for store in [
        "s3://u:SECRET@bucket/p",
        "s3://bucket/p?endpoint=http://u:SECRET@127.0.0.1:9",
        "s3://bucket/p?endpoint=http%3A%2F%2Fu%3ASECRET%40127.0.0.1%3A9",
        "s3:///p?endpoint=http://u:SECRET@127.0.0.1:9",
    ] {
        for words in [
            &["plan", "run.yaml"][..],
            &["run.yaml"],
            &["status"],
            &["why", "r"],
        ] {
            let output = scene.submit(&[words, &["--store", &hidden(store)]].concat());
            assert!(
                !said(&output).contains(SECRET),
                "{store}: {}",
                said(&output)
            );
        }
        let output = scene.program("agentgym-worker", &["--store", &hidden(store)], &[]);
        assert!(
            !said(&output).contains(SECRET),
            "{store}: {}",
            said(&output)
        );
    }
    let finished = scene.submit(&["run.yaml", "--store", "store"]);
    assert!(finished.status.success(), "{}", said(&finished));
    for queue in [
        "redis://:SECRET@127.0.0.1:9",
        "redis://u:SECRET@127.0.0.1:9/0",
        "redis://127.0.0.1:9/?password=SECRET",
        "redis://:SE#SECRET@127.0.0.1:9",
        "reddis://u:SECRET@127.0.0.1:9",
        "redis:SECRET@127.0.0.1:9",
    ] {
        let queue = hidden(queue);
        for words in [&["plan", "run.yaml"][..], &["resume", "r"], &["why", "r"]] {
            let told = scene.submit(&[words, &["--store", "store", "--queue", &queue]].concat());
            assert!(!said(&told).contains(SECRET), "{queue}: {}", said(&told));
        }
        let environment = [("AGENTGYM_QUEUE", queue.as_str())];
        for name in ["agentgym-worker", "agentgym-submit"] {
            for words in [
                &["--help"][..],
                &["--store", "store"],
                &["run.yaml", "--store", "store"],
            ] {
                let told = scene.program(name, words, &environment);
                assert!(
                    !said(&told).contains(SECRET),
                    "{name} {words:?}: {}",
                    said(&told)
                );
            }
        }
    }
    scene.assert_written_nowhere(SECRET);
}

#[test]
fn a_plan_of_earlier_days_that_holds_a_secret_does_not_show_it() {
    let url = serve(false);
    let scene = Scene::new(&url);
    let output = scene.submit(&["run.yaml", "--store", "store"]);
    assert!(output.status.success(), "{}", said(&output));
    let plan = scene.dir.path().join("store/runs/r/plan/0000.json");
    let text = std::fs::read_to_string(&plan).unwrap();
    let with_secret = url.replace("http://", &format!("http://u:{SECRET}@"));
    assert!(text.contains(&url));
    std::fs::write(&plan, text.replace(&url, &with_secret)).unwrap();
    for words in [
        &["status", "r"][..],
        &["why", "r"],
        &["inspect", "r"],
        &["inspect", "r", "--json"],
        &["inspect", "r", "1", "rollout", "0"],
        &["metrics", "r", "--json"],
        &["export", "r", "--iteration", "1", "--to", "exported"],
        // Resuming a finished run has nothing to do.
        &["resume", "r"],
        // Copying it would give a new plan.
        &[
            "fork",
            "r",
            "--iteration",
            "1",
            "trainer.total_training_steps=2",
        ],
    ] {
        let told = scene.submit(&[words, &["--store", "store"]].concat());
        assert!(!said(&told).contains(SECRET), "{words:?}: {}", said(&told));
        let code = match words[0] {
            "fork" => 2,
            _ => 0,
        };
        assert_eq!(told.status.code(), Some(code), "{words:?}: {}", said(&told));
    }
    std::fs::remove_file(&plan).unwrap();
    scene.assert_written_nowhere(SECRET);
}
