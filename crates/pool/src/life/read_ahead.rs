//! Stripes of columns that move, read while those before them are written.
//!
//! ```text
//!   reads     2 ─────▶ 3 ─────▶ 4 ─────▶
//!   this      1 writes ▶ 2 writes ▶ 3 writes ▶
//! ```
//!
//! Threads of the segment's scope read, and reconstruct: the devices have work while this thread computes
//! checksums, and while it waits for the devices that it writes to.
//!
//! # Invariants
//! 1. Only a work that takes whole stripes at once begins to read ahead, so beside programs none does
//!    (`tests/stories/ahead.rs`). A read that had begun before they came ends beside them.
//! 2. The stripes are written in their order, whatever the order in which they are read.
//! 3. At most `STRIPES_AHEAD` stripes are in memory beside the one that is written. When a target fails, as
//!    many more are, which nobody uses, until their reads end.
//! 4. Simulated devices never meet a second thread: the order of their operations repeats.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::thread::{Builder, Scope, ScopedJoinHandle};

use warpfire_env::{begin_background_work, is_background_work};

use crate::error::PoolError;
use crate::life::piece_work::{PieceWork, Turns};
use crate::life::resilver::ColumnMove;
use crate::life::rewrite_column::FilledStripe;
use crate::pool::Inner;
use crate::segment::pool_segment::PoolSegment;
use crate::segment::stripe_index::StripePlace;

/// With two, one is read while another one is reconstructed.
const STRIPES_AHEAD: usize = 2;

/// A stripe and its place; `None` after the last one.
type NextStripe<'env> = Option<(&'env StripePlace, FilledStripe)>;

/// A stripe that a thread has read, and what that has cost.
struct StripeRead {
    filled: Result<FilledStripe, PoolError>,
    work: PieceWork,
}

/// The turns of a thread that reads ahead: its caller takes its turn when it uses the stripe.
#[derive(Default)]
struct Unasked(PieceWork);

impl Turns for Unasked {
    fn piece_bytes(&self) -> u64 {
        u64::MAX
    }

    fn after_piece(&mut self, work: PieceWork) -> ControlFlow<()> {
        self.0.read_bytes += work.read_bytes;
        self.0.written_bytes += work.written_bytes;
        ControlFlow::Continue(())
    }
}

/// The stripes of a segment, in their order, with the next ones read ahead.
pub(crate) struct ReadAhead<'scope, 'env: 'scope> {
    scope: &'scope Scope<'scope, 'env>,
    inner: &'env Inner,
    segment: &'env PoolSegment,
    places: &'env [StripePlace],
    /// The columns for which the stripes are read.
    moves: Vec<ColumnMove>,
    /// Those that are read ahead, from the next one on.
    reads: VecDeque<ScopedJoinHandle<'scope, StripeRead>>,
}

impl<'scope, 'env> ReadAhead<'scope, 'env> {
    pub(crate) fn new(
        scope: &'scope Scope<'scope, 'env>,
        inner: &'env Inner,
        segment: &'env PoolSegment,
        places: &'env [StripePlace],
    ) -> Self {
        ReadAhead { scope, inner, segment, places, moves: Vec::new(), reads: VecDeque::new() }
    }

    /// The shards of the next stripe, for these columns, and its place; `None` after the last one. Begins to
    /// read those after it. `Break` if `turns` have ended the work.
    pub(crate) fn next(
        &mut self,
        moves: &[ColumnMove],
        turns: &mut dyn Turns,
    ) -> Result<ControlFlow<(), NextStripe<'env>>, PoolError> {
        if self.moves != moves {
            // The scope waits for these threads, and nobody uses what they read.
            self.reads.clear();
            self.moves = moves.to_vec();
        }
        let Some((place, later)) = self.places.split_first() else { return Ok(ControlFlow::Continue(None)) };
        self.places = later;
        let read = self.reads.pop_front();
        self.begin(turns);
        let filled = match read {
            Some(read) => {
                let StripeRead { filled, work } = read.join().expect("a thread that reads does not panic");
                if turns.after_piece(work).is_break() {
                    return Ok(ControlFlow::Break(()));
                }
                filled?
            }
            None => match self.inner.fill_stripe(self.segment, place, moves, turns)? {
                ControlFlow::Continue(filled) => filled,
                ControlFlow::Break(()) => return Ok(ControlFlow::Break(())),
            },
        };
        Ok(ControlFlow::Continue(Some((place, filled))))
    }

    /// Begins to read the stripes that are to be ahead now.
    fn begin(&mut self, turns: &dyn Turns) {
        if turns.piece_bytes() < u64::MAX || !self.inner.devices.take_threads() {
            return;
        }
        let (inner, segment, is_background) = (self.inner, self.segment, is_background_work());
        for place in self.places.iter().take(STRIPES_AHEAD).skip(self.reads.len()) {
            let moves = self.moves.clone();
            let read = move || {
                let _in_background = is_background.then(begin_background_work);
                let mut turns = Unasked::default();
                let filled = inner.fill_stripe(segment, place, &moves, &mut turns);
                let filled = filled.map(|filled| match filled {
                    ControlFlow::Continue(filled) => filled,
                    ControlFlow::Break(()) => unreachable!("these turns end nothing"),
                });
                StripeRead { filled, work: turns.0 }
            };
            // Without a thread the stripe is read when it is its turn.
            let Ok(read) = Builder::new().name("warpfire-ahead".to_owned()).spawn_scoped(self.scope, read)
            else {
                return;
            };
            self.reads.push_back(read);
        }
    }
}
