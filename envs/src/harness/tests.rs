//! Agents of all kinds behind a harness, through the client that plays environments.

use super::*;
use crate::client::{ClientOptions, EnvClient};
use crate::error::EnvError;
use crate::server::{ServerHandle, serve};
use crate::spec::declared::declared;
use crate::spec::{End, EnvSpec};
use std::net::TcpListener;
use std::time::Instant;

fn spec(more: Value) -> &'static EnvSpec {
    let mut spec = json!({"name": "coder", "harness": true});
    for (name, value) in more.as_object().into_iter().flatten() {
        spec[name] = value.clone();
    }
    declared(&spec).unwrap()
}

struct Scene {
    /// Somebody listens where the gateway should be.
    gateway: TcpListener,
    server: ServerHandle,
    client: EnvClient,
    folder: tempfile::TempDir,
    /// Each test has one of its own: whoever holds the key of an agent that has ended is ended with it.
    key: &'static str,
}

impl Scene {
    async fn new(
        key: &'static str,
        spec: &'static EnvSpec,
        change: impl FnOnce(&mut HarnessOptions),
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut options = HarnessOptions {
            command: "true".to_owned(),
            judge: None,
            judges_by_exit: false,
            time_limit_s: 20.0,
            output_bytes_max: 1 << 16,
            folder: folder.path().to_owned(),
            keeps_folders: false,
        };
        change(&mut options);
        let tasks = vec![json!({"prompt": "Mend it.", "files": {"src/a.txt": "broken"}})];
        let limits = ServerOptions::default();
        let harness = Arc::new(Harness::new(options, tasks, &limits));
        let address = "127.0.0.1:0".parse().unwrap();
        let server = serve(harness, "", address, limits).await.unwrap();
        let urls = [server.url.clone()];
        let client = EnvClient::new(spec, &urls, ClientOptions::default()).unwrap();
        Self {
            gateway: TcpListener::bind("127.0.0.1:0").unwrap(),
            server,
            client,
            folder,
            key,
        }
    }

    fn order(&self) -> String {
        let url = format!("http://{}", self.gateway.local_addr().unwrap());
        json!({"base_url": url, "api_key": self.key, "calls_max": 7, "wait_s": 0.2}).to_string()
    }

    /// Plays the first task to its end: what is said of it, the reward, and whether that is a success.
    async fn play(&self) -> Result<(Ended, f64, bool), EnvError> {
        let mut session = self.client.open(0).await?;
        assert_eq!(session.observation(), "Mend it.");
        loop {
            let step = session.step(&self.order()).await?;
            if let Some(ended) = step.ended {
                session.close().await?;
                return Ok((ended, step.reward, step.success));
            }
        }
    }

    async fn end_of(
        key: &'static str,
        spec: Value,
        change: impl FnOnce(&mut HarnessOptions),
    ) -> (Ended, f64, bool) {
        let scene = Self::new(key, self::spec(spec), change).await;
        let played = scene.play().await.unwrap();
        let left = std::fs::read_dir(scene.folder.path()).unwrap().count();
        assert_eq!(left, 0, "its folder is removed");
        played
    }
}

