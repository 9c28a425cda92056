//! Counters of the operations on each device since the pool was opened.

use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Operations on one device, or on all of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DeviceCounters {
    /// Reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes written: payload, headers, parity, roots.
    pub written_bytes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Zones reset.
    pub resets: u64,
    /// Operations that ended in an error.
    pub errors: u64,
    /// Operations that the pool stopped waiting for, because the device did not answer in time.
    pub late: u64,
    /// Blocks that did not match their checksum.
    pub checksum_errors: u64,
    /// Header blocks that did not verify or carried another identity: rot, or a lost, stale or misdirected
    /// write. A walk past the end of a segment counts here too.
    pub identity_errors: u64,
}

impl AddAssign for DeviceCounters {
    fn add_assign(&mut self, o: Self) {
        self.reads += o.reads;
        self.read_bytes += o.read_bytes;
        self.writes += o.writes;
        self.written_bytes += o.written_bytes;
        self.flushes += o.flushes;
        self.resets += o.resets;
        self.errors += o.errors;
        self.late += o.late;
        self.checksum_errors += o.checksum_errors;
        self.identity_errors += o.identity_errors;
    }
}

/// A snapshot of all counters.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PoolCounters {
    /// The sum over all devices.
    pub total: DeviceCounters,
    /// By device index; zero for devices that are missing.
    pub devices: Vec<DeviceCounters>,
    /// Blocks that were reconstructed from the rest of their stripe for a read.
    pub rebuilt_blocks: u64,
    /// Stripes written.
    pub stripes: u64,
    /// Payload bytes in them, padding not counted.
    pub payload_bytes: u64,
}

/// The live counts of one device.
#[derive(Debug, Default)]
pub(crate) struct LiveCounters {
    pub reads: AtomicU64,
    pub read_bytes: AtomicU64,
    pub writes: AtomicU64,
    pub written_bytes: AtomicU64,
    pub flushes: AtomicU64,
    pub resets: AtomicU64,
    pub errors: AtomicU64,
    pub late: AtomicU64,
    pub checksum_errors: AtomicU64,
    pub identity_errors: AtomicU64,
}

impl LiveCounters {
    pub(crate) fn snapshot(&self) -> DeviceCounters {
        DeviceCounters {
            reads: self.reads.load(Relaxed),
            read_bytes: self.read_bytes.load(Relaxed),
            writes: self.writes.load(Relaxed),
            written_bytes: self.written_bytes.load(Relaxed),
            flushes: self.flushes.load(Relaxed),
            resets: self.resets.load(Relaxed),
            errors: self.errors.load(Relaxed),
            late: self.late.load(Relaxed),
            checksum_errors: self.checksum_errors.load(Relaxed),
            identity_errors: self.identity_errors.load(Relaxed),
        }
    }
}
