//! Operations on the devices of the set: reads and writes in batches, flushes, resets and discards.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use warpfire_env::{DeviceError, DeviceOp, LendableBytes, OpKind, TimeLimit, run_batch, unanswered};
use warpfire_units::{BLOCK_BYTES, DeviceIndex};

use super::{DeviceState, Devices, GONE, LIMITED_READ_BYTES_MAX, READ_LIMIT, UNWRITTEN, WRITE_WAIT_MAX};

impl Devices {
    /// A read operation; `None` if the device is missing or gone.
    pub(crate) fn read_op<'a>(&self, at: (DeviceIndex, u64), buf: &'a mut [u8]) -> Option<DeviceOp<'a>> {
        let set = self.set.load();
        let (slot, _, state) = set.opened(at.0)?;
        let readable = state.health.load(Acquire) != GONE;
        readable.then(|| DeviceOp::new(slot, OpKind::Read(at.1, buf)))
    }

    /// As `read_op`, with a time limit if it is short, and `None` for a device that owes an answer: for a
    /// reader that can do without it.
    pub(crate) fn limited_read_op<'a>(
        &self,
        at: (DeviceIndex, u64),
        buf: &'a mut [u8],
    ) -> Option<DeviceOp<'a>> {
        if !self.answers(at.0) {
            return None;
        }
        let limit = (buf.len() <= LIMITED_READ_BYTES_MAX).then_some(READ_LIMIT);
        self.read_op(at, buf).map(|op| op.within(limit))
    }

    /// As `limited_read_op`, but `None` for a device that has failed a write too: its reads may take long,
    /// and other columns can stand in.
    pub(crate) fn sound_read_op<'a>(
        &self,
        at: (DeviceIndex, u64),
        buf: &'a mut [u8],
    ) -> Option<DeviceOp<'a>> {
        if self.state(at.0) == DeviceState::Present { self.limited_read_op(at, buf) } else { None }
    }

    /// Whether reads of so many bytes may share a batch, although a device that does not answer holds up all
    /// of a batch: either there is one device alone, or such a read has a time limit.
    pub(crate) fn may_share_batch(&self, len_bytes: usize) -> bool {
        // The bytes may begin and end within blocks, which are read whole.
        let blocks_bytes = (len_bytes.div_ceil(BLOCK_BYTES) + 1) * BLOCK_BYTES;
        let is_limited = self.parity.load(Relaxed) > 0 && blocks_bytes <= LIMITED_READ_BYTES_MAX;
        is_limited || self.set.load().opened.len() == 1
    }

    /// Whether the device owes no answer. Takes the answers that have come.
    pub(crate) fn answers(&self, index: DeviceIndex) -> bool {
        let set = self.set.load();
        let Some((_, device, slot_state)) = set.opened(index) else { return true };
        if !slot_state.is_slow.load(Acquire) {
            return true;
        }
        if unanswered(device) > 0 {
            return false;
        }
        if slot_state.is_slow.swap(false, AcqRel) {
            tracing::info!(
                name: "device_answers_again",
                device = index.0,
                "a slow device owes no answer any more"
            );
        }
        true
    }

    /// A write operation; `None` if the device takes no more writes.
    pub(crate) fn write_op<'a>(
        &self,
        at: (DeviceIndex, u64),
        bytes: LendableBytes<'a>,
    ) -> Option<DeviceOp<'a>> {
        self.write_op_since(u64::MAX, at, bytes)
    }

    /// As `write_op`, and `None` if the device has missed a write since this moment, or the zone is dead.
    pub(crate) fn write_op_since<'a>(
        &self,
        moment: u64,
        at: (DeviceIndex, u64),
        bytes: LendableBytes<'a>,
    ) -> Option<DeviceOp<'a>> {
        assert!(!self.for_reading, "{UNWRITTEN}");
        let set = self.set.load();
        let (slot, device, state) = set.opened(at.0)?;
        let is_written = state.is_written_since(moment) && !self.dead_zones.contains(&**device, at.0, at.1);
        is_written.then(|| DeviceOp::write_within(slot, at.1, bytes, self.write_limit()))
    }

    /// How long a write waits for its device. Without an end where parity cannot cover the loss of the
    /// device: to wait is better then than to stop writing.
    fn write_limit(&self) -> Option<TimeLimit> {
        let devices_max = self.parity.load(Relaxed).saturating_sub(self.lost.load(Relaxed));
        (devices_max > 0).then_some(TimeLimit { wait_max: WRITE_WAIT_MAX, devices_max })
    }

    /// Whether threads of the pool's own may use the devices at the same time. Simulated ones take the
    /// operations of one caller, in an order that repeats.
    pub(crate) fn take_threads(&self) -> bool {
        let set = self.set.load();
        set.opened.iter().all(|device| device.raw_fd().is_some() || device.works_beside_others())
    }

    /// Runs a batch of operations that `read_op` and `write_op` made, counts them, and drops devices that
    /// failed.
    pub(crate) fn run(&self, ops: &mut [DeviceOp<'_>]) {
        self.count_program_ops(ops.len());
        let set = self.set.load_full();
        run_batch(&set.opened, ops);
        for op in ops {
            debug_assert!(op.device < set.opened.len(), "an operation names an opened device");
            let slot_state = &set.slot_states[op.device];
            let tally = &slot_state.tally;
            match op.kind() {
                OpKind::Read(_, buf) => {
                    tally.reads.fetch_add(1, Relaxed);
                    tally.read_bytes.fetch_add(buf.len() as u64, Relaxed);
                }
                OpKind::Write(_, buf) => {
                    tally.writes.fetch_add(1, Relaxed);
                    tally.written_bytes.fetch_add(buf.len() as u64, Relaxed);
                    // A failed write counts too: a part of it may be in the device's cache.
                    slot_state.dirty.store(true, Release);
                }
                OpKind::Flush => {
                    tally.flushes.fetch_add(1, Relaxed);
                }
            }
            let Err(error) = &op.result else { continue };
            let is_of_zone = |at: u64| {
                let device = &*set.opened[op.device];
                self.dead_zones.note_failed_write(device, slot_state.index, at, error)
            };
            match op.kind() {
                OpKind::Write(at, _) if is_of_zone(*at) => {
                    tally.errors.fetch_add(1, Relaxed);
                    self.note_change();
                }
                kind => self.note_failure(slot_state, error, kind),
            }
        }
    }

    /// Flushes every device that was written since its last flush, all at once.
    pub(crate) fn flush_dirty(&self) {
        let mut ops = Vec::new();
        for (slot, slot_state) in self.set.load().slot_states.iter().enumerate() {
            // Cleared before the flush: a write that returns during the flush sets it again for the next
            // one.
            if slot_state.dirty.swap(false, AcqRel) && slot_state.is_written() {
                ops.push(DeviceOp::new(slot, OpKind::Flush).within(self.write_limit()));
            }
        }
        self.run(&mut ops);
    }

    /// Resets the zone of `len` bytes at byte `at`. Does nothing on a missing device.
    ///
    /// # Errors
    /// If a zoned device cannot reset the zone, or the device is gone or does not answer. A discard that a
    /// conventional device refuses is no error.
    pub(crate) fn reset_zone(&self, index: DeviceIndex, at: u64, len: u64) -> Result<(), DeviceError> {
        assert!(!self.for_reading, "{UNWRITTEN}");
        assert!(at.is_multiple_of(len), "a reset covers one whole zone");
        let set = self.set.load_full();
        let Some((_, device, slot_state)) = set.opened(index) else { return Ok(()) };
        slot_state.tally.resets.fetch_add(1, Relaxed);
        let reset = match self.write_limit() {
            Some(limit) => device.reset_zone_within(at, len, limit.wait_max),
            None => device.reset_zone(at, len),
        };
        let Err(error) = reset else {
            self.dead_zones.revive(index, at);
            self.note_change();
            return Ok(());
        };
        self.note_refused_reset(&**device, slot_state, &error);
        let is_lost = matches!(error, DeviceError::Gone { .. } | DeviceError::Late { .. });
        if is_lost || device.info().zones.is_some() { Err(error) } else { Ok(()) }
    }

    /// Whether a discard of free zones may help the device: it is conventional, takes writes and owes no
    /// answer.
    pub(crate) fn takes_discards(&self, index: DeviceIndex) -> bool {
        let set = self.set.load();
        let Some((_, device, state)) = set.opened(index) else { return false };
        state.is_written() && self.answers(index) && device.info().zones.is_none()
    }

    /// Discards on a conventional device the zone of `len` bytes at byte `at`. Returns whether the
    /// device accepts that.
    pub(crate) fn discard_zone(&self, index: DeviceIndex, at: u64, len: u64) -> bool {
        assert!(!self.for_reading, "{UNWRITTEN}");
        assert!(at.is_multiple_of(len), "a discard covers one whole zone");
        let set = self.set.load_full();
        let Some((_, device, slot_state)) = set.opened(index) else { return false };
        let discarded = match self.write_limit() {
            Some(limit) => device.discard_within(at, len, limit.wait_max),
            None => device.discard(at, len),
        };
        if let Err(error) = &discarded {
            self.note_refused_reset(&**device, slot_state, error);
        }
        discarded.is_ok()
    }
}
