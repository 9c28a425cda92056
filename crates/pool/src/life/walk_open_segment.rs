//! Walking the stripes of a segment that was open when power went.
//!
//! Each stripe's header says how long it is, so the next one's place follows. Where no column has the next header, the
//! stripe never arrived, or is damaged beyond parity. A later stripe then lies within one stripe's length, if there
//! is one; its number and place tell how many stripes and rows are lost before it.

use std::sync::Arc;

use warpfire_format::Corrupt;
use warpfire_format::segment::{ROWS_MAX, SegmentDescriptor, SegmentKind};
use warpfire_format::stripe::StripeHeader;
use warpfire_units::BLOCK_BYTES;

use crate::error::PoolError;
use crate::pool::{Inner, Pool, TOO_LONG};
use crate::read::read_stripe::Shard;
use crate::segment::header_readahead::HeaderReadahead;
use crate::segment::pool_segment::PoolSegment;
use crate::segment::stripe_index::{StripeIndex, StripePlace};

const OUTSIDE: Corrupt = Corrupt::new(213, "open segment lies outside the devices");

/// How much of a stripe is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StripeHealth {
    /// Every block of every column verifies.
    Intact,
    /// All payload can be read, but not from every column: the segment has less than full parity.
    Degraded,
    /// Some payload can not be read.
    Damaged,
}

/// A stripe that the walk came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WalkedStripe<'a> {
    /// Its place in the segment.
    pub index: u32,
    /// The number that the log gave it; 0 if no header was found.
    pub sequence: u64,
    /// Its rows; if no header was found, a length that makes the later stripes' addresses right.
    pub rows: u16,
    /// Payload bytes in it; 0 if no header was found.
    pub payload_bytes: usize,
    /// How much of it is there.
    pub health: StripeHealth,
    /// Its payload, verified: mirror stripes that are not damaged.
    pub payload: Option<&'a [u8]>,
}

/// What the headers at one place agree on.
pub(crate) struct AgreedHeaders {
    pub sequence: u64,
    pub rows: u16,
    pub payload_bytes: usize,
    /// Columns whose header verified.
    count: usize,
    /// Mirror: the first payload bytes.
    pub inline: Vec<u8>,
}

impl Pool {
    /// Walks the stripes of a segment that is not adopted yet: from behind the first `from` stripes that `d` lists, which
    /// are not read, to the last that is found, each verified whole. Returns how many the segment has, the first ones
    /// included. Nothing is written or remembered.
    ///
    /// # Errors
    /// `Misfit` if the segment can not lie in this pool.
    ///
    /// # Panics
    /// If the segment is known already: only recovery, before it adopts, walks. If `d` lists fewer stripes than `from`.
    pub fn walk_open_segment(
        &self,
        d: &SegmentDescriptor,
        from: u32,
        each: &mut dyn FnMut(WalkedStripe<'_>),
    ) -> Result<u32, PoolError> {
        let inner = &self.inner;
        assert!(!inner.segments.read().contains_key(&d.id), "an adopted segment is not recovered");
        let table = inner.devices.table();
        let inside = |(device, zone): &(warpfire_units::DeviceIndex, warpfire_units::ZoneIndex)| {
            table.get(usize::from(device.0)).is_some_and(|entry| zone.0 < entry.zones)
        };
        if !d.columns.iter().all(inside) {
            return Err(PoolError::Misfit { id: d.id, source: OUTSIDE });
        }
        let segment = PoolSegment::new(d, StripeIndex::default());
        assert!(from <= d.stripe_count(), "a walk begins behind stripes that are listed");
        let mut listed = d.clone();
        listed.truncate_stripes(from);
        let too_long = PoolError::Misfit { id: d.id, source: TOO_LONG };
        let mut stripes = StripeIndex::of(&listed, inner.zone_blocks).ok_or(too_long)?;
        let mut window = HeaderReadahead::default();
        while stripes.end_block() < inner.zone_blocks {
            let (stripe, block) = (stripes.count(), stripes.end_block());
            if let Some(headers) = inner.headers_at(&segment, stripe, block, &mut window) {
                if u32::from(headers.rows) >= inner.zone_blocks - block {
                    break;
                }
                let place = stripes.push(headers.rows);
                inner.report_stripe(&segment, &place, &headers, &window, each);
            } else if let Some((next, at)) = inner.next_stripe_after(&segment, stripe, block) {
                let Some(lengths) = lost_lengths(segment.kind, next - stripe, at - block) else { break };
                for rows in lengths {
                    let index = stripes.push(rows).stripe;
                    let health = StripeHealth::Damaged;
                    let lost =
                        WalkedStripe { index, sequence: 0, rows, payload_bytes: 0, health, payload: None };
                    each(lost);
                }
            } else {
                break;
            }
        }
        Ok(stripes.count())
    }
}

/// Lengths of `count` lost stripes that together take `blocks`, headers included; `None` if they can not.
fn lost_lengths(kind: SegmentKind, count: u32, blocks: u32) -> Option<Vec<u16>> {
    let least = u32::from(kind == SegmentKind::Bulk);
    let mut rows = blocks.checked_sub(count)?;
    let lengths: Vec<u16> = (0..count)
        .rev()
        .map_while(|after| {
            let length = rows.checked_sub(after * least)?.min(u32::from(ROWS_MAX));
            rows -= length;
            u16::try_from(length).ok().filter(|l| u32::from(*l) >= least)
        })
        .collect();
    (rows == 0 && lengths.len() == count as usize).then_some(lengths)
}

impl Inner {
    /// Reads the header block of every column, if `window` has not got it, and puts together what those say that are this stripe's.
    pub(crate) fn headers_at(
        &self,
        segment: &PoolSegment,
        stripe: u32,
        block: u32,
        window: &mut HeaderReadahead,
    ) -> Option<AgreedHeaders> {
        let mut agreed: Option<AgreedHeaders> = None;
        for (column, block) in window.blocks(self, segment, block) {
            let Some(found) = self.verify_header(segment, stripe, column, block) else {
                self.devices.count_identity_error(segment.columns[column].0);
                continue;
            };
            let h = found.header;
            let agreed = agreed.get_or_insert_with(|| AgreedHeaders {
                sequence: h.sequence,
                rows: h.rows,
                payload_bytes: h.payload_bytes as usize,
                count: 0,
                inline: found.inline().to_vec(),
            });
            if (agreed.sequence, agreed.rows) == (h.sequence, h.rows) {
                agreed.count += 1;
                self.checksums.put(segment.id, stripe, column, found.crcs().collect::<Arc<[u32]>>());
            }
        }
        agreed
    }

