//! Conversion of attributes and times between `warpfire_fs` and the kernel's protocol.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, INodeNo, TimeOrNow};
use warpfire_env::Timestamp;
use warpfire_fs::{Attr, FileKind, SetTime};

/// `st_blksize`, in bytes: the size that programs should read and write at a time. One block.
const BLOCK_SIZE_HINT: u32 = 4096;

pub(crate) fn file_attr(attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(attr.ino),
        size: attr.size_bytes,
        blocks: attr.allocated_bytes.div_ceil(512),
        atime: system_time(attr.atime),
        mtime: system_time(attr.mtime),
        ctime: system_time(attr.ctime),
        crtime: system_time(attr.btime),
        kind: file_type(attr.kind),
        perm: (attr.mode & 0o7777) as u16,
        nlink: attr.links,
        uid: attr.uid,
        gid: attr.gid,
        // The kernel's 32 bits of a device number are the low ones of `dev_t`.
        rdev: attr.rdev as u32,
        blksize: BLOCK_SIZE_HINT,
        flags: 0,
    }
}

/// Attributes of inode 0. In the protocol they mean that the name does not exist.
pub(crate) fn negative_entry() -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: BLOCK_SIZE_HINT,
        flags: 0,
    }
}

pub(crate) fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Regular => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
    }
}

pub(crate) fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(at) => SetTime::At(received_time(at)),
    }
}

fn system_time(at: Timestamp) -> SystemTime {
    let nanos = Duration::from_nanos(at.nanos.into());
    let whole = match u64::try_from(at.seconds) {
        Ok(after) => UNIX_EPOCH.checked_add(Duration::from_secs(after)),
        Err(_) => UNIX_EPOCH.checked_sub(Duration::from_secs(at.seconds.unsigned_abs())),
    };
    whole.and_then(|t| t.checked_add(nanos)).unwrap_or(UNIX_EPOCH)
}

/// The time that the kernel sent.
///
/// Before 1970 the kernel's nanoseconds count forward from the second, but the transport subtracts them. So
/// the magnitudes of the received time are the kernel's numbers: this takes them as they are and negates the
/// seconds.
fn received_time(at: SystemTime) -> Timestamp {
    match at.duration_since(UNIX_EPOCH) {
        Ok(after) => Timestamp { seconds: signed(after.as_secs()), nanos: after.subsec_nanos() },
        Err(e) => {
            let before = e.duration();
            Timestamp { seconds: -signed(before.as_secs()), nanos: before.subsec_nanos() }
        }
    }
}

fn signed(seconds: u64) -> i64 {
    i64::try_from(seconds).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_are_sent_as_they_are() {
        let at = Timestamp { seconds: -2, nanos: 800_000_000 };
        assert_eq!(system_time(at), UNIX_EPOCH - Duration::from_millis(1200));
        assert_eq!(system_time(Timestamp { seconds: 5, nanos: 7 }), UNIX_EPOCH + Duration::new(5, 7));
    }

    #[test]
    fn times_before_1970_are_received_as_the_kernel_meant_them() {
        let kernel_says = Timestamp { seconds: -2, nanos: 800_000_000 };
        let transport_makes_it = UNIX_EPOCH - Duration::new(2, 800_000_000);
        assert_eq!(received_time(transport_makes_it), kernel_says);
        assert_eq!(received_time(UNIX_EPOCH + Duration::new(5, 7)), Timestamp { seconds: 5, nanos: 7 });
    }
}
