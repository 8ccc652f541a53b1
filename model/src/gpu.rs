//! The policy on a GPU: the same forward pass, scoring, decoding and gradients as on the CPU,
//! with CUDA C kernels of this crate (`kernels/*.cu`, compiled when the program
//! starts) and cuBLAS for matrix products.
//!
//! Everything above [`backend::Backend`] is ordinary code that calls for memory, launches and
//! products. The trait has two implementations: a GPU (`cuda`, with the Cargo feature of that
//! name), and in tests an emulation that compiles the same kernels with the host's C++ compiler.
//! All of this therefore runs, and is compared with the CPU, on machines without a GPU.

#[cfg_attr(
    not(any(test, feature = "cuda")),
    expect(
        dead_code,
        reason = "without the feature nothing reads what is asked for"
    )
)]
pub(crate) mod backend;
mod backward;
mod cache;
#[cfg(feature = "cuda")]
mod compiler;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "cuda")]
mod functions;
mod head;
#[cfg(any(test, feature = "cuda"))]
mod kernels;
mod layers;
#[cfg(feature = "cuda")]
mod libraries;
mod list;
mod matrix;
mod network;
mod optimizer;
mod products;
mod rows;
#[cfg(any(test, feature = "cuda"))]
mod staging;
mod steps;
mod tape;
mod tiles;

// The emulator's coroutines need glibc.
#[cfg(test)]
#[cfg(target_os = "linux")]
pub(crate) mod emulator;
#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests;

use crate::Dtype;

pub(crate) use backend::{Gpu, Idle, TILE};
pub(crate) use cache::Cache;
pub(crate) use head::CHUNK_ROWS;
pub(crate) use matrix::{Matrix, Operands};
pub(crate) use network::Network;
pub(crate) use optimizer::{Trained, norm};
pub(crate) use steps::Steps;
pub(crate) use tape::{Gradients, Tape};

/// Bytes of the memory of GPU `number`, if it is here.
pub(crate) fn memory(number: usize) -> Option<u64> {
    #[cfg(feature = "cuda")]
    return cuda::memory_bytes(number).ok();
    #[cfg(not(feature = "cuda"))]
    return (number, None).1;
}

/// Opens GPU `number`; its products have operands of `dtype`.
///
/// # Errors
/// Why it cannot be used, as a clause for a message.
pub(crate) fn open(number: usize, dtype: Dtype) -> Result<Gpu, String> {
    #[cfg(feature = "cuda")]
    return cuda::open(number, dtype);
    #[cfg(not(feature = "cuda"))]
    Err(format!(
        "this program was built without the feature `cuda`, which cuda:{number} in {dtype} needs"
    ))
}
