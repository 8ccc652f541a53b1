//! A stream of work on a GPU, with its own cuBLAS handle.

use std::ffi::{c_int, c_void};
use std::sync::Mutex;

use cudarc::cublas::{result as cublas, sys as cublas_sys};
use cudarc::driver::{result as driver, sys};

/// Bytes of cuBLAS's scratch memory, given to it so that the size is the same on every machine.
pub(super) const WORKSPACE_BYTES: usize = 32 << 20;

/// A stream, and a cuBLAS handle for it.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) stream: sys::CUstream,
    /// Must not be used by two threads at a time.
    pub(super) blas: Mutex<Blas>,
}

#[derive(Debug)]
pub(super) struct Blas(pub(super) cublas_sys::cublasHandle_t);

impl Lane {
    /// cuBLAS takes its scratch memory from `workspace`. Two lanes may share it, since only one of
    /// them ever executes work.
    ///
    /// # Errors
    /// The driver's or the library's error, as a clause for a message.
    pub(super) unsafe fn new(workspace: sys::CUdeviceptr) -> Result<Self, String> {
        let failed = |e: cublas::CublasError| format!("cuBLAS answers {:?}", e.0);
        // SAFETY: the caller's context is current, and the workspace is alive and has this size.
        unsafe {
            let stream = driver::stream::create(driver::stream::StreamKind::NonBlocking)
                .map_err(driver_failed)?;
            let handle = cublas::create_handle().map_err(failed)?;
            cublas::set_stream(handle, stream.cast()).map_err(failed)?;
            // If the library ever sums partial results of a bf16 product, it must do so in f32.
            let mode = cublas_sys::cublasMath_t::CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
            let set = cublas_sys::cublasSetMathMode(handle, mode);
            set.result().map_err(failed)?;
            let to = workspace as *mut c_void;
            let set = cublas_sys::cublasSetWorkspace_v2(handle, to, WORKSPACE_BYTES);
            set.result().map_err(failed)?;
            Ok(Lane {
                stream,
                blas: Mutex::new(Blas(handle)),
            })
        }
    }

    /// The library's version.
    pub(super) fn version(&self) -> Result<c_int, String> {
        let mut version = 0;
        let blas = self.blas.lock().expect("no thread panics holding this");
        // SAFETY: only the version is written.
        let asked = unsafe { cublas_sys::cublasGetVersion_v2(blas.0, &mut version) };
        let answer = asked.result().map(|()| version);
        answer.map_err(|e| format!("cuBLAS answers {:?}", e.0))
    }
}

pub(super) fn driver_failed(e: driver::DriverError) -> String {
    format!("the NVIDIA driver answers {}", described(e))
}

// SAFETY: the driver's handles may be used from any thread once its context is current there,
// which every call ensures; cuBLAS's handle is behind a lock.
unsafe impl Send for Blas {}

pub(super) fn described(e: driver::DriverError) -> String {
    let text = |text: Result<&std::ffi::CStr, driver::DriverError>| {
        text.map_or("?".into(), |text| text.to_string_lossy().into_owned())
    };
    format!("{} ({})", text(e.error_name()), text(e.error_string()))
}
