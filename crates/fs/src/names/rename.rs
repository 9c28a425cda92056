//! Calls that move names: `rename` and `exchange`.
//!
//! A rename has a *source*, the node that its first name leads to, and maybe a *target*, the node that its
//! second name leads to. The key of the first name is `from`, of the second `to`.
//!
//! ```text
//!   try_rename ─► locks ─► both names lead where they led? ─ no ─► try again
//!                                    │ yes
//!                          check_rename: permissions, kinds, no circle
//!                                    ├─► replace: source to `to`, target departs
//!                                    └─► swap: source to `to`, target to `from`
//! ```
//!
//! # Invariants
//! 1. Both names change in one commit, under the locks of both keys. A target directory is held exclusively,
//!    so it stays empty (assert in `is_empty`).
//! 2. All states of nodes that change are held, by ascending inode number (their places in `lock_ranks.rs`).
//! 3. No directory becomes its own ancestor: a move of a directory to another parent holds `Fs::rename`, so
//!    the answer of `is_ancestor` stays true until the commit (assert there).
//! 4. A failure leaves both names as they were, and revives the target.

use smallvec::SmallVec;
use warpfire_format::fs::{Attrs, Dentry, FileKind, Inode, InodeContent, InodeEdit, InodeTime, KeyBuf};
use warpfire_meta::{Admit, Batch, Storage};

use super::departure::{Departure, with_ctime};
use super::remove::check_parent_and_name;
use super::{ChildrenLock, lock_children};
use crate::acl::{Caller, Perm};
use crate::attrs::missing_record;
use crate::damage::{MISCOUNTED_LINKS, OWN_ANCESTOR};
use crate::deferred::INODES;
use crate::error::FsError;
use crate::fs::{Fs, new_attrs};
use crate::keys::{dentry_key, inode_key, share_volume, stored};
use crate::limits::{DEPTH_MAX, LINKS_MAX};
use crate::node::{NameBuf, Node, NodeRef, NodeState, RecordLocation, StateWriteGuard};
use crate::op::{HeapBytes, Operation, RecordedCaller, ReplayScene};
use crate::scratch::Scratch;

/// How a rename treats a target that exists.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RenameMode {
    /// Replace it.
    #[default]
    Replace,
    /// Fail with `Exists`.
    NoReplace,
    /// Swap the two names, as [`Fs::exchange`] does; both must exist.
    Exchange,
    /// Replace it, and leave a *whiteout* under the old name: a character device with number 0, by which a
    /// filesystem that lies over this one marks a removed name.
    Whiteout,
}

/// One end of a rename: a name in a directory, and its key.
struct RenameEnd<'a> {
    dir: &'a NodeRef,
    name: &'a [u8],
    key: KeyBuf,
}

/// The states of the nodes that a rename changes, held for writing. Each node is there once.
struct LockedStates<'a>(SmallVec<[(u64, StateWriteGuard<'a>); 4]>);

