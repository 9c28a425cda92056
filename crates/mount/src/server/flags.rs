//! Flags of system calls, as our words; `None` for what there is no word for.

use fuser::RenameFlags;
use warpfire_fs::{AllocMode, FileKind, RenameMode, XattrMode};

/// The kind of file in the type bits of a mode.
pub(super) fn file_kind(mode: u32) -> Option<FileKind> {
    FileKind::new(((mode & libc::S_IFMT) >> 12) as u8)
}

pub(super) fn rename_mode(flags: RenameFlags) -> Option<RenameMode> {
    match flags {
        _ if flags.is_empty() => Some(RenameMode::Replace),
        RenameFlags::RENAME_NOREPLACE => Some(RenameMode::NoReplace),
        RenameFlags::RENAME_EXCHANGE => Some(RenameMode::Exchange),
        _ => None,
    }
}

pub(super) fn alloc_mode(flags: i32) -> Option<AllocMode> {
    const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    const ZERO_AND_KEEP: i32 = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
    match flags {
        0 => Some(AllocMode::Allocate),
        libc::FALLOC_FL_KEEP_SIZE => Some(AllocMode::KeepSize),
        PUNCH => Some(AllocMode::PunchHole),
        libc::FALLOC_FL_ZERO_RANGE => Some(AllocMode::ZeroRange { keep_size: false }),
        ZERO_AND_KEEP => Some(AllocMode::ZeroRange { keep_size: true }),
        _ => None,
    }
}

pub(super) fn xattr_mode(flags: i32) -> Option<XattrMode> {
    match flags {
        0 => Some(XattrMode::Either),
        libc::XATTR_CREATE => Some(XattrMode::Create),
        libc::XATTR_REPLACE => Some(XattrMode::Replace),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_type_bits_of_a_mode_name_a_kind() {
        assert_eq!(file_kind(libc::S_IFREG | 0o644), Some(FileKind::Regular));
        assert_eq!(file_kind(libc::S_IFIFO), Some(FileKind::Fifo));
        assert_eq!(file_kind(0o644), None);
    }

    #[test]
    fn flags_that_have_no_word_are_refused() {
        assert_eq!(rename_mode(RenameFlags::RENAME_WHITEOUT), None);
        assert_eq!(alloc_mode(libc::FALLOC_FL_PUNCH_HOLE), None, "a punch keeps the size");
        assert_eq!(xattr_mode(libc::XATTR_CREATE | libc::XATTR_REPLACE), None);
    }
}
