//! The devices of the pool, present or not, and what is known of their health.
//!
//! Invariants
//! 1. A device's place in the table (`DeviceIndex`) never changes while the pool is open.
//! 2. A device that failed a write, a reset or a flush is never written again: what it holds of the unflushed
//!    past is unknown. It is still read, for identity and checksums tell what of it is good.
//! 3. A device that said it is gone is neither read nor written again.
//! 4. `dirty` is set after a write has returned and before its caller learns of it, so a flush that begins
//!    later includes it.
//!
//! ```text
//!   present ──write, reset or flush fails──▶ failed ──"gone"──▶ gone
//!      └──────────────"gone" (any operation)─────────────────────▲      missing: never opened
//! ```
//! `note_failure` makes every transition.

use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU8};

use parking_lot::Mutex;
use warpfire_env::{Device, DeviceError, DeviceOp, OpKind, run_batch};
use warpfire_format::root::DeviceEntry;
use warpfire_units::DeviceIndex;

use crate::device::counters::{DeviceCounters, LiveCounters};

const PRESENT: u8 = 0;
const FAILED: u8 = 1;
const GONE: u8 = 2;

/// How a device is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceState {
    /// Read and written.
    Present,
    /// Failed a write or a flush in this session: only read from now on.
    Failed,
    /// Said it is gone: not used any more.
    Gone,
    /// Was not there when the pool was opened.
    Missing,
}

/// All devices of the pool.
pub(crate) struct Devices {
    table: Vec<DeviceEntry>,
    /// Those that were opened; `slots` maps a `DeviceIndex` to its place here.
    opened: Vec<Arc<dyn Device>>,
    slots: Vec<Option<usize>>,
    slot_states: Vec<SlotState>,
    last_failure: Mutex<Option<DeviceError>>,
}

/// What is kept for each opened device, in slot order.
struct SlotState {
    index: DeviceIndex,
    health: AtomicU8,
    dirty: AtomicBool,
    tally: LiveCounters,
}

impl DeviceState {
    /// Whether reads are sent to it.
    pub(crate) fn is_readable(self) -> bool {
        matches!(self, DeviceState::Present | DeviceState::Failed)
    }
}

impl Devices {
    /// `by_index` holds one entry for each in `table`, `None` where the device is missing.
    pub(crate) fn new(table: Vec<DeviceEntry>, by_index: Vec<Option<Arc<dyn Device>>>) -> Self {
        assert_eq!(table.len(), by_index.len(), "one place for each device in the table");
        let mut opened = Vec::new();
        let mut slot_states = Vec::new();
        let mut slots = Vec::new();
        for (index, device) in (0u16..).zip(by_index) {
            slots.push(device.as_ref().map(|_| opened.len()));
            if let Some(device) = device {
                opened.push(device);
                slot_states.push(SlotState {
                    index: DeviceIndex(index),
                    health: AtomicU8::new(PRESENT),
                    dirty: AtomicBool::new(false),
                    tally: LiveCounters::default(),
                });
            }
        }
        Devices { table, opened, slots, slot_states, last_failure: Mutex::new(None) }
    }

    pub(crate) fn table(&self) -> &[DeviceEntry] {
        &self.table
    }

    pub(crate) fn indices(&self) -> impl Iterator<Item = DeviceIndex> + use<> {
        let count = u16::try_from(self.table.len()).expect("the table's length fits its field");
        (0..count).map(DeviceIndex)
    }

    fn slot(&self, index: DeviceIndex) -> Option<usize> {
        self.slots.get(usize::from(index.0)).copied().flatten()
    }

    fn slot_state(&self, index: DeviceIndex) -> Option<&SlotState> {
        self.slot(index).map(|slot| &self.slot_states[slot])
    }

    pub(crate) fn state(&self, index: DeviceIndex) -> DeviceState {
        match self.slot_state(index).map(|p| p.health.load(Acquire)) {
            None => DeviceState::Missing,
            Some(PRESENT) => DeviceState::Present,
            Some(FAILED) => DeviceState::Failed,
            Some(_) => DeviceState::Gone,
        }
    }

    /// The device's name, if it was opened.
    pub(crate) fn name(&self, index: DeviceIndex) -> Option<&str> {
        self.slot(index).map(|slot| self.opened[slot].info().name.as_str())
    }

    pub(crate) fn writable(&self, index: DeviceIndex) -> bool {
        self.state(index) == DeviceState::Present
    }

    /// Devices that take writes, in index order.
    pub(crate) fn all_writable(&self) -> Vec<DeviceIndex> {
        self.slot_states.iter().filter(|p| p.health.load(Acquire) == PRESENT).map(|p| p.index).collect()
    }

