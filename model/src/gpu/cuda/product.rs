//! A matrix product by cuBLAS, and what its answers mean.

use std::ffi::{c_int, c_void};

use super::Cuda;
use crate::gpu::backend::Product;
use crate::{Dtype, Error, Result};

/// `CUDA_R_32F`, `CUDA_R_16BF`, `CUBLAS_COMPUTE_32F` (also for f32 operands: no TF32) and
/// `CUBLAS_GEMM_DEFAULT`.
const F32: c_int = 0;
const BF16: c_int = 14;
const COMPUTE: c_int = 68;
const ALGORITHM: c_int = -1;

/// Answers: all is well; there is no memory; a kernel does not start; something inside went wrong,
/// which is what a full memory looks like to a kernel that is loaded on first use.
const SUCCESS: c_int = 0;
const ALLOC_FAILED: c_int = 3;
const EXECUTION_FAILED: c_int = 13;
const INTERNAL_ERROR: c_int = 14;

impl Cuda {
    /// Runs a product. Where it fails, the device is asked whether it still works, gives freed memory
    /// back, and is tried once more.
    pub(super) fn product(&self, product: &Product) -> Result<()> {
        if self.gemm(product) == SUCCESS {
            return Ok(());
        }
        let answer = match self.records() {
            // Nothing can be asked while recording.
            true => self.gemm(product),
            false => {
                self.give_freed_memory_back()?;
                let answer = self.gemm(product);
                self.check_alive()?;
                answer
            }
        };
        let Product { m, k, n, .. } = product;
        let name = self.name.clone();
        let message = format!("a product of {m}×{k}×{n} fails: cuBLAS answers {answer}");
        match answer {
            SUCCESS => Ok(()),
            ALLOC_FAILED | EXECUTION_FAILED | INTERNAL_ERROR => {
                Err(Error::DeviceFull { name, message })
            }
            _ => Err(Error::Device { name, message }),
        }
    }

    fn gemm(&self, product: &Product) -> c_int {
        let &Product {
            a, b, c, m, k, n, ..
        } = product;
        let int = |size: usize| c_int::try_from(size).expect("sizes of a model fit");
        let (alpha, beta) = (1.0_f32, f32::from(u8::from(product.accumulate)));
        let operands = match self.dtype {
            Dtype::F32 => F32,
            Dtype::Bf16 => BF16,
        };
        // cuBLAS is column-major, where cᵀ = bᵀ · aᵀ has the bytes of the row-major product.
        let leading_a = if product.a_transposed { m } else { k };
        let blas = self.lane().blas.lock();
        let blas = blas.expect("no thread panics holding this");
        // SAFETY: buffers hold as many numbers as the sizes say.
        unsafe {
            (blas.calls.cublasGemmEx)(
                blas.handle,
                c_int::from(product.b_transposed),
                c_int::from(product.a_transposed),
                int(n),
                int(m),
                int(k),
                (&raw const alpha).cast(),
                b as *const c_void,
                operands,
                int(product.b_stride),
                a as *const c_void,
                operands,
                int(leading_a),
                (&raw const beta).cast(),
                c as *mut c_void,
                F32,
                int(n),
                COMPUTE,
                ALGORITHM,
            )
        }
    }
}
