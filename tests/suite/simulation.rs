//! Seeded simulations ("worlds"): the production planner, worker, queue loop and store code in one
//! thread and in simulated time, with processes that die at any await point, queues that lose state
//! and stores that report wrong results.
//!
//! *Safety*: exactly one commit per part; no worker begins a part after it has seen its commit; no
//! object is overwritten, and none is deleted unless a tombstone names it; the digest is that of an
//! undisturbed run. *Liveness*: once faults stop, the run ends.
//!
//! To replay a failing seed with its event log, run
//! `AGENTGYM_SEED=N cargo test --release --workspace -- --nocapture worlds_keep`.

mod expiry;
mod queue;
mod scenario;
mod stages;
mod store;
mod turns;
mod world;

pub(crate) use queue::{Server, SimulatedDriver};
use scenario::{
    Ending, PLAYED, SHAPES, play, play_with_a_death, play_with_a_sick_one, play_with_panics,
};
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;
use world::{Counts, Sickness};

/// Seeds of the ordinary test run.
const SOME: Range<u64> = 0..200;
/// Seeds of the long test run.
const MANY: Range<u64> = 0..10_000;
const THREADS: usize = 2;

/// The digest of an undisturbed run of this shape.
fn undisturbed(shape: usize) -> &'static str {
    static DIGESTS: [OnceLock<String>; SHAPES.len()] = [const { OnceLock::new() }; SHAPES.len()];
    DIGESTS[shape].get_or_init(|| {
        let ending = play_with_a_death(shape, 0);
        assert_eq!(ending.violations, [""; 0], "shape {shape}, undisturbed");
        assert_eq!(ending.counts.races, 0);
        ending.digest
    })
}

/// What is wrong with the end state of a world.
fn complaints(ending: &Ending) -> Vec<String> {
    let mut found = ending.violations.clone();
    if ending.digest != undisturbed(ending.shape) {
        found.push(format!(
            "the digest is {} instead of {}",
            ending.digest,
            undisturbed(ending.shape)
        ));
    }
    found
}

/// Plays seeds on several threads.
fn play_all(seeds: Range<u64>) {
    let (next, begun) = (AtomicU64::new(seeds.start), Instant::now());
    let work = || {
        let (mut counts, mut failed) = (Counts::default(), Vec::new());
        loop {
            let seed = next.fetch_add(1, Relaxed);
            if seed >= seeds.end {
                return (counts, failed);
            }
            let ending = play(seed, false);
            counts.add(&ending.counts);
            let complaints = complaints(&ending);
            if !complaints.is_empty() {
                failed.push(format!("seed {seed}: {}", complaints.join("; ")));
            }
        }
    };
    let (mut counts, mut failed) = (Counts::default(), Vec::new());
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
        for thread in threads {
            let (c, mut f) = thread.join().unwrap();
            counts.add(&c);
            failed.append(&mut f);
        }
    });
    let worlds = seeds.end - seeds.start;
    println!(
        "{worlds} worlds in {:.1} s: {counts:?}",
        begun.elapsed().as_secs_f64()
    );
    assert!(counts.losses > 0, "a worker without its device must leave");
    assert!(counts.panics > 0, "somebody must panic");
    assert!(
        failed.is_empty(),
        "{} of {worlds} worlds broke a promise; play one again with AGENTGYM_SEED=N:\n{}",
        failed.len(),
        failed.join("\n")
    );
}

#[test]
fn worlds_keep_every_promise() {
    let Ok(seed) = std::env::var("AGENTGYM_SEED") else {
        return play_all(SOME);
    };
    let ending = play(seed.parse().expect("AGENTGYM_SEED is a number"), true);
    for line in &ending.lines {
        println!("{line}");
    }
    println!("{:?}", ending.counts);
    assert_eq!(complaints(&ending), [""; 0]);
}

/// A task that a panic ends is not begun again while its process lives.
#[test]
fn a_panic_in_any_task_ends_no_task() {
    for seed in 0..20 {
        let ending = play_with_panics(seed);
        assert!(ending.counts.panics > 0, "seed {seed}");
        assert_eq!(complaints(&ending), [""; 0], "seed {seed}");
    }
}

/// Every point at which a process can die, with one world for each.
#[test]
#[ignore = "takes minutes; the next test takes every 23rd"]
fn a_death_at_any_point_changes_nothing() {
    for shape in 0..PLAYED as usize {
        deaths(shape, 1);
    }
}

#[test]
fn a_death_at_some_points_changes_nothing() {
    deaths(2, 23);
}

fn deaths(shape: usize, step: usize) {
    let points = play_with_a_death(shape, 0).counts.points;
    let mut failed = Vec::new();
    for point in (1..=points).step_by(step) {
        let ending = play_with_a_death(shape, point);
        assert_eq!(ending.counts.kills, 1, "shape {shape}, point {point}");
        let complaints = complaints(&ending);
        if !complaints.is_empty() {
            failed.push(format!("point {point}: {}", complaints.join("; ")));
        }
    }
    println!("shape {shape}: {points} points, every {step}.");
    assert!(failed.is_empty(), "shape {shape}:\n{}", failed.join("\n"));
}

#[test]
#[ignore = "takes minutes; docs/reliability.md has its figures"]
fn ten_thousand_worlds_keep_every_promise() {
    play_all(MANY);
}

/// Whatever one of four workers suffers for good, the others end the run in nearly the time that
/// they take without it, and it begins nothing once its trouble has outlasted half a minute.
#[test]
fn a_sick_worker_hurts_itself_alone() {
    let shape = PLAYED as usize;
    let (alone, healthy, _) = play_with_a_sick_one(shape, None);
    let mut failed = Vec::new();
    for sickness in Sickness::ALL {
        let (took, ending, late) = play_with_a_sick_one(shape, Some(sickness));
        let ratio = took.as_secs_f64() / alone.as_secs_f64();
        println!("{sickness:?}: {took:?} of {alone:?}, {ratio:.3}; begun late {late}");
        let mut complaints = ending.violations;
        if ending.digest != healthy.digest {
            complaints.push("the digest differs".to_owned());
        }
        if ending.counts.resumes > 0 {
            complaints.push("the run was stopped".to_owned());
        }
        if ratio > 1.1 {
            complaints.push(format!("it took {ratio:.2} times as long"));
        }
        if late > 0 {
            complaints.push(format!("it began {late} parts"));
        }
        if !complaints.is_empty() {
            failed.push(format!("{sickness:?}: {}", complaints.join("; ")));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn retention_deletes_nothing_that_somebody_needs() {
    for seed in 0..200 {
        assert_eq!(expiry::play(seed), [""; 0], "seed {seed}");
    }
}

#[test]
fn the_same_seed_gives_the_same_events() {
    for seed in 0..12 {
        let (one, two) = (play(seed, true), play(seed, true));
        let first = one.lines.iter().zip(&two.lines).position(|(a, b)| a != b);
        if let Some(at) = first {
            panic!(
                "seed {seed} parts ways at event {at}:\n{}\n{}",
                one.lines[at], two.lines[at]
            );
        }
        assert_eq!(
            (one.hash, one.counts),
            (two.hash, two.counts),
            "seed {seed}"
        );
        assert!(one.lines.len() > 100, "seed {seed}: a world of few events");
    }
    assert_ne!(play(0, false).hash, play(1, false).hash);
}
