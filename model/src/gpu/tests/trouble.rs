//! A device whose memory is too small for a computation at once, and one that is lost. Always
//! emulated.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::policies::{TEMPERATURE, coefficients, generate, scores, turns, units};
use crate::gpu::emulator::{Limits, Order, limited};
use crate::tests::{SHAPES, random_policy, requests, sequences};
use crate::{AdamW, ComputeOptions, Device, Dtype, EngineOptions, Error, Policy, Trainer, Verdict};

/// A policy on a device with limits.
fn on_limited(policy: &Policy) -> (Policy, Arc<Limits>) {
    let limits = Arc::<Limits>::default();
    let gpu = limited(Order::Ascending, Dtype::F32, Arc::clone(&limits));
    (policy.on(&Device::of(gpu)).unwrap(), limits)
}

/// Runs `work` with enough memory, then with less and less memory beside the policy until it
/// fails; as long as it does not, its result must be the same. Returns how often it succeeded
/// although allocations were refused.
fn with_ever_less<T: PartialEq>(
    policy: &Policy,
    work: impl Fn(&Policy) -> crate::Result<T>,
) -> usize {
    let (roomy, limits) = on_limited(policy);
    let own = limits.peak.load(Relaxed);
    let expected = work(&roomy).unwrap();
    let needed = limits.peak.load(Relaxed) - own;
    let mut made_do = 0;
    for percent in (5..100).rev().step_by(10) {
        let (tight, limits) = on_limited(policy);
        limits.bytes.store(own + needed * percent / 100, Relaxed);
        match work(&tight) {
            Ok(found) => assert!(found == expected, "{percent} % of the memory shows"),
            Err(Error::DeviceFull { .. }) => break,
            Err(other) => panic!("{other}"),
        }
        made_do += usize::from(limits.refused.load(Relaxed) > 0);
        // Two are enough, since emulation is slow.
        if made_do == 2 {
            break;
        }
    }
    made_do
}

#[test]
fn generation_with_less_memory_gives_the_same_turns() {
    let policy = random_policy(SHAPES[4], 7);
    let turns = turns(policy.config().vocab_size);
    let made_do = with_ever_less(&policy, |policy| {
        let options = EngineOptions {
            prefill_chunk: 64,
            ..EngineOptions::default()
        };
        let mut engine = crate::Engine::new(policy.clone(), options);
        for turn in &turns {
            engine.submit(turn.clone())?;
        }
        let mut done = Vec::new();
        while !engine.is_idle() {
            done.extend(engine.step()?);
        }
        done.sort_by_key(|turn| turn.sequence);
        Ok(done)
    });
    assert!(made_do >= 2, "{made_do}");
}

/// A device that cannot record, or only once, computes the same.
#[test]
fn a_device_that_cannot_record_gives_the_same_turns() {
    let policy = random_policy(SHAPES[4], 7);
    let turns = turns(policy.config().vocab_size);
    let done = [usize::MAX, 0, 1].map(|recordings| {
        let (policy, limits) = on_limited(&policy);
        limits.recordings.store(recordings, Relaxed);
        // Three rows, so that one padding row is added.
        generate(&policy, &turns[..3], EngineOptions::default())
    });
    assert!(done[0] == done[1] && done[0] == done[2]);
}

/// In any kind of step: ordinary, recorded or replayed.
#[test]
fn a_device_lost_while_it_generates_ends_that() {
    let policy = random_policy(SHAPES[4], 7);
    let turns = turns(policy.config().vocab_size);
    for steps in 0..6 {
        let (policy, limits) = on_limited(&policy);
        let mut engine = crate::Engine::new(policy, EngineOptions::default());
        engine.submit(turns[0].clone()).unwrap();
        for _ in 0..steps {
            engine.step().unwrap();
        }
        limits.launches.store(3, Relaxed);
        for _ in 0..2 {
            assert!(matches!(engine.step(), Err(Error::DeviceLost { .. })));
        }
    }
}

#[test]
fn scores_with_less_memory_are_the_same() {
    let policy = random_policy(SHAPES[4], 7);
    let sequences = sequences(policy.config().vocab_size, &[140, 130, 3, 150, 120], 2);
    let made_do = with_ever_less(&policy, |policy| {
        let options = ComputeOptions {
            pack_tokens: usize::MAX,
            ..ComputeOptions::default()
        };
        crate::score(policy, &requests(&sequences), TEMPERATURE, &options)
    });
    assert!(made_do >= 2, "{made_do}");
}

