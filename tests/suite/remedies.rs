//! Every command, option and key that a message names exists in this program, and a command that a
//! message names works when it is typed on the run that the message is about.

use crate::bad_input::Scene;
use crate::key_names::literals;
use agentgym_submit::cli::grammar;
use agentgym_tests::files::files_below;
use agentgym_tests::ports::free_port;
use agentgym_tests::program::{Running, finish, program, workspace};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

mod table;

/// Options of other programs that messages name.
const OTHERS: [&str; 1] = ["--features"];

/// Words behind a program's name that are no command: prose.
const PROSE: [&str; 4] = ["only", "and", "starts", "submits"];

/// Messages of the sources: string literals in which lines are joined as Rust joins them.
fn messages() -> Vec<(String, String)> {
    let root = workspace();
    let mut all = Vec::new();
    for name in ["jobs", "submit", "worker"] {
        for path in files_below(&root.join(name).join("src")) {
            let shown = path.display().to_string();
            if !shown.ends_with(".rs") || shown.contains("tests") {
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let text = text
                .split("#[cfg(test)]\nmod tests {")
                .next()
                .unwrap_or_default();
            for literal in literals(text) {
                let lines = literal.split("\\\n").map(str::trim_start);
                all.push((shown.clone(), lines.collect::<Vec<_>>().join("")));
            }
        }
    }
    all
}

/// Commands of `agentgym-submit` that a message names.
fn commands_in(message: &str) -> Vec<String> {
    let named = message.split("agentgym-submit ").skip(1);
    let words = named.map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_lowercase() && c != '-');
        rest[..end.unwrap_or(rest.len())].to_owned()
    });
    words
        .filter(|word| !word.is_empty() && !PROSE.contains(&word.as_str()))
        .collect()
}

/// Long options of a command and of all below it.
fn options_of(command: &clap::Command, into: &mut BTreeSet<String>) {
    let own = command.get_arguments().filter_map(clap::Arg::get_long);
    into.extend(own.map(|long| format!("--{long}")));
    for below in command.get_subcommands() {
        options_of(below, into);
    }
}

/// Options in a text: `--dry-run`, not a dash of prose or a rule of dashes.
fn options(text: &str) -> Vec<String> {
    let starts = text.match_indices("--").filter(|(at, _)| {
        let before = text[..*at].chars().next_back();
        before.is_none_or(|c| !c.is_alphanumeric() && c != '-')
    });
    starts
        .map(|(at, _)| {
            let rest = &text[at + 2..];
            let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            let end = rest.find(|c| !fits(c)).unwrap_or(rest.len());
            format!("--{}", &rest[..end])
        })
        .filter(|option| option[2..].starts_with(|c: char| c.is_ascii_lowercase()))
        .collect()
}

fn known_options() -> BTreeSet<String> {
    let mut known = BTreeSet::from(["--help".to_owned(), "--version".to_owned()]);
    options_of(&grammar(), &mut known);
    for words in [
        &["agentgym-worker", "--help"][..],
        &["agentgym-worker", "policy-sync", "--help"],
        &["agentgym-env", "--help"],
        &["agentgym-env", "babyai", "--help"],
        &["agentgym-env", "doctor", "--help"],
        &["agentgym-env", "demos", "--help"],
    ] {
        let mut command = program(words[0]);
        command.args(&words[1..]);
        known.extend(options(&String::from_utf8_lossy(&finish(command).stdout)));
    }
    known
}

#[test]
fn every_command_and_option_of_a_message_is_in_the_grammar() {
    let known = known_options();
    let grammar = grammar();
    let (mut rows, mut wrong) = (0, Vec::new());
    for (file, message) in messages() {
        let mut named = false;
        for option in options(&message) {
            named = true;
            if !known.contains(&option) && !OTHERS.contains(&option.as_str()) {
                wrong.push(format!("{file}: {option}"));
            }
        }
        for word in commands_in(&message) {
            named = true;
            if grammar.find_subcommand(&word).is_none() {
                wrong.push(format!("{file}: agentgym-submit {word}"));
            }
        }
        rows += usize::from(named);
    }
    println!("{rows} messages name a command or an option");
    assert_eq!(wrong, [""; 0]);
    assert!(rows > 60, "{rows} are too few: is the scan broken?");
    assert_eq!(
        options("give --store URL, a--b, --dry-run`. -- and ----"),
        ["--store", "--dry-run"]
    );
}

