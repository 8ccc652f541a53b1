//! Host memory that uploads are copied from.
//!
//! A device may read the source of a copy after the call that starts the copy has returned. Uploads
//! therefore go through a ring of page-locked memory that exists as long as the device does. The ring
//! has two halves: one is filled while copies from the other may still run. A half is filled again
//! only when its copies are known to be done.

use std::ptr::NonNull;

use crate::Result;

/// Bytes of a half of the ring on a GPU.
#[cfg(feature = "cuda")]
pub(super) const HALF_BYTES: usize = 64 << 20;

/// A device that copies from host memory later than it is asked to.
pub(super) trait Transfers {
    /// Page-locked memory, which exists as long as the device does.
    fn pinned(&self, bytes: usize) -> Result<NonNull<u8>>;

    /// Starts a copy of `bytes` bytes of page-locked memory, which are read at some later time.
    fn start_copy(&self, from: NonNull<u8>, to: u64, bytes: usize) -> Result<()>;

    /// Marks the end of the copies that were started from this half.
    fn mark(&self, half: usize) -> Result<()>;

    /// Waits for all copies before the half's mark; returns at once where it has none.
    fn wait(&self, half: usize) -> Result<()>;
}

/// The ring; its memory is allocated by the first upload.
#[derive(Debug)]
pub(super) struct Ring {
    half_bytes: usize,
    memory: Option<NonNull<u8>>,
    /// The half that is filled, and how much of it is.
    half: usize,
    used: usize,
}

// SAFETY: the memory belongs to the ring alone, and devices do not mind which thread writes it.
unsafe impl Send for Ring {}

impl Ring {
    pub(super) fn new(half_bytes: usize) -> Self {
        Ring {
            half_bytes,
            memory: None,
            half: 0,
            used: 0,
        }
    }

    /// Copies to the device's address `to`. `source` is no longer needed when this returns; later work
    /// on the device finds the copy.
    pub(super) fn upload(
        &mut self,
        device: &impl Transfers,
        mut source: &[u8],
        mut to: u64,
    ) -> Result<()> {
        let memory = match self.memory {
            Some(memory) => memory,
            None => *self.memory.insert(device.pinned(2 * self.half_bytes)?),
        };
        while !source.is_empty() {
            if self.used == self.half_bytes {
                device.mark(self.half)?;
                let next = 1 - self.half;
                device.wait(next)?;
                (self.half, self.used) = (next, 0);
            }
            let (now, rest) = source.split_at(source.len().min(self.half_bytes - self.used));
            // SAFETY: the ring has two halves of this size, and `used` and `now` are inside of one. No
            // copy reads here: the half's copies were waited for before it was filled from the start.
            let place = unsafe {
                let place = memory.add(self.half * self.half_bytes + self.used);
                place.copy_from_nonoverlapping(NonNull::from(now).cast(), now.len());
                place
            };
            device.start_copy(place, to, now.len())?;
            self.used += now.len();
            to += now.len() as u64;
            source = rest;
        }
        Ok(())
    }
}
