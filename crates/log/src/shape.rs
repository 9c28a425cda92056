//! The shape of segments, k + m: what the pool wishes for, and the segments that have another one.
//!
//! A segment is *misshapen* if the pool wishes to convert, the segment is older than the shape of the pool
//! and has other numbers of columns. Its live bytes move to new segments, as those of any segment that is
//! cleaned. Nothing is remembered about that: the segment is gone afterwards, and new segments are never
//! misshapen. So the work ends, and goes on where it was after a crash (`tests/shape.rs`).
//!
//! # Invariants
//! 1. No segment is converted while one has less redundancy than it could have (`Log::damaged`), while upkeep
//!    is paused or over its rate, or while the pool has no segment's worth of free space beside its reserve.

use std::collections::BTreeMap;

use warpfire_env::sync::atomic::Ordering;
use warpfire_pool::{PoolError, RootWishes, Tuning};
use warpfire_units::SegmentId;

use crate::log::Log;
use crate::look::Writable;
use crate::segment_table::{SegmentEntry, SegmentStage};
use crate::store::LogError;

/// What the pool wishes for its segments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShapeWish {
    data: u16,
    parity: u8,
    wishes: RootWishes,
}

/// Live bytes of segments that are being converted, when that began.
pub(crate) type Converting = BTreeMap<SegmentId, u64>;

/// Segments that may lose equally many devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Guarantee {
    /// How many more devices each may lose; `None` if they have lost more than parity covers.
    pub left: Option<u8>,
    /// Their live bytes.
    pub live_bytes: u64,
}

impl ShapeWish {
    /// Whether the pool wishes to convert older segments.
    pub(crate) fn converts(&self) -> bool {
        self.wishes.converts
    }

    /// The parity columns with which a segment is complete, if a new one has `of_new`.
    pub(crate) fn parity_of(&self, id: SegmentId, of_new: u8) -> u8 {
        let is_older = id.get() < self.wishes.shape_since;
        if is_older { of_new.min(self.wishes.older_parity) } else { of_new }
    }

    /// Whether the live bytes of a segment are to move to segments of the wished shape.
    pub(crate) fn is_misshapen(&self, id: SegmentId, entry: &SegmentEntry) -> bool {
        self.wishes.converts
            && id.get() < self.wishes.shape_since
            && (entry.data(), entry.parity()) != (self.data, self.parity)
            && entry.state == SegmentStage::Sealed
            && entry.live_bytes() > 0
    }

    /// Bytes that are written to devices for the live bytes of a segment.
    pub(crate) fn bytes_to_write(&self, live_bytes: u64) -> u64 {
        live_bytes + live_bytes * u64::from(self.parity) / u64::from(self.data.max(1))
    }
}

impl Log {
    /// Changes the shape of new segments and the wishes for older ones, durably. Appends go on in segments of
    /// the old shape until [`seal_all`](Self::seal_all).
    ///
    /// # Errors
    /// As [`Pool::tune`](warpfire_pool::Pool::tune).
    pub fn tune(&self, tuning: Tuning) -> Result<(), PoolError> {
        self.pool.tune(tuning, || {
            let next = self.next_segment.load(Ordering::Relaxed);
            SegmentId::new(next).expect("ids count up from 1")
        })
    }

    /// Ends all open segments: the next appends go to new ones.
    ///
    /// # Errors
    /// As [`sync`](crate::LogStore::sync).
    pub fn seal_all(&self) -> Result<(), LogError> {
        self.seal_open(|_| true)
    }

    /// Live bytes by the number of devices that their segments may still lose, the fewest first. Nothing is
    /// read.
    #[must_use]
    pub fn guarantees(&self) -> Vec<Guarantee> {
        let writable = Writable::of(&self.pool);
        let mut by_left: BTreeMap<Option<u8>, u64> = BTreeMap::new();
        let touched = {
            let segment_table = self.segment_table.lock();
            let index = segment_table.index();
            for ((parity, _), of_shape) in index.shapes() {
                *by_left.entry(Some(parity)).or_default() += of_shape.live_bytes;
            }
            index.touched_by(|device| !writable.has(device))
        };
        self.look_at_each(&touched, |_, entry| {
            let live_bytes = entry.live_bytes();
            let whole = by_left.entry(Some(entry.parity())).or_default();
            *whole = whole.saturating_sub(live_bytes);
            let left = writable.left(entry).and_then(|left| u8::try_from(left).ok());
            *by_left.entry(left).or_default() += live_bytes;
        });
        by_left.retain(|_, live_bytes| *live_bytes > 0);
        by_left.into_iter().map(|(left, live_bytes)| Guarantee { left, live_bytes }).collect()
    }

    pub(crate) fn shape_wish(&self) -> ShapeWish {
        let Tuning { data, parity, .. } = self.pool.tuning();
        ShapeWish { data, parity, wishes: self.pool.wishes() }
    }

    /// The misshapen segments, oldest first.
    pub(crate) fn misshapen(&self) -> Vec<SegmentId> {
        let wish = self.shape_wish();
        let mut misshapen = Vec::new();
        self.look_at_each(&self.other_shaped(&wish), |id, entry| {
            misshapen.extend(wish.is_misshapen(id, entry).then_some(id));
        });
        misshapen
    }

    /// Segments of another shape than the one that they are to be converted to, ascending; none if they are
    /// not.
    pub(crate) fn other_shaped(&self, wish: &ShapeWish) -> Vec<SegmentId> {
        if !wish.converts() {
            return Vec::new();
        }
        self.segment_table.lock().index().of_shapes(|shape| shape != (wish.parity, wish.data))
    }

    /// The misshapen segments to convert now: none while upkeep or the pool's space does not allow it.
    pub(crate) fn to_convert(&self) -> Vec<SegmentId> {
        self.spend_converted();
        if !self.upkeep_limit.may_work() {
            return Vec::new();
        }
        let misshapen = self.misshapen();
        if misshapen.is_empty() || self.bytes_missing_to_move() > 0 {
            return Vec::new();
        }
        let mut converting = Converting::new();
        self.look_at_each(&misshapen, |id, entry| _ = converting.insert(id, entry.live_bytes()));
        *self.converting.lock() = converting;
        misshapen
    }

    /// Counts the bytes that have moved out of segments since they were returned by `to_convert`.
    pub(crate) fn spend_converted(&self) {
        let before = std::mem::take(&mut *self.converting.lock());
        if before.is_empty() {
            return;
        }
        let wish = self.shape_wish();
        let mut moved_bytes: u64 = before.values().sum();
        let ids: Vec<SegmentId> = before.keys().copied().collect();
        self.look_at_each(&ids, |id, entry| moved_bytes -= before[&id].min(entry.live_bytes()));
        if moved_bytes > 0 {
            self.upkeep_limit.spend(moved_bytes, wish.bytes_to_write(moved_bytes));
        }
    }
}

/// Segments that a change of the shape would convert.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OtherShapes {
    /// Their number.
    pub segments: u64,
    /// Their live bytes.
    pub live_bytes: u64,
}

impl Log {
    /// The segments with live bytes that have another shape than this one. Nothing is read.
    #[must_use]
    pub fn other_shapes(&self, data: u16, parity: u8) -> OtherShapes {
        let segment_table = self.segment_table.lock();
        let others = segment_table.index().shapes().filter(|(shape, _)| *shape != (parity, data));
        others.fold(OtherShapes::default(), |sum, (_, of_shape)| OtherShapes {
            segments: sum.segments + of_shape.live_segments as u64,
            live_bytes: sum.live_bytes + of_shape.live_bytes,
        })
    }
}
