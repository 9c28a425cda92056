//! Segments of known lengths, on devices that the test knows.

use std::collections::BTreeSet;

use warpfire_log::{Log, LogStore, Stream};
use warpfire_pool::PoolLabel;
use warpfire_sim_env::{Fault, SimWorld};
use warpfire_units::{BLOCK_BYTES, DeviceIndex, SlicePtr};

use super::content;

pub const BLOCK: u64 = BLOCK_BYTES as u64;

/// A sealed segment with one slice, which is as long as the segment is.
#[derive(Clone, Debug)]
pub struct Filled {
    pub slice: SlicePtr,
    /// Payload bytes of each data column.
    pub column_bytes: u64,
    pub devices: BTreeSet<DeviceIndex>,
}

impl Filled {
    /// Fills a segment with so many blocks in each data column, and makes a checkpoint, so that the commit
    /// log has no column on any device.
    pub fn new(log: &Log, stream: Stream, rows: u64) -> Filled {
        let before = segments_on(log);
        let column_bytes = rows * BLOCK;
        let len_bytes = column_bytes * u64::from(log.pool().status().data);
        let bytes = content(rows, usize::try_from(len_bytes).expect("a short segment"));
        let slices = log.append(stream, &bytes).expect("the pool has room");
        log.seal_all().expect("nothing fails");
        checkpoint(log);
        let [slice] = slices[..] else { panic!("{len_bytes} bytes are in several slices: {slices:?}") };
        assert_eq!(log.readable_bytes(slice.segment), len_bytes, "the slice is all of the segment");
        let after = segments_on(log);
        let devices = after.into_iter().zip(before).filter(|((_, after), (_, before))| after > before);
        Filled { slice, column_bytes, devices: devices.map(|((device, _), _)| device).collect() }
    }

    pub fn len_bytes(&self) -> u64 {
        u64::from(self.slice.len_bytes)
    }

    /// Leaves so many of its bytes alive.
    pub fn keep(&self, log: &Log, live_bytes: u64) {
        log.release(self.slice.segment, self.len_bytes() - live_bytes);
    }
}

fn segments_on(log: &Log) -> Vec<(DeviceIndex, u64)> {
    let devices = log.pool().status().devices;
    devices.iter().map(|device| (device.index, log.segments_on(device.index))).collect()
}

pub fn checkpoint(log: &Log) {
    log.checkpoint(b"state", log.position()).expect("nothing fails");
}

/// Loses a device. The pool notices by a root, which writes no column of a segment.
pub fn lose(world: &SimWorld, log: &Log, device: DeviceIndex) {
    world.sims()[usize::from(device.0)].inject(Fault::Vanish { after: 0 });
    log.pool().set_label(PoolLabel::new("x").expect("a short name")).expect("parity covers it");
    assert!(!log.pool().takes_writes(device), "the root has found the loss");
}
