//! What a case takes of a GPU's memory, beside what `agentgym-submit plan` counts for it; and which of
//! CUDA's libraries this process has opened.

use std::collections::BTreeSet;
use std::error::Error;

use agentgym_model::{Device, DeviceFootprint};

/// The work of a case, as it is counted.
pub(crate) enum Work {
    Generates {
        rows: usize,
        prefill: usize,
        cached: usize,
    },
    Scores {
        tokens: usize,
    },
    Trains {
        tokens: usize,
        checkpointed: bool,
    },
}

impl Work {
    fn counted(&self, footprint: &DeviceFootprint) -> u128 {
        let count = |number: &usize| *number as u128;
        match self {
            Work::Generates {
                rows,
                prefill,
                cached,
            } => footprint.generating(count(rows), count(prefill), count(cached)),
            Work::Scores { tokens } => footprint.scoring(count(tokens)),
            Work::Trains {
                tokens,
                checkpointed,
            } => footprint.training(count(tokens), *checkpointed),
        }
    }
}

/// Resets what the device remembers of earlier cases.
pub(crate) fn forget(device: &Device) -> Result<(), Box<dyn Error>> {
    device.memory_use()?;
    Ok(())
}

/// The end of a case's line for a GPU; nothing for the CPU.
pub(crate) fn said(
    device: &Device,
    footprint: &DeviceFootprint,
    work: &Work,
) -> Result<String, Box<dyn Error>> {
    let Some(used) = device.memory_use()? else {
        return Ok(String::new());
    };
    let made_do = match used.made_do {
        true => ", IT HAD TO MAKE DO with less at once, which is slower",
        false => "",
    };
    Ok(format!(
        ", device {:.2} GB of {:.2} counted{made_do}",
        used.peak_bytes as f64 / 1e9,
        work.counted(footprint) as f64 / 1e9
    ))
}

/// The files of CUDA's libraries in this process.
pub(crate) fn libraries() -> BTreeSet<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux");
    let files = maps
        .lines()
        .filter_map(|line| line.find('/').map(|at| &line[at..]));
    let of_cuda = |file: &&str| {
        let name = file.rsplit('/').next().unwrap_or(file);
        ["libcuda.so", "libcublas", "libnvrtc"]
            .iter()
            .any(|library| name.starts_with(library))
    };
    files.filter(of_cuda).map(str::to_owned).collect()
}