    /// Devices of the table that are missing or no longer written.
    pub(crate) fn lost_count(&self) -> usize {
        self.table.len() - self.all_writable().len()
    }

    /// A read; `None` if there is nothing to read from.
    pub(crate) fn read_op<'a>(&self, at: (DeviceIndex, u64), buf: &'a mut [u8]) -> Option<DeviceOp<'a>> {
        let slot = self.slot(at.0)?;
        let readable = self.slot_states[slot].health.load(Acquire) != GONE;
        readable.then(|| DeviceOp::new(slot, OpKind::Read(at.1, buf)))
    }

    /// A write; `None` if the device is not written any more.
    pub(crate) fn write_op<'a>(&self, at: (DeviceIndex, u64), buf: &'a [u8]) -> Option<DeviceOp<'a>> {
        let slot = self.slot(at.0)?;
        let writable = self.slot_states[slot].health.load(Acquire) == PRESENT;
        writable.then(|| DeviceOp::new(slot, OpKind::Write(at.1, buf)))
    }

    /// Runs a batch of operations made here, counts it, and notes what failed.
    pub(crate) fn run(&self, ops: &mut [DeviceOp<'_>]) {
        run_batch(&self.opened, ops);
        for op in ops {
            let slot_state = &self.slot_states[op.device];
            let tally = &slot_state.tally;
            match &op.kind {
                OpKind::Read(_, buf) => {
                    tally.reads.fetch_add(1, Relaxed);
                    tally.read_bytes.fetch_add(buf.len() as u64, Relaxed);
                }
                OpKind::Write(_, buf) => {
                    tally.writes.fetch_add(1, Relaxed);
                    tally.written_bytes.fetch_add(buf.len() as u64, Relaxed);
                    slot_state.dirty.store(true, Release);
                }
                OpKind::Flush => {
                    tally.flushes.fetch_add(1, Relaxed);
                }
            }
            if let Err(e) = &op.result {
                self.note_failure(slot_state, e, !matches!(op.kind, OpKind::Read(..)));
            }
        }
    }

    /// Flushes every device that was written since it was last flushed, all at once.
    pub(crate) fn flush_dirty(&self) {
        let mut ops = Vec::new();
        for (slot, slot_state) in self.slot_states.iter().enumerate() {
            if slot_state.dirty.swap(false, AcqRel) && slot_state.health.load(Acquire) == PRESENT {
                ops.push(DeviceOp::new(slot, OpKind::Flush));
            }
        }
        self.run(&mut ops);
    }

    /// Resets one zone. A failure is noted and drops the device.
    pub(crate) fn reset_zone(&self, index: DeviceIndex, at: u64, len: u64) -> Result<(), DeviceError> {
        let Some(slot) = self.slot(index) else { return Ok(()) };
        let slot_state = &self.slot_states[slot];
        slot_state.tally.resets.fetch_add(1, Relaxed);
        let result = self.opened[slot].reset_zone(at, len);
        if let Err(e) = &result {
            self.note_failure(slot_state, e, true);
        }
        result
    }

    fn note_failure(&self, slot_state: &SlotState, error: &DeviceError, was_write: bool) {
        slot_state.tally.errors.fetch_add(1, Relaxed);
        if matches!(error, DeviceError::Gone { .. }) {
            slot_state.health.store(GONE, Release);
        } else if was_write {
            slot_state.health.fetch_max(FAILED, AcqRel);
        } else {
            return;
        }
        *self.last_failure.lock() = Some(error.clone());
    }

    /// What the last failure that dropped a device said.
    pub(crate) fn last_failure(&self) -> Arc<str> {
        match &*self.last_failure.lock() {
            Some(e) => Arc::from(e.to_string()),
            None => Arc::from("devices are missing"),
        }
    }

    pub(crate) fn count_checksum_error(&self, index: DeviceIndex) {
        if let Some(slot_state) = self.slot_state(index) {
            slot_state.tally.checksum_errors.fetch_add(1, Relaxed);
        }
    }

    pub(crate) fn count_identity_error(&self, index: DeviceIndex) {
        if let Some(slot_state) = self.slot_state(index) {
            slot_state.tally.identity_errors.fetch_add(1, Relaxed);
        }
    }

    /// Counts by device index; zero for devices that are missing.
    pub(crate) fn counters(&self) -> Vec<DeviceCounters> {
        self.indices()
            .map(|i| self.slot_state(i).map_or_else(Default::default, |p| p.tally.snapshot()))
            .collect()
    }
}
