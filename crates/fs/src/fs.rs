//! The filesystem as a whole: opening, numbers, commits, syncing.
//!
//! # Order of locks
//! 0. The call gate (`op/call_gate.rs`), which every call enters first. Then: 1. `rename` (moves of directories), 2. `Node::children` (ascending inode numbers), 3. the engine's key locks (names),
//! 4. `Node::state` (ascending inode numbers), 5. everything inside `InodeCache`, `Deferred`, `PendingTimes` and `Inos`, held for a few
//!    instructions. The cut hook runs inside commits, so it takes locks of group 5 only.
//!
//! # Invariants
//! 1. A name changes only under its key lock.
//! 2. Outside of calls, nothing is changed but by the cut hook.
//! 3. What a hook's batch says commutes with every other commit: it adds, or who commits sees to it (`deferred`).

use std::sync::Arc;

use parking_lot::Mutex;
use warpfire_env::Clock;
use warpfire_format::fs::{
    Attrs, CounterId, Dentry, FileKind, FilesystemRecord, Inode, InodeContent, InodeTime, Key, PoolRecordId,
    VolumeId, VolumeRecord, decode_counter, dentry_key, inode_key,
};
use warpfire_meta::{Admit, Batch, Storage};
use warpfire_slices::Leases;
use warpfire_units::Seq;

use crate::damage::{HOLDS_ITSELF, INODE_DIFFERS, NO_INODE_OF_NAME, NO_ROOT_INODE};
use crate::data::Fragmentation;
use crate::deferred::Deferred;
use crate::error::FsError;
use crate::inode_numbers::InodeNumbers;
use crate::node::{InodeCache, NodeLookup, NodeRef, NodeState, RecordLocation, VersionCounters};
use crate::op::{CallGate, CallGuard, Digestible, Operation, TransactionCounters};
use crate::scratch::Scratch;
use crate::stamp::stamp;

/// Inode number of a volume's root directory.
pub(crate) const ROOT_INO: u64 = 1;

/// The name of the first volume.
const FIRST_VOLUME_NAME: &[u8] = b"main";

/// How access times are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AtimeMode {
    /// A read renews an access time that is not later than the last change, or older than a day.
    #[default]
    Relatime,
    /// Reads change nothing.
    Never,
}

/// How to open.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FsOptions {
    /// How access times are kept.
    pub atime: AtimeMode,
}

/// A filesystem over an engine. All calls may be made from many threads at once.
pub struct Fs<E: Storage> {
    pub(crate) engine: Arc<E>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) volume: VolumeId,
    pub(crate) options: FsOptions,
    pub(crate) inode_cache: Arc<InodeCache>,
    pub(crate) version_counters: VersionCounters,
    pub(crate) deferred: Arc<Deferred>,
    pub(crate) leases: Arc<Leases>,
    pub(crate) fragmentation: Arc<Fragmentation>,
    /// Held by who moves a directory to another parent.
    pub(crate) rename: Mutex<()>,
    pub(crate) numbers: InodeNumbers,
    pub(crate) call_gate: CallGate<Fs<E>>,
    pub(crate) transactions: TransactionCounters,
    pub(crate) root: NodeRef,
}

