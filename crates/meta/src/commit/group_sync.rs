//! Making commits durable; threads that wait together share one cut, one record and one flush.

use std::sync::atomic::Ordering;

use parking_lot::{Condvar, Mutex};
use warpfire_log::LogStore;
use warpfire_units::Seq;

use super::sync_point::CollectOutcome;
use crate::engine::EngineInner;
use crate::schema::Schema;
use crate::store::MetaError;

#[derive(Debug, Default)]
struct GroupSyncState {
    running: bool,
    begun: u64,
    ended: u64,
}

/// One sync runs at a time; those who come meanwhile wait for the next, which one of them leads.
#[derive(Debug, Default)]
pub(crate) struct GroupSync {
    state: Mutex<GroupSyncState>,
    ended: Condvar,
}

impl<L: LogStore, S: Schema> EngineInner<L, S> {
    pub(crate) fn sync(&self, upto: Seq) -> Result<(), MetaError> {
        let written = self.slices_written.load(Ordering::Acquire);
        // What the hook keeps back is part of "everything", so that always takes a cut.
        let is_durable = || {
            upto != Seq::MAX
                && self.durable.load(Ordering::Acquire) >= upto.min(self.newest()).0
                && self.slices_durable.load(Ordering::Acquire) >= written
        };
        let mut state = self.group_sync.state.lock();
        let wanted = state.begun + 1;
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
        state.running = true;
        state.begun += 1;
        drop(state);
        let result = self.make_durable();
        let mut state = self.group_sync.state.lock();
        state.running = false;
        if result.is_ok() {
            state.ended = state.begun;
        }
        drop(state);
        self.group_sync.ended.notify_all();
        result
    }

    fn make_durable(&self) -> Result<(), MetaError> {
        let written = self.slices_written.load(Ordering::Acquire);
        let upto = match self.collect_commits()? {
            CollectOutcome::Logged(upto) => {
                self.latch.note(self.log.sync())?;
                upto
            }
            CollectOutcome::TooMuch(upto) => {
                // A memtable that was frozen before has to be written first: tables are made in the order of seqs.
                while self.durable.load(Ordering::Acquire) < upto.0 {
                    self.freeze()?;
                    self.flush_or_reclaim()?;
                }
                upto
            }
        };
        self.durable.fetch_max(upto.0, Ordering::AcqRel);
        self.slices_durable.fetch_max(written, Ordering::AcqRel);
        // Background work comes before this, unless it is called too seldom or finds no space.
        if self.log.log_bytes() > 2 * self.options.log_bytes_max {
            return self.shorten_log();
        }
        Ok(())
    }

    /// Writes what is in memory as tables, so that the commit log can begin anew: its segments come out of the reserve.
    fn shorten_log(&self) -> Result<(), MetaError> {
        let shortened = self.freeze().and_then(|_| self.flush_or_reclaim()).and_then(|()| self.checkpoint());
        match shortened {
            // What is in the log is durable; the next sync tries again.
            Err(e) if e.is_no_space() => Ok(()),
            other => other,
        }
    }
}
