//! Group sync: threads that sync at the same time share one sync point, one record and one flush.
//!
//! # Terms
//! A *round* is one `make_durable` and the number it has. The *leader* is the thread that runs a round.
//!
//! # Invariants
//! 1. At most one round runs at a time (assert in `sync`).
//! 2. A caller returns only after a round that began after its call has succeeded, or if its commits are
//!    durable already. A round that was running may have collected before the caller's commit.
//! 3. `durable` rises only after the log's sync has returned.

use warpfire_env::sync::atomic::Ordering;

use warpfire_env::sync::{Condvar, Mutex};
use warpfire_env::{PlantedBug, is_planted};
use warpfire_log::{LogError, LogStore};
use warpfire_units::Seq;

use super::sync_point::CollectOutcome;
use crate::engine::EngineInner;
use crate::schema::Schema;
use crate::store::MetaError;

#[derive(Debug, Default)]
struct GroupSyncState {
    running: bool,
    /// Number of the newest round that has begun.
    begun: u64,
    /// Number of the newest round that has succeeded.
    ended: u64,
}

/// The state that syncing threads share. Threads that arrive during a round wait for the next; one of them
/// leads it.
#[derive(Debug, Default)]
pub(crate) struct GroupSync {
    state: Mutex<GroupSyncState>,
    ended: Condvar,
}

impl<L: LogStore, S: Schema> EngineInner<L, S> {
    /// Makes every commit up to a seq durable, and ends the removals among them.
    pub(crate) fn sync(&self, upto: Seq) -> Result<(), MetaError> {
        self.sync_commits(upto)?;
        // The round of another thread may have made them durable, and that thread may not have come to this.
        self.end_removals();
        Ok(())
    }

    fn sync_commits(&self, upto: Seq) -> Result<(), MetaError> {
        if self.options.read_only {
            // Everything was durable when the engine was open, and nothing has changed.
            return Ok(());
        }
        // `Seq::MAX` includes the changes that the hook defers, and only a sync point collects these.
        let is_durable =
            || upto != Seq::MAX && self.durable.load(Ordering::Acquire) >= upto.min(self.newest()).0;
        let mut state = self.group_sync.state.lock();
        // Not the running round: it may have collected before this caller's commit.
        let joins = state.running && is_planted(PlantedBug::RoundJoined);
        let wanted = state.begun + u64::from(!joins);
        loop {
            self.latch.check()?;
            if state.ended >= wanted || is_durable() {
                return Ok(());
            }
            if !state.running {
                break;
            }
            self.group_sync.ended.wait(&mut state);
        }
        // This thread leads the next round. The lock is free during the round, so that others can queue up.
        assert!(!state.running, "one round runs at a time");
        state.running = true;
        state.begun += 1;
        drop(state);
        let result = self.make_durable();
        let mut state = self.group_sync.state.lock();
        state.running = false;
        assert!(state.ended < state.begun, "a round ends once");
        if result.is_ok() {
            state.ended = state.begun;
        }
        drop(state);
        // After a failure too: each waiter then leads a round of its own and sees its own error.
        self.group_sync.ended.notify_all();
        result
    }

    /// Makes every commit durable that was there at the call.
    fn make_durable(&self) -> Result<(), MetaError> {
        let upto = match self.collect_commits()? {
            // Tables that are being written, and data that no commit names yet, can wait.
            CollectOutcome::Logged(upto) => match self.log.sync_records() {
                Err(LogError::NoSpace) => self.make_durable_as_tables(upto)?,
                synced => {
                    self.latch.note(synced)?;
                    upto
                }
            },
            CollectOutcome::TooMuch(upto) => self.make_durable_as_tables(upto)?,
        };
        debug_assert!(upto <= self.newest(), "a sync covers commits that exist");
        self.note_durable(upto);
        // The background thread shortens the log at half this length, unless it lags or finds no space.
        if self.log.log_bytes() > 2 * self.options.log_bytes_max {
            return self.shorten_log();
        }
        Ok(())
    }

    /// Makes the commits up to a seq durable in tables: they are too much for a record, or the commit log has
    /// no room for one. `NoSpace` if there is no room for the tables either: then everything stays in memory,
    /// and a later sync tries again.
    fn make_durable_as_tables(&self, upto: Seq) -> Result<Seq, MetaError> {
        // Two rounds if a memtable is frozen already: tables are written in the order of seqs.
        while self.durable.load(Ordering::Acquire) < upto.0 {
            self.freeze()?;
            self.flush_or_reclaim()?;
        }
        Ok(upto)
    }

    /// Writes memory as tables, so that a checkpoint can shorten the commit log. Its segments come out of
    /// the reserve.
    fn shorten_log(&self) -> Result<(), MetaError> {
        let shortened = self.freeze().and_then(|_| self.flush_or_reclaim()).and_then(|()| self.checkpoint());
        match shortened {
            // The records in the log are durable all the same. The next sync tries again.
            Err(e) if e.is_no_space() => Ok(()),
            other => other,
        }
    }
}
