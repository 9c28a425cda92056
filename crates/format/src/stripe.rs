//! The stripe header: the block at the front of each shard.
//!
//! A stripe of n rows puts a shard of 1 + n blocks on each of its k + m columns: the header, then n rows. The
//! header identifies the shard and holds the checksums of its rows.
//!
//! ```text
//! offset  bytes
//!      0      4  CRC32C of bytes 4 to 4095
//!      4      4  magic "WfSt"
//!      8      1  version: 1
//!      9      1  kind: 1 bulk, 2 mirror
//!     10      2  k, data columns (mirror: 1)
//!     12      1  m, parity columns (mirror: further copies)
//!     13      1  zero
//!     14      2  column, 0 to k+m-1 (mirror: 0, all copies are equal)
//!     16     16  pool uuid
//!     32      8  segment id, not zero
//!     40      8  sequence, given by the log
//!     48      4  epoch, not zero
//!     52      4  stripe: its number in the segment, from 0
//!     56      2  n, rows: blocks that follow on this column
//!     58      2  zero
//!     60      4  payload bytes in the whole stripe, not zero
//!     64     4n  CRC32C of each of the n rows on this column
//!  64+4n      …  bulk: zero; mirror: the first 4032-4n payload bytes, then zero if the payload is shorter
//! ```
//! Little-endian.

use warpfire_units::{BLOCK_BYTES, COLUMNS_MAX, PARITY_MAX, SegmentId};

use crate::decode::only_zeroes;
use crate::segment::{ROWS_MAX, SegmentKind};
use crate::{Corrupt, FieldErrors, Reader, Uuid, crc32c};

const MAGIC: [u8; 4] = *b"WfSt";
const VERSION: u8 = 1;

/// Bytes of a header before its CRC table.
pub const FIXED_BYTES: usize = 64;

const CHECKSUM: Corrupt = Corrupt::new(120, "stripe header does not match its checksum");
const MAGIC_BAD: Corrupt = Corrupt::new(121, "not a stripe header");
const VERSION_BAD: Corrupt = Corrupt::new(122, "stripe header of an unknown version");
const IDENTITY: Corrupt = Corrupt::new(123, "stripe header with an impossible identity");
const LENGTH: Corrupt = Corrupt::new(124, "stripe header with impossible lengths");
const PADDING: Corrupt = Corrupt::new(125, "stripe header padding is not zero");

static FIELDS: FieldErrors = FieldErrors::all(MAGIC_BAD);

/// The fields that identify a shard. A reader compares them with the shard that it wants. A header that
/// verifies but differs is of another write: stale, misdirected or of another pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StripeIdentity {
    /// The pool.
    pub pool: Uuid,
    /// The segment.
    pub segment: SegmentId,
    /// The epoch of the session that allocated the segment.
    pub epoch: u32,
    /// The stripe's number in the segment.
    pub stripe: u32,
    /// The column's number in the stripe; 0 in a mirror.
    pub column: u16,
    /// Bulk or mirror.
    pub kind: SegmentKind,
    /// Data columns; 1 in a mirror.
    pub data: u16,
    /// Parity columns, or further copies.
    pub parity: u8,
}

/// A stripe header without its checksums of rows and without inline payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StripeHeader {
    /// Which shard this is.
    pub identity: StripeIdentity,
    /// The stripe's number in the log; stripes of the commit log count up by one.
    pub sequence: u64,
    /// Rows: blocks on this column after the header.
    pub rows: u16,
    /// Payload bytes in the whole stripe.
    pub payload_bytes: u32,
}

/// A verified header block.
#[derive(Clone, Copy, Debug)]
pub struct StripeBlock<'a> {
    /// The fields.
    pub header: StripeHeader,
    crcs: &'a [u8],
    inline: &'a [u8],
}

