//! Mending: segments get their redundancy back, one segment at a time (`mend_step`).
//!
//! A device is *vacated* while its columns move to other devices: it leaves the pool, or it has stayed away
//! for so long that the caller has given it up (`Log::vacate`). A column is *due* if it lies on a vacated
//! device, or if it is lost or damaged and its device takes writes. A segment has as many columns *left* to
//! lose as it has parity columns, less its columns that are lost or on devices that take no writes.
//!
//! Nothing about the work is remembered: each call looks at the segment table and the devices. So work that a
//! crash interrupts is found again, and a device that comes back gets no more than the columns that are still
//! due.
//!
//! # Invariants
//! 1. The segment with the fewest columns left is mended first; among equals risk goes before rot and rot
//!    before leaving, then tables, then the segment with the most live bytes (`tests/rebuilding.rs`).
//! 2. A moved column is durable in its new zone before its move is logged, and the old zone stays as it is
//!    until the move is durable and older pins are gone (docs/DURABILITY.md, I18).
//! 3. A column moves to another device only while the pool has a segment's worth of free space beside the
//!    reserve. So mending never takes the space that deletions and recovery need.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::ops::ControlFlow;

use warpfire_env::{PlantedBug, is_planted};
use warpfire_format::segment::SegmentKind;
use warpfire_pool::Vacated;
use warpfire_units::{DeviceIndex, SegmentId, ZoneIndex};

use crate::log::Log;
use crate::look::{DeviceSet, Writable};
use crate::segment_index::ShapeSegments;
use crate::segment_table::{SegmentEntry, SegmentStage};
use crate::shape::ShapeWish;
use crate::store::LogError;
use crate::upkeep_limit::UpkeepLimit;

/// The first zone of a device.
const FIRST_ZONE: ZoneIndex = ZoneIndex(0);

/// Segments that could not be mended, as long as the same devices take writes.
#[derive(Debug, Default)]
pub(crate) struct Unmended {
    segments: BTreeSet<SegmentId>,
    devices: Vec<DeviceIndex>,
}

/// The way in which a segment with due columns gets its redundancy back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Remedy {
    /// The columns are rewritten.
    Mend,
    /// Its live bytes move to other segments: it is cheaper, or the columns could not be rewritten.
    Clean,
    /// Its columns move once a device that it does not use has room.
    Wait,
}

/// Segments with equally many columns left to lose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentsAtRisk {
    /// How many more devices each of them may lose.
    pub left: usize,
    /// Their number.
    pub segments: u64,
    /// Bytes of their due columns.
    pub due_bytes: u64,
}

/// Why a segment has work to do. A segment with several reasons has the first of them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum DueReason {
    /// A column is lost: it missed a write, or its device is given up.
    Risk,
    /// A block of it did not verify.
    Rot,
    /// A column is on a device that leaves the pool, or behind the end of one that shrinks.
    Leave,
    /// It has another shape than the pool wishes its segments to have.
    Shape,
}

/// The segments with one reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReasonWork {
    /// The reason.
    pub reason: DueReason,
    /// Their number.
    pub segments: u64,
    /// Bytes of their due columns.
    pub due_bytes: u64,
}

/// The work that is left until each segment has all its redundancy.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DueWork {
    /// Segments with due columns, those with the fewest columns left first.
    pub at_risk: Vec<SegmentsAtRisk>,
    /// The same segments by their reasons, in the order of these.
    pub reasons: Vec<ReasonWork>,
    /// Why nothing is done about some of these segments now.
    pub blocked: Option<Blocked>,
}

/// Why columns cannot move.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Blocked {
    /// The pool has no room beside its reserve.
    Space {
        /// Payload bytes that must become free.
        bytes: u64,
    },
    /// Each device with room has a column of the segment already.
    Device {
        /// The devices of one such segment.
        used: Vec<DeviceIndex>,
        /// Number of such segments.
        segments: u64,
    },
}

/// What `mend` must know of the pool to find a segment.
pub(crate) struct Survey {
    pub(crate) vacated: Vacated,
    writable: Writable,
    pub(crate) unsound: BTreeSet<SegmentId>,
    unmended: BTreeSet<SegmentId>,
    /// Devices that take a column of a segment that has none there.
    roomy: DeviceSet,
    /// Devices on which segments can have columns for good.
    staying: usize,
    /// Payload bytes that must become free before a column may move to another device; 0 if it may.
    pub(crate) missing_bytes: u64,
    wish: ShapeWish,
}

