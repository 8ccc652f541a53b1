//! A device whose memory is too small for a computation at once, and one that is lost. Always
//! emulated.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::policies::{TEMPERATURE, coefficients, generate, many_units, scores, turns, units};
use crate::gpu::emulator::{Limits, Order, limited};
use crate::tests::{SHAPES, random_adapter, random_policy, requests, sequences};
use crate::{
    ALL_LINEAR, AdamW, ComputeOptions, Device, DeviceFootprint, Dtype, EngineOptions, Error,
    LoraOptions, Policy, TrainSequence, Trainer, Unit, Verdict,
};

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

#[test]
fn caches_take_three_quarters_of_the_memory_that_is_free() {
    let policy = random_policy(SHAPES[4], 7);
    let options = EngineOptions::default();
    assert_eq!(options.on_device_of(&policy).unwrap(), options);
    let (gpu, limits) = on_limited(&policy);
    // Two layers of two key heads of 16, keys and values in f32.
    let token = 2 * 2 * 32 * 4;
    let room = |tokens: usize| {
        limits
            .bytes
            .store(limits.peak.load(Relaxed) + 4 * tokens * token, Relaxed);
        options.on_device_of(&gpu).unwrap()
    };
    assert_eq!(room(100_000).cache_tokens_max, 300_000);
    assert_eq!(room(100).cache_tokens_max, options.cache_tokens_max);
    assert_eq!(room(1).prefill_chunk, crate::GPU_PREFILL_TOKENS);
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

/// However many units a minibatch has, two gradients of the parameters' size are room enough:
/// others wait in host memory, and nothing else is made do without.
#[test]
fn two_gradients_are_room_enough_for_any_number_of_units() {
    let policy = random_policy(SHAPES[5], 7);
    let gradients = |policy: &Policy, count: usize| {
        let trainer = Trainer::new(policy.clone(), AdamW::default());
        let units = many_units(policy, count);
        let options = ComputeOptions::default();
        let found = trainer.gradients(&units, TEMPERATURE, &coefficients, &options);
        found.unwrap().0
    };
    let (alone, limits) = on_limited(&policy);
    gradients(&alone, 1);
    let one = limits.peak.load(Relaxed);
    let set = size_of::<f32>() * policy.parameter_count();
    for count in [8, 27] {
        let (tight, limits) = on_limited(&policy);
        limits.bytes.store(one + set + set / 16, Relaxed);
        let found = gradients(&tight, count);
        assert!(!tight.gpu().unwrap().keeps_inputs_alone(), "{count}");
        assert!(found == gradients(&on_limited(&policy).0, count), "{count}");
    }
}

/// Of two policies that do not fit into memory together, the one that computes does.
#[test]
fn a_policy_that_nothing_computes_with_gives_way() {
    let [one, other] = [7, 8].map(|seed| random_policy(SHAPES[3], seed));
    let sequences = sequences(one.config().vocab_size, &[20], 2);
    let requests = requests(&sequences);
    let (roomy, limits) = on_limited(&one);
    let own = limits.peak.load(Relaxed);
    let expected = [
        scores(&roomy, &requests, 64),
        scores(&on_limited(&other).0, &requests, 64),
    ];
    let scoring = limits.peak.load(Relaxed) - own;
    assert!(scoring < own / 2, "{scoring} {own}");
    let (one, limits) = on_limited(&one);
    limits.bytes.store(own + own / 2, Relaxed);
    let other = other.on(&gpu_of(&one)).unwrap();
    for _ in 0..2 {
        assert!(scores(&one, &requests, 64) == expected[0]);
        assert!(scores(&other, &requests, 64) == expected[1]);
    }
    // While one generates, it stays.
    let mut engine = crate::Engine::new(one.clone(), EngineOptions::default());
    engine
        .submit(turns(one.config().vocab_size)[0].clone())
        .unwrap();
    engine.step().unwrap();
    let full = crate::score(&other, &requests, 1.0, &ComputeOptions::default());
    assert!(matches!(full, Err(Error::DeviceFull { .. })));
}

/// Training takes what is counted, whatever waits in host memory where there is no more.
#[test]
fn training_takes_the_memory_that_is_counted() {
    let dense = random_policy(SHAPES[3], 7);
    let options = LoraOptions::new(4, 8.0, [ALL_LINEAR]).unwrap();
    let adapter = random_adapter(&dense, options.clone(), 9);
    let adapted = dense.with_adapter(adapter).unwrap();
    for (policy, adapter) in [(dense, None), (adapted, Some(options))] {
        // Every two of adapter, type and checkpoints.
        for dtype in Dtype::ALL {
            let checkpointed = (dtype == Dtype::F32) == adapter.is_none();
            let footprint = DeviceFootprint::of(policy.config(), adapter.as_ref(), dtype);
            let counted = footprint.training(500, checkpointed);
            let limits = Arc::<Limits>::default();
            limits.bytes.store(counted as usize, Relaxed);
            let gpu = limited(Order::Ascending, dtype, Arc::clone(&limits));
            let mut trainer = Trainer::new(
                policy.on(&Device::of(gpu.clone())).unwrap(),
                AdamW::default(),
            );
            // Counted is what takes most: all tokens are trained on.
            let unit = |mut sequence: TrainSequence| {
                sequence.loss_mask[1..].fill(true);
                Unit {
                    sequences: vec![sequence],
                    ..Unit::default()
                }
            };
            let sequences = sequences(policy.config().vocab_size, &[500; 3], 4);
            let units: Vec<Unit> = sequences.into_iter().map(unit).collect();
            let options = ComputeOptions {
                checkpointed,
                ..ComputeOptions::default()
            };
            for _ in 0..2 {
                let step = trainer.step(&units, TEMPERATURE, 1e-2, &coefficients, &options);
                step.unwrap();
            }
            assert!(checkpointed || !gpu.keeps_inputs_alone(), "{dtype}");
            let share = limits.peak.load(Relaxed) as f64 / counted as f64;
            println!("{dtype} checkpointed {checkpointed}: {share:.3} of {counted}");
            assert!((0.9..=1.0).contains(&share), "{share}");
        }
    }
}

/// A second step needs no more than the first: the weights are overwritten where they are.
#[test]
fn steps_overwrite_a_network_that_nobody_else_has() {
    let policy = random_policy(SHAPES[3], 7);
    let (gpu, limits) = on_limited(&policy);
    let mut trainer = Trainer::new(gpu, AdamW::default());
    let mut peaks = [0; 3];
    for peak in &mut peaks {
        let units = many_units(&policy, 1);
        let options = ComputeOptions::default();
        let step = trainer.step(&units, TEMPERATURE, 1e-2, &coefficients, &options);
        step.unwrap();
        *peak = limits.peak.swap(0, Relaxed);
    }
    // Numbers, two moments, a gradient, and the network; and what the unit takes.
    let set = size_of::<f32>() * policy.parameter_count();
    assert!(peaks[2] < 6 * set, "{peaks:?} {set}");
    let folder = tempfile::tempdir().unwrap();
    trainer.save_optimizer(folder.path()).unwrap();
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
