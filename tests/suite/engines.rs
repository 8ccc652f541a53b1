//! A run whose rollouts a server generates that is not ours: llama.cpp's, on the policies that
//! `policy-sync` fetches for it. `scripts/llama.sh test` starts it and prints what is seen.

use agentgym_jobs::pipeline::{PartId, Stage};
use agentgym_storage::{RunId, Store};
use agentgym_submit::runs::RunView;
use agentgym_tests::fleet::in_flight;
use agentgym_tests::ports::free_port;
use agentgym_tests::program::{Running, finish, program, workspace};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const RUN: &str = "served";
const PATIENCE: Duration = Duration::from_secs(600);
/// The kills are spread over so many iterations.
const KILLS: u32 = 3;

/// What the test starts, and where.
struct Scene {
    folder: PathBuf,
    store: Store,
    port: u16,
}

impl Scene {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn log(&self, name: &str) -> PathBuf {
        self.path(&format!("{name}.log"))
    }

    fn store_argument(&self) -> String {
        self.path("store").display().to_string()
    }

    fn submit(&self) -> Command {
        let mut command = program("agentgym-submit");
        command
            .args([
                "run",
                "configs/server.yaml",
                "--store",
                &self.store_argument(),
            ])
            .arg(format!("run.id={RUN}"))
            .arg(format!(
                "actor_rollout_ref.rollout.server.url=http://127.0.0.1:{}",
                self.port
            ))
            .args(["jobs.workers=0", "jobs.lease_ttl_s=5"]);
        command
    }

    fn worker(&self) -> Running {
        let mut command = program("agentgym-worker");
        command
            .args(["--store", &self.store_argument(), "--threads", "1"])
            .args(["--lease-ttl-s", "5", "--run", RUN, "--exit-when-finished"]);
        Running::start_logged(command, &self.log("worker"))
    }

    /// The process that answers is another one after each kill and each reload.
    fn server(&self, python: &str) -> Running {
        let mut command = Command::new(python);
        command
            .current_dir(workspace())
            .arg("tools/llama_server.py")
            .arg("serve")
            .arg(self.path("policies/current"))
            .arg(self.port.to_string())
            .arg("--pid-file")
            .arg(self.path("server.pid"));
        Running::start_logged(command, &self.log("server"))
    }

    fn sync(&self, server: &Running) -> Running {
        let mut command = program("agentgym-worker");
        command
            .args([
                "policy-sync",
                "--store",
                &self.store_argument(),
                "--run",
                RUN,
            ])
            .arg("--folder")
            .arg(self.path("policies"))
            .arg("--command")
            .arg(format!("kill -HUP {}", server.id()));
        Running::start_logged(command, &self.log("sync"))
    }

    fn kill_server(&self) {
        let pid = std::fs::read_to_string(self.path("server.pid")).unwrap();
        let killed = Command::new("kill").args(["-9", pid.trim()]).status();
        assert!(killed.unwrap().success(), "the server was gone already");
    }

    fn logs(&self) -> String {
        let tail = |name: &str| {
            let text = std::fs::read_to_string(self.log(name)).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            let lines = lines[lines.len().saturating_sub(15)..].join("\n");
            format!("--- {name}\n{lines}\n")
        };
        ["submit", "worker", "sync", "server"].map(tail).concat()
    }
}

