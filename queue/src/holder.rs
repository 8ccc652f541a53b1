//! The name of a claim's holder, and whether that process can still be alive.
//!
//! A lease outlives its holder by up to its TTL. A user who runs the same command again after `kill
//! -9` should not wait for that. A holder's name therefore identifies its process, and a process of
//! this machine that is gone holds nothing. For holders on other machines only the lease decides.

/// `host:pid:start`: a name unique to this process in the fleet. `start` is the process's start
/// time in clock ticks since boot, since pids are reused.
pub fn process_name() -> String {
    let pid = std::process::id();
    format!("{}:{pid}:{}", host(), start_ticks(pid).unwrap_or(0))
}

/// True if `holder` names a process of this machine that no longer runs.
pub fn is_gone(holder: &str) -> bool {
    let mut fields = holder.split(':');
    let (Some(name), Some(pid), Some(start)) = (fields.next(), fields.next(), fields.next()) else {
        return false;
    };
    // A worker may append a suffix to its process name, separated by a slash.
    let start = start.split('/').next().unwrap_or_default();
    let (Ok(pid), Ok(start)) = (pid.parse::<u32>(), start.parse::<u64>()) else {
        return false;
    };
    name == host() && start != 0 && start_ticks(pid) != Some(start)
}

fn host() -> String {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let host = read("/proc/sys/kernel/hostname");
    // Cloned machines have equal host names, and so may containers of one machine, each with its
    // own pid namespace.
    let boot = read("/proc/sys/kernel/random/boot_id");
    let pids = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    let pids: String = pids
        .to_string_lossy()
        .chars()
        .filter(char::is_ascii_digit)
        .collect();
    let boot: String = boot
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .take(8)
        .collect();
    let host: String = host
        .trim()
        .chars()
        .filter(|c| !matches!(c, ':' | '/'))
        .collect();
    format!(
        "{}-{boot}-{pids}",
        if host.is_empty() { "localhost" } else { &host }
    )
}

/// Field 22 of `/proc/<pid>/stat`; the name in field 2 may contain spaces. A zombie counts as gone:
/// it does no more work.
fn start_ticks(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, behind_name) = stat.rsplit_once(')')?;
    let mut fields = behind_name.split_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_living_the_dead_and_strangers() {
        let own = process_name();
        assert!(
            !is_gone(&own) && !is_gone(&format!("{own}/1")),
            "{own} is alive"
        );
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let start = start_ticks(child.id()).unwrap();
        let name = format!("{}:{}:{start}", host(), child.id());
        assert!(!is_gone(&name));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(is_gone(&name));
        assert!(
            !is_gone("elsewhere-12345678-1:1:1"),
            "nothing is known of other machines"
        );
        assert!(!is_gone("worker-a"), "nor of free names");
    }
}
