//! The simulated device: rules and faults around a medium.
//!
//! # Invariants
//! 1. An operation happens at one moment, under the device's lock. A flush too: a cut in the middle of a
//!    flush equals a cut just before it, since any part of the pending changes may survive then.
//! 2. The trace holds the changes of the medium, not the requests: a lost write is not in it, a misdirected
//!    one is where it landed. So a replay of the trace without the faults makes the same medium
//!    (`tests/crash.rs: a_faulty_run_replays_to_the_same_medium`).
//! 3. A late operation takes place once: when its hang ends, before the next operation, or when the device is
//!    healed (`take_place_late`; `tests/faults.rs: a_late_operation_takes_place_when_the_hang_ends`).
//! 4. A refused operation changes nothing (`tests/faults.rs: one_failure_fails_once_and_changes_nothing`).

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use warpfire_env::{Clock, Device, DeviceError, DeviceInfo, OpKind, ZoneMap, ZoneReport};
use warpfire_units::BLOCK_BYTES;

use crate::fault::{Fault, Faults, OpClass, Verdict};
use crate::image::Block;
use crate::medium::{Change, DiscardedBytes, Medium};
use crate::random::mix;
use crate::spec::{DeviceKind, DeviceSpec, DiscardBehavior};
use crate::world::{Event, WorldShared};

pub(crate) const BLOCK: u64 = BLOCK_BYTES as u64;

/// A write over bytes that were still in use on an append-only device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Overwrite {
    /// Where the write began.
    pub offset_bytes: u64,
    /// How long it was.
    pub len_bytes: u64,
    /// The first block that it overwrote.
    pub overwrites_at_bytes: u64,
}

/// The operations requested of a device so far, failed ones included.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SimCounters {
    /// Reads.
    pub reads: u64,
    /// Bytes of all reads.
    pub read_bytes: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes of all writes.
    pub written_bytes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Discards, and resets of zones.
    pub discards: u64,
}

/// An operation that its caller does not wait for any more.
struct LateOp {
    /// When the device answers it.
    at_nanos: u64,
    effect: LateEffect,
}

enum LateEffect {
    Read,
    Write(u64, Vec<u8>),
    Flush,
    /// A discard or a reset, by its name, of a range.
    Drop(&'static str, u64, u64),
}

struct SimDeviceState {
    medium: Medium,
    faults: Faults,
    late: Vec<LateOp>,
    /// Zones that take no writes until they are reset. A power cut may lose that, and loses it always here:
    /// the zone is active again then.
    finished: BTreeSet<u64>,
    counters: SimCounters,
    overwrites: Vec<Overwrite>,
}

/// A device of the simulated world. See the crate's documentation.
pub struct SimDevice {
    info: DeviceInfo,
    spec: DeviceSpec,
    /// Faults and errors name the bytes that callers see; rules and the medium those of the flash.
    zone_map: ZoneMap,
    index: usize,
    shared: Arc<WorldShared>,
    state: Mutex<SimDeviceState>,
}

impl fmt::Debug for SimDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimDevice")
            .field("spec", &self.spec)
            .field("index", &self.index)
            .finish_non_exhaustive()
    }
}

impl SimDevice {
    pub(crate) fn new(spec: DeviceSpec, index: usize, medium: Medium, shared: Arc<WorldShared>) -> Self {
        let info = DeviceInfo { name: spec.name.clone(), size_bytes: spec.size_bytes, zones: spec.zones() };
        let state = SimDeviceState {
            medium,
            faults: Faults::default(),
            late: Vec::new(),
            finished: BTreeSet::new(),
            counters: SimCounters::default(),
            overwrites: Vec::new(),
        };
        let zone_map = spec.zone_map();
        SimDevice { info, spec, zone_map, index, shared, state: Mutex::new(state) }
    }

    /// The device's specification.
    #[must_use]
    pub fn spec(&self) -> &DeviceSpec {
        &self.spec
    }

    /// Adds a fault to those that wait on the device.
    pub fn inject(&self, fault: Fault) {
        self.state.lock().faults.add(fault);
    }