/// docs/serve.md is about one command.
#[test]
fn the_document_of_serve_names_options_of_serve() {
    let grammar = grammar();
    let mut known = BTreeSet::from(["--command".to_owned()]);
    options_of(grammar.find_subcommand("serve").unwrap(), &mut known);
    let document = std::fs::read_to_string(workspace().join("docs/serve.md")).unwrap();
    // Benches and policy-sync are named there too.
    let (own, _) = document.split_once("## Rollouts by it").unwrap();
    let own = own.lines().filter(|line| !line.contains("cargo bench"));
    for line in own {
        for option in options(line) {
            assert!(known.contains(&option), "{option}: {line}");
        }
    }
}

/// The commands that a text names, up to a backtick, a comment or the end of the line.
fn commands(text: &str) -> Vec<String> {
    let starts = text.match_indices("agentgym-").filter(|(at, _)| {
        let rest = &text[*at..];
        ["agentgym-submit ", "agentgym-worker "]
            .iter()
            .any(|name| rest.starts_with(name))
    });
    starts
        .map(|(at, _)| {
            let rest = &text[at..];
            let end = rest.find(['`', '\n']).unwrap_or(rest.len());
            rest[..end]
                .split("  #")
                .next()
                .unwrap_or_default()
                .trim()
                .to_owned()
        })
        .collect()
}

