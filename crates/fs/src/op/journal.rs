//! The journal of a transaction: its calls, with the digests of their answers.
//!
//! ```text
//!   complete ── end: an unrecorded call, or a limit of memory ──► incomplete (without calls, for good)
//! ```
//!
//! # Invariants
//! 1. A complete journal has all calls in order. An incomplete one has none, because part of them cannot be
//!    replayed (assert in `add`).
//! 2. The memory of a journal is bounded. Past a limit it is incomplete
//!    (`tests::a_journal_ends_at_its_limits_of_memory`). So it is if the budget has no room for it: the calls
//!    are charged, and their charge ends with them (`tests::a_journal_ends_where_its_account_has_no_room`).
//! 3. A call that was added without its answer counts as unseen until it has one. Nobody takes the journal
//!    while such a call is left (assert in `take`).

use warpfire_format::fs::InodeTime;
use warpfire_meta::{MemoryAccount, MemoryCharge, MemoryNeed};

use super::operation::Operation;

/// Most calls of one journal. A commit that finds a change of something that was read makes them again.
const CALLS_MAX: usize = 1_600_000;

/// Most memory for calls without the contents of files: 250 bytes for each of [`CALLS_MAX`].
const CALL_BYTES_MAX: usize = 400_000_000;

/// Most memory for contents of files. A transaction's write set has no room for more.
const CONTENT_BYTES_MAX: usize = 512 << 20;

/// Bytes that the allocator adds to the box of an operation.
const ALLOCATION_BYTES: usize = 16;

/// The calls of a transaction, in order.
pub(crate) struct CallJournal<F> {
    entries: Vec<JournalEntry<F>>,
    call_bytes: usize,
    content_bytes: usize,
    charge: MemoryCharge,
    /// Whether a call is not in the journal, so that the calls cannot be replayed.
    is_incomplete: bool,
    last_digest: Option<u64>,
    /// Number of calls that were added and have no answer yet.
    unanswered: usize,
    /// Whether the transaction waits for those answers, to end.
    is_ending: bool,
}

/// The place of a call in the journal of its transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallNumber(usize);

/// One call.
pub(crate) struct JournalEntry<F> {
    pub(crate) operation: Box<dyn Operation<F>>,
    /// Digest of its answer.
    pub(crate) digest: u64,
    /// Its time, which the times of changed files have.
    pub(crate) at: InodeTime,
    /// Whether nobody has seen the answer, so that a replay leaves the call out.
    pub(crate) is_unseen: bool,
}

impl<F> CallJournal<F> {
    /// An empty journal, charged to this account.
    pub(crate) fn new(account: &MemoryAccount) -> Self {
        CallJournal {
            entries: Vec::new(),
            call_bytes: 0,
            content_bytes: 0,
            charge: account.coarse_charge(),
            is_incomplete: false,
            last_digest: None,
            unanswered: 0,
            is_ending: false,
        }
    }

    /// The journal of a replay. A replay is not replayed itself, so the journal takes digests and no calls.
    pub(crate) fn of_replay(account: &MemoryAccount) -> Self {
        CallJournal { is_incomplete: true, ..CallJournal::new(account) }
    }

    /// Takes the journal out of a transaction that takes no more calls.
    pub(crate) fn take(&mut self) -> Self {
        assert_eq!(self.unanswered, 0, "a transaction ends after its calls");
        let ended = CallJournal::of_replay(self.charge.account());
        std::mem::replace(self, ended)
    }

