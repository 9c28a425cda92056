//! The memory that this process may use: what the machine has, or less if a control group limits it.

use std::fs;
use std::path::Path;

/// Memory, as the kernel counts it at the moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MachineMemory {
    /// Memory of the machine, or the lowest limit of the control groups that this process is in.
    pub total_bytes: u64,
    /// Part of the total that processes can still take, page cache that the kernel would give up included.
    pub available_bytes: u64,
}

impl MachineMemory {
    /// Reads it from the kernel. `None` if the kernel does not say, as without `/proc`.
    #[must_use]
    pub fn read() -> Option<MachineMemory> {
        MachineMemory::below(Path::new("/"))
    }

    /// As [`read`](MachineMemory::read), from files below `root`.
    fn below(root: &Path) -> Option<MachineMemory> {
        let meminfo = fs::read_to_string(root.join("proc/meminfo")).ok()?;
        let kib = |name| value_of(&meminfo, name).map(|kib| kib.saturating_mul(1024));
        let total_bytes = kib("MemTotal:")?;
        let mut memory = MachineMemory { total_bytes, available_bytes: kib("MemAvailable:")? };
        let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
        for line in groups.lines() {
            // `ID:CONTROLLERS:PATH`. Version 2 has no controllers here.
            let mut parts = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
            let (mounted, files) = match controllers {
                "" => ("sys/fs/cgroup", &VERSION_2),
                _ if controllers.split(',').any(|c| c == "memory") => ("sys/fs/cgroup/memory", &VERSION_1),
                _ => continue,
            };
            let mounted = root.join(mounted);
            let mut group = Some(mounted.join(path.trim_start_matches('/')));
            // A group is limited by those above it too.
            while let Some(path) = group.filter(|path| path.starts_with(&mounted)) {
                if let Some(limited) = files.read(&path) {
                    memory.total_bytes = memory.total_bytes.min(limited.total_bytes);
                    memory.available_bytes = memory.available_bytes.min(limited.available_bytes);
                }
                group = path.parent().map(Path::to_path_buf);
            }
        }
        Some(memory)
    }
}

/// The files of a control group that report its memory.
struct GroupFiles {
    limit: &'static str,
    used: &'static str,
    /// Entries of `memory.stat`: page cache of the group, which the kernel gives up at the limit.
    page_cache: [&'static str; 2],
}

const VERSION_2: GroupFiles =
    GroupFiles { limit: "memory.max", used: "memory.current", page_cache: ["inactive_file", "active_file"] };
const VERSION_1: GroupFiles = GroupFiles {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    page_cache: ["total_inactive_file", "total_active_file"],
};

impl GroupFiles {
    /// `None` if the group has no limit.
    fn read(&self, group: &Path) -> Option<MachineMemory> {
        let file = |name| fs::read_to_string(group.join(name)).ok();
        let total_bytes = file(self.limit)?.trim().parse::<u64>().ok()?;
        let used: u64 = file(self.used)?.trim().parse().ok()?;
        let stat = file("memory.stat").unwrap_or_default();
        let page_cache: u64 = self.page_cache.iter().filter_map(|name| value_of(&stat, name)).sum();
        let available_bytes = total_bytes.saturating_sub(used.saturating_sub(page_cache));
        Some(MachineMemory { total_bytes, available_bytes })
    }
}

/// The number behind a name in lines of `NAME NUMBER`.
fn value_of(lines: &str, name: &str) -> Option<u64> {
    lines.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        (words.next()? == name).then(|| words.next()?.parse().ok())?
    })
}

/// Returns memory to the operating system that this process has freed and its allocator keeps.
pub fn return_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        #[expect(unsafe_code, reason = "the allocator's own call, declared in libc")]
        // SAFETY: the call takes no pointers and is safe beside any other use of the allocator.
        let _some_returned = unsafe { libc::malloc_trim(0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes files below a new directory.
    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        root
    }

    const MEMINFO: (&str, &str) =
        ("proc/meminfo", "MemTotal: 1000 kB\nMemFree: 100 kB\nMemAvailable: 600 kB\n");

    fn read(files: &[(&str, &str)]) -> Option<(u64, u64)> {
        MachineMemory::below(tree(files).path()).map(|m| (m.total_bytes, m.available_bytes))
    }

    #[test]
    fn without_control_groups_it_is_the_memory_of_the_machine() {
        assert_eq!(read(&[MEMINFO]), Some((1_024_000, 614_400)));
        assert_eq!(read(&[MEMINFO, ("proc/self/cgroup", "0::/a/b\nnonsense\n")]), Some((1_024_000, 614_400)));
        assert_eq!(read(&[]), None);
        assert_eq!(read(&[("proc/meminfo", "MemTotal: many\n")]), None);
    }

    #[test]
    fn the_lowest_limit_above_a_group_counts() {
        let group = [
            MEMINFO,
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/memory.max", "500000\n"),
            ("sys/fs/cgroup/a/memory.current", "450000\n"),
            ("sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 100000\nactive_file 20000\n"),
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("sys/fs/cgroup/a/b/memory.current", "1\n"),
        ];
        assert_eq!(read(&group), Some((500_000, 170_000)));
    }

    #[test]
    fn groups_of_version_1_count_too() {
        let group = [
            MEMINFO,
            ("proc/self/cgroup", "5:cpu:/x\n4:memory,other:/a\n0::/\n"),
            ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "300000"),
            ("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "400000"),
            ("sys/fs/cgroup/memory/a/memory.stat", "inactive_file 9\ntotal_inactive_file 50000\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "500000"),
        ];
        assert_eq!(read(&group), Some((300_000, 0)));
    }

    #[test]
    fn this_machine_has_memory() {
        let memory = MachineMemory::read().expect("Linux reports its memory");
        assert!(0 < memory.available_bytes && memory.available_bytes <= memory.total_bytes);
        return_freed_memory();
    }
}
