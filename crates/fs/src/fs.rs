//! The filesystem as a whole: format, open, find nodes, commit, sync, close.
//!
//! # Order of locks
//! A thread takes locks in this order and may skip groups. Within a group it takes them by ascending inode
//! number. Debug builds check the order (`lock_ranks`).
//!
//! ```text
//!   0  call gate        every call enters it first (`op/call_gate.rs`)
//!   1  Fs::rename       one move of a directory to another parent at a time
//!   2  Node::children   a directory's set of names: shared to add one, exclusive to remove the directory
//!   3  key locks        the engine's, one for each name that changes
//!   4  Node::state      the record of an inode
//!   5  InodeNumbers     the numbers that the base has reserved: a commit reserves more under the lock
//!   6  leaf locks       in InodeCache, Deferred, PendingTimes: held for a few instructions
//! ```
//!
//! The sync point hook runs inside commits, so it takes locks of group 6 only.
//!
//! # Invariants
//! 1. A name changes only under its key lock. A reader without that lock checks the version counter of the
//!    name (the tests `threads`).
//! 2. Only calls and the sync point hook change the filesystem (assert in `Fs::commit`).
//! 3. The batch of the sync point hook commutes with every other commit. It only adds, except for one time of
//!    a directory; `deferred` shows why that is safe.
//! 4. A node is found or made only inside a call (asserts in `find.rs`), so no
//!    commit of a transaction happens between the read of a record and the use of its node.

use std::sync::Arc;
use warpfire_env::sync::atomic::{AtomicU32, Ordering};

use warpfire_env::{Clock, RankedMutex};
use warpfire_format::fs::{
    Attrs, CounterId, FileKind, FilesystemRecord, HealthRecord, Inode, InodeContent, InodeTime, Key,
    PoolRecordId, VolumeId, VolumeRecord, WishesRecord, decode_counter,
};
use warpfire_meta::{
    Admit, Batch, MemoryAccount, MemoryBudget, MemoryLimits, MetaError, RESERVED, SUMS, Storage, WantedBytes,
};
use warpfire_slices::{Leases, Pin};
use warpfire_units::Seq;

use crate::damage::NO_ROOT_INODE;
use crate::data::Fragmentation;
use crate::deferred::Deferred;
use crate::error::FsError;
use crate::inode_numbers::InodeNumbers;
use crate::keys::{beside, inode_key};
use crate::lock_ranks::RENAME;
use crate::node::{InodeCache, Node, NodeLookup, NodeRef, NodeState, RecordLocation, VersionCounters};
use crate::op::{CallGate, CallGuard, Digestible, Operation, TransactionCounters};
use crate::rollback::Settling;
use crate::scratch::Scratch;
use crate::snapshot::SnapshotSums;
use crate::stamp::{provisional, stamp};
use crate::volume::{Claim, LimitedVolumes, VolumeUse};

/// Inode number of a volume's root directory. Later numbers are larger.
pub(crate) const ROOT_INO: u64 = 1;

/// Times that a change is tried while its own pin keeps the room that its commit needs. Before each further
/// try, reclaim has emptied segments.
const TRIES_WITH_PIN: u32 = 4;

/// Room that a call finds before it pins the slices of its commit. Most commits take less.
const COMMIT_ROOM_BYTES: u64 = 64 << 10;

/// The name of the first volume.
const FIRST_VOLUME_NAME: &[u8] = b"main";

/// Which reads renew access times.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AtimeMode {
    /// A read renews an access time that is not later than the last change, or that is a day old.
    #[default]
    Relatime,
    /// Each read renews it.
    Strict,
    /// None: reads change nothing.
    Never,
}

/// Options of [`Fs::open`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FsOptions {
    /// Which reads renew access times.
    pub atime: AtimeMode,
    /// Whether the engine below is open for reading only: then reads renew no access time and defragment
    /// nothing, and files that a crash left without a name stay.
    pub read_only: bool,
    /// The limits of what users keep in memory with transactions and open directories.
    pub memory: MemoryLimits,
    /// Whether the engine is to keep the bytes of small files that were read whole. A caller that keeps them
    /// itself, as the kernel does above a mount, has no use for that.
    pub keeps_files: bool,
}

/// Whether names that lead to other volumes are found and listed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Doors {
    Shown,
    LeftOut,
}

