//! Attributes of files in requests and answers.

use crate::fields::{Answer, Fields, Malformed};
use crate::request::INodeNo;

/// Bits that say which fields of SETATTR are set.
mod valid {
    pub(super) const MODE: u32 = 1 << 0;
    pub(super) const UID: u32 = 1 << 1;
    pub(super) const GID: u32 = 1 << 2;
    pub(super) const SIZE: u32 = 1 << 3;
    pub(super) const ATIME: u32 = 1 << 4;
    pub(super) const MTIME: u32 = 1 << 5;
    pub(super) const ATIME_NOW: u32 = 1 << 7;
    pub(super) const MTIME_NOW: u32 = 1 << 8;
}

/// The fields that an answer to STATX has: those of stat(2), and the time of birth (`STATX_BASIC_STATS` and
/// `STATX_BTIME`).
const STATX_FIELDS: u32 = 0x7ff | 0x800;

/// The bits of a mode that have the kind, and the kind of a directory.
const KIND: u32 = 0o170_000;
const DIRECTORY: u32 = 0o040_000;

/// A time. Before 1970 the seconds are negative, and the nanoseconds count forward.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Time {
    /// Seconds since 1970-01-01T00:00:00Z.
    pub seconds: i64,
    /// Nanoseconds past `seconds`, below 1,000,000,000.
    pub nanos: u32,
}

/// A time to set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimeOrNow {
    /// The time of the change.
    Now,
    /// This time.
    At(Time),
}

/// Attributes of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileAttr {
    /// The inode.
    pub ino: INodeNo,
    /// Length in bytes.
    pub size: u64,
    /// Space taken, in units of 512 bytes.
    pub blocks: u64,
    /// Last access.
    pub atime: Time,
    /// Last change of the content.
    pub mtime: Time,
    /// Last change of content or attributes.
    pub ctime: Time,
    /// Birth.
    pub btime: Time,
    /// Kind and permissions, as in `st_mode`.
    pub mode: u32,
    /// Number of names.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device file, as the kernel encodes it in 32 bits.
    pub rdev: u32,
    /// Bytes that programs should read and write at a time.
    pub blksize: u32,
}

/// Attributes to change; `None` stays.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AttrChange {
    /// Permissions and kind.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length in bytes.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<TimeOrNow>,
    /// Last change of the content.
    pub mtime: Option<TimeOrNow>,
}

impl AttrChange {
    pub(crate) fn decode(body: &mut Fields<'_>) -> Result<AttrChange, Malformed> {
        let set = body.u32()?;
        let _padding = body.u32()?;
        let _handle = body.u64()?;
        let size = body.u64()?;
        let _lock_owner = body.u64()?;
        let [atime, mtime, _ctime] = [body.u64()?, body.u64()?, body.u64()?];
        let [atime_nanos, mtime_nanos, _ctime_nanos] = [body.u32()?, body.u32()?, body.u32()?];
        let mode = body.u32()?;
        let _unused = body.u32()?;
        let [uid, gid] = [body.u32()?, body.u32()?];
        let time = |is_set: u32, is_now: u32, seconds: u64, nanos: u32| match set & (is_set | is_now) {
            0 => None,
            bits if bits & is_now != 0 => Some(TimeOrNow::Now),
            _ => Some(TimeOrNow::At(Time { seconds: seconds.cast_signed(), nanos })),
        };
        Ok(AttrChange {
            mode: (set & valid::MODE != 0).then_some(mode),
            uid: (set & valid::UID != 0).then_some(uid),
            gid: (set & valid::GID != 0).then_some(gid),
            size: (set & valid::SIZE != 0).then_some(size),
            atime: time(valid::ATIME, valid::ATIME_NOW, atime, atime_nanos),
            mtime: time(valid::MTIME, valid::MTIME_NOW, mtime, mtime_nanos),
        })
    }
}

