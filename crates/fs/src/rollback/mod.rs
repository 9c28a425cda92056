//! Rollback: the tree becomes what a snapshot shows, in one commit of one record.
//!
//! The record says which versions the engine hides: those after the snapshot. So the cost does not follow the
//! changes. Then the rollback is *settled*: the changed keys are written again, page by page, beside other
//! work. After that nobody needs to know of it, and the snapshot can be deleted like any other.
//!
//! # Terms
//! A file that is in use and that the snapshot does not have *stays* without a name, as if it had been
//! removed: whoever uses it goes on, and its content goes when nobody does.
//!
//! ```text
//!   keep       the snapshot of the present
//!   survey     alone in the base: the keys that have changed since, or that they are many     `survey`
//!   choose     of each node in use: its record of then, or it stays, or it is a directory that is gone
//!   commit     the record, and what stays
//!   show       the nodes get their states of then
//!   settle     files without a name go; the changed keys are written again; the record ends    `settle`
//! ```
//!
//! # Invariants
//! 1. The whole tree goes back in one commit, or none of it
//!    (`tests::rollback::a_rollback_is_whole_or_not_there_after_any_crash`).
//! 2. Before it, a snapshot keeps the tree as it was. So a rollback to that snapshot undoes it, and no other
//!    snapshot changes. If the commit fails, that snapshot is deleted again; a crash between the two may
//!    leave it.
//! 3. It runs alone in the base, from the survey to the last node that it changes. So each node equals its
//!    record afterwards (`tests::rollback::files_that_are_open_show_what_was_there`).
//! 4. Nothing is lost that the kept snapshot does not have: a change that came between them is refused
//!    (`check_kept`).
//! 5. A transaction that has read what goes back ends as a conflict: the engine knows which keys are hidden.
//! 6. The volumes behind doors do not go back, and their doors are the same then and now.
//! 7. The records of the pool, the numbers of inodes, snapshots and rules do not go back: no number is used
//!    twice (`Schema::goes_back`).
//! 8. What stays is charged to the memory budget before it grows
//!    (`tests::rollback::a_rollback_takes_no_more_memory_than_its_budget`).

mod settle;
mod survey;

use warpfire_env::{PlantedBug, is_planted};
use warpfire_format::fs::{
    CounterId, FilesystemRecord, Key, PoolRecordId, RolledBack, VolumeId, decode_counter, volume_of,
};
use warpfire_meta::{
    Admit, Batch, Direction, KeyRange, MemoryCharge, MemoryNeed, MemoryRefused, RESERVED, ReadSet, SUMS,
    ScanPage, SeqRange, SnapshotStore, Storage, room_of_reserved,
};
use warpfire_units::Seq;

use crate::deferred::{BYTES, INODES};
use crate::error::FsError;
use crate::fs::Fs;
use crate::invalidation::Invalidation;
use crate::keys::{orphan_key, region_range, xattr_range};
use crate::limits::{PAGE_BYTES, PAGE_ENTRIES};
use crate::node::{NodeRef, RecordLocation};
use crate::snapshot::SnapshotInfo;
use survey::NodeThen;

pub(crate) use settle::Settling;

/// Rollbacks that are not settled, after which a new one settles them first. A read looks at each.
const UNSETTLED_MAX: usize = 16;

/// Most rollbacks with a record. A snapshot from the time in which one was not settled keeps its record.
const ROLLBACKS_MAX: usize = 256;

const MORE_THAN_THE_BUDGET: &str =
    "files in use that the snapshot does not have are more than the memory for transactions holds";
const TOO_MANY: &str = "too many rollbacks have snapshots that were made in the moments after them";

/// What a rollback has done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rollback {
    /// The snapshot that the tree shows now.
    pub to: SnapshotInfo,
    /// The snapshot of the tree as it was before.
    pub kept: SnapshotInfo,
}

/// How changes are visited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChangeDetail {
    /// Each of them if they are few, and else [`Invalidation::Everything`].
    Few,
    /// Each of them.
    All,
}

/// The keys of a volume: the first one, and the first one past them.
fn volume_keys(volume: VolumeId) -> ([u8; 4], [u8; 4]) {
    let past = volume.0.checked_add(1).expect("the last number is no volume");
    (volume.0.to_be_bytes(), past.to_be_bytes())
}

/// Files that stay without a name.
struct StayingFiles {
    /// What they add to the sums.
    sums: [i64; SUMS],
    /// Their records, which go into the commit again: those that are there are hidden.
    batch: Batch,
    charge: MemoryCharge,
}

