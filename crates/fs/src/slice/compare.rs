//! Whether two values are the same bytes, wherever these lie.

use warpfire_meta::Storage;

use super::yanked_slice::YankedSlice;
use crate::data::FilePiece;
use crate::error::FsError;
use crate::fs::Fs;

/// Bytes of each value that are compared at a time, where pointers do not tell.
const WINDOW_BYTES: u64 = 1 << 20;

impl<E: Storage> Fs<E> {
    /// Pointers are compared first: only where they differ are bytes read. Packing, cleaning and merging move bytes, so other pointers may well be the same bytes.
    ///
    /// # Errors
    /// As `read_yanked_slice`.
    pub(crate) fn have_same_bytes(&self, a: &YankedSlice, b: &YankedSlice) -> Result<bool, FsError> {
        if a.len_bytes() != b.len_bytes() {
            return Ok(false);
        }
        let now = self.use_slice(a)?;
        self.use_slice(b)?;
        let _pin = self.engine.pin()?;
        let (ours, theirs) = (a.pieces(0, now)?, b.pieces(0, now)?);
        let mut buffers = (Vec::new(), Vec::new());
        let mut start = 0;
        while start < a.len_bytes() {
            let end = a.len_bytes().min(start + WINDOW_BYTES);
            if !have_same_pointers(&ours, &theirs, start, end) {
                let len = usize::try_from(end - start).expect("a window fits memory");
                buffers.0.resize(len, 0);
                buffers.1.resize(len, 0);
                self.read_pieces(&ours, start, &mut buffers.0)?;
                self.read_pieces(&theirs, start, &mut buffers.1)?;
                if buffers.0 != buffers.1 {
                    return Ok(false);
                }
            }
            start = end;
        }
        Ok(true)
    }
}

/// The pieces from a place on.
pub(super) fn pieces_from<'p, 'a>(pieces: &'p [FilePiece<'a>], at: u64) -> &'p [FilePiece<'a>] {
    pieces.get(pieces.partition_point(|piece| piece.end() <= at)..).unwrap_or_default()
}

/// Whether two lists of pieces name the same source for each byte of a range, however they are cut.
fn have_same_pointers(ours: &[FilePiece<'_>], theirs: &[FilePiece<'_>], start: u64, end: u64) -> bool {
    let mut at = start;
    while at < end {
        let first = |pieces| pieces_from(pieces, at).first().and_then(|piece| piece.clip(at, end));
        let (Some(a), Some(b)) = (first(ours), first(theirs)) else { return false };
        let upto = a.end().min(b.end());
        if a.clip(at, upto).map(|a| a.source) != b.clip(at, upto).map(|b| b.source) {
            return false;
        }
        at = upto;
    }
    true
}