/// Layers are recomputed, and the loss gives its coefficients once per unit.
#[test]
fn gradients_with_less_memory_are_the_same() {
    let policy = random_policy(SHAPES[5], 7);
    let units = units(&policy);
    let made_do = with_ever_less(&policy, |policy| {
        let asked = std::sync::Mutex::new(Vec::new());
        let ask = |unit: usize, streams: &_| {
            asked.lock().unwrap().push(unit);
            coefficients(unit, streams)
        };
        let trainer = Trainer::new(policy.clone(), AdamW::default());
        let options = ComputeOptions::default();
        let found = trainer.gradients(&units, TEMPERATURE, &ask, &options)?;
        let asked = asked.into_inner().unwrap();
        assert_eq!(asked, (0..units.len()).collect::<Vec<_>>());
        Ok(found)
    });
    assert!(made_do >= 1, "{made_do}");
}

/// The first step copies a network that is shared, the second writes into its copy.
#[test]
fn steps_with_less_memory_are_the_same() {
    let policy = random_policy(SHAPES[5], 7);
    let units = units(&policy);
    let made_do = with_ever_less(&policy, |policy| {
        let mut trainer = Trainer::new(policy.clone(), AdamW::default());
        let options = ComputeOptions::default();
        for _ in 0..2 {
            trainer.step(&units, TEMPERATURE, 1e-2, &coefficients, &options)?;
        }
        Ok(trainer.into_model()?.weights().clone())
    });
    assert!(made_do >= 1, "{made_do}");
}

/// Wherever in a step a device is lost, no partial result is ever returned.
#[test]
fn a_step_that_fails_leaves_nothing() {
    let policy = random_policy(SHAPES[4], 7);
    let units = units(&policy);
    let options = ComputeOptions::default();
    let (gpu, limits) = on_limited(&policy);
    let mut trainer = Trainer::new(gpu, AdamW::default());
    let mut step = |launches: usize| {
        limits.launches.store(launches, Relaxed);
        trainer.step(&units, TEMPERATURE, 1e-2, &coefficients, &options)
    };
    step(1 << 40).unwrap();
    let needed = (1 << 40) - limits.launches.load(Relaxed);
    // During the backward pass, the updates, and the network's takeover of the new weights.
    for launches in [needed / 2, needed - 40, needed - 10, needed - 1] {
        let (gpu, limits) = on_limited(&policy);
        let mut trainer = Trainer::new(gpu, AdamW::default());
        limits.launches.store(launches, Relaxed);
        let error = trainer.step(&units, TEMPERATURE, 1e-2, &coefficients, &options);
        let error = error.unwrap_err();
        assert!(matches!(error, Error::DeviceLost { .. }), "{error}");
        // Even if the device came back.
        limits.launches.store(usize::MAX, Relaxed);
        let folder = tempfile::tempdir().unwrap();
        let late = launches > needed / 2;
        assert_eq!(trainer.save_optimizer(folder.path()).is_err(), late);
        assert_eq!(trainer.model().is_err(), late);
    }
}

#[test]
fn a_lost_device_ends_everything_with_one_clear_error() {
    let policy = random_policy(SHAPES[4], 7);
    let vocabulary = policy.config().vocab_size;
    let sequences = sequences(vocabulary, &[40], 2);
    for launches in [1, 5, 12] {
        let (gpu, limits) = on_limited(&policy);
        let mut trainer = Trainer::new(gpu.clone(), AdamW::default());
        limits.launches.store(launches, Relaxed);
        let options = ComputeOptions::default();
        let error = crate::score(&gpu, &requests(&sequences), 1.0, &options).unwrap_err();
        assert!(matches!(error, Error::DeviceLost { .. }), "{error}");
        assert_eq!(error.verdict(), Verdict::Retry);
        let message = error.to_string();
        for part in [
            "is lost",
            "ILLEGAL_ADDRESS",
            "nvidia-smi",
            "start the worker again",
        ] {
            assert!(message.contains(part), "{message}");
        }
        // Sticky: nothing else works either, and nothing panics.
        let units = units(&policy);
        let step = trainer.step(&units, 1.0, 1e-3, &coefficients, &options);
        assert!(matches!(step, Err(Error::DeviceLost { .. })));
        assert_eq!(trainer.optimizer_steps(), 0);
        let mut engine = crate::Engine::new(gpu.clone(), EngineOptions::default());
        engine.submit(turns(vocabulary)[0].clone()).unwrap();
        assert!(matches!(engine.step(), Err(Error::DeviceLost { .. })));
        assert!(matches!(
            gpu.on(&gpu_of(&gpu)),
            Err(Error::DeviceLost { .. })
        ));
    }
    // The same policy on a working device.
    let (gpu, _) = on_limited(&policy);
    assert!(!scores(&gpu, &requests(&sequences), 64).is_empty());
    assert!(!generate(&gpu, &turns(vocabulary)[..1], EngineOptions::default()).is_empty());
}

fn gpu_of(policy: &Policy) -> Device {
    Device::of(policy.gpu().unwrap().clone())
}
