//! A dress rehearsal of everything but the arithmetic, at real sizes. `cargo bench --workspace --bench
//! rehearsal -- SHAPE STORE [KILLS]` plays four iterations with two worker processes. SHAPE is `1b-f32`,
//! `1b-bf16`, `3b-bf16-lora` or, to try it, `2m-bf16`; STORE is `folder` or `s3`. The start policy is made as
//! always. In place of training, an update changes two in a hundred numbers of the policy it reads, and
//! writes a state of random bytes; in place of playing, a rollout reads its policy. With `kills` the trainer
//! dies by `kill -9` behind each commit of an update and in the middle of the next one, the player while it
//! reads a policy. At the end it verifies, forks, and exports the start policy with the project's own program,
//! and prints for each the time, the bytes and the largest resident size of the process. Nothing is asserted
//! but that the digest with kills is that without. `TMPDIR` names the disk. Needs the built programs.

use agentgym_jobs::config::{ResolvedConfig, SaveDtype};
use agentgym_jobs::pipeline::Stage;
use agentgym_jobs::plan::Plan;
use agentgym_queue::{CancellationToken, Queue, QueueOptions};
use agentgym_storage::{Outputs, Store};
use agentgym_tests::files::files_below;
use agentgym_tests::program::{program, workspace};
use agentgym_tests::s3::S3Server;
use agentgym_worker::stages::{StageFunctions, Stages};
use agentgym_worker::{Folders, Report, Result, StageContext, WorkerOptions, run_worker};
use anyhow::{Context as _, ensure};
use futures::future::{BoxFuture, FutureExt};
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

const RUN: &str = "rehearsal";
const ITERATIONS: u32 = 4;
/// Bytes that are made or changed at once.
const PIECE: usize = 16 << 20;
/// The policy's numbers that an update changes, of a thousand.
const CHANGED: u64 = 20;

fn config(shape: &str) -> Option<(&'static str, &'static str)> {
    const LLAMA_1B: &str =
        "tiny?arch=llama&hidden=2048&layers=24&heads=32&kv_heads=4&intermediate=5632&vocab=2048";
    const LLAMA_3B: &str =
        "tiny?arch=llama&hidden=3072&layers=30&heads=24&kv_heads=8&intermediate=8192&vocab=2048";
    Some(match shape {
        "2m-bf16" => (
            "tiny?hidden=128&layers=8&heads=4&kv_heads=2&intermediate=384&vocab=512",
            ", dtype: bf16",
        ),
        "1b-f32" => (LLAMA_1B, ""),
        "1b-bf16" => (LLAMA_1B, ", dtype: bf16"),
        "3b-bf16-lora" => (LLAMA_3B, ", dtype: bf16, lora_rank: 16"),
        _ => return None,
    })
}

fn plan(shape: &str) -> anyhow::Result<Plan> {
    let (model, more) =
        config(shape).context("a shape is 1b-f32, 1b-bf16, 3b-bf16-lora or 2m-bf16")?;
    let text = format!(
        "run: {{id: {RUN}}}
actor_rollout_ref:
  model: {{path: '{model}'{more}}}
  actor: {{ppo_mini_batch_size: 2}}
  rollout: {{n: 2}}
  agentgym: {{env_addr: 'builtin:worlds?depths=1-2'}}
data: {{train_batch_size: 2, tasks: [{{env: textcraft, ids: 0..8}}]}}
algorithm: {{rounds_ctrl: {{rounds: 2}}}}
trainer: {{total_training_steps: {ITERATIONS}, test_freq: 0, save_freq: 2, full_policy_freq: 8}}
jobs: {{rollout_part_tasks: 1, lease_ttl_s: 10}}
"
    );
    let config = ResolvedConfig::parse(RUN, Path::new("rehearsal.yaml"), &text, &[])?;
    Ok(Plan::new(config, &workspace())?)
}

fn main() -> anyhow::Result<()> {
    // `cargo test --benches` only checks that it runs.
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if !arguments.iter().any(|argument| argument == "--bench") {
        return Ok(());
    }
    let given: Vec<&str> = arguments
        .iter()
        .map(String::as_str)
        .filter(|a| !a.starts_with('-'))
        .collect();
    let threads = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    threads.block_on(async {
        match given[..] {
            ["worker", store, queue, cache, stages] => {
                work(store, queue, Path::new(cache), stages).await
            }
            [shape, store] => rehearse(shape, store, false).await.map(drop),
            [shape, store, "kills"] => {
                let undisturbed = rehearse(shape, store, false).await?;
                let killed = rehearse(shape, store, true).await?;
                ensure!(
                    undisturbed == killed,
                    "{undisturbed} without kills, {killed} with them"
                );
                println!("one digest, {killed}");
                Ok(())
            }
            _ => anyhow::bail!("give SHAPE STORE [kills]"),
        }
    })
}