impl DueWork {
    /// Adds a segment.
    fn add(&mut self, reason: DueReason, due_bytes: u64) {
        match self.reasons.binary_search_by_key(&reason, |work| work.reason) {
            Ok(at) => {
                self.reasons[at].segments += 1;
                self.reasons[at].due_bytes += due_bytes;
            }
            Err(at) => self.reasons.insert(at, ReasonWork { reason, segments: 1, due_bytes }),
        }
    }
}

impl Survey {
    /// The remedy of a segment; `None` if no column of it is due, or nothing refers to it.
    fn remedy(&self, log: &Log, id: SegmentId, entry: &SegmentEntry) -> Option<Remedy> {
        if entry.live_bytes() == 0 {
            return None;
        }
        let is_unsound = self.unsound.contains(&id) || self.has_lost_column_to_mend(entry);
        let is_vacated = self.is_on_vacated(entry);
        if !is_unsound && !is_vacated {
            return None;
        }
        if self.unmended.contains(&id) {
            return Some(Remedy::Clean);
        }
        if is_unsound {
            return Some(Remedy::Mend);
        }
        // To rewrite the column of a segment that is mostly garbage costs more than to move its live bytes.
        if entry.live_bytes() * 2 < entry.written_bytes && self.writable.columns_left(entry) > 0 {
            return Some(Remedy::Clean);
        }
        if self.missing_bytes == 0 && self.has_target(entry) {
            Some(Remedy::Mend)
        } else if self.missing_bytes == 0 && self.is_too_wide(log, entry) {
            Some(Remedy::Clean)
        } else {
            Some(Remedy::Wait)
        }
    }

    /// The reason of a segment that has a remedy.
    fn reason(&self, id: SegmentId, entry: &SegmentEntry) -> DueReason {
        let is_lost = |(device, zone, lost): (DeviceIndex, ZoneIndex, bool)| {
            let takes_writes = self.writable.has(device);
            (lost && takes_writes) || (!takes_writes && self.vacated.contains(device, zone))
        };
        if entry.places().any(is_lost) {
            DueReason::Risk
        } else if self.unsound.contains(&id) {
            DueReason::Rot
        } else {
            DueReason::Leave
        }
    }

    /// Whether a column is lost whose device takes writes and is not vacated.
    fn has_lost_column_to_mend(&self, entry: &SegmentEntry) -> bool {
        let mut columns = entry.columns();
        columns.any(|(device, lost)| lost && self.writable.has(device) && !self.vacated.has_device(device))
    }

    /// Columns that are lost on devices that take writes, or lie on vacated devices.
    fn due_columns(&self, entry: &SegmentEntry) -> usize {
        let is_due = |(device, zone, lost): &(DeviceIndex, ZoneIndex, bool)| {
            self.vacated.contains(*device, *zone) || (*lost && self.writable.has(*device))
        };
        entry.places().filter(is_due).count()
    }

    /// Segments that can have a due column, ascending.
    fn candidates(&self, log: &Log) -> Vec<SegmentId> {
        let mut found = log.segment_table.lock().index().touched_by(|device| self.vacated.concerns(device));
        found.extend(&self.unsound);
        found.sort_unstable();
        found.dedup();
        found
    }

    fn is_on_vacated(&self, entry: &SegmentEntry) -> bool {
        !self.vacated.is_empty()
            && entry.places().any(|(device, zone, _)| self.vacated.contains(device, zone))
    }

    /// Whether the segment has a column on a device that leaves, and more columns than devices stay. No room
    /// on these would help: its live bytes move to narrower segments.
    fn is_too_wide(&self, log: &Log, entry: &SegmentEntry) -> bool {
        let leaves = |(device, zone, _): (DeviceIndex, ZoneIndex, bool)| log.pool.vacates(device, zone);
        entry.places().count() > self.staying && entry.places().any(leaves)
    }

    fn has_target(&self, entry: &SegmentEntry) -> bool {
        // No two columns are on one device.
        let taken = entry.columns().filter(|(device, _)| self.roomy.has(*device)).count();
        // A column stays on a device that only shrinks, if that has room.
        let may_stay = |(device, zone, _): (DeviceIndex, ZoneIndex, bool)| {
            self.roomy.has(device) && self.vacated.contains(device, zone)
        };
        taken < self.roomy.len() || entry.places().any(may_stay)
    }
}

impl Log {
    /// The limit of the work that `mend` does by itself.
    #[must_use]
    pub fn upkeep_limit(&self) -> &UpkeepLimit {
        &self.upkeep_limit
    }

    /// Gives up the devices that are lost now among these: their columns are rebuilt on other devices, until
    /// the next call names other devices. A device that takes writes is not vacated.
    pub fn vacate(&self, devices: BTreeSet<DeviceIndex>) {
        *self.given_up.lock() = devices;
    }

