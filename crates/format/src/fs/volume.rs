//! Records of volumes with a door.
//!
//! ```text
//!  0   1  tag, 8
//!  1   *  time at which it was made (zigzag varint, nanoseconds u32)
//!  *   *  local inode number of the root directory (varint)
//!  *   *  last seq at which anybody reads it; 0 while it lives (varint)
//!  *   *  its origin: number of the volume, 0 for none (varint)
//!  *   *  of an origin: seq (varint)
//! ```
//!
//! Where a volume has no changes of its own, it shows its origin at that seq.

use warpfire_units::Seq;

use super::{BAD_CONTENT, BAD_TAG, FIELDS, InodeTime, VOLUME_MAX, VolumeId, number};
use crate::{Corrupt, Reader, varint};

/// The version of a volume that another one shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VolumeOrigin {
    /// The volume below.
    pub volume: VolumeId,
    /// The seq at which it is shown.
    pub seq: Seq,
}

/// The record of a volume with a door. Its key has the number of the volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DoorVolume {
    /// The time at which it was made.
    pub made: InodeTime,
    /// Local inode number of the root directory.
    pub root: u64,
    /// The last seq at which anybody reads it, if it is removed.
    pub removed_at: Option<Seq>,
    /// Its origin.
    pub origin: Option<VolumeOrigin>,
}

impl DoorVolume {
    /// Appends the record.
    pub fn encode(&self, out: &mut Vec<u8>) {
        debug_assert!(number::local(self.root).is_ok(), "a root has a local number");
        debug_assert!(self.removed_at != Some(Seq(0)), "no volume is removed from an empty map");
        out.push(8);
        self.made.encode(out, 0);
        varint::put(out, self.root);
        varint::put(out, self.removed_at.map_or(0, |seq| seq.0));
        varint::put(out, self.origin.map_or(0, |origin| origin.volume.0.into()));
        if let Some(origin) = self.origin {
            varint::put(out, origin.seq.0);
        }
    }

    /// Decodes the record.
    ///
    /// # Errors
    /// Codes 401 to 404, 406, 412 and 414.
    pub fn decode(bytes: &[u8]) -> Result<DoorVolume, Corrupt> {
        let mut reader = Reader::new(bytes, &FIELDS);
        if reader.u8()? != 8 {
            return Err(BAD_TAG);
        }
        let made = InodeTime::decode(&mut reader, 0)?;
        let root = number::local(reader.varint()?)?;
        let removed_at = Some(Seq(reader.varint()?)).filter(|seq| *seq != Seq(0));
        let volume = u32::try_from(reader.varint()?).map(VolumeId).map_err(|_| BAD_CONTENT)?;
        let origin = match volume {
            VolumeId::POOL => None,
            volume if volume > VOLUME_MAX => return Err(BAD_CONTENT),
            volume => Some(VolumeOrigin { volume, seq: Seq(reader.varint()?) }),
        };
        reader.end()?;
        Ok(DoorVolume { made, root, removed_at, origin })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden_bytes() {
        let made = InodeTime { seconds: 1, nanos: 2 };
        let mut out = Vec::new();
        let first = DoorVolume { made, root: 1, removed_at: None, origin: None };
        first.encode(&mut out);
        assert_eq!(out, [8, 2, 2, 0, 0, 0, 1, 0, 0]);
        out.clear();
        let origin = Some(VolumeOrigin { volume: VolumeId(2), seq: Seq(300) });
        DoorVolume { removed_at: Some(Seq(7)), origin, ..first }.encode(&mut out);
        assert_eq!(out, [8, 2, 2, 0, 0, 0, 1, 7, 2, 0xac, 0x02]);
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_fail(bytes: Vec<u8>) {
            let bytes: Vec<u8> = std::iter::once(8).chain(bytes).collect();
            if let Ok(record) = DoorVolume::decode(&bytes) {
                let mut out = Vec::new();
                record.encode(&mut out);
                prop_assert_eq!(&out, &bytes);
            }
        }
    }
}
