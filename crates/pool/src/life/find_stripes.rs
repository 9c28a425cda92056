//! The search for data of a pool on a device without roots.
//!
//! The first stripe of a segment begins at the first block of a zone, and its header names the pool. So a
//! device of which all roots were overwritten still says that it is no blank device. The zone size is not
//! known without a root. The search therefore looks at the first zones of each possible size, where a young
//! pool has its data, and at places that are spread evenly over the device, where a full one has it. A pool
//! that uses few of very many zones may be missed. Nothing is written.

use std::collections::BTreeSet;

use warpfire_env::{AlignedBuf, Device};
use warpfire_format::Uuid;
use warpfire_format::stripe::StripeHeader;
use warpfire_units::BLOCK_BYTES;

use crate::life::find_roots::possible_zone_bytes;
use crate::pool::Pool;

/// Zones of each possible size that are looked at, from the front of the device on.
const FIRST_ZONES: u64 = 64;

/// Places that are spread over the device, at most.
const SPREAD_PLACES_MAX: u64 = 1024;

/// Blocks that cannot be read before the search ends. Each of them may take seconds on a failing device.
const UNREADABLE_MAX: usize = 16;

impl Pool {
    /// The pool of which the device holds data, by the first header of a stripe at a place where a zone can
    /// begin. `None` if none was found. Up to a few thousand blocks are read.
    ///
    /// The answer helps to protect a device without roots. It does not prove that the data is whole, or that
    /// it is still in use.
    #[must_use]
    pub fn find_stripes(device: &dyn Device) -> Option<Uuid> {
        let mut block = AlignedBuf::zeroed(BLOCK_BYTES);
        let mut unreadable = 0;
        for offset_bytes in places(device) {
            if device.read(offset_bytes, &mut block).is_err() {
                unreadable += 1;
                if unreadable == UNREADABLE_MAX {
                    return None;
                }
                continue;
            }
            let Ok(found) = StripeHeader::decode(&block) else { continue };
            // A later stripe can lie at a multiple of a size that is not the zone size. It says as much.
            return Some(found.header.identity.pool);
        }
        None
    }
}

/// First blocks of zones, whatever the zone size, in order.
fn places(device: &dyn Device) -> BTreeSet<u64> {
    let info = device.info();
    let sizes: Vec<u64> = match info.zones {
        Some(zones) => vec![zones.zone_bytes],
        None => possible_zone_bytes(info.size_bytes).collect(),
    };
    let Some(smallest) = sizes.first().copied() else { return BTreeSet::new() };
    let first = sizes.iter().flat_map(|zone_bytes| (2..FIRST_ZONES).map(move |zone| zone * zone_bytes));
    // A power of two of the smallest size is a multiple, or a divisor, of every possible zone size.
    let zones_apart = (info.size_bytes / smallest).div_ceil(SPREAD_PLACES_MAX).next_power_of_two();
    let spread = (1..SPREAD_PLACES_MAX).map(|n| n.saturating_mul(zones_apart).saturating_mul(smallest));
    let is_inside = |at: &u64| at.saturating_add(BLOCK_BYTES as u64) <= info.size_bytes;
    first.chain(spread).filter(is_inside).collect()
}
