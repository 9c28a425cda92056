//! Reading one stripe of the commit log from its copies.

use warpfire_env::AlignedBuf;
use warpfire_format::crc32c;
use warpfire_format::segment::SegmentDescriptor;
use warpfire_format::stripe::StripeHeader;
use warpfire_units::BLOCK_BYTES;

use crate::media::{Media, identity_of};

/// A stripe of the log.
pub(super) struct LogStripe {
    pub(super) header: StripeHeader,
    pub(super) payload: Vec<u8>,
}

/// Reads stripe `stripe` at zone block `block`. `None` if no copy has its header, or no copy of a row is
/// good. It reports nothing: the verification of stripes finds the same damage again.
pub(super) fn read_stripe(
    media: &Media,
    d: &SegmentDescriptor,
    stripe: u32,
    block: u64,
) -> Option<LogStripe> {
    let expected = identity_of(media, d, stripe, 0);
    let mut buf = AlignedBuf::zeroed(BLOCK_BYTES);
    let verified = d.columns.iter().find_map(|&(device, zone)| {
        if block >= u64::from(media.zone_blocks) || !media.read_one(device, zone, block, &mut buf) {
            return None;
        }
        let found = StripeHeader::decode(&buf).ok()?;
        let right = found.header.identity == expected;
        right.then(|| (found.header, found.crcs().collect::<Vec<u32>>(), found.inline().to_vec()))
    });
    let (header, crcs, mut payload) = verified?;
    if block + 1 + u64::from(header.rows) > u64::from(media.zone_blocks) {
        return None;
    }
    // Rows may come from different copies: each has a checksum of its own.
    for (row, crc) in (1..).zip(crcs) {
        let good = d.columns.iter().any(|&(device, zone)| {
            media.read_one(device, zone, block + row, &mut buf) && crc32c(&buf) == crc
        });
        if !good {
            return None;
        }
        payload.extend_from_slice(&buf);
    }
    payload.truncate(usize::try_from(header.payload_bytes).ok()?);
    Some(LogStripe { header, payload })
}

/// The search for headers ends after this many blocks of zeroes: 4 MiB, four times the longest stripe. The
/// log is written front to back, so nothing follows a longer stretch.
const QUIET_BLOCKS: u64 = 1024;

/// Blocks of one read during the search for headers.
const SCAN_BLOCKS: u64 = 256;

/// Searches zone blocks from `from` on for headers of this segment's stripes. Returns (block, header) of
/// each, from the first readable copy.
pub(super) fn find_headers(media: &Media, d: &SegmentDescriptor, from: u64) -> Vec<(u64, StripeHeader)> {
    let mut found = Vec::new();
    let mut buf = AlignedBuf::zeroed(usize::try_from(SCAN_BLOCKS).expect("a small number") * BLOCK_BYTES);
    let mut at = from;
    let mut quiet = 0;
    while at < u64::from(media.zone_blocks) && quiet < QUIET_BLOCKS {
        let blocks = SCAN_BLOCKS.min(u64::from(media.zone_blocks) - at);
        let len = usize::try_from(blocks).expect("at most SCAN_BLOCKS") * BLOCK_BYTES;
        let chunk = buf.get_mut(..len).expect("the buffer has SCAN_BLOCKS blocks");
        if !d.columns.iter().any(|&(device, zone)| media.read_one(device, zone, at, chunk)) {
            break;
        }
        for (block, bytes) in (at..).zip(chunk.chunks_exact(BLOCK_BYTES)) {
            quiet = if bytes.iter().all(|b| *b == 0) { quiet + 1 } else { 0 };
            let Ok(header) = StripeHeader::decode(bytes).map(|b| b.header) else { continue };
            if header.identity == identity_of(media, d, header.identity.stripe, 0) {
                found.push((block, header));
            }
        }
        at += blocks;
    }
    found
}
