//! Background work: step functions, and the threads that call them when events may have made work.
//!
//! Upkeep has a thread of its own, so that flushes and merges never wait for a column that is being
//! rewritten, or for its turn.
//!
//! # Invariants
//! 1. Every event that may have made work raises `events`, so no thread sleeps through one (assert in
//!    `work`).
//! 2. A step that returns `true` has made progress, so repeated steps end.

use std::sync::Arc;
use std::time::Duration;
use warpfire_env::sync::atomic::{AtomicBool, Ordering};
use warpfire_env::sync::thread::{Builder, JoinHandle};

use warpfire_env::sync::{Condvar, Mutex};
use warpfire_env::{SystemClock, begin_background_work, lower_thread_priority};
use warpfire_log::{CensusNeed, LogError, LogStore, WaitBy, Waiter, WorkFor};
use warpfire_units::Seq;

use super::{Background, Engine, EngineInner};
use crate::schema::Schema;
use crate::store::MetaError;

/// Manifest edits after which a checkpoint is logged, so that recovery reads few.
const EDITS_MAX: u64 = 256;

#[derive(Debug, Default)]
struct WakeState {
    /// Counts every event that may have made work.
    events: u64,
    stopped: bool,
}

/// Wakes the background threads.
#[derive(Debug, Default)]
pub(super) struct BackgroundSignal {
    calls: Mutex<WakeState>,
    called: Condvar,
    /// Whether threads do the background work now.
    has_threads: AtomicBool,
}

/// The threads of an engine; they are joined when it is closed or dropped.
pub(super) struct Threads {
    handles: Mutex<Vec<JoinHandle<()>>>,
    stop: Box<dyn Fn() + Send + Sync>,
}

impl Threads {
    /// Starts the threads, if the options ask for them.
    ///
    /// # Errors
    /// `NoThread`. Those that were started before have ended.
    pub(super) fn start<L: LogStore, S: Schema>(inner: &Arc<EngineInner<L, S>>) -> Result<Self, MetaError> {
        let has_threads = inner.options.background == Background::Threads && !inner.options.read_only;
        inner.signal.has_threads.store(has_threads, Ordering::Release);
        let stopped = Arc::clone(inner);
        let stop = Box::new(move || {
            stopped.signal.has_threads.store(false, Ordering::Release);
            stopped.signal.calls.lock().stopped = true;
            stopped.signal.called.notify_all();
        });
        // From here on a drop ends those that run.
        let threads = Threads { handles: Mutex::default(), stop };
        if has_threads {
            let step = |step: fn(&EngineInner<L, S>) -> Result<bool, MetaError>| {
                let inner = Arc::clone(inner);
                move || work(&inner, step)
            };
            threads.add("warpfire-flush", step(EngineInner::flush_step))?;
            threads.add("warpfire-merge", step(EngineInner::compaction_step))?;
            let upkeep = step(EngineInner::upkeep_step);
            let upkeep = move || {
                // No program waits for it, and on few processors some would wait behind it.
                lower_thread_priority();
                upkeep();
            };
            threads.add("warpfire-mend", upkeep)?;
        }
        Ok(threads)
    }

    fn add(&self, name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), MetaError> {
        let thread = Builder::new().name(name.to_owned()).spawn(work);
        self.handles.lock().push(thread.map_err(|e| MetaError::NoThread(e.to_string().into()))?);
        Ok(())
    }

    /// Ends the threads after their current step, and waits for them.
    pub(super) fn stop(&self) {
        (self.stop)();
        for handle in self.handles.lock().drain(..) {
            // Not a second panic: this runs in a drop, perhaps while another panic unwinds.
            if handle.join().is_err() {
                tracing::error!(name: "background_thread_panicked", "a background thread panicked");
            }
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.stop();
    }
}

fn work<L: LogStore, S: Schema>(
    inner: &EngineInner<L, S>,
    step: impl Fn(&EngineInner<L, S>) -> Result<bool, MetaError>,
) {
    let _in_background = begin_background_work();
    let mut seen = 0;
    loop {
        let mut calls = inner.signal.calls.lock();
        while calls.events == seen && !calls.stopped {
            inner.signal.called.wait(&mut calls);
        }
        if calls.stopped {
            return;
        }
        assert!(calls.events > seen, "a thread wakes for a new event");
        seen = calls.events;
        drop(calls);
        // A failed step is tried again at the next event, when a full pool may have room. If the engine has
        // latched, the next commit or sync returns the reason.
        while let Ok(true) = step(inner) {
            inner.wake_background();
            if inner.signal.calls.lock().stopped {
                return;
            }
        }
    }
}

/// The steps of the background threads, for a caller that chooses when each runs.
impl<L: LogStore, S: Schema> Engine<L, S> {
    /// A step of the thread for upkeep: makes one segment whole, piece by piece, at the rate of upkeep.
    /// `waiter` may wait between two pieces while others use the engine, and may end the step. `true` if
    /// something was rewritten.
    ///
    /// # Errors
    /// The first error of the log. A segment that cannot be made whole is no error.
    pub fn upkeep_step(&self, waiter: &dyn Waiter) -> Result<bool, MetaError> {
        let _in_background = begin_background_work();
        self.inner.upkeep_step_by(waiter)
    }

