//! The answer of `statfs`.

use warpfire_format::fs::volume_of;
use warpfire_meta::{Storage, room_of_reserved};

use crate::error::FsError;
use crate::fs::Fs;

/// The space of the pool and the number of files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SpaceInfo {
    /// Bytes that the pool can hold, without parity and headers.
    pub total_bytes: u64,
    /// Bytes that no file needs and none has reserved: free now, or free after compaction and cleaning.
    pub free_bytes: u64,
    /// Bytes that a user may still write: the free bytes without the reserve.
    pub available_bytes: u64,
    /// Inodes that exist.
    pub inodes: u64,
    /// Bytes that files have reserved and not written. They are among `file_bytes`, and not free.
    pub reserved_bytes: u64,
    /// The most inodes that a volume may have, if it is limited.
    pub inodes_max: Option<u64>,
    /// Bytes of files without their holes, reserved bytes included. Shared bytes count once for each file;
    /// parity does not count.
    pub file_bytes: u64,
}

impl<E: Storage> Fs<E> {
    /// Space and number of files, as of now.
    ///
    /// # Errors
    /// The error of the engine if it cannot say how much space there is.
    pub fn statfs(&self) -> Result<SpaceInfo, FsError> {
        let space = self.engine.space()?;
        let [inodes, file_bytes, reserved_bytes] = self.deferred.sums();
        let reserved_bytes = reserved_bytes.max(0).cast_unsigned();
        // Files, tables and holds need at most these bytes; files that share slices need fewer. More live
        // bytes than that belong to deleted files, and compaction has not dropped them yet.
        let needed_bytes = (file_bytes.max(0).cast_unsigned())
            .saturating_sub(reserved_bytes)
            .saturating_add(self.engine.table_bytes())
            // A snapshot may need every byte that the volume had then.
            .saturating_add(self.snapshots.bytes())
            .saturating_add(self.engine.held_bytes());
        let deleted_bytes = space.live_bytes.saturating_sub(needed_bytes);
        // Garbage that no cleaning gains is not free. Deleted bytes may lie beside it, and then it comes back
        // with them.
        let stuck_bytes = space.stuck_bytes.saturating_sub(deleted_bytes);
        let free_bytes = (space.free_bytes.saturating_add(space.garbage_bytes))
            .saturating_sub(stuck_bytes + space.log_bytes)
            .saturating_add(deleted_bytes)
            .min(space.total_bytes)
            .saturating_sub(room_of_reserved(reserved_bytes));
        debug_assert!(free_bytes <= space.total_bytes, "a pool has no more free bytes than bytes");
        Ok(SpaceInfo {
            total_bytes: space.total_bytes,
            free_bytes,
            available_bytes: free_bytes.saturating_sub(space.reserve_bytes + space.log_growth_bytes),
            inodes: inodes.max(0).cast_unsigned(),
            inodes_max: None,
            reserved_bytes,
            file_bytes: file_bytes.max(0).cast_unsigned(),
        })
    }

    /// As `statfs`, of the volume of an inode if it is limited: what it has and what may be added. Bytes and
    /// inodes that have no limit are those of the pool.
    ///
    /// # Errors
    /// As `statfs`.
    pub fn statfs_of(&self, ino: u64) -> Result<SpaceInfo, FsError> {
        let mut space = self.statfs()?;
        let Some((limits, used)) = self.limited_volumes.get(volume_of(ino)) else { return Ok(space) };
        if let Some(limit) = limits.bytes {
            let used_bytes = used.bytes.max(0).cast_unsigned();
            // The pool may have less room than the limit leaves.
            let left_bytes = limit.saturating_sub(used_bytes).min(space.available_bytes);
            space.total_bytes = used_bytes.saturating_add(left_bytes);
            (space.free_bytes, space.available_bytes, space.file_bytes) =
                (left_bytes, left_bytes, used_bytes);
        }
        if let Some(limit) = limits.files {
            (space.inodes, space.inodes_max) = (used.files.max(0).cast_unsigned(), Some(limit));
        }
        Ok(space)
    }
}
