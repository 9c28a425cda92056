//! The gate of a filesystem: every call enters it, and inside a transaction the gate records the call.
//!
//! ```text
//!                  enter                    enter_exclusive
//!   base           calls run side by side   one commit of a transaction, and nothing else
//!   transaction    one call at a time       never: a transaction commits to the base
//! ```
//!
//! Inside a transaction a read of a file leaves the gate before its devices answer (`enter_to_leave`): it has
//! its place among the calls by then, and the pin that it holds keeps its bytes.
//!
//! # Invariants
//! 1. Between its first read and its last change a call's thread holds one guard. A call within a call runs
//!    under the guard of the outer call (asserts in `Fs::commit` and `Fs::find`).
//! 2. In the base, calls run side by side, and only a commit of a transaction runs alone. It is no part of
//!    another call (assert in `enter_exclusive`).
//! 3. Inside a transaction calls run one by one. Each of them is recorded, or the journal is incomplete (the
//!    tests `serial` and `threads`). A call that has left the gate changes nothing any more, and a
//!    transaction ends only when each such call has its answer (`enter_to_end`; assert in
//!    `CallJournal::take`).
//! 4. A thread enters gates from the inside out: the transaction's gate first, then the base's (assert in
//!    `hold`). It leaves them in the opposite order (assert in the guard's drop).

use std::cell::Cell;

use warpfire_env::sync::atomic::{AtomicU64, Ordering};
use warpfire_env::sync::{Condvar, Mutex, MutexGuard};
use warpfire_env::{PlantedBug, RankedReadGuard, RankedRwLock, RankedWriteGuard, is_planted};
use warpfire_format::fs::InodeTime;

use super::digest::{Digestible, digest};
use super::journal::{CallJournal, CallNumber};
use super::operation::Operation;
use crate::lock_ranks::BASE_GATE;

/// The gate of one filesystem; `F` is the filesystem.
pub(crate) struct CallGate<F>(GateKind<F>);

enum GateKind<F> {
    Base(BaseGate),
    Transaction(Box<TransactionGate<F>>),
}

/// The gate of a base.
#[derive(Default)]
struct BaseGate {
    lock: RankedRwLock<BASE_GATE, ()>,
    /// The number of calls that have entered alone. It changes under the lock.
    calls_alone: AtomicU64,
}

/// What the gate of a transaction guards.
pub(crate) struct TransactionGate<F> {
    journal: Mutex<CallJournal<F>>,
    times: Mutex<CallTimes>,
    /// Notified when a call that has left the gate has its answer.
    answered: Condvar,
}

/// The time inside a transaction: one for each call, so that a replay can use the same times again.
#[derive(Default)]
struct CallTimes {
    /// The time of the call that runs, or of the last one.
    current: Option<InodeTime>,
    /// The time that a replay has set for the next call.
    next: Option<InodeTime>,
}

warpfire_env::sync::thread_local! {
    static ENTERED: Cell<EnteredGates> = const { Cell::new(EnteredGates { gates: [0; GATES_MAX], count: 0 }) };
}

/// Most gates that one thread has entered at a time. A commit that replays needs three: the transaction's,
/// its base's, and the replay's.
const GATES_MAX: usize = 4;

/// The gates that a thread has entered, by address; the last is the innermost.
#[derive(Clone, Copy)]
struct EnteredGates {
    gates: [usize; GATES_MAX],
    count: usize,
}

impl EnteredGates {
    fn contains(&self, address: usize) -> bool {
        self.gates.iter().take(self.count).any(|entered| *entered == address)
    }
}

/// Held while a call runs.
pub(crate) struct CallGuard<'a, F> {
    lock: GateLock<'a, F>,
    /// Address of the gate.
    address: usize,
}

