//! The negotiation at the start of a connection: version, features and limits.

use std::io;

use crate::fields::{Answer, Fields, Malformed};

/// The version of the protocol that this crate speaks.
pub(crate) const MAJOR: u32 = 7;
const MINOR: u32 = 39;

/// The oldest version whose messages have the layouts that this crate knows: Linux 4.20.
const MINOR_MIN: u32 = 28;

/// Bytes of the longest request before its data: the headers of a WRITE, rounded up.
const HEADERS_BYTES: usize = 4096;

/// The least bytes that the kernel wants an entry of a queue to have beside its header.
const PAYLOAD_BYTES_MIN: usize = 8192;

/// Features of the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InitFlags(u64);

impl InitFlags {
    /// None.
    pub const NONE: InitFlags = InitFlags(0);
    /// All that there may be.
    pub const ALL: InitFlags = InitFlags(u64::MAX);
    /// Several reads of one file at a time.
    pub const ASYNC_READ: InitFlags = InitFlags(1 << 0);
    /// Writes longer than a page.
    const BIG_WRITES: InitFlags = InitFlags(1 << 5);
    /// The server applies the umask.
    pub const DONT_MASK: InitFlags = InitFlags(1 << 6);
    /// READDIRPLUS instead of READDIR.
    pub const DO_READDIRPLUS: InitFlags = InitFlags(1 << 13);
    /// The parts of a long direct read or write are sent at once.
    pub const ASYNC_DIO: InitFlags = InitFlags(1 << 15);
    /// Lookups and listings of one directory at the same time.
    pub const PARALLEL_DIROPS: InitFlags = InitFlags(1 << 18);
    /// The kernel checks permissions by access control list.
    pub const POSIX_ACL: InitFlags = InitFlags(1 << 20);
    /// The answer names the longest request in pages.
    const MAX_PAGES: InitFlags = InitFlags(1 << 22);
    /// The targets of symbolic links are cached.
    pub const CACHE_SYMLINKS: InitFlags = InitFlags(1 << 23);
    /// The server clears set-id bits and capabilities, at each write, truncation and change of owner.
    pub const HANDLE_KILLPRIV_V2: InitFlags = InitFlags(1 << 28);
    /// SETXATTR says whether the change of an access control list clears the set-group-id bit.
    pub const SETXATTR_EXT: InitFlags = InitFlags(1 << 29);
    /// There are more than 32 features.
    const INIT_EXT: InitFlags = InitFlags(1 << 30);
    /// Shared mappings of files that are opened as `FopenFlags::DIRECT_IO`. A kernel that offers it (Linux
    /// 6.6) drops its pages of a range before it sends a write that goes past them.
    pub const DIRECT_IO_ALLOW_MMAP: InitFlags = InitFlags(1 << 36);
    /// Requests come by queues (`queue`).
    pub(crate) const OVER_IO_URING: InitFlags = InitFlags(1 << 41);

    /// The features in either.
    #[must_use]
    pub const fn union(self, other: InitFlags) -> InitFlags {
        InitFlags(self.0 | other.0)
    }

    /// The features in both.
    #[must_use]
    pub const fn intersection(self, other: InitFlags) -> InitFlags {
        InitFlags(self.0 & other.0)
    }

    /// The features that the other does not have.
    #[must_use]
    pub const fn difference(self, other: InitFlags) -> InitFlags {
        InitFlags(self.0 & !other.0)
    }

    /// Whether all features of the other are here.
    #[must_use]
    pub const fn contains(self, other: InitFlags) -> bool {
        self.0 & other.0 == other.0
    }
}

/// The settings of a connection. The filesystem changes them in [`Filesystem::init`].
///
/// [`Filesystem::init`]: crate::Filesystem::init
#[derive(Clone, Debug)]
pub struct KernelConfig {
    offered: InitFlags,
    max_readahead: u32,
    /// Features to use. Those that the kernel does not offer are left out.
    pub wanted: InitFlags,
    /// Largest write and largest read, in bytes.
    pub max_write: u32,
    /// Requests that the kernel sends without waiting for answers: readahead and direct I/O.
    pub max_background: u16,
    /// Threads that serve queues of requests over io_uring, if the kernel has them; at least one for each
    /// processor is best. With 0, all requests come by `/dev/fuse`.
    pub queue_threads: usize,
}

