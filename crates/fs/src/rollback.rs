//! Rollback: the tree becomes what a snapshot shows, in one commit.
//!
//! A rollback writes back the keys that have changed since the snapshot, and no others. So its cost follows
//! the changes, and it leaves nothing behind: the snapshot can be deleted like any other.
//!
//! # Terms
//! A file that is in use and that the snapshot does not have *stays* without a name, as if it had been
//! removed: whoever uses it goes on, and its content goes when nobody does.
//!
//! ```text
//!   keep       the snapshot of the present
//!   list       alone in the base: each key that has changed since, with its value of then
//!   choose     of each node in use: its record of then, or it stays, or it is a directory that is gone
//!   commit     all keys in one batch
//!   show       the nodes get their states of then
//! ```
//!
//! # Invariants
//! 1. The whole tree goes back in one commit, or none of it
//!    (`tests::rollback::a_rollback_is_whole_or_not_there_after_any_crash`).
//! 2. Before it, a snapshot keeps the tree as it was. So a rollback to that snapshot undoes it, and no other
//!    snapshot changes. If the commit fails, that snapshot is deleted again; a crash between the two may
//!    leave it.
//! 3. It runs alone in the base, from the first key that it lists to the last node that it changes. So each
//!    node equals its record afterwards (`tests::rollback::files_that_are_open_show_what_was_there`).
//! 4. Nothing is lost that the kept snapshot does not have: a change that came between them is refused
//!    (`write_back`).
//! 5. A transaction that has read what goes back ends as a conflict: the keys have a newer version.
//! 6. The volumes behind doors do not go back, and their doors are the same then and now.
//! 7. The records of the pool, the numbers of inodes, snapshots and rules do not go back: no number is used
//!    twice.
//! 8. The list of records is charged to the memory budget before it grows, and no record is in memory twice:
//!    the batch takes one after the other
//!    (`tests::rollback::a_rollback_takes_no_more_memory_than_its_budget`).

use std::collections::{BTreeMap, BTreeSet};

use warpfire_format::fs::{CounterId, Dentry, Inode, Key, VolumeId, decode_counter, number_in, volume_of};
use warpfire_meta::{
    Admit, Batch, KeyRange, MemoryCharge, MemoryNeed, MemoryRefused, RESERVED, SeqRange, SnapshotStore,
    Storage,
};
use warpfire_units::Seq;

use crate::deferred::{BYTES, INODES};
use crate::error::FsError;
use crate::fs::Fs;
use crate::invalidation::Invalidation;
use crate::limits::PAGE_ENTRIES;
use crate::node::{NodeRef, NodeState, RecordLocation};
use crate::snapshot::SnapshotInfo;

/// Most bytes of keys and values of a rollback: it is one commit, in memory.
const ROLLBACK_BYTES_MAX: usize = 1 << 30;

const MORE_THAN_A_COMMIT: &str = "too much has changed since: more than 1 GiB of records";
const MORE_THAN_THE_BUDGET: &str = "too much has changed since: more than the memory for transactions holds";

/// Bytes of memory for each listed key beside its own and those of its value.
const LISTED_KEY_BYTES: usize = 128;

/// What a rollback has done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rollback {
    /// The snapshot that the tree shows now.
    pub to: SnapshotInfo,
    /// The snapshot of the tree as it was before.
    pub kept: SnapshotInfo,
    /// Records that were written back.
    pub records: u64,
}

/// A key that has changed, with its value of then.
type ChangedKey = (Box<[u8]>, Option<Box<[u8]>>);

/// The keys that have changed, and the charge for them.
struct ChangedKeys {
    keys: Vec<ChangedKey>,
    charge: MemoryCharge,
}

/// Where nodes in use had their records, as far as these have changed.
type RecordsThen = BTreeMap<u64, RecordLocation>;

/// What becomes of a node in use.
enum NodeThen {
    /// It gets this state.
    Shown(Box<NodeState>),
    /// It has lost its name.
    Stays,
    /// It is a directory that was not there.
    Gone,
}

/// The keys of a volume: the first one, and the first one past them.
fn volume_keys(volume: VolumeId) -> ([u8; 4], [u8; 4]) {
    let past = volume.0.checked_add(1).expect("the last number is no volume");
    (volume.0.to_be_bytes(), past.to_be_bytes())
}

