//! The device that computes, and how it is chosen.

use crate::dtype::Dtype;
use crate::gpu::{self, Gpu};
use crate::kernels::bf16;
use crate::{Error, Result};

/// What a GPU's memory was used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryUse {
    /// The most bytes that were allocated at a time since this was last asked.
    pub peak_bytes: usize,
    /// Whether work was ever done in smaller portions because memory was full.
    pub made_do: bool,
}

/// A compute device: the CPU, or a GPU.
#[derive(Debug, Clone)]
pub struct Device(Kind);

#[derive(Debug, Clone)]
enum Kind {
    /// By own kernels with a fixed order of operations, with products in this type.
    Cpu(Dtype),
    /// One of this machine's, and its number there.
    Gpu(
        Gpu,
        #[cfg_attr(
            not(feature = "candle"),
            expect(dead_code, reason = "candle opens it too")
        )]
        usize,
    ),
}

impl Device {
    /// The CPU, in f32.
    pub fn cpu() -> Self {
        Device(Kind::Cpu(Dtype::F32))
    }

    /// The CPU with products in `dtype`, if it has instructions for them.
    ///
    /// # Errors
    /// It has none.
    fn cpu_in(dtype: Dtype) -> Result<Self, String> {
        match dtype {
            Dtype::Bf16 if !bf16::has_vectors() => Err(
                "the processor has no instructions for bf16 (AVX-512 BF16); use \"f32\"".to_owned(),
            ),
            _ => Ok(Device(Kind::Cpu(dtype))),
        }
    }

    /// Parses `cpu`, `cuda:N`, or `auto` for [`Device::auto`]; products are computed in `dtype`.
    /// `cpu:avx512` is `cpu`, for bf16 alone.
    ///
    /// # Errors
    /// The name is none of these, the GPU cannot be used, or the CPU does not compute in `dtype`;
    /// the message says why.
    pub fn parse(name: &str, dtype: Dtype) -> Result<Self> {
        let bad = |message: String| Error::Device {
            name: name.to_owned(),
            message,
        };
        match name {
            "cpu:avx512" if dtype == Dtype::F32 => {
                return Err(bad("it is for products in bf16; use \"cpu\"".to_owned()));
            }
            "cpu" | "cpu:avx512" => return Device::cpu_in(dtype).map_err(bad),
            "auto" => return Ok(Device::auto(dtype)?.0),
            _ => {}
        }
        let Some(number) = Device::gpu_number(name) else {
            let known = "is none of \"cpu\", \"auto\" and \"cuda:<number>\"";
            return Err(bad(known.to_owned()));
        };
        match gpu::open(number, dtype) {
            Ok(gpu) => Ok(Device(Kind::Gpu(gpu, number))),
            Err(why) => Err(bad(format!("cannot be used: {why}; use \"cpu\""))),
        }
    }

    /// The first GPU if it can be used, else the CPU; and a line for the user that says
    /// which, and why.
    ///
    /// # Errors
    /// No GPU can be used, and the CPU does not compute in `dtype`.
    pub fn auto(dtype: Dtype) -> Result<(Self, String)> {
        match gpu::open(0, dtype) {
            Ok(gpu) => {
                let line = format!("computing on {} in {dtype}", gpu.name());
                Ok((Device(Kind::Gpu(gpu, 0)), line))
            }
            Err(no_gpu) => match Device::cpu_in(dtype) {
                Ok(cpu) => Ok((
                    cpu,
                    format!("computing on the processor in {dtype}: {no_gpu}"),
                )),
                Err(why) => Err(Error::Device {
                    name: "auto".to_owned(),
                    message: format!("no GPU can be used for {dtype}: {no_gpu}; and {why}"),
                }),
            },
        }
    }

    /// Bytes of the memory of the GPU that a name means in [`Device::parse`]; `None` where there is
    /// none, or it cannot be asked. Nothing is opened on it.
    pub fn memory(name: &str) -> Option<u64> {
        let number = match name {
            "auto" => 0,
            name => Device::gpu_number(name)?,
        };
        gpu::memory(number)
    }

    /// How a GPU's memory was used; `None` for the CPU.
    ///
    /// # Errors
    /// The GPU does not say.
    pub fn memory_use(&self) -> Result<Option<MemoryUse>> {
        let used = |gpu: &Gpu| {
            Ok(MemoryUse {
                peak_bytes: gpu.take_peak()?,
                made_do: gpu.made_do(),
            })
        };
        self.gpu().map(used).transpose()
    }

    /// The number of the GPU that `cuda:N` names, whether or not it is there.
    pub fn gpu_number(name: &str) -> Option<usize> {
        name.strip_prefix("cuda:")?.parse().ok()
    }

    /// The class of devices within which equal inputs give bit-identical results.
    pub fn numeric_class(&self) -> &str {
        match &self.0 {
            Kind::Cpu(Dtype::F32) => "cpu-f32-2",
            Kind::Cpu(Dtype::Bf16) => "cpu-bf16-1",
            Kind::Gpu(gpu, _) => gpu.numeric_class(),
        }
    }

