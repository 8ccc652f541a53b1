//! The process's memory: what the allocator keeps of it, and its peak.

use std::ffi::CStr;

/// Every arena, to jemalloc (`MALLCTL_ARENAS_ALL`): its purge gives unused pages back.
const PURGE: &CStr = c"arena.4096.purge";

/// Gives back what earlier attempts freed: a rollout's caches, which the allocator would
/// keep a little longer, are of no use to an update.
pub(crate) fn give_back() {
    let none = std::ptr::null_mut();
    // SAFETY: the name is a C string and the call takes and returns nothing; it may be made
    // from any thread at any time. Where another allocator serves the process it finds
    // nothing to do.
    unsafe { tikv_jemalloc_sys::mallctl(PURGE.as_ptr(), none, std::ptr::null_mut(), none, 0) };
}

/// Begins the process's peak anew, so that each attempt has its own. Attempts
/// that overlap in one process share the younger one's.
pub(crate) fn forget_peak() {
    // Elsewhere than on Linux there is no such file, and no peak to be read.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// The process's largest resident size since [`forget_peak`]; 0 where the system does not say.
pub(crate) fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    line.and_then(|l| l.trim().strip_suffix("kB"))
        .and_then(|n| n.trim().parse::<u64>().ok())
        .unwrap_or(0)
        * 1024
}