/// The inode in a value at this key, and its place.
fn inode_at<'v>(key: &Key<'_>, value: &'v [u8]) -> Result<Option<(Inode<'v>, RecordLocation)>, FsError> {
    Ok(match *key {
        Key::Inode(volume, _) => Some((Inode::decode(value)?.in_volume(volume), RecordLocation::Own)),
        Key::Orphan(volume, _) => {
            Some((Inode::decode(value)?.in_volume(volume), RecordLocation::Orphan { linkable: false }))
        }
        Key::Dentry(volume, dir, name) => match Dentry::decode(value)?.in_volume(volume) {
            Dentry::Embedded(inode) => {
                Some((inode, RecordLocation::Dentry(number_in(volume, dir), name.into())))
            }
            Dentry::Reference(..) => None,
        },
        _ => None,
    })
}

/// Whether a rollback writes this key back.
fn goes_back(key: &Key<'_>) -> bool {
    match key {
        Key::Inode(..) | Key::Orphan(..) | Key::Dentry(..) | Key::Xattr(..) | Key::Region(..) => true,
        // Counters go back by what they differ.
        Key::Counter(..) => false,
        Key::Pool(_)
        | Key::Snapshot(..)
        | Key::SnapshotName(..)
        | Key::SnapshotRule(..)
        | Key::Bookmark(..)
        | Key::Volume(_) => false,
    }
}

