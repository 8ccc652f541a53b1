//! The process's memory: releasing unused pages, and the peak; and the machine's.

use std::ffi::CStr;

/// `MALLCTL_ARENAS_ALL` is 4096: purging all of jemalloc's arenas returns unused pages.
const PURGE: &CStr = c"arena.4096.purge";

/// Returns memory that earlier attempts freed: an update has no use for a rollout's caches, which
/// the allocator would keep a little longer.
pub(crate) fn give_back() {
    let none = std::ptr::null_mut();
    // SAFETY: the name is a C string and the call takes and returns nothing; it is allowed
    // from any thread at any time. If the process uses another allocator, the call has no effect.
    unsafe { tikv_jemalloc_sys::mallctl(PURGE.as_ptr(), none, std::ptr::null_mut(), none, 0) };
}

/// Resets the process's peak, so that each attempt has its own. Attempts that overlap in one
/// process share the peak of the younger one.
pub(crate) fn forget_peak() {
    // Other systems than Linux have no such file, and no peak to read.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// The process's largest resident size since [`forget_peak`]; 0 if the system does not report it.
pub(crate) fn peak_bytes() -> u64 {
    of_process("VmHWM:")
}

/// The process's resident size; 0 if the system does not report it.
pub(crate) fn resident_bytes() -> u64 {
    of_process("VmRSS:")
}

fn of_process(figure: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix(figure));
    line.and_then(|l| l.trim().strip_suffix("kB"))
        .and_then(|n| n.trim().parse::<u64>().ok())
        .unwrap_or(0)
        * 1024
}

/// Bytes that processes on this machine may use: its memory, or the limit of its container.
/// The maximum value if unknown, so that nothing is refused.
pub fn machine_bytes() -> u64 {
    let Ok(mut system) = sysinfo::System::new() else {
        return u64::MAX;
    };
    system.refresh_memory();
    let container = system.cgroup_limits().map(|limits| limits.total_memory);
    let machine = system.total_memory();
    container.map_or(machine, |limit| limit.min(machine))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_memory() {
        assert!(machine_bytes() > 1 << 28, "{}", machine_bytes());
    }
}
