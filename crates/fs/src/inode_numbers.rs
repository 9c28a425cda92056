//! Inode numbers.
//!
//! # Invariants
//! 1. A number is given out once, and only below the superblock's `next_ino`, which is committed before: `next`
//!    asserts it.
//! 2. Inside a transaction numbers come from the base, and a replay of its calls gets those that it had (the tests
//!    of `transactions`).

use parking_lot::Mutex;

use crate::error::FsError;
use crate::limits::INO_BLOCK;

/// Where a filesystem has its inode numbers from.
pub(crate) enum InodeNumbers {
    /// The next number, and the first that is not reserved.
    Base(Mutex<(u64, u64)>),
    Transaction(TxInodeNumbers),
}

type InoSource = Box<dyn Fn() -> Result<u64, FsError> + Send + Sync>;

/// Numbers of a base, given out inside a transaction.
pub(crate) struct TxInodeNumbers {
    source: InoSource,
    drawn: Mutex<DrawnNumbers>,
}

/// Numbers that were drawn, and how many of them have been given out.
#[derive(Default)]
struct DrawnNumbers {
    numbers: Vec<u64>,
    given: usize,
}

impl InodeNumbers {
    pub(crate) fn for_base(next: u64) -> InodeNumbers {
        InodeNumbers::Base(Mutex::new((next, next)))
    }

    /// `drawn_before` are given out first.
    pub(crate) fn for_transaction(source: InoSource, drawn_before: Vec<u64>) -> InodeNumbers {
        InodeNumbers::Transaction(TxInodeNumbers {
            source,
            drawn: Mutex::new(DrawnNumbers { numbers: drawn_before, given: 0 }),
        })
    }

    /// A number for a new inode. `reserve` commits the first number that is not reserved from then on.
    pub(crate) fn next(&self, reserve: impl FnOnce(u64) -> Result<(), FsError>) -> Result<u64, FsError> {
        let own = match self {
            InodeNumbers::Base(own) => own,
            InodeNumbers::Transaction(transaction) => return transaction.next(),
        };
        let mut own = own.lock();
        if own.0 == own.1 {
            let end = own.1.checked_add(INO_BLOCK).ok_or(FsError::NoSpace)?;
            reserve(end)?;
            own.1 = end;
        }
        assert!(own.0 < own.1, "a number is reserved before it is given out");
        let ino = own.0;
        own.0 += 1;
        Ok(ino)
    }

    /// Returns the numbers that were reserved and not used. `reserve` as for `next`.
    pub(crate) fn return_unused(
        &self,
        reserve: impl FnOnce(u64) -> Result<(), FsError>,
    ) -> Result<(), FsError> {
        let InodeNumbers::Base(own) = self else { return Ok(()) };
        let mut own = own.lock();
        if own.0 < own.1 {
            reserve(own.0)?;
            own.1 = own.0;
        }
        Ok(())
    }

    /// Whether this one was drawn inside a transaction: they rise, so what was there when it began has a smaller one.
    pub(crate) fn has_drawn(&self, ino: u64) -> bool {
        match self {
            InodeNumbers::Base(_) => false,
            InodeNumbers::Transaction(transaction) => {
                transaction.drawn.lock().numbers.first().is_some_and(|first| *first <= ino)
            }
        }
    }

    /// Those that were drawn inside a transaction, in order.
    pub(crate) fn drawn(&self) -> Vec<u64> {
        match self {
            InodeNumbers::Base(_) => Vec::new(),
            InodeNumbers::Transaction(transaction) => transaction.drawn.lock().numbers.clone(),
        }
    }
}

impl TxInodeNumbers {
    fn next(&self) -> Result<u64, FsError> {
        let mut drawn = self.drawn.lock();
        let drawn_before = drawn.numbers.get(drawn.given).copied();
        let ino = match drawn_before {
            Some(ino) => ino,
            None => {
                let ino = (self.source)()?;
                drawn.numbers.push(ino);
                ino
            }
        };
        drawn.given += 1;
        Ok(ino)
    }
}
