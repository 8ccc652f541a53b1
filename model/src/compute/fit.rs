//! Fallbacks for computations that do not fit into a GPU's memory.

use crate::Result;
use crate::gpu::Gpu;
use crate::parallel::ComputeOptions;

/// Runs `work` on all `items` together or, where the device's memory is full, on each half of
/// them, recursively. Results are in the order of the items. `work` must therefore give an item
/// the same result in any batch.
pub(crate) fn halving<T, R>(
    gpu: Option<&Gpu>,
    items: &[T],
    work: &dyn Fn(&[T]) -> Result<Vec<R>>,
) -> Result<Vec<R>> {
    match (work(items), gpu) {
        (Err(error), Some(gpu)) if error.is_device_full() && items.len() > 1 => {
            gpu.make_do(&error);
            let (first, second) = items.split_at(items.len() / 2);
            let mut results = halving(Some(gpu), first, work)?;
            results.extend(halving(Some(gpu), second, work)?);
            Ok(results)
        }
        (results, _) => results,
    }
}

/// Makes room on the device, where there is something to put elsewhere; says whether there was.
pub(crate) type Room<'a> = dyn Fn() -> Result<bool> + 'a;

/// Computes a run of units, checkpointed (the argument) where the options say so. Where the device's
/// memory is full it makes room, then checkpoints; the gradients are the same.
pub(crate) fn where_it_fits<T>(
    gpu: Option<&Gpu>,
    options: &ComputeOptions<'_>,
    room: &Room<'_>,
    mut run: impl FnMut(bool) -> Result<T>,
) -> Result<T> {
    let Some(gpu) = gpu else {
        return run(options.checkpointed);
    };
    loop {
        let checkpointed = options.checkpointed || gpu.keeps_inputs_alone();
        match run(checkpointed) {
            Err(error) if error.is_device_full() => {
                if !room()? {
                    if checkpointed {
                        return Err(error);
                    }
                    gpu.keep_inputs_alone();
                }
                gpu.make_do(&error);
            }
            done => return done,
        }
    }
}
