//! The devices of the pool, present or missing, and their health.
//!
//! A *slot* is the place of an opened device in `opened`; a missing device has none. The *set* is one version
//! of the table and the slots. A change makes a new version; operations that began with the old one go on.
//!
//! # Invariants
//! 1. A device keeps its place in the table (`DeviceIndex`), and no other device gets it. A slot belongs to
//!    one opening of one device, and no later version removes it. So an operation that was made with one
//!    version runs on the same device with every later one.
//! 2. A device that failed a write or a flush is never written again, because nobody knows which unflushed
//!    writes it holds. It is still read where other columns do not suffice: identity and checksums separate
//!    its good blocks from bad ones (test `a_device_that_fails_a_write_is_dropped_and_the_stripe_stands`).
//!    A write that is refused because its host is full is no failure of the device: nothing of it is there,
//!    and the caller stops writing (test `a_full_host_costs_no_device`).
//! 3. A device that reported that it is gone is neither read nor written again.
//! 4. The health of a slot never improves (assert in `drop_device`, `failures.rs`). A device that is taken
//!    back gets a new slot (`take_back`).
//! 5. The devices of a pool that is open for reading are neither written nor reset nor flushed (asserts in
//!    `operations.rs`; `flush_dirty` flushes written devices only).
//! 6. `dirty` is set after a write returned and before its caller learns of it. So a flush that begins
//!    later includes the write.
//! 7. No zone is taken on a device that leaves the pool, or on a spare (`all_allocatable`).
//! 8. A *moment* is a number of returns: each device that is taken back adds one. A device that missed no
//!    write since a moment is in a slot of that moment or an older one (`writes_since`). So a column of a
//!    segment that was open when its device was away gets no stripe behind those that it missed
//!    (`life/membership.rs`; test `a_column_gets_no_stripe_behind_one_that_it_missed`).
//! 9. A device that is kept offline is neither read nor written (`set_offline` closes its slot).
//!
//! ```text
//!   present ──write or flush fails──▶ failed ──"gone"──▶ gone
//!      └──────────────"gone" (any operation)─────────────────────▲      missing: never opened
//!
//!   any ──set_offline──▶ offline        failed, gone, missing, offline ──take_back──▶ present, in a new slot
//! ```
//! `drop_device` makes every other transition.
//!
//! A device is *slow* while it owes an answer: an operation that the pool stopped waiting for. It is
//! written as before. Where other columns can stand in, it is not read. It stops being slow with its last
//! answer, without a probe of its own (`answers`; test
//! `a_device_that_hangs_is_read_round_until_it_answers`). A write, a flush,
//! a reset or a discard without an answer for `WRITE_WAIT_MAX` has failed, as long as parity covers the loss.
//!
//! A discard is advice: if it is refused, a conventional device is written as before. If a zoned device
//! cannot reset a zone, the caller retires the zone.

// Changes the set of devices: they join, leave, go offline and come back.
mod changes;
// Counts of each device, of this session and of all.
mod counts;
// What the failure of an operation does to its device.
mod failures;
// Reads, writes, flushes, resets and discards.
mod operations;

use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize};
use std::time::Duration;

use arc_swap::ArcSwap;
use warpfire_env::sync::Mutex;
use warpfire_env::{Device, DeviceError, DeviceOp, OpKind, TimeLimit};
use warpfire_format::Uuid;
use warpfire_format::root::{DeviceEntry, DeviceLife, DeviceUse};
use warpfire_units::{DeviceIndex, ZoneIndex};

use crate::device::closed_device::ClosedDevice;
use crate::device::counters::LiveCounters;
use crate::device::dead_zones::DeadZones;

/// How long a read waits for a device before the other columns of its stripe stand in. A healthy drive
/// takes milliseconds, one that reads a bad block again and again a second or two.
pub const READ_WAIT_MAX: Duration = Duration::from_secs(2);

/// The time limit of reads that have one.
pub(crate) const READ_LIMIT: TimeLimit = TimeLimit { wait_max: READ_WAIT_MAX, devices_max: usize::MAX };

