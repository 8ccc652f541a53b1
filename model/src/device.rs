//! Where tensors live.

use crate::{Error, Result};

/// A compute device.
#[derive(Debug, Clone)]
pub struct Device(candle_core::Device);

impl Device {
    /// The processor.
    pub fn cpu() -> Self {
        Device(candle_core::Device::Cpu)
    }

    /// Reads `cpu` or `cuda:N`.
    pub fn parse(name: &str) -> Result<Self> {
        let bad = |message: String| Error::Device {
            name: name.to_owned(),
            message,
        };
        if name == "cpu" {
            return Ok(Device::cpu());
        }
        let number = name
            .strip_prefix("cuda:")
            .and_then(|number| number.parse().ok());
        let Some(number) = number else {
            return Err(bad("is neither \"cpu\" nor \"cuda:<number>\"".to_owned()));
        };
        match candle_core::Device::new_cuda(number) {
            Ok(device) => Ok(Device(device)),
            Err(e) => Err(bad(format!("cannot be used ({e}); use \"cpu\""))),
        }
    }

    /// Refuses a device that this build has no kernels for.
    pub(crate) fn check_computes(&self) -> Result<()> {
        if self.0.is_cpu() {
            return Ok(());
        }
        Err(Error::Device {
            name: format!("{:?}", self.0.location()),
            message: "policies are computed on the processor only so far; use \"cpu\"".to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_and_unusable_devices_are_named() {
        assert!(Device::parse("cpu").is_ok());
        for name in ["gpu", "cuda", "cuda:x", "cuda:99"] {
            let message = Device::parse(name).unwrap_err().to_string();
            assert!(message.contains(name), "{message}");
        }
    }
}