/// Waits for something to be there.
fn until(what: &str, is_there: impl Fn() -> bool) {
    let since = Instant::now();
    while !is_there() {
        assert!(
            since.elapsed() < Duration::from_secs(60),
            "{what} is not there"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Types a command in a scene's folder, in a shell, as it was printed.
fn typed(scene: &Scene, line: &str) -> Command {
    let programs = program("agentgym-submit").get_program().to_owned();
    let folder = Path::new(&programs).parent().unwrap().to_owned();
    let path = std::env::var("PATH").unwrap();
    let mut command = Command::new("sh");
    command
        .args(["-c", line])
        .current_dir(scene.folder())
        .env("PATH", format!("{}:{path}", folder.display()))
        .env("AGENTGYM_CACHE", scene.path("cache"))
        .env_remove("AGENTGYM_STORE")
        .env_remove("AGENTGYM_QUEUE");
    command
}

/// Runs a line and each command that it names and that begins with one of `wanted`; returns what
/// these said.
fn taken(scene: &Scene, line: &str, code: i32, wanted: &[&str]) -> String {
    let output = scene.submit(line);
    let said = [&output.stdout[..], &output.stderr[..]].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    assert_eq!(output.status.code(), Some(code), "{line}: {said}");
    let mut heard = said.clone();
    for head in wanted {
        let named = commands(&said);
        let command = named.iter().find(|command| command.starts_with(head));
        let command = command.unwrap_or_else(|| panic!("{line}: no `{head}` in {said}"));
        let ended = finish(typed(scene, command));
        let told = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(ended.status.success(), "{line}: {command}: {told}");
        heard += &told;
    }
    heard
}

const FORK: &str = "agentgym-submit fork r ";

#[test]
fn what_a_finished_run_names_is_done() {
    let scene = Scene::new();
    // Its end names the fork that makes it longer.
    taken(&scene, "run.yaml --store s", 0, &[FORK]);
    for refused in [
        "resume r --store s actor_rollout_ref.actor.optim.lr=1e-4",
        "resume r --store s trainer.total_training_steps=3",
        "resume r --store s jobs.threads=2 trainer.total_training_steps=4",
        "run.yaml --store s run.seed=4",
        "run.yaml --store s trainer.total_training_steps=5",
    ] {
        let said = taken(&scene, refused, 4, &[FORK]);
        assert!(said.contains("another run.id"), "{said}");
    }
    // What no fork can change names none.
    for refused in ["run.pipeline=eval", "actor_rollout_ref.model.path=tiny"] {
        let said = taken(&scene, &format!("resume r --store s {refused}"), 4, &[]);
        assert!(!said.contains(FORK), "{said}");
    }
    scene.succeeds("run.yaml --store s run.id=other actor_rollout_ref.model.path=tiny");
    let said = taken(&scene, "status r --store s", 0, &[]);
    assert!(said.contains("agentgym-submit view r --store"), "{said}");
    // A fork by a config names the command.
    let fork = "run.yaml --store s run.id=f run.fork.run=r run.fork.iteration=0";
    taken(&scene, fork, 2, &[FORK]);
    // Retention has removed what an early iteration left of its optimizer.
    let long = "run.yaml --store s run.id=long trainer.total_training_steps=5 trainer.save_freq=1";
    scene.succeeds(long);
    let early = "fork long --store s --iteration 2 run.seed=9";
    taken(&scene, early, 4, &["agentgym-submit fork long "]);
}

/// The same config with more iterations is a new run; a longer one is a fork.
#[test]
fn a_longer_run_of_the_same_config_is_named() {
    let scene = Scene::new();
    let text = std::fs::read_to_string(scene.path("run.yaml")).unwrap();
    scene.write("named.yaml", text.replace("run: {id: r}", "").as_bytes());
    scene.succeeds("named.yaml --store s");
    let longer = "named.yaml --store s trainer.total_training_steps=2";
    let said = taken(&scene, longer, 0, &["agentgym-submit fork named-"]);
    assert!(said.contains("is the same with 1 iteration"), "{said}");
    let other = "named.yaml --store s trainer.total_training_steps=3 run.seed=8";
    let said = scene.succeeds(other);
    assert!(!said.contains("to continue that one"), "{said}");
}

#[test]
fn what_a_run_without_workers_names_is_done() {
    let scene = Scene::new();
    let begun = scene.path("s/runs/r/commits/00000000/init/000000.json");
    let line = "run.yaml --store s trainer.total_training_steps=40 jobs.lease_ttl_s=2";
    let mut command = program("agentgym-submit");
    command
        .args(line.split(' '))
        .current_dir(scene.folder())
        .env("AGENTGYM_CACHE", scene.path("cache"));
    let running = Running::start(command);
    until("a commit", || begun.exists());
    running.kill();
    let status = taken(
        &scene,
        "inspect r 40 rollout 0 --store s",
        4,
        &["agentgym-submit status r"],
    );
    assert!(status.contains("not committed yet"), "{status}");
    taken(&scene, "cancel r --store s", 0, &[]);
    let held = taken(&scene, "status r --store s", 0, &[]);
    assert!(
        commands(&held)[0].starts_with("agentgym-submit resume r"),
        "{held}"
    );
    scene.succeeds("retry r --store s");
    // What the killed process held is free.
    std::thread::sleep(Duration::from_secs(3));
    let why = scene.submit("why r --store s");
    let why = String::from_utf8_lossy(&why.stdout).into_owned();
    assert!(why.contains("agentgym-submit resume r --store"), "{why}");
    let said = taken(
        &scene,
        "status r --store s",
        0,
        &["agentgym-submit resume r "],
    );
    assert!(said.contains("run r resumes"), "{said}");
    assert!(
        said.contains(" of 40 done") || said.contains("no policy yet"),
        "{said}"
    );
    let again = scene.succeeds("resume r --store s");
    assert!(again.contains("run r is finished"), "{again}");
}

/// A run whose workers are elsewhere is given one of these.
#[test]
fn a_run_of_a_fleet_names_a_worker() {
    let scene = Scene::new();
    let plan = scene.path("s/runs/r/plan/0000.json");
    let mut command = program("agentgym-submit");
    command
        .args(["run.yaml", "--store", "s", "jobs.workers=0"])
        .current_dir(scene.folder())
        .env("AGENTGYM_CACHE", scene.path("cache"));
    let running = Running::start(command);
    until("a plan", || plan.exists());
    let said = scene.submit("status r --store s");
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let named = commands(&said);
    let worker = named
        .iter()
        .find(|c| c.starts_with("agentgym-worker "))
        .unwrap();
    let line = format!("{worker} --run r --exit-when-finished");
    let ended = finish(typed(&scene, &line));
    assert!(
        ended.status.success(),
        "{line}: {}",
        String::from_utf8_lossy(&ended.stderr)
    );
    assert_eq!(running.wait(), Some(0));
}

#[test]
fn what_refuses_a_new_run_leaves_nothing_and_its_remedy_works() {
    let scene = Scene::new();
    let port = free_port();
    let away = format!("http://127.0.0.1:{port}");
    let line = format!("run.yaml --store s actor_rollout_ref.agentgym.env_addr={away}");
    let words = [
        away.as_str(),
        "actor_rollout_ref.agentgym.env_addr=URL",
        "Nothing was written",
    ];
    scene.refuses(&line, 5, &words);
    scene.refuses("run.yaml --store s --queue redis://127.0.0.1:1", 5, &[]);
    assert!(!scene.path("s/runs").exists(), "a plan was left behind");
    scene.succeeds("run.yaml --store s");
    // A revision with a wrong address would be what the next resume reads.
    let wrong = format!("resume r --store s actor_rollout_ref.agentgym.env_addr={away}");
    scene.refuses(&wrong, 5, &[&away]);
    let wrong = format!(
        "fork r --iteration 0 --store s run.seed=3 actor_rollout_ref.agentgym.env_addr={away}"
    );
    scene.refuses(&wrong, 5, &[&away]);
    assert!(!scene.path("s/runs/r/plan/0001.json").exists());
    let runs = std::fs::read_dir(scene.path("s/runs")).unwrap().count();
    assert_eq!(runs, 1, "the fork was left behind");
    // An environment of `envs` is named by its own key.
    let env = "actor_rollout_ref.agentgym.envs={w: {task_name: textcraft, env_addr: 'http://127.0.0.1:9'}}";
    let play = |more: &[&str]| {
        let mut command = program("agentgym-submit");
        command
            .args(["run.yaml", "--store", "t", env])
            .arg("data.tasks=[{env: w, ids: 0..8}]")
            .args(more)
            .current_dir(scene.folder())
            .env("AGENTGYM_CACHE", scene.path("cache"));
        let output = finish(command);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.success(), said)
    };
    let key = "actor_rollout_ref.agentgym.envs.w.env_addr=";
    let (_, said) = play(&[]);
    assert!(said.contains(key), "{said}");
    let (succeeds, said) = play(&[&format!("{key}builtin:worlds?depths=1-1")]);
    assert!(succeeds, "{said}");
}

/// A run that exists asks its environment before it starts a worker, under an unchanged plan too; one
/// that is finished does not.
#[test]
fn an_environment_that_went_away_is_noticed_before_anything_starts() {
    let scene = Scene::new();
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", server.local_addr().unwrap());
    let line = format!(
        "run.yaml --store s actor_rollout_ref.agentgym.env_addr={address} \
         actor_rollout_ref.agentgym.max_retries=0 actor_rollout_ref.rollout.fault_retries=0 \
         jobs.failures_max=1"
    );
    // It can be reached, and the run is killed while it waits for answers.
    let mut command = program("agentgym-submit");
    command
        .args(line.split(' '))
        .current_dir(scene.folder())
        .env("AGENTGYM_CACHE", scene.path("cache"));
    let running = Running::start(command);
    let plan = scene.path("s/runs/r/plan/0000.json");
    until("a plan", || plan.exists());
    running.kill();
    drop(server);
    scene.refuses(&line, 5, &["Nothing was written", &address]);
    let resume = "resume r --store s";
    scene.refuses(resume, 5, &["Nothing was written", &address]);
}

#[test]
fn other_words_for_a_command_are_that_command() {
    let scene = Scene::new();
    scene.succeeds("train run.yaml --store s");
    scene.succeeds("list --store s");
    scene.succeeds("evaluate run.yaml --store e");
    // A config without tasks to train on, of which there is something to evaluate.
    scene.refuses(
        "run.yaml --store t data.tasks=[]",
        2,
        &["`agentgym-submit eval`"],
    );
    scene.succeeds("eval run.yaml --store t data.tasks=[]");
}
