//! The driver's pool of a GPU's memory.

use cudarc::driver::{result as driver, sys};

use sys::CUgraphMem_attribute_enum::CU_GRAPH_MEM_ATTR_USED_MEM_HIGH as GRAPHS_HIGH;
use sys::CUmemPool_attribute_enum::{
    CU_MEMPOOL_ATTR_RELEASE_THRESHOLD as RELEASE_THRESHOLD, CU_MEMPOOL_ATTR_USED_MEM_HIGH as HIGH,
};

/// Makes the driver's allocator keep freed memory for later allocations.
pub(super) fn keep_freed(device: sys::CUdevice) -> Result<(), driver::DriverError> {
    let mut most = u64::MAX;
    // SAFETY: the attribute is a u64, which is only read.
    unsafe {
        let pool = driver::device::get_default_mem_pool(device)?;
        sys::cuMemPoolSetAttribute(pool, RELEASE_THRESHOLD, (&raw mut most).cast()).result()
    }
}

/// Waits for the stream, then returns freed memory to the driver.
pub(super) fn give_freed_back(
    device: sys::CUdevice,
    stream: sys::CUstream,
) -> Result<(), driver::DriverError> {
    // SAFETY: stream and device are alive.
    unsafe {
        driver::stream::synchronize(stream)
            .and_then(|()| driver::device::get_default_mem_pool(device))
            .and_then(|pool| sys::cuMemPoolTrimTo(pool, 0).result())
            .and_then(|()| sys::cuDeviceGraphMemTrim(device).result())
    }
}

/// The most bytes that were allocated at a time since the last call, by allocations and by recorded
/// steps. Both peaks are added, although they need not fall together.
pub(super) fn take_peak(device: sys::CUdevice) -> Result<usize, driver::DriverError> {
    let (mut allocated, mut recorded, mut zero) = (0_u64, 0_u64, 0_u64);
    // SAFETY: the attributes are u64; setting one to zero resets it.
    unsafe {
        let pool = driver::device::get_default_mem_pool(device)?;
        sys::cuMemPoolGetAttribute(pool, HIGH, (&raw mut allocated).cast()).result()?;
        sys::cuMemPoolSetAttribute(pool, HIGH, (&raw mut zero).cast()).result()?;
        let recorded = (&raw mut recorded).cast();
        sys::cuDeviceGetGraphMemAttribute(device, GRAPHS_HIGH, recorded).result()?;
        let zero = (&raw mut zero).cast();
        sys::cuDeviceSetGraphMemAttribute(device, GRAPHS_HIGH, zero).result()?;
    }
    Ok((allocated + recorded) as usize)
}