use crate::spec::Ended;

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_is_told_its_task_and_its_gateway_and_judged_by_what_it_leaves() {
    let told = "test \"$(cat src/a.txt)\" = broken && grep -q Mend \"$AGENTGYM_TASK\" && \
                test $OPENAI_API_KEY$AGENTGYM_CALLS_MAX = agentgym-17 && \
                test $OPENAI_BASE_URL = $ANTHROPIC_BASE_URL/v1 && test $ANTHROPIC_API_KEY = agentgym-1 && \
                echo mended > src/a.txt && ";
    let verdict = "printf '{\"reward\": 0.5, \"components\": {\"tests\": 1, \"style\": 0}, \"reason\": \"so so\"}'";
    let own = format!("{told} {verdict} > \"$AGENTGYM_REWARD\"");
    let (ended, reward, success) =
        Scene::end_of("agentgym-1", json!({}), |options| options.command = own).await;
    assert_eq!((ended.how, reward, success), (End::Finished, 0.5, false));
    assert_eq!(ended.reason, "so so");
    assert_eq!(ended.components["tests"], 1.0);
    // The judge comes after the agent, and its word counts.
    let judge = |line: &str| {
        let line = format!("grep -q mended src/a.txt || exit 3; {line}");
        let command = format!("{told} echo 1 > \"$AGENTGYM_REWARD\"");
        Scene::end_of("agentgym-1", json!({}), |options| {
            (options.command, options.judge) = (command, Some(line));
        })
    };
    for (line, reward) in [
        ("echo 0.25", 0.25),
        ("exit 1", 0.0),
        ("true", 1.0),
        (verdict, 0.5),
    ] {
        let (_, found, success) = judge(line).await;
        assert_eq!((found, success), (reward, reward == 1.0), "{line}");
    }
    for (line, reward) in [("exit 0", 1.0), ("exit 2", 0.0)] {
        let (ended, found, _) = Scene::end_of("agentgym-1", json!({}), |options| {
            (options.command, options.judges_by_exit) = (line.to_owned(), true);
        })
        .await;
        assert_eq!((ended.how, found), (End::Finished, reward));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_fails_has_a_reward_by_its_judge_or_its_spec_alone() {
    let fails = |spec: Value, judge: Option<&str>| {
        let judge = judge.map(str::to_owned);
        Scene::end_of("agentgym-4", spec, |options| {
            let command = "echo no module >&2; exit 7";
            (options.command, options.judge) = (command.to_owned(), judge);
        })
    };
    let (ended, ..) = fails(json!({}), None).await;
    assert_eq!((ended.how, ended.reward), (End::Failed, None));
    assert!(
        ended.reason.contains("7") && ended.reason.contains("no module"),
        "{}",
        ended.reason
    );
    let (ended, ..) = fails(json!({"failed_reward": -1}), None).await;
    assert_eq!((ended.how, ended.reward), (End::Failed, Some(-1.0)));
    let (ended, ..) = fails(json!({"failed_reward": -1}), Some("echo 0.5")).await;
    assert_eq!((ended.how, ended.reward), (End::Failed, Some(0.5)));
    // One that never ends, floods, or leaves a child behind is stopped, with all of them.
    let marked = |line: &str| format!("setsid sleep 61{} & {line}", std::process::id());
    for (line, words) in [("sleep 300", "--time-limit-s"), ("yes", "--output-max-mib")] {
        let started = Instant::now();
        let (ended, ..) = Scene::end_of("agentgym-4", json!({}), |options| {
            options.command = marked(line);
            options.time_limit_s = 1.0;
        })
        .await;
        assert_eq!((ended.how, ended.reward), (End::Stopped, None));
        assert!(ended.reason.contains(words), "{}", ended.reason);
        assert!(started.elapsed() < Duration::from_secs(15));
    }
    let sleeping = format!("61{}", std::process::id());
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = all.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    let left = lines.filter(|line| {
        line.split(|byte| *byte == 0)
            .any(|word| word == sleeping.as_bytes())
    });
    assert_eq!(left.count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_end_is_a_fault_and_says_what_to_do() {
    for (command, judge, words) in [
        ("true", None, "AGENTGYM_REWARD"),
        ("echo fine > \"$AGENTGYM_REWARD\"", None, "AGENTGYM_REWARD"),
        (
            "echo '{\"reward\": \"much\"}' > \"$AGENTGYM_REWARD\"",
            None,
            "reward",
        ),
        ("true", Some("exit 9"), "the judge failed"),
    ] {
        let scene = Scene::new("agentgym-5", spec(json!({})), |options| {
            options.command = command.to_owned();
            options.judge = judge.map(str::to_owned);
        })
        .await;
        let error = scene.play().await.unwrap_err().to_string();
        assert!(error.contains(words), "{command}: {error}");
    }
    let scene = Scene::new("agentgym-5", spec(json!({})), |_| {}).await;
    let mut session = scene.client.open(0).await.unwrap();
    let error = session.step("Action: look").await.unwrap_err().to_string();
    assert!(error.contains("says no gateway"), "{error}");
    let gone = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let told = json!({"base_url": format!("http://{gone}"), "api_key": "k"}).to_string();
    let mut session = scene.client.open(0).await.unwrap();
    let error = session.step(&told).await.unwrap_err().to_string();
    assert!(
        error.contains("cannot be reached from here") && error.contains("--gateway-url"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_session_ends_its_agent_and_the_gateways_time_is_not_the_agents() {
    let scene = Scene::new("agentgym-2", spec(json!({})), |options| {
        options.command = "sleep 1; echo 1 > \"$AGENTGYM_REWARD\"".to_owned();
        options.time_limit_s = 0.3;
    })
    .await;
    let mut session = scene.client.open(0).await.unwrap();
    let mut told: Value = serde_json::from_str(&scene.order()).unwrap();
    told["gateway_s"] = json!(5);
    let step = loop {
        let step = session.step(&told.to_string()).await.unwrap();
        if step.done {
            break step;
        }
    };
    assert_eq!(step.ended.unwrap().how, End::Finished);
    let scene = Scene::new("agentgym-2", spec(json!({})), |options| {
        options.command = "sleep 300".to_owned()
    })
    .await;
    let mut session = scene.client.open(0).await.unwrap();
    assert!(!session.step(&scene.order()).await.unwrap().done);
    let started = Instant::now();
    session.close().await.unwrap();
    assert!(started.elapsed() < Duration::from_secs(5));
    assert_eq!(scene.server.sessions(), 0);
    assert_eq!(std::fs::read_dir(scene.folder.path()).unwrap().count(), 0);
}

#[test]
fn a_file_of_tasks_is_refused_by_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tasks.jsonl");
    let read = |text: &str| {
        std::fs::write(&path, text).unwrap();
        tasks(&path)
    };
    let good =
        "{\"prompt\": \"a\", \"files\": {\"x/y\": \"\"}}\n\n{\"prompt\": \"b\", \"more\": 1}\n";
    assert_eq!(read(good).unwrap().len(), 2);
    for (text, words) in [
        ("", "holds no task"),
        ("{\"prompt\": \"a\"}\n{}", ":2: a task is"),
        ("[1]", ":1: a task is"),
        (
            "{\"prompt\": \"a\", \"files\": {\"../x\": \"\"}}",
            "\"../x\" is no text file",
        ),
        (
            "{\"prompt\": \"a\", \"files\": {\"/etc/x\": \"\"}}",
            "\"/etc/x\" is no text file",
        ),
        (
            "{\"prompt\": \"a\", \"files\": {\"x\": 1}}",
            "\"x\" is no text file",
        ),
        ("{\"prompt\"", ":1: "),
    ] {
        let found = read(text).unwrap_err();
        assert!(found.contains(words), "{text}: {found}");
    }
}