/// The longest read with that limit. The kernel cannot be made to forget the memory of a read, so a limited
/// read goes to memory of its own and is copied: cheap for a short read, and up to the time of the read
/// again for a long one. A long read skips a device that is slow, but once it is under way it waits.
pub(crate) const LIMITED_READ_BYTES_MAX: usize = 32 << 10;

/// How long a write or a flush waits for a device before the device counts as failed. Linux gives a drive
/// as long for a command.
pub const WRITE_WAIT_MAX: Duration = Duration::from_secs(30);

/// Of a device that does not shrink.
const ALL_ZONES: ZoneIndex = ZoneIndex(u32::MAX);

const PRESENT: u8 = 0;
const FAILED: u8 = 1;
const GONE: u8 = 2;

/// Why no write and no reset reaches the devices of a pool that is open for reading.
const UNWRITTEN: &str = "the pool refuses changes while it is open for reading";

/// The health of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceState {
    /// The pool reads and writes it.
    Present,
    /// It failed a write, a reset or a flush in this session: the pool only reads it.
    Failed,
    /// It reported that it is gone: the pool does not use it any more.
    Gone,
    /// The pool was opened without it.
    Missing,
    /// The pool does not use it, until it is taken online.
    Offline,
}

/// All devices of the pool.
pub(crate) struct Devices {
    set: ArcSwap<DeviceSet>,
    /// Number of devices that may be missing or failed.
    parity: AtomicUsize,
    /// Number of devices that are missing or take no more writes.
    lost: AtomicUsize,
    /// How often a device was lost since the pool was opened.
    losses: AtomicUsize,
    /// Rises after each change that may make an open segment outdated: of the set, of a device's health, of a
    /// dead zone, of the parity.
    changes: AtomicU64,
    /// Operations that programs wait for.
    program_ops: AtomicU64,
    /// Whether the pool is open for reading.
    for_reading: bool,
    dead_zones: DeadZones,
    last_failure: Mutex<Option<DeviceError>>,
}

/// One version of the devices.
#[derive(Clone)]
struct DeviceSet {
    /// By `DeviceIndex`.
    members: Vec<Member>,
    /// The opened devices, in slot order.
    opened: Vec<Arc<dyn Device>>,
    slot_states: Vec<Arc<SlotState>>,
    /// How often a device was taken back since the pool was opened.
    moment: u64,
}

/// One device of the table.
#[derive(Clone, Copy)]
pub(crate) struct Member {
    pub uuid: Uuid,
    /// Its zones, those for roots included.
    pub zones: u32,
    /// Whether its columns move to other devices and it gets no new ones.
    pub is_leaving: bool,
    /// Whether the pool does not use it, until it is taken online.
    pub is_kept_offline: bool,
    pub is_spare: bool,
    /// What earlier sessions did to it.
    life_before: DeviceLife,
    /// The end of the zones that stay in use; the columns in zones from there on move away.
    pub kept_zones: ZoneIndex,
    /// Whether no durable root names it yet.
    is_joining: bool,
    /// Whether it was removed from the pool.
    pub is_gone: bool,
    /// `None` if it is missing.
    slot: Option<usize>,
}

/// State of one opened device.
struct SlotState {
    index: DeviceIndex,
    health: AtomicU8,
    dirty: AtomicBool,
    /// Whether it owed an answer when it was last asked.
    is_slow: AtomicBool,
    /// Whether a failed discard was reported.
    is_discard_reported: AtomicBool,
    /// The moment from which on it takes writes.
    since: u64,
    /// Shared by all slots of one device.
    tally: Arc<LiveCounters>,
}

impl DeviceState {
    /// Whether the pool reads a device in this state.
    pub(crate) fn is_readable(self) -> bool {
        matches!(self, DeviceState::Present | DeviceState::Failed)
    }
}

/// Whether a full host refused the write.
pub(crate) fn is_refused(op: &DeviceOp<'_>) -> bool {
    matches!(op.kind(), OpKind::Write(..)) && matches!(op.result, Err(DeviceError::NoSpace { .. }))
}

