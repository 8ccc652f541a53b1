//! The device that computes, and how it is chosen.

use crate::dtype::Dtype;
use crate::gpu::{self, Gpu};
use crate::{Error, Result};

/// The numeric class of every CPU of this build: own kernels in f32 with a fixed order of
/// operations.
const CPU_CLASS: &str = "cpu-f32-2";

/// A compute device: the CPU, or a GPU.
#[derive(Debug, Clone)]
pub struct Device(Option<Gpu>);

impl Device {
    /// The CPU.
    pub fn cpu() -> Self {
        Device(None)
    }

    /// Parses `cpu`, `cuda:N`, or `auto` for [`Device::auto`]; products are computed in `dtype`.
    ///
    /// # Errors
    /// The name is none of these, the GPU cannot be used, or the CPU is given
    /// bf16; the message says why.
    pub fn parse(name: &str, dtype: Dtype) -> Result<Self> {
        let bad = |message: String| Error::Device {
            name: name.to_owned(),
            message,
        };
        match name {
            "cpu" if dtype == Dtype::F32 => return Ok(Device::cpu()),
            "cpu" => {
                let message = format!("the processor computes in f32; {dtype} needs a GPU");
                return Err(bad(message));
            }
            "auto" => return Ok(Device::auto(dtype)?.0),
            _ => {}
        }
        let number = name
            .strip_prefix("cuda:")
            .and_then(|number| number.parse().ok());
        let Some(number) = number else {
            let known = "is none of \"cpu\", \"auto\" and \"cuda:<number>\"";
            return Err(bad(known.to_owned()));
        };
        match gpu::open(number, dtype) {
            Ok(gpu) => Ok(Device(Some(gpu))),
            Err(why) => Err(bad(format!("cannot be used: {why}; use \"cpu\""))),
        }
    }

    /// The first GPU if it can be used, else the CPU; and a line for the user that says
    /// which, and why.
    ///
    /// # Errors
    /// No GPU can be used, and the CPU does not compute in `dtype`.
    pub fn auto(dtype: Dtype) -> Result<(Self, String)> {
        match (gpu::open(0, dtype), dtype) {
            (Ok(gpu), _) => {
                let line = format!("computing on {} in {dtype}", gpu.name());
                Ok((Device(Some(gpu)), line))
            }
            (Err(why), Dtype::F32) => {
                Ok((Device::cpu(), format!("computing on the processor: {why}")))
            }
            (Err(why), Dtype::Bf16) => Err(Error::Device {
                name: "auto".to_owned(),
                message: format!(
                    "the processor computes in f32, and no GPU can be used for {dtype}: {why}"
                ),
            }),
        }
    }

    /// Bytes of the memory of the GPU that a name means in [`Device::parse`]; `None` where there is
    /// none, or it cannot be asked. Nothing is opened on it.
    pub fn memory(name: &str) -> Option<u64> {
        let number = match name {
            "auto" => 0,
            name => name.strip_prefix("cuda:")?.parse().ok()?,
        };
        gpu::memory(number)
    }

    /// The class of devices within which equal inputs give bit-identical results.
    pub fn numeric_class(&self) -> &str {
        self.0.as_ref().map_or(CPU_CLASS, Gpu::numeric_class)
    }

    /// How many of the `available` threads should drive it. One for a GPU: it runs work serially,
    /// and every thread would hold memory of its own there.
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
        let f32 = Dtype::F32;
        assert!(Device::parse("cpu", f32).is_ok() && Device::parse("auto", f32).is_ok());
        for name in ["gpu", "cuda", "cuda:x", "cuda:-1", "cuda:99"] {
            let message = Device::parse(name, f32).unwrap_err().to_string();
            assert!(message.contains(name), "{message}");
        }
    }

    #[test]
    fn the_processor_refuses_bf16() {
        let bf16: Dtype = "bf16".parse().unwrap();
        let refusal = |name| Device::parse(name, bf16).map_err(|e| e.to_string());
        let message = refusal("cpu").unwrap_err();
        assert!(message.contains("the processor computes in f32; bf16 needs a GPU"));
        if let Err(message) = refusal("auto") {
            assert!(
                message.contains("no GPU can be used for bf16: "),
                "{message}"
            );
        }
        let unknown = "f16".parse::<Dtype>().unwrap_err();
        assert!(unknown.contains("\"f16\" is none of \"f32\" and \"bf16\""));
    }

    #[test]
    fn the_automatic_choice_says_why() {
        let (device, line) = Device::auto(Dtype::F32).unwrap();
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
