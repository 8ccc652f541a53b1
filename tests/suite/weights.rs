//! Policies in bf16, and policies that are stored as differences: no digest knows how, kills change
//! nothing, retention keeps what others are read from, and what is lost is named.

use crate::durability::{RUN, end, said, submit_config, submit_to};
use crate::forks::{equal, fork};
use agentgym_storage::{Artifact, Key, Manifest, PartKey, RunId, Store};
use agentgym_tests::files::files_below;
use agentgym_tests::program::{Running, finish, program};
use agentgym_tests::s3::S3Server;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

const CONFIG: &str = "configs/smoke.yaml";
const ITERATIONS: u32 = 8;
const PLAYED: [&str; 9] = [
    // Small differences.
    "actor_rollout_ref.actor.optim.lr=1e-5",
    "sft.lr=1e-5",
    "actor_rollout_ref.model.dtype=bf16",
    "trainer.total_training_steps=8",
    "trainer.save_freq=3",
    "data.train_batch_size=4",
    "data.tasks=[{env: worlds, ids: 0..1000}]",
    "actor_rollout_ref.actor.ppo_mini_batch_size=2",
    "evaluation.sets=[]",
];
const RHYTHM: &str = "trainer.full_policy_freq=4";

fn settings(more: &'static str) -> Vec<&'static str> {
    PLAYED.into_iter().chain([more]).collect()
}

pub(crate) fn ask(words: &[&str], store: &Path) -> Command {
    let mut command = program("agentgym-submit");
    command.args(words).arg("--store").arg(store);
    command
}

/// Plays the run and kills its process as soon as the first part of a stage of these iterations is
/// committed.
pub(crate) fn killed_after(
    (stage, iterations): (&str, &[u32]),
    store: &Path,
    command: impl Fn() -> Command,
) -> String {
    for iteration in iterations {
        let mut running = Running::start(command());
        let commit = commit_of(store, stage, *iteration);
        until(&mut running, || commit.exists());
        running.kill();
    }
    end(command(), store)
}

/// Where the commit of the first part of an iteration's stage is.
pub(crate) fn commit_of(store: &Path, stage: &str, iteration: u32) -> PathBuf {
    store.join(format!(
        "runs/{RUN}/commits/{iteration:08}/{stage}/000000.json"
    ))
}

/// Waits for what a process does before it ends.
pub(crate) fn until(running: &mut Running, is_done: impl Fn() -> bool) {
    while !is_done() {
        assert!(!running.has_ended());
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The commit that made the policy of an iteration.
async fn update(store: &Store, iteration: u32) -> Manifest {
    let slot = PartKey {
        run: RUN.parse::<RunId>().unwrap(),
        iteration,
        stage: "update".into(),
        part: 0,
    };
    store.manifest(&slot).await.unwrap().unwrap()
}

fn weights(manifest: &Manifest) -> &Artifact {
    manifest.output("policy/model.safetensors").unwrap()
}

/// An update that changes no weight stores next to nothing.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_equal_is_not_written_again() {
    let folder = TempDir::new().unwrap();
    let settings = [
        "actor_rollout_ref.actor.optim.lr=1e-300",
        "trainer.total_training_steps=3",
        "evaluation.sets=[]",
    ];
    end(
        submit_config(CONFIG, folder.path(), &settings),
        folder.path(),
    );
    let store = Store::open(&folder.path().display().to_string())
        .await
        .unwrap();
    let mut keys = BTreeSet::new();
    for iteration in 1..=3 {
        let manifest = update(&store, iteration).await;
        let found = weights(&manifest);
        assert_eq!(found.links().count(), 2, "iteration {iteration}");
        assert!(found.stored_size() < found.size / 100, "{found:?}");
        keys.extend(found.links().last().map(|whole| whole.key.path()));
    }
    assert_eq!(keys.len(), 1, "one is stored whole: {keys:?}");
    assert!(said(ask(&["verify", RUN], folder.path())).contains("whole"));
    assert!(folder.path().join(keys.first().unwrap()).exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn differences_show_nowhere_and_what_they_need_stays() {
    let (whole, killed) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let plain = submit_config(
        CONFIG,
        whole.path(),
        &settings("trainer.full_policy_freq=1"),
    );
    let digest = end(plain, whole.path());
    let seldom = settings(RHYTHM);
    let command = || submit_config(CONFIG, killed.path(), &seldom);
    assert_eq!(
        killed_after(("update", &[2, 5, 6]), killed.path(), command),
        digest
    );
    assert!(said(ask(&["verify", RUN], killed.path())).contains("whole"));

    // Full bytes every fourth time, and smaller ones between.
    let store = Store::open(&killed.path().display().to_string())
        .await
        .unwrap();
    let mut needed = BTreeSet::new();
    for iteration in 1..=ITERATIONS {
        let manifest = update(&store, iteration).await;
        let found = weights(&manifest);
        // Iteration 0 has three: the first one, and those of the warm start's two parts.
        let links = (iteration as usize + 2) % 4 + 1;
        assert_eq!(found.links().count(), links, "iteration {iteration}");
        assert!(links == 1 || found.stored_size() < found.size / 2);
        if iteration % 3 == 0 || iteration + 2 > ITERATIONS {
            needed.extend(found.keys());
        }
    }
    // What went is not named at every later update.
    let mut named = BTreeMap::<String, usize>::new();
    for tombstone in files_below(&killed.path().join(format!("runs/{RUN}/expired"))) {
        let text = std::fs::read(tombstone).unwrap();
        let keys: serde_json::Value = serde_json::from_slice(&text).unwrap();
        for key in keys["keys"].as_array().unwrap() {
            *named.entry(key.to_string()).or_default() += 1;
        }
    }
    // Iterations that are evaluated, the even ones, are looked at for longer.
    named.retain(|key, _| {
        ["/00000001/", "/00000003/"]
            .iter()
            .any(|of| key.contains(of))
    });
    let often: Vec<_> = named.iter().filter(|(_, times)| **times > 2).collect();
    assert!(often.is_empty() && !named.is_empty(), "{often:?}");

    // No file stays that nobody reads, and of those that stay all can be read.
    let on_disk: BTreeSet<String> = files_below(&killed.path().join("runs"))
        .into_iter()
        .filter(|file| file.ends_with("policy/model.safetensors"))
        .map(|file| {
            file.strip_prefix(killed.path())
                .unwrap()
                .display()
                .to_string()
        })
        .filter(|file| file.contains("/update/"))
        .collect();
    let needed: BTreeSet<String> = needed
        .iter()
        .map(Key::path)
        .filter(|key| key.contains("/update/"))
        .collect();
    assert_eq!(on_disk, needed);
    let export = |store: &Path, iteration: u32| {
        let to = TempDir::new().unwrap();
        let (of, place) = (iteration.to_string(), to.path().display().to_string());
        said(ask(
            &["export", RUN, "--iteration", &of, "--to", &place],
            store,
        ));
        let read = |name: &str| std::fs::read(to.path().join("policy_after").join(name)).unwrap();
        let config = String::from_utf8(read("config.json")).unwrap();
        assert!(config.contains("bfloat16"), "{config}");
        read("model.safetensors")
    };
    for iteration in [3, 6, 7, 8] {
        let both = [&whole, &killed].map(|folder| export(folder.path(), iteration));
        assert!(both[0] == both[1], "iteration {iteration}");
    }

    // A fork reads its parent's chain, and pins it.
    said(fork(killed.path(), &["--iteration", "7", "run.id=child"]));
    for part in [(8, "rollout", 0), (8, "update", 0)] {
        assert!(equal(killed.path(), "child", part).await, "{part:?}");
    }
    assert!(said(ask(&["verify", "child"], killed.path())).contains("whole"));
    let pins =
        std::fs::read_to_string(killed.path().join(format!("runs/{RUN}/pins/child.json"))).unwrap();
    for key in weights(&update(&store, 7).await).keys() {
        assert!(pins.contains(&key.path()), "{key}");
    }

    let refused = finish(fork(killed.path(), &["--iteration", "3", "run.id=old"]));
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(
        text.contains("bf16 numbers") && text.contains("--fresh-optimizer"),
        "{text}"
    );

    // What it needs of another iteration is named where that is gone.
    let base = weights(&update(&store, 6).await).key.path();
    std::fs::remove_file(killed.path().join(&base)).unwrap();
    let to = killed.path().join("export").display().to_string();
    for words in [
        &["verify", RUN][..],
        &["export", RUN, "--iteration", "8", "--to", &to],
    ] {
        let mut command = ask(words, killed.path());
        // What was exported above is on this machine.
        command.env("AGENTGYM_CACHE", killed.path().join("cache"));
        let refused = finish(command);
        let text = [refused.stdout, refused.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        assert!(!refused.status.success() && text.contains(&base), "{text}");
    }
}

/// Where policies are downloaded, a machine's own stay in its cache.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_of_objects_gives_the_same_digest() {
    let (folder, objects) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    // Larger differences, and no rhythm: a chain ends before it takes long to read.
    let large = ["actor_rollout_ref.actor.optim.lr=1e-4"];
    let settings = [&settings("trainer.full_policy_freq=20")[..], &large].concat();
    let digest = end(
        submit_config(CONFIG, folder.path(), &settings),
        folder.path(),
    );
    let place = folder.path().display().to_string();
    let (store, mut chains) = (Store::open(&place).await.unwrap(), BTreeSet::new());
    for iteration in 1..=ITERATIONS {
        let manifest = update(&store, iteration).await;
        let found = weights(&manifest);
        let (links, read) = (found.links(), found.links().map(Artifact::stored_size));
        let read: u64 = read.sum();
        assert!(read <= found.size / 10 * 14, "{read} of {}", found.size);
        chains.insert(links.count());
    }
    assert!(chains.contains(&1) && chains.len() > 1, "{chains:?}");
    let server = S3Server::start(objects.path()).await;
    let queue = format!(
        "queue.url=sqlite:{}",
        folder.path().join("q.sqlite").display()
    );
    let mut submit = submit_to(CONFIG, &server.url, &settings);
    submit.arg(queue).envs(server.env());
    let mut asked = program("agentgym-submit");
    asked
        .args(["digest", RUN, "--store", &server.url])
        .envs(server.env());
    let found = tokio::task::spawn_blocking(move || {
        said(submit);
        said(asked)
    });
    let id = |text: &str| text.split_whitespace().next().unwrap().to_owned();
    assert_eq!(id(&found.await.unwrap()), id(&digest));
}
