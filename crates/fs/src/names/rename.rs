//! Renaming and exchanging.
//!
//! The two names are held by their key locks, the inodes by their states, directories that would be replaced
//! by their children; moves of directories between parents exclude each other, so that none becomes its own
//! ancestor.

use parking_lot::RwLockWriteGuard;
use smallvec::SmallVec;
use warpfire_format::fs::{Dentry, InodeEdit, InodeTime, KeyBuf, dentry_key, inode_key};
use warpfire_meta::{Admit, Batch, Storage};

use super::departure::{Departure, with_ctime};
use super::remove::check_parent_and_name;
use super::{ChildrenLock, lock_children};
use crate::acl::{Caller, Perm};
use crate::attrs::missing_record;
use crate::damage::MISCOUNTED_LINKS;
use crate::error::FsError;
use crate::fs::Fs;
use crate::limits::LINKS_MAX;
use crate::node::{NameBuf, NodeRef, NodeState, RecordLocation};
use crate::op::{HeapBytes, Operation, RecordedCaller, ReplayScene};
use crate::scratch::Scratch;

/// What to do about a target that exists.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RenameMode {
    /// Replace it.
    #[default]
    Replace,
    /// Fail with `Exists`.
    NoReplace,
    /// Swap the two names, as [`Fs::exchange`] does; both must exist.
    Exchange,
}

/// One end of a rename: a name and what it leads to.
struct RenameEnd<'a> {
    dir: &'a NodeRef,
    name: &'a [u8],
    key: KeyBuf,
}

/// The states that a rename changes, held in the order that all callers keep.
struct LockedStates<'a>(SmallVec<[(u64, RwLockWriteGuard<'a, NodeState>); 4]>);