impl StripeBlock<'_> {
    /// CRC32C of each row on this column, in order.
    pub fn crcs(&self) -> impl ExactSizeIterator<Item = u32> {
        self.crcs.chunks_exact(4).map(|c| c.iter().rev().fold(0, |n, b| n << 8 | u32::from(*b)))
    }

    /// The payload's first bytes in a mirror; empty in a bulk stripe.
    #[must_use]
    pub fn inline(&self) -> &[u8] {
        self.inline
    }
}

/// Offset of a mirror's inline payload in the header block of a stripe with `rows` rows.
#[must_use]
pub const fn inline_start(rows: u16) -> usize {
    FIXED_BYTES + 4 * rows as usize
}

/// Most payload bytes of a stripe with `rows` rows.
#[must_use]
pub fn payload_capacity(kind: SegmentKind, data: u16, rows: u16) -> usize {
    let column = usize::from(rows) * BLOCK_BYTES;
    match kind {
        SegmentKind::Bulk => column * usize::from(data),
        SegmentKind::Mirror => BLOCK_BYTES - inline_start(rows) + column,
    }
}

/// The fewest rows that hold `payload_bytes`. `None` if that is more than [`ROWS_MAX`].
#[must_use]
pub fn rows_for(kind: SegmentKind, data: u16, payload_bytes: usize) -> Option<u16> {
    let rows = match kind {
        SegmentKind::Bulk => payload_bytes.div_ceil(usize::from(data) * BLOCK_BYTES),
        // Each row adds a block and takes four bytes of the header block for its checksum.
        SegmentKind::Mirror => {
            payload_bytes.saturating_sub(BLOCK_BYTES - FIXED_BYTES).div_ceil(BLOCK_BYTES - 4)
        }
    };
    u16::try_from(rows).ok().filter(|r| *r <= ROWS_MAX)
}

impl StripeHeader {
    /// Completes `block` with the fields, the checksums `crcs` of the rows, and the checksum of the block. In
    /// a mirror the caller has put the inline payload, and zeroes after it, in place. In a bulk stripe the
    /// rest of the block becomes zero here.
    ///
    /// # Panics
    /// If the lengths contradict each other or [`StripeHeader::decode`] would refuse the header.
    pub fn encode(&self, block: &mut [u8], crcs: &[u32]) {
        assert_eq!(block.len(), BLOCK_BYTES, "a header is one block");
        assert_eq!(crcs.len(), usize::from(self.rows), "one CRC per row");
        assert!(self.verify_shape().is_ok(), "only a header that decodes is written");
        let id = &self.identity;
        block[4..8].copy_from_slice(&MAGIC);
        block[8] = VERSION;
        block[9] = id.kind.to_raw();
        block[10..12].copy_from_slice(&id.data.to_le_bytes());
        block[12] = id.parity;
        block[13] = 0;
        block[14..16].copy_from_slice(&id.column.to_le_bytes());
        block[16..32].copy_from_slice(&id.pool.get().to_le_bytes());
        block[32..40].copy_from_slice(&id.segment.get().to_le_bytes());
        block[40..48].copy_from_slice(&self.sequence.to_le_bytes());
        block[48..52].copy_from_slice(&id.epoch.to_le_bytes());
        block[52..56].copy_from_slice(&id.stripe.to_le_bytes());
        block[56..58].copy_from_slice(&self.rows.to_le_bytes());
        block[58..60].fill(0);
        block[60..64].copy_from_slice(&self.payload_bytes.to_le_bytes());
        for (slot, crc) in block[FIXED_BYTES..].chunks_exact_mut(4).zip(crcs) {
            slot.copy_from_slice(&crc.to_le_bytes());
        }
        // The buffer may hold an earlier stripe, and a reader refuses padding that is not zero.
        if id.kind == SegmentKind::Bulk {
            block[inline_start(self.rows)..].fill(0);
        }
        let crc = crc32c(&block[4..]);
        block[..4].copy_from_slice(&crc.to_le_bytes());
    }