/// The kernel's first request.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Offer {
    /// It speaks this version, with these features and this readahead.
    Version { features: InitFlags, max_readahead: u32 },
    /// It also speaks a newer major version. It asks again after an answer with this one.
    NewerMajor,
    /// It speaks only an older version.
    TooOld,
}

impl Offer {
    pub(crate) fn decode(body: &mut Fields<'_>) -> Result<Offer, Malformed> {
        let (major, minor) = (body.u32()?, body.u32()?);
        if major > MAJOR {
            return Ok(Offer::NewerMajor);
        }
        if major < MAJOR || minor < MINOR_MIN {
            return Ok(Offer::TooOld);
        }
        let max_readahead = body.u32()?;
        let low = InitFlags(body.u32()?.into());
        let high = if low.contains(InitFlags::INIT_EXT) { body.u32()? } else { 0 };
        Ok(Offer::Version { features: low.union(InitFlags(u64::from(high) << 32)), max_readahead })
    }
}

impl KernelConfig {
    pub(crate) fn new(offered: InitFlags, max_readahead: u32) -> KernelConfig {
        KernelConfig {
            offered,
            max_readahead,
            wanted: InitFlags::NONE,
            max_write: 128 << 10,
            max_background: 16,
            queue_threads: 0,
        }
    }

    /// The features that the kernel offers.
    #[must_use]
    pub fn offered(&self) -> InitFlags {
        self.offered
    }

    /// Bytes of the longest request.
    pub(crate) fn message_bytes_max(&self) -> usize {
        self.max_write as usize + HEADERS_BYTES
    }

    /// The features that both sides use.
    pub(crate) fn features(&self) -> InitFlags {
        let own = InitFlags::BIG_WRITES.union(InitFlags::MAX_PAGES).union(InitFlags::INIT_EXT);
        self.wanted.union(own).intersection(self.offered)
    }

    /// Pages of the longest read or write.
    fn pages(&self) -> usize {
        (self.max_write as usize).max(self.max_readahead as usize).div_ceil(rustix::param::page_size())
    }

    /// The bytes that the kernel wants an entry of a queue to have beside its header.
    pub(crate) fn payload_bytes(&self) -> usize {
        (self.max_write as usize).max(self.pages() * rustix::param::page_size()).max(PAYLOAD_BYTES_MIN)
    }

    pub(crate) fn encode(&self, answer: &mut Answer) {
        let features = self.features();
        let pages = self.pages();
        answer.u32(MAJOR).u32(MINOR).u32(self.max_readahead);
        let congested = self.max_background / 4 * 3;
        let (nanosecond, unused) = (1, 0);
        answer
            .u32((features.0 & 0xffff_ffff) as u32)
            .u16(self.max_background)
            .u16(congested)
            .u32(self.max_write)
            .u32(nanosecond)
            .u16(u16::try_from(pages).unwrap_or(u16::MAX))
            .u16(unused)
            .u32((features.0 >> 32) as u32)
            .zeros(7 * 4);
    }
}

/// The refusal of a kernel that is too old.
pub(crate) fn too_old() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "the kernel's FUSE is too old; use Linux 4.20 or later")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_names_only_features_that_the_kernel_offers() {
        let mut config = KernelConfig::new(InitFlags::ASYNC_READ.union(InitFlags::BIG_WRITES), 4096);
        config.wanted = InitFlags::ASYNC_READ.union(InitFlags::POSIX_ACL);
        let mut answer = Answer::default();
        config.encode(&mut answer);
        let bytes = answer.as_slice();
        assert_eq!(bytes.len(), 64, "the kernel expects this length");
        let features = u32::from_ne_bytes(bytes[12..16].try_into().unwrap());
        assert_eq!(features, (1 << 0) | (1 << 5));
    }

    #[test]
    fn versions_are_told_apart() {
        let decode = |fields: &[u32]| {
            let bytes: Vec<u8> = fields.iter().flat_map(|field| field.to_ne_bytes()).collect();
            Offer::decode(&mut Fields::new(&bytes))
        };
        assert_eq!(decode(&[8, 0]), Ok(Offer::NewerMajor));
        assert_eq!(decode(&[7, 20, 0, 0]), Ok(Offer::TooOld));
        let extended = InitFlags::INIT_EXT.union(InitFlags(1 << 33));
        let offer = Offer::Version { features: extended, max_readahead: 9 };
        assert_eq!(decode(&[7, 45, 9, 1 << 30, 2]), Ok(offer));
        assert_eq!(decode(&[7, 45, 9, 1 << 30]), Err(Malformed));
    }
}