impl<'a> LockedStates<'a> {
    fn hold(nodes: &[&'a NodeRef]) -> Self {
        let mut order: SmallVec<[&NodeRef; 4]> = nodes.into();
        order.sort_by_key(|node| node.ino());
        order.dedup_by_key(|node| node.ino());
        LockedStates(order.into_iter().map(|node| (node.ino(), node.state.write())).collect())
    }

    /// The state of one of the nodes.
    fn of(&mut self, node: &NodeRef) -> &mut NodeState {
        let found = self.0.iter_mut().find(|(ino, _)| *ino == node.ino());
        &mut found.expect("the state of each node involved is held").1
    }
}

impl<E: Storage> Fs<E> {
    /// Moves a name, in one commit. If both names lead to one file, both stay, as POSIX says.
    ///
    /// # Errors
    /// `NotFound`; `Exists`, `NotEmpty`, `IsDirectory` or `NotDirectory` for a target that cannot be
    /// replaced; `Invalid` if a directory would become its own ancestor; `Busy` for `.` and `..`;
    /// `AccessDenied`, `NotPermitted`; `TooManyLinks`; `NoSpace`.
    pub fn rename(
        &self,
        caller: &Caller<'_>,
        from: (&NodeRef, &[u8]),
        to: (&NodeRef, &[u8]),
        mode: RenameMode,
    ) -> Result<(), FsError> {
        let record = || Rename {
            caller: RecordedCaller::of(caller),
            from: (from.0.ino(), from.1.into()),
            to: (to.0.ino(), to.1.into()),
            mode,
        };
        self.call(record, || {
            for (dir, name) in [from, to] {
                if name == b"." || name == b".." {
                    return Err(FsError::Busy);
                }
                check_parent_and_name(dir, name)?;
            }
            if !share_volume(from.0.ino(), to.0.ino()) {
                return Err(FsError::OtherVolume);
            }
            let end = |(dir, name): (&'_ NodeRef, &[u8])| dentry_key(dir.ino(), name);
            let from = RenameEnd { dir: from.0, name: from.1, key: end(from) };
            let to = RenameEnd { dir: to.0, name: to.1, key: end(to) };
            // The locks to take depend on the kinds of both nodes, so the nodes are found without locks and
            // compared again under them.
            loop {
                let departed = self.change_with_pin(|| {
                    let source = self.find(from.dir.ino(), from.name)?;
                    let target = self.find(to.dir.ino(), to.name)?;
                    self.try_rename(caller, &from, &to, mode, source, target)
                })?;
                if let Some(departure) = departed {
                    if departure == Departure::Orphaned {
                        self.reap_after_commit();
                    }
                    return Ok(());
                }
            }
        })
    }

    /// Swaps the files of two names, in one commit: at every moment both names lead to a file. The files may
    /// be of any two kinds and in different directories. Two names of one file stay as they are.
    ///
    /// # Errors
    /// `NotFound` if one of the names does not exist; `Invalid` if a directory would become its own ancestor;
    /// `AccessDenied`, `NotPermitted` as if each were renamed to the other; `TooManyLinks`; `NoSpace`.
    pub fn exchange(
        &self,
        caller: &Caller<'_>,
        a: (&NodeRef, &[u8]),
        b: (&NodeRef, &[u8]),
    ) -> Result<(), FsError> {
        let record = || Exchange {
            caller: RecordedCaller::of(caller),
            a: (a.0.ino(), a.1.into()),
            b: (b.0.ino(), b.1.into()),
        };
        // `rename` is a call within this call: the journal records `exchange` only.
        self.call(record, || self.rename(caller, a, b, RenameMode::Exchange))
    }

    /// One try; `None` if a name no longer leads to `source` or `target` once it is locked.
    fn try_rename(
        &self,
        caller: &Caller<'_>,
        from: &RenameEnd<'_>,
        to: &RenameEnd<'_>,
        mode: RenameMode,
        source: Option<NodeRef>,
        target: Option<NodeRef>,
    ) -> Result<Option<Departure>, FsError> {
        let is_dir = |node: &Option<NodeRef>| node.as_ref().is_some_and(|n| n.is_dir());
        let exchange = mode == RenameMode::Exchange;
        let moves_a_directory = is_dir(&source) || (exchange && is_dir(&target));
        let across = from.dir.ino() != to.dir.ino();
        // Only such a move changes ancestors. Within one parent, and for files, renames run side by side.
        let _one_at_a_time = (moves_a_directory && across).then(|| self.rename.lock());
        // A directory that gains a name is held shared; a target that must be empty is held exclusively.
        let mut holds: SmallVec<[_; 3]> = SmallVec::new();
        holds.push((&**to.dir, ChildrenLock::Shared));
        if exchange {
            holds.push((&**from.dir, ChildrenLock::Shared));
        }
        let replaces_a_directory = !exchange && is_dir(&source) && is_dir(&target);
        let same = source.as_ref().map(|n| n.ino()) == target.as_ref().map(|n| n.ino());
        if let Some(target) = target.as_ref().filter(|_| replaces_a_directory && !same) {
            holds.push((&**target, ChildrenLock::Exclusive));
        }
        let _held = lock_children(&holds);
        let _guard = self.engine.lock(&[&from.key, &to.key]);
        // A record that moves takes its slices along. The pin keeps their segments from the read of the
        // record to the commit.
        let _pin = self.pin_to_commit()?;
        for (end, node) in [(from, &source), (to, &target)] {
            let still = self.find(end.dir.ino(), end.name)?.map(|n| n.ino());
            if still != node.as_ref().map(|n| n.ino()) {
                return Ok(None);
            }
        }
        let source = match source {
            Some(source) => source,
            None => {
                // Only a caller that may search the directory learns that the name does not exist.
                self.access(caller, from.dir, Perm::EXECUTE)?;
                return Err(FsError::NotFound);
            }
        };
        self.check_rename(caller, from, to, mode, &source, target.as_ref())?;
        if same {
            return Ok(Some(Departure::LinksLeft));
        }
        let now = self.now();
        let departed = match &target {
            Some(target) if exchange => self.swap(from, to, &source, target, now)?,
            _ => {
                let whiteout = (mode == RenameMode::Whiteout).then_some(caller);
                self.replace(from, to, &source, target.as_ref(), whiteout, now)?
            }
        };
        // The key locks are still held, so no other call changes the names before the counters move.
        self.version_counters.bump(&from.key);
        self.version_counters.bump(&to.key);
        self.defer_times(from.dir, now);
        if across {
            self.defer_times(to.dir, now);
        }
        Ok(Some(departed))
    }

    /// Checks permissions and kinds. The caller holds all locks except the states.
    fn check_rename(
        &self,
        caller: &Caller<'_>,
        from: &RenameEnd<'_>,
        to: &RenameEnd<'_>,
        mode: RenameMode,
        source: &NodeRef,
        target: Option<&NodeRef>,
    ) -> Result<(), FsError> {
        // The order of the checks decides which error a call with several mistakes gets: names
        // first, then permissions, then kinds.
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(FsError::Exists),
            (RenameMode::Exchange, None) => return Err(FsError::NotFound),
            _ => {}
        }
        let uid = source.state.read().attrs.uid;
        self.permit_removal(caller, from.dir, uid)?;
        if to.dir.state.read().is_unlinked() || from.dir.state.read().is_unlinked() {
            return Err(FsError::NotFound);
        }
        match target {
            Some(target) => {
                let uid = target.state.read().attrs.uid;
                self.permit_removal(caller, to.dir, uid)?;
            }
            None => self.access(caller, to.dir, Perm::WRITE.or(Perm::EXECUTE))?,
        }
        let across = from.dir.ino() != to.dir.ino();
        if across && source.is_dir() {
            if self.is_ancestor(source, to.dir)? {
                return Err(FsError::Invalid("a directory cannot be moved into itself"));
            }
            // A move to another parent changes the `..` of the directory.
            self.access(caller, source, Perm::WRITE)?;
        }
        let Some(target) = target.filter(|t| t.ino() != source.ino()) else { return Ok(()) };
        if mode == RenameMode::Exchange {
            if across && target.is_dir() {
                if self.is_ancestor(target, from.dir)? {
                    return Err(FsError::Invalid("a directory cannot be moved into itself"));
                }
                self.access(caller, target, Perm::WRITE)?;
            }
            return Ok(());
        }
        match (source.is_dir(), target.is_dir()) {
            (true, false) => Err(FsError::NotDirectory),
            (false, true) => Err(FsError::IsDirectory),
            (true, true) if !self.is_empty(target)? => Err(FsError::NotEmpty),
            // The volume behind a door goes by `delete_volume` alone.
            (true, true) if !share_volume(to.dir.ino(), target.ino()) => Err(FsError::Busy),
            _ => Ok(()),
        }
    }