    /// Ends all faults. A vanished device returns with its content; late operations take place.
    pub fn heal(&self) {
        let mut state = self.state.lock();
        state.faults.clear();
        self.take_place_late(&mut state, u64::MAX);
    }

    /// The operations requested so far.
    #[must_use]
    pub fn counters(&self) -> SimCounters {
        self.state.lock().counters
    }

    /// The overwrites of an append-only device.
    #[must_use]
    pub fn overwrites(&self) -> Vec<Overwrite> {
        self.state.lock().overwrites.clone()
    }

    /// Changes that no flush has covered.
    #[must_use]
    pub fn pending_changes(&self) -> usize {
        self.state.lock().medium.pending().len()
    }

    /// Flips one bit of a block, in cache and flash alike. `bit` counts within the block, below 32,768.
    /// A block that was never written stays as it is.
    ///
    /// # Panics
    /// If the block or the bit is outside.
    pub fn rot(&self, offset_bytes: u64, bit: usize) {
        assert!(
            offset_bytes < self.spec.size_bytes && bit < BLOCK_BYTES * 8,
            "rot strikes inside the device"
        );
        let mut state = self.state.lock();
        let block = self.zone_map.place(offset_bytes) / BLOCK;
        state.medium.rot(block, bit);
        self.shared.record(Event::Rot { device: self.index, block, bit });
    }

    /// Writes `bytes` at `offset_bytes` without counters, faults or rules, for damage that a test designs.
    /// This and every pending change is durable at once.
    ///
    /// # Panics
    /// If the range is not whole blocks inside the device.
    pub fn poke(&self, offset_bytes: u64, bytes: &[u8]) {
        self.info.check_range(offset_bytes, bytes.len() as u64).expect("a test pokes whole blocks inside");
        let mut state = self.state.lock();
        for (place, range) in self.zone_map.pieces(offset_bytes, bytes.len()) {
            self.change(&mut state, write_of(place, &bytes[range], false));
        }
        self.settle(&mut state);
    }

    /// Reads bytes at `offset_bytes` without counters or faults.
    ///
    /// # Panics
    /// If the range is not whole blocks inside the device.
    #[must_use]
    pub fn peek(&self, offset_bytes: u64, len_bytes: usize) -> Vec<u8> {
        self.info.check_range(offset_bytes, len_bytes as u64).expect("a test peeks at whole blocks inside");
        let mut bytes = vec![0; len_bytes];
        self.copy_out(&self.state.lock().medium, offset_bytes, &mut bytes, false);
        bytes
    }

    /// Reads blocks that callers see: the present bytes, or with `stale` those before the last write.
    fn copy_out(&self, medium: &Medium, offset_bytes: u64, buf: &mut [u8], stale: bool) {
        for (place, range) in self.zone_map.pieces(offset_bytes, buf.len()) {
            copy_out(medium, place, &mut buf[range], stale);
        }
    }

    pub(crate) fn medium(&self) -> Medium {
        self.state.lock().medium.clone()
    }

    /// Applies a change to the cache, and adds it to the trace.
    fn change(&self, state: &mut SimDeviceState, change: Change) {
        let order = self.shared.record(Event::Change { device: self.index, change: change.clone() });
        state.medium.apply(order, change);
    }

    /// Makes every pending change durable.
    fn settle(&self, state: &mut SimDeviceState) {
        self.shared.record(Event::Flush { device: self.index });
        state.medium.flush();
    }

    fn failed(&self, op: &'static str, offset_bytes: u64, len_bytes: u64) -> DeviceError {
        let reason = "injected fault".to_owned();
        DeviceError::Io { device: self.info.name.clone(), op, offset_bytes, len_bytes, reason }
    }

