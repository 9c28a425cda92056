//! Records of volumes with a door.
//!
//! ```text
//!  0   1  tag: 8; 9 with limits; 10 of a detached clone
//!  1   *  time at which it was made (zigzag varint, nanoseconds u32)
//!  *   *  local inode number of the root directory (varint)
//!  *   *  last seq at which anybody reads it; 0 while it lives (varint)
//!  *   *  its origin: number of the volume, 0 for none (varint)
//!  *   *  of an origin: seq (varint)
//!  *   *  tag 10, of an origin: seq at which it was released (varint)
//!  *   *  tags 9 and 10: limit of bytes of files and 1; 0 for none (varint)
//!  *   *  tags 9 and 10: limit of inodes and 1; 0 for none (varint)
//! ```
//!
//! Where a volume has no changes of its own, it shows its origin at that seq. A *detached* clone has all that
//! it shows in keys of its own: its origin is *released*, and only readers of seqs below that of the release
//! read on. When there are none any more, the record loses its origin.

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
    /// The first seq at which nothing of it is shown any more, if it is released.
    pub released_at: Option<Seq>,
}

impl VolumeOrigin {
    /// Whether a reader of a seq reads on in it.
    #[must_use]
    pub fn is_read_at(&self, at: Seq) -> bool {
        self.released_at.is_none_or(|released| at < released)
    }
}

/// The most that a volume may have. What it has beyond a limit stays, and no more is added.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct VolumeLimits {
    /// Bytes of files without holes, reserved bytes included: at most [`LIMIT_MAX`].
    pub bytes: Option<u64>,
    /// Inodes, its root and orphans included: at most [`LIMIT_MAX`].
    pub files: Option<u64>,
}

/// The highest limit of a volume: sums are signed 64-bit numbers.
pub const LIMIT_MAX: u64 = i64::MAX.cast_unsigned();

impl VolumeLimits {
    /// Whether there is a limit.
    #[must_use]
    pub fn is_some(&self) -> bool {
        *self != VolumeLimits::default()
    }
}

/// A limit as it is stored: one more, so that 0 is none.
fn stored(limit: Option<u64>) -> u64 {
    debug_assert!(limit.is_none_or(|limit| limit <= LIMIT_MAX), "whoever sets a limit has checked it");
    limit.map_or(0, |limit| limit + 1)
}

fn limit_of(stored: u64) -> Result<Option<u64>, Corrupt> {
    match stored.checked_sub(1) {
        Some(limit) if limit > LIMIT_MAX => Err(BAD_CONTENT),
        limit => Ok(limit),
    }
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
    /// Whether it is a clone that was detached. A file of it may say that it has more names than it has: the
    /// others were outside of the cloned directory.
    pub is_detached: bool,
    /// Its limits.
    pub limits: VolumeLimits,
}

impl DoorVolume {
    /// A new volume without an origin and limits. `root` is the local number of its root.
    #[must_use]
    pub fn new(made: InodeTime, root: u64) -> DoorVolume {
        let limits = VolumeLimits::default();
        DoorVolume { made, root, removed_at: None, origin: None, is_detached: false, limits }
    }

    /// Appends the record.
    pub fn encode(&self, out: &mut Vec<u8>) {
        debug_assert!(number::local(self.root).is_ok(), "a root has a local number");
        debug_assert!(self.removed_at != Some(Seq(0)), "no volume is removed from an empty map");
        debug_assert!(
            self.origin.is_none_or(|origin| origin.released_at.is_some() == self.is_detached),
            "the origin of a detached clone is released, and no other one"
        );
        let has_limits = self.is_detached || self.limits.is_some();
        out.push(if self.is_detached { 10 } else { 8 + u8::from(has_limits) });
        self.made.encode(out, 0);
        varint::put(out, self.root);
        varint::put(out, self.removed_at.map_or(0, |seq| seq.0));
        varint::put(out, self.origin.map_or(0, |origin| origin.volume.0.into()));
        if let Some(origin) = self.origin {
            varint::put(out, origin.seq.0);
            if let Some(released_at) = origin.released_at {
                varint::put(out, released_at.0);
            }
        }
        if has_limits {
            varint::put(out, stored(self.limits.bytes));
            varint::put(out, stored(self.limits.files));
        }
    }