impl<E: Storage + SnapshotStore> Fs<E> {
    /// Makes the tree what the snapshot `name` shows, and keeps what it was as the snapshot `kept_as`. Both
    /// are durable on return. A file that is in use and that the snapshot does not have stays, without a
    /// name, until nobody uses it. `changed` is called with everything that has another answer afterwards.
    ///
    /// Reads of changed files pass the versions that are hidden, until calls of
    /// [`settle_rollbacks`](Fs::settle_rollbacks) have settled the rollback. They break off while this runs.
    ///
    /// # Errors
    /// `NotFound`; `Exists` if there is a snapshot `kept_as`; `Conflict` if a call changes the tree during
    /// the rollback; `Invalid` if a volume was made, moved or deleted since, if the metadata of files in use
    /// that the snapshot does not have is more than the memory budget, or after very many rollbacks; `Memory`
    /// if transactions have the rest of the budget; `NoSpace`; `ReadOnly`; `Damaged`. The tree is then as it
    /// was, with one exception: if the last sync is refused, the tree has gone back, `kept_as` is there, and
    /// the next sync makes both durable.
    pub fn roll_back(
        &self,
        name: &[u8],
        kept_as: &[u8],
        changed: &mut dyn FnMut(Invalidation<'_>),
    ) -> Result<Rollback, FsError> {
        let to = self.snapshot(name)?;
        // While it lives, nobody's deletion of the snapshot takes a version away.
        let held = self.engine.snapshot_at(to.seq).ok_or(FsError::NotFound)?;
        // Before settling gives way: this may wait for it.
        self.find_room_to_reserve(to.seq)?;
        let _under_way = self.settling.rollback_begins();
        // Files that wait to be removed need not come along.
        self.reap()?;
        // Both wait for a thread that settles, so they are only called when they must be.
        self.settle_if_many(UNSETTLED_MAX)?;
        if self.engine.rollbacks().len() >= ROLLBACKS_MAX {
            self.forget_rollbacks()?;
            if self.engine.rollbacks().len() >= ROLLBACKS_MAX {
                return Err(FsError::Invalid(TOO_MANY));
            }
        }
        // A full pool can go back, so this and the record are admitted as deletions are.
        let kept = self.create_snapshot_admitted(kept_as, None, Admit::Reserve)?;
        let gone_back = self.go_back(to.seq, kept.seq, changed);
        drop(held);
        match gone_back {
            Ok(()) => {
                self.sync()?;
                Ok(Rollback { to, kept })
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
    pub fn changed_since(
        &self,
        name: &[u8],
        detail: ChangeDetail,
        visit: &mut dyn FnMut(Invalidation<'_>),
    ) -> Result<(), FsError> {
        let to = self.snapshot(name)?;
        let _held = self.engine.snapshot_at(to.seq).ok_or(FsError::NotFound)?;
        let newest = self.engine.snapshot();
        let commits = SeqRange { after: to.seq, upto: self.engine.seq(&newest) };
        let survey = self.survey(commits, detail)?;
        self.visit_changed(&survey, to.seq, visit).map(drop)
    }

    /// Commits the rollback and shows it.
    fn go_back(
        &self,
        then: Seq,
        kept: Seq,
        changed: &mut dyn FnMut(Invalidation<'_>),
    ) -> Result<(), FsError> {
        let _exclusive = self.call_gate.enter_exclusive();
        // From the first read of a pointer to the commit that names it again.
        let _pin = self.pin_to_commit_as(Admit::Reserve)?;
        let newest = self.engine.snapshot();
        let commits = SeqRange { after: then, upto: self.engine.seq(&newest) };
        self.check_kept(kept)?;
        // A volume that a door of then leads to may be gone, and one without a door could not be reached.
        if self.doors_at(then)? != self.doors_at(Seq::MAX)? {
            return Err(FsError::Invalid("volumes have been made, moved or deleted since"));
        }
        let survey = self.survey(commits, ChangeDetail::Few)?;
        let affected = self.visit_changed(&survey, then, changed)?;
        // They may be few beside all that are in use. Alone in the base, none is dying.
        let mut nodes = match &affected {
            Some(files) => files.iter().filter_map(|ino| self.node_in_use(*ino)).collect(),
            None => self.inode_cache.nodes_in_use(),
        };
        nodes.retain(|node| volume_of(node.ino()) == self.volume);
        let nodes = self.nodes_then(nodes, &survey, commits)?;
        let mut stay =
            StayingFiles { sums: [0; SUMS], batch: Batch::new(), charge: self.memory.coarse_charge() };
        for (node, _) in nodes.iter().filter(|(_, then)| matches!(then, NodeThen::Stays)) {
            self.plan_stay(node, &mut stay)?;
        }
        let StayingFiles { sums, mut batch, charge } = stay;
        let sums = self.plan_sums(then, &sums, &mut batch)?;
        let reserved = sums[RESERVED].wrapping_sub(self.deferred.sums()[RESERVED]);
        self.put_first_rollback(&mut batch)?;
        self.engine.commit_rollback(&batch, reserved, &mut |seq, batch| {
            let mut value = Vec::new();
            RolledBack { to: then, ended_at: None }.encode(&mut value);
            batch.put(&Key::Rollback(seq, self.volume).encode(), &value);
        })?;
        drop(charge);
        // The point of no return: from here on nothing may fail.
        self.snapshots.note_rollbacks(true);
        self.deferred.set_sums(sums);
        self.version_counters.bump_all();
        self.inode_cache.forget_histories();
        for (node, state) in nodes {
            self.show_then(&node, state);
        }
        Ok(())
    }

    /// Checks that no call has changed the tree after the snapshot that keeps it.
    fn check_kept(&self, kept: Seq) -> Result<(), FsError> {
        let (start, end) = volume_keys(self.volume);
        let all = ReadSet::new(kept, [] as [&[u8]; 0], [(start.to_vec(), Some(end.to_vec()))]);
        let changed = self.engine.changed_keys(&all, PAGE_ENTRIES)?;
        let conflict = FsError::Conflict { call: "roll back", path: "/".into() };
        for key in &changed.ok_or_else(|| conflict.clone())? {
            if survey::goes_back(&Key::decode(key)?) {
                return Err(conflict);
            }
        }
        Ok(())
    }

    /// Puts a filesystem record that versions without rollbacks refuse, if this is the first one.
    fn put_first_rollback(&self, batch: &mut Batch) -> Result<(), FsError> {
        if self.snapshots.has_rollbacks() {
            return Ok(());
        }
        let next_ino = self.numbers.first_unreserved().ok_or(FsError::ReadOnlySnapshot)?;
        let mut value = Vec::new();
        FilesystemRecord { has_rollbacks: true, ..self.filesystem_record(next_ino) }.encode(&mut value);
        batch.put(&Key::Pool(PoolRecordId::Filesystem).encode(), &value);
        Ok(())
    }

    /// Adds all records of a file that stays to the commit.
    fn plan_stay(&self, node: &NodeRef, stay: &mut StayingFiles) -> Result<(), FsError> {
        let (ino, held) = (node.ino(), node.state.read());
        stay.sums[INODES] += 1;
        stay.sums[BYTES] += held.attrs.allocated_bytes.cast_signed();
        stay.sums[RESERVED] += held.attrs.reserved_bytes.cast_signed();
        if is_planted(PlantedBug::StayingFileHidden) {
            return Ok(());
        }
        if matches!(held.location, RecordLocation::Orphan { .. }) {
            let mut value = Vec::new();
            if self.get(&orphan_key(ino), &mut value)? {
                stay.batch.put(&orphan_key(ino), &value);
            }
        } else {
            self.plan_orphan(node, &held, self.now(), &mut stay.batch)?;
        }
        for (start, end) in [xattr_range(ino), region_range(ino, 0)] {
            let (mut start, mut page) = (start.to_vec(), ScanPage::default());
            loop {
                let range = KeyRange { start: &start, end: Some(&end) };
                self.engine.scan(range, Seq::MAX, Direction::Forward, PAGE_ENTRIES, PAGE_BYTES, &mut page)?;
                page.iter().for_each(|entry| stay.batch.put(entry.key, entry.value));
                self.charge_staying(&mut stay.charge, stay.batch.bytes())?;
                let Some(last) = page.iter().next_back().filter(|_| page.more) else { break };
                start = [last.key, &[0]].concat();
            }
        }
        Ok(())
    }

    fn charge_staying(&self, charge: &mut MemoryCharge, bytes: usize) -> Result<(), FsError> {
        charge.grow_to(bytes, MemoryNeed::Needed).map_err(|refused| match refused {
            // It would be refused alone too.
            MemoryRefused::Total if bytes >= self.memory.budget().limits().total_bytes => {
                FsError::Invalid(MORE_THAN_THE_BUDGET)
            }
            refused => refused.into(),
        })
    }

    /// The sums after the rollback. Adds to the batch what they differ from those of then, which are shown
    /// again. `stay` is the part of files that stay.
    fn plan_sums(&self, then: Seq, stay: &[i64; SUMS], batch: &mut Batch) -> Result<[i64; SUMS], FsError> {
        // Volumes behind doors do not go back.
        let (behind_then, behind) = (self.sums_behind_doors(then)?, self.sums_behind_doors(Seq::MAX)?);
        let mut sums = [0; SUMS];
        for (sum, id) in
            [(INODES, CounterId::Inodes), (BYTES, CounterId::Bytes), (RESERVED, CounterId::Reserved)]
        {
            let was = self.counter_at(id, then)?;
            let change = behind[sum].wrapping_sub(behind_then[sum]).wrapping_add(stay[sum]);
            batch.add(sum, change);
            sums[sum] = was.wrapping_add(change);
        }
        Ok(sums)
    }

    fn counter_at(&self, id: CounterId, then: Seq) -> Result<i64, FsError> {
        let mut value = Vec::new();
        let is_there = self.engine.get(&Key::Counter(self.volume, id).encode(), then, &mut value)?;
        if is_there { Ok(decode_counter(&value)?) } else { Ok(0) }
    }

    /// Has room made for what the files of then have reserved beyond those of now. Under a pin nothing that
    /// is cleaned would become free.
    fn find_room_to_reserve(&self, then: Seq) -> Result<(), FsError> {
        let more = self.counter_at(CounterId::Reserved, then)?.saturating_sub(self.deferred.sums()[RESERVED]);
        if more > 0 {
            self.engine.find_room(room_of_reserved(more.cast_unsigned()), Admit::User);
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
