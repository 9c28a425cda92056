//! A pool whose segment table was made, not filled: the segments' zones hold nothing.

use std::sync::Arc;

use warpfire_env::{Device, SystemRandom, Timestamp};
use warpfire_format::log_state::LogState;
use warpfire_format::segment::{SegmentDescriptor, SegmentState, SegmentStream, StripeRun};
use warpfire_format::state_frame::StateFrame;
use warpfire_pool::{CreateOptions, Pool, SegmentWriter, StripeBuf};
use warpfire_units::{DeviceIndex, SegmentId, ZoneIndex};

/// The pool to make.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) devices: u16,
    pub(crate) data: u16,
    pub(crate) parity: u8,
    pub(crate) zone_bytes: u64,
    pub(crate) segments: u64,
    /// Runs of stripes in each segment.
    pub(crate) runs: u32,
}

/// Zones of each device before those of the fabricated segments, for roots and logs.
pub(crate) const FIRST_ZONE: u32 = 64;

impl Shape {
    fn width(self) -> u64 {
        u64::from(self.data) + u64::from(self.parity)
    }

    /// Zones of a device: those of its segments, `FIRST_ZONE` before them, and `free` more.
    pub(crate) fn zones(self, free: u32) -> u64 {
        let taken = (self.segments * self.width()).div_ceil(u64::from(self.devices));
        u64::from(FIRST_ZONE) + taken + u64::from(free)
    }

    /// A full segment. `number` counts from 0.
    fn segment(self, number: u64, id: SegmentId) -> SegmentDescriptor {
        let devices = u64::from(self.devices);
        // Columns go round the devices, and so take each device's zones one after the other.
        let place = |column: u64| {
            let nth = number * self.width() + column;
            let zone = u32::try_from(nth / devices).expect("few zones") + FIRST_ZONE;
            (DeviceIndex((nth % devices) as u16), ZoneIndex(zone))
        };
        let blocks = (self.zone_bytes >> 12) as u32;
        let stripes = if self.runs == 1 {
            vec![StripeRun { rows: 31, count: blocks / 32 }]
        } else {
            (0..self.runs).map(|n| StripeRun { rows: 1 + (n % 2) as u16, count: 1 }).collect()
        };
        SegmentDescriptor {
            id,
            epoch: 1,
            stream: SegmentStream::Large,
            data: self.data,
            parity: self.parity,
            columns: (0..self.width()).map(place).collect(),
            lost: Vec::new(),
            stripes,
            state: SegmentState::Sealed,
        }
    }
}

fn id(n: u64) -> SegmentId {
    SegmentId::new(n).expect("ids count from 1")
}

/// Writes a state log with all segments of `shape`, and a root that leads to it. The table is never in memory
/// as a whole. Returns the bytes of the table.
pub(crate) fn fabricate(devices: Vec<Arc<dyn Device>>, shape: Shape) -> u64 {
    let Shape { data, parity, zone_bytes, .. } = shape;
    let options = CreateOptions { data, parity, zone_bytes: Some(zone_bytes), force: false };
    let pool = Pool::create(devices, &options, &SystemRandom, Timestamp::default()).expect("new devices");
    let commit_log = pool.allocate(id(1), SegmentStream::CommitLog).expect("zones are free");
    let (mut next, mut sequence, mut table_bytes) = (2, 0, 0);
    let mut allocate = || {
        next += 1;
        pool.allocate(id(next - 1), SegmentStream::StateLog).expect("zones are free")
    };
    let mut writer = allocate();
    let mut state_chain: Vec<SegmentDescriptor> = Vec::new();
    let mut write = |bytes: &[u8]| {
        let mut rest = bytes;
        while !rest.is_empty() {
            if writer.next_stripe_capacity() == 0 {
                state_chain.push(std::mem::replace(&mut writer, allocate()).seal());
            }
            let mut buf = StripeBuf::without_stripe();
            writer.begin(&mut buf);
            let taken = buf.append(rest);
            sequence += 1;
            writer.write_stripe(&mut buf, sequence).expect("no device fails");
            table_bytes += taken as u64;
            rest = &rest[taken..];
        }
    };
    let mut frames = Vec::new();
    // Ids of the logs come first.
    let first_id = 1000;
    for number in 0..shape.segments {
        StateFrame::Segment(shape.segment(number, id(first_id + number))).encode(&mut frames);
        if frames.len() > 1 << 20 {
            write(&frames);
            frames.clear();
        }
    }
    write(&frames);
    state_chain.push(SegmentWriter::descriptor(&writer));
    let state = LogState {
        next_segment: id(first_id + shape.segments),
        next_pos: 1,
        keep_from: 1,
        barrier: 0,
        sequence: 0,
        checkpoint: 1,
        first_stripe: 0,
        state_sequence: sequence,
        chain: vec![commit_log.descriptor()],
        state_chain,
    };
    pool.flush().expect("no device fails");
    pool.write_root(&state.encode(&[])).expect("no device fails");
    table_bytes
}

/// References to three quarters of each segment, fewer in each hundredth.
pub(crate) fn live_bytes(shape: Shape) -> impl Iterator<Item = (SegmentId, u64)> {
    (0..shape.segments).map(move |number| {
        let whole = shape.segment(number, id(1000 + number)).payload_bytes();
        (id(1000 + number), if number % 100 == 7 { whole / 4 } else { whole / 100 * (86 + number % 13) })
    })
}