    /// Decodes the record.
    ///
    /// # Errors
    /// Codes 401 to 404, 406, 412 and 414.
    pub fn decode(bytes: &[u8]) -> Result<DoorVolume, Corrupt> {
        let mut reader = Reader::new(bytes, &FIELDS);
        let (has_limits, is_detached) = match reader.u8()? {
            8 => (false, false),
            9 => (true, false),
            10 => (true, true),
            _ => return Err(BAD_TAG),
        };
        let made = InodeTime::decode(&mut reader, 0)?;
        let root = number::local(reader.varint()?)?;
        let removed_at = Some(Seq(reader.varint()?)).filter(|seq| *seq != Seq(0));
        let volume = u32::try_from(reader.varint()?).map(VolumeId).map_err(|_| BAD_CONTENT)?;
        let origin = match volume {
            VolumeId::POOL => None,
            volume if volume > VOLUME_MAX => return Err(BAD_CONTENT),
            volume => {
                let seq = Seq(reader.varint()?);
                let released_at = if is_detached { Some(Seq(reader.varint()?)) } else { None };
                // A clone is visible at seqs above that of its origin only.
                if released_at.is_some_and(|released_at| released_at <= seq) {
                    return Err(BAD_CONTENT);
                }
                Some(VolumeOrigin { volume, seq, released_at })
            }
        };
        let mut limits = VolumeLimits::default();
        if has_limits {
            limits = VolumeLimits { bytes: limit_of(reader.varint()?)?, files: limit_of(reader.varint()?)? };
            // Without limits such a record has tag 8: each value has one form.
            if !limits.is_some() && !is_detached {
                return Err(BAD_CONTENT);
            }
        }
        reader.end()?;
        Ok(DoorVolume { made, root, removed_at, origin, is_detached, limits })
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
        let first = DoorVolume {
            made,
            root: 1,
            removed_at: None,
            origin: None,
            is_detached: false,
            limits: VolumeLimits::default(),
        };
        first.encode(&mut out);
        assert_eq!(out, [8, 2, 2, 0, 0, 0, 1, 0, 0]);
        out.clear();
        let of = VolumeOrigin { volume: VolumeId(2), seq: Seq(300), released_at: None };
        let origin = Some(of);
        DoorVolume { removed_at: Some(Seq(7)), origin, ..first }.encode(&mut out);
        assert_eq!(out, [8, 2, 2, 0, 0, 0, 1, 7, 2, 0xac, 0x02]);
        out.clear();
        let limits = VolumeLimits { bytes: Some(300), files: None };
        DoorVolume { limits, origin, ..first }.encode(&mut out);
        assert_eq!(out, [9, 2, 2, 0, 0, 0, 1, 0, 2, 0xac, 0x02, 0xad, 0x02, 0]);
        out.clear();
        let limits = VolumeLimits { bytes: Some(0), files: Some(LIMIT_MAX) };
        DoorVolume { limits, ..first }.encode(&mut out);
        assert_eq!(DoorVolume::decode(&out).unwrap().limits, limits);
        out.clear();
        let origin = Some(VolumeOrigin { released_at: Some(Seq(301)), ..of });
        DoorVolume { origin, is_detached: true, ..first }.encode(&mut out);
        assert_eq!(out, [10, 2, 2, 0, 0, 0, 1, 0, 2, 0xac, 0x02, 0xad, 0x02, 0, 0]);
        out.clear();
        DoorVolume { is_detached: true, limits, ..first }.encode(&mut out);
        assert_eq!(out[..10], [10, 2, 2, 0, 0, 0, 1, 0, 0, 1]);
        assert_eq!(DoorVolume::decode(&out), Ok(DoorVolume { is_detached: true, limits, ..first }));
    }

    #[test]
    fn an_origin_that_was_released_before_the_clone_was_made_is_refused() {
        for (released_at, refused) in [(0, true), (7, true), (8, false)] {
            let bytes = [10, 2, 2, 0, 0, 0, 1, 0, 2, 7, released_at, 0, 0];
            assert_eq!(DoorVolume::decode(&bytes).is_err(), refused, "{released_at}");
        }
    }

    #[test]
    fn limits_that_are_none_or_too_large_are_refused() {
        for (limits, refused) in [(&[0, 0][..], true), (&[1, 0], false), (&[0, 1], false)] {
            let bytes = [&[9, 2, 2, 0, 0, 0, 1, 0, 0][..], limits].concat();
            assert_eq!(DoorVolume::decode(&bytes).is_err(), refused, "{limits:?}");
        }
        let mut bytes = vec![9, 2, 2, 0, 0, 0, 1, 0, 0];
        varint::put(&mut bytes, LIMIT_MAX + 2);
        bytes.push(0);
        assert_eq!(DoorVolume::decode(&bytes), Err(BAD_CONTENT));
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_fail(tag in 8_u8..11, bytes: Vec<u8>) {
            let bytes: Vec<u8> = std::iter::once(tag).chain(bytes).collect();
            if let Ok(record) = DoorVolume::decode(&bytes) {
                let mut out = Vec::new();
                record.encode(&mut out);
                prop_assert_eq!(&out, &bytes);
            }
        }
    }
}