    /// A step of the threads for flushes and merges. `true` if something was done.
    ///
    /// # Errors
    /// The first error of the log.
    pub fn flush_or_merge_step(&self) -> Result<bool, MetaError> {
        let _in_background = begin_background_work();
        Ok(self.inner.flush_step()? || self.inner.compaction_step()?)
    }
}

impl<L: LogStore, S: Schema> EngineInner<L, S> {
    /// Counts an event that may have made work, and wakes the threads.
    pub(crate) fn wake_background(&self) {
        if self.options.background == Background::Threads {
            self.signal.calls.lock().events += 1;
            self.signal.called.notify_all();
        }
    }

    /// Whether background threads work for callers. They do not while the engine is opened or closed.
    pub(crate) fn has_threads(&self) -> bool {
        self.signal.has_threads.load(Ordering::Acquire)
    }

    /// Whether the threads are to end after their current step, which should be soon.
    pub(crate) fn is_stopping(&self) -> bool {
        self.options.background == Background::Threads && !self.has_threads()
    }

    /// Wakes the threads if the log has met damage since the last call.
    #[inline]
    pub(super) fn repair_seen_damage(&self) {
        let seen = self.log.damage_seen();
        if self.damage_handled.load(Ordering::Relaxed) != seen {
            self.damage_handled.store(seen, Ordering::Relaxed);
            self.wake_background();
        }
    }

    /// Flushes the frozen memtable, or shortens the commit log. `false`: there was nothing to do.
    pub(super) fn flush_step(&self) -> Result<bool, MetaError> {
        self.latch.check()?;
        if self.shards.frozen().is_some() {
            self.flush_or_reclaim_here()?;
            return Ok(true);
        }
        if self.log.log_bytes() > self.options.log_bytes_max {
            self.freeze()?;
            self.flush_or_reclaim_here()?;
            self.checkpoint()?;
            // If even the shortest form of the log is too long, another checkpoint would not help: no
            // progress.
            return Ok(self.log.log_bytes() <= self.options.log_bytes_max);
        }
        if self.manifest.lock().edits_since_checkpoint > EDITS_MAX {
            self.checkpoint()?;
            return Ok(true);
        }
        Ok(false)
    }

    /// Makes one segment whole. Ends early when the threads are to end.
    fn upkeep_step(&self) -> Result<bool, MetaError> {
        // The condition variable waits in the machine's time.
        let waiter = WaitBy(&SystemClock, |wait: Duration| {
            let mut calls = self.signal.calls.lock();
            if !wait.is_zero() {
                self.signal.called.wait_while_for(&mut calls, |calls| !calls.stopped, wait);
            }
            !calls.stopped
        });
        self.upkeep_step_by(&waiter)
    }

    /// Makes one segment whole, at the rate of upkeep, unless that is paused.
    fn upkeep_step_by(&self, waiter: &dyn Waiter) -> Result<bool, MetaError> {
        if self.log.upkeep_may_work() { self.repair_step(WorkFor::Pool(waiter)) } else { Ok(false) }
    }

    /// Works for callers that wait for space, or compacts runs, or cleans segments if that pays.
    pub(super) fn compaction_step(&self) -> Result<bool, MetaError> {
        self.latch.check()?;
        if self.reclaim_step()? {
            return Ok(true);
        }
        match self.drop_removed_step() {
            Ok(false) => {}
            // The rest goes with ordinary compaction.
            Err(e) if e.is_no_space() => {}
            other => return other,
        }
        match self.compact_step() {
            Ok(false) => {}
            // No space to write the group twice: `compact_all` works range by range.
            Err(e) if e.is_no_space() => return self.compact_all(),
            other => return other,
        }
        match self.past_step() {
            Ok(false) => {}
            // What nobody sees stays for now: the next release or the next reclaim tries again.
            Err(e) if e.is_no_space() => {}
            other => return other,
        }
        if self.drop_hidden_step()? {
            return Ok(true);
        }
        // Garbage that nobody sees makes no cleaning pay.
        if self.census_step(CensusNeed::Gain)? {
            return Ok(true);
        }
        if !self.cleaning_pays() {
            return Ok(false);
        }
        // Cleaning without gain waits for the next event: live bytes only moved, or pins keep the emptied
        // segments.
        let garbage_bytes = self.log.space().garbage_bytes;
        Ok(self.clean_step()? && self.log.space().garbage_bytes < garbage_bytes)
    }

    /// As `flush_or_reclaim`, with the reclaim on this thread.
    fn flush_or_reclaim_here(&self) -> Result<(), MetaError> {
        self.reclaim_here(|| if self.is_stopping() { Ok(()) } else { self.flush_frozen().map(|_| ()) })
    }

    /// Makes everything durable, as tables if there is space, and then refuses further writes.
    pub(super) fn close(&self) -> Result<(), MetaError> {
        if self.options.read_only {
            return Ok(());
        }
        self.latch.check()?;
        self.sync(Seq::MAX)?;
        let written = self.freeze().and_then(|_| self.flush_or_reclaim()).and_then(|()| self.checkpoint());
        self.latch.set(MetaError::Log(LogError::ReadOnly("the store is closed".into())));
        match written {
            // The commit log has every commit; the next recovery writes the tables.
            Err(MetaError::Log(LogError::NoSpace)) => Ok(()),
            other => other,
        }
    }
}
