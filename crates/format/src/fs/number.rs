//! Inode numbers of a pool with several volumes.
//!
//! Keys and records have *local* numbers. A *number* without that word has the volume too, so it is unique in
//! the pool, and is what callers and `st_ino` see.
//!
//! ```text
//! number:  volume - 1, 16 bits | local number, 44 bits
//! stored:  in a record of the same volume     0 | local number
//!          in a record of another volume     volume | local number
//! ```
//!
//! The first volume has the numbers that are equal to their local numbers. A clone reads records of its
//! origin, and their local numbers are numbers of the clone there.

use super::{BAD_INO, VolumeId};
use crate::Corrupt;

const LOCAL_BITS: u32 = 44;

/// The largest local number.
pub const LOCAL_INO_MAX: u64 = (1 << LOCAL_BITS) - 1;

/// The last volume of which inodes have a number.
pub const VOLUME_MAX: VolumeId = VolumeId((1 << 16) - 1);

/// The largest number.
pub const INO_MAX: u64 = (1 << 60) - 1;

/// The number of an inode of a volume.
#[must_use]
pub fn number_in(volume: VolumeId, local: u64) -> u64 {
    debug_assert!(VolumeId::POOL < volume && volume <= VOLUME_MAX, "inodes are in volumes");
    u64::from(volume.0.saturating_sub(1)) << LOCAL_BITS | local & LOCAL_INO_MAX
}

/// The volume of an inode.
#[must_use]
pub fn volume_of(number: u64) -> VolumeId {
    VolumeId(u32::try_from(number >> LOCAL_BITS).map_or(0, |volume| volume + 1))
}

/// The number of an inode in its volume.
#[must_use]
pub fn local_of(number: u64) -> u64 {
    number & LOCAL_INO_MAX
}

/// A number as a record of `volume` has it.
#[must_use]
pub fn stored_in(volume: VolumeId, number: u64) -> u64 {
    match volume_of(number) {
        own if own == volume => local_of(number),
        other => u64::from(other.0) << LOCAL_BITS | local_of(number),
    }
}

/// The number that a record of `volume` stores like this.
#[must_use]
pub fn number_from(volume: VolumeId, stored: u64) -> u64 {
    match stored >> LOCAL_BITS {
        0 => number_in(volume, stored),
        other => number_in(VolumeId(u32::try_from(other).unwrap_or(VOLUME_MAX.0)), stored),
    }
}

/// Checks a local number.
pub(super) fn local(ino: u64) -> Result<u64, Corrupt> {
    if ino == 0 || ino > LOCAL_INO_MAX { Err(BAD_INO) } else { Ok(ino) }
}

/// Checks the stored number of a directory, which may be in another volume.
pub(super) fn stored(ino: u64) -> Result<u64, Corrupt> {
    local(local_of(ino)).map(|_| ino)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_goes_into_a_record_and_comes_back() {
        for volume in [VolumeId::FIRST, VolumeId(2), VOLUME_MAX] {
            for local in [1, 7, LOCAL_INO_MAX] {
                let number = number_in(volume, local);
                assert_eq!((volume_of(number), local_of(number)), (volume, local));
                assert_eq!(stored_in(volume, number), local, "its own volume is left out");
                for record in [VolumeId::FIRST, VolumeId(3), VOLUME_MAX] {
                    let stored = stored_in(record, number);
                    assert_eq!(number_from(record, stored), number);
                    assert_eq!(stored <= LOCAL_INO_MAX, record == volume);
                }
            }
        }
        assert!(number_in(VOLUME_MAX, LOCAL_INO_MAX) <= INO_MAX);
        assert_eq!(number_in(VolumeId::FIRST, 5), 5);
        assert_eq!(number_in(VolumeId(2), 5), 1 << 44 | 5);
        assert_eq!(number_from(VolumeId(9), 1 << 44 | 5), 5, "volume 1 in a record of another one");
    }

    #[test]
    fn numbers_of_no_inode_are_refused() {
        assert!(local(0).is_err() && local(LOCAL_INO_MAX + 1).is_err());
        assert!(stored(1 << 44).is_err() && stored(0).is_err());
        assert_eq!(stored(1 << 44 | 1).unwrap(), 1 << 44 | 1);
    }
}
