//! Operations on a filesystem as data, so that they can be drawn, listed, replayed and shown.

mod alphabet;
mod draw;
mod show;
mod together;

use warpfire_fs::RenameMode;
use warpfire_sim_env::mix;

use crate::model::{Name, Path};
use crate::open_transactions::Slots;

pub use alphabet::{alphabet, namespace};
pub use draw::{Menu, OpSource};
pub use together::{SLOTS, TRANSACTIONS_MAX};

/// Bytes that a seed determines. None of them is zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fill {
    /// The number of bytes.
    pub len: usize,
    /// The seed of the bytes.
    pub seed: u64,
}

impl Fill {
    /// The bytes.
    #[must_use]
    pub fn bytes(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len + 8);
        let mut word = self.seed;
        while bytes.len() < self.len {
            word = mix(word.wrapping_add(1));
            // No byte is zero, so that a lost page never passes for written bytes.
            bytes.extend_from_slice(&(word | 0x0101_0101_0101_0101).to_le_bytes());
        }
        bytes.truncate(self.len);
        bytes
    }
}

/// A range of a file, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// The first byte.
    pub offset: u64,
    /// The number of bytes.
    pub len: u64,
}

/// The number of a transaction among those that are open at once.
pub type Tx = u8;

/// The number of a slot for a yanked value.
pub type Slot = u8;

/// The kind of a new transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Begin {
    /// It may change the filesystem.
    Changes,
    /// It is read-only.
    Reads,
}

/// How a transaction ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// Its changes become visible.
    Commit,
    /// Its changes become visible and durable.
    CommitDurable,
    /// Its changes are dropped.
    Abort,
}

/// One operation on a filesystem.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// Makes an empty file.
    Create(Path),
    /// Makes a file with all of its bytes.
    Put(Path, Fill),
    /// Makes a directory.
    Mkdir(Path),
    /// Makes a symbolic link that leads to a target.
    Symlink(Path, Name),
    /// Makes a pipe.
    Mkfifo(Path),
    /// Writes at an offset.
    Write(Path, u64, Fill),
    /// Writes at the end.
    Append(Path, Fill),
    /// Sets the size.
    Truncate(Path, u64),
    /// Reserves a range and lets the file grow to hold it.
    Allocate(Path, Span),
    /// Makes a range a hole.
    Punch(Path, Span),
    /// Inserts a hole, in whole pages.
    Insert(Path, Span),
    /// Takes a range out, in whole pages.
    Collapse(Path, Span),
    /// Copies a range of the first file to an offset of the second.
    CopyRange(Path, Span, Path, u64),
    /// Gives a file one more name.
    Link(Path, Path),
    /// Takes a name away.
    Unlink(Path),
    /// Removes an empty directory.
    Rmdir(Path),
    /// Renames.
    Rename(Path, Path, RenameMode),
    /// Sets the permission bits.
    SetMode(Path, u32),
    /// Sets owner and group.
    SetOwner(Path, u32, u32),
    /// Sets the time of last change, in seconds since 1970.
    SetTime(Path, i64),
    /// Sets an extended attribute.
    SetXattr(Path, Name, Fill),
    /// Removes an extended attribute.
    RemoveXattr(Path, Name),
    /// Writes at the end, and does not learn the offset.
    AppendBlindly(Path, Fill),
    /// Reads a range.
    Read(Path, Span),
    /// Lists a directory.
    List(Path),
    /// Reads attributes.
    Stat(Path),
    /// Yanks a range as a value, which replaces the slot's value.
    Yank(Path, Span, Slot),
    /// Writes a slot's value at an offset, or at the end.
    Paste(Slot, Path, Option<u64>),
    /// Drops a slot's value.
    DropValue(Slot),
    /// Begins a transaction.
    Begin(Tx, Begin),
    /// Does an operation in a transaction.
    In(Tx, Box<Op>),
    /// Makes a savepoint in a transaction.
    Mark(Tx),
    /// Goes back to the transaction's savepoint of this number.
    Back(Tx, usize),
    /// Compares everything that a transaction sees with its fork of the model.
    Observe(Tx),
    /// Ends a transaction.
    End(Tx, End),
    /// Makes a snapshot.
    Snapshot(Name),
    /// Deletes a snapshot.
    DropSnapshot(Name),
    /// Makes the tree what the first snapshot shows, and keeps it as the second one.
    RollBack(Name, Name),
    /// Makes a bookmark of a snapshot: the first name is that of the snapshot.
    Bookmark(Name, Name),
    /// Deletes a bookmark.
    DropBookmark(Name),
    /// Clones a directory: the second path is that of the new door.
    Clone(Path, Path),
    /// Detaches the clone behind a door from its origin.
    Detach(Path),
    /// Deletes the clone behind a door.
    DropClone(Path),
    /// Makes a file durable.
    Fsync(Path),
    /// Makes everything durable.
    Sync,
    /// Does this many pieces of background work.
    Background(u32),
    /// Closes and opens again.
    Reopen,
}

impl Op {
    /// The most bytes that the operation adds to the pool, without records.
    #[must_use]
    pub fn bytes_max(&self, slots: &Slots) -> u64 {
        match self {
            Op::Put(_, fill)
            | Op::Write(_, _, fill)
            | Op::Append(_, fill)
            | Op::AppendBlindly(_, fill)
            | Op::SetXattr(_, _, fill) => fill.len as u64,
            Op::Allocate(_, span) | Op::CopyRange(_, span, ..) | Op::Yank(_, span, _) => span.len,
            Op::Paste(slot, ..) => slots.get(slot).map_or(0, |bytes| bytes.len() as u64),
            Op::In(_, inner) => inner.bytes_max(slots),
            _ => 0,
        }
    }

    /// Whether every operation before this one is durable once this one succeeds.
    #[must_use]
    pub fn makes_durable(&self) -> bool {
        matches!(
            self,
            Op::Fsync(_)
                | Op::Sync
                | Op::Reopen
                | Op::DropSnapshot(_)
                | Op::RollBack(..)
                | Op::DropBookmark(_)
                | Op::DropClone(_)
                | Op::End(_, End::CommitDurable)
        )
    }

    /// Whether the operation is on the pool as a whole, and not on names and files: none such is done in a
    /// transaction.
    #[must_use]
    pub(crate) fn is_of_the_pool(&self) -> bool {
        matches!(
            self,
            Op::Fsync(_)
                | Op::Sync
                | Op::Background(_)
                | Op::Reopen
                | Op::Snapshot(_)
                | Op::DropSnapshot(_)
                | Op::RollBack(..)
                | Op::Bookmark(..)
                | Op::DropBookmark(_)
                | Op::Clone(..)
                | Op::Detach(_)
                | Op::DropClone(_)
        )
    }
}