/// A worker process.
async fn work(store: &str, queue: &str, cache: &Path, stages: &str) -> anyhow::Result<()> {
    agentgym_games::provide();
    let stages = stages.split(',').filter(|name| *name != "all");
    let stages: Vec<Stage> = stages
        .map(|name| name.parse().map_err(anyhow::Error::msg))
        .collect::<anyhow::Result<_>>()?;
    let options = WorkerOptions {
        gateway: Default::default(),
        store: Store::open(store).await?,
        queue: Queue::open(queue, QueueOptions::leasing(10)).await?,
        name: agentgym_worker::worker_name(0),
        stages,
        functions: Arc::new(Rehearsed),
        threads: 2,
        device: "cpu".to_owned(),
        dtype: Default::default(),
        run: Some(RUN.parse()?),
        exit_when_finished: true,
        folders: Folders {
            scratch: cache.join("scratch"),
            models: cache.join("models"),
        },
        prefetch: true,
        drain_grace: agentgym_worker::DRAIN_GRACE,
        meters: Default::default(),
        machine: Default::default(),
    };
    let events = tokio::sync::broadcast::channel(1024).0;
    Ok(run_worker(options, events, CancellationToken::new()).await?)
}

/// The real start policy; everything else only moves bytes.
struct Rehearsed;

impl StageFunctions for Rehearsed {
    fn run<'a>(
        &'a self,
        stage: Stage,
        context: &'a mut StageContext,
        outputs: &'a mut Outputs,
    ) -> BoxFuture<'a, Result<Report>> {
        async move {
            match stage {
                Stage::Init => return Stages.run(stage, context, outputs).await,
                Stage::Update => update(context, outputs).await?,
                Stage::Expire => {}
                _ => {
                    let inputs: Vec<String> = context.inputs.names().map(str::to_owned).collect();
                    for (input, kind) in inputs
                        .iter()
                        .flat_map(|input| [(input, "policy"), (input, "adapter")])
                    {
                        if has(context, input, kind)? {
                            context.inputs.folder(input, kind).await?;
                        }
                    }
                    let content = context.part.id.to_string().into();
                    outputs.bytes("records.bin", "rehearsed", content).await?;
                }
            }
            Ok(Report::default())
        }
        .boxed()
    }
}

/// Whether an input has a folder of this name.
fn has(context: &StageContext, input: &str, folder: &str) -> Result<bool> {
    let mut files = context.inputs.artifacts(input)?.iter();
    Ok(files.any(|file| Path::new(&file.name).starts_with(folder)))
}

async fn update(context: &mut StageContext, outputs: &mut Outputs) -> Result<()> {
    let iteration = u64::from(context.part.id.iteration);
    let kind = match has(context, "policy", "adapter")? {
        true => "adapter",
        false => "policy",
    };
    let before = context.inputs.folder("policy", kind).await?;
    let is_narrow = context.plan.config.actor_rollout_ref.model.dtype == SaveDtype::Bf16;
    let width = if is_narrow && kind == "policy" { 2 } else { 4 };
    let mut seed = [iteration, 0];
    if has(context, "policy", "optimizer")? {
        // The state is a function of the one before.
        let folder = context.inputs.folder("policy", "optimizer").await?;
        let mut first = [0; 8];
        File::open(folder.path().join("state.safetensors"))
            .and_then(|mut f| f.read_exact(&mut first))
            .map_err(io)?;
        seed[1] = u64::from_le_bytes(first);
    }
    let folder = context.scratch.join(kind);
    std::fs::create_dir_all(&folder).map_err(io)?;
    let mut numbers = 0;
    let files: Vec<PathBuf> = files_below(before.path());
    for file in files {
        let name = file.file_name().unwrap_or_default().to_owned();
        let to = folder.join(&name);
        if file.extension().is_some_and(|e| e == "safetensors") {
            numbers = change(&file, &to, width, seed[0] ^ seed[1], context).map_err(io)?;
        } else {
            std::fs::copy(&file, &to).map_err(io)?;
        }
    }
    let state = context.scratch.join("optimizer");
    std::fs::create_dir_all(&state).map_err(io)?;
    random(&state.join("state.safetensors"), 8 * numbers, seed, context).map_err(io)?;
    if width == 2 {
        random(
            &state.join("master.safetensors"),
            4 * numbers,
            [seed[1], seed[0]],
            context,
        )
        .map_err(io)?;
    }
    let rhythm = context.plan.config.trainer.full_policy_freq as usize;
    let bases = context.inputs.artifacts("policy")?.to_vec();
    let mut written = Vec::new();
    for file in files_below(&folder) {
        let name = format!(
            "{kind}/{}",
            file.file_name().unwrap_or_default().to_string_lossy()
        );
        let base = bases
            .iter()
            .find(|a| a.name == name && name.ends_with(".safetensors"));
        let made = match base.filter(|a| a.links().count() < rhythm) {
            Some(base) => {
                outputs
                    .differing(&name, kind, &file, base, width, &context.inputs)
                    .await?
            }
            None => outputs.file(&name, kind, &file).await?,
        };
        written.push(made.clone());
    }
    context.inputs.adopt(kind, &written, &folder).await;
    outputs
        .folder_after_commit("optimizer", "optimizer", &state)
        .await?;
    Ok(())
}