    /// Does the late operations whose answers are due by `now_nanos`.
    fn take_place_late(&self, state: &mut SimDeviceState, now_nanos: u64) {
        let (due, later): (Vec<LateOp>, Vec<LateOp>) =
            std::mem::take(&mut state.late).into_iter().partition(|late| late.at_nanos <= now_nanos);
        state.late = later;
        for LateOp { effect, .. } in due {
            match effect {
                LateEffect::Read => {}
                LateEffect::Write(at, bytes) => {
                    if self.check_rules(state, at, bytes.len() as u64).is_ok() {
                        self.change(state, write_of(at, &bytes, false));
                    }
                }
                LateEffect::Flush => self.settle(state),
                // A late call that breaks the rules of the device has nobody to be refused to.
                LateEffect::Drop(op, at, len) => _ = self.drop_now(state, op, at, len),
            }
        }
    }

    /// Advances the clock to the device's answer, if it hangs, or by `limit` if the answer comes later. The
    /// operation is late then, and has its `effect` when the hang ends.
    fn wait(
        &self,
        state: &mut SimDeviceState,
        (class, op): (OpClass, &'static str),
        limit: Option<Duration>,
        effect: impl FnOnce() -> LateEffect,
    ) -> Result<(), DeviceError> {
        let now = self.shared.clock.monotonic_nanos();
        let Some(at_nanos) = state.faults.hangs_until(class, now) else {
            self.take_place_late(state, now);
            return Ok(());
        };
        let limit_nanos = limit.map_or(u64::MAX, |limit| u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX));
        self.shared.clock.wait(limit_nanos.min(at_nanos - now));
        match limit.filter(|_| limit_nanos < at_nanos - now) {
            Some(limit) => {
                state.late.push(LateOp { at_nanos, effect: effect() });
                Err(DeviceError::Late { device: self.info.name.clone(), op, limit })
            }
            None => {
                self.take_place_late(state, at_nanos);
                Ok(())
            }
        }
    }

    /// Advances the clock if the device is slow, and turns a fault that strikes into its error.
    fn judge(
        &self,
        state: &mut SimDeviceState,
        class: OpClass,
        op: &'static str,
        offset_bytes: u64,
        len_bytes: u64,
    ) -> Result<Verdict, DeviceError> {
        self.shared.clock.wait(state.faults.delay_nanos());
        match state.faults.judge(class, offset_bytes, len_bytes) {
            Verdict::Gone => Err(DeviceError::Gone { device: self.info.name.clone() }),
            Verdict::Fail => Err(self.failed(op, offset_bytes, len_bytes)),
            Verdict::NoSpace => {
                Err(DeviceError::NoSpace { device: self.info.name.clone(), offset_bytes, len_bytes })
            }
            other => Ok(other),
        }
    }

    fn zone_error(&self, offset_bytes: u64, reason: String) -> DeviceError {
        DeviceError::Zone { device: self.info.name.clone(), offset_bytes, reason }
    }