    /// Whether `mend` or a checkpoint has something to do about the vacated devices now.
    #[must_use]
    pub fn has_due_work(&self) -> bool {
        let survey = self.survey();
        if survey.vacated.is_empty() {
            return false;
        }
        let looked =
            self.look_at(&survey.candidates(self), |id, entry| match survey.remedy(self, id, entry) {
                Some(Remedy::Mend | Remedy::Clean) => ControlFlow::Break(()),
                Some(Remedy::Wait) | None => ControlFlow::Continue(()),
            });
        looked.is_break()
    }

    /// Whether the commit log, as the next recovery would read it, has a segment with a column on a vacated
    /// device. A checkpoint that keeps no record ends that.
    #[must_use]
    pub fn is_log_at_risk(&self) -> bool {
        let vacated = self.vacated();
        let is_vacated = |(device, zone): &(DeviceIndex, ZoneIndex)| vacated.contains(*device, *zone);
        !vacated.is_empty() && self.log_places().iter().any(is_vacated)
    }

    /// How many more devices may be lost: the least over all segments that are needed. `None` if one has lost
    /// more columns than its parity covers. Nothing is read.
    #[must_use]
    pub fn losses_left(&self) -> Option<u8> {
        let of_log = self.log_losses_left().min(Some(self.losses_until_refused()));
        // Those without live bytes too: an opening cannot know them before it has read the tables.
        let least = self.least_left(of_log, None)?;
        u8::try_from(least).ok()
    }

    /// Whether only segments that the next checkpoint leaves behind keep `losses_left` low: those without
    /// live bytes that no reader keeps, and old ones of the log.
    #[must_use]
    pub fn is_held_back_by_leftovers(&self) -> bool {
        let (of_log, until_refused) = (self.log_losses_left(), Some(self.losses_until_refused()));
        // Mostly there are none, and nothing is counted.
        if !self.pins.has_unpinned() && of_log >= until_refused {
            return false;
        }
        let of_live = self.least_left(until_refused, Some(true));
        let of_empty = self.least_left(until_refused, Some(false));
        of_log < of_live || (self.pins.has_unpinned() && of_empty < of_live)
    }

    /// How many more devices each segment of the commit log may lose that the next recovery would read.
    /// `Some(usize::MAX)` if there is none.
    fn log_losses_left(&self) -> Option<usize> {
        let of_logs = self.needed_log_segments().into_iter().map(|id| self.pool.losses_left(id));
        of_logs.fold(Some(usize::MAX), Option::min)
    }

    /// How many more devices each segment may lose, and `most` at most: each one with live bytes, or without,
    /// if `is_live` says so.
    fn least_left(&self, most: Option<usize>, is_live: Option<bool>) -> Option<usize> {
        let writable = Writable::of(&self.pool);
        let (touched, least) = {
            let segment_table = self.segment_table.lock();
            let index = segment_table.index();
            let counts = |of_shape: &ShapeSegments| match is_live {
                None => true,
                Some(true) => of_shape.live_segments > 0,
                Some(false) => of_shape.segments.len() > of_shape.live_segments,
            };
            // A segment that nothing touches may lose as many as it has parity columns, and no other more.
            let shapes = index.shapes().filter(|(_, of_shape)| counts(of_shape));
            let least = shapes.map(|((parity, _), _)| Some(usize::from(parity))).fold(most, Option::min);
            (index.touched_by(|device| !writable.has(device)), least)
        };
        let mut least = least;
        self.look_at_each(&touched, |_, entry| {
            if is_live.is_none_or(|is_live| is_live == (entry.live_bytes() > 0)) {
                // `None` is less than any number.
                least = least.min(writable.left(entry));
            }
        });
        least
    }

    /// How many more devices may be lost before an opening is refused, whatever the segments have: up to m
    /// may be missing, or up to m of those in use while more than m are there. One device must stay.
    fn losses_until_refused(&self) -> usize {
        let status = self.pool.status();
        let (parity, away) = (usize::from(status.parity), status.lost());
        let there = status.devices.len() - away;
        let others = there.saturating_sub(1);
        parity.saturating_sub(away).max(there.saturating_sub(parity + 1)).min(others).min(parity)
    }

