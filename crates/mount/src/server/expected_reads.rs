//! Whether a lookup is for a read: the kernel looks a file up in the same way for stat(2) and for open(2).
//!
//! A cold small file costs one device read for its record and one for its bytes, or one for both. The one for
//! both brings the record of that file only, and the one for the record brings those of its neighbours too.
//! So the server counts which part of the files that were looked up were read, and expects the same of the
//! next ones.
//!
//! # Invariants
//! 1. Old counts fade: `lookups` is at most `LOOKUPS_MAX`, but for lookups at the same time, which may count
//!    once too often (`note_lookup`).
//! 2. Reads of files that were not looked up, but listed, raise no expectation beyond all lookups
//!    (`note_first_read`).

use std::sync::atomic::{AtomicU32, Ordering};

/// Lookups after which both counts are halved.
const LOOKUPS_MAX: u32 = 64;

/// Fewer lookups say nothing.
const LOOKUPS_MIN: u32 = 8;

/// Counts of regular files.
#[derive(Default)]
pub(super) struct ExpectedReads {
    lookups: AtomicU32,
    /// Those that were read for the first time.
    reads: AtomicU32,
}

impl ExpectedReads {
    /// Whether a file that is looked up now is probably read next: three of four were.
    pub(super) fn expects_read(&self) -> bool {
        let (lookups, reads) = (self.lookups.load(Ordering::Relaxed), self.reads.load(Ordering::Relaxed));
        lookups >= LOOKUPS_MIN && reads * 4 >= lookups * 3
    }

    /// Counts a regular file that a lookup has found.
    pub(super) fn note_lookup(&self) {
        if self.lookups.fetch_add(1, Ordering::Relaxed) + 1 >= LOOKUPS_MAX {
            for count in [&self.lookups, &self.reads] {
                count.store(count.load(Ordering::Relaxed) / 2, Ordering::Relaxed);
            }
        }
    }

    /// Counts the first read of a file since the kernel knows it.
    pub(super) fn note_first_read(&self) {
        if self.reads.load(Ordering::Relaxed) < self.lookups.load(Ordering::Relaxed) {
            self.reads.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks up so many files, and reads the first `of_4` of each four.
    fn look_up(expected: &ExpectedReads, files: u32, of_4: u32) {
        for n in 0..files {
            expected.note_lookup();
            if n % 4 < of_4 {
                expected.note_first_read();
            }
        }
    }

    #[test]
    fn reads_are_expected_after_lookups_that_were_followed_by_reads() {
        let expected = ExpectedReads::default();
        assert!(!expected.expects_read(), "nothing is known");
        look_up(&expected, 1000, 4);
        assert!(expected.expects_read());
        look_up(&expected, LOOKUPS_MAX, 0);
        assert!(!expected.expects_read(), "the newest lookups count most");
        look_up(&expected, 1000, 2);
        assert!(!expected.expects_read(), "half of the files are read");
        look_up(&expected, 2 * LOOKUPS_MAX, 4);
        assert!(expected.expects_read());
    }

    #[test]
    fn reads_of_listed_files_raise_no_expectation_beyond_the_lookups() {
        let expected = ExpectedReads::default();
        (0..1000).for_each(|_| expected.note_first_read());
        look_up(&expected, LOOKUPS_MIN, 4);
        (0..1000).for_each(|_| expected.note_first_read());
        assert!(expected.expects_read());
        look_up(&expected, LOOKUPS_MIN, 0);
        assert!(!expected.expects_read());
    }
}
