//! A slice of a list that was uploaded in one copy.

use super::backend::{Argument, Buffer};

/// A slice of a list in a device's memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct List<'a> {
    pub(super) numbers: &'a Buffer<u32>,
    pub(super) first: usize,
    pub(super) length: usize,
}

impl List<'_> {
    pub(crate) fn length(self) -> usize {
        self.length
    }

    pub(crate) fn pointer(self) -> Argument {
        self.numbers.pointer_at(self.first)
    }
}