    /// Verifies and reads a header block.
    ///
    /// # Errors
    /// Codes 120 to 125.
    pub fn decode(block: &[u8]) -> Result<StripeBlock<'_>, Corrupt> {
        let mut c = Reader::new(block, &FIELDS);
        let stored = c.u32()?;
        // The magic is compared before the checksum: a block of another kind is "not a header", not a damaged
        // one.
        if c.clone().array()? != MAGIC || block.len() != BLOCK_BYTES {
            return Err(MAGIC_BAD);
        }
        if crc32c(c.rest()) != stored {
            return Err(CHECKSUM);
        }
        c.u32()?;
        if c.u8()? != VERSION {
            return Err(VERSION_BAD);
        }
        let kind = SegmentKind::from_raw(c.u8()?).ok_or(IDENTITY)?;
        let data = c.u16()?;
        let parity = c.u8()?;
        let pad_a = c.u8()?;
        let column = c.u16()?;
        let pool = Uuid::new(c.u128()?).ok_or(IDENTITY)?;
        let segment = SegmentId::new(c.u64()?).ok_or(IDENTITY)?;
        let sequence = c.u64()?;
        let epoch = c.u32()?;
        let stripe = c.u32()?;
        let rows = c.u16()?;
        let pad_b = c.u16()?;
        let payload_bytes = c.u32()?;
        let identity = StripeIdentity { pool, segment, epoch, stripe, column, kind, data, parity };
        let header = StripeHeader { identity, sequence, rows, payload_bytes };
        header.verify_shape()?;
        if pad_a != 0 || pad_b != 0 {
            return Err(PADDING);
        }
        let crcs = c.bytes(4 * usize::from(rows))?;
        let inline_bytes = match kind {
            SegmentKind::Bulk => 0,
            SegmentKind::Mirror => c.rest().len().min(usize::try_from(payload_bytes).map_err(|_| LENGTH)?),
        };
        let inline = c.bytes(inline_bytes)?;
        only_zeroes(c.rest(), PADDING)?;
        Ok(StripeBlock { header, crcs, inline })
    }

    fn verify_shape(&self) -> Result<(), Corrupt> {
        let id = &self.identity;
        let width = usize::from(id.data) + usize::from(id.parity);
        let mirror = id.kind == SegmentKind::Mirror;
        if id.data == 0
            || usize::from(id.parity) > PARITY_MAX
            || width > COLUMNS_MAX
            || usize::from(id.column) >= width
            || id.epoch == 0
            || (mirror && (id.data != 1 || id.column != 0))
        {
            return Err(IDENTITY);
        }
        let payload = usize::try_from(self.payload_bytes).map_err(|_| LENGTH)?;
        // One payload length has one number of rows, so a reader finds the next stripe by either of them.
        if payload == 0 || rows_for(id.kind, id.data, payload) != Some(self.rows) {
            return Err(LENGTH);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(kind: SegmentKind) -> StripeHeader {
        let (data, column, rows, payload_bytes) = match kind {
            SegmentKind::Bulk => (4, 5, 2, 4 * 4096 + 1),
            SegmentKind::Mirror => (1, 0, 1, 4033),
        };
        StripeHeader {
            identity: StripeIdentity {
                pool: Uuid::new(0x1122).unwrap(),
                segment: SegmentId::new(9).unwrap(),
                epoch: 2,
                stripe: 3,
                column,
                kind,
                data,
                parity: 2,
            },
            sequence: 77,
            rows,
            payload_bytes,
        }
    }

    #[test]
    fn golden_bytes_of_a_bulk_header() {
        let header = sample(SegmentKind::Bulk);
        let mut block = vec![0xEE; BLOCK_BYTES];
        header.encode(&mut block, &[0x0403_0201, 5]);
        let golden = [
            b'W', b'f', b'S', b't', 1, 1, 4, 0, 2, 0, 5, 0, // magic to column
            0x22, 0x11, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // pool
            9, 0, 0, 0, 0, 0, 0, 0, 77, 0, 0, 0, 0, 0, 0, 0, // segment, sequence
            2, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0x40, 0, 0, // epoch, stripe, rows, payload
            1, 2, 3, 4, 5, 0, 0, 0, // CRC table
        ];
        assert_eq!(block[4..72], golden);
        assert!(block[72..].iter().all(|b| *b == 0));
        assert_eq!(block[..4], crc32c(&block[4..]).to_le_bytes());
        let back = StripeHeader::decode(&block).unwrap();
        assert_eq!(back.header, header);
        assert_eq!(back.crcs().collect::<Vec<_>>(), [0x0403_0201, 5]);
        assert!(back.inline().is_empty());
    }

    #[test]
    fn a_mirror_header_carries_the_first_payload_bytes() {
        let header = sample(SegmentKind::Mirror);
        let mut block = vec![7; BLOCK_BYTES];
        header.encode(&mut block, &[1]);
        let back = StripeHeader::decode(&block).unwrap();
        assert_eq!(back.inline(), vec![7; 4028]);
    }

    #[test]
    fn any_flipped_bit_is_seen() {
        let mut block = vec![0; BLOCK_BYTES];
        sample(SegmentKind::Bulk).encode(&mut block, &[1, 2]);
        for at in 0..BLOCK_BYTES {
            block[at] ^= 0x10;
            assert!(StripeHeader::decode(&block).is_err(), "byte {at}");
            block[at] ^= 0x10;
        }
        assert!(StripeHeader::decode(&block[1..]).is_err());
        assert!(StripeHeader::decode(&vec![0; BLOCK_BYTES]).is_err());
    }

    fn resealed(block: &[u8], at: usize, value: u8) -> Vec<u8> {
        let mut bad = block.to_vec();
        bad[at] = value;
        let crc = crc32c(&bad[4..]);
        bad[..4].copy_from_slice(&crc.to_le_bytes());
        bad
    }

    #[test]
    fn each_field_is_held_to_its_range_even_under_a_right_checksum() {
        let mut block = vec![0; BLOCK_BYTES];
        sample(SegmentKind::Bulk).encode(&mut block, &[1, 2]);
        let cases = [
            (8, 2, VERSION_BAD),
            (9, 0, IDENTITY),
            (9, 2, IDENTITY),
            (10, 0, IDENTITY),
            (11, 1, IDENTITY),
            (12, 9, IDENTITY),
            (13, 1, PADDING),
            (14, 6, IDENTITY),
            (32, 0, IDENTITY),
            (48, 0, IDENTITY),
            (56, 3, LENGTH),
            (57, 1, LENGTH),
            (59, 1, PADDING),
            (61, 0x80, LENGTH),
            (72, 1, PADDING),
            (4095, 1, PADDING),
        ];
        for (at, value, error) in cases {
            let got = StripeHeader::decode(&resealed(&block, at, value)).map(|b| b.header);
            assert_eq!(got, Err(error), "byte {at} set to {value}");
        }
    }

    #[test]
    fn rows_are_the_fewest_that_hold_the_payload() {
        for kind in [SegmentKind::Bulk, SegmentKind::Mirror] {
            for rows in 0..=ROWS_MAX {
                let capacity = payload_capacity(kind, 3, rows);
                assert_eq!(rows_for(kind, 3, capacity), Some(rows));
                let next = (rows < ROWS_MAX).then_some(rows + 1);
                assert_eq!(rows_for(kind, 3, capacity + 1), next);
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn never_panics_on_arbitrary_bytes(
            edits in proptest::collection::vec((4usize..80, 0u8..=255), 0..12),
        ) {
            let mut block = vec![0; BLOCK_BYTES];
            sample(SegmentKind::Mirror).encode(&mut block, &[1]);
            for (at, value) in edits {
                block = resealed(&block, at, value);
            }
            if let Ok(b) = StripeHeader::decode(&block) {
                let mut encoded_again = block.clone();
                b.header.encode(&mut encoded_again, &b.crcs().collect::<Vec<_>>());
                proptest::prop_assert_eq!(encoded_again, block);
            }
        }
    }
}