/// A filesystem over an engine. All calls may be made from many threads at once.
pub struct Fs<E: Storage> {
    pub(crate) engine: Arc<E>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) volume: VolumeId,
    pub(crate) doors: Doors,
    pub(crate) options: FsOptions,
    pub(crate) inode_cache: Arc<InodeCache>,
    pub(crate) version_counters: VersionCounters,
    pub(crate) deferred: Arc<Deferred>,
    pub(crate) leases: Arc<Leases>,
    pub(crate) fragmentation: Arc<Fragmentation>,
    /// Held while a directory moves to another parent. Two such moves at once could each put one directory
    /// below the other.
    pub(crate) rename: RankedMutex<RENAME, ()>,
    pub(crate) numbers: InodeNumbers,
    /// First number that no volume has had. It changes while no call runs (`create_behind_door`).
    pub(crate) next_volume: AtomicU32,
    pub(crate) call_gate: CallGate<Fs<E>>,
    pub(crate) transactions: TransactionCounters,
    /// The account of a transaction; in the base, that of the store's own user.
    pub(crate) memory: MemoryAccount,
    pub(crate) root: NodeRef,
    pub(crate) snapshots: Arc<SnapshotSums>,
    /// Empty in a transaction and in a snapshot.
    pub(crate) limited_volumes: LimitedVolumes,
    pub(crate) settling: Settling,
}

impl<E: Storage> Fs<E> {
    /// Writes an empty filesystem into an empty engine. It is durable on return. The root directory belongs
    /// to `uid` and `gid`.
    ///
    /// # Errors
    /// `Exists` if the engine holds a filesystem already; `NoSpace`; `ReadOnly`.
    pub fn format(engine: &E, clock: &dyn Clock, uid: u32, gid: u32) -> Result<(), FsError> {
        let mut scratch = Scratch::take();
        let filesystem_key = Key::Pool(PoolRecordId::Filesystem).encode();
        if engine.get(&filesystem_key, Seq::MAX, &mut scratch.value)? {
            return Err(FsError::Exists);
        }
        let now = stamp(clock.now());
        let mut put = |key: &[u8], encode: &dyn Fn(&mut Vec<u8>)| {
            let mut value = Vec::new();
            encode(&mut value);
            scratch.batch.put(key, &value);
        };
        put(&filesystem_key, &|out| FilesystemRecord::of_one_volume(ROOT_INO + 1).encode(out));
        put(&Key::Pool(PoolRecordId::Volume(VolumeId::FIRST)).encode(), &|out| {
            VolumeRecord { root_ino: ROOT_INO, name: FIRST_VOLUME_NAME }.encode(out);
        });
        let attrs = Attrs { uid, gid, ..new_attrs(FileKind::Directory, 0o755, now) };
        put(&inode_key(ROOT_INO), &|out| {
            Inode { ino: ROOT_INO, attrs, content: InodeContent::Directory(ROOT_INO, b"") }.encode(out);
        });
        put(&Key::Counter(VolumeId::FIRST, CounterId::Inodes).encode(), &|out| {
            // The root directory is the one inode; there are no bytes of files, so their sum has no record.
            warpfire_format::fs::encode_counter(out, 1);
        });
        assert_eq!(scratch.batch.sums(), &[0; SUMS], "the sums are put as values, so the batch adds to none");
        // One commit: a crash leaves a whole filesystem, or an engine that can be formatted again.
        let seq = engine.commit(&scratch.batch, None, Admit::User)?;
        engine.sync(seq)?;
        Ok(())
    }

