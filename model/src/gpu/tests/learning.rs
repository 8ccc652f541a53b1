//! Training whose weights stay in the device's memory from step to step.

use super::policies::{TEMPERATURE, coefficients, scores, trained, units};
use super::{gpu, on_gpu};
use crate::gpu::emulator::Order;
use crate::tests::{SHAPES, random_adapter, random_policy, requests, sequences};
use crate::{
    ALL_LINEAR, AdamW, ComputeOptions, Device, Dtype, LoraOptions, Policy, Scores, Trainer,
};

fn step(trainer: &mut Trainer, policy: &Policy) {
    let options = ComputeOptions::default();
    let units = units(policy);
    let report = trainer.step(&units, TEMPERATURE, 1e-2, &coefficients, &options);
    assert!(!report.unwrap().skipped_non_finite);
}

fn scored(policy: &Policy) -> Vec<Scores> {
    let sequences = sequences(policy.config().vocab_size, &[40, 3], 1);
    scores(policy, &requests(&sequences), 1024)
}

/// The device computes with the same bits as a policy made from the weights that it returns, with
/// an adapter merged into its base or without; and no step changes policies held elsewhere.
#[test]
fn weights_that_are_fetched_give_what_the_device_has() {
    for dtype in Dtype::ALL {
        for policy in trained() {
            let begun = on_gpu(&policy, Order::Ascending, dtype);
            let mut trainer = Trainer::new(begun.clone(), AdamW::default());
            let at_first = scored(&begun);
            step(&mut trainer, &policy);
            let once = trainer.model().unwrap();
            let after_one = scored(&once);
            // The second step finds the network shared, the third does not.
            step(&mut trainer, &policy);
            step(&mut trainer, &policy);
            let last = trainer.into_model().unwrap();
            assert!(scored(&begun) == at_first && scored(&once) == after_one);
            assert!(after_one != at_first && scored(&last) != after_one);
            for policy in [&once, &last] {
                let anew = policy
                    .on(&Device::of(gpu(Order::Ascending, dtype)))
                    .unwrap();
                assert!(scored(&anew) == scored(policy), "{dtype}");
            }
        }
    }
}

/// Ranks below the smallest k of the CPU's products, and above the k at which they split sums.
#[test]
fn adapters_of_any_rank_are_merged_with_the_processors_bits() {
    for rank in [1, 2, 513, 1030] {
        let base = random_policy(SHAPES[1], 3);
        let options = LoraOptions::new(rank, 1.5, [ALL_LINEAR]).unwrap();
        let adapted = base
            .with_adapter(random_adapter(&base, options, 4))
            .unwrap();
        let begun = on_gpu(&adapted, Order::Ascending, Dtype::F32);
        let mut trainer = Trainer::new(begun, AdamW::default());
        step(&mut trainer, &adapted);
        let trained = trainer.into_model().unwrap();
        let anew = trained.on(&Device::of(gpu(Order::Ascending, Dtype::F32)));
        assert!(scored(&anew.unwrap()) == scored(&trained), "rank {rank}");
    }
}
