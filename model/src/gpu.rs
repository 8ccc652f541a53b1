//! The policy on a GPU: the same forward pass, scoring, decoding and gradients as on the
//! processor, by CUDA C kernels of this crate (`kernels/*.cu`, compiled when the program
//! starts) and cuBLAS for products.
//!
//! Everything above [`backend::Backend`] is ordinary code that asks for memory, launches and
//! products. Two things answer: a GPU (`cuda`, with the Cargo feature of that name), and in
//! tests an emulation that compiles the very same kernels with the host's C++ compiler. So
//! all of this runs, and is compared with the processor's numbers, where no GPU is.

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
mod steps;
mod tape;
mod tiles;

// Coroutines are glibc's.
#[cfg(test)]
#[cfg(target_os = "linux")]
mod emulator;
#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests;

use crate::Dtype;

pub(crate) use backend::Gpu;
pub(crate) use cache::Cache;
pub(crate) use matrix::{Matrix, Operands};
pub(crate) use network::Network;
pub(crate) use optimizer::{Trained, norm};
pub(crate) use steps::Steps;
pub(crate) use tape::{Gradients, Tape};

/// Opens GPU `number`, to compute products of `dtype`.
///
/// # Errors
/// Why it cannot be used, in half a sentence.
pub(crate) fn open(number: usize, dtype: Dtype) -> Result<Gpu, String> {
    #[cfg(feature = "cuda")]
    return cuda::open(number, dtype);
    #[cfg(not(feature = "cuda"))]
    Err(format!(
        "this program was built without the feature `cuda`, which cuda:{number} in {dtype} needs"
    ))
}