#[expect(dead_code, reason = "guards are held for their drop")]
enum GateLock<'a, F> {
    /// The thread has entered this gate already, and the outer guard has the lock.
    Outer,
    Shared(RankedReadGuard<'a, BASE_GATE, ()>),
    Exclusive(RankedWriteGuard<'a, BASE_GATE, ()>),
    Journal(MutexGuard<'a, CallJournal<F>>),
}

impl<F> CallGate<F> {
    /// The gate of a base.
    pub(crate) fn base() -> Self {
        CallGate(GateKind::Base(BaseGate::default()))
    }

    /// The gate of a transaction.
    pub(crate) fn transaction(journal: CallJournal<F>) -> Self {
        CallGate(GateKind::Transaction(Box::new(TransactionGate {
            journal: Mutex::new(journal),
            times: Mutex::default(),
            answered: Condvar::new(),
        })))
    }

    /// Enters and runs a call. Inside a transaction the gate records it as `operation`, with the digest of
    /// the answer. In the base, and for a call within a call, it only runs: `operation` and `now` are not
    /// called.
    pub(crate) fn call<O: Operation<F> + 'static, T: Digestible>(
        &self,
        now: impl FnOnce() -> InodeTime,
        operation: impl FnOnce() -> O,
        run: impl FnOnce() -> T,
    ) -> T {
        self.call_numbered(now, operation, run).0
    }

    /// As `call`. Returns the number of the call too, if the journal has it.
    pub(crate) fn call_numbered<O: Operation<F> + 'static, T: Digestible>(
        &self,
        now: impl FnOnce() -> InodeTime,
        operation: impl FnOnce() -> O,
        run: impl FnOnce() -> T,
    ) -> (T, Option<CallNumber>) {
        let mut guard = self.enter();
        debug_assert!(self.is_entered(), "a call runs with its thread in the gate");
        // The base records nothing, and the record of an outer call covers its inner calls.
        if guard.journal().is_none() {
            return (run(), None);
        }
        let at = self.begin_call(now);
        let answer = run();
        let number = guard.journal().and_then(|journal| journal.add(operation, digest(&answer), at));
        (answer, number)
    }

    /// Enters a transaction for a call that leaves the gate before its answer is complete.
    pub(crate) fn enter_to_leave(&self, now: impl FnOnce() -> InodeTime) -> LeavingCall<'_, F> {
        let GateKind::Transaction(gate) = &self.0 else { unreachable!("a call in the base leaves at once") };
        let guard = self.enter();
        let at = matches!(guard.lock, GateLock::Journal(_)).then(|| self.begin_call(now));
        LeavingCall { gate, guard, at }
    }

    /// Enters a transaction for its end: waits until each call that has left the gate has its answer.
    pub(crate) fn enter_to_end(&self) -> CallGuard<'_, F> {
        let mut guard = self.enter();
        if let (GateKind::Transaction(gate), GateLock::Journal(journal)) = (&self.0, &mut guard.lock) {
            journal.begin_end();
            while journal.has_unanswered() {
                gate.answered.wait(journal);
            }
        }
        guard
    }

    /// Enters for a call that is not recorded. A transaction with such a call cannot be replayed: if anything
    /// that it read has changed at its commit, the commit is a conflict.
    pub(crate) fn enter_unrecorded(&self, now: impl FnOnce() -> InodeTime) -> CallGuard<'_, F> {
        let mut guard = self.enter();
        if let Some(journal) = guard.journal() {
            journal.end();
            self.begin_call(now);
        }
        guard
    }

    /// Notes that nobody has seen the answer of a recorded read: it is no reason for a conflict.
    pub(crate) fn mark_unseen(&self, number: CallNumber) {
        if let Some(journal) = self.enter().journal() {
            journal.mark_unseen(number);
        }
    }

    /// Enters. In the base it waits for a commit of a transaction, inside a transaction for the call before.
    pub(crate) fn enter(&self) -> CallGuard<'_, F> {
        // A second shared lock of one thread would deadlock with a commit that waits between the two.
        if self.is_entered() {
            return CallGuard { lock: GateLock::Outer, address: self.address() };
        }
        let lock = match &self.0 {
            GateKind::Base(gate) => GateLock::Shared(gate.lock.read()),
            GateKind::Transaction(gate) => GateLock::Journal(gate.journal.lock()),
        };
        self.hold(lock)
    }

    /// Enters the base alone: waits until no call runs there, and none begins before the guard is dropped.
    pub(crate) fn enter_exclusive(&self) -> CallGuard<'_, F> {
        let GateKind::Base(gate) = &self.0 else { unreachable!("transactions commit to the base only") };
        assert!(!self.is_entered(), "a commit is no part of another call");
        if is_planted(PlantedBug::CommitBesideCalls) {
            return self.hold(GateLock::Shared(gate.lock.read()));
        }
        let lock = gate.lock.write();
        gate.calls_alone.fetch_add(1, Ordering::Relaxed);
        self.hold(GateLock::Exclusive(lock))
    }

    /// The number of calls that have run alone in the base. A call that finds the number of an earlier call
    /// knows that none ran between the two.
    pub(crate) fn calls_alone(&self) -> u64 {
        let GateKind::Base(gate) = &self.0 else { unreachable!("transactions commit to the base only") };
        debug_assert!(self.is_entered(), "the number is read inside a call");
        gate.calls_alone.load(Ordering::Relaxed)
    }

    /// Whether this thread has entered.
    pub(crate) fn is_entered(&self) -> bool {
        ENTERED.with(Cell::get).contains(self.address())
    }

    /// Whether this is the gate of a transaction.
    pub(crate) fn is_transaction(&self) -> bool {
        matches!(self.0, GateKind::Transaction(..))
    }

    /// The time of the call that runs inside a transaction; `None` in the base, where the clock has it.
    pub(crate) fn call_time(&self) -> Option<InodeTime> {
        let GateKind::Transaction(gate) = &self.0 else { return None };
        gate.times.lock().current
    }

    /// Sets the time of the next call, for a replay.
    pub(crate) fn set_next_time(&self, at: InodeTime) {
        debug_assert!(!self.is_entered(), "a time is set between two calls");
        if let GateKind::Transaction(gate) = &self.0 {
            let unused = gate.times.lock().next.replace(at);
            debug_assert!(unused.is_none(), "each call of a replay takes its time");
        }
    }

    /// Begins a call. Its time is the one that was set for it, or else `now`.
    fn begin_call(&self, now: impl FnOnce() -> InodeTime) -> InodeTime {
        let GateKind::Transaction(gate) = &self.0 else { return now() };
        let mut times = gate.times.lock();
        let at = times.next.take().unwrap_or_else(now);
        times.current = Some(at);
        at
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    fn hold<'a>(&self, lock: GateLock<'a, F>) -> CallGuard<'a, F> {
        let mut entered = ENTERED.with(Cell::get);
        debug_assert!(!entered.contains(self.address()), "a thread enters a gate once");
        let slot = entered.gates.get_mut(entered.count).expect("gates are entered from the inside out");
        *slot = self.address();
        entered.count += 1;
        ENTERED.with(|gates| gates.set(entered));
        CallGuard { lock, address: self.address() }
    }
}

