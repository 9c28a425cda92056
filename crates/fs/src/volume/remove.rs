//! Calls that remove volumes, and forget those of which nothing is left.

use warpfire_format::fs::{DoorVolume, InodeEdit, Key, VolumeId, VolumeLimits, volume_of};
use warpfire_meta::{Admit, Batch, SnapshotStore, Storage};
use warpfire_units::Seq;

use super::{VolumeInfo, VolumeUse};
use crate::error::FsError;
use crate::fs::Fs;
use crate::invalidation::Invalidation;
use crate::keys::{dentry_key, inode_key};
use crate::node::{NodeRef, RecordLocation, check_name};

/// Volumes of which one call removes the records. Each costs a flush.
const FORGOTTEN_AT_ONCE: usize = 16;

impl<E: Storage + SnapshotStore> Fs<E> {
    /// Deletes the volume behind a door, with everything in it, and its door. The deletion is durable on
    /// return, and takes as long for a large volume as for a small one. Its bytes come back when compaction
    /// drops its tables; what clones and snapshots of it show stays. `changed` is called with all that has
    /// another answer afterwards beside the door, before the change.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` if the name is no door, or the volume has the door of another one in it;
    /// `ReadOnly`; `NoSpace`. If a sync is refused room, the volume is gone, and the next sync makes that
    /// durable.
    pub fn delete_volume(
        &self,
        dir: &NodeRef,
        name: &[u8],
        changed: &mut dyn FnMut(Invalidation<'_>),
    ) -> Result<VolumeInfo, FsError> {
        check_name(name)?;
        self.reap()?;
        let _exclusive = self.call_gate.enter_exclusive();
        let key = dentry_key(dir.ino(), name);
        let (volume, record) = self.volume_behind(dir, name)?;
        if self.doors_at(Seq::MAX)?.iter().any(|(_, dir, _)| volume_of(*dir) == volume) {
            return Err(FsError::Invalid("the volume has the door of another volume in it"));
        }
        let info = self.volume_info(volume, &record, Seq::MAX)?;
        let now = self.now();
        let mut changes = Batch::new();
        changes.delete(&key);
        let edit = InodeEdit { links_add: -1, ..InodeEdit::default() };
        let mut value = Vec::new();
        edit.encode(&mut value);
        changes.merge_naming(&inode_key(dir.ino()), &value, []);
        let sums = self.volume_sums(volume, Seq::MAX)?;
        for (sum, of) in sums.into_iter().enumerate() {
            changes.add(sum, of.wrapping_neg());
        }
        let nodes = self.inode_cache.nodes_in_use();
        let nodes: Vec<NodeRef> = nodes.into_iter().filter(|n| volume_of(n.ino()) == volume).collect();
        nodes.iter().for_each(|node| changed(Invalidation::File(node.ino())));
        // Before the commit: its sync point takes the times along.
        self.defer_times(dir, now);
        self.engine.commit_with_snapshot(&changes, Admit::Reserve, &mut |seq, batch| {
            let mut value = Vec::new();
            DoorVolume { removed_at: Some(seq), ..record }.encode(&mut value);
            batch.put(&Key::Volume(volume).encode(), &value);
        })?;
        // The point of no return: from here on nothing may fail.
        self.limited_volumes.set(volume, VolumeLimits::default(), VolumeUse::default());
        self.deferred.add_sums(changes.sums());
        for node in nodes {
            let mut state = node.state.write();
            state.location = RecordLocation::Gone;
            state.attrs.links = 0;
            drop(state);
            node.pending_times.reset();
        }
        self.show_door(dir, &key, -1);
        self.engine.sync(Seq::MAX)?;
        Ok(info)
    }

    /// Removes the records of removed volumes that nobody reads and of which nothing is left, and takes the
    /// origins out of the records of detached clones that nobody needs. Until then they keep versions of
    /// their origins. Returns whether a volume has gone: then there may be more. Without a removed volume
    /// this looks at nothing.
    ///
    /// # Errors
    /// `NoSpace`; `ReadOnly`; `Damaged`.
    pub fn forget_volumes(&self) -> Result<bool, FsError> {
        if self.options.read_only {
            return Ok(false);
        }
        self.forget_origins()?;
        let unneeded = self.engine.unneeded_domains()?;
        if unneeded.is_empty() {
            return Ok(false);
        }
        for domain in unneeded.iter().take(FORGOTTEN_AT_ONCE) {
            // One at a time: calls that need the gate alone go in between.
            let _guard = self.enter_unrecorded();
            let mut batch = Batch::new();
            batch.delete(&Key::Volume(VolumeId(u32::from_be_bytes(*domain))).encode());
            self.engine.forget_domain(*domain, &batch)?;
        }
        self.engine.sync(Seq::MAX)?;
        Ok(true)
    }
}