    /// The work that is left. Nothing is read.
    #[must_use]
    pub fn due_work(&self) -> DueWork {
        let survey = self.survey();
        let column_bytes = |entry: &SegmentEntry| entry.written_bytes / u64::from(entry.data().max(1));
        let mut due = DueWork::default();
        let (mut waiting, mut used) = (0, Vec::new());
        let mut candidates = survey.candidates(self);
        candidates.extend(self.other_shaped(&survey.wish));
        candidates.sort_unstable();
        candidates.dedup();
        self.look_at_each(&candidates, |id, entry| {
            let Some(remedy) = survey.remedy(self, id, entry) else {
                if survey.wish.is_misshapen(id, entry) {
                    due.add(DueReason::Shape, survey.wish.bytes_to_write(entry.live_bytes()));
                    waiting += u64::from(survey.missing_bytes > 0);
                }
                return;
            };
            let left = survey.writable.columns_left(entry);
            let due_columns = survey.due_columns(entry).max(1);
            let due_bytes = due_columns as u64 * column_bytes(entry);
            match due.at_risk.binary_search_by_key(&left, |risk| risk.left) {
                Ok(at) => {
                    due.at_risk[at].segments += 1;
                    due.at_risk[at].due_bytes += due_bytes;
                }
                Err(at) => due.at_risk.insert(at, SegmentsAtRisk { left, segments: 1, due_bytes }),
            }
            due.add(survey.reason(id, entry), due_bytes);
            if remedy == Remedy::Wait {
                waiting += 1;
                if !survey.has_target(entry) && !survey.is_too_wide(self, entry) {
                    used = entry.columns().map(|(device, _)| device).collect();
                }
            }
        });
        due.blocked = match (waiting, used.is_empty()) {
            (0, _) => None,
            (_, true) => Some(Blocked::Space { bytes: survey.missing_bytes }),
            (segments, false) => Some(Blocked::Device { used, segments }),
        };
        due
    }

    /// Number of segments with a column on the device that lacks stripes, and the bytes of these columns.
    #[must_use]
    pub fn missed_by(&self, device: DeviceIndex) -> (u64, u64) {
        let lacks = |entry: &SegmentEntry| entry.columns().any(|(at, is_lost)| at == device && is_lost);
        let with_lost: Vec<SegmentId> = self.segment_table.lock().index().with_lost().iter().collect();
        let (mut segments, mut bytes) = (0, 0);
        self.look_at_each(&with_lost, |_, entry| {
            if entry.live_bytes() > 0 && lacks(entry) {
                segments += 1;
                bytes += entry.written_bytes / u64::from(entry.data().max(1));
            }
        });
        (segments, bytes)
    }

    /// Number of segments with a column on the device, those of the commit log and unreferenced ones
    /// included.
    #[must_use]
    pub fn segments_on(&self, device: DeviceIndex) -> u64 {
        self.segments_behind(device, FIRST_ZONE)
    }

    /// Number of segments with a column in this zone of the device or behind it, those of the commit log and
    /// unreferenced ones included.
    #[must_use]
    pub fn segments_behind(&self, device: DeviceIndex, first: ZoneIndex) -> u64 {
        let of_log = self.log_places().iter().any(|(at, zone)| *at == device && *zone >= first);
        let of_log = u64::from(of_log);
        let on_device = self.ids_on(device);
        if first == FIRST_ZONE {
            return on_device.len() as u64 + of_log;
        }
        let mut behind = 0;
        self.look_at_each(&on_device, |_, entry| {
            behind += u64::from(entry.places().any(|(at, zone, _)| at == device && zone >= first));
        });
        behind + of_log
    }

    /// Segments with a column on the device, but for those of the commit log.
    pub(crate) fn ids_on(&self, device: DeviceIndex) -> Vec<SegmentId> {
        let segment_table = self.segment_table.lock();
        segment_table.index().on_device(device).map(|set| set.iter().collect()).unwrap_or_default()
    }

    /// Devices whose columns are to move: those that leave the pool, and those that were given up and take no
    /// writes.
    fn vacated(&self) -> Vacated {
        let given_up = self.given_up.lock();
        let lost = given_up.iter().copied().filter(|device| !self.pool.takes_writes(*device));
        self.pool.vacated_with(lost.collect())
    }

    pub(crate) fn survey(&self) -> Survey {
        let vacated = self.vacated();
        // Where nothing moves, nothing is counted.
        let (mut missing_bytes, mut roomy, mut staying) = (0, Vec::new(), 0);
        let wish = self.shape_wish();
        if !vacated.is_empty() || wish.converts() {
            missing_bytes = self.bytes_missing_to_move();
        }
        if !vacated.is_empty() {
            roomy = self.pool.devices_with_room();
            roomy.retain(|device| !vacated.has_device(*device));
            let stays = |device: &DeviceIndex| !vacated.has_device(*device);
            staying = self.pool.allocatable_devices().into_iter().filter(stays).count();
        }
        Survey {
            unsound: self.pool.damaged_segments().into_iter().collect(),
            unmended: self.unmended_now(),
            writable: Writable::of(&self.pool),
            vacated,
            roomy: roomy.into(),
            staying,
            missing_bytes,
            wish,
        }
    }

