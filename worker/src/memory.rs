//! The process's memory: releasing unused pages, and the peak; and the machine's.

use std::ffi::{CStr, CString, c_void};
use std::sync::Mutex;

/// `MALLCTL_ARENAS_ALL` is 4096: purging all of jemalloc's arenas returns unused pages.
const PURGE: &CStr = c"arena.4096.purge";

/// How long freed pages are kept if nothing else is said.
const KEPT_MS: &CStr = c"opt.dirty_decay_ms";

/// About a step. Kept for ever, pages that no later step fits into would add up.
const STEP_MS: isize = 10_000;

/// Returns memory that earlier attempts freed: an update has no use for a rollout's caches, which
/// the allocator would keep a little longer.
pub(crate) fn give_back() {
    let none = std::ptr::null_mut();
    // SAFETY: the name is a C string and the call takes and returns nothing; it is allowed
    // from any thread at any time. If the process uses another allocator, the call has no effect.
    unsafe { tikv_jemalloc_sys::mallctl(PURGE.as_ptr(), none, std::ptr::null_mut(), none, 0) };
}

/// While one exists, memory that is freed stays with the process for about a step: each optimizer step
/// frees and takes the same gigabytes, and fresh ones have to be cleared, a sixth of a large model's step.
#[derive(Debug)]
pub(crate) struct Keep(());

/// How many [`Keep`] there are.
static KEEPERS: Mutex<usize> = Mutex::new(0);

impl Keep {
    pub(crate) fn new() -> Self {
        let mut keepers = KEEPERS.lock().expect("no thread panics holding this");
        *keepers += 1;
        keep_freed(STEP_MS);
        Keep(())
    }
}

impl Drop for Keep {
    fn drop(&mut self) {
        let mut keepers = KEEPERS.lock().expect("no thread panics holding this");
        *keepers -= 1;
        if *keepers == 0 {
            keep_freed(read(KEPT_MS));
            give_back();
        }
    }
}

/// Has freed pages kept for so many milliseconds by all arenas, those to come among them.
fn keep_freed(mut milliseconds: isize) {
    let arenas: u32 = read(c"arenas.narenas");
    let own = (0..arenas).filter_map(|n| CString::new(format!("arena.{n}.dirty_decay_ms")).ok());
    for name in own.chain([c"arenas.dirty_decay_ms".to_owned()]) {
        let new = (&raw mut milliseconds).cast::<c_void>();
        let (none, size) = (std::ptr::null_mut(), size_of::<isize>());
        // SAFETY: the value that the name takes has this type; it is refused for an arena that does
        // not exist yet.
        unsafe { tikv_jemalloc_sys::mallctl(name.as_ptr(), none, std::ptr::null_mut(), new, size) };
    }
}

/// What jemalloc says of a name whose value has this type.
fn read<T: Copy + Default>(name: &CStr) -> T {
    let (mut value, mut size) = (T::default(), size_of::<T>());
    let found = (&raw mut value).cast::<c_void>();
    // SAFETY: the call writes at most `size` bytes.
    unsafe {
        tikv_jemalloc_sys::mallctl(name.as_ptr(), found, &raw mut size, std::ptr::null_mut(), 0)
    };
    value
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
    fn what_is_freed_is_kept_while_somebody_keeps_it() {
        let usual: isize = read(KEPT_MS);
        assert!(usual >= 0, "{usual}");
        // Attempts of other tests keep memory too.
        let check = |least: usize| {
            let keepers = KEEPERS.lock().expect("no thread panics holding this");
            assert!(*keepers >= least);
            let expected = if *keepers > 0 { STEP_MS } else { usual };
            for name in [c"arenas.dirty_decay_ms", c"arena.0.dirty_decay_ms"] {
                assert_eq!(read::<isize>(name), expected, "{name:?}");
            }
        };
        check(0);
        let first = Keep::new();
        let second = Keep::new();
        check(2);
        drop(first);
        check(1);
        drop(second);
        check(0);
    }

    #[test]
    fn this_machine_has_memory() {
        assert!(machine_bytes() > 1 << 28, "{}", machine_bytes());
    }
}