    /// Adds to the batch that the name of the source leads to a whiteout, which belongs to the caller.
    fn plan_whiteout(
        &self,
        caller: &Caller<'_>,
        from: &RenameEnd<'_>,
        now: InodeTime,
        batch: &mut Batch,
    ) -> Result<(), FsError> {
        let attrs = Attrs { uid: caller.uid, gid: caller.gid, ..new_attrs(FileKind::CharDevice, 0, now) };
        debug_assert_eq!(attrs.rdev, 0, "a whiteout is the device with number 0");
        let mut record = Vec::new();
        Inode { ino: self.new_ino(from.dir)?, attrs, content: InodeContent::None }.encode(&mut record);
        batch.put_naming(&from.key, &record, []);
        batch.add(INODES, 1);
        Ok(())
    }

    /// Moves the source to `to`, in place of a target if there is one. With `whiteout` the old name gets one,
    /// which belongs to that caller. Returns how the target departed.
    fn replace(
        &self,
        from: &RenameEnd<'_>,
        to: &RenameEnd<'_>,
        source: &NodeRef,
        target: Option<&NodeRef>,
        whiteout: Option<&Caller<'_>>,
        now: InodeTime,
    ) -> Result<Departure, FsError> {
        debug_assert!(target.is_none_or(|target| target.ino() != source.ino()), "two names of one file stay");
        let mut nodes: SmallVec<[&NodeRef; 4]> = SmallVec::from_slice(&[from.dir, to.dir, source]);
        nodes.extend(target);
        let mut states = LockedStates::hold(&nodes);
        let mut scratch = Scratch::take();
        let batch = &mut scratch.batch;
        let across = from.dir.ino() != to.dir.ino();
        let mut from_links = 0;
        let mut to_links = 0;
        // A subdirectory is a link to its parent, by its `..`.
        if source.is_dir() && across {
            (from_links, to_links) = (-1, 1);
        }
        if source.is_dir() && target.is_some() {
            to_links -= 1;
        }
        match whiteout {
            Some(caller) => self.plan_whiteout(caller, from, now, batch)?,
            None => batch.delete(&from.key),
        }
        // From here the target may be dying, and every failure must revive it.
        let location = self.plan_arrival(source, states.of(source), to, now, batch)?;
        let departure = match target {
            Some(target) if target.is_dir() => {
                self.plan_directory_removal(target, states.of(target), batch)?;
                Some(Departure::Removed)
            }
            Some(target) => Some(self.plan_departure(target, states.of(target), now, batch)?),
            None => None,
        };
        let planned = self
            .plan_links(&mut states, from.dir, from_links, batch)
            .and_then(|()| self.plan_links(&mut states, to.dir, to_links, batch))
            .and_then(|()| self.commit(batch, Admit::User));
        if let Err(e) = planned {
            if let Some(target) = target {
                Self::cancel_departure(target);
            }
            return Err(e);
        }
        // The commit has succeeded: the nodes follow, under the same states.
        if let (Some(target), Some(departure)) = (target, departure) {
            let state = states.of(target);
            if target.is_dir() {
                self.finish_directory_removal(target, state, now);
            } else {
                self.finish_departure(target, state, departure, now);
            }
        }
        self.finish_links(&mut states, from.dir, from_links);
        self.finish_links(&mut states, to.dir, to_links);
        self.finish_arrival(source, states.of(source), to, location, now);
        Ok(departure.unwrap_or(Departure::LinksLeft))
    }

