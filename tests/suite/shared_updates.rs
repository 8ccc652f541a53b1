//! An update whose gradients are shared by several jobs equals the update by one job byte for byte:
//! policy, optimizer and records, with any number of shards, threads and kills, for a whole model
//! and for an adapter.

use crate::durability::{RUN, SHORT, end, no_part_started_after_its_commit, said, submit_config};
use crate::evidence::learnt_now;
use crate::strikes::{made_good, strikes};
use agentgym_storage::Store;
use agentgym_tests::files::files_below;
use agentgym_tests::program::program;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// Two minibatches of four to seven units each, twice: four steps per iteration.
const SMALL: [&str; 7] = [
    SHORT[0],
    SHORT[1],
    SHORT[2],
    SHORT[3],
    SHORT[4],
    "jobs.unit_tokens=400",
    "sft.steps=4",
];

fn smoke(store: &Path, bindings: &[&str]) -> Command {
    let bindings = [&SMALL[..], bindings].concat();
    submit_config("configs/smoke.yaml", store, &bindings)
}

/// The inputs and outputs of the second update, by file; only `export.json` shows that it is
/// another run.
fn exported(store: &Path) -> BTreeMap<String, Vec<u8>> {
    let folder = TempDir::new().unwrap();
    let to = folder.path().join("2");
    let mut export = program("agentgym-submit");
    export.args(["export", RUN, "--iteration", "2", "--to"]);
    export.arg(&to).arg("--store").arg(store);
    said(export);
    let read = |path: PathBuf| {
        let name = path.strip_prefix(&to).unwrap().display().to_string();
        (name, std::fs::read(&path).unwrap())
    };
    let mut files: BTreeMap<_, _> = files_below(&to).into_iter().map(read).collect();
    files.remove("export.json");
    assert!(files.len() > 8, "{:?}", files.keys());
    files
}

fn assert_equal(expected: &BTreeMap<String, Vec<u8>>, store: &Path, how: &str) {
    let found = exported(store);
    assert!(
        found.keys().eq(expected.keys()),
        "{how}: {:?}",
        found.keys()
    );
    for (name, bytes) in found {
        assert!(bytes == expected[&name], "{how}: {name} differs");
    }
}

async fn any_number_of_shards_gives(more: &[&str], killed_at: u64) {
    let with = |bindings: &[&'static str]| [more, bindings].concat();
    let whole = TempDir::new().unwrap();
    end(
        smoke(whole.path(), &with(&["jobs.threads=2"])),
        whole.path(),
    );
    learnt_now(whole.path(), RUN);
    let expected = exported(whole.path());
    // The sum of two units, or of two pairs, is the same in any order.
    let update: Value = serde_json::from_slice(&expected["update.json"]).unwrap();
    let steps = update["minibatches"].as_array().unwrap();
    let units = steps
        .iter()
        .map(|step| step["units"].as_array().unwrap().len());
    let units: Vec<usize> = units.collect();
    assert!(
        units.iter().any(|count| *count > 2 && count % 2 == 1),
        "{units:?}"
    );
    for (shards, threads) in [("2", "1"), ("4", "2")] {
        let folder = TempDir::new().unwrap();
        let shards = format!("jobs.update_shards={shards}");
        let threads = format!("jobs.threads={threads}");
        let bindings = [more, &[&shards, &threads]].concat();
        end(smoke(folder.path(), &bindings), folder.path());
        assert_equal(&expected, folder.path(), &shards);
    }
    // More shards than some minibatches have units, with kills.
    let folder = TempDir::new().unwrap();
    let store = folder.path();
    let killed = with(&["jobs.update_shards=7", "jobs.threads=1"]);
    let struck = strikes((store, RUN), killed_at, 4, || smoke(store, &killed)).await;
    end(smoke(store, &with(&["jobs.update_shards=7"])), store);
    no_part_started_after_its_commit(store).await;
    assert_equal(&expected, store, "seven shards and kills");
    made_good(
        &Store::open(&store.display().to_string()).await.unwrap(),
        &struck,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn shards_of_a_gradient_do_not_show() {
    any_number_of_shards_gives(&[], 61).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nor_do_those_of_an_adapters() {
    let lora = ["actor_rollout_ref.model.lora_rank=4"];
    any_number_of_shards_gives(&lora, 67).await;
}

/// What `plan` says an iteration moves is what its attempts then say that they moved.
#[test]
fn plan_counts_what_shards_move() {
    let folder = TempDir::new().unwrap();
    let store = folder.path();
    // Two units a minibatch, one for each shard: others leave several sums of gradients.
    let shards = ["jobs.update_shards=2", "jobs.unit_tokens=800"];
    let asked = |words: &[&str], settings: &[&str]| -> Value {
        let mut asks = program("agentgym-submit");
        asks.args(["--json", "--store"])
            .arg(store)
            .args(words)
            .args(settings);
        serde_json::from_str(&said(asks)).unwrap()
    };
    let settings = [&SMALL[..], &shards].concat();
    let plan = asked(&["plan", "configs/smoke.yaml"], &settings);
    end(smoke(store, &shards), store);
    let ledger = asked(&["ledger", RUN], &[]);
    let iterations = plan["iterations"].as_f64().unwrap();
    for stage in ["update", "gradient"] {
        let moved = &plan["sizes"]["moves"][stage];
        let lines = ledger["stages"].as_array().unwrap();
        let line = lines.iter().find(|line| line["stage"] == stage).unwrap();
        let share =
            |of: &str| line[of].as_f64().unwrap() / iterations / moved[of].as_f64().unwrap();
        let (put, got) = (share("put_bytes"), share("got_bytes"));
        assert!(
            (1.0..1.1).contains(&put),
            "{stage}: {put} of {moved}, {line}"
        );
        // The policy is in the worker's memory, and the first update has no state to read.
        assert!(
            (0.0..1.1).contains(&got),
            "{stage}: {got} of {moved}, {line}"
        );
        assert!(stage == "gradient" || got > 0.5, "{got} of {moved}, {line}");
    }
    let of_update = ledger["iterations"][1]["put_bytes"].as_f64().unwrap();
    assert!(
        of_update
            > plan["sizes"]["moves"]["update"]["put_bytes"]
                .as_f64()
                .unwrap()
    );
    let (asked_s, waited_s) = (
        &ledger["total"]["store_s"],
        &ledger["total"]["store_waited_s"],
    );
    assert!(
        waited_s.as_f64() > Some(0.0) && waited_s.as_f64() <= asked_s.as_f64(),
        "{ledger}"
    );
}