    /// Zones that count against the limit of active ones.
    fn active_zones_of<'a>(&self, state: &'a SimDeviceState) -> impl Iterator<Item = u64> + use<'a> {
        let (capacity, stride) = match self.spec.kind {
            DeviceKind::Zoned { zone_bytes, stride_bytes, .. } => (zone_bytes / BLOCK, stride_bytes / BLOCK),
            _ => (0, 0),
        };
        let is_full = move |zone: u64| state.medium.zone_written(zone * stride) >= Some(capacity);
        state.medium.zones_begun().filter(move |zone| !state.finished.contains(zone) && !is_full(*zone))
    }

    /// Checks a write at this place of the flash against the device's rules.
    fn check_rules(
        &self,
        state: &mut SimDeviceState,
        offset_bytes: u64,
        len_bytes: u64,
    ) -> Result<(), DeviceError> {
        match self.spec.kind {
            DeviceKind::Conventional => {}
            // Recorded and not refused: real devices would take the write, and a test reports all of them at
            // its end.
            DeviceKind::AppendOnly => {
                let first = offset_bytes / BLOCK;
                let live = |&block: &u64| state.medium.slot(block).is_some_and(|s| s.live);
                if let Some(block) = (first..first + len_bytes / BLOCK).find(live) {
                    let overwrites_at_bytes = block * BLOCK;
                    state.overwrites.push(Overwrite { offset_bytes, len_bytes, overwrites_at_bytes });
                }
            }
            // These zones take writes anywhere.
            DeviceKind::Zoned { stride_bytes, conventional_zones, .. }
                if offset_bytes / stride_bytes < u64::from(conventional_zones) => {}
            DeviceKind::Zoned { zone_bytes, stride_bytes, active_zones_max, .. } => {
                let within = offset_bytes % stride_bytes;
                if state.finished.contains(&(offset_bytes / stride_bytes)) {
                    return Err(
                        self.zone_error(offset_bytes, "a write to a zone that was finished".to_owned())
                    );
                }
                let written = state.medium.zone_written(offset_bytes / BLOCK);
                let pointer = written.expect("a zoned medium has pointers") * BLOCK;
                if within != pointer {
                    let reason =
                        format!("a write {within} bytes into a zone with its write pointer at {pointer}");
                    return Err(self.zone_error(offset_bytes, reason));
                }
                if within + len_bytes > zone_bytes {
                    let reason = format!("a write of {len_bytes} bytes runs past the zone's end");
                    return Err(self.zone_error(offset_bytes, reason));
                }
                let begins = within == 0 && active_zones_max > 0;
                if begins && self.active_zones_of(state).count() >= active_zones_max as usize {
                    let reason = format!("a write to one zone more than the {active_zones_max} active ones");
                    return Err(self.zone_error(offset_bytes, reason));
                }
            }
        }
        Ok(())
    }

    /// The change that a write at this place with fate `verdict` makes, if it makes one.
    fn landing(&self, verdict: Verdict, offset_bytes: u64, buf: &[u8]) -> Option<Change> {
        match (verdict, self.spec.kind) {
            // The write pointer must move, or the device would refuse the next write and so reveal the loss.
            (Verdict::Lose | Verdict::Misdirect(_), DeviceKind::Zoned { .. }) => {
                Some(write_of(offset_bytes, &vec![0; buf.len()], false))
            }
            (Verdict::Lose, _) => None,
            (Verdict::Misdirect(to), _) => {
                let room = self.spec.size_bytes.saturating_sub(to);
                let lands = buf.len().min(usize::try_from(room).unwrap_or(usize::MAX));
                (lands > 0).then(|| write_of(to, &buf[..lands], true))
            }
            _ => Some(write_of(offset_bytes, buf, false)),
        }
    }

    fn read_within(
        &self,
        offset_bytes: u64,
        buf: &mut [u8],
        limit: Option<Duration>,
    ) -> Result<(), DeviceError> {
        let len_bytes = buf.len() as u64;
        self.info.check_range(offset_bytes, len_bytes)?;
        let mut state = self.state.lock();
        state.counters.reads += 1;
        state.counters.read_bytes += len_bytes;
        self.wait(&mut state, (OpClass::Read, "read"), limit, || LateEffect::Read)?;
        let verdict = self.judge(&mut state, OpClass::Read, "read", offset_bytes, len_bytes)?;
        if let Verdict::Rot(bit) = verdict {
            let block = self.zone_map.place(offset_bytes) / BLOCK;
            state.medium.rot(block, bit);
            self.shared.record(Event::Rot { device: self.index, block, bit });
        }
        self.copy_out(&state.medium, offset_bytes, buf, verdict == Verdict::Stale);
        Ok(())
    }

    fn write_within(
        &self,
        offset_bytes: u64,
        buf: &[u8],
        limit: Option<Duration>,
    ) -> Result<(), DeviceError> {
        let len_bytes = buf.len() as u64;
        self.info.check_range(offset_bytes, len_bytes)?;
        let mut state = self.state.lock();
        state.counters.writes += 1;
        state.counters.written_bytes += len_bytes;
        let place = self.zone_map.place(offset_bytes);
        let effect = || LateEffect::Write(place, buf.to_vec());
        self.wait(&mut state, (OpClass::Write, "write"), limit, effect)?;
        let verdict = self.judge(&mut state, OpClass::Write, "write", offset_bytes, len_bytes)?;
        self.check_rules(&mut state, place, len_bytes)?;
        if let Some(change) = self.landing(verdict, place, buf) {
            self.change(&mut state, change);
        }
        Ok(())
    }

    fn flush_within(&self, limit: Option<Duration>) -> Result<(), DeviceError> {
        let mut state = self.state.lock();
        state.counters.flushes += 1;
        self.wait(&mut state, (OpClass::Flush, "flush"), limit, || LateEffect::Flush)?;
        self.judge(&mut state, OpClass::Flush, "flush", 0, 0)?;
        self.settle(&mut state);
        Ok(())
    }

    /// Discards a range, or resets a zone.
    fn drop_range(
        &self,
        op: &'static str,
        offset_bytes: u64,
        len_bytes: u64,
        limit: Option<Duration>,
    ) -> Result<(), DeviceError> {
        self.info.check_range(offset_bytes, len_bytes)?;
        let mut state = self.state.lock();
        state.counters.discards += 1;
        let effect = || LateEffect::Drop(op, offset_bytes, len_bytes);
        self.wait(&mut state, (OpClass::Discard, op), limit, effect)?;
        self.judge(&mut state, OpClass::Discard, op, offset_bytes, len_bytes)?;
        self.drop_now(&mut state, op, offset_bytes, len_bytes)
    }

    fn drop_now(
        &self,
        state: &mut SimDeviceState,
        op: &'static str,
        offset_bytes: u64,
        len_bytes: u64,
    ) -> Result<(), DeviceError> {
        let leaves = match (self.spec.kind, self.spec.discard_behavior) {
            (DeviceKind::Zoned { zone_bytes, .. }, _) if op == "reset" => {
                if !offset_bytes.is_multiple_of(zone_bytes) || len_bytes != zone_bytes {
                    let reason = format!("a reset of {len_bytes} bytes is not of one whole zone");
                    return Err(self.zone_error(offset_bytes, reason));
                }
                state.finished.remove(&(offset_bytes / zone_bytes));
                DiscardedBytes::Zeros
            }
            // A sequential zone has no discard. Its content stays, as a device may choose.
            (DeviceKind::Zoned { .. }, _) => return Ok(()),
            (_, DiscardBehavior::Zeros) => DiscardedBytes::Zeros,
            (_, DiscardBehavior::Old) => DiscardedBytes::Old,
            (_, DiscardBehavior::Either) => {
                let toss = mix(self.shared.seed ^ mix(state.counters.discards ^ offset_bytes));
                if toss & 1 == 0 { DiscardedBytes::Zeros } else { DiscardedBytes::Old }
            }
        };
        // All of a zone, also what lies behind its capacity.
        let (place, blocks) = match self.spec.kind {
            DeviceKind::Zoned { stride_bytes, .. } => {
                (self.zone_map.place(offset_bytes), stride_bytes / BLOCK)
            }
            _ => (offset_bytes, len_bytes / BLOCK),
        };
        let change = Change::Discard { start_block: place / BLOCK, blocks, leaves };
        self.change(state, change);
        Ok(())
    }
}

