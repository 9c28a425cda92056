//! The largest memory that a process has used, as the kernel keeps it (`VmHWM`).

/// The high-water mark of one process, from now on.
#[derive(Clone, Copy, Debug)]
pub struct PeakMemory {
    process: u32,
}

impl PeakMemory {
    /// Starts a new mark. Where the kernel does not allow that, the mark is of the process's whole life.
    #[must_use]
    pub fn begin(process: u32) -> Self {
        // 5 resets the mark and nothing else; see proc_pid_clear_refs(5). A refusal leaves a mark that is too high, never too low.
        let _ = std::fs::write(format!("/proc/{process}/clear_refs"), "5");
        PeakMemory { process }
    }

    /// The mark, in bytes.
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
        let peak = PeakMemory::begin(std::process::id()).peak_bytes().expect("Linux says how much");
        assert!((1 << 18..1 << 36).contains(&peak), "{peak}");
    }
}