    /// Moves the source to `to` and the target to `from`.
    fn swap(
        &self,
        from: &RenameEnd<'_>,
        to: &RenameEnd<'_>,
        source: &NodeRef,
        target: &NodeRef,
        now: InodeTime,
    ) -> Result<Departure, FsError> {
        assert_ne!(source.ino(), target.ino(), "two names of one file stay");
        let mut states = LockedStates::hold(&[from.dir, to.dir, source, target]);
        let mut scratch = Scratch::take();
        let batch = &mut scratch.batch;
        let source_location = self.plan_arrival(source, states.of(source), to, now, batch)?;
        let target_location = self.plan_arrival(target, states.of(target), from, now, batch)?;
        let across = from.dir.ino() != to.dir.ino();
        // Two directories change places without a change of their parents' link counts.
        let moved = if across { i64::from(source.is_dir()) - i64::from(target.is_dir()) } else { 0 };
        self.plan_links(&mut states, from.dir, -moved, batch)?;
        self.plan_links(&mut states, to.dir, moved, batch)?;
        self.commit(batch, Admit::User)?;
        self.finish_links(&mut states, from.dir, -moved);
        self.finish_links(&mut states, to.dir, moved);
        self.finish_arrival(source, states.of(source), to, source_location, now);
        self.finish_arrival(target, states.of(target), from, target_location, now);
        Ok(Departure::LinksLeft)
    }

    /// Adds to the batch that the name `at` leads to `node`. Returns the location that the node's record will
    /// have.
    fn plan_arrival(
        &self,
        node: &NodeRef,
        state: &NodeState,
        at: &RenameEnd<'_>,
        now: InodeTime,
        batch: &mut Batch,
    ) -> Result<RecordLocation, FsError> {
        debug_assert!(node.state.is_locked_exclusive(), "a record changes under its node's state");
        debug_assert!(!state.is_unlinked(), "a node that moves has a name");
        let mut value = Vec::new();
        // The record of a file with one name is the value of that name, so the record moves. Its key is
        // deleted or overwritten by the caller.
        if let RecordLocation::Dentry(..) = state.location {
            let old = state.record_key(node.ino()).ok_or(FsError::Gone)?;
            let mut record = Vec::new();
            if !self.get(&old, &mut record)? {
                return Err(missing_record());
            }
            with_ctime(&record, now)?.encode(&mut value);
            batch.put(&at.key, &value);
            return Ok(RecordLocation::Dentry(at.dir.ino(), at.name.into()));
        }
        Dentry::encode_reference(&mut value, node.kind(), stored(at.dir.ino(), node.ino()));
        batch.put_naming(&at.key, &value, []);
        value.clear();
        let parent = node.is_dir().then(|| (stored(node.ino(), at.dir.ino()), at.name));
        InodeEdit { ctime: Some(now), parent, ..InodeEdit::default() }.encode(&mut value);
        batch.merge_naming(&inode_key(node.ino()), &value, []);
        Ok(RecordLocation::Own)
    }

