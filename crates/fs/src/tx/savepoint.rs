//! Going back to an earlier moment of a transaction.
//!
//! Changes are undone in the overlay, and nodes get back the state that they had, so what is open inside stays open. What was made since is gone. The calls
//! that were undone stay in the journal: the program has seen what they answered, so a repetition makes and undoes them too.
//!
//! # Invariants
//! 1. `Savepoints::live` has the numbers of the savepoints that can be gone back to, in the order that they were made; going back to one ends those made
//!    after it.

use std::hash::Hasher;
use std::sync::atomic::{AtomicU64, Ordering};

use warpfire_format::fs::{Dentry, Inode};
use warpfire_meta::{Mark, SliceStore, Store};

use super::answer::Answer;
use super::begin::{Inside, Transaction};
use super::call::Call;
use crate::error::FsError;
use crate::node::{Home, Node, State, Touch};

/// A moment of one transaction.
#[derive(Debug)]
pub struct Savepoint {
    number: u64,
    mark: Mark,
    counts: (i64, i64),
    states: Vec<(State, Touch)>,
}

#[derive(Default)]
pub(super) struct Savepoints {
    live: Vec<u64>,
}

/// Savepoints have numbers of their own in all transactions, so that one of another is recognised.
static NEXT: AtomicU64 = AtomicU64::new(0);

impl Answer for Savepoint {
    fn add_to(&self, _state: &mut impl Hasher) {}
}

impl<E: Store + SliceStore> Transaction<E> {
    /// This moment, to go back to.
    #[must_use]
    pub fn savepoint(&self) -> Savepoint {
        let mut savepoints = self.savepoints.lock();
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        savepoints.live.push(number);
        self.inside.mark(number)
    }

    /// Undoes everything since the savepoint, which can be gone back to again. Files that were made since are gone, for those too who have them open.
    ///
    /// # Errors
    /// `Invalid` if the transaction has gone back to before the savepoint, or it is another's.
    pub fn roll_back(&self, to: &Savepoint) -> Result<(), FsError> {
        let mut savepoints = self.savepoints.lock();
        let Some(at) = savepoints.live.iter().position(|number| *number == to.number) else {
            return Err(FsError::Invalid("the savepoint is past, or of another transaction"));
        };
        savepoints.live.truncate(at + 1);
        self.inside.go_back(to)
    }
}

impl<E: Store + SliceStore> Inside<E> {
    pub(super) fn mark(&self, number: u64) -> Savepoint {
        let run = || Savepoint {
            number,
            mark: self.engine.mark(),
            counts: self.dirty.counts(),
            states: self.table.keep_first_states(|node| (node.state.read().clone(), *node.touch.lock())),
        };
        self.call(|| Call::Mark { number }, run)
    }

    pub(super) fn go_back(&self, to: &Savepoint) -> Result<(), FsError> {
        self.call(|| Call::Back { number: to.number }, || self.undo(to))
    }

    fn undo(&self, to: &Savepoint) -> Result<(), FsError> {
        self.engine.roll_back(&to.mark);
        self.dirty.set_counts(to.counts);
        for (number, (node, first)) in self.table.kept_with_first().into_iter().enumerate() {
            let (state, touch) = match (to.states.get(number), first) {
                (Some(then), _) => then.clone(),
                (None, Some(first)) if self.is_record_of(&node, &first)? => (*first, Touch::default()),
                (None, _) => {
                    let mut state = node.state.read().clone();
                    state.home = Home::Gone;
                    (state, Touch::default())
                }
            };
            *node.state.write() = state;
            *node.touch.lock() = touch;
        }
        Ok(())
    }

    /// Whether the node's record is where this state says.
    fn is_record_of(&self, node: &Node, state: &State) -> Result<bool, FsError> {
        let Some(key) = state.home_key(self.volume, node.ino()) else { return Ok(false) };
        let mut value = Vec::new();
        if !self.get(&key, &mut value)? {
            return Ok(false);
        }
        Ok(match &state.home {
            Home::Dentry(..) => {
                matches!(Dentry::decode(&value)?, Dentry::Embedded(inode) if inode.ino == node.ino())
            }
            _ => Inode::decode(&value)?.ino == node.ino(),
        })
    }
}
