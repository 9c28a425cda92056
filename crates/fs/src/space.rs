//! What `statfs` shows.

use warpfire_meta::Storage;

use crate::error::FsError;
use crate::fs::Fs;

/// What `statfs` shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SpaceInfo {
    /// Bytes that the pool can hold, parity and headers taken off.
    pub total_bytes: u64,
    /// Bytes that no file needs: free now, or freed by merging and cleaning.
    pub free_bytes: u64,
    /// Bytes that a user may still write.
    pub available_bytes: u64,
    /// Inodes that exist.
    pub inodes: u64,
    /// Bytes of files that are not holes, before anything that makes them smaller or larger on flash.
    pub file_bytes: u64,
}

impl<E: Storage> Fs<E> {
    /// Space and files, as of now.
    ///
    /// # Errors
    /// What reading the sums says.
    pub fn statfs(&self) -> Result<SpaceInfo, FsError> {
        let space = self.engine.space()?;
        let (inodes, file_bytes) = self.deferred.sums();
        // No file needs more than its own bytes (fewer, if it shares slices): what is live beyond that was deleted, and merging
        // has not come by yet.
        let needed_bytes = file_bytes.max(0).cast_unsigned().saturating_add(self.engine.table_bytes());
        let deleted_bytes = space.live_bytes.saturating_sub(needed_bytes);
        let free_bytes = (space.free_bytes.saturating_add(space.garbage_bytes))
            .saturating_add(deleted_bytes)
            .min(space.total_bytes);
        Ok(SpaceInfo {
            total_bytes: space.total_bytes,
            free_bytes,
            available_bytes: free_bytes.saturating_sub(space.reserve_bytes),
            inodes: inodes.max(0).cast_unsigned(),
            file_bytes: file_bytes.max(0).cast_unsigned(),
        })
    }
}
