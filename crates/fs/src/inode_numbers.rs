//! The source of inode numbers.
//!
//! The base reserves numbers in blocks: one commit raises `next_ino` of the filesystem record by the length
//! of a block, and the numbers of the block then cost nothing. A crash loses the rest of a block; a close
//! returns it.
//!
//! # Invariants
//! 1. Each number is handed out once, and only if it is below the committed `next_ino` (assert in `next`).
//! 2. A transaction draws its numbers from the base. They rise (assert in `TxInodeNumbers::next`).
//! 3. A replay of a transaction hands out the numbers that the transaction drew, in the same order (the tests
//!    `transactions`).

use warpfire_env::RankedMutex;
use warpfire_env::sync::Mutex;
use warpfire_format::fs::{LOCAL_INO_MAX, local_of};
use warpfire_meta::{MemoryAccount, MemoryCharge, MemoryNeed};

use crate::error::FsError;
use crate::limits::INO_BLOCK;
use crate::lock_ranks::NUMBERS;

/// The inode numbers of one filesystem.
pub(crate) enum InodeNumbers {
    Base(RankedMutex<NUMBERS, ReservedNumbers>),
    Transaction(TxInodeNumbers),
    /// Nothing is made in a snapshot.
    Snapshot,
}

/// The numbers that are reserved and not used: from `next` on, below `end`. `end` is the committed
/// `next_ino`.
pub(crate) struct ReservedNumbers {
    next: u64,
    end: u64,
}

type InoSource = Box<dyn Fn() -> Result<u64, FsError> + Send + Sync>;

/// Numbers of the base that a transaction uses.
pub(crate) struct TxInodeNumbers {
    source: InoSource,
    drawn: Mutex<DrawnNumbers>,
}

/// The numbers that a transaction has drawn. The first `used` of them belong to an inode.
struct DrawnNumbers {
    numbers: Vec<u64>,
    used: usize,
    charge: MemoryCharge,
}

impl InodeNumbers {
    /// Numbers from the `next_ino` of the filesystem record on.
    pub(crate) fn for_base(next_ino: u64) -> InodeNumbers {
        assert_ne!(next_ino, 0, "no inode has the number 0");
        InodeNumbers::Base(RankedMutex::new(ReservedNumbers { next: next_ino, end: next_ino }))
    }

    /// Numbers of `source`, after those that were `drawn_before`.
    pub(crate) fn for_transaction(
        source: InoSource,
        drawn_before: Vec<u64>,
        account: &MemoryAccount,
    ) -> InodeNumbers {
        debug_assert!(drawn_before.is_sorted(), "a transaction draws rising numbers");
        let mut charge = account.coarse_charge();
        charge.count(size_of_val::<[u64]>(&drawn_before));
        let drawn = Mutex::new(DrawnNumbers { numbers: drawn_before, used: 0, charge });
        InodeNumbers::Transaction(TxInodeNumbers { source, drawn })
    }

    /// A number for a new inode. `reserve` commits its argument as the new `next_ino`.
    ///
    /// # Errors
    /// `NoSpace` if there are no numbers left; the errors of `reserve`.
    pub(crate) fn next(&self, reserve: impl FnOnce(u64) -> Result<(), FsError>) -> Result<u64, FsError> {
        let reserved = match self {
            InodeNumbers::Base(reserved) => reserved,
            InodeNumbers::Transaction(transaction) => return transaction.next(),
            InodeNumbers::Snapshot => return Err(FsError::ReadOnlySnapshot),
        };
        let mut reserved = reserved.lock();
        if reserved.next == reserved.end {
            let end = reserved.end + INO_BLOCK;
            if end > LOCAL_INO_MAX {
                return Err(FsError::NoSpace);
            }
            // The commit comes first. After a crash between the two lines nothing has used the block.
            reserve(end)?;
            reserved.end = end;
        }
        assert!(reserved.next < reserved.end, "a number is reserved before it is used");
        let ino = reserved.next;
        reserved.next += 1;
        Ok(ino)
    }

    /// Returns the numbers that were reserved and not used. `reserve` as for `next`.
    pub(crate) fn return_unused(
        &self,
        reserve: impl FnOnce(u64) -> Result<(), FsError>,
    ) -> Result<(), FsError> {
        let InodeNumbers::Base(reserved) = self else { return Ok(()) };
        let mut reserved = reserved.lock();
        assert!(reserved.next <= reserved.end, "every number in use was reserved");
        if reserved.next < reserved.end {
            reserve(reserved.next)?;
            reserved.end = reserved.next;
        }
        Ok(())
    }

    /// First number that is not reserved; in the base.
    pub(crate) fn first_unreserved(&self) -> Option<u64> {
        match self {
            InodeNumbers::Base(reserved) => Some(reserved.lock().end),
            InodeNumbers::Transaction(_) | InodeNumbers::Snapshot => None,
        }
    }

    /// Whether the inode was made inside this transaction. Numbers rise, so every inode that existed when the
    /// transaction began has a smaller number than the first that it drew.
    pub(crate) fn has_drawn(&self, ino: u64) -> bool {
        let ino = local_of(ino);
        match self {
            InodeNumbers::Base(_) | InodeNumbers::Snapshot => false,
            InodeNumbers::Transaction(transaction) => {
                transaction.drawn.lock().numbers.first().is_some_and(|first| *first <= ino)
            }
        }
    }

    /// The numbers that this transaction has drawn, in order; none in the base.
    pub(crate) fn drawn(&self) -> Vec<u64> {
        match self {
            InodeNumbers::Base(_) | InodeNumbers::Snapshot => Vec::new(),
            InodeNumbers::Transaction(transaction) => transaction.drawn.lock().numbers.clone(),
        }
    }
}

impl TxInodeNumbers {
    fn next(&self) -> Result<u64, FsError> {
        let mut drawn = self.drawn.lock();
        let drawn_before = drawn.numbers.get(drawn.used).copied();
        let ino = match drawn_before {
            Some(ino) => ino,
            None => {
                // A call that fails keeps its number too.
                let bytes = (drawn.numbers.len() + 1) * size_of::<u64>();
                drawn.charge.grow_to(bytes, MemoryNeed::Needed)?;
                let ino = (self.source)()?;
                debug_assert!(
                    drawn.numbers.last().is_none_or(|last| *last < ino),
                    "the numbers of a base rise"
                );
                drawn.numbers.push(ino);
                ino
            }
        };
        drawn.used += 1;
        assert!(drawn.used <= drawn.numbers.len(), "a number is drawn before it is used");
        Ok(ino)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_were_not_used_are_returned() {
        let numbers = InodeNumbers::for_base(5);
        let commits = Mutex::new(Vec::new());
        let reserve = |next_ino| {
            commits.lock().push(next_ino);
            Ok(())
        };
        assert_eq!(numbers.next(reserve).unwrap(), 5);
        numbers.return_unused(reserve).unwrap();
        // Nothing is left to return.
        numbers.return_unused(reserve).unwrap();
        assert_eq!(numbers.next(reserve).unwrap(), 6);
        assert_eq!(*commits.lock(), [5 + INO_BLOCK, 6, 6 + INO_BLOCK]);
    }
}
