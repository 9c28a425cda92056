//! The walk of an open segment: recovery's search for the stripes of a segment that was open at a crash.
//!
//! A stripe's header contains its length, and with it the place of the next stripe. If no column has the next
//! header, the stripe was never written or is damaged beyond parity. If a later stripe exists, it begins
//! within one stripe's length; its number and its place determine how many stripes and rows were lost before
//! it.
//!
//! ```text
//!   headers_at ── found ──▶ report_stripe ──▶ next place
//!       └──── none ──▶ next_stripe_after ── found ──▶ lost stripes, reported as damaged ──▶ next place
//!                              └──── none ──▶ end of the segment
//! ```
//!
//! A block counts only with this segment's identity and epoch. So bytes from an earlier use of the zone never
//! become a stripe (test `after_any_cut_flushed_stripes_are_whole_and_no_stripe_is_wrong`).

use std::sync::Arc;

use warpfire_format::Corrupt;
use warpfire_format::segment::{ROWS_MAX, SegmentDescriptor, SegmentKind};
use warpfire_format::stripe::StripeHeader;
use warpfire_units::BLOCK_BYTES;

use crate::error::PoolError;
use crate::pool::{Inner, Pool, TOO_LONG};
use crate::read::read_stripe::{ColumnWait, Shard};
use crate::segment::header_readahead::HeaderReadahead;
use crate::segment::pool_segment::PoolSegment;
use crate::segment::stripe_index::{StripeIndex, StripePlace};

const OUTSIDE: Corrupt = Corrupt::new(213, "open segment lies outside the devices");

/// How much of a stripe can be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StripeHealth {
    /// Every block of every column verifies.
    Intact,
    /// All payload can be read, but some column cannot: the stripe has less than full parity.
    Degraded,
    /// Some payload cannot be read.
    Damaged,
}

/// One stripe of a walk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WalkedStripe<'a> {
    /// Its number in the segment.
    pub index: u32,
    /// The `sequence` with which it was prepared; 0 if no header was found.
    pub sequence: u64,
    /// Number of its rows. If no header was found, a number with which the later stripes have their right
    /// addresses.
    pub rows: u16,
    /// Bytes of its payload; 0 if no header was found.
    pub payload_bytes: usize,
    /// How much of it can be read.
    pub health: StripeHealth,
    /// Its verified payload. Only for mirror stripes that are not damaged.
    pub payload: Option<&'a [u8]>,
}

/// The fields that the headers of one stripe's columns have in common.
pub(crate) struct AgreedHeaders {
    pub sequence: u64,
    pub rows: u16,
    pub payload_bytes: usize,
    /// Number of columns with a header that verified and agrees.
    count: usize,
    /// Mirror: the first payload bytes.
    pub inline: Vec<u8>,
}