    /// Payload bytes that must become free before a column may take a zone of another device for good.
    pub(crate) fn bytes_missing_to_move(&self) -> u64 {
        let space = self.measure_space();
        let wanted = space.reserve_bytes + self.pool.geometry(SegmentKind::Bulk).segment_payload_bytes;
        // The columns of lost devices may take the space that is kept free for them.
        let missing = wanted.saturating_sub(space.free_bytes + self.pool.bytes_kept_for_lost());
        if missing == 0 && !self.pool.leaves_a_mirror() { 1 } else { missing }
    }

    fn unmended_now(&self) -> BTreeSet<SegmentId> {
        let devices = self.pool.writable_devices();
        let mut unmended = self.unmended.lock();
        // Other devices may succeed.
        if unmended.devices != devices {
            *unmended = Unmended { segments: BTreeSet::new(), devices };
        }
        unmended.segments.clone()
    }

    /// Takes note that the columns of a segment could not be rewritten.
    pub(crate) fn note_unmended(&self, segment: SegmentId) {
        self.unmended.lock().segments.insert(segment);
    }

    /// Segments with less redundancy than the devices that take writes allow: those in which a read found
    /// damage, those with a due column that is not to be moved, and those with less parity than new ones.
    pub(crate) fn known_damaged(&self) -> BTreeSet<SegmentId> {
        if is_planted(PlantedBug::DamageForgotten) {
            return BTreeSet::new();
        }
        self.weak(|remedy| remedy == Remedy::Clean)
    }

    /// As `known_damaged`, with all segments that have a due column.
    pub(crate) fn known_weak(&self) -> BTreeSet<SegmentId> {
        self.weak(|_| true)
    }

    /// Segments in which a read found damage, those with a column that can be mended where it is, those with
    /// less parity than new ones, and those on vacated devices with a wanted remedy.
    fn weak(&self, wanted: impl Fn(Remedy) -> bool) -> BTreeSet<SegmentId> {
        let survey = self.survey();
        let parity = self.pool.geometry(SegmentKind::Bulk).parity;
        let mut weak = survey.unsound.clone();
        self.look_at_each(&survey.candidates(self), |id, entry| {
            let is_wanted = || survey.remedy(self, id, entry).is_some_and(&wanted);
            if survey.has_lost_column_to_mend(entry) || (survey.is_on_vacated(entry) && is_wanted()) {
                weak.insert(id);
            }
        });
        let narrower = self.segment_table.lock().index().of_shapes(|(of_shape, _)| of_shape < parity);
        self.look_at_each(&narrower, |id, entry| {
            if entry.parity() < survey.wish.parity_of(id, parity) {
                weak.insert(id);
            }
        });
        weak
    }

    /// Seals the open segments with damage, and those with a column on a vacated device.
    pub(crate) fn seal_for_mending(&self) -> Result<(), LogError> {
        let survey = self.survey();
        let mut wanted = survey.unsound.clone();
        if !survey.vacated.is_empty() {
            let segment_table = self.segment_table.lock();
            wanted.extend(
                segment_table.open().filter(|(_, entry)| survey.is_on_vacated(entry)).map(|(id, _)| id),
            );
        }
        self.seal_open(|id| wanted.contains(&id))
    }

    /// The segment to mend next, and how many columns it has left.
    pub(crate) fn most_urgent(&self, survey: &Survey) -> Option<(SegmentId, usize)> {
        let urgency = |id: SegmentId, entry: &SegmentEntry| {
            if is_planted(PlantedBug::RiskOrderById) {
                return (0, DueReason::Risk, false, Reverse(0), id);
            }
            let reason = survey.reason(id, entry);
            let left = survey.writable.columns_left(entry);
            (left, reason, !entry.is_table(), Reverse(entry.live_bytes()), id)
        };
        let mut most_urgent = None;
        self.look_at_each(&survey.candidates(self), |id, entry| {
            if entry.state == SegmentStage::Sealed && survey.remedy(self, id, entry) == Some(Remedy::Mend) {
                let urgency = urgency(id, entry);
                most_urgent = Some(most_urgent.map_or(urgency, |most| urgency.min(most)));
            }
        });
        most_urgent.map(|(left, .., id)| (id, left))
    }
}
