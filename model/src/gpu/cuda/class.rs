//! The numeric class of a GPU: a name for all that decides bits.

use std::collections::BTreeMap;
use std::ffi::{OsString, c_int};

use crate::Dtype;
use crate::gpu::backend::TILE;
use crate::gpu::compiler;

/// All that decides bits besides the device's model and the kernels.
pub(super) struct Decides {
    pub(super) capability: (i32, i32),
    pub(super) multiprocessors: i32,
    pub(super) nvrtc: (c_int, c_int),
    pub(super) cublas: c_int,
}

/// Variables by which a user may change what cuBLAS computes.
fn of_products(variable: &str) -> bool {
    variable.starts_with("CUBLAS") || variable == "NVIDIA_TF32_OVERRIDE"
}

/// The order of additions above the kernels: 2 adds gradients up in runs of units.
const ORDER: u32 = 2;

pub(super) fn numeric_class(
    (model, dtype, program): (&str, Dtype, &str),
    decides: &Decides,
    environment: impl Iterator<Item = (String, String)>,
) -> String {
    let Decides {
        capability,
        multiprocessors,
        nvrtc,
        cublas,
    } = decides;
    let variables: BTreeMap<_, _> = environment.filter(|(name, _)| of_products(name)).collect();
    let options = compiler::OPTIONS;
    let decides = format!(
        "{model} {capability:?} {multiprocessors} nvrtc {nvrtc:?} {options:?} cublas {cublas} \
         {variables:?} tile {TILE} order {ORDER}\n{program}"
    );
    let hash = blake3::hash(decides.as_bytes()).to_hex();
    format!("cuda-{dtype}-{}", &hash[..16])
}

/// The environment, without what is no text.
pub(super) fn variables() -> impl Iterator<Item = (String, String)> {
    let text = |(name, value): (OsString, OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    std::env::vars_os().filter_map(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_decides_bits_is_in_the_numeric_class() {
        let class = |decides: &Decides, variables: &[(&str, &str)]| {
            let text = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
            let what = ("Fake GPU", Dtype::Bf16, "kernels");
            numeric_class(what, decides, variables.iter().map(text))
        };
        let decides = |multiprocessors, cublas| Decides {
            capability: (9, 0),
            multiprocessors,
            nvrtc: (13, 0),
            cublas,
        };
        let (own, none) = (decides(132, 130_000), &[][..]);
        let known = class(&own, none);
        assert!(known.starts_with("cuda-bf16-"), "{known}");
        for other in [
            class(&decides(114, 130_000), none),
            class(&decides(132, 130_001), none),
            class(&own, &[("NVIDIA_TF32_OVERRIDE", "1")]),
            class(&own, &[("NVIDIA_TF32_OVERRIDE", "0")]),
            class(&own, &[("CUBLAS_EMULATION_STRATEGY", "eager")]),
            class(&own, &[("CUBLASLT_HEURISTICS_CACHE_CAPACITY", "1")]),
        ] {
            assert_ne!(other, known);
        }
        assert_eq!(class(&own, &[("PATH", "/bin"), ("CUDA_HOME", "/x")]), known);
    }
}
