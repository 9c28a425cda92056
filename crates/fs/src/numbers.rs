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
pub(crate) enum Numbers {
    /// The next number, and the first that is not reserved.
    Own(Mutex<(u64, u64)>),
    Lent(Lent),
}

type Lender = Box<dyn Fn() -> Result<u64, FsError> + Send + Sync>;

/// Numbers of a base, given out inside a transaction.
pub(crate) struct Lent {
    lender: Lender,
    drawn: Mutex<Drawn>,
}

/// Numbers that were drawn, and how many of them have been given out.
#[derive(Default)]
struct Drawn {
    numbers: Vec<u64>,
    given: usize,
}

impl Numbers {
    pub(crate) fn own(next: u64) -> Numbers {
        Numbers::Own(Mutex::new((next, next)))
    }

    /// `again` are given out first.
    pub(crate) fn lent(lender: Lender, again: Vec<u64>) -> Numbers {
        Numbers::Lent(Lent { lender, drawn: Mutex::new(Drawn { numbers: again, given: 0 }) })
    }

    /// A number for a new inode. `reserve` commits the first number that is not reserved from then on.
    pub(crate) fn next(&self, reserve: impl FnOnce(u64) -> Result<(), FsError>) -> Result<u64, FsError> {
        let own = match self {
            Numbers::Own(own) => own,
            Numbers::Lent(lent) => return lent.next(),
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
        let Numbers::Own(own) = self else { return Ok(()) };
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
            Numbers::Own(_) => false,
            Numbers::Lent(lent) => lent.drawn.lock().numbers.first().is_some_and(|first| *first <= ino),
        }
    }

    /// Those that were drawn inside a transaction, in order.
    pub(crate) fn drawn(&self) -> Vec<u64> {
        match self {
            Numbers::Own(_) => Vec::new(),
            Numbers::Lent(lent) => lent.drawn.lock().numbers.clone(),
        }
    }
}

impl Lent {
    fn next(&self) -> Result<u64, FsError> {
        let mut drawn = self.drawn.lock();
        let again = drawn.numbers.get(drawn.given).copied();
        let ino = match again {
            Some(ino) => ino,
            None => {
                let ino = (self.lender)()?;
                drawn.numbers.push(ino);
                ino
            }
        };
        drawn.given += 1;
        Ok(ino)
    }
}
