//! What deleting snapshots frees.

use warpfire_meta::{Direction, SnapshotStore, Storage};
use warpfire_units::Seq;

use super::each_snapshot;
use crate::error::FsError;
use crate::fs::Fs;

/// The bytes of files that deleting a snapshot frees. Metadata and parity do not count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SnapshotSpace {
    /// The seq of the snapshot.
    pub seq: Seq,
    /// Bytes that nothing else needs: they are free without this snapshot.
    pub alone_bytes: u64,
    /// Bytes that are free without this snapshot and all older ones.
    pub with_older_bytes: u64,
}

impl<E: Storage + SnapshotStore> Fs<E> {
    fn snapshot_seqs(&self, is_wanted: impl Fn(Seq) -> bool) -> Result<Vec<Seq>, FsError> {
        let mut seqs = Vec::new();
        each_snapshot(&*self.engine, Seq(0), Direction::Forward, &mut |seq, _| {
            seqs.extend(is_wanted(seq).then_some(seq));
            true
        })?;
        Ok(seqs)
    }

    /// What each snapshot holds, from the oldest to the newest. All metadata is read twice for it.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn snapshot_space(&self) -> Result<Vec<SnapshotSpace>, FsError> {
        let _guard = self.enter_unrecorded();
        let seqs = self.snapshot_seqs(|_| true)?;
        let empty = |seq| SnapshotSpace { seq, alone_bytes: 0, with_older_bytes: 0 };
        let mut space: Vec<SnapshotSpace> = seqs.iter().copied().map(empty).collect();
        for (needers, bytes) in self.engine.snapshot_bytes(&seqs)?.iter() {
            if needers.len() == 1 {
                space[needers.start].alone_bytes += bytes;
            }
            space[needers.end - 1].with_older_bytes += bytes;
        }
        let mut with_older_bytes = 0;
        for of_one in &mut space {
            with_older_bytes += of_one.with_older_bytes;
            of_one.with_older_bytes = with_older_bytes;
        }
        Ok(space)
    }

    /// The bytes that are free once all snapshots of which `is_gone` is true are deleted. All metadata is
    /// read twice for it.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn bytes_freed_without(&self, is_gone: impl Fn(Seq) -> bool) -> Result<u64, FsError> {
        let _guard = self.enter_unrecorded();
        let seqs = self.snapshot_seqs(is_gone)?;
        Ok(self.engine.snapshot_bytes(&seqs)?.total())
    }
}