fn io(source: std::io::Error) -> agentgym_worker::Error {
    agentgym_worker::Error::Io {
        what: "rehearsing".to_owned(),
        source,
    }
}

/// Numbers without a pattern.
fn mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Writes a file whose last bits differ in some numbers; returns how many numbers it has.
fn change(
    from: &Path,
    to: &Path,
    width: usize,
    seed: u64,
    context: &StageContext,
) -> std::io::Result<u64> {
    let (mut from, mut to) = (File::open(from)?, File::create(to)?);
    let mut length = [0; 8];
    from.read_exact(&mut length)?;
    let mut header = vec![0; u64::from_le_bytes(length) as usize];
    from.read_exact(&mut header)?;
    to.write_all(&length)?;
    to.write_all(&header)?;
    let (mut piece, mut state, mut numbers) = (vec![0; PIECE], seed, 0);
    loop {
        let mut filled = 0;
        while filled < PIECE {
            match from.read(&mut piece[filled..])? {
                0 => break,
                n => filled += n,
            }
        }
        if filled == 0 {
            return Ok(numbers);
        }
        for number in piece[..filled].chunks_exact_mut(width) {
            if mix(&mut state) % 1000 < CHANGED {
                number[0] ^= 1;
            }
        }
        numbers += (filled / width) as u64;
        to.write_all(&piece[..filled])?;
        context.beat.tick();
    }
}

fn random(to: &Path, bytes: u64, seed: [u64; 2], context: &StageContext) -> std::io::Result<()> {
    let (mut file, mut state) = (File::create(to)?, seed[0].rotate_left(32) ^ seed[1]);
    let mut piece = vec![0; PIECE];
    let mut left = bytes;
    while left > 0 {
        let now = left.min(PIECE as u64) as usize;
        for word in piece[..now].chunks_mut(8) {
            let length = word.len();
            word.copy_from_slice(&mix(&mut state).to_le_bytes()[..length]);
        }
        file.write_all(&piece[..now])?;
        left -= now as u64;
        context.beat.tick();
    }
    Ok(())
}

/// Where a rehearsal takes place.
struct Scene {
    folder: tempfile::TempDir,
    s3: Option<S3Server>,
    url: String,
    queue: String,
}

impl Scene {
    fn worker(&self, machine: &str, stages: &str) -> anyhow::Result<Child> {
        let mut command = Command::new(std::env::current_exe()?);
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.folder.path().join(format!("{machine}.log")))?;
        command
            .args(["--bench", "worker", &self.url, &self.queue])
            .arg(self.folder.path().join(machine))
            .arg(stages)
            .stdout(Stdio::null())
            .stderr(log)
            .envs(self.s3.iter().flat_map(S3Server::env));
        Ok(command.spawn()?)
    }

    fn ask(&self, words: &[&str]) -> Command {
        let mut command = program("agentgym-submit");
        command
            .args(words)
            .args(["--store", &self.url, "--queue", &self.queue])
            .envs(self.s3.iter().flat_map(S3Server::env))
            .env("AGENTGYM_CACHE", self.folder.path().join("desk"));
        command
    }

    async fn store(&self) -> anyhow::Result<Store> {
        Ok(match &self.s3 {
            Some(s3) => Store::open_with(&self.url, &s3.env()).await?,
            None => Store::open(&self.url).await?,
        })
    }
}