impl SlotState {
    fn new(index: DeviceIndex, since: u64, tally: Arc<LiveCounters>) -> Self {
        SlotState {
            index,
            health: AtomicU8::new(PRESENT),
            dirty: AtomicBool::new(false),
            is_slow: AtomicBool::new(false),
            is_discard_reported: AtomicBool::new(false),
            since,
            tally,
        }
    }

    fn is_written(&self) -> bool {
        self.health.load(Acquire) == PRESENT
    }

    fn is_written_since(&self, moment: u64) -> bool {
        self.since <= moment && self.is_written()
    }
}

impl DeviceSet {
    fn new(table: &[DeviceEntry], by_index: Vec<Option<Arc<dyn Device>>>) -> Self {
        let (members, opened, slot_states) = Default::default();
        let mut set = DeviceSet { members, opened, slot_states, moment: 0 };
        for (entry, device) in table.iter().zip(by_index) {
            set.push(entry, device, false);
        }
        set
    }

    /// Adds a device at the end of the table.
    fn push(&mut self, entry: &DeviceEntry, device: Option<Arc<dyn Device>>, is_joining: bool) {
        let index = u16::try_from(self.members.len()).expect("the table's length fits its field");
        let slot = device.map(|device| self.push_slot(device, DeviceIndex(index), Arc::default()));
        self.members.push(Member {
            uuid: entry.uuid,
            zones: entry.zones,
            is_leaving: entry.is_leaving,
            is_kept_offline: entry.is_kept_offline,
            is_spare: entry.is_spare,
            life_before: entry.life,
            kept_zones: ALL_ZONES,
            is_joining,
            is_gone: entry.state == DeviceUse::Gone,
            slot,
        });
        if entry.is_kept_offline {
            self.close_slot(slot);
        }
    }

    /// Opens a slot for a device.
    fn push_slot(&mut self, device: Arc<dyn Device>, index: DeviceIndex, tally: Arc<LiveCounters>) -> usize {
        self.opened.push(device);
        self.slot_states.push(Arc::new(SlotState::new(index, self.moment, tally)));
        self.opened.len() - 1
    }

    /// Closes an opened device: its slot refuses every operation from now on.
    fn close_slot(&mut self, slot: Option<usize>) {
        let Some(slot) = slot else { return };
        self.slot_states[slot].health.fetch_max(GONE, AcqRel);
        self.opened[slot] = Arc::new(ClosedDevice::of(&*self.opened[slot]));
    }

    fn member(&self, index: DeviceIndex) -> Option<&Member> {
        self.members.get(usize::from(index.0))
    }

    /// The device and its state, if it was opened.
    fn opened(&self, index: DeviceIndex) -> Option<(usize, &Arc<dyn Device>, &Arc<SlotState>)> {
        let slot = self.member(index)?.slot?;
        Some((slot, self.opened.get(slot)?, self.slot_states.get(slot)?))
    }

    /// The members, with their indexes.
    fn indexed(&self) -> impl Iterator<Item = (DeviceIndex, &Member)> {
        (0u16..).map(DeviceIndex).zip(&self.members)
    }

    fn is_written(&self, member: &Member) -> bool {
        !member.is_gone && member.slot.is_some_and(|slot| self.slot_states[slot].is_written())
    }
}

impl Devices {
    /// `by_index` holds one entry for each in `table`, `None` where the device is missing. `parity` is the
    /// number of devices that may be lost.
    pub(crate) fn new(
        table: &[DeviceEntry],
        by_index: Vec<Option<Arc<dyn Device>>>,
        parity: usize,
        for_reading: bool,
    ) -> Self {
        assert_eq!(table.len(), by_index.len(), "one place for each device in the table");
        let set = DeviceSet::new(table, by_index);
        let lost = set.members.iter().filter(|m| !m.is_gone && !set.is_written(m)).count();
        Devices {
            set: ArcSwap::from_pointee(set),
            parity: AtomicUsize::new(parity),
            lost: AtomicUsize::new(lost),
            losses: AtomicUsize::new(0),
            changes: AtomicU64::new(1),
            program_ops: AtomicU64::new(0),
            for_reading,
            dead_zones: DeadZones::default(),
            last_failure: Mutex::new(None),
        }
    }