    /// Adds a call and the digest of its answer. The operation is made only if the journal keeps it. Returns
    /// the number of the call then.
    pub(super) fn add<O: Operation<F> + 'static>(
        &mut self,
        operation: impl FnOnce() -> O,
        digest: u64,
        at: InodeTime,
    ) -> Option<CallNumber> {
        self.last_digest = Some(digest);
        if self.is_incomplete {
            assert!(self.entries.is_empty(), "an incomplete journal has no calls");
            return None;
        }
        let operation = operation();
        self.call_bytes +=
            size_of::<JournalEntry<F>>() + ALLOCATION_BYTES + size_of::<O>() + operation.heap_bytes();
        self.content_bytes += operation.content_bytes();
        let is_full = self.entries.len() == CALLS_MAX
            || self.call_bytes > CALL_BYTES_MAX
            || self.content_bytes > CONTENT_BYTES_MAX
            || self.charge.grow_to(self.call_bytes + self.content_bytes, MemoryNeed::Optional).is_err();
        // The call itself succeeds: the transaction can still be committed if nothing that it read changes.
        if is_full {
            self.end();
            return None;
        }
        let number = CallNumber(self.entries.len());
        self.entries.push(JournalEntry { operation: Box::new(operation), digest, at, is_unseen: false });
        debug_assert!(self.entries.len() <= CALLS_MAX, "a journal has a bounded number of calls");
        Some(number)
    }

    /// Adds a call that will have its answer later, by [`answer`](Self::answer). Until then nobody has seen
    /// one.
    pub(super) fn add_unanswered<O: Operation<F> + 'static>(
        &mut self,
        operation: impl FnOnce() -> O,
        at: InodeTime,
    ) -> Option<CallNumber> {
        let number = self.add(operation, 0, at);
        self.last_digest = None;
        if let Some(number) = number {
            self.mark_unseen(number);
        }
        self.unanswered += 1;
        number
    }

    /// Gives a call its answer, or with `None` takes note that it has none. `number` is that of the call, if
    /// the journal had it; a journal that has ended since does not have it any more.
    pub(super) fn answer(&mut self, number: Option<CallNumber>, digest: Option<u64>) {
        self.unanswered = self.unanswered.checked_sub(1).expect("each call has one answer");
        self.last_digest = digest;
        if let (Some(number), Some(digest)) = (number, digest)
            && let Some(entry) = self.entries.get_mut(number.0)
        {
            entry.digest = digest;
            entry.is_unseen = false;
        }
    }

    /// Whether a call has no answer yet.
    pub(super) fn has_unanswered(&self) -> bool {
        self.unanswered > 0
    }

    /// Notes that the transaction waits for all answers.
    pub(super) fn begin_end(&mut self) {
        self.is_ending = true;
    }

    /// Whether the transaction waits for all answers.
    pub(super) fn is_ending(&self) -> bool {
        self.is_ending
    }

    /// Notes that nobody has seen the answer of a pure read.
    pub(super) fn mark_unseen(&mut self, number: CallNumber) {
        if let Some(entry) = self.entries.get_mut(number.0) {
            assert!(
                entry.operation.pure_read().is_some(),
                "only a call that changes nothing can be left out"
            );
            entry.is_unseen = true;
        }
    }

    /// Makes the journal incomplete and frees its memory.
    pub(crate) fn end(&mut self) {
        self.is_incomplete = true;
        self.entries = Vec::new();
        self.call_bytes = 0;
        self.content_bytes = 0;
        self.charge.shrink_to(0);
    }

    /// All calls; `None` if the journal is incomplete.
    pub(crate) fn entries(&self) -> Option<&[JournalEntry<F>]> {
        debug_assert!(!self.is_incomplete || self.entries.is_empty(), "an incomplete journal has no calls");
        (!self.is_incomplete).then_some(&self.entries)
    }

    /// Takes the digest of the last call's answer; `None` if there was no call since the last take.
    pub(crate) fn take_last_digest(&mut self) -> Option<u64> {
        self.last_digest.take()
    }
}

#[cfg(test)]
mod tests {
    use super::super::operation::PureRead;
    use super::super::scene::ReplayScene;
    use warpfire_meta::{MemoryBudget, MemoryLimits};

    use super::*;
    use crate::error::FsError;

    /// An operation that claims to take so much memory.
    struct SizedOperation {
        heap_bytes: usize,
        content_bytes: usize,
    }

    impl Operation<()> for SizedOperation {
        fn name(&self) -> &'static str {
            "sized"
        }

        fn subject(&self) -> (u64, &[u8]) {
            (1, b"")
        }

        fn heap_bytes(&self) -> usize {
            self.heap_bytes
        }

        fn content_bytes(&self) -> usize {
            self.content_bytes
        }

