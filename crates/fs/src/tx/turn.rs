//! Whose turn it is: how calls enter a filesystem.
//!
//! # Invariants
//! 1. Everything that a call reads and changes under a lock of its own happens within one turn of its thread. A turn within a turn is the same turn.
//! 2. In the base, turns are side by side, but for a commit's, which is alone. Inside a transaction every turn is alone, and is written down.
//! 3. A thread takes turns from the inside out: inside a transaction first, then in the base.

use std::cell::Cell;

use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use warpfire_format::fs::Stamp;
use warpfire_meta::{SliceStore, Store};

use super::answer::{Answer, digest};
use super::call::Call;
use super::journal::Journal;
use crate::attrs::stamp;
use crate::fs::Fs;

/// The turns of one filesystem.
pub(crate) struct Turns(Kind);

enum Kind {
    Base(RwLock<()>),
    Inside(Mutex<Journal>, Mutex<Times>),
}

/// The time inside a transaction: one for each call, so that a repetition can be given the same again.
#[derive(Default)]
struct Times {
    now: Option<Stamp>,
    given: Option<Stamp>,
}

thread_local! {
    static HELD: Cell<Holding> = const { Cell::new(Holding { turns: [0; TURNS_MAX], count: 0 }) };
}

/// Turns of one thread at a time: inside a transaction, in its base, and inside the repetition that a commit makes there.
const TURNS_MAX: usize = 4;

/// The filesystems that have given a thread a turn, by address; the last is the innermost.
#[derive(Clone, Copy)]
struct Holding {
    turns: [usize; TURNS_MAX],
    count: usize,
}

impl Holding {
    fn contains(&self, address: usize) -> bool {
        self.turns.iter().take(self.count).any(|held| *held == address)
    }
}

/// A turn, until it is dropped.
pub(crate) struct Turn<'a>(Held<'a>);

#[expect(dead_code, reason = "guards are held for their drop")]
enum Held<'a> {
    /// Within a turn that the thread has already.
    Same,
    Base(RwLockReadGuard<'a, ()>),
    Alone(RwLockWriteGuard<'a, ()>),
    Inside(MutexGuard<'a, Journal>),
}

impl Turns {
    /// Of the base.
    pub(crate) fn base() -> Turns {
        Turns(Kind::Base(RwLock::new(())))
    }

    /// Of a transaction's inside.
    pub(crate) fn inside(journal: Journal) -> Turns {
        Turns(Kind::Inside(Mutex::new(journal), Mutex::default()))
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Whether this thread has a turn.
    pub(crate) fn is_held(&self) -> bool {
        HELD.get().contains(self.address())
    }

    /// Whether these are turns inside a transaction.
    pub(crate) fn are_inside(&self) -> bool {
        matches!(self.0, Kind::Inside(..))
    }

    /// Waits for a turn.
    pub(crate) fn take(&self) -> Turn<'_> {
        if self.is_held() {
            return Turn(Held::Same);
        }
        let held = match &self.0 {
            Kind::Base(gate) => Held::Base(gate.read()),
            Kind::Inside(journal, _) => Held::Inside(journal.lock()),
        };
        self.hold(held)
    }

    /// Waits for a turn of the base alone.
    pub(crate) fn take_alone(&self) -> Turn<'_> {
        let Kind::Base(gate) = &self.0 else { unreachable!("only the base is committed to") };
        assert!(!self.is_held(), "a commit is no part of another call");
        self.hold(Held::Alone(gate.write()))
    }

    /// The time of the call that is going on inside a transaction; `None` in the base, where time flows.
    pub(crate) fn time(&self) -> Option<Stamp> {
        let Kind::Inside(_, times) = &self.0 else { return None };
        times.lock().now
    }

    /// The next call goes by this time.
    pub(crate) fn give_time(&self, at: Stamp) {
        if let Kind::Inside(_, times) = &self.0 {
            times.lock().given = Some(at);
        }
    }

    /// A call begins at this time, unless it was given another. Says which.
    pub(crate) fn begin_call(&self, at: Stamp) -> Stamp {
        let Kind::Inside(_, times) = &self.0 else { return at };
        let mut times = times.lock();
        let now = times.given.take().unwrap_or(at);
        times.now = Some(now);
        now
    }

    fn hold<'a>(&self, held: Held<'a>) -> Turn<'a> {
        let mut holding = HELD.get();
        let place = holding.turns.get_mut(holding.count).expect("turns are taken from the inside out");
        *place = self.address();
        holding.count += 1;
        HELD.set(holding);
        Turn(held)
    }
}

impl<'a> Turn<'a> {
    /// The journal, if this is an outermost turn inside a transaction.
    pub(crate) fn journal(&mut self) -> Option<&mut Journal> {
        match &mut self.0 {
            Held::Inside(journal) => Some(journal),
            _ => None,
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if !matches!(self.0, Held::Same) {
            // Turns are values on the stack: the last that was taken goes first.
            let mut holding = HELD.get();
            holding.count -= 1;
            HELD.set(holding);
        }
    }
}

impl<E: Store + SliceStore> Fs<E> {
    /// Takes a turn and makes a call in it. Inside a transaction the call is written down with what it answers.
    pub(crate) fn call<T: Answer>(&self, call: impl FnOnce() -> Call, run: impl FnOnce() -> T) -> T {
        let mut turn = self.turns.take();
        if turn.journal().is_none() {
            return run();
        }
        let at = self.turns.begin_call(stamp(self.clock.now()));
        let answer = run();
        if let Some(journal) = turn.journal() {
            journal.note(call, digest(&answer), at);
        }
        answer
    }

    /// Takes a turn for what is not written down. A transaction that did so can not repeat its calls: if anything that it read changes, it ends in a
    /// conflict.
    pub(crate) fn turn(&self) -> Turn<'_> {
        let mut turn = self.turns.take();
        if let Some(journal) = turn.journal() {
            journal.leave_gap();
            self.turns.begin_call(stamp(self.clock.now()));
        }
        turn
    }
}