    /// Opens the filesystem in an engine and removes the files that a crash left without a name.
    ///
    /// # Errors
    /// `NotFound` if the engine holds no filesystem; `Damaged` if its records do not decode; `ReadOnly`.
    pub fn open(engine: Arc<E>, clock: Arc<dyn Clock>, options: FsOptions) -> Result<Fs<E>, FsError> {
        let volume = VolumeId::FIRST;
        let mut value = Vec::new();
        if !engine.get(&Key::Pool(PoolRecordId::Filesystem).encode(), Seq::MAX, &mut value)? {
            return Err(FsError::NotFound);
        }
        let FilesystemRecord { next_ino, next_volume, has_bookmarks, has_rollbacks } =
            FilesystemRecord::decode(&value)?;
        if !engine.get(&Key::Pool(PoolRecordId::Volume(volume)).encode(), Seq::MAX, &mut value)? {
            return Err(FsError::NotFound);
        }
        let root_ino = VolumeRecord::decode(&value)?.root_ino;
        if !engine.get(&inode_key(root_ino), Seq::MAX, &mut value)? {
            return Err(NO_ROOT_INODE.into());
        }
        let inode = Inode::decode(&value)?;
        let inode_cache = InodeCache::new();
        let found =
            inode_cache.insert_made(root_ino, || true, || NodeState::new(&inode, RecordLocation::Own));
        let NodeLookup::Node(root) = found else { unreachable!("a new cache holds no other node") };
        let mut sum = |id| -> Result<i64, FsError> {
            let there = engine.get(&Key::Counter(volume, id).encode(), Seq::MAX, &mut value)?;
            if there { Ok(decode_counter(&value)?) } else { Ok(0) }
        };
        let sums = [sum(CounterId::Inodes)?, sum(CounterId::Bytes)?, sum(CounterId::Reserved)?];
        // Before the first write: it must not take reserved room.
        engine.add_reserved(sums[RESERVED]);
        let snapshots = match SnapshotSums::read(&*engine) {
            // The sums serve limits and the room of changes.
            Err(FsError::Damaged { .. }) if options.read_only => SnapshotSums::default(),
            sums => sums?,
        };
        snapshots.note_bookmarks(has_bookmarks);
        snapshots.note_rollbacks(has_rollbacks);
        let snapshots = Arc::new(snapshots);
        let deferred = Arc::new(Deferred::new(volume, sums));
        // Before the first commit: the sums that commits add reach the flash only through the hook.
        let hook = Arc::clone(&deferred);
        engine.set_sync_point_hook(Box::new(move |sums, batch| hook.emit(sums, batch)));
        let fs = Fs {
            engine,
            clock,
            volume,
            doors: Doors::Shown,
            options,
            inode_cache,
            version_counters: VersionCounters::default(),
            deferred,
            leases: Arc::default(),
            fragmentation: Arc::default(),
            rename: RankedMutex::new(()),
            numbers: InodeNumbers::for_base(next_ino),
            next_volume: AtomicU32::new(next_volume.0),
            call_gate: CallGate::base(),
            transactions: TransactionCounters::default(),
            memory: MemoryBudget::new(options.memory).account(None),
            root,
            snapshots,
            limited_volumes: LimitedVolumes::default(),
            settling: Settling::default(),
        };
        match fs.read_volume_limits() {
            // Nothing is added.
            Err(FsError::Damaged { .. }) if options.read_only => {}
            read => read?,
        }
        let orphans_removed = if options.read_only {
            0
        } else {
            let _guard = fs.enter_unrecorded();
            fs.remove_left_orphans()?
        };
        let [inodes, file_bytes, reserved_bytes] = fs.deferred.sums();
        tracing::debug!(inodes, file_bytes, reserved_bytes, next_ino, orphans_removed, "filesystem opened");
        Ok(fs)
    }

    /// The root directory.
    #[must_use]
    pub fn root(&self) -> NodeRef {
        Arc::clone(&self.root)
    }

    /// The engine below.
    #[must_use]
    pub fn engine(&self) -> &Arc<E> {
        &self.engine
    }

    /// The node with this number, if it is in use.
    #[must_use]
    pub fn node_in_use(&self, ino: u64) -> Option<NodeRef> {
        match self.inode_cache.get(ino)? {
            NodeLookup::Node(node) => {
                debug_assert_eq!(node.ino(), ino, "the cache finds a node by its own number");
                Some(node)
            }
            NodeLookup::Dying(_) | NodeLookup::Stale | NodeLookup::Refused(_) => None,
        }
    }

    /// Checks that a node is one of this filesystem: numbers mean other files elsewhere.
    ///
    /// # Errors
    /// `ForeignFile`.
    pub(crate) fn check_own(&self, node: &Node) -> Result<(), FsError> {
        if node.is_in(&self.inode_cache) { Ok(()) } else { Err(FsError::ForeignFile) }
    }

    /// The account of a user with a share in the memory budget, or with `None` that of the store's own user.
    #[must_use]
    pub fn memory_account(&self, uid: Option<u32>) -> MemoryAccount {
        self.memory.budget().account(uid)
    }

    /// Makes every change before this call durable.
    ///
    /// # Errors
    /// `ReadOnly` if the pool cannot write. Earlier durable changes stay durable.
    pub fn sync(&self) -> Result<(), FsError> {
        // Orphans first, so that the sync makes their space durable as free.
        self.reap()?;
        Ok(self.engine.sync(Seq::MAX)?)
    }

    /// Makes a file and its names durable, and every earlier change with them. Commits become durable in
    /// order, so one file cannot become durable alone.
    ///
    /// # Errors
    /// As `sync`.
    pub fn fsync(&self, _node: &NodeRef) -> Result<(), FsError> {
        Ok(self.engine.sync(Seq::MAX)?)
    }

