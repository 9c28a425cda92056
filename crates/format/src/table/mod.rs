//! Tables: sorted, immutable key versions. They lie in data blocks, which are found through partition blocks
//! and the top block.
//!
//! ```text
//! table:  data block … | bundle block | partition block | data block … | partition block | … | top block
//!         └────────────── partition 0 ─────────────────┘└────── partition 1 ───────────┘
//! ```
//!
//! A partition has a bundle block if one of its records has a bundle.
//!
//! Every block begins with the same five bytes:
//!
//! ```text
//! 0  u32  CRC32C of all that follows in the block
//! 4  u8   kind: 1 data, 2 partition, 3 top, 4 bundles
//! ```

mod bundles;
mod data;
mod filter;
mod index;
mod key_heads;

pub use bundles::{
    BUNDLE_BYTES_MAX, BUNDLE_EDIT_BYTES_MAX, Bundle, BundleEntry, BundleIndex, decode_bundle, encode_bundle,
    fingerprint,
};
pub use data::{DataBlock, DataBlockBuilder, KeyVersion, VersionKind};
pub use filter::Filter;
pub use index::{BlockHandle, Partition, PartitionBuilder, TopBuilder, TopIndex};
pub use key_heads::KeyHeads;

use crate::{Corrupt, FieldErrors, crc32c};

/// Bytes before a block's body: checksum and kind.
const FRAME_BYTES: usize = 5;

const DATA: u8 = 1;
const PARTITION: u8 = 2;
const TOP: u8 = 3;
const BUNDLES: u8 = 4;

const BAD_CHECKSUM: Corrupt = Corrupt::new(300, "table block checksum");
const BAD_KIND: Corrupt = Corrupt::new(301, "table block kind");
const BAD_DATA: Corrupt = Corrupt::new(302, "data block structure");
const BAD_ORDER: Corrupt = Corrupt::new(303, "data block order");
const BAD_INDEX: Corrupt = Corrupt::new(304, "index structure");
const BAD_FILTER: Corrupt = Corrupt::new(305, "filter structure");
const BAD_BUNDLES: Corrupt = Corrupt::new(307, "bundle block structure");

static DATA_FIELDS: FieldErrors = FieldErrors::all(BAD_DATA);
static BUNDLE_FIELDS: FieldErrors = FieldErrors::all(BAD_BUNDLES);
static INDEX_FIELDS: FieldErrors = FieldErrors::all(BAD_INDEX);

/// Fills the first five bytes of a block, which the builder has left free: kind, then checksum.
fn seal(block: &mut [u8], kind: u8) {
    block[4] = kind;
    let crc = crc32c(&block[4..]);
    block[..4].copy_from_slice(&crc.to_le_bytes());
}

/// Verifies the frame and returns the body.
fn open(block: &[u8], kind: u8) -> Result<&[u8], Corrupt> {
    let (crc, rest) = block.split_first_chunk::<4>().ok_or(BAD_CHECKSUM)?;
    if crc32c(rest) != u32::from_le_bytes(*crc) {
        return Err(BAD_CHECKSUM);
    }
    match rest.split_first() {
        Some((found, body)) if *found == kind => Ok(body),
        _ => Err(BAD_KIND),
    }
}

/// Length of the common prefix of two byte strings.
#[inline]
fn shared_len(a: &[u8], b: &[u8]) -> usize {
    let (wa, _) = a.as_chunks::<8>();
    let (wb, _) = b.as_chunks::<8>();
    let mut len = 0;
    for (x, y) in wa.iter().zip(wb) {
        let differ = u64::from_le_bytes(*x) ^ u64::from_le_bytes(*y);
        if differ != 0 {
            return len + (differ.trailing_zeros() / 8) as usize;
        }
        len += 8;
    }
    len + a[len..].iter().zip(&b[len..]).take_while(|(x, y)| x == y).count()
}
