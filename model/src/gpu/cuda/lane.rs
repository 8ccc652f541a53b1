//! A stream of work on a GPU, with its own cuBLAS handle.

use std::ffi::{c_int, c_void};
use std::sync::Mutex;

use cudarc::driver::{result as driver, sys};

use crate::gpu::functions::Products;

/// Bytes of cuBLAS's scratch memory, given to it so that the size is the same on every machine.
pub(super) const WORKSPACE_BYTES: usize = 32 << 20;

/// `CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION`: if the library ever sums partial results of a
/// bf16 product, it must do so in f32.
const MATH_MODE: c_int = 16;

/// A stream, and a cuBLAS handle for it.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) stream: sys::CUstream,
    /// Must not be used by two threads at a time.
    pub(super) blas: Mutex<Blas>,
}

#[derive(Debug)]
pub(super) struct Blas {
    pub(super) calls: Products,
    pub(super) handle: *mut c_void,
}

impl Lane {
    /// cuBLAS takes its scratch memory from `workspace`. Two lanes may share it, since only one of
    /// them ever executes work.
    ///
    /// # Errors
    /// The driver's or the library's error, as a clause for a message.
    pub(super) unsafe fn new(calls: Products, workspace: sys::CUdeviceptr) -> Result<Self, String> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: the caller's context is current, and the workspace is alive and has this size.
        unsafe {
            let stream = driver::stream::create(driver::stream::StreamKind::NonBlocking)
                .map_err(driver_failed)?;
            answered((calls.cublasCreate_v2)(&raw mut handle))?;
            answered((calls.cublasSetStream_v2)(handle, stream.cast()))?;
            answered((calls.cublasSetMathMode)(handle, MATH_MODE))?;
            let set = calls.cublasSetWorkspace_v2;
            answered(set(handle, workspace as *mut c_void, WORKSPACE_BYTES))?;
            Ok(Lane {
                stream,
                blas: Mutex::new(Blas { calls, handle }),
            })
        }
    }

    /// The library's version.
    pub(super) fn version(&self) -> Result<c_int, String> {
        let mut version = 0;
        let blas = self.blas.lock().expect("no thread panics holding this");
        // SAFETY: only the version is written.
        answered(unsafe { (blas.calls.cublasGetVersion_v2)(blas.handle, &raw mut version) })?;
        Ok(version)
    }
}

/// An event, which marks a place in a stream, for each half of the ring of uploads.
///
/// # Errors
/// The driver's, as a clause for a message.
pub(super) fn marks() -> Result<[sys::CUevent; 2], String> {
    let new = || driver::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING);
    let (first, second) = (new(), new());
    Ok([
        first.map_err(driver_failed)?,
        second.map_err(driver_failed)?,
    ])
}

fn answered(status: c_int) -> Result<(), String> {
    match status {
        0 => Ok(()),
        other => Err(format!("cuBLAS answers {other}")),
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