    /// Brings the new name and location to the node, after the commit.
    fn finish_arrival(
        &self,
        node: &NodeRef,
        state: &mut NodeState,
        at: &RenameEnd<'_>,
        location: RecordLocation,
        now: InodeTime,
    ) {
        debug_assert!(node.state.is_locked_exclusive(), "a node changes under its state");
        debug_assert!(!node.is_dir() || location == RecordLocation::Own, "a directory keeps its own key");
        // The keys of both names are the caller's to bump.
        for location in [&state.location, &location] {
            if *location == RecordLocation::Own {
                self.version_counters.bump(&inode_key(node.ino()));
            }
        }
        state.location = location;
        state.attrs.ctime = now;
        if state.location == RecordLocation::Own {
            state.dentry = Some(Box::new((at.dir.ino(), NameBuf::from_slice(at.name))));
        }
    }

    /// Adds to the batch a change of a directory's link count.
    fn plan_links(
        &self,
        states: &mut LockedStates<'_>,
        dir: &NodeRef,
        links_add: i64,
        batch: &mut Batch,
    ) -> Result<(), FsError> {
        if links_add == 0 {
            return Ok(());
        }
        let links = i64::from(states.of(dir).attrs.links) + links_add;
        if links_add > 0 && links > i64::from(LINKS_MAX) {
            return Err(FsError::TooManyLinks);
        }
        // `.` and the name in the parent are always left. Fewer links come from a damaged record.
        if links < 2 {
            return Err(MISCOUNTED_LINKS.into());
        }
        let mut operand = Vec::new();
        InodeEdit { links_add, ..InodeEdit::default() }.encode(&mut operand);
        batch.merge_naming(&inode_key(dir.ino()), &operand, []);
        Ok(())
    }

    /// Brings a change of a directory's link count to its node, after the commit.
    fn finish_links(&self, states: &mut LockedStates<'_>, dir: &NodeRef, links_add: i64) {
        if links_add != 0 {
            let attrs = &mut states.of(dir).attrs;
            let links = i64::from(attrs.links) + links_add;
            attrs.links = u32::try_from(links).expect("`plan_links` has checked the count");
            self.version_counters.bump(&inode_key(dir.ino()));
        }
    }

    /// Whether `above` is `below` or one of its ancestors. The caller holds `Fs::rename`, so the answer stays
    /// true: only moves of directories change it.
    fn is_ancestor(&self, above: &Node, below: &NodeRef) -> Result<bool, FsError> {
        debug_assert!(self.rename.is_locked(), "ancestors change only under this lock");
        let mut at = NodeRef::clone(below);
        for _ in 0..DEPTH_MAX {
            if at.ino() == above.ino() {
                return Ok(true);
            }
            let parent = match self.parent(&at) {
                // A directory that has been removed has no ancestors.
                Err(FsError::NotFound) => return Ok(false),
                other => other?,
            };
            // The root is its own parent.
            if parent.ino() == at.ino() {
                return Ok(false);
            }
            at = parent;
        }
        Err(OWN_ANCESTOR.into())
    }
}

/// [`Fs::rename`] as a journal keeps it.
struct Rename {
    caller: RecordedCaller,
    from: (u64, NameBuf),
    to: (u64, NameBuf),
    mode: RenameMode,
}

impl<E: Storage> Operation<Fs<E>> for Rename {
    fn name(&self) -> &'static str {
        "rename"
    }

    fn subject(&self) -> (u64, &[u8]) {
        (self.from.0, &self.from.1)
    }

    fn heap_bytes(&self) -> usize {
        self.caller.heap_bytes() + self.from.1.heap_bytes() + self.to.1.heap_bytes()
    }

    fn replay(&self, fs: &Fs<E>, scene: &mut ReplayScene) -> Result<(), FsError> {
        let (from, to) = (scene.node(self.from.0)?, scene.node(self.to.0)?);
        fs.rename(&self.caller.get(), (from, &self.from.1), (to, &self.to.1), self.mode)
    }
}

/// [`Fs::exchange`] as a journal keeps it.
struct Exchange {
    caller: RecordedCaller,
    a: (u64, NameBuf),
    b: (u64, NameBuf),
}

impl<E: Storage> Operation<Fs<E>> for Exchange {
    fn name(&self) -> &'static str {
        "exchange"
    }

    fn subject(&self) -> (u64, &[u8]) {
        (self.a.0, &self.a.1)
    }

    fn heap_bytes(&self) -> usize {
        self.caller.heap_bytes() + self.a.1.heap_bytes() + self.b.1.heap_bytes()
    }

    fn replay(&self, fs: &Fs<E>, scene: &mut ReplayScene) -> Result<(), FsError> {
        let (a, b) = (scene.node(self.a.0)?, scene.node(self.b.0)?);
        fs.exchange(&self.caller.get(), (a, &self.a.1), (b, &self.b.1))
    }
}