impl FileAttr {
    /// Attributes of an empty file that belongs to root, with one name. `mode` has its kind too.
    #[must_use]
    pub fn new(ino: INodeNo, mode: u32, time: Time) -> FileAttr {
        FileAttr {
            ino,
            size: 0,
            blocks: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            mode,
            links: if mode & KIND == DIRECTORY { 2 } else { 1 },
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
        }
    }

    /// Adds `struct fuse_attr`.
    pub(crate) fn encode(&self, answer: &mut Answer) {
        answer.u64(self.ino.0).u64(self.size).u64(self.blocks);
        let times = [self.atime, self.mtime, self.ctime];
        times.iter().for_each(|t| _ = answer.u64(t.seconds.cast_unsigned()));
        times.iter().for_each(|t| _ = answer.u32(t.nanos));
        answer.u32(self.mode).u32(self.links).u32(self.uid).u32(self.gid);
        answer.u32(self.rdev).u32(self.blksize);
        let flags = 0;
        answer.u32(flags);
    }

    /// Adds `struct fuse_statx`.
    pub(crate) fn encode_statx(&self, answer: &mut Answer) {
        let no_attributes = 0;
        answer.u32(STATX_FIELDS).u32(self.blksize).u64(no_attributes);
        answer.u32(self.links).u32(self.uid).u32(self.gid);
        answer.u16((self.mode & 0xffff) as u16).zeros(2);
        answer.u64(self.ino.0).u64(self.size).u64(self.blocks).u64(no_attributes);
        for time in [self.atime, self.btime, self.ctime, self.mtime] {
            answer.u64(time.seconds.cast_unsigned()).u32(time.nanos).zeros(4);
        }
        let (major, minor) = ((self.rdev >> 8) & 0xfff, (self.rdev & 0xff) | ((self.rdev >> 12) & 0xfff00));
        answer.u32(major).u32(minor);
        // The kernel fills in the device of the mount.
        answer.zeros(8);
        let spare = 14 * 8;
        answer.zeros(spare);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attr() -> FileAttr {
        FileAttr {
            size: 1,
            blocks: 8,
            atime: Time { seconds: -2, nanos: 800_000_000 },
            btime: Time { seconds: 5, nanos: 6 },
            uid: 2,
            gid: 3,
            ..FileAttr::new(INodeNo(7), 0o100_644, Time::default())
        }
    }

    #[test]
    fn attributes_have_the_length_that_the_kernel_expects() {
        let (mut plain, mut extended) = (Answer::default(), Answer::default());
        attr().encode(&mut plain);
        attr().encode_statx(&mut extended);
        assert_eq!((plain.as_slice().len(), extended.as_slice().len()), (88, 256));
        let seconds_of_atime = u64::from_ne_bytes(plain.as_slice()[24..32].try_into().unwrap());
        assert_eq!(seconds_of_atime.cast_signed(), -2, "times before 1970 are sent as they are");
    }

    #[test]
    fn only_the_attributes_with_their_bit_are_changed() {
        let mut message = Answer::default();
        message.u32(valid::SIZE | valid::ATIME | valid::MTIME | valid::MTIME_NOW).zeros(4);
        message.u64(0).u64(77).u64(0);
        message.u64((-2i64).cast_unsigned()).u64(9).u64(0).u32(800_000_000).u32(0).u32(0);
        message.u32(0o644).u32(0).u32(1).u32(2).u32(0);
        let change = AttrChange::decode(&mut Fields::new(message.as_slice())).unwrap();
        let atime = Time { seconds: -2, nanos: 800_000_000 };
        let expected = AttrChange {
            size: Some(77),
            atime: Some(TimeOrNow::At(atime)),
            mtime: Some(TimeOrNow::Now),
            ..AttrChange::default()
        };
        assert_eq!(change, expected);
        assert_eq!(AttrChange::decode(&mut Fields::new(&message.as_slice()[..80])), Err(Malformed));
    }
}
