//! A segment in memory: where it lies, and which of its stripes are there.

use std::sync::atomic::AtomicBool;

use parking_lot::RwLock;
use warpfire_erasure::Code;
use warpfire_format::Uuid;
use warpfire_format::segment::{SegmentDescriptor, SegmentKind, SegmentState};
use warpfire_format::stripe::StripeIdentity;
use warpfire_units::{BLOCK_BYTES, DeviceIndex, SegmentId, ZoneIndex};

use crate::segment::stripe_index::StripeIndex;

/// One segment that the pool can read.
pub(crate) struct PoolSegment {
    pub id: SegmentId,
    pub epoch: u32,
    pub kind: SegmentKind,
    pub data: u16,
    pub parity: u8,
    pub columns: Vec<(DeviceIndex, ZoneIndex)>,
    pub code: Code,
    /// Only stripes that were written on enough columns.
    pub stripes: RwLock<StripeIndex>,
    /// A stripe failed on more columns than parity covers: nothing more is written.
    pub broken: AtomicBool,
}

impl PoolSegment {
    /// The segment that `d` describes, with the stripes given.
    pub(crate) fn new(d: &SegmentDescriptor, stripes: StripeIndex) -> Self {
        let code = Code::new(usize::from(d.data), usize::from(d.parity))
            .expect("a descriptor's shape was verified when it was decoded or chosen");
        PoolSegment {
            id: d.id,
            epoch: d.epoch,
            kind: d.kind,
            data: d.data,
            parity: d.parity,
            columns: d.columns.clone(),
            code,
            stripes: RwLock::new(stripes),
            broken: AtomicBool::new(false),
        }
    }

    /// The descriptor as of now.
    pub(crate) fn descriptor(&self, state: SegmentState) -> SegmentDescriptor {
        SegmentDescriptor {
            id: self.id,
            epoch: self.epoch,
            kind: self.kind,
            data: self.data,
            parity: self.parity,
            columns: self.columns.clone(),
            stripes: self.stripes.read().runs(),
            state,
        }
    }

    /// Data and parity columns together.
    pub(crate) fn width(&self) -> usize {
        self.columns.len()
    }

    /// The payload offset at which a row begins.
    pub(crate) fn row_offset(&self, row: u64) -> u64 {
        row * u64::from(self.data) * BLOCK_BYTES as u64
    }

    /// Columns that must verify for a block to be readable.
    pub(crate) fn needed(&self) -> usize {
        usize::from(self.data)
    }

    /// What the header of one shard must say.
    pub(crate) fn identity(&self, pool: Uuid, stripe: u32, column: usize) -> StripeIdentity {
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
