//! What is agreed with the kernel when a mount begins, and why.

use fuser::{InitFlags, KernelConfig};

use crate::options::PermissionChecks;

/// Largest write, and largest read: the kernel's limit of 256 pages.
const WRITE_BYTES_MAX: u32 = 1 << 20;

/// Requests that the kernel may send without waiting for answers: readahead, and direct I/O.
const BACKGROUND_MAX: u16 = 64;

/// Wanted where the kernel has it:
/// - parallel lookups and listings of one directory;
/// - reads and direct I/O without waiting for each other;
/// - cached targets of symbolic links;
/// - the umask to us, because a default list overrides it;
/// - set-id bits and capabilities taken away by us, at each write, truncation and change of owner: without it
///   the kernel asks for `security.capability` before every write.
///
/// Not wanted: truncation as part of OPEN, since there is no OPEN to be part of; locks, which the kernel does well
/// by itself when all users are on one machine; the writeback cache, which makes small files slower.
const WANTED: InitFlags = InitFlags::FUSE_PARALLEL_DIROPS
    .union(InitFlags::FUSE_ASYNC_READ)
    .union(InitFlags::FUSE_ASYNC_DIO)
    .union(InitFlags::FUSE_CACHE_SYMLINKS)
    .union(InitFlags::FUSE_DONT_MASK)
    .union(InitFlags::FUSE_HANDLE_KILLPRIV_V2);

/// What a listing tells of the files that it names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ListingDetail {
    /// Their kinds. In a view, where all that is told counts as seen: who asked only for names does not conflict with who changes a file.
    NamesOnly,
    /// Their attributes too: a name's inode comes with it, while a lookup later costs a request.
    WithAttributes,
}

/// Settles a mount's protocol.
pub(super) fn configure(config: &mut KernelConfig, checks: PermissionChecks, detail: ListingDetail) {
    let mut wanted = WANTED;
    if detail == ListingDetail::WithAttributes {
        wanted |= InitFlags::FUSE_DO_READDIRPLUS;
    }
    if checks == PermissionChecks::Kernel {
        // With this the kernel checks permissions, by mode and list.
        wanted |= InitFlags::FUSE_POSIX_ACL;
    }
    let offered = config.capabilities();
    config.add_capabilities(wanted & offered).expect("no more is asked for than is offered");
    config.set_max_write(WRITE_BYTES_MAX).expect("1 MiB is a size that the transport has");
    config.set_max_background(BACKGROUND_MAX).expect("the limit is not zero");
}