fn write_of(offset_bytes: u64, bytes: &[u8], stray: bool) -> Change {
    let blocks = bytes.chunks_exact(BLOCK_BYTES).map(|chunk| {
        let block: &Block = chunk.try_into().expect("chunks are blocks");
        Arc::new(*block)
    });
    Change::Write { start_block: offset_bytes / BLOCK, blocks: blocks.collect(), stray }
}

/// Reads blocks: the present bytes, or with `stale` those before the last write.
fn copy_out(medium: &Medium, offset_bytes: u64, buf: &mut [u8], stale: bool) {
    for (block, out) in (offset_bytes / BLOCK..).zip(buf.chunks_exact_mut(BLOCK_BYTES)) {
        let slot = medium.slot(block);
        let data = if stale { slot.and_then(|s| s.previous.as_ref()) } else { slot.map(|s| &s.data) };
        match data {
            Some(data) => out.copy_from_slice(&data[..]),
            None => out.fill(0),
        }
    }
}

impl Device for SimDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn read(&self, offset_bytes: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.read_within(offset_bytes, buf, None)
    }

    fn write(&self, offset_bytes: u64, buf: &[u8]) -> Result<(), DeviceError> {
        self.write_within(offset_bytes, buf, None)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.flush_within(None)
    }

    fn run_within(&self, kind: &mut OpKind<'_>, limit: Duration) -> Result<(), DeviceError> {
        match kind {
            OpKind::Read(at, buf) => self.read_within(*at, buf, Some(limit)),
            OpKind::Write(at, buf) => self.write_within(*at, buf, Some(limit)),
            OpKind::Flush => self.flush_within(Some(limit)),
        }
    }

    fn unanswered(&self) -> usize {
        let mut state = self.state.lock();
        self.take_place_late(&mut state, self.shared.clock.monotonic_nanos());
        state.late.len()
    }

    fn discard(&self, offset_bytes: u64, len_bytes: u64) -> Result<(), DeviceError> {
        self.drop_range("discard", offset_bytes, len_bytes, None)
    }

    fn discard_within(&self, offset_bytes: u64, len_bytes: u64, limit: Duration) -> Result<(), DeviceError> {
        self.drop_range("discard", offset_bytes, len_bytes, Some(limit))
    }

    fn reset_zone_within(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        limit: Duration,
    ) -> Result<(), DeviceError> {
        self.drop_range("reset", offset_bytes, len_bytes, Some(limit))
    }

    fn reset_zone(&self, offset_bytes: u64, len_bytes: u64) -> Result<(), DeviceError> {
        self.drop_range("reset", offset_bytes, len_bytes, None)
    }

    fn zone_report(&self, offset_bytes: u64) -> Result<Option<ZoneReport>, DeviceError> {
        let Some(zones) = self.info.zones else { return Ok(None) };
        let zone_bytes = zones.zone_bytes;
        self.info.check_range(offset_bytes, BLOCK)?;
        if !offset_bytes.is_multiple_of(zone_bytes) {
            return Err(
                self.zone_error(offset_bytes, "a report takes the offset of a zone's start".to_owned())
            );
        }
        let mut state = self.state.lock();
        self.judge(&mut state, OpClass::Report, "report", offset_bytes, 0)?;
        if state.faults.is_dead(offset_bytes) {
            return Err(self.zone_error(offset_bytes, "the zone is read-only or offline".to_owned()));
        }
        let zone = offset_bytes / zone_bytes;
        if zones.is_conventional(offset_bytes) || state.finished.contains(&zone) {
            return Ok(Some(ZoneReport { written_bytes: zone_bytes, is_active: false }));
        }
        let is_active = self.active_zones_of(&state).any(|active| active == zone);
        let written = state.medium.zone_written(self.zone_map.place(offset_bytes) / BLOCK);
        Ok(written.map(|blocks| ZoneReport { written_bytes: blocks * BLOCK, is_active }))
    }

    fn active_zones(&self) -> Result<Vec<u64>, DeviceError> {
        let Some(zones) = self.info.zones else { return Ok(Vec::new()) };
        let mut state = self.state.lock();
        self.judge(&mut state, OpClass::Report, "report", 0, 0)?;
        Ok(self.active_zones_of(&state).map(|zone| zone * zones.zone_bytes).collect())
    }

    fn finish_zone(&self, offset_bytes: u64, len_bytes: u64) -> Result<(), DeviceError> {
        self.info.check_range(offset_bytes, len_bytes)?;
        let Some(zones) = self.info.zones.filter(|zones| !zones.is_conventional(offset_bytes)) else {
            return Ok(());
        };
        if !offset_bytes.is_multiple_of(zones.zone_bytes) || len_bytes != zones.zone_bytes {
            return Err(self.zone_error(offset_bytes, "only a whole zone can be finished".to_owned()));
        }
        let mut state = self.state.lock();
        self.judge(&mut state, OpClass::Discard, "finish", offset_bytes, len_bytes)?;
        state.finished.insert(offset_bytes / zones.zone_bytes);
        Ok(())
    }
}
