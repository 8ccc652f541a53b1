//! Copies of the emulated device from host memory. They run as late as a GPU may run them: when other
//! work needs them, or when they are waited for. A source must still hold what it held when its copy
//! was started.

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::MutexGuard;

use super::Emulator;
use crate::Result;
use crate::gpu::staging::Transfers;

/// Bytes of a half of the ring: so few that most uploads take several.
pub(super) const HALF_BYTES: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct Copies {
    pinned: Vec<Box<[u8]>>,
    waiting: VecDeque<Copy>,
    started: usize,
    done: usize,
    /// By half of the ring: copies that were started before its mark.
    marks: [usize; 2],
    /// Copies whose source changed before they were done.
    spoiled: usize,
}

#[derive(Debug)]
struct Copy {
    from: NonNull<u8>,
    to: u64,
    /// What the source held when the copy was started.
    held: Box<[u8]>,
}

// SAFETY: sources are in `pinned`, which lives as long.
unsafe impl Send for Copies {}

impl Copies {
    fn is_pinned(&self, from: NonNull<u8>, bytes: usize) -> bool {
        let address = from.as_ptr() as usize;
        let holds = |memory: &[u8]| {
            let start = memory.as_ptr() as usize;
            start <= address && address + bytes <= start + memory.len()
        };
        self.pinned.iter().any(|memory| holds(memory))
    }

    /// Runs copies until so many are done in all.
    fn run(&mut self, until: usize) {
        while self.done < until
            && let Some(copy) = self.waiting.pop_front()
        {
            let bytes = copy.held.len();
            // SAFETY: source and destination were checked when the copy was started, and memory is
            // freed only after all copies have run.
            unsafe {
                let now = std::slice::from_raw_parts(copy.from.as_ptr(), bytes);
                self.spoiled += usize::from(now != &*copy.held);
                std::ptr::copy_nonoverlapping(now.as_ptr(), copy.to as *mut u8, bytes);
            }
            self.done += 1;
        }
    }
}

impl Emulator {
    fn copies(&self) -> MutexGuard<'_, Copies> {
        self.copies.lock().expect("no thread panics holding this")
    }

    /// Runs all copies that wait, as work after them requires.
    pub(super) fn settle(&self) -> Result<()> {
        let mut copies = self.copies();
        copies.run(usize::MAX);
        match copies.spoiled {
            0 => Ok(()),
            spoiled => Err(Self::wrong(format!(
                "the source of {spoiled} copies changed before they were done"
            ))),
        }
    }
}

impl Transfers for Emulator {
    fn pinned(&self, bytes: usize) -> Result<NonNull<u8>> {
        let mut memory = vec![0; bytes].into_boxed_slice();
        let address = NonNull::from(&mut *memory).cast();
        self.copies().pinned.push(memory);
        Ok(address)
    }

    fn start_copy(&self, from: NonNull<u8>, to: u64, bytes: usize) -> Result<()> {
        self.check(to, bytes)?;
        let mut copies = self.copies();
        if !copies.is_pinned(from, bytes) {
            return Err(Self::wrong("a copy's source is not page-locked".to_owned()));
        }
        // SAFETY: the bytes are page-locked memory of this device.
        let held = unsafe { std::slice::from_raw_parts(from.as_ptr(), bytes) }.into();
        copies.waiting.push_back(Copy { from, to, held });
        copies.started += 1;
        Ok(())
    }

    fn mark(&self, half: usize) -> Result<()> {
        let mut copies = self.copies();
        copies.marks[half] = copies.started;
        Ok(())
    }

    fn wait(&self, half: usize) -> Result<()> {
        let mut copies = self.copies();
        let until = copies.marks[half];
        copies.run(until);
        Ok(())
    }
}
