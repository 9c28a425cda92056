//! Every limit of this room.

/// Largest file, in bytes: offsets are signed 64-bit at every door.
pub const FILE_BYTES_MAX: u64 = i64::MAX.cast_unsigned();

/// Largest file that is read as a whole into one buffer.
pub const WHOLE_FILE_BYTES_MAX: usize = 4 << 30;

/// Longest path, its final NUL left out.
pub const PATH_BYTES_MAX: usize = 4095;

/// Longest target of a symbolic link.
pub const TARGET_BYTES_MAX: usize = 4095;

/// Symbolic links followed on one path.
pub const SYMLINKS_MAX: u32 = 40;

/// Directories within each other: far deeper than any path reaches, so more is a circle.
pub const DEPTH_MAX: u32 = 1 << 20;

/// Names of one file.
pub const LINKS_MAX: u32 = i32::MAX.cast_unsigned();

/// Longest value of an extended attribute.
pub const XATTR_BYTES_MAX: usize = warpfire_format::fs::XATTR_BYTES_MAX;

/// Longest answer of `listxattr`, as on Linux.
pub const XATTR_LIST_BYTES_MAX: usize = 64 << 10;

/// A write up to this length rides in its commit; a longer one goes to the slice store first.
pub const INLINE_BYTES_MAX: usize = 32 << 10;

/// Regions that one commit may delete or rewrite: 2^18 keys of 21 bytes with some 20 bytes of value are 10 MB of batch.
pub const REGIONS_PER_COMMIT: usize = 1 << 18;

/// Up to this many regions are deleted without asking which exist.
pub const REGIONS_BLIND_MAX: u64 = 16;

/// Regions deleted by one step of removing a file that has no name any more.
pub const ORPHAN_STEP_REGIONS: usize = 4096;

/// Inode numbers reserved at a time.
pub const INO_BLOCK: u64 = 1 << 20;

/// Edits of a small file or of a region after which they are folded, so that reading never meets a long history ...
pub const EDITS_MAX: u32 = 64;

/// ... and one more for this many bytes that the fold would copy, so that many small appends stay linear.
pub const EDIT_PER_BYTES: u32 = 256;

/// Bytes riding in a region's history after which they are written out as a slice.
pub const REGION_INLINE_BYTES_MAX: u32 = 64 << 10;

/// A read strains a region if it meets at least this many pieces there ...
pub const DEFRAGMENT_PIECES_MIN: usize = 8;

/// ... of less than this on average. Reading a file in order took 1.1 times as long when it was cut into pieces of 32 KiB, 1.6 times with 16 KiB and
/// 3.8 times with 8 KiB.
pub const DEFRAGMENT_PIECE_BYTES_MAX: u64 = 24 << 10;

/// Gathering must leave so many times fewer pieces: holes keep them apart.
pub const DEFRAGMENT_GAIN: usize = 4;

/// Nothing is gathered unless one of so many parts of the space is free: what other files share is copied.
pub const DEFRAGMENT_FREE_PART: u64 = 4;

/// Strained regions that are remembered: 24 bytes each.
pub const FRAGMENTED_REGIONS_MAX: usize = 4096;

/// Seconds after which an access time is renewed even if nothing changed since.
pub const RELATIME_SECONDS: i64 = 24 * 60 * 60;

/// Entries and bytes of one page of a scan.
pub const PAGE_ENTRIES: usize = 1024;
/// See [`PAGE_ENTRIES`].
pub const PAGE_BYTES: usize = 256 << 10;
