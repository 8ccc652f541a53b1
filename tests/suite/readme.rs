//! The commands under README's "What you can do with a run", extracted and run in order, on a run
//! of the quickstart that is as long but does less in each iteration.

use agentgym_tests::ports::free_port;
use agentgym_tests::program::{Running, program, workspace};
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const CONFIG: &str = "configs/quickstart.yaml";

/// Settings that shorten an iteration; the keys that decide what is kept are the quickstart's.
const SHORT: [&str; 12] = [
    "actor_rollout_ref.model.path=tiny?hidden=64&layers=1&vocab=512",
    "actor_rollout_ref.rollout.n=2",
    "actor_rollout_ref.rollout.max_tokens=4",
    "algorithm.rounds_ctrl.type=fixed",
    "algorithm.rounds_ctrl.rounds=1",
    "data.train_batch_size=4",
    "data.tasks=[{env: worlds, ids: 0..1000}]",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "jobs.rollout_part_tasks=1",
    "evaluation.samples=1",
    "evaluation.max_rounds=1",
    "evaluation.sets=[{name: d1, env: worlds, ids: 1000002..1000004}]",
];

/// The commands of the section, without their comments.
fn commands() -> Vec<String> {
    let readme = std::fs::read_to_string(workspace().join("README.md")).unwrap();
    let (_, section) = readme.split_once("## What you can do with a run").unwrap();
    let (_, block) = section.split_once("```sh\n").unwrap();
    let (block, _) = block.split_once("```").unwrap();
    let lines = block.lines().filter(|line| line.starts_with("agentgym-"));
    lines
        .map(|line| line.split('#').next().unwrap_or(line).trim().to_owned())
        .collect()
}

/// A command, run in a folder that looks like the clone.
fn typed(folder: &Path, words: &[String]) -> Command {
    let mut command = program(&words[0]);
    command.current_dir(folder).args(&words[1..]);
    command
}

fn ended(mut command: Command) -> Output {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
    output
}

/// Starts a server process, and waits for a word in its log.
fn serving(command: Command, log: &Path, word: &str) -> Running {
    const LIMIT: Duration = Duration::from_secs(60);
    let running = Running::start_logged(command, log);
    let begun = Instant::now();
    loop {
        let said = std::fs::read_to_string(log).unwrap_or_default();
        if said.contains(word) {
            return running;
        }
        assert!(begun.elapsed() < LIMIT, "no `{word}` in: {said}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The id that README gives as an example is the one that its first command prints.
#[test]
fn the_run_of_the_readme_is_the_one_that_is_printed() {
    let mut command = program("agentgym-submit");
    command.args(["--json", "plan", CONFIG]);
    let plan: serde_json::Value = serde_json::from_slice(&ended(command).stdout).unwrap();
    let readme = std::fs::read_to_string(workspace().join("README.md")).unwrap();
    let run = plan["run"].as_str().unwrap();
    assert_eq!(
        readme.matches("quickstart-").count(),
        readme.matches(run).count(),
        "{run}"
    );
}

#[test]
fn every_command_of_the_readme_works_on_its_run() {
    let clone = TempDir::new().unwrap();
    let folder = clone.path();
    for name in ["configs", "models", "prompts"] {
        std::os::unix::fs::symlink(workspace().join(name), folder.join(name)).unwrap();
    }
    let short = SHORT.map(str::to_owned);
    let quickstart = [
        &["agentgym-submit".to_owned(), CONFIG.to_owned()],
        &short[..],
    ]
    .concat();
    ended(typed(folder, &quickstart));
    let runs = std::fs::read_dir(folder.join("agentgym-data/runs")).unwrap();
    let runs: Vec<String> = runs
        .map(|run| run.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(runs.len(), 1, "{runs:?}");
    assert!(runs[0].starts_with("quickstart-"), "{runs:?}");

    let port = free_port();
    let mut servers = Vec::new();
    let all = commands();
    assert!(all.len() > 12, "README lists {all:?}");
    for line in all {
        let word = |word: &str| match word {
            "RUN" => runs[0].clone(),
            "KEY=VAL" => "actor_rollout_ref.actor.optim.lr=1e-5".to_owned(),
            "DIR" => "agentgym-data".to_owned(),
            "URL" if line.contains("--queue") => "sqlite:agentgym-data/queue.sqlite".to_owned(),
            "URL" => format!("http://127.0.0.1:{port}"),
            "36002" => port.to_string(),
            other => other.to_owned(),
        };
        let mut words: Vec<String> = line.split_whitespace().map(word).collect();
        if line.contains(CONFIG) {
            words.extend(short.clone());
        }
        let log = folder.join(format!("{}.log", servers.len()));
        match line.split(' ').take(2).collect::<Vec<_>>()[..] {
            ["agentgym-worker", _] => servers.push(serving(typed(folder, &words), &log, "ready")),
            ["agentgym-env", "babyai"] => {
                servers.push(serving(typed(folder, &words), &log, "listening on"));
            }
            ["agentgym-submit", "serve"] => {
                words.extend(["--addr", "127.0.0.1:0"].map(str::to_owned));
                servers.push(serving(typed(folder, &words), &log, "/v1 serves"));
            }
            ["agentgym-submit", "view"] => {
                words.extend(["--no-open", "--port", "0"].map(str::to_owned));
                servers.push(serving(typed(folder, &words), &log, "token="));
            }
            _ => _ = ended(typed(folder, &words)),
        }
    }
    for server in servers {
        server.signal("TERM");
        // A worker reports that it was interrupted.
        assert!(matches!(server.wait(), Some(0 | 130)));
    }
    let runs = std::fs::read_dir(folder.join("agentgym-data/runs")).unwrap();
    assert_eq!(runs.count(), 3, "the run, its fork and its evaluation");
}
