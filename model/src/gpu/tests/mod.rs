//! The GPU's path, on an emulated device, against the processor's: first kernel by kernel,
//! then what stages call. Products are the processor's own here, so what is compared is
//! everything else. Every test runs the threads of a block in ascending and in descending
//! order, which must give equal bits.

mod kernels;
mod policies;

use super::emulator::{Order, emulated};
use crate::{Device, Policy};

const ORDERS: [Order; 2] = [Order::Ascending, Order::Descending];

/// The same policy on an emulated GPU.
fn on_gpu(policy: &Policy, order: Order) -> Policy {
    let folder = tempfile::tempdir().unwrap();
    policy.save(folder.path()).unwrap();
    let device = Device::of(emulated(order));
    Policy::load(folder.path(), &device).unwrap()
}
