//! Compares the GPU's path, on an emulated device, with the CPU's: first kernel by kernel,
//! then the functions that stages call. Products are the CPU's own here, so everything
//! else is compared. Kernels run the threads of a block in ascending and in descending order,
//! which must give equal bits.

use std::sync::OnceLock;

mod accesses;
mod attention;
mod bf16;
mod kernels;
mod learning;
mod policies;
mod products;
#[cfg(feature = "cuda")]
mod refusals;
mod steps;
mod trouble;
mod uploads;

use super::Gpu;
use super::emulator::{Order, emulated};
use crate::{Device, Dtype, Policy};

const ORDERS: [Order; 2] = [Order::Ascending, Order::Shuffled];

/// An emulated GPU. If `AGENTGYM_TEST_GPU` is a number, that GPU instead, for either order: the
/// same tests then check that GPU.
fn gpu(order: Order, dtype: Dtype) -> Gpu {
    static OPENED: [OnceLock<Gpu>; Dtype::ALL.len()] = [const { OnceLock::new() }; 2];
    let open = |number: String| super::open(number.parse().unwrap(), dtype).unwrap();
    match std::env::var("AGENTGYM_TEST_GPU") {
        Ok(number) => OPENED[dtype as usize].get_or_init(|| open(number)).clone(),
        Err(_) => emulated(order, dtype),
    }
}

fn on_gpu(policy: &Policy, order: Order, dtype: Dtype) -> Policy {
    policy.on(&Device::of(gpu(order, dtype))).unwrap()
}
