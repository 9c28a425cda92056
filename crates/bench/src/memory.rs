//! The peak memory of a process, as the kernel reports it (`VmHWM`).

/// The high-water mark of one process since this value was made.
#[derive(Clone, Copy, Debug)]
pub struct PeakMemory {
    process: u32,
}

impl PeakMemory {
    /// Resets the mark. If the kernel refuses, the mark covers the whole life of the process.
    #[must_use]
    pub fn begin(process: u32) -> Self {
        // Writing 5 resets the mark and nothing else, see proc_pid_clear_refs(5). After a refusal the mark is
        // too high, never too low.
        let _ = std::fs::write(format!("/proc/{process}/clear_refs"), "5");
        PeakMemory { process }
    }

    /// The mark, in bytes; `None` if the kernel does not report it.
    #[must_use]
    pub fn peak_bytes(self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process)).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
        Some(kib * 1024)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_uses_some_memory_but_not_all() {
        let peak = PeakMemory::begin(std::process::id()).peak_bytes().expect("Linux reports VmHWM");
        assert!((1 << 18..1 << 36).contains(&peak), "{peak}");
    }
}
