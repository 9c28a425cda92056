//! The gate of a filesystem: every call enters it, and inside a transaction the gate records the call.
//!
//! # Invariants
//! 1. Everything that a call reads and changes under a lock of its own happens while its thread holds one
//!    guard. A call within a call enters under the outer guard. `Fs::commit` asserts that a guard is held.
//! 2. In the base, calls run side by side; only a commit of a transaction runs alone (`enter_exclusive`
//!    asserts that it is no part of another call). Inside a transaction each call runs alone and is recorded
//!    (the tests `serial` and `threads`).
//! 3. A thread enters from the inside out: a transaction's gate first, then the base's. `hold` asserts that
//!    they are few, and the guard's drop that they are left in the opposite order.

use std::cell::Cell;

use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use warpfire_format::fs::InodeTime;

use super::digest::{Digestible, digest};
use super::journal::CallJournal;
use super::operation::Operation;

/// The gate of one filesystem; `F` is the filesystem.
pub(crate) struct CallGate<F>(GateKind<F>);

enum GateKind<F> {
    Base(RwLock<()>),
    Transaction(Mutex<CallJournal<F>>, Mutex<CallTimes>),
}

/// The time inside a transaction: one for each call, so that a replay can be given the same again.
#[derive(Default)]
struct CallTimes {
    current: Option<InodeTime>,
    next: Option<InodeTime>,
}

thread_local! {
    static ENTERED: Cell<EnteredGates> = const { Cell::new(EnteredGates { gates: [0; GATES_MAX], count: 0 }) };
}

/// Gates that one thread enters at a time: a transaction's, its base's, and that of a replay that a commit
/// makes there.
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
    /// Of the gate.
    address: usize,
}

#[expect(dead_code, reason = "guards are held for their drop")]
enum GateLock<'a, F> {
    /// The thread has entered this gate already: the outer guard has the lock.
    Outer,
    Shared(RwLockReadGuard<'a, ()>),
    Exclusive(RwLockWriteGuard<'a, ()>),
    Journal(MutexGuard<'a, CallJournal<F>>),
}

impl<F> CallGate<F> {
    /// Of the base.
    pub(crate) fn base() -> Self {
        CallGate(GateKind::Base(RwLock::new(())))
    }

    /// Of a transaction.
    pub(crate) fn transaction(journal: CallJournal<F>) -> Self {
        CallGate(GateKind::Transaction(Mutex::new(journal), Mutex::default()))
    }

    /// Enters and makes a call with `run`. Inside a transaction the gate records it as `operation`, with the
    /// digest of the answer; in the base, and for a call within a call, `operation` is never made and `run`
    /// is all that happens.
    pub(crate) fn call<O: Operation<F> + 'static, T: Digestible>(
        &self,
        now: impl FnOnce() -> InodeTime,
        operation: impl FnOnce() -> O,
        run: impl FnOnce() -> T,
    ) -> T {
        let mut guard = self.enter();
        if guard.journal().is_none() {
            return run();
        }
        let at = self.begin_call(now);
        let answer = run();
        if let Some(journal) = guard.journal() {
            journal.add(operation, digest(&answer), at);
        }
        answer
    }

    /// Enters for a call that is not recorded. A transaction that did so cannot be replayed: if anything that
    /// it read changes, it ends in a conflict.
    pub(crate) fn enter_unrecorded(&self, now: impl FnOnce() -> InodeTime) -> CallGuard<'_, F> {
        let mut guard = self.enter();
        if let Some(journal) = guard.journal() {
            journal.end();
            self.begin_call(now);
        }
        guard
    }

    /// Enters, and waits for a commit that is alone in the base, or for another call of the same transaction.
    pub(crate) fn enter(&self) -> CallGuard<'_, F> {
        if self.is_entered() {
            return CallGuard { lock: GateLock::Outer, address: self.address() };
        }
        let lock = match &self.0 {
            GateKind::Base(gate) => GateLock::Shared(gate.read()),
            GateKind::Transaction(journal, _) => GateLock::Journal(journal.lock()),
        };
        self.hold(lock)
    }

    /// Enters the base, and waits until no other call runs there. None runs until the guard is dropped.
    pub(crate) fn enter_exclusive(&self) -> CallGuard<'_, F> {
        let GateKind::Base(gate) = &self.0 else { unreachable!("only the base is committed to") };
        assert!(!self.is_entered(), "a commit is no part of another call");
        self.hold(GateLock::Exclusive(gate.write()))
    }

    /// Whether this thread has entered.
    pub(crate) fn is_entered(&self) -> bool {
        ENTERED.get().contains(self.address())
    }

    /// Whether this is the gate of a transaction.
    pub(crate) fn is_transaction(&self) -> bool {
        matches!(self.0, GateKind::Transaction(..))
    }

    /// The time of the call that runs inside a transaction; `None` in the base, where time flows.
    pub(crate) fn call_time(&self) -> Option<InodeTime> {
        let GateKind::Transaction(_, times) = &self.0 else { return None };
        times.lock().current
    }

    /// The next call goes by this time.
    pub(crate) fn set_next_time(&self, at: InodeTime) {
        if let GateKind::Transaction(_, times) = &self.0 {
            times.lock().next = Some(at);
        }
    }

    /// A call begins: its time is the one that was set for it, or else `now`.
    fn begin_call(&self, now: impl FnOnce() -> InodeTime) -> InodeTime {
        let GateKind::Transaction(_, times) = &self.0 else { return now() };
        let mut times = times.lock();
        let at = times.next.take().unwrap_or_else(now);
        times.current = Some(at);
        at
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    fn hold<'a>(&self, lock: GateLock<'a, F>) -> CallGuard<'a, F> {
        let mut entered = ENTERED.get();
        let slot = entered.gates.get_mut(entered.count).expect("gates are entered from the inside out");
        *slot = self.address();
        entered.count += 1;
        ENTERED.set(entered);
        CallGuard { lock, address: self.address() }
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
        let mut entered = ENTERED.get();
        entered.count -= 1;
        debug_assert_eq!(
            entered.gates.get(entered.count),
            Some(&self.address),
            "gates are left in the opposite order of entering"
        );
        ENTERED.set(entered);
    }
}