impl<E: Storage> Fs<E> {
    /// Writes an empty filesystem into an empty engine; durable on return. The root directory belongs to `uid` and `gid`.
    ///
    /// # Errors
    /// `Exists` if the engine holds a filesystem already.
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
        put(&filesystem_key, &|out| FilesystemRecord { next_ino: ROOT_INO + 1 }.encode(out));
        put(&Key::Pool(PoolRecordId::Volume(VolumeId::FIRST)).encode(), &|out| {
            VolumeRecord { root_ino: ROOT_INO, name: FIRST_VOLUME_NAME }.encode(out);
        });
        let attrs = Attrs { uid, gid, ..new_attrs(FileKind::Directory, 0o755, now) };
        put(&inode_key(VolumeId::FIRST, ROOT_INO), &|out| {
            Inode { ino: ROOT_INO, attrs, content: InodeContent::Directory(ROOT_INO, b"") }.encode(out);
        });
        put(&Key::Counter(VolumeId::FIRST, CounterId::Inodes).encode(), &|out| {
            warpfire_format::fs::encode_counter(out, 1);
        });
        let seq = engine.commit(&scratch.batch, None, Admit::User)?;
        engine.sync(seq)?;
        Ok(())
    }

    /// Opens the filesystem in an engine and begins to remove what a crash left without a name; `reap` goes on with it.
    ///
    /// # Errors
    /// `NotFound` if the engine holds none; `Damaged` if its records do not decode.
    pub fn open(engine: Arc<E>, clock: Arc<dyn Clock>, options: FsOptions) -> Result<Fs<E>, FsError> {
        let volume = VolumeId::FIRST;
        let mut value = Vec::new();
        if !engine.get(&Key::Pool(PoolRecordId::Filesystem).encode(), Seq::MAX, &mut value)? {
            return Err(FsError::NotFound);
        }
        let next_ino = FilesystemRecord::decode(&value)?.next_ino;
        if !engine.get(&Key::Pool(PoolRecordId::Volume(volume)).encode(), Seq::MAX, &mut value)? {
            return Err(FsError::NotFound);
        }
        let root_ino = VolumeRecord::decode(&value)?.root_ino;
        if !engine.get(&inode_key(volume, root_ino), Seq::MAX, &mut value)? {
            return Err(NO_ROOT_INODE.into());
        }
        let inode = Inode::decode(&value)?;
        let inode_cache = InodeCache::new();
        let found =
            inode_cache.get_or_insert(root_ino, || true, || NodeState::new(&inode, RecordLocation::Own));
        let NodeLookup::Node(root) = found else { unreachable!("a new table holds no other node") };
        let mut sum = |id| -> Result<i64, FsError> {
            let there = engine.get(&Key::Counter(volume, id).encode(), Seq::MAX, &mut value)?;
            if there { Ok(decode_counter(&value)?) } else { Ok(0) }
        };
        let deferred = Arc::new(Deferred::new(volume, sum(CounterId::Inodes)?, sum(CounterId::Bytes)?));
        let hook = Arc::clone(&deferred);
        engine.set_sync_point_hook(Box::new(move |sums, batch| hook.emit(sums, batch)));
        let fs = Fs {
            engine,
            clock,
            volume,
            options,
            inode_cache,
            version_counters: VersionCounters::default(),
            deferred,
            leases: Arc::default(),
            fragmentation: Arc::default(),
            rename: Mutex::new(()),
            numbers: InodeNumbers::for_base(next_ino),
            call_gate: CallGate::base(),
            transactions: TransactionCounters::default(),
            root,
        };
        {
            let _guard = fs.enter_unrecorded();
            fs.remove_left_orphans()?;
        }
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

    /// The node with this number, if someone holds it.
    #[must_use]
    pub fn node_in_use(&self, ino: u64) -> Option<NodeRef> {
        match self.inode_cache.get(ino)? {
            NodeLookup::Node(node) => Some(node),
            NodeLookup::Dying(_) | NodeLookup::Stale => None,
        }
    }

    /// Makes everything that was done before this call durable.
    ///
    /// # Errors
    /// `ReadOnly` if the pool could not; nothing that was durable is lost then.
    pub fn sync(&self) -> Result<(), FsError> {
        self.reap()?;
        Ok(self.engine.sync(Seq::MAX)?)
    }

    /// Makes a file, its names included, durable, and with it everything done before: commits are durable in their order, so one
    /// file alone can not be.
    ///
    /// # Errors
    /// As `sync`.
    pub fn fsync(&self, _node: &NodeRef) -> Result<(), FsError> {
        Ok(self.engine.sync(Seq::MAX)?)
    }

    /// Gives back the inode numbers not used, makes everything durable and closes the engine.
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

    /// Enters the gate for a call that a transaction does not record: see [`CallGate::enter_unrecorded`].
    pub(crate) fn enter_unrecorded(&self) -> CallGuard<'_, Fs<E>> {
        self.call_gate.enter_unrecorded(|| stamp(self.clock.now()))
    }

    /// The time of the call: in the base the clock's, inside a transaction that of when the call began.
    pub(crate) fn now(&self) -> InodeTime {
        self.call_gate.call_time().unwrap_or_else(|| stamp(self.clock.now()))
    }

    pub(crate) fn commit(&self, batch: &Batch, admit: Admit) -> Result<(), FsError> {
        assert!(self.call_gate.is_entered(), "a call changes something only after it has entered the gate");
        self.engine.commit(batch, None, admit)?;
        self.deferred.add_sums(batch.sums());
        Ok(())
    }

    /// A number for a new inode.
    pub(crate) fn new_ino(&self) -> Result<u64, FsError> {
        self.numbers.next(|next_ino| self.put_next_ino(next_ino))
    }

    fn put_next_ino(&self, next_ino: u64) -> Result<(), FsError> {
        let mut value = Vec::new();
        FilesystemRecord { next_ino }.encode(&mut value);
        let mut batch = Batch::new();
        batch.put(&Key::Pool(PoolRecordId::Filesystem).encode(), &value);
        self.commit(&batch, Admit::Reserve)
    }

    /// The newest value of a key.
    pub(crate) fn get(&self, key: &[u8], out: &mut Vec<u8>) -> Result<bool, FsError> {
        Ok(self.engine.get(key, Seq::MAX, out)?)
    }

    /// The node that a name leads to, `None` if there is no such name.
    pub(crate) fn find(&self, dir: u64, name: &[u8]) -> Result<Option<NodeRef>, FsError> {
        let key = dentry_key(self.volume, dir, name);
        let mut scratch = Scratch::take();
        loop {
            let before = self.version_counters.at(&key);
            if !self.get(&key, &mut scratch.value)? {
                return Ok(None);
            }
            let dentry = Dentry::decode(&scratch.value)?;
            if dentry.ino() == dir {
                return Err(HOLDS_ITSELF.into());
            }
            let found = match dentry {
                Dentry::Reference(kind, ino) => self.find_at_own_key(kind, ino, Some((dir, name)))?,
                Dentry::Embedded(inode) => Some(self.inode_cache.get_or_insert(
                    inode.ino,
                    || self.version_counters.at(&key) == before,
                    || NodeState::new(&inode, RecordLocation::Dentry(dir, name.into())),
                )),
            };
            match found {
                Some(NodeLookup::Node(node)) => return Ok(Some(node)),
                Some(NodeLookup::Dying(node)) => drop(node.state.read()),
                Some(NodeLookup::Stale) => {}
                // The inode went away after the name was read: so has the name, unless the store lost the inode.
                None if self.version_counters.at(&key) == before => {
                    return Err(NO_INODE_OF_NAME.into());
                }
                None => {}
            }
        }
    }

    /// The node of an inode that lives at its own key, found by a name of it. `None` if there is no such inode.
    fn find_at_own_key(
        &self,
        kind: FileKind,
        ino: u64,
        by: Option<(u64, &[u8])>,
    ) -> Result<Option<NodeLookup>, FsError> {
        if let Some(found) = self.inode_cache.get(ino) {
            return Ok(Some(found));
        }
        let key = inode_key(self.volume, ino);
        let before = self.version_counters.at(&key);
        let mut value = Vec::new();
        if !self.get(&key, &mut value)? {
            return Ok(None);
        }
        let inode = Inode::decode(&value)?;
        if inode.ino != ino || inode.attrs.kind != kind || inode.attrs.links == 0 {
            return Err(INODE_DIFFERS.into());
        }
        let is_current = || self.version_counters.at(&key) == before;
        let state = || {
            let state = NodeState::new(&inode, RecordLocation::Own);
            let dentry = state.dentry.clone().or_else(|| by.map(|(dir, name)| (dir, name.into())));
            NodeState { dentry, ..state }
        };
        Ok(Some(self.inode_cache.get_or_insert(ino, is_current, state)))
    }

    /// The node of a directory by number, for walks towards the root. `None` if it is gone.
    pub(crate) fn directory(&self, ino: u64) -> Result<Option<NodeRef>, FsError> {
        loop {
            match self.find_at_own_key(FileKind::Directory, ino, None)? {
                Some(NodeLookup::Node(node)) => return Ok(Some(node)),
                Some(NodeLookup::Dying(node)) => drop(node.state.read()),
                Some(NodeLookup::Stale) => {}
                None => return Ok(None),
            }
        }
    }

    /// Notes that names in a directory have changed.
    pub(crate) fn defer_times(&self, dir: &NodeRef, now: InodeTime) {
        self.deferred.defer_times(dir, now);
    }
}

/// Attributes of something new.
pub(crate) fn new_attrs(kind: FileKind, permissions: u16, now: InodeTime) -> Attrs {
    Attrs {
        kind,
        permissions,
        uid: 0,
        gid: 0,
        links: kind.first_links(),
        size_bytes: 0,
        allocated_bytes: 0,
        rdev: 0,
        btime: now,
        mtime: now,
        ctime: now,
        atime: now,
        flags: 0,
    }
}