    /// The first stripe after `stripe`, and its block, within one stripe's length. Looks on m+1 columns: of those
    /// one is sound as long as damage stays within parity.
    fn next_stripe_after(&self, segment: &PoolSegment, stripe: u32, block: u32) -> Option<(u32, u32)> {
        let window = (self.zone_blocks - block).min(u32::from(ROWS_MAX) + 2);
        let columns: Vec<usize> = (0..=usize::from(segment.parity)).collect();
        let read = self.read_headers(segment, &columns, block, window).columns;
        let mut nearest: Option<(u32, u32)> = None;
        for (column, blocks) in columns.iter().zip(&read) {
            let Some(blocks) = blocks else { continue };
            let found = (0u32..).zip(blocks.chunks_exact(BLOCK_BYTES)).skip(1).find_map(|(n, b)| {
                let later = StripeHeader::decode(b).ok()?.header.identity.stripe;
                self.verify_header(segment, later, *column, b)?;
                (later > stripe).then_some((block + n, later))
            });
            nearest = [nearest, found].into_iter().flatten().min();
        }
        nearest.map(|(at, stripe)| (stripe, at))
    }

    /// All rows of a stripe, from the window if it has got them.
    fn whole_stripe(
        &self,
        segment: &PoolSegment,
        place: &StripePlace,
        window: &HeaderReadahead,
    ) -> Vec<Shard> {
        if place.rows == 0 {
            return Vec::new();
        }
        let verify = |(column, blocks)| self.verify_shard(segment, place, column, blocks);
        let in_window = window.rows(place).and_then(|rows| rows.map(verify).collect());
        in_window.unwrap_or_else(|| {
            let columns: Vec<usize> = (0..segment.width()).collect();
            self.read_columns(segment, place, &columns, 0..place.rows)
        })
    }

    fn report_stripe(
        &self,
        segment: &PoolSegment,
        place: &StripePlace,
        headers: &AgreedHeaders,
        window: &HeaderReadahead,
        each: &mut dyn FnMut(WalkedStripe<'_>),
    ) {
        let mut worst = headers.count;
        let mut payload = headers.inline.clone();
        let shards = self.whole_stripe(segment, place, window);
        for row in 0..place.rows {
            worst = worst.min(shards.iter().filter(|s| s.is_sound(row)).count());
            if segment.kind == SegmentKind::Mirror
                && let Some(sound) = shards.iter().find(|s| s.is_sound(row))
            {
                payload.extend_from_slice(sound.rows(row..row + 1));
            }
        }
        payload.truncate(headers.payload_bytes);
        let health = if worst == segment.width() {
            StripeHealth::Intact
        } else if worst >= segment.needed() {
            StripeHealth::Degraded
        } else {
            StripeHealth::Damaged
        };
        let readable = segment.kind == SegmentKind::Mirror && health != StripeHealth::Damaged;
        each(WalkedStripe {
            index: place.stripe,
            sequence: headers.sequence,
            rows: place.rows,
            payload_bytes: headers.payload_bytes,
            health,
            payload: readable.then_some(&payload),
        });
    }
}
