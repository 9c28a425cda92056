//! Calls that give a file a whole new content.
//!
//! # Invariants
//! 1. Several files are locked in the order of their inode numbers (assert in `concat`).

use warpfire_meta::Storage;

use super::yanked_slice::YankedSlice;
use crate::acl::Caller;
use crate::data::{Splice, check_end, check_regular, pieces_of};
use crate::error::FsError;
use crate::fs::Fs;
use crate::node::{NodeRef, NodeState, StateReadGuard, StateWriteGuard};
use crate::op::{HeapBytes, Operation, RecordedCaller, ReplayScene};
use crate::scratch::Scratch;

/// The state of a file among several that are locked together.
enum LockedState<'n> {
    Source(StateReadGuard<'n>),
    Target(StateWriteGuard<'n>),
}

impl LockedState<'_> {
    fn state(&self) -> &NodeState {
        match self {
            LockedState::Source(state) => state,
            LockedState::Target(state) => state,
        }
    }
}

impl<E: Storage> Fs<E> {
    /// Makes a value the whole content of a file, in one commit.
    ///
    /// # Errors
    /// As `paste`, where the file's own regions count too.
    pub fn replace_content(
        &self,
        caller: &Caller<'_>,
        node: &NodeRef,
        slice: &YankedSlice,
    ) -> Result<(), FsError> {
        let record =
            || ReplaceContent { caller: RecordedCaller::of(caller), node: node.ino(), slice: slice.clone() };
        self.call(record, || {
            check_regular(node)?;
            let now = self.use_slice(slice)?;
            self.change_with_pin(|| {
                let _pin = self.pin_to_commit()?;
                let mut scratch = Scratch::take();
                let mut state = node.state.write();
                let len = check_end(0, slice.len_bytes())?;
                let in_use = slice.in_use(now)?;
                let pieces = in_use.pieces(0);
                let edit = self.edit_of_write(caller, node, &state, &mut scratch.batch);
                // Everything is removed, and nothing moves.
                let splice = Splice { start: 0, from: state.attrs.size_bytes, to: len, inserted: &pieces };
                self.splice(node, &mut state, &splice, edit, &mut scratch.batch)
            })
        })
    }

    /// Makes the contents of `sources`, one after the other, the content of `target`: as of one moment, in
    /// one commit. `target` may be one of the sources. With one source this is `copy`. Returns the length in
    /// bytes.
    ///
    /// # Errors
    /// `FileTooLarge` beyond 2^63 - 1, or if target and sources have more than 2^18 regions; otherwise as
    /// `write`.
    pub fn concat(&self, caller: &Caller<'_>, target: &NodeRef, sources: &[NodeRef]) -> Result<u64, FsError> {
        let record = || Concatenate {
            caller: RecordedCaller::of(caller),
            target: target.ino(),
            sources: sources.iter().map(|source| source.ino()).collect(),
        };
        self.call(record, || {
            check_regular(target)?;
            sources.iter().try_for_each(|source| check_regular(source))?;
            let len = self.change_with_pin(|| {
                let _pin = self.pin_to_commit()?;
                // All files are locked at the same time, so that the result is of one moment. Each is locked
                // once, in the order of inode numbers: that is the order of every call that locks several.
                let mut files: Vec<&NodeRef> = sources.iter().chain([target]).collect();
                files.sort_unstable_by_key(|node| node.ino());
                files.dedup_by_key(|node| node.ino());
                debug_assert!(
                    files.is_sorted_by(|a, b| a.ino() < b.ino()),
                    "files are locked in the order of their inode numbers, each once"
                );
                let mut held: Vec<LockedState<'_>> = files
                    .iter()
                    .map(|node| match node.ino() == target.ino() {
                        true => LockedState::Target(node.state.write()),
                        false => LockedState::Source(node.state.read()),
                    })
                    .collect();
                let place = |node: &NodeRef| {
                    files
                        .binary_search_by_key(&node.ino(), |file| file.ino())
                        .expect("every file is among them")
                };
                // All values are read before the first is written: the target may be a source.
                let mut values = Vec::with_capacity(sources.len());
                let mut len = 0;
                for source in sources {
                    let state = held.get(place(source)).expect("every file is locked").state();
                    let size = state.attrs.size_bytes;
                    len = check_end(len, size)?;
                    values.push((size, self.values_of(source, state, 0, size)?));
                }
                let mut pieces = Vec::new();
                let mut at = 0;
                for (size, values) in &values {
                    pieces.extend(pieces_of(values, 0, *size, at)?);
                    at += size;
                }
                debug_assert_eq!(at, len, "the sources are as long as when they were read");
                let mut scratch = Scratch::take();
                let Some(LockedState::Target(state)) = held.get_mut(place(target)) else {
                    unreachable!("the target is locked for writing")
                };
                let edit = self.edit_of_write(caller, target, state, &mut scratch.batch);
                let splice = Splice { start: 0, from: state.attrs.size_bytes, to: len, inserted: &pieces };
                self.splice(target, state, &splice, edit, &mut scratch.batch)?;
                Ok(len)
            })?;
            // This locks the sources again.
            sources.iter().try_for_each(|source| self.renew_atime_if_due(source))?;
            Ok(len)
        })
    }
}

/// The journal's form of [`Fs::replace_content`].
struct ReplaceContent {
    caller: RecordedCaller,
    node: u64,
    slice: YankedSlice,
}

impl<E: Storage> Operation<Fs<E>> for ReplaceContent {
    fn name(&self) -> &'static str {
        "replace content"
    }

    fn subject(&self) -> (u64, &[u8]) {
        (self.node, b"")
    }

    fn heap_bytes(&self) -> usize {
        self.caller.heap_bytes() + self.slice.heap_bytes()
    }

    fn content_bytes(&self) -> usize {
        self.slice.content_bytes()
    }

    fn replay(&self, fs: &Fs<E>, scene: &mut ReplayScene) -> Result<(), FsError> {
        fs.replace_content(&self.caller.get(), scene.node(self.node)?, &self.slice)
    }
}

/// The journal's form of [`Fs::concat`].
struct Concatenate {
    caller: RecordedCaller,
    target: u64,
    sources: Box<[u64]>,
}

impl<E: Storage> Operation<Fs<E>> for Concatenate {
    fn name(&self) -> &'static str {
        "concatenate"
    }

    fn subject(&self) -> (u64, &[u8]) {
        (self.target, b"")
    }

    fn heap_bytes(&self) -> usize {
        self.caller.heap_bytes() + self.sources.heap_bytes()
    }

    fn replay(&self, fs: &Fs<E>, scene: &mut ReplayScene) -> Result<(), FsError> {
        let sources: Vec<NodeRef> =
            self.sources.iter().map(|ino| scene.node(*ino).cloned()).collect::<Result<_, _>>()?;
        fs.concat(&self.caller.get(), scene.node(self.target)?, &sources).map(drop)
    }
}
