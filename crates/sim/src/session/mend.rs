//! A mend that goes on piece by piece, as in the thread of a pool, at the moments that the seed chooses.
//!
//! ```text
//!   owner   begin ── go_on ─┐          ┌─ operations, lost devices, cuts ── go_on ─┐          ┌─ ...
//!   mend                    └── piece ─┘                                           └── piece ─┘
//! ```
//!
//! # Invariants
//! 1. Either the mend runs or its owner does: each waits for a message of the other. So a seed determines the
//!    run.
//! 2. A mend that is dropped ends at the piece where it is paused.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use warpfire_fs::FsError;
use warpfire_log::WaitBy;
use warpfire_meta::MetaError;
use warpfire_sim_env::{SimClock, SimRandom};

use super::Session;
use crate::stack::SimEngine;

/// The time of a piece. As fast as a device of 128 MiB a second: pieces beside programs are the shortest.
const PIECE_NANOS: u64 = 1_000_000;

/// Most pieces that a mend does in one step of background work.
const PIECES_MAX: u64 = 3;

/// An operation of more steps lets each mend go on to its end.
const STEPS_IN_PIECES_MAX: u32 = 100;

enum Report {
    /// A piece is done, or the first one is to begin.
    Paused,
    Ended(Result<bool, MetaError>),
}

/// A mend that is paused.
pub(super) struct Mend {
    engine: Arc<SimEngine>,
    /// Lets the mend do a piece. `None`: it is to end.
    go_on: Option<Sender<()>>,
    reports: Receiver<Report>,
    thread: Option<JoinHandle<()>>,
    written_bytes_before: u64,
}

impl Mend {
    fn begin(engine: &Arc<SimEngine>, clock: Arc<SimClock>) -> Mend {
        let (go_on, may_go_on) = channel();
        let (sender, reports) = channel();
        let mends = Arc::clone(engine);
        let work = move || {
            let goes_on_after = |wait: Duration| {
                clock.advance(PIECE_NANOS + u64::try_from(wait.as_nanos()).expect("a wait is short"));
                // After a wait it looks again, and that look is the pause.
                !wait.is_zero() || (sender.send(Report::Paused).is_ok() && may_go_on.recv().is_ok())
            };
            if may_go_on.recv().is_err() {
                return;
            }
            let ended = mends.upkeep_step(&WaitBy(&*clock, goes_on_after));
            // Nobody listens to a mend that is dropped.
            _ = sender.send(Report::Ended(ended));
        };
        Mend {
            engine: Arc::clone(engine),
            go_on: Some(go_on),
            reports,
            thread: Some(std::thread::spawn(work)),
            written_bytes_before: engine.log().upkeep_limit().written_bytes(),
        }
    }

    /// Does so many pieces. The result of the mend, if it has ended.
    fn go_on(&mut self, pieces: u64) -> Option<Result<bool, MetaError>> {
        for _ in 0..pieces {
            let go_on = self.go_on.as_ref().expect("a mend that is not dropped may go on");
            go_on.send(()).expect("a mend listens until it has ended");
            match self.reports.recv() {
                Ok(Report::Paused) => {}
                Ok(Report::Ended(ended)) => return Some(ended),
                Err(_) => self.panic_as_it(),
            }
        }
        None
    }

    /// Panics with the words of the mend, which has panicked.
    fn panic_as_it(&mut self) -> ! {
        let ended = self.thread.take().map(JoinHandle::join);
        let panic = ended.and_then(Result::err);
        resume_unwind(panic.expect("a mend that does not panic reports until it has ended"))
    }

    /// Whether it has written a part of a column that no reader knows yet.
    fn has_written(&self) -> bool {
        self.engine.log().upkeep_limit().written_bytes() > self.written_bytes_before
    }
}

impl Session {
    /// Does background work as the threads of the pool do: a mend goes on for some pieces, and a flush or a
    /// merge follows.
    pub(super) fn background_in_pieces(&mut self, pieces: &SimRandom, steps: u32) -> Result<(), FsError> {
        for _ in 0..steps {
            let pieces = if steps > STEPS_IN_PIECES_MAX { u64::MAX } else { 1 + pieces.below(PIECES_MAX) };
            let has_mended = self.mend_on(pieces)?;
            let has_worked = self.fs().engine().flush_or_merge_step().map_err(FsError::from)?;
            if !has_mended && !has_worked {
                break;
            }
        }
        Ok(())
    }

    /// Goes on with the mend that is paused, or with a new one. `false`: nothing was to be mended.
    fn mend_on(&mut self, pieces: u64) -> Result<bool, FsError> {
        let paused = self.mend.take();
        let mut mend = paused.unwrap_or_else(|| Mend::begin(self.fs().engine(), self.world.clock()));
        match mend.go_on(pieces) {
            Some(ended) => Ok(ended?),
            None => {
                self.mend = Some(mend);
                Ok(true)
            }
        }
    }

    /// Whether a mend is paused that has written a part of a column.
    #[must_use]
    pub fn has_half_a_column(&self) -> bool {
        self.mend.as_ref().is_some_and(Mend::has_written)
    }
}

impl Drop for Mend {
    fn drop(&mut self) {
        drop(self.go_on.take());
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(ended.is_none_or(|ended| ended.is_ok()) || std::thread::panicking(), "a mend panics");
    }
}