    /// Whether the pool is open for reading. Then nothing may be written.
    pub(crate) fn for_reading(&self) -> bool {
        self.for_reading
    }

    /// All devices of the table, those that were removed too.
    pub(crate) fn members(&self) -> Vec<(DeviceIndex, Member)> {
        self.set.load().indexed().map(|(index, member)| (index, *member)).collect()
    }

    /// Entries of the table.
    pub(crate) fn table_len(&self) -> usize {
        self.set.load().members.len()
    }

    /// Number of the device's zones; `None` if the pool has no such device.
    pub(crate) fn zones(&self, index: DeviceIndex) -> Option<u32> {
        self.set.load().member(index).filter(|member| !member.is_gone).map(|member| member.zones)
    }

    pub(crate) fn state(&self, index: DeviceIndex) -> DeviceState {
        let set = self.set.load();
        if set.member(index).is_some_and(|member| member.is_kept_offline) {
            return DeviceState::Offline;
        }
        match set.opened(index).map(|(_, _, state)| state.health.load(Acquire)) {
            None => DeviceState::Missing,
            Some(PRESENT) => DeviceState::Present,
            Some(FAILED) => DeviceState::Failed,
            Some(_) => DeviceState::Gone,
        }
    }

    /// The device's name, if it was opened.
    pub(crate) fn name(&self, index: DeviceIndex) -> Option<String> {
        self.set.load().opened(index).map(|(_, device, _)| device.info().name.clone())
    }

    pub(crate) fn writable(&self, index: DeviceIndex) -> bool {
        self.state(index) == DeviceState::Present
    }

    /// The device, if it is open.
    pub(crate) fn device(&self, index: DeviceIndex) -> Option<Arc<dyn Device>> {
        self.set.load().opened(index).map(|(_, device, _)| Arc::clone(device))
    }

    /// The devices that can be read.
    pub(crate) fn all_readable(&self) -> Vec<Arc<dyn Device>> {
        let set = self.set.load();
        let members =
            set.indexed().filter(|(index, member)| !member.is_gone && self.state(*index).is_readable());
        members.filter_map(|(index, _)| set.opened(index).map(|(_, device, _)| Arc::clone(device))).collect()
    }

    /// How often a device was taken back since the pool was opened.
    pub(crate) fn moment(&self) -> u64 {
        self.set.load().moment
    }

    /// Whether the device takes writes, and has missed none since this moment.
    pub(crate) fn writes_since(&self, index: DeviceIndex, moment: u64) -> bool {
        self.set.load().opened(index).is_some_and(|(_, _, state)| state.is_written_since(moment))
    }

    /// Whether a column in the zone with the byte `at` gets every stripe: its device takes writes and has
    /// missed none since this moment, and the zone is not dead.
    pub(crate) fn writes_zone_since(&self, index: DeviceIndex, at: u64, moment: u64) -> bool {
        self.set.load().opened(index).is_some_and(|(_, device, state)| {
            state.is_written_since(moment) && !self.dead_zones.contains(&**device, index, at)
        })
    }

    /// Devices that take writes, in index order.
    pub(crate) fn all_writable(&self) -> Vec<DeviceIndex> {
        let set = self.set.load();
        set.indexed().filter(|(_, member)| set.is_written(member)).map(|(index, _)| index).collect()
    }

    /// Devices on which zones may be taken: those that take writes, do not leave the pool, and are no spares.
    pub(crate) fn all_allocatable(&self) -> Vec<DeviceIndex> {
        let set = self.set.load();
        let may_take = |member: &Member| {
            set.is_written(member) && !member.is_leaving && !member.is_joining && !member.is_spare
        };
        set.indexed().filter(|(_, member)| may_take(member)).map(|(index, _)| index).collect()
    }

    /// Changes the number of devices that may be lost.
    pub(crate) fn set_parity(&self, parity: usize) {
        self.parity.store(parity, Relaxed);
        self.note_change();
    }

    /// Number of changes that may have made an open segment outdated. Whoever asks before it looks at the
    /// devices, and finds the same number later, need not look again.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Acquire)
    }

    /// To be called after the change.
    fn note_change(&self) {
        self.changes.fetch_add(1, Release);
    }
}
