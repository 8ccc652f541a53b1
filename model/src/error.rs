//! Errors of this crate, and what they mean for the job that fails.

use std::path::PathBuf;

/// An error of the model crate. Messages name the file or tensor, what was found,
/// and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file of a policy folder cannot be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// A JSON file of a policy folder does not parse or lacks a key.
    #[error("{path}: {message}")]
    Json {
        /// The file.
        path: PathBuf,
        /// What is wrong in it.
        message: String,
    },
    /// The folder holds a model that this crate does not compute.
    #[error("{path}: {message}")]
    Unsupported {
        /// The file that says so.
        path: PathBuf,
        /// What was found and what is supported.
        message: String,
    },
    /// Candle, which computes the families that this crate does not, cannot read or run a model.
    #[error("{path}: candle: {message}")]
    Candle {
        /// The file.
        path: PathBuf,
        /// Its message, and what to do.
        message: String,
    },
    /// A tensor is missing, has another shape, or holds a number that is not finite.
    #[error("{path}: tensor {tensor}: {message}")]
    Tensor {
        /// The file.
        path: PathBuf,
        /// The tensor's Hugging Face name.
        tensor: String,
        /// What was found.
        message: String,
    },
    /// A safetensors file is damaged.
    #[error("{path}: not a readable safetensors file: {source}; copy it again")]
    SafeTensors {
        /// The file.
        path: PathBuf,
        /// The parser's error.
        source: safetensors::SafeTensorError,
    },
    /// Training has produced numbers that are not finite.
    #[error("tensor {tensor} holds {found} numbers of {all} that are not finite")]
    NotFinite {
        /// The tensor's name, or that of its moment.
        tensor: String,
        /// Numbers that are not finite.
        found: usize,
        /// All numbers of the tensor.
        all: usize,
    },
    /// The tokenizer cannot be loaded, trained or applied.
    #[error("{path}: {message}")]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        message: String,
    },
    /// The chat template cannot be parsed, rendered or used for multi-turn episodes.
    #[error("{path}: {message}")]
    Template {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        message: String,
    },
    /// The requested device cannot be used here.
    #[error("device {name:?}: {message}")]
    Device {
        /// The requested device.
        name: String,
        /// Why not, and what to do.
        message: String,
    },
    /// The device's memory has no room for the computation.
    #[error("device {name:?}: {message}")]
    DeviceFull {
        /// The device.
        name: String,
        /// What did not fit, and what to do.
        message: String,
    },
    /// The machine's memory cannot hold a gradient unit.
    #[error(
        "a gradient unit of {tokens} tokens in {sequences} sequences takes at least {:.1} GB, and this \
         machine has {:.1} GB: lower jobs.unit_tokens or, since a sequence and a pair of dpo are never \
         cut, data.max_response_length, sft.max_length or dpo.max_length; or set enable_gradient_checkpointing=true \
         for the model",
        *least as f64 / 1e9,
        *memory as f64 / 1e9
    )]
    MachineFull {
        /// Tokens that it computes.
        tokens: usize,
        /// Its sequences.
        sequences: usize,
        /// Bytes, without weights, gradients and moments.
        least: u64,
        /// Bytes of the machine or container.
        memory: u64,
    },
    /// The device no longer responds; the contents of its memory are lost.
    #[error(
        "device {name:?} is lost: {message}; look at `nvidia-smi` and the kernel's log, then start \
         the worker again"
    )]
    DeviceLost {
        /// The device.
        name: String,
        /// Its last error.
        message: String,
    },
    /// A request that no policy could answer: an id outside the vocabulary, a mask
    /// of another length, a busy sequence.
    #[error("{0}")]
    Request(String),
}

/// What an error means for the job that fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Another attempt may succeed.
    Retry,
    /// The same inputs will fail again.
    GiveUp,
}

impl Error {
    /// Whether trying again can help.
    pub fn verdict(&self) -> Verdict {
        match self {
            // Full disks and lost mounts are temporary; other errors come from the inputs.
            Error::Io { source, .. } if source.kind() != std::io::ErrorKind::NotFound => {
                Verdict::Retry
            }
            // On another worker's device, or on this one once it works again.
            Error::DeviceLost { .. } | Error::MachineFull { .. } => Verdict::Retry,
            _ => Verdict::GiveUp,
        }
    }

    /// Whether a smaller computation may succeed.
    pub(crate) fn is_device_full(&self) -> bool {
        matches!(self, Error::DeviceFull { .. })
    }

    /// Wraps an I/O error with the path it happened at.
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Error::Io { path, source }
    }
}

/// This crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;
