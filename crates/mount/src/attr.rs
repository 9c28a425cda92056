//! Conversion of attributes and times between `warpfire_fs` and the kernel's protocol.

use warpfire_env::Timestamp;
use warpfire_fs::{Attr, SetTime};
use warpfire_fuse::{FileAttr, INodeNo, Time, TimeOrNow};

/// `st_blksize`, in bytes: the size that programs should read and write at a time. One block.
const BLOCK_SIZE_HINT: u32 = 4096;

pub(crate) fn file_attr(attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(attr.ino),
        size: attr.size_bytes,
        blocks: attr.allocated_bytes.div_ceil(512),
        atime: sent_time(attr.atime),
        mtime: sent_time(attr.mtime),
        ctime: sent_time(attr.ctime),
        btime: sent_time(attr.btime),
        mode: u32::from(attr.kind as u8) << 12 | (attr.mode & 0o7777),
        links: attr.links,
        uid: attr.uid,
        gid: attr.gid,
        // The kernel's 32 bits of a device number are the low ones of `dev_t`.
        rdev: attr.rdev as u32,
        blksize: BLOCK_SIZE_HINT,
    }
}

pub(crate) fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::At(at) => SetTime::At(Timestamp { seconds: at.seconds, nanos: at.nanos }),
    }
}

fn sent_time(at: Timestamp) -> Time {
    Time { seconds: at.seconds, nanos: at.nanos }
}
