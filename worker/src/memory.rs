//! The process's memory: what the allocator keeps of it, and its peak.

/// Milliseconds after which freed memory goes back to the system, unless it was used again.
/// mimalloc's second is longer than many parts take: what one had freed stood beside what the
/// next one used, and `plan` was right about neither (log_probs 403 to 454 MB, now 327).
const KEPT_MS: std::ffi::c_long = 20;

/// `mi_option_purge_delay` in mimalloc's header; the binding has no name for it.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;

/// Has freed memory go back soon.
pub(crate) fn give_back_soon() {
    // SAFETY: it stores a number; where another allocator serves the process nobody reads it.
    unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, KEPT_MS) }
}

/// Gives back what earlier attempts freed: a rollout's caches, which the allocator would
/// keep, are of no use to an update.
pub(crate) fn give_back() {
    // SAFETY: it may be called from any thread at any time; where another allocator
    // serves the process it finds nothing to do.
    unsafe { libmimalloc_sys::mi_collect(true) }
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