    /// Returns the inode numbers that were reserved and not used, makes everything durable and closes the
    /// engine.
    ///
    /// # Errors
    /// As `sync`.
    pub fn close(&self) -> Result<(), FsError> {
        self.reap()?;
        {
            let _guard = self.enter_unrecorded();
            self.numbers.return_unused(|next_ino| self.put_next_ino(next_ino))?;
        }
        Ok(self.engine.close()?)
    }

    /// Enters the gate and makes a call with `run`. Inside a transaction it is recorded as `operation`.
    pub(crate) fn call<O: Operation<Fs<E>> + 'static, T: Digestible>(
        &self,
        operation: impl FnOnce() -> O,
        run: impl FnOnce() -> T,
    ) -> T {
        self.call_gate.call(|| stamp(self.clock.now()), operation, run)
    }

    /// Makes a change in one commit for which `change` pins slices. If the commit finds no room although
    /// reclaim has emptied segments, because that pin kept them, the change is made again: nothing has
    /// happened.
    pub(crate) fn change_with_pin<T>(
        &self,
        mut change: impl FnMut() -> Result<T, FsError>,
    ) -> Result<T, FsError> {
        for _ in 1..TRIES_WITH_PIN {
            match change() {
                Err(FsError::NoSpace) if self.engine.has_unpinned() => {}
                other => return other,
            }
        }
        change()
    }

    /// Enters the gate for a call that a transaction does not record: see [`CallGate::enter_unrecorded`].
    pub(crate) fn enter_unrecorded(&self) -> CallGuard<'_, Fs<E>> {
        self.call_gate.enter_unrecorded(|| stamp(self.clock.now()))
    }

    /// The time of the call: in the base the time now, inside a transaction the time at which the call began,
    /// which is provisional.
    pub(crate) fn now(&self) -> InodeTime {
        debug_assert!(self.call_gate.is_entered(), "only a call that has entered the gate has a time");
        self.call_gate.call_time().map_or_else(|| stamp(self.clock.now()), provisional)
    }

    /// Commits a batch of the call that runs.
    ///
    /// # Errors
    /// `VolumeFull`, `NoSpace`, `ReadOnly`, `Damaged`: the batch has changed nothing. `Unknown`: the engine
    /// cannot say.
    pub(crate) fn commit(&self, batch: &Batch, admit: Admit) -> Result<(), FsError> {
        assert!(self.call_gate.is_entered(), "a call changes something only after it has entered the gate");
        match self.with_volume_sums(batch)? {
            Some((volume, batch)) => {
                // Those of a transaction are claimed by its commit.
                let claim = self.limited_volumes.claim(volume, VolumeUse::of(batch.sums()))?;
                self.engine.commit(&batch, None, admit)?;
                claim.into_iter().for_each(Claim::keep);
            }
            None => _ = self.engine.commit(batch, None, admit)?,
        }
        // Only after success, so that the sums in memory never count a commit that failed.
        self.deferred.add_sums(batch.sums());
        Ok(())
    }

    /// A pin for a call that commits slices which it has read. Room for the commit comes first: under the pin
    /// reclaim could free nothing.
    pub(crate) fn pin_to_commit(&self) -> Result<Pin, FsError> {
        self.pin_to_commit_as(Admit::User)
    }

    /// As `pin_to_commit`, for a commit that may use the reserve, or not.
    pub(crate) fn pin_to_commit_as(&self, admit: Admit) -> Result<Pin, FsError> {
        self.engine.find_room(COMMIT_ROOM_BYTES, admit);
        Ok(self.engine.pin()?)
    }

    /// A number for a new inode in the volume of a directory.
    pub(crate) fn new_ino(&self, dir: &Node) -> Result<u64, FsError> {
        Ok(beside(dir.ino(), self.new_local_ino()?))
    }

    /// A local number for a new inode. No two inodes are made with one number, in whatever volumes.
    pub(crate) fn new_local_ino(&self) -> Result<u64, FsError> {
        debug_assert!(self.call_gate.is_entered(), "numbers are for calls that make something");
        self.numbers.next(|next_ino| self.put_next_ino(next_ino))
    }

    /// The filesystem record with this number as the first one that is not reserved.
    pub(crate) fn filesystem_record(&self, next_ino: u64) -> FilesystemRecord {
        let next_volume = VolumeId(self.next_volume.load(Ordering::Relaxed));
        let (has_bookmarks, has_rollbacks) = (self.snapshots.has_bookmarks(), self.snapshots.has_rollbacks());
        FilesystemRecord { next_ino, next_volume, has_bookmarks, has_rollbacks }
    }

    fn put_next_ino(&self, next_ino: u64) -> Result<(), FsError> {
        assert_ne!(next_ino, 0, "no inode has the number 0");
        let mut value = Vec::new();
        self.filesystem_record(next_ino).encode(&mut value);
        let mut batch = Batch::new();
        batch.put(&Key::Pool(PoolRecordId::Filesystem).encode(), &value);
        // From the reserve: a full pool still makes the files that replace others.
        self.commit(&batch, Admit::Reserve)
    }

    /// The health record; without one, a record of no errors. A record that does not decode counts as none:
    /// it must not keep a pool from opening.
    ///
    /// # Errors
    /// `Damaged` if it cannot be read.
    pub fn health(&self) -> Result<HealthRecord, FsError> {
        let mut value = Vec::new();
        let found = self.get(&Key::Pool(PoolRecordId::Health).encode(), &mut value)?;
        Ok(if found { HealthRecord::decode(&value).unwrap_or_default() } else { HealthRecord::default() })
    }

    /// Replaces the health record. It is durable after the next sync.
    ///
    /// # Errors
    /// `NoSpace`, `ReadOnly`.
    pub fn put_health(&self, health: &HealthRecord) -> Result<(), FsError> {
        let mut value = Vec::new();
        health.encode(&mut value);
        let mut batch = Batch::new();
        batch.put(&Key::Pool(PoolRecordId::Health).encode(), &value);
        let _guard = self.enter_unrecorded();
        self.commit(&batch, Admit::Reserve)
    }

    /// The wishes record; without one, no wishes. A record that does not decode counts as none: it must not
    /// keep a pool from opening.
    ///
    /// # Errors
    /// `Damaged` if it cannot be read.
    pub fn wishes(&self) -> Result<WishesRecord, FsError> {
        let mut value = Vec::new();
        let found = self.get(&Key::Pool(PoolRecordId::Wishes).encode(), &mut value)?;
        Ok(if found { WishesRecord::decode(&value).unwrap_or_default() } else { WishesRecord::default() })
    }

    /// Replaces the wishes record. It is durable after the next sync.
    ///
    /// # Errors
    /// `NoSpace`, `ReadOnly`.
    pub fn put_wishes(&self, wishes: &WishesRecord) -> Result<(), FsError> {
        let mut value = Vec::new();
        wishes.encode(&mut value);
        let mut batch = Batch::new();
        batch.put(&Key::Pool(PoolRecordId::Wishes).encode(), &value);
        let _guard = self.enter_unrecorded();
        self.commit(&batch, Admit::Reserve)
    }

    /// The newest value of a key.
    pub(crate) fn get(&self, key: &[u8], out: &mut Vec<u8>) -> Result<bool, FsError> {
        match self.engine.get(key, Seq::MAX, out) {
            // Nodes that nobody uses make room for what a transaction reads, too.
            Err(MetaError::Memory(_)) if self.inode_cache.evict_tx_nodes() => {
                Ok(self.engine.get(key, Seq::MAX, out)?)
            }
            found => Ok(found?),
        }
    }

    /// The newest value of a file's record, with bytes inline if one read of the store brings both. The
    /// caller holds a pin.
    pub(crate) fn get_with_bytes(
        &self,
        key: &[u8],
        wanted: WantedBytes,
        out: &mut Vec<u8>,
    ) -> Result<bool, FsError> {
        match self.engine.get_with_bytes(key, wanted, out) {
            Err(MetaError::Memory(_)) if self.inode_cache.evict_tx_nodes() => {
                Ok(self.engine.get_with_bytes(key, wanted, out)?)
            }
            found => Ok(found?),
        }
    }

    /// Notes that names in a directory have changed at `now`. The next sync point commits the time.
    pub(crate) fn defer_times(&self, dir: &NodeRef, now: InodeTime) {
        debug_assert!(self.call_gate.is_entered(), "names change inside a call");
        self.deferred.defer_times(dir, now);
    }
}

/// Attributes of a new inode that belongs to root. `permissions` has the 12 lowest bits of a mode.
pub(crate) fn new_attrs(kind: FileKind, permissions: u16, now: InodeTime) -> Attrs {
    debug_assert!(permissions <= 0o7777, "permissions hold no type bits");
    Attrs {
        kind,
        permissions,
        uid: 0,
        gid: 0,
        links: kind.first_links(),
        size_bytes: 0,
        allocated_bytes: 0,
        reserved_bytes: 0,
        rdev: 0,
        btime: now,
        mtime: now,
        ctime: now,
        atime: now,
        flags: 0,
    }
}
