//! Every limit of this room, with the arithmetic behind it.

/// Largest file, in bytes: offsets of programs are signed 64-bit numbers.
pub const FILE_BYTES_MAX: u64 = i64::MAX.cast_unsigned();

/// Largest inode number.
pub const INO_MAX: u64 = warpfire_format::fs::INO_MAX;

/// Largest file that is read as a whole into one buffer.
pub const WHOLE_FILE_BYTES_MAX: usize = 4 << 30;

/// Longest path in bytes, without its final NUL.
pub const PATH_BYTES_MAX: usize = 4095;

/// Longest target of a symbolic link, in bytes.
pub const TARGET_BYTES_MAX: usize = 4095;

/// Symbolic links followed on one path.
pub const SYMLINKS_MAX: u32 = 40;

/// Most directories within each other. No path reaches this deep, so a longer walk to the root is a circle.
pub const DEPTH_MAX: u32 = 1 << 20;

/// Most names of one file, and most subdirectories of one directory with 2 added.
pub const LINKS_MAX: u32 = i32::MAX.cast_unsigned();

/// Longest value of an extended attribute, in bytes.
pub const XATTR_BYTES_MAX: usize = warpfire_format::fs::XATTR_BYTES_MAX;

/// Longest answer of `listxattr` in bytes, as on Linux.
pub const XATTR_LIST_BYTES_MAX: usize = 64 << 10;

/// A write of up to this many bytes is inline in its commit. A longer one goes to the slice store first.
pub const INLINE_BYTES_MAX: usize = 32 << 10;

/// Regions that one commit may delete or rewrite: 2^18 keys of 21 bytes with some 20 bytes of value are 10 MB
/// of batch.
pub const REGIONS_PER_COMMIT: usize = 1 << 18;

/// Up to this many regions are deleted without a scan for those that exist.
pub const REGIONS_BLIND_MAX: u64 = 16;

/// Regions that one step of the removal of an orphan deletes.
pub const ORPHAN_STEP_REGIONS: usize = 4096;

/// Inode numbers that one commit reserves.
pub const INO_BLOCK: u64 = 1 << 20;

/// Edits of a small file or of a region after which its value is refolded: a read folds no more than these.
pub const EDITS_MAX: u32 = 64;

/// One more edit is allowed for this many bytes that the refold would copy, so that the cost of many small
/// appends stays linear.
pub const EDIT_PER_BYTES: u32 = 256;

/// Inline bytes in the history of a region after which they are written as a slice.
pub const REGION_INLINE_BYTES_MAX: u32 = 64 << 10;

/// A region is fragmented if a read meets at least this many pieces in it, and the pieces have fewer than
/// [`DEFRAGMENT_PIECE_BYTES_MAX`] bytes on average.
pub const DEFRAGMENT_PIECES_MIN: usize = 8;

/// See [`DEFRAGMENT_PIECES_MIN`]. A sequential read of a file in pieces of 32 KiB took 1.1 times as long as
/// of a file in one piece; with 16 KiB 1.6 times, with 8 KiB 3.8 times.
pub const DEFRAGMENT_PIECE_BYTES_MAX: u64 = 24 << 10;

/// Defragmenting must leave so many times fewer pieces. Holes keep pieces apart, so it can leave more.
pub const DEFRAGMENT_GAIN: usize = 4;

/// A region is defragmented only if one of so many parts of the space is free, because bytes that other files
/// share are copied.
pub const DEFRAGMENT_FREE_PART: u64 = 4;

/// Fragmented regions that are remembered, 24 bytes each.
pub const FRAGMENTED_REGIONS_MAX: usize = 4096;

/// Seconds after which a read renews an access time even if nothing has changed.
pub const RELATIME_SECONDS: i64 = 24 * 60 * 60;

/// Most snapshots of a pool.
pub const SNAPSHOTS_MAX: u64 = 1 << 20;

/// Most bookmarks of a pool. A list of them is read at once.
pub const BOOKMARKS_MAX: u64 = 1 << 12;

/// Names that one step of the removal of many files takes. Their key locks are an eighth of all, and the
/// commit of a transaction waits for one step, of some 100 µs.
pub const REMOVED_AT_ONCE: usize = 128;

/// Most entries of one page of a scan.
pub const PAGE_ENTRIES: usize = 1024;

/// Most bytes of one page of a scan.
pub const PAGE_BYTES: usize = 256 << 10;

const _: () = assert!(REGIONS_BLIND_MAX < ORPHAN_STEP_REGIONS as u64, "a blind deletion fits in a step");
const _: () = assert!(ORPHAN_STEP_REGIONS <= REGIONS_PER_COMMIT, "a step fits in a commit");
