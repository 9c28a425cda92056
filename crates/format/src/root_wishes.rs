//! The wishes of a pool in a root: the part of its configuration that is about older segments and free space.
//!
//! ```text
//!  0   8  id of the first segment that was made for the root's k + m
//!  8   2  devices that are to be kept free
//! 10   1  parity columns with which an older segment is complete, at most 8
//! 11   1  flags: bit 0 convert
//! 12  12  zero
//! ```
//! Little-endian. A root without wishes has no such bytes.

use warpfire_units::PARITY_MAX;

use crate::decode::only_zeroes;
use crate::{Corrupt, Reader};

pub(crate) const WISHES_BYTES: usize = 24;

pub(crate) const WISHES: Corrupt = Corrupt::new(113, "root with impossible wishes");

const CONVERT: u8 = 1;

/// Most devices' worth of space that a pool can keep free.
pub const SPARE_SPACE_MAX: u16 = 250;

/// What a pool wishes for older segments and for its free space. Without a wish all fields are zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RootWishes {
    /// The first segment that was made for the k and m of the root. Older ones may have another shape.
    pub shape_since: u64,
    /// The parity columns with which a segment is complete that is older than `shape_since`: the fewest that
    /// the pool has ever asked for. Zero if there are no older ones.
    pub older_parity: u8,
    /// Whether the segments that are older than `shape_since` are to get the k and m of the root.
    pub converts: bool,
    /// The pool keeps as much space free as so many of its devices have, for the columns of lost devices.
    pub spare_space: u16,
}

impl RootWishes {
    /// No wish.
    pub const NONE: RootWishes =
        RootWishes { shape_since: 0, older_parity: 0, converts: false, spare_space: 0 };

    /// Whether a reader takes these wishes.
    #[must_use]
    pub fn is_possible(&self) -> bool {
        let names_older = self.converts || self.older_parity > 0;
        usize::from(self.older_parity) <= PARITY_MAX
            && self.spare_space <= SPARE_SPACE_MAX
            && (self.shape_since > 0 || !names_older)
    }

    pub(crate) fn encode(&self, out: &mut [u8]) {
        out[..8].copy_from_slice(&self.shape_since.to_le_bytes());
        out[8..10].copy_from_slice(&self.spare_space.to_le_bytes());
        out[10] = self.older_parity;
        out[11] = if self.converts { CONVERT } else { 0 };
    }

    pub(crate) fn decode(c: &mut Reader<'_>) -> Result<RootWishes, Corrupt> {
        let (shape_since, spare_space) = (c.u64()?, c.u16()?);
        let (older_parity, flags) = (c.u8()?, c.u8()?);
        only_zeroes(&c.array::<12>()?, WISHES)?;
        let wishes = RootWishes { shape_since, older_parity, converts: flags & CONVERT != 0, spare_space };
        // Without a wish a root has no bytes for them, so each root has one encoding.
        if flags & !CONVERT != 0 || wishes == RootWishes::NONE || !wishes.is_possible() {
            return Err(WISHES);
        }
        Ok(wishes)
    }
}
