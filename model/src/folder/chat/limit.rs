//! A buffer for rendered text with a size limit: a template comes with a model
//! and may write without end.

use std::io::{Error, Result, Write};

/// Text of at most `bytes_max` bytes.
#[derive(Debug)]
pub(super) struct Limited {
    text: Vec<u8>,
    bytes_max: usize,
    full: bool,
}

impl Limited {
    pub(super) fn new(bytes_max: usize) -> Self {
        Limited {
            text: Vec::new(),
            bytes_max,
            full: false,
        }
    }

    /// Whether a write was refused.
    pub(super) fn is_full(&self) -> bool {
        self.full
    }

    pub(super) fn into_string(self) -> String {
        String::from_utf8(self.text).expect("a template writes whole strings")
    }
}

impl Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        if bytes.len() > self.bytes_max - self.text.len() {
            self.full = true;
            return Err(Error::other("the text is full"));
        }
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}