impl<'a> LockedStates<'a> {
    fn hold(nodes: &[&'a NodeRef]) -> Self {
        let mut order: SmallVec<[&NodeRef; 4]> = nodes.into();
        order.sort_by_key(|node| node.ino());
        order.dedup_by_key(|node| node.ino());
        LockedStates(order.into_iter().map(|node| (node.ino(), node.state.write())).collect())
    }

    fn of(&mut self, node: &NodeRef) -> &mut NodeState {
        let found = self.0.iter_mut().find(|(ino, _)| *ino == node.ino());
        &mut found.expect("the state of each node involved is held").1
    }
}

impl<E: Storage> Fs<E> {
    /// Renames, in one commit. Two names of one file stay as they are.
    ///
    /// # Errors
    /// `NotFound`; `Exists`, `NotEmpty`, `IsDirectory` or `NotDirectory` for a target that can not be
    /// replaced; `Invalid` if a directory would become its own ancestor; `AccessDenied`, `NotPermitted`;
    /// `NoSpace`.
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
            let end = |(dir, name): (&'_ NodeRef, &[u8])| dentry_key(self.volume, dir.ino(), name);
            let (from, to) = (
                RenameEnd { dir: from.0, name: from.1, key: end(from) },
                RenameEnd { dir: to.0, name: to.1, key: end(to) },
            );
            loop {
                let source = self.find(from.dir.ino(), from.name)?;
                let target = self.find(to.dir.ino(), to.name)?;
                let departed = self.try_rename(caller, &from, &to, mode, source, target)?;
                match departed {
                    Some(Departure::Orphaned) => return self.reap(),
                    Some(_) => return Ok(()),
                    None => {}
                }
            }
        })
    }

    /// Swaps what two names lead to, in one commit: nobody sees one of them changed and the other not, and
    /// both files are always there. They may be of any two kinds, and in different directories. Two names of
    /// one file stay as they are.
    ///
    /// # Errors
    /// `NotFound` if one of them is not there; `Invalid` if a directory would become its own ancestor;
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
        // A call within a call: only the outer one is recorded.
        self.call(record, || self.rename(caller, a, b, RenameMode::Exchange))
    }

    /// One try; `None` if a name led elsewhere once it was locked.
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
        let _one_at_a_time = (moves_a_directory && across).then(|| self.rename.lock());
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
        // A record that moves takes its slices along: they stay from its reading to its commit.
        let _pin = self.engine.pin()?;
        for (end, node) in [(from, &source), (to, &target)] {
            let still = self.find(end.dir.ino(), end.name)?.map(|n| n.ino());
            if still != node.as_ref().map(|n| n.ino()) {
                return Ok(None);
            }
        }
        let source = match source {
            Some(source) => source,
            None => {
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
            _ => self.replace(from, to, &source, target.as_ref(), now)?,
        };
        self.version_counters.bump(&from.key);
        self.version_counters.bump(&to.key);
        self.defer_times(from.dir, now);
        if across {
            self.defer_times(to.dir, now);
        }
        Ok(Some(departed))
    }

    fn check_rename(
        &self,
        caller: &Caller<'_>,
        from: &RenameEnd<'_>,
        to: &RenameEnd<'_>,
        mode: RenameMode,
        source: &NodeRef,
        target: Option<&NodeRef>,
    ) -> Result<(), FsError> {
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
                return Err(FsError::Invalid("a directory can not be moved into itself"));
            }
            self.access(caller, source, Perm::WRITE)?;
        }
        let Some(target) = target.filter(|t| t.ino() != source.ino()) else { return Ok(()) };
        if mode == RenameMode::Exchange {
            if across && target.is_dir() {
                if self.is_ancestor(target, from.dir)? {
                    return Err(FsError::Invalid("a directory can not be moved into itself"));
                }
                self.access(caller, target, Perm::WRITE)?;
            }
            return Ok(());
        }
        match (source.is_dir(), target.is_dir()) {
            (true, false) => Err(FsError::NotDirectory),
            (false, true) => Err(FsError::IsDirectory),
            (true, true) if !self.is_empty(target)? => Err(FsError::NotEmpty),
            _ => Ok(()),
        }
    }

    fn replace(
        &self,
        from: &RenameEnd<'_>,
        to: &RenameEnd<'_>,
        source: &NodeRef,
        target: Option<&NodeRef>,
        now: InodeTime,
    ) -> Result<Departure, FsError> {
        let mut nodes: SmallVec<[&NodeRef; 4]> = SmallVec::from_slice(&[from.dir, to.dir, source]);
        nodes.extend(target);
        let mut states = LockedStates::hold(&nodes);
        let mut scratch = Scratch::take();
        let batch = &mut scratch.batch;
        let across = from.dir.ino() != to.dir.ino();
        let (mut from_links, mut to_links) = (0, 0);
        if source.is_dir() && across {
            (from_links, to_links) = (-1, 1);
        }
        if source.is_dir() && target.is_some() {
            to_links -= 1;
        }
        batch.delete(&from.key);
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

    fn swap(
        &self,
        from: &RenameEnd<'_>,
        to: &RenameEnd<'_>,
        source: &NodeRef,
        target: &NodeRef,
        now: InodeTime,
    ) -> Result<Departure, FsError> {
        let mut states = LockedStates::hold(&[from.dir, to.dir, source, target]);
        let mut scratch = Scratch::take();
        let batch = &mut scratch.batch;
        let source_location = self.plan_arrival(source, states.of(source), to, now, batch)?;
        let target_location = self.plan_arrival(target, states.of(target), from, now, batch)?;
        let across = from.dir.ino() != to.dir.ino();
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

    /// Adds to the batch that a name now leads to `node`. Returns where the node's record will be.
    fn plan_arrival(
        &self,
        node: &NodeRef,
        state: &NodeState,
        at: &RenameEnd<'_>,
        now: InodeTime,
        batch: &mut Batch,
    ) -> Result<RecordLocation, FsError> {
        let mut value = Vec::new();
        if let RecordLocation::Dentry(..) = state.location {
            let old = state.record_key(self.volume, node.ino()).ok_or_else(missing_record)?;
            let mut record = Vec::new();
            if !self.get(&old, &mut record)? {
                return Err(missing_record());
            }
            with_ctime(&record, now)?.encode(&mut value);
            batch.put(&at.key, &value);
            return Ok(RecordLocation::Dentry(at.dir.ino(), at.name.into()));
        }
        Dentry::encode_reference(&mut value, node.kind(), node.ino());
        batch.put_naming(&at.key, &value, []);
        value.clear();
        let parent = node.is_dir().then_some((at.dir.ino(), at.name));
        InodeEdit { ctime: Some(now), parent, ..InodeEdit::default() }.encode(&mut value);
        batch.merge_naming(&inode_key(self.volume, node.ino()), &value, []);
        Ok(RecordLocation::Own)
    }

    fn finish_arrival(
        &self,
        node: &NodeRef,
        state: &mut NodeState,
        at: &RenameEnd<'_>,
        location: RecordLocation,
        now: InodeTime,
    ) {
        for location in [&state.location, &location] {
            if *location == RecordLocation::Own {
                self.version_counters.bump(&inode_key(self.volume, node.ino()));
            }
        }
        state.location = location;
        state.attrs.ctime = now;
        if state.location == RecordLocation::Own {
            state.dentry = Some((at.dir.ino(), NameBuf::from_slice(at.name)));
        }
    }

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
        if links < 2 {
            return Err(MISCOUNTED_LINKS.into());
        }
        let mut operand = Vec::new();
        InodeEdit { links_add, ..InodeEdit::default() }.encode(&mut operand);
        batch.merge_naming(&inode_key(self.volume, dir.ino()), &operand, []);
        Ok(())
    }

    fn finish_links(&self, states: &mut LockedStates<'_>, dir: &NodeRef, links_add: i64) {
        if links_add != 0 {
            let attrs = &mut states.of(dir).attrs;
            let links = i64::from(attrs.links) + links_add;
            attrs.links = u32::try_from(links).expect("checked when it was planned");
            self.version_counters.bump(&inode_key(self.volume, dir.ino()));
        }
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