async fn rehearse(shape: &str, kind: &str, kills: bool) -> anyhow::Result<String> {
    let folder = tempfile::tempdir()?;
    let s3 = match kind {
        "folder" => None,
        "s3" => Some(S3Server::start(&folder.path().join("s3")).await),
        _ => anyhow::bail!("a store is folder or s3"),
    };
    let url = s3.as_ref().map_or_else(
        || folder.path().join("store").display().to_string(),
        |s3| s3.url.clone(),
    );
    let queue = format!("sqlite:{}", folder.path().join("queue.sqlite").display());
    let scene = Scene {
        folder,
        s3,
        url,
        queue,
    };
    let plan = plan(shape)?;
    let store = scene.store().await?;
    store.put_plan(&plan.run, 0, plan.to_bytes().into()).await?;
    println!(
        "{shape}, {kind}, {}",
        if kills { "with kills" } else { "undisturbed" }
    );
    let begun = Instant::now();
    let trainer = "init,log_probs,advantage,update,expire";
    let (mut trains, mut plays) = (
        scene.worker("trainer", trainer)?,
        scene.worker("player", "rollout")?,
    );
    let (mut seen, mut deaths) = (0, 0);
    let update = |iteration, stage: &str| agentgym_storage::PartKey {
        run: plan.run.clone(),
        iteration,
        stage: stage.to_owned(),
        part: 0,
    };
    let (mut largest, mut disk) = ([0; 2], 0);
    while seen < ITERATIONS || trains.try_wait()?.is_none() || plays.try_wait()?.is_none() {
        for (most, process) in largest.iter_mut().zip([&trains, &plays]) {
            *most = peak(process.id()).max(*most);
        }
        if seen < ITERATIONS && store.manifest(&update(seen + 1, "update")).await?.is_some() {
            seen += 1;
            println!(
                "  update {seen} committed after {:.0} s",
                begun.elapsed().as_secs_f64()
            );
            disk = used(scene.folder.path()).max(disk);
            if kills && seen < ITERATIONS {
                // While the state is on its way and the policy is read; then in the middle of the next one.
                for (process, machine, stages) in [
                    (&mut trains, "trainer", trainer),
                    (&mut plays, "player", "rollout"),
                ] {
                    process.kill()?;
                    process.wait()?;
                    // An odd machine is gone with what it held.
                    if seen % 2 == 1 {
                        let _ = std::fs::remove_dir_all(scene.folder.path().join(machine));
                    }
                    *process = scene.worker(machine, stages)?;
                }
                let next = update(seen + 1, "update");
                while store.attempts(&next).await?.is_empty() {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                tokio::time::sleep(Duration::from_secs(2)).await;
                trains.kill()?;
                trains.wait()?;
                trains = scene.worker("trainer", trainer)?;
                deaths += 3;
            }
        }
        ensure!(begun.elapsed().as_secs() < 3600, "it does not end");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    println!(
        "  four iterations in {:.0} s, {deaths} kills; resident at most: trainer {}, player {}; on disk at most {}",
        begun.elapsed().as_secs_f64(),
        megabytes(largest[0]),
        megabytes(largest[1]),
        megabytes(disk)
    );
    let mut digest = String::new();
    let to = scene.folder.path().join("export").display().to_string();
    for words in [
        &["ledger", RUN][..],
        &["digest", RUN],
        &["verify", RUN],
        &[
            "fork",
            RUN,
            "--iteration",
            "4",
            "run.id=child",
            "trainer.total_training_steps=5",
            "jobs.hold=true",
        ],
        &["verify", "child"],
        &["export", RUN, "--iteration", "0", "--to", &to],
    ] {
        let (said, took_s, most) = watched(scene.ask(words))?;
        println!(
            "  {:<8} {took_s:6.1} s, resident {}",
            words[0],
            megabytes(most)
        );
        match words[0] {
            "digest" => {
                digest = said
                    .split_whitespace()
                    .next()
                    .unwrap_or_default()
                    .to_owned()
            }
            "ledger" => print!("{said}"),
            "verify" => print!(
                "{}",
                said.lines()
                    .map(|line| format!("    {line}\n"))
                    .collect::<String>()
            ),
            _ => {}
        }
    }
    Ok(digest)
}

/// Runs a program to its end; returns what it said, the seconds, and its largest resident size.
fn watched(mut command: Command) -> anyhow::Result<(String, f64, u64)> {
    let begun = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut most = 0;
    while child.try_wait()?.is_none() {
        most = peak(child.id()).max(most);
        std::thread::sleep(Duration::from_millis(20));
    }
    let took_s = begun.elapsed().as_secs_f64();
    let output = child.wait_with_output()?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    // A fork that is on hold takes over what it needs, and plays nothing.
    let is_done = output.status.success() || complaint.contains("it is on hold");
    ensure!(is_done, "{}: {complaint}", output.status);
    Ok((
        String::from_utf8_lossy(&output.stdout).into_owned(),
        took_s,
        most,
    ))
}

/// The largest resident size of a process so far, memory of files included.
fn peak(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.unwrap_or(0) * 1024
}

fn used(folder: &Path) -> u64 {
    let files = files_below(folder).into_iter();
    files
        .filter_map(|file| std::fs::metadata(file).ok())
        .map(|m| m.len())
        .sum()
}

fn megabytes(bytes: u64) -> String {
    format!("{} MB", bytes / 1_000_000)
}