impl Pool {
    /// Walks the stripes of a segment that is not adopted yet, and passes each of them, verified whole, to
    /// `each`. The walk begins after the first `from` stripes of `d`, which it does not read. Returns the
    /// number of stripes, the first `from` included. Nothing is written, and the segment is not added to the
    /// pool.
    ///
    /// # Errors
    /// `Misfit` if the segment does not fit the pool.
    ///
    /// # Panics
    /// If the segment is adopted already, or `d` lists fewer stripes than `from`.
    pub fn walk_open_segment(
        &self,
        d: &SegmentDescriptor,
        from: u32,
        each: &mut dyn FnMut(WalkedStripe<'_>),
    ) -> Result<u32, PoolError> {
        let inner = &self.inner;
        assert!(!inner.segments.read().contains_key(&d.id), "an adopted segment is not walked");
        let inside = |(device, zone): &(warpfire_units::DeviceIndex, warpfire_units::ZoneIndex)| {
            inner.devices.zones(*device).is_some_and(|zones| zone.0 < zones)
        };
        if !d.columns.iter().all(inside) {
            return Err(PoolError::Misfit { id: d.id, source: OUTSIDE });
        }
        let segment = PoolSegment::new(d, &inner.codes, StripeIndex::default(), inner.devices.moment());
        assert!(from <= d.stripe_count(), "a walk begins after stripes that are listed");
        let mut listed = d.clone();
        listed.truncate_stripes(from);
        let too_long = PoolError::Misfit { id: d.id, source: TOO_LONG };
        let mut stripes = StripeIndex::of(&listed, inner.zone_blocks).ok_or(too_long)?;
        let mut window = HeaderReadahead::default();
        while stripes.end_block() < inner.zone_blocks {
            let (stripe, block) = (stripes.count(), stripes.end_block());
            if let Some(headers) = inner.headers_at(&segment, stripe, block, None, &mut window) {
                // No writer makes a stripe longer than its zone: such a header is not of this segment.
                if u32::from(headers.rows) >= inner.zone_blocks - block {
                    break;
                }
                let place = stripes.push(headers.rows);
                inner.report_stripe(&segment, &place, &headers, &window, each);
            } else if let Some((next, at)) = inner.next_stripe_after(&segment, stripe, block) {
                // The rows of each lost stripe are unknown, but their sum is not. Any split of the sum
                // serves: later stripes have their right addresses, and the lost ones are unreadable anyway.
                let Some(lengths) = lost_lengths(segment.kind, next - stripe, at - block) else { break };
                for rows in lengths {
                    let index = stripes.push(rows).stripe;
                    let health = StripeHealth::Damaged;
                    let lost =
                        WalkedStripe { index, sequence: 0, rows, payload_bytes: 0, health, payload: None };
                    each(lost);
                }
                assert_eq!(
                    (stripes.count(), stripes.end_block()),
                    (next, at),
                    "the walk reached the next stripe"
                );
            } else {
                break;
            }
        }
        assert!(stripes.end_block() <= inner.zone_blocks, "all stripes lie in the zone");
        Ok(stripes.count())
    }
}

/// Numbers of rows of `count` lost stripes that together take `blocks`, headers included; `None` if there are
/// none.
fn lost_lengths(kind: SegmentKind, count: u32, blocks: u32) -> Option<Vec<u16>> {
    // A bulk stripe has a row at least. Each stripe gets as many rows as it can while the others keep their
    // minimum.
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
    /// The headers of one stripe, from `window`; a block that is not in the window is read. With `rows`, only
    /// headers of a stripe of so many rows count. `None` if no column has a header of this stripe.
    pub(crate) fn headers_at(
        &self,
        segment: &PoolSegment,
        stripe: u32,
        block: u32,
        rows: Option<u16>,
        window: &mut HeaderReadahead,
    ) -> Option<AgreedHeaders> {
        let mut agreed: Option<AgreedHeaders> = None;
        for (column, block) in window.blocks(self, segment, block) {
            let found = self.verify_header(segment, stripe, column, block);
            let Some(found) = found.filter(|f| rows.is_none_or(|rows| f.header.rows == rows)) else {
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
            // The first header decides. One with the same identity that disagrees counts as lost.
            if (agreed.sequence, agreed.rows) == (h.sequence, h.rows) {
                agreed.count += 1;
                self.checksums.put(segment, stripe, column, found.crcs().collect::<Arc<[u32]>>());
            }
        }
        debug_assert!(
            agreed.as_ref().is_none_or(|a| (1..=segment.width()).contains(&a.count)),
            "the first header agrees with itself, and each column has one header"
        );
        agreed
    }

    /// The first stripe after `stripe`, and its block, if it begins within one stripe's length. Reads m+1
    /// columns: one of them is sound as long as damage stays within parity.
    fn next_stripe_after(&self, segment: &PoolSegment, stripe: u32, block: u32) -> Option<(u32, u32)> {
        let window = (self.zone_blocks - block).min(u32::from(ROWS_MAX) + 2);
        let columns: Vec<usize> = (0..=usize::from(segment.parity)).collect();
        let read = self.read_headers(segment, &columns, block, window).columns;
        let mut nearest: Option<(u32, u32)> = None;
        for (column, blocks) in columns.iter().zip(&read) {
            // A header counts under its own stripe number, so that payload that looks like a header of
            // another segment is ignored.
            let later = |n: u32, b: &[u8]| {
                let later = StripeHeader::decode(b).ok()?.header.identity.stripe;
                self.verify_header(segment, later, *column, b)?;
                (later > stripe).then_some((block + n, later))
            };
            let found = match blocks {
                Some(blocks) => {
                    (0u32..).zip(blocks.chunks_exact(BLOCK_BYTES)).skip(1).find_map(|(n, b)| later(n, b))
                }
                // One bad block fails the whole read. It must not hide the headers behind it.
                // A missing device is not asked.
                None => (1..window).find_map(|n| {
                    let alone = self.read_headers(segment, &[*column], block + n, 1).columns;
                    alone.into_iter().flatten().find_map(|b| later(n, &b))
                }),
            };
            nearest = [nearest, found].into_iter().flatten().min();
        }
        debug_assert!(nearest.is_none_or(|(at, later)| at > block && later > stripe), "the walk advances");
        nearest.map(|(at, stripe)| (stripe, at))
    }

    /// All rows of a stripe on every readable column, from the window if it contains them.
    fn whole_stripe(
        &self,
        segment: &PoolSegment,
        place: &StripePlace,
        window: &HeaderReadahead,
    ) -> Vec<Shard> {
        if place.rows == 0 {
            return Vec::new();
        }
        // `verify_shard` needs the CRC table of every column. If one is not cached, all columns are read
        // again.
        let verify = |(column, blocks)| self.verify_shard(segment, place, column, blocks);
        let in_window = window.rows(place).and_then(|rows| rows.map(verify).collect());
        in_window.unwrap_or_else(|| {
            let columns: Vec<usize> = (0..segment.width()).collect();
            // Recovery judges durability by all columns, so it waits for each.
            self.read_columns(segment, place, &columns, 0..place.rows, ColumnWait::Patient)
        })
    }

    /// Verifies a stripe whole and passes it to `each`.
    fn report_stripe(
        &self,
        segment: &PoolSegment,
        place: &StripePlace,
        headers: &AgreedHeaders,
        window: &HeaderReadahead,
        each: &mut dyn FnMut(WalkedStripe<'_>),
    ) {
        // Health is decided by the row with the fewest sound columns; the header counts as a row.
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
        debug_assert!(worst <= segment.width(), "no more columns are sound than there are");
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