impl<E: Storage + SnapshotStore> Fs<E> {
    /// Makes the tree what the snapshot `name` shows, and keeps what it was as the snapshot `kept_as`. Both
    /// are durable on return. A file that is in use and that the snapshot does not have stays, without a
    /// name, until nobody uses it. `changed` is called with everything that has another answer afterwards.
    ///
    /// # Errors
    /// `NotFound`; `Exists` if there is a snapshot `kept_as`; `Conflict` if a call changes the tree during
    /// the rollback; `Invalid` if more than 1 GiB of records have changed since or more than the memory
    /// budget can hold, or if a volume was made, moved or deleted; `Memory` if transactions have the rest of
    /// the budget; `NoSpace`; `ReadOnly`; `Damaged`. The tree is then as it was.
    pub fn roll_back(
        &self,
        name: &[u8],
        kept_as: &[u8],
        changed: &mut dyn FnMut(Invalidation<'_>),
    ) -> Result<Rollback, FsError> {
        // Files that wait to be removed need not come along.
        self.reap()?;
        let to = self.snapshot(name)?;
        // While it lives, nobody's deletion of the snapshot takes a version away.
        let held = self.engine.snapshot_at(to.seq).ok_or(FsError::NotFound)?;
        let kept = self.create_snapshot(kept_as)?;
        let written = self.write_back(to.seq, kept.seq, changed);
        drop(held);
        match written {
            Ok(records) => {
                self.sync()?;
                Ok(Rollback { to, kept, records })
            }
            Err(error) => {
                // The tree is as it was. If this fails too, a snapshot too many is left.
                let _ = self.delete_snapshot(kept_as);
                Err(error)
            }
        }
    }

    /// Visits everything that has changed since a snapshot: what a rollback to it would change now.
    ///
    /// # Errors
    /// `NotFound`; `Damaged`.
    pub fn changed_since(&self, name: &[u8], visit: &mut dyn FnMut(Invalidation<'_>)) -> Result<(), FsError> {
        let to = self.snapshot(name)?;
        let _held = self.engine.snapshot_at(to.seq).ok_or(FsError::NotFound)?;
        let newest = self.engine.snapshot();
        let commits = SeqRange { after: to.seq, upto: self.engine.seq(&newest) };
        let listed = self.list_changed(commits)?;
        self.visit_changed_keys(&listed.keys, visit)
    }

    /// Commits the values of `then` of all keys that have changed since. Returns their number.
    fn write_back(
        &self,
        then: Seq,
        kept: Seq,
        changed: &mut dyn FnMut(Invalidation<'_>),
    ) -> Result<u64, FsError> {
        let _exclusive = self.call_gate.enter_exclusive();
        // From the first read of a pointer to the commit that names it again.
        let _pin = self.pin_to_commit()?;
        let newest = self.engine.snapshot();
        let commits = SeqRange { after: then, upto: self.engine.seq(&newest) };
        let (start, end) = volume_keys(self.volume);
        let since_kept = SeqRange { after: kept, ..commits };
        let all = KeyRange { start: &start, end: Some(&end) };
        // A call came between: what it has changed would be lost.
        let between = self.engine.changed_between(all, since_kept, PAGE_ENTRIES)?;
        for key in &between {
            if goes_back(&Key::decode(key)?) || between.len() == PAGE_ENTRIES {
                return Err(FsError::Conflict { call: "roll back", path: "/".into() });
            }
        }
        // A volume that a door of then leads to may be gone, and one without a door could not be reached.
        if self.doors_at(then)? != self.doors_at(Seq::MAX)? {
            return Err(FsError::Invalid("volumes have been made, moved or deleted since"));
        }
        let listed = self.list_changed(commits)?;
        let mut nodes = self.inode_cache.nodes_in_use();
        nodes.retain(|node| volume_of(node.ino()) == self.volume);
        let records = records_then(&listed.keys, &nodes)?;
        let mut batch = Batch::new();
        let mut shown = Vec::with_capacity(nodes.len());
        let (mut stay, mut stay_sums) = (BTreeSet::new(), [0_i64; 3]);
        for node in nodes {
            let state = self.node_then(&node, &records, then)?;
            if matches!(state, NodeThen::Stays) {
                let held = node.state.read();
                stay.insert(node.ino());
                stay_sums[INODES] += 1;
                stay_sums[BYTES] += held.attrs.allocated_bytes.cast_signed();
                stay_sums[RESERVED] += held.attrs.reserved_bytes.cast_signed();
                if !matches!(held.location, RecordLocation::Orphan { .. }) {
                    self.plan_orphan(&node, &held, self.now(), &mut batch)?;
                }
            }
            shown.push((node, state));
        }
        self.visit_changed_keys(&listed.keys, changed)?;
        let mut left = Vec::new();
        let ChangedKeys { keys, charge } = listed;
        for (key, value) in keys {
            match Key::decode(&key)? {
                Key::Orphan(volume, ino) | Key::Xattr(volume, ino, _) | Key::Region(volume, ino, _)
                    if stay.contains(&number_in(volume, ino)) =>
                {
                    continue;
                }
                Key::Orphan(volume, ino) if value.is_some() => left.push(number_in(volume, ino)),
                _ => {}
            }
            match value {
                Some(value) => batch.put(&key, &value),
                None => batch.delete(&key),
            }
        }
        self.plan_sums(then, &stay_sums, &mut batch)?;
        self.commit(&batch, Admit::User)?;
        drop(charge);
        // The point of no return: from here on nothing may fail.
        batch.iter().for_each(|op| self.version_counters.bump(op.key()));
        self.inode_cache.forget_histories();
        for (node, state) in shown {
            self.show_then(&node, state);
        }
        for ino in left.into_iter().filter(|ino| self.node_in_use(*ino).is_none()) {
            self.inode_cache.return_unheld_orphan(ino);
        }
        Ok(batch.len() as u64)
    }

    /// The keys that have changed and go back, with their values of then.
    fn list_changed(&self, commits: SeqRange) -> Result<ChangedKeys, FsError> {
        let (start, end) = volume_keys(self.volume);
        let (mut start, mut old, mut new) = (start.to_vec(), Vec::new(), Vec::new());
        let (mut listed, mut bytes, mut used_bytes) = (Vec::new(), 0, 0);
        let mut charge = self.memory.coarse_charge();
        loop {
            let range = KeyRange { start: &start, end: Some(&end) };
            let changed = self.engine.changed_between(range, commits, PAGE_ENTRIES)?;
            let next = changed.last().filter(|_| changed.len() == PAGE_ENTRIES).cloned();
            for key in changed {
                if !goes_back(&Key::decode(&key)?) {
                    continue;
                }
                let was = self.engine.get(&key, commits.after, &mut old)?;
                let is = self.engine.get(&key, commits.upto, &mut new)?;
                if was != is || was && old != new {
                    let then_bytes = if was { old.len() } else { 0 };
                    bytes += key.len() + then_bytes;
                    used_bytes += key.len() + then_bytes + LISTED_KEY_BYTES;
                    self.charge_listed(&mut charge, used_bytes)?;
                    listed.push((key, was.then(|| old.as_slice().into())));
                }
                if bytes > ROLLBACK_BYTES_MAX {
                    return Err(FsError::Invalid(MORE_THAN_A_COMMIT));
                }
            }
            let Some(last) = next else { return Ok(ChangedKeys { keys: listed, charge }) };
            start.clear();
            start.extend_from_slice(&last);
            // The smallest key past the last one.
            start.push(0);
        }
    }

    /// Charges for the bytes that are listed.
    fn charge_listed(&self, charge: &mut MemoryCharge, bytes: usize) -> Result<(), FsError> {
        charge.grow_to(bytes, MemoryNeed::Needed).map_err(|refused| match refused {
            // It would be refused alone too.
            MemoryRefused::Total if bytes >= self.memory.budget().limits().total_bytes => {
                FsError::Invalid(MORE_THAN_THE_BUDGET)
            }
            refused => refused.into(),
        })
    }

    /// Visits the names and files in changed records.
    fn visit_changed_keys(
        &self,
        listed: &[ChangedKey],
        visit: &mut dyn FnMut(Invalidation<'_>),
    ) -> Result<(), FsError> {
        let (mut files, mut now) = (BTreeSet::new(), Vec::new());
        for (key, then) in listed {
            let decoded = Key::decode(key)?;
            match decoded {
                Key::Inode(volume, ino)
                | Key::Orphan(volume, ino)
                | Key::Xattr(volume, ino, _)
                | Key::Region(volume, ino, _) => {
                    files.insert(number_in(volume, ino));
                }
                Key::Dentry(volume, dir, name) => {
                    let dir = number_in(volume, dir);
                    let ino = |dentry: Dentry<'_>| dentry.in_volume(volume).ino();
                    let is = self.get(key, &mut now)?;
                    let then = then.as_deref().map(Dentry::decode).transpose()?.map(ino);
                    let is = is.then(|| Dentry::decode(&now)).transpose()?.map(ino);
                    files.extend(then);
                    files.extend(is);
                    if then != is {
                        files.insert(dir);
                        visit(Invalidation::Name(dir, name));
                    }
                }
                _ => {}
            }
        }
        files.into_iter().for_each(|ino| visit(Invalidation::File(ino)));
        Ok(())
    }

    /// What becomes of a node in use.
    fn node_then(&self, node: &NodeRef, records: &RecordsThen, then: Seq) -> Result<NodeThen, FsError> {
        let state = node.state.read();
        let mut value = Vec::new();
        let is_gone = node.is_dir() || state.location == RecordLocation::Gone;
        // A record that has not moved is at the same key, whether it has changed or not.
        let places = [records.get(&node.ino()), Some(&state.location)];
        for place in places.into_iter().flatten() {
            let at = NodeState { location: place.clone(), ..state.clone() };
            let Some(key) = at.record_key(node.ino()) else { continue };
            if !self.engine.get(&key, then, &mut value)? {
                continue;
            }
            let Some((inode, location)) = inode_at(&Key::decode(&key)?, &value)? else { continue };
            if inode.ino == node.ino() {
                let found = NodeState::new(&inode, location);
                let dentry = found.dentry.clone().or_else(|| state.dentry.clone());
                return Ok(NodeThen::Shown(Box::new(NodeState { dentry, ..found })));
            }
        }
        Ok(if is_gone { NodeThen::Gone } else { NodeThen::Stays })
    }

    /// Adds to the batch what the sums differ from those of then. `stay` is the part of files that stay.
    fn plan_sums(&self, then: Seq, stay: &[i64; 3], batch: &mut Batch) -> Result<(), FsError> {
        let sums = self.deferred.sums();
        // Volumes behind doors do not go back.
        let (behind_then, behind) = (self.sums_behind_doors(then)?, self.sums_behind_doors(Seq::MAX)?);
        let mut value = Vec::new();
        for (sum, id) in
            [(INODES, CounterId::Inodes), (BYTES, CounterId::Bytes), (RESERVED, CounterId::Reserved)]
        {
            let key = Key::Counter(self.volume, id).encode();
            let was = if self.engine.get(&key, then, &mut value)? { decode_counter(&value)? } else { 0 };
            let was = was.wrapping_sub(behind_then[sum]).wrapping_add(behind[sum]);
            batch.add(sum, was.wrapping_add(stay[sum]).wrapping_sub(sums[sum]));
        }
        Ok(())
    }

    /// Brings the commit to a node.
    fn show_then(&self, node: &NodeRef, then: NodeThen) {
        let mut state = node.state.write();
        match then {
            NodeThen::Shown(shown) => *state = *shown,
            NodeThen::Stays => {
                state.attrs.links = 0;
                state.location = RecordLocation::Orphan { linkable: false };
            }
            NodeThen::Gone => {
                state.attrs.links = 0;
                state.location = RecordLocation::Gone;
            }
        }
        node.pending_times.reset();
    }
}

/// Where the records of nodes in use were, as far as these have changed.
fn records_then(listed: &[ChangedKey], nodes: &[NodeRef]) -> Result<RecordsThen, FsError> {
    let in_use: BTreeSet<u64> = nodes.iter().map(|node| node.ino()).collect();
    let mut records = RecordsThen::new();
    for (key, value) in listed {
        let Some(value) = value else { continue };
        if let Some((inode, location)) = inode_at(&Key::decode(key)?, value)?
            && in_use.contains(&inode.ino)
        {
            records.insert(inode.ino, location);
        }
    }
    Ok(records)
}
