//! A run computed in bf16 on a processor that has the instructions.

use crate::evidence;
use agentgym_tests::program::{Running, finish, program, workspace};
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use tempfile::TempDir;

fn submit(store: &Path, dtype: &str) -> Command {
    let mut command = program("agentgym-submit");
    command.args(["--quiet", "--dtype", dtype, "--store"]);
    command.arg(store);
    command
}

fn smoke(store: &Path, dtype: &str) -> Command {
    let mut command = submit(store, dtype);
    command.arg(workspace().join("configs/smoke.yaml"));
    command.args(["run.id=halved", "trainer.total_training_steps=3"]);
    command.args(["evaluation.sets=[]", "algorithm.verify_log_probs=1.0"]);
    command
}

fn committed(store: &Path) -> usize {
    let commits = store.join("runs/halved/commits");
    match commits.exists() {
        true => agentgym_tests::files::files_below(&commits).len(),
        false => 0,
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Every sampled log-prob is scored again, and a difference would stop the run.
#[test]
fn a_killed_run_in_bf16_ends_equal_and_is_carried_on_in_bf16_alone() {
    #[cfg(target_arch = "x86_64")]
    let has = std::arch::is_x86_feature_detected!("avx512bf16");
    #[cfg(not(target_arch = "x86_64"))]
    let has = false;
    if !has {
        return eprintln!("this processor has no AVX-512 BF16");
    }
    let digest = |store: &Path, dtype: &str| {
        let mut command = submit(store, dtype);
        command.args(["digest", "halved"]);
        String::from_utf8(finish(command).stdout).unwrap()
    };
    let whole = TempDir::new().unwrap();
    let ended = finish(smoke(whole.path(), "bf16"));
    assert!(ended.status.success(), "{}", said(&ended));
    println!("{}", evidence::learnt_now(whole.path(), "halved"));

    let broken = TempDir::new().unwrap();
    for kill in 1..=2 {
        let (begun, mut running) = (Instant::now(), Running::start(smoke(broken.path(), "bf16")));
        while committed(broken.path()) < 8 * kill && !running.has_ended() {
            assert!(begun.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(!running.has_ended());
        running.kill();
    }
    // It is not carried on otherwise, nor waited for.
    let refused = finish(smoke(broken.path(), "f32"));
    assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
    let fits = "give --device cpu --dtype bf16";
    for word in [
        "class cpu-bf16-1,",
        "--dtype f32",
        "cpu-f32-2",
        fits,
        "run.numerics=any",
    ] {
        assert!(said(&refused).contains(word), "{word}: {}", said(&refused));
    }
    let ended = finish(smoke(broken.path(), "bf16"));
    assert!(ended.status.success(), "{}", said(&ended));
    assert_eq!(digest(broken.path(), "bf16"), digest(whole.path(), "bf16"));
    // What is finished is shown under any.
    let shown = finish(smoke(broken.path(), "f32"));
    assert!(shown.status.success(), "{}", said(&shown));

    let exact = TempDir::new().unwrap();
    assert!(finish(smoke(exact.path(), "f32")).status.success());
    assert_ne!(digest(exact.path(), "f32"), digest(whole.path(), "bf16"));
}
