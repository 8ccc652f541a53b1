//! Where tensors live, and how the place is chosen.

use crate::gpu::{self, Gpu};
use crate::{Error, Result};

/// The numeric class of every CPU of this build: own kernels in f32 with a fixed order of
/// operations.
const CPU_CLASS: &str = "cpu-f32-1";

/// A compute device: the processor, or a GPU.
#[derive(Debug, Clone)]
pub struct Device(Option<Gpu>);

impl Device {
    /// The processor.
    pub fn cpu() -> Self {
        Device(None)
    }

    /// Reads `cpu`, `cuda:N`, or `auto` for [`Device::auto`].
    ///
    /// # Errors
    /// The name is none of these, or the GPU cannot be used; the message says why.
    pub fn parse(name: &str) -> Result<Self> {
        let bad = |message: String| Error::Device {
            name: name.to_owned(),
            message,
        };
        match name {
            "cpu" => return Ok(Device::cpu()),
            "auto" => return Ok(Device::auto().0),
            _ => {}
        }
        let number = name
            .strip_prefix("cuda:")
            .and_then(|number| number.parse().ok());
        let Some(number) = number else {
            let known = "is none of \"cpu\", \"auto\" and \"cuda:<number>\"";
            return Err(bad(known.to_owned()));
        };
        match gpu::open(number) {
            Ok(gpu) => Ok(Device(Some(gpu))),
            Err(why) => Err(bad(format!("cannot be used: {why}; use \"cpu\""))),
        }
    }

    /// The first GPU if it can be used, else the processor; and a line that says which,
    /// and why.
    pub fn auto() -> (Self, String) {
        match gpu::open(0) {
            Ok(gpu) => {
                let line = format!("computing on {}", gpu.name());
                (Device(Some(gpu)), line)
            }
            Err(why) => (Device::cpu(), format!("computing on the processor: {why}")),
        }
    }

    /// What decides the bits of a result; equal inputs give equal bits within a class.
    pub fn numeric_class(&self) -> &str {
        self.0.as_ref().map_or(CPU_CLASS, Gpu::numeric_class)
    }

    /// Threads that should feed it of those that there are: a GPU is fed by one, since it
    /// does one thing after another, and every thread holds memory of its own there.
    pub fn threads(&self, available: usize) -> usize {
        match self.0 {
            Some(_) => 1,
            None => available,
        }
    }

    pub(crate) fn gpu(&self) -> Option<&Gpu> {
        self.0.as_ref()
    }

    #[cfg(test)]
    pub(crate) fn of(gpu: Gpu) -> Self {
        Device(Some(gpu))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_and_unusable_devices_are_named() {
        assert!(Device::parse("cpu").is_ok() && Device::parse("auto").is_ok());
        for name in ["gpu", "cuda", "cuda:x", "cuda:-1", "cuda:99"] {
            let message = Device::parse(name).unwrap_err().to_string();
            assert!(message.contains(name), "{message}");
        }
    }

    #[test]
    fn the_automatic_choice_says_why() {
        let (device, line) = Device::auto();
        assert!(!line.contains('\n') && line.starts_with("computing on "));
        assert_eq!(
            device.gpu().is_none(),
            line.contains("the processor: "),
            "{line}"
        );
        #[cfg(not(feature = "cuda"))]
        assert!(line.contains("without the feature `cuda`"), "{line}");
    }
}