        fn replay(&self, _fs: &(), _scene: &mut ReplayScene) -> Result<(), FsError> {
            Ok(())
        }
    }

    /// An operation that reads a file.
    struct ReadOperation;

    impl Operation<()> for ReadOperation {
        fn name(&self) -> &'static str {
            "read"
        }

        fn subject(&self) -> (u64, &[u8]) {
            (1, b"")
        }

        fn heap_bytes(&self) -> usize {
            0
        }

        fn pure_read(&self) -> Option<PureRead> {
            Some(PureRead::of_all(1))
        }

        fn replay(&self, _fs: &(), _scene: &mut ReplayScene) -> Result<(), FsError> {
            Ok(())
        }
    }

    const AT: InodeTime = InodeTime { seconds: 1, nanos: 0 };

    /// Length of a journal after so many calls; `None` if it is incomplete.
    fn len_after(calls: usize, heap_bytes: usize, content_bytes: usize) -> Option<usize> {
        let mut journal = CallJournal::new(&MemoryBudget::new(MemoryLimits::default()).account(None));
        for number in 0..calls {
            journal.add(|| SizedOperation { heap_bytes, content_bytes }, number as u64, AT);
            assert_eq!(journal.take_last_digest(), Some(number as u64), "digests go on without calls");
        }
        journal.entries().map(<[_]>::len)
    }

    #[test]
    fn a_journal_ends_at_its_limits_of_memory() {
        assert_eq!(len_after(99, CALL_BYTES_MAX / 100, 0), Some(99));
        assert_eq!(len_after(100, CALL_BYTES_MAX / 100, 0), None);
        assert_eq!(len_after(100, 0, CONTENT_BYTES_MAX / 100), Some(100));
        assert_eq!(len_after(101, 0, CONTENT_BYTES_MAX / 100), None);
    }

    #[test]
    fn a_journal_ends_where_its_account_has_no_room() {
        let budget = MemoryBudget::new(MemoryLimits::of_total(16 << 20));
        let mut journal = CallJournal::new(&budget.account(Some(7)));
        let mut add = |number: u64| {
            journal.add(|| SizedOperation { heap_bytes: 60_000, content_bytes: 0 }, number, AT).is_some()
        };
        let kept = (0..100).take_while(|number| add(*number)).count();
        assert!((11..=14).contains(&kept), "{kept}: three quarters of the user's 1 MiB");
        assert!(journal.entries().is_none());
        assert_eq!(budget.used_bytes(), 0, "the charge ends with the calls");
        journal = CallJournal::new(&budget.account(Some(7)));
        journal.add(|| SizedOperation { heap_bytes: 600_000, content_bytes: 0 }, 1, AT).expect("it fits");
        let taken = journal.take();
        assert!(journal.entries().is_none() && taken.entries().is_some_and(|calls| calls.len() == 1));
        drop(journal);
        assert!(budget.used_bytes() > 500_000, "the charge goes with the calls");
        drop(taken);
        assert_eq!(budget.used_bytes(), 0);
    }

    #[test]
    fn a_call_without_its_answer_is_unseen() {
        let mut journal = CallJournal::new(&MemoryBudget::new(MemoryLimits::default()).account(None));
        let add = |journal: &mut CallJournal<()>| {
            journal.add_unanswered(|| ReadOperation, AT).expect("the journal is complete")
        };
        let (first, second) = (add(&mut journal), add(&mut journal));
        assert_eq!(journal.take_last_digest(), None, "there is no answer yet");
        journal.answer(Some(second), Some(7));
        assert_eq!(journal.take_last_digest(), Some(7));
        assert!(journal.has_unanswered());
        journal.answer(Some(first), None);
        assert!(!journal.has_unanswered());
        let seen: Vec<_> =
            journal.entries().unwrap().iter().map(|entry| (entry.is_unseen, entry.digest)).collect();
        assert_eq!(seen, [(true, 0), (false, 7)]);
    }

    #[test]
    fn an_answer_that_comes_after_the_end_of_the_journal_changes_no_entry() {
        let mut journal = CallJournal::new(&MemoryBudget::new(MemoryLimits::default()).account(None));
        let number = journal.add_unanswered(|| ReadOperation, AT);
        journal.end();
        journal.answer(number, Some(7));
        assert_eq!(journal.take_last_digest(), Some(7));
        assert!(journal.entries().is_none() && !journal.has_unanswered());
    }

    #[test]
    fn a_journal_that_has_ended_makes_no_operation() {
        let mut journal = CallJournal::<()>::new(&MemoryBudget::new(MemoryLimits::default()).account(None));
        journal.add(|| SizedOperation { heap_bytes: 0, content_bytes: 0 }, 1, AT);
        journal.end();
        journal.add(|| -> SizedOperation { unreachable!("an incomplete journal keeps no call") }, 2, AT);
        assert!(journal.entries().is_none());
        assert_eq!(journal.take_last_digest(), Some(2));
        assert_eq!(journal.take_last_digest(), None);
    }
}
