//! Reading blocks from the devices of a pool.

use std::cell::Cell;
use std::sync::Arc;

use warpfire_env::{Device, DeviceOp, OpKind, run_batch};
use warpfire_format::Uuid;
use warpfire_units::{BLOCK_BYTES, DeviceIndex, ZoneIndex};

/// The devices of one pool, by their index in the device table.
pub(crate) struct Media {
    pub(crate) pool: Uuid,
    pub(crate) zone_blocks: u32,
    opened: Vec<Arc<dyn Device>>,
    /// For each device of the pool its place in `opened`; `None` if it is missing.
    slots: Vec<Option<usize>>,
    bytes_read: Cell<u64>,
}

/// A run of neighbouring blocks to read.
pub(crate) struct BlockRead<'a> {
    pub(crate) device: DeviceIndex,
    pub(crate) zone: ZoneIndex,
    /// First block, counted in the zone.
    pub(crate) block: u64,
    pub(crate) buf: &'a mut [u8],
}

impl Media {
    pub(crate) fn new(pool: Uuid, zone_blocks: u32, by_index: Vec<Option<Arc<dyn Device>>>) -> Self {
        let mut opened = Vec::new();
        let slots = by_index
            .into_iter()
            .map(|device| {
                device.map(|device| {
                    opened.push(device);
                    opened.len() - 1
                })
            })
            .collect();
        Media { pool, zone_blocks, opened, slots, bytes_read: Cell::new(0) }
    }

    pub(crate) fn is_present(&self, device: DeviceIndex) -> bool {
        self.slot(device).is_some()
    }

    /// Number of zones that a device has room for, whatever the device table says; 0 if it is missing.
    pub(crate) fn zones_of(&self, device: DeviceIndex) -> u32 {
        let zone_bytes = u64::from(self.zone_blocks) * BLOCK_BYTES as u64;
        let zones = self.slot(device).map_or(0, |slot| self.opened[slot].info().size_bytes / zone_bytes);
        u32::try_from(zones).unwrap_or(u32::MAX)
    }

    fn slot(&self, device: DeviceIndex) -> Option<usize> {
        self.slots.get(usize::from(device.0)).copied().flatten()
    }

    pub(crate) fn bytes_read(&self) -> u64 {
        self.bytes_read.get()
    }

    /// Reads all runs in one batch. Returns for each run the result, `None` for a missing device.
    pub(crate) fn read(&self, reads: &mut [BlockRead<'_>]) -> Vec<Option<Result<(), String>>> {
        let mut outcomes: Vec<Option<Result<(), String>>> = vec![None; reads.len()];
        let mut numbers = Vec::with_capacity(reads.len());
        let mut ops = Vec::with_capacity(reads.len());
        for (number, read) in reads.iter_mut().enumerate() {
            let Some((slot, device)) = self.slot(read.device).and_then(|s| Some((s, self.opened.get(s)?)))
            else {
                continue;
            };
            // The zone comes from a segment table that may be wrong, so the address may be outside the
            // device.
            let first_block = u64::from(read.zone.0) * u64::from(self.zone_blocks);
            let at = first_block.saturating_add(read.block).saturating_mul(BLOCK_BYTES as u64);
            let inside = device.info().check_range(at, read.buf.len() as u64);
            if let (Err(e), Some(outcome)) = (inside, outcomes.get_mut(number)) {
                *outcome = Some(Err(e.to_string()));
                continue;
            }
            self.bytes_read.set(self.bytes_read.get() + read.buf.len() as u64);
            numbers.push(number);
            ops.push(DeviceOp::new(slot, OpKind::Read(at, read.buf)));
        }
        debug_assert_eq!(numbers.len(), ops.len(), "each operation has the number of its run");
        run_batch(&self.opened, &mut ops);
        for (number, op) in numbers.into_iter().zip(ops) {
            if let Some(outcome) = outcomes.get_mut(number) {
                *outcome = Some(op.result.map_err(|e| e.to_string()));
            }
        }
        outcomes
    }

    /// Reads one run. `false` if the device is missing or the read failed.
    pub(crate) fn read_one(&self, device: DeviceIndex, zone: ZoneIndex, block: u64, buf: &mut [u8]) -> bool {
        let outcome = self.read(&mut [BlockRead { device, zone, block, buf }]);
        matches!(outcome.first(), Some(Some(Ok(()))))
    }
}