/// Waits for a rollout part of a worker that is under way, in this iteration or a later one.
async fn rolling(scene: &Scene, worker: &Running, iteration: u32) -> PartId {
    let (run, begun): (RunId, Instant) = (RUN.parse().unwrap(), Instant::now());
    loop {
        assert!(
            begun.elapsed() < PATIENCE,
            "no rollout is under way\n{}",
            scene.logs()
        );
        let found = in_flight(&scene.store, &run, worker.id()).await;
        if let Some((slot, _)) = found.filter(|(slot, _)| slot.stage == Stage::Rollout.name())
            && slot.iteration >= iteration
        {
            return PartId {
                iteration: slot.iteration,
                stage: Stage::Rollout,
                part: slot.part,
            };
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn metrics(view: &RunView, iteration: u32, stage: Stage) -> Value {
    let id = PartId {
        iteration,
        stage,
        part: 0,
    };
    let manifest = view.committed(id).await.unwrap();
    view.json(&manifest, "metrics.json").await.unwrap()
}

/// The stats of all rollout parts of the run.
async fn rollouts(view: &RunView) -> Vec<serde_json::Map<String, Value>> {
    let mut all = Vec::new();
    for iteration in 1..=view.plan.iterations {
        for id in view.stage_parts(iteration, Stage::Rollout).unwrap() {
            let manifest = view.committed(id).await.unwrap();
            all.push(manifest.work.unwrap().stats);
        }
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes and needs llama.cpp; scripts/llama.sh starts it"]
async fn a_run_learns_from_a_server_that_is_not_ours() {
    let python = std::env::var("AGENTGYM_LLAMA_PYTHON").expect("scripts/llama.sh starts this test");
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let scene = Scene {
        folder: folder.path().to_owned(),
        store: Store::open(&path("store")).await.unwrap(),
        port: free_port(),
    };
    let mut submit = Running::start_logged(scene.submit(), &scene.log("submit"));
    let begun = Instant::now();
    while RunView::open(&scene.store, RUN).await.is_err() {
        assert!(
            !submit.has_ended() && begun.elapsed() < PATIENCE,
            "{}",
            scene.logs()
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let server = scene.server(&python);
    let mut sync = scene.sync(&server);
    let mut workers = [scene.worker(), scene.worker()];

    let mut after = 1;
    for kill in 0..KILLS {
        let hit = rolling(&scene, &workers[0], after).await;
        tokio::time::sleep(Duration::from_millis(400)).await;
        if kill % 2 == 1 {
            scene.kill_server();
        }
        let new = scene.worker();
        std::mem::replace(&mut workers[0], new).kill();
        after = hit.iteration + 2;
    }
    while !submit.has_ended() {
        assert!(begun.elapsed() < PATIENCE, "{}", scene.logs());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert_eq!(submit.wait(), Some(0), "{}", scene.logs());
    let ended = Instant::now();
    while !sync.has_ended() {
        assert!(ended.elapsed() < PATIENCE, "{}", scene.logs());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(sync.wait(), Some(0), "{}", scene.logs());
    server.signal("TERM");
    server.wait();

    let view = RunView::open(&scene.store, RUN).await.unwrap();
    println!("| iteration | success | mismatch, max | mismatch, kl | importance weight |");
    println!("|---|---|---|---|---|");
    let mut success = Vec::new();
    for iteration in 1..=view.plan.iterations {
        let of = metrics(&view, iteration, Stage::Advantage).await;
        let figure = |name: &str| of[name].as_f64().unwrap_or_else(|| panic!("{name}: {of}"));
        let (max, kl) = ("log_prob_mismatch_max", "log_prob_mismatch_kl");
        println!(
            "| {iteration} | {:.3} | {:.1e} | {:.1e} | {:.5} |",
            figure("success"),
            figure(max),
            figure(kl),
            figure("importance_weight_mean")
        );
        assert!(figure(max) < 0.5, "{of}");
        assert!(
            (figure("importance_weight_mean") - 1.0).abs() < 0.05,
            "{of}"
        );
        success.push(figure("success"));
    }
    let of = |name: &'static str, stats: &[serde_json::Map<String, Value>]| -> Vec<Value> {
        stats
            .iter()
            .filter_map(|own| own.get(name).cloned())
            .collect()
    };
    let stats = rollouts(&view).await;
    let sum = |name| {
        of(name, &stats)
            .iter()
            .filter_map(Value::as_u64)
            .sum::<u64>()
    };
    let distance = of("probe_distance", &stats)
        .iter()
        .filter_map(Value::as_f64)
        .fold(0.0, f64::max);
    let apart = of("probe_tells_apart", &stats);
    let told = apart.iter().filter(|apart| **apart == true).count();
    println!(
        "\nProbes within {distance:.1e} nats; policies told apart in {told} of {} parts. Kills: {KILLS} \
         workers, {} servers; {} tokens taken up from journals, {} sampled twice of {}.",
        apart.len(),
        KILLS / 2,
        sum("taken_up_tokens"),
        sum("sampled_twice_tokens"),
        sum("sampled_tokens"),
    );
    assert!(told * 2 > apart.len(), "{apart:?}");
    let (before, after) = (
        metrics(&view, 0, Stage::Evaluate).await,
        metrics(&view, view.plan.iterations, Stage::Evaluate).await,
    );
    println!(
        "Held-out success: {} before, {} after.",
        before["success"], after["success"]
    );
    let mean = |of: &[f64]| of.iter().sum::<f64>() / of.len() as f64;
    let (first, last) = (mean(&success[..3]), mean(&success[success.len() - 3..]));
    println!(
        "Success in training: {first:.3} in the first three iterations, {last:.3} in the last three."
    );
    assert!(last > first + 0.05, "nothing is learnt: {success:?}");
    let replaced = finish({
        let mut verify = program("agentgym-submit");
        verify.args(["verify", RUN, "--store", &scene.store_argument()]);
        verify
    });
    assert!(
        replaced.status.success(),
        "{}",
        String::from_utf8_lossy(&replaced.stderr)
    );
    let kept = std::fs::read_dir(scene.path("policies/policies"))
        .unwrap()
        .count();
    assert!(kept <= 2, "{kept} policies are kept");
    let status = std::fs::read(scene.path("policies/status.json")).unwrap();
    let status: Value = serde_json::from_slice(&status).unwrap();
    assert_eq!(status["state"], "served", "{status}");
    assert!(Path::new(&scene.path("policies/current/model.safetensors")).exists());
}
