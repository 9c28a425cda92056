//! Making commits durable; threads that wait together share one cut, one record and one flush.

use std::sync::atomic::Ordering;

use parking_lot::{Condvar, Mutex};
use warpfire_log::LogStore;
use warpfire_units::Seq;

use super::cut::Gathered;
use crate::engine::Inner;
use crate::schema::Schema;
use crate::store::MetaError;

#[derive(Debug, Default)]
struct Turn {
    running: bool,
    begun: u64,
    ended: u64,
}

/// One sync runs at a time; those who come meanwhile wait for the next, which one of them leads.
#[derive(Debug, Default)]
pub(crate) struct SyncTurns {
    turn: Mutex<Turn>,
    ended: Condvar,
}

impl<L: LogStore, S: Schema> Inner<L, S> {
    pub(crate) fn sync(&self, upto: Seq) -> Result<(), MetaError> {
        let written = self.slices_written.load(Ordering::Acquire);
        // What the hook keeps back is part of "everything", so that always takes a cut.
        let is_durable = || {
            upto != Seq::MAX
                && self.durable.load(Ordering::Acquire) >= upto.min(self.newest()).0
                && self.slices_durable.load(Ordering::Acquire) >= written
        };
        let mut turn = self.turns.turn.lock();
        let wanted = turn.begun + 1;
        loop {
            self.latch.check()?;
            if turn.ended >= wanted || is_durable() {
                return Ok(());
            }
            if !turn.running {
                break;
            }
            self.turns.ended.wait(&mut turn);
        }
        turn.running = true;
        turn.begun += 1;
        drop(turn);
        let result = self.make_durable();
        let mut turn = self.turns.turn.lock();
        turn.running = false;
        if result.is_ok() {
            turn.ended = turn.begun;
        }
        drop(turn);
        self.turns.ended.notify_all();
        result
    }

    fn make_durable(&self) -> Result<(), MetaError> {
        let written = self.slices_written.load(Ordering::Acquire);
        let upto = match self.gather()? {
            Gathered::Logged(upto) => {
                self.latch.note(self.log.sync())?;
                upto
            }
            Gathered::TooMuch(upto) => {
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
