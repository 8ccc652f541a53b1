//! Uploads to a GPU: copies on its stream from page-locked memory, with an event for each half of the
//! ring.

use std::ptr::NonNull;

use cudarc::driver::result as driver;

use super::Cuda;
use crate::Result;
use crate::gpu::staging::Transfers;

impl Transfers for Cuda {
    fn pinned(&self, bytes: usize) -> Result<NonNull<u8>> {
        // SAFETY: the context is current; the memory is freed with the process, as the context is.
        let memory = unsafe { driver::malloc_host(bytes, 0) }
            .map_err(|e| self.failed("allocating page-locked memory", e))?;
        Ok(NonNull::new(memory.cast()).expect("the driver answers with an address or an error"))
    }

    fn start_copy(&self, from: NonNull<u8>, to: u64, bytes: usize) -> Result<()> {
        // SAFETY: the ring has these bytes and does not write them before `wait`; device buffers are
        // as long as they say.
        unsafe {
            let from = std::slice::from_raw_parts(from.as_ptr(), bytes);
            driver::memcpy_htod_async(to, from, self.doing.stream)
        }
        .map_err(|e| self.failed("copying to it", e))
    }

    fn mark(&self, half: usize) -> Result<()> {
        // SAFETY: event and stream are alive.
        unsafe { driver::event::record(self.marks[half], self.doing.stream) }
            .map_err(|e| self.failed("copying to it", e))
    }

    fn wait(&self, half: usize) -> Result<()> {
        // SAFETY: the event is alive. One that was never recorded is done.
        unsafe { driver::event::synchronize(self.marks[half]) }
            .map_err(|e| self.failed("copying to it", e))
    }
}
