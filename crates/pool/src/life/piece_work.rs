//! Work on a segment that takes long, piece by piece: what each piece has cost, how long the next one may be,
//! and whether the work goes on.
//!
//! A *piece* is some rows of one stripe on all columns that the work reads, or some blocks of it on all that
//! it writes. A long piece keeps the devices from other reads and writes for as long as it takes.

use std::ops::{ControlFlow, Range};

use warpfire_units::BLOCK_BYTES;

/// Bytes of columns that were read and written for a piece, headers of stripes left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PieceWork {
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
}

/// How a work goes on after each of its pieces.
pub trait Turns {
    /// Most bytes that the next piece reads or writes at once, over all columns. A piece is a row at least
    /// and a stripe at most.
    fn piece_bytes(&self) -> u64;

    /// Takes note of a piece. It may wait, and `Break` ends the work.
    fn after_piece(&mut self, work: PieceWork) -> ControlFlow<()>;
}

/// The turns of a work that goes on without a wait, a stripe at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtOnce;

impl Turns for AtOnce {
    fn piece_bytes(&self) -> u64 {
        u64::MAX
    }

    fn after_piece(&mut self, _work: PieceWork) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

impl PieceWork {
    /// The reads and writes of so many rows of so many columns.
    pub(crate) fn of(rows: usize, read_columns: usize, written_columns: usize) -> PieceWork {
        let bytes = |columns: usize| (columns * rows * BLOCK_BYTES) as u64;
        PieceWork { read_bytes: bytes(read_columns), written_bytes: bytes(written_columns) }
    }
}

/// The rows or blocks of the next piece, of those that are left, for a work on so many columns.
pub(crate) fn next_piece(turns: &dyn Turns, left: Range<u16>, columns: usize) -> Range<u16> {
    let row_bytes = (columns.max(1) * BLOCK_BYTES) as u64;
    let rows = u16::try_from(turns.piece_bytes() / row_bytes).unwrap_or(u16::MAX).max(1);
    left.start..left.end.min(left.start.saturating_add(rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Pieces(u64);

    impl Turns for Pieces {
        fn piece_bytes(&self) -> u64 {
            self.0
        }

        fn after_piece(&mut self, _work: PieceWork) -> ControlFlow<()> {
            ControlFlow::Continue(())
        }
    }

    #[test]
    fn a_piece_is_as_long_as_allowed_and_at_least_a_row() {
        let next = |bytes, left, columns| next_piece(&Pieces(bytes), left, columns);
        assert_eq!(next(128 << 10, 0..255, 4), 0..8);
        assert_eq!(next(128 << 10, 250..255, 4), 250..255, "no more than are left");
        assert_eq!(next(4096, 7..255, 4), 7..8, "one row of four columns is more");
        assert_eq!(next(u64::MAX, 3..255, 250), 3..255);
        assert_eq!(next(1, 0..0, 0), 0..0, "a stripe without rows");
    }
}