    /// How many of the `available` threads should drive it. One for a GPU: it runs work serially,
    /// and every thread would hold memory of its own there.
    pub fn threads(&self, available: usize) -> usize {
        match self.0 {
            Kind::Gpu(..) => 1,
            Kind::Cpu(_) => available,
        }
    }

    pub(crate) fn gpu(&self) -> Option<&Gpu> {
        match &self.0 {
            Kind::Cpu(_) => None,
            Kind::Gpu(gpu, _) => Some(gpu),
        }
    }

    /// The same device in candle's words.
    ///
    /// # Errors
    /// Products in bf16; a GPU that candle was not built for, or cannot use.
    #[cfg(feature = "candle")]
    pub(crate) fn candle(&self) -> Result<candle_core::Device, String> {
        match &self.0 {
            Kind::Cpu(Dtype::F32) => Ok(candle_core::Device::Cpu),
            Kind::Gpu(gpu, number) if gpu.dtype() == Dtype::F32 => {
                candle_core::Device::new_cuda(*number).map_err(|e| {
                    let built = match cfg!(feature = "candle-cuda") {
                        true => "",
                        false => " (build with the feature candle-cuda to have it there)",
                    };
                    format!("on a GPU it answers {e}{built}; start the worker with --device cpu")
                })
            }
            Kind::Cpu(_) | Kind::Gpu(..) => {
                Err("it computes in f32 alone; start the worker with --dtype f32".to_owned())
            }
        }
    }

    /// Whether the processor's products are in bf16; a GPU leaves it none but those beside its own.
    pub(crate) fn host_bf16(&self) -> bool {
        matches!(self.0, Kind::Cpu(Dtype::Bf16))
    }

    /// The arguments with which this machine's processor computes in a numeric class, if there are
    /// any.
    pub fn arguments(numeric_class: &str) -> Option<String> {
        let fits = |dtype: &Dtype| {
            Device::cpu_in(*dtype).is_ok_and(|device| device.numeric_class() == numeric_class)
        };
        let dtype = Dtype::ALL.into_iter().find(fits)?;
        Some(format!("--device cpu --dtype {dtype}"))
    }

    #[cfg(test)]
    pub(crate) fn of(gpu: Gpu) -> Self {
        Device(Kind::Gpu(gpu, 0))
    }

    /// The CPU in bf16, with its instructions or without.
    #[cfg(test)]
    pub(crate) fn cpu_bf16() -> Self {
        Device(Kind::Cpu(Dtype::Bf16))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_and_unusable_devices_are_named() {
        let f32 = Dtype::F32;
        assert!(Device::parse("cpu", f32).is_ok() && Device::parse("auto", f32).is_ok());
        for name in ["gpu", "cpu:amx", "cuda", "cuda:x", "cuda:-1", "cuda:99"] {
            let message = Device::parse(name, f32).unwrap_err().to_string();
            assert!(message.contains(name), "{message}");
        }
    }

    #[test]
    fn bf16_is_computed_where_the_processor_has_it_and_refused_elsewhere() {
        let dtype: Dtype = "bf16".parse().unwrap();
        match Device::parse("cpu", dtype) {
            Ok(device) => {
                assert!(device.host_bf16() && bf16::has_vectors());
                let class = device.numeric_class();
                assert_ne!(class, Device::cpu().numeric_class());
                let again = Device::arguments(class).unwrap();
                assert_eq!(again, "--device cpu --dtype bf16");
            }
            Err(refusal) => {
                assert!(!bf16::has_vectors());
                let why = "no instructions for bf16";
                assert!(refusal.to_string().contains(why), "{refusal}");
            }
        }
        let vectors = Device::parse("cpu:avx512", dtype);
        assert_eq!(vectors.is_ok(), bf16::has_vectors());
        assert_eq!(Device::arguments("cpu-bf16-1").is_some(), vectors.is_ok());
        for gone in ["cpu-f32-1", "cpu-bf16-amx-1"] {
            assert_eq!(Device::arguments(gone), None);
        }
        let refusal = Device::parse("cpu:avx512", Dtype::F32).unwrap_err();
        assert!(refusal.to_string().contains("use \"cpu\""), "{refusal}");
        let unknown = "f16".parse::<Dtype>().unwrap_err();
        assert!(unknown.contains("\"f16\" is none of \"f32\" and \"bf16\""));
    }

    #[test]
    fn the_automatic_choice_says_why() {
        let (device, line) = Device::auto(Dtype::F32).unwrap();
        assert!(!line.contains('\n') && line.starts_with("computing on "));
        assert_eq!(
            device.gpu().is_none(),
            line.contains("the processor in f32: "),
            "{line}"
        );
        #[cfg(not(feature = "cuda"))]
        assert!(line.contains("without the feature `cuda`"), "{line}");
    }
}
