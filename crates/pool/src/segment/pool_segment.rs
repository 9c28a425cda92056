//! A segment in memory: its zones, its shape and the stripes that can be read.
//!
//! # Invariants
//! 1. `columns` has data + parity entries on different devices (assert in `new`; the decoder of descriptors
//!    and `Zones::take` ensure it).
//! 2. Shape, columns and epoch never change. A resilvered segment is a new `PoolSegment` under the same
//!    number.
//! 3. `stripes` lists only stripes that were written on all but at most `parity` columns
//!    (`PreparedStripe::record`).
//! 4. `broken` never becomes false again.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32};

use warpfire_env::sync::{Mutex, RwLock};
use warpfire_erasure::Code;
use warpfire_format::Uuid;
use warpfire_format::segment::{
    LostColumn, SegmentColumns, SegmentDescriptor, SegmentKind, SegmentState, SegmentStream,
};
use warpfire_format::stripe::StripeIdentity;
use warpfire_units::{BLOCK_BYTES, SegmentId};

use crate::segment::stripe_index::StripeIndex;

/// The codes of a pool's segments, one for each shape. The tables of a wide code take 16 KB, and a pool has
/// few shapes and many segments.
#[derive(Default)]
pub(crate) struct Codes(Mutex<BTreeMap<(u16, u8), Code>>);

impl Codes {
    /// The code with so many data and parity columns.
    ///
    /// # Panics
    /// If no segment can have the shape.
    pub(crate) fn of_shape(&self, data: u16, parity: u8) -> Code {
        let mut codes = self.0.lock();
        let code = codes.entry((data, parity)).or_insert_with(|| {
            Code::new(usize::from(data), usize::from(parity))
                .expect("a descriptor's shape was verified when it was decoded or chosen")
        });
        code.clone()
    }
}

/// One segment that the pool can read.
pub(crate) struct PoolSegment {
    pub id: SegmentId,
    pub epoch: u32,
    pub stream: SegmentStream,
    pub kind: SegmentKind,
    pub data: u16,
    pub parity: u8,
    pub columns: SegmentColumns,
    pub code: Code,
    /// Stripes that were written on enough columns.
    pub stripes: RwLock<StripeIndex>,
    /// The moment (`Devices::moment`) before its zones were taken.
    pub moment: u64,
    /// Columns that missed a write (`Inner::note_lost`).
    pub lost: Mutex<Vec<LostColumn>>,
    /// Number of its stripes once no more follow; `u32::MAX` until then. Read and written under `stripes`.
    pub ends_at: AtomicU32,
    /// Whether a write failed on more columns than parity covers: nothing more is written then.
    pub broken: AtomicBool,
    /// Whether a read that had to work without a device was reported.
    pub is_degraded_read_reported: AtomicBool,
}

impl PoolSegment {
    /// The segment of descriptor `d`, with `stripes` in place of the descriptor's.
    pub(crate) fn new(d: &SegmentDescriptor, codes: &Codes, stripes: StripeIndex, moment: u64) -> Self {
        assert_eq!(
            d.columns.len(),
            usize::from(d.data) + usize::from(d.parity),
            "a segment has one zone for each column"
        );
        let code = codes.of_shape(d.data, d.parity);
        PoolSegment {
            id: d.id,
            epoch: d.epoch,
            stream: d.stream,
            kind: d.kind(),
            data: d.data,
            parity: d.parity,
            columns: d.columns.clone(),
            code,
            stripes: RwLock::new(stripes),
            moment,
            lost: Mutex::new(d.lost.clone()),
            ends_at: AtomicU32::new(u32::MAX),
            broken: AtomicBool::new(false),
            is_degraded_read_reported: AtomicBool::new(false),
        }
    }

    /// The descriptor as of now.
    pub(crate) fn descriptor(&self, state: SegmentState) -> SegmentDescriptor {
        SegmentDescriptor {
            id: self.id,
            epoch: self.epoch,
            stream: self.stream,
            data: self.data,
            parity: self.parity,
            columns: self.columns.clone(),
            lost: self.lost.lock().clone(),
            stripes: self.stripes.read().runs(),
            state,
        }
    }

    /// Data and parity columns together.
    pub(crate) fn width(&self) -> usize {
        self.columns.len()
    }

    /// The payload offset, in bytes, at which a row of the segment begins.
    pub(crate) fn row_offset(&self, row: u64) -> u64 {
        row * u64::from(self.data) * BLOCK_BYTES as u64
    }

    /// How many columns must verify in a row for the row to be readable.
    pub(crate) fn needed(&self) -> usize {
        usize::from(self.data)
    }

    /// The identity in the header of one shard.
    pub(crate) fn identity(&self, pool: Uuid, stripe: u32, column: usize) -> StripeIdentity {
        debug_assert!(column < self.width(), "a shard lies on a column of its segment");
        // All copies of a mirror are written from one buffer, so all carry column 0.
        let column = match self.kind {
            SegmentKind::Bulk => u16::try_from(column).expect("a segment has at most 250 columns"),
            SegmentKind::Mirror => 0,
        };
        StripeIdentity {
            pool,
            segment: self.id,
            epoch: self.epoch,
            stripe,
            column,
            kind: self.kind,
            data: self.data,
            parity: self.parity,
        }
    }
}
