//! Optimizer states that follow their commits: whoever dies before one is stored costs updates that are
//! made again, and no byte of the run.

use crate::durability::{RUN, end, said, submit_config};
use crate::forks::fork;
use crate::weights::{ask, commit_of, killed_after, until};
use agentgym_storage::Store;
use agentgym_tests::files::files_below;
use agentgym_tests::program::{Running, finish, program};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const CONFIG: &str = "configs/smoke.yaml";
const PLAYED: [&str; 6] = [
    "trainer.total_training_steps=8",
    "data.train_batch_size=2",
    "data.tasks=[{env: worlds, ids: 0..1000}]",
    "actor_rollout_ref.actor.ppo_mini_batch_size=1",
    "evaluation.sets=[]",
    "trainer.save_freq=2",
];
const CRITIC: [&str; 2] = [
    "algorithm.adv_estimator=gae",
    "critic.ppo_mini_batch_size=1",
];

/// How many updates were made again, by the commits of the run that say so.
async fn made_again(store: &Path) -> BTreeMap<String, u64> {
    let store = Store::open(&store.display().to_string()).await.unwrap();
    let mut again = BTreeMap::new();
    for slot in store.all_commits(&RUN.parse().unwrap()).await.unwrap() {
        let work = store.manifest(&slot).await.unwrap().unwrap().work.unwrap();
        if let Some(made) = work.stats.get("updates_made_again") {
            again.insert(slot.to_string(), made.as_u64().unwrap());
        }
    }
    again
}

/// The iterations whose updates' states are in the store.
fn stored(store: &Path) -> Vec<u32> {
    let files = files_below(&store.join(format!("runs/{RUN}/files"))).into_iter();
    let files = files.map(|file| file.display().to_string());
    let states =
        files.filter(|f| f.contains("/update/") && f.ends_with("optimizer/state.safetensors"));
    let of = |file: String| {
        let (_, rest) = file.split_once("/files/").unwrap();
        rest[..8].parse().unwrap()
    };
    states.map(of).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn states_that_are_not_stored_are_made_again_to_the_bit() {
    for more in [&[][..], &CRITIC] {
        let settings = |own: &'static str| {
            let all = PLAYED.iter().chain(more).copied();
            all.chain([own]).collect::<Vec<_>>()
        };
        let whole = TempDir::new().unwrap();
        let plain = submit_config(CONFIG, whole.path(), &settings("trainer.state_freq=1"));
        let digest = end(plain, whole.path());
        assert_eq!(
            made_again(whole.path()).await,
            BTreeMap::new(),
            "nobody died"
        );
        assert_eq!(stored(whole.path()), [7, 8]);

        let never = TempDir::new().unwrap();
        let undisturbed = submit_config(CONFIG, never.path(), &settings("trainer.state_freq=9"));
        assert_eq!(end(undisturbed, never.path()), digest);
        assert_eq!(
            made_again(never.path()).await,
            BTreeMap::new(),
            "its worker held each"
        );
        assert_eq!(stored(never.path()), [8]);

        let seldom = TempDir::new().unwrap();
        let settings = settings("trainer.state_freq=3");
        let command = || submit_config(CONFIG, seldom.path(), &settings);
        let kills = ("update", &[2, 5, 7][..]);
        assert_eq!(killed_after(kills, seldom.path(), command), digest);
        let again = made_again(seldom.path()).await;
        let models = 1 + u64::from(!more.is_empty());
        // Of iterations 1 and 2, of 4 and 5, and of 7: what lies after a state that is stored.
        let all: u64 = again.values().sum();
        assert!((1..=5 * models).contains(&all), "{again:?}");
        let ledger = said(ask(&["ledger", RUN], seldom.path()));
        assert!(
            ledger.contains(&format!("{all} updates made again in ")),
            "{ledger}"
        );
        // Seven is made again from six, which goes once the last one is there.
        let left = stored(seldom.path());
        assert!(left == [6, 8] || left == [8], "{left:?}");
        let verified = said(ask(&["verify", RUN], seldom.path()));
        assert!(
            verified.contains("whole") && verified.contains("not stored"),
            "{verified}"
        );

        // Where the machine lives on, its next process finds what the one before has written since the
        // update.
        if more.is_empty() {
            continue;
        }
        let (same, machine) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        let command = || {
            let mut command = submit_config(CONFIG, same.path(), &settings);
            command.env("AGENTGYM_CACHE", machine.path());
            command
        };
        let kills = ("rollout", &[3, 6, 8][..]);
        assert_eq!(killed_after(kills, same.path(), command), digest);
        assert_eq!(made_again(same.path()).await, BTreeMap::new());
        let left = files_below(machine.path());
        let models = |file: &PathBuf| file.extension().is_some_and(|e| e == "safetensors");
        assert!(!left.iter().any(models), "the last process leaves {left:?}");
    }
}

/// A fork has not the batches that a state is made from, so it names what works.
#[test]
fn a_fork_from_a_state_that_is_not_stored_names_what_works() {
    let folder = TempDir::new().unwrap();
    let store = folder.path();
    let few = ["trainer.total_training_steps=3", "trainer.state_freq=9"];
    let settings = [&PLAYED[..], &few].concat();
    end(submit_config(CONFIG, store, &settings), store);
    let refused = finish(fork(store, &["--iteration", "2", "run.id=a"]));
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(why.contains("iteration 2 is not stored"), "{why}");
    let given = "--iteration 2 --fresh-optimizer";
    assert!(why.contains(given), "{why}");
    let words: Vec<&str> = given.split(' ').chain(["run.id=a"]).collect();
    said(fork(store, &words));
    assert!(said(ask(&["resume", "a"], store)).contains("digest"));
}

/// Everything but an update is there, and its state was in a machine that is gone.
#[test]
fn why_says_what_is_made_again_first() {
    let folder = TempDir::new().unwrap();
    let store = folder.path();
    let few = ["trainer.total_training_steps=4", "trainer.state_freq=9"];
    let settings = [&PLAYED[..], &few].concat();
    let advantage = commit_of(store, "advantage", 3);
    let mut running = Running::start(submit_config(CONFIG, store, &settings));
    until(&mut running, || commit_of(store, "update", 2).exists());
    running.kill();
    let mut others = program("agentgym-worker");
    others
        .args(["--stages", "rollout,log_probs,advantage", "--threads", "2"])
        .arg("--store")
        .arg(store);
    let mut running = Running::start(others);
    until(&mut running, || advantage.exists());
    running.kill();
    let why = said(ask(&["why", RUN, "3/update/0"], store));
    let words = "not stored: a worker that does not hold it makes 2 updates again first";
    assert!(
        why.contains(words) && why.contains("numeric class cpu-f32"),
        "{why}"
    );
    // Machines that make updates again leave nothing to say.
    end(submit_config(CONFIG, store, &settings), store);
    let why = said(ask(&["why", RUN, "3/update/0"], store));
    assert!(!why.contains("again"), "{why}");
}

#[test]
fn rhythms_that_mean_nothing_are_refused() {
    let folder = TempDir::new().unwrap();
    for (given, words) in [
        ("trainer.state_freq=0", "trainer.state_freq"),
        ("trainer.state_freq=2 run.numerics=any", "run.numerics"),
    ] {
        let given: Vec<&str> = given.split(' ').collect();
        let output = finish(submit_config(CONFIG, folder.path(), &given));
        let why = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{why}");
        assert!(why.contains(words), "{why}");
    }
}
