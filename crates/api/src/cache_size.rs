//! The size of the metadata cache: a share of the memory of the machine, and less while memory is short.
//!
//! 1. The limit of the cache is at most the wanted size, and at least [`CACHE_BYTES_MIN`] or that size
//!    (`tests::the_limit_stays_between_its_bounds`).
//! 2. One part in [`AVAILABLE_PART`] of the memory stays available to others. While less is available, the
//!    cache shrinks by the missing bytes; while more is, it grows into half of the rest
//!    (`tests::the_cache_gives_way_and_grows_back`).

use std::sync::Arc;
use std::time::Duration;

use warpfire_env::{IntervalTask, MachineMemory, return_freed_memory};
use warpfire_meta::{CacheMemory, EngineOptions};

use crate::open_pool::Engine;
use crate::{Error, Result};

/// A cache of this size is kept however short memory is: 64 MiB.
const CACHE_BYTES_MIN: u64 = 64 << 20;

/// A memtable has this size beside a smaller cache too: tables would be many and short otherwise.
const MEMTABLE_BYTES_MIN: u64 = 8 << 20;

/// The cache may take one part in so many of the memory.
const CACHE_PART: u64 = 4;

/// One part in so many of the memory stays available to others.
const AVAILABLE_PART: u64 = 16;

/// Freed bytes from which on the allocator returns them to the operating system at once.
const RETURNED_BYTES_MIN: u64 = 16 << 20;

/// Time between two looks at the memory of the machine.
const INTERVAL: Duration = Duration::from_secs(1);

/// The size in bytes that the cache of a pool has by default: a quarter of the machine's memory, at
/// least 64 MiB. It gives way while memory is short.
#[must_use]
pub fn default_cache_bytes() -> u64 {
    MachineMemory::read().map_or(0, |memory| memory.total_bytes / CACHE_PART).max(CACHE_BYTES_MIN)
}

/// The size of a memtable beside a cache of so many bytes: half of them, within bounds. There may be two.
pub(crate) fn memtable_bytes(cache_bytes: u64) -> u64 {
    (cache_bytes / 2).clamp(MEMTABLE_BYTES_MIN, EngineOptions::default().memtable_bytes)
}

/// The limit of a cache of at most `wanted_bytes` that holds `used_bytes`.
pub(crate) fn limit_bytes(wanted_bytes: u64, used_bytes: u64, memory: Option<MachineMemory>) -> u64 {
    let Some(memory) = memory else { return wanted_bytes };
    let reserve = memory.total_bytes / AVAILABLE_PART;
    let limit = match memory.available_bytes.checked_sub(reserve) {
        Some(rest) => used_bytes.saturating_add(rest / 2),
        None => used_bytes.saturating_sub(reserve - memory.available_bytes),
    };
    limit.clamp(CACHE_BYTES_MIN.min(wanted_bytes), wanted_bytes)
}

/// Starts a thread that fits the cache of an engine to the memory that is available.
///
/// # Errors
/// `NoMemory` or the operating system's error if it starts no thread.
pub(crate) fn keep_fitting(engine: &Arc<Engine>, wanted_bytes: u64) -> Result<IntervalTask> {
    let engine = Arc::clone(engine);
    let fit = move || {
        let CacheMemory { used_bytes, limit_bytes: before } = engine.cache_memory();
        let limit = limit_bytes(wanted_bytes, used_bytes, MachineMemory::read());
        if limit == before {
            return;
        }
        engine.limit_cache(limit);
        if limit.saturating_add(RETURNED_BYTES_MIN) < used_bytes {
            return_freed_memory();
        }
    };
    IntervalTask::always("warpfire-cache", INTERVAL, fit).map_err(|error| Error::no_thread(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn of_16_gib(available_bytes: u64) -> Option<MachineMemory> {
        Some(MachineMemory { total_bytes: 16 * GIB, available_bytes })
    }

    #[test]
    fn the_limit_stays_between_its_bounds() {
        assert_eq!(limit_bytes(4 * GIB, 0, of_16_gib(16 * GIB)), 4 * GIB);
        assert_eq!(limit_bytes(4 * GIB, 3 * GIB, of_16_gib(0)), 2 * GIB);
        assert_eq!(limit_bytes(4 * GIB, GIB, of_16_gib(0)), CACHE_BYTES_MIN);
        assert_eq!(limit_bytes(1 << 20, 1 << 20, of_16_gib(0)), 1 << 20);
        assert_eq!(limit_bytes(4 * GIB, 0, None), 4 * GIB);
        assert_eq!(limit_bytes(u64::MAX, u64::MAX, of_16_gib(16 * GIB)), u64::MAX);
    }

    #[test]
    fn the_cache_gives_way_and_grows_back() {
        // Of 16 GiB one stays available.
        assert_eq!(limit_bytes(4 * GIB, 3 * GIB, of_16_gib(GIB / 2)), 5 * GIB / 2);
        assert_eq!(limit_bytes(4 * GIB, 5 * GIB / 2, of_16_gib(GIB)), 5 * GIB / 2);
        assert_eq!(limit_bytes(4 * GIB, GIB, of_16_gib(2 * GIB)), 3 * GIB / 2);
    }

    #[test]
    fn the_default_is_a_share_of_the_machine() {
        let memory = MachineMemory::read().expect("Linux reports its memory");
        assert_eq!(default_cache_bytes(), (memory.total_bytes / 4).max(CACHE_BYTES_MIN));
    }
}
