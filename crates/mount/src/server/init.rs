//! Protocol settings that are negotiated with the kernel when a mount begins, and the reason for each.

use std::io;

use warpfire_fuse::{InitFlags, KernelConfig};

use crate::options::PermissionChecks;

/// Largest write and largest read, in bytes: the kernel's limit of 256 pages.
pub(super) const WRITE_BYTES_MAX: u32 = 1 << 20;

/// Requests that the kernel may send without waiting for answers: readahead and direct I/O.
const BACKGROUND_MAX: u16 = 64;

/// Features to use if the kernel has them:
/// - parallel lookups and listings of one directory;
/// - reads and direct I/O that do not wait for each other;
/// - cached targets of symbolic links;
/// - the umask applied by the server, because a default access control list overrides it;
/// - set-id bits and capabilities cleared by the server, at each write, truncation and change of owner.
///   Otherwise the kernel reads `security.capability` before every write;
/// - the kernel's decision whether a new access control list clears the set-group-id bit.
///
/// Features not to use: truncation as part of OPEN, because OPEN is answered in few mounts only; file locks,
/// because the kernel does them itself while all users are on one machine; the writeback cache, because it
/// makes small files slower.
const WANTED: InitFlags = InitFlags::PARALLEL_DIROPS
    .union(InitFlags::ASYNC_READ)
    .union(InitFlags::ASYNC_DIO)
    .union(InitFlags::CACHE_SYMLINKS)
    .union(InitFlags::DONT_MASK)
    .union(InitFlags::HANDLE_KILLPRIV_V2)
    .union(InitFlags::SETXATTR_EXT);

/// The detail in which a listing describes files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ListingDetail {
    /// Name and kind. For a view: everything that it sends counts as read, so with attributes a listing would
    /// conflict with every change of a listed file.
    NamesOnly,
    /// Attributes too. They come with the name in the same read, and save a LOOKUP for each file.
    WithAttributes,
}

/// Sets the protocol's features and limits. `queue_threads` threads take requests by io_uring if the kernel
/// has that; with 0, all come by `/dev/fuse`.
///
/// # Errors
/// `Unsupported` if the kernel cannot check permissions by access control list, and this mount rests on it.
pub(super) fn configure(
    config: &mut KernelConfig,
    checks: PermissionChecks,
    detail: ListingDetail,
    queue_threads: usize,
) -> io::Result<()> {
    let mut wanted = WANTED;
    if detail == ListingDetail::WithAttributes {
        wanted = wanted.union(InitFlags::DO_READDIRPLUS);
    } else {
        // In a view the parts of a long direct write come one after the other, so that appends know their
        // order.
        wanted = wanted.difference(InitFlags::ASYNC_DIO);
    }
    if checks == PermissionChecks::Kernel {
        // With this flag the kernel checks permissions by mode and by access control list.
        wanted = wanted.union(InitFlags::POSIX_ACL);
    }
    check_offer(checks, config.offered())?;
    config.wanted = wanted;
    config.max_write = WRITE_BYTES_MAX;
    config.max_background = BACKGROUND_MAX;
    config.queue_threads = queue_threads;
    Ok(())
}

/// The server repeats none of the kernel's checks, so a mount for several users fails without them.
fn check_offer(checks: PermissionChecks, offered: InitFlags) -> io::Result<()> {
    if checks == PermissionChecks::RootOnly || offered.contains(InitFlags::POSIX_ACL) {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::Unsupported,
        "this kernel does not check access control lists for FUSE; mount as root without allow_other, or use \
         Linux 4.9 or later",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checked_mount_is_refused_if_the_kernel_does_not_check() {
        let offered = InitFlags::ALL.difference(InitFlags::POSIX_ACL);
        assert!(check_offer(PermissionChecks::Kernel, offered).is_err());
        assert!(check_offer(PermissionChecks::Kernel, InitFlags::ALL).is_ok());
        assert!(check_offer(PermissionChecks::RootOnly, offered).is_ok());
    }
}