/// A call in the gate of a transaction, before it leaves.
pub(crate) struct LeavingCall<'a, F> {
    gate: &'a TransactionGate<F>,
    guard: CallGuard<'a, F>,
    /// `None` for a call within a call, which stays inside with the outer one.
    at: Option<InodeTime>,
}

impl<'a, F> LeavingCall<'a, F> {
    /// Records the call as `operation` and leaves the gate. What the rest of the call needs must not depend
    /// on changes of the calls that come next.
    pub(crate) fn leave<O: Operation<F> + 'static>(
        mut self,
        operation: impl FnOnce() -> O,
    ) -> UnansweredCall<'a, F> {
        let (Some(at), Some(journal)) = (self.at, self.guard.journal()) else {
            return UnansweredCall { gate: None, number: None, inside: Some(self.guard) };
        };
        let number = journal.add_unanswered(operation, at);
        // No more calls leave a transaction that waits for those outside: its end would never come.
        let stays = journal.is_ending();
        UnansweredCall { gate: Some(self.gate), number, inside: stays.then_some(self.guard) }
    }
}

/// A call that has left the gate of a transaction, until it has its answer. A call that panics has none, and
/// counts as one whose answer nobody has seen.
pub(crate) struct UnansweredCall<'a, F> {
    /// `None` once it is answered, and for a call within a call.
    gate: Option<&'a TransactionGate<F>>,
    /// `None` if the journal is incomplete.
    number: Option<CallNumber>,
    /// The guard of a call that could not leave.
    inside: Option<CallGuard<'a, F>>,
}

impl<F> UnansweredCall<'_, F> {
    /// Records the answer.
    pub(crate) fn answer(mut self, answer: &impl Digestible) {
        if self.gate.is_some() {
            self.end(Some(digest(answer)));
        }
    }

    fn end(&mut self, digest: Option<u64>) {
        // Before the journal is locked: the guard has the same lock.
        self.inside = None;
        if let Some(gate) = self.gate.take() {
            gate.journal.lock().answer(self.number, digest);
            gate.answered.notify_all();
        }
    }
}

impl<F> Drop for UnansweredCall<'_, F> {
    fn drop(&mut self) {
        self.end(None);
    }
}

impl<F> CallGuard<'_, F> {
    /// The journal, if this is the outermost guard inside a transaction.
    pub(crate) fn journal(&mut self) -> Option<&mut CallJournal<F>> {
        match &mut self.lock {
            GateLock::Journal(journal) => Some(journal),
            _ => None,
        }
    }
}

impl<F> Drop for CallGuard<'_, F> {
    fn drop(&mut self) {
        if matches!(self.lock, GateLock::Outer) {
            return;
        }
        // Guards are values on the stack: the gate that was entered last is left first.
        let mut entered = ENTERED.with(Cell::get);
        debug_assert!(entered.count > 0, "a guard stands for a gate that was entered");
        entered.count -= 1;
        debug_assert_eq!(
            entered.gates.get(entered.count),
            Some(&self.address),
            "gates are left in the opposite order of entering"
        );
        ENTERED.with(|gates| gates.set(entered));
    }
}
