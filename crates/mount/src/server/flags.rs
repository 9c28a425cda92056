//! Flags of system calls as types of `warpfire_fs`; `None` for combinations that the filesystem does not
//! support.

use rustix::fs::{FallocateFlags, RenameFlags, XattrFlags};
use warpfire_fs::{AllocMode, FileKind, RenameMode, XattrMode};

/// The kind of file in the type bits of a mode.
pub(super) fn file_kind(mode: u32) -> Option<FileKind> {
    FileKind::new((mode >> 12) as u8 & 0o17)
}

pub(super) fn rename_mode(flags: RenameFlags) -> Option<RenameMode> {
    match flags {
        _ if flags.is_empty() => Some(RenameMode::Replace),
        RenameFlags::NOREPLACE => Some(RenameMode::NoReplace),
        RenameFlags::EXCHANGE => Some(RenameMode::Exchange),
        RenameFlags::WHITEOUT => Some(RenameMode::Whiteout),
        _ => None,
    }
}

pub(super) fn alloc_mode(flags: i32) -> Option<AllocMode> {
    const PUNCH: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);
    const ZERO_AND_KEEP: FallocateFlags = FallocateFlags::ZERO_RANGE.union(FallocateFlags::KEEP_SIZE);
    match FallocateFlags::from_bits_retain(flags.cast_unsigned()) {
        none if none.is_empty() => Some(AllocMode::Allocate),
        FallocateFlags::KEEP_SIZE => Some(AllocMode::KeepSize),
        PUNCH => Some(AllocMode::PunchHole),
        FallocateFlags::ZERO_RANGE => Some(AllocMode::ZeroRange { keep_size: false }),
        ZERO_AND_KEEP => Some(AllocMode::ZeroRange { keep_size: true }),
        _ => None,
    }
}

pub(super) fn xattr_mode(flags: u32) -> Option<XattrMode> {
    match XattrFlags::from_bits_retain(flags) {
        none if none.is_empty() => Some(XattrMode::Either),
        XattrFlags::CREATE => Some(XattrMode::Create),
        XattrFlags::REPLACE => Some(XattrMode::Replace),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::FileType;

    use super::*;

    #[test]
    fn the_type_bits_of_a_mode_name_a_kind() {
        assert_eq!(file_kind(FileType::RegularFile.as_raw_mode() | 0o644), Some(FileKind::Regular));
        assert_eq!(file_kind(FileType::Fifo.as_raw_mode()), Some(FileKind::Fifo));
        assert_eq!(file_kind(0o644), None);
    }

    #[test]
    fn unsupported_flags_are_refused() {
        assert_eq!(rename_mode(RenameFlags::WHITEOUT | RenameFlags::EXCHANGE), None);
        assert_eq!(
            alloc_mode(FallocateFlags::PUNCH_HOLE.bits().cast_signed()),
            None,
            "a punch keeps the size"
        );
        assert_eq!(xattr_mode((XattrFlags::CREATE | XattrFlags::REPLACE).bits()), None);
    }
}
