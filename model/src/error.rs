//! What can go wrong in this crate, and what it means for the job that met it.

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
        /// The system's answer.
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
        /// The parser's answer.
        source: safetensors::SafeTensorError,
    },
    /// Training has led to numbers that no model can have.
    #[error("tensor {tensor} holds {found} numbers of {all} that are not finite")]
    NotFinite {
        /// The tensor's name, or that of its moment.
        tensor: String,
        /// So many are not finite.
        found: usize,
        /// Of so many.
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
    /// The device asked for does not exist here.
    #[error("device {name:?}: {message}")]
    Device {
        /// What was asked for.
        name: String,
        /// Why not, and what to do.
        message: String,
    },
    /// The device's memory has no room for what was to be computed.
    #[error("device {name:?}: {message}")]
    DeviceFull {
        /// The device.
        name: String,
        /// What did not fit, and what to do.
        message: String,
    },
    /// The device answers nothing any more; what it held is gone.
    #[error(
        "device {name:?} is lost: {message}; look at `nvidia-smi` and the kernel's log, then start \
         the worker again"
    )]
    DeviceLost {
        /// The device.
        name: String,
        /// Its last answer.
        message: String,
    },
    /// A request that no policy could answer: an id outside the vocabulary, a mask
    /// of another length, a busy sequence.
    #[error("{0}")]
    Request(String),
}

/// What an error means for the job that met it.
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
            // Full disks and vanished mounts pass; the rest is in the inputs.
            Error::Io { source, .. } if source.kind() != std::io::ErrorKind::NotFound => {
                Verdict::Retry
            }
            // Another worker's device, or the same one once it is back.
            Error::DeviceLost { .. } => Verdict::Retry,
            _ => Verdict::GiveUp,
        }
    }

    /// Whether less at once may succeed.
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
