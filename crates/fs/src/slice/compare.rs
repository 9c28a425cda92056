//! Comparing values: whether two of them have the same bytes, wherever the bytes are.

use warpfire_meta::Storage;

use super::yanked_slice::YankedSlice;
use crate::data::FilePiece;
use crate::error::FsError;
use crate::fs::Fs;

/// Bytes of each value that are read and compared at a time, where their pointers differ.
const WINDOW_BYTES: u64 = 1 << 20;

impl<E: Storage> Fs<E> {
    /// Whether two values have the same bytes. Pointers are compared first, and bytes are read only where
    /// pointers differ: packing, cleaning and compaction move bytes, so other pointers may name the same
    /// bytes.
    ///
    /// # Errors
    /// As `read_yanked_slice`.
    pub(crate) fn have_same_bytes(&self, a: &YankedSlice, b: &YankedSlice) -> Result<bool, FsError> {
        if a.len_bytes() != b.len_bytes() {
            return Ok(false);
        }
        let now = self.use_slice(a)?;
        self.use_slice(b)?;
        // One pin for all windows: the pointers are taken once.
        let _pin = self.engine.pin()?;
        let (our_use, their_use) = (a.in_use(now)?, b.in_use(now)?);
        let (ours, theirs) = (our_use.pieces(0), their_use.pieces(0));
        let mut our_bytes = Vec::new();
        let mut their_bytes = Vec::new();
        let mut start = 0;
        while start < a.len_bytes() {
            let end = a.len_bytes().min(start + WINDOW_BYTES);
            if !have_same_pointers(&ours, &theirs, start, end) {
                let len = usize::try_from(end - start).expect("a window fits memory");
                our_bytes.resize(len, 0);
                their_bytes.resize(len, 0);
                // A window that is not filled would compare bytes of the window before.
                let ours_read = self.read_pieces(&ours, start, &mut our_bytes)?;
                assert_eq!(ours_read, len, "a value has as many bytes as its length says");
                let theirs_read = self.read_pieces(&theirs, start, &mut their_bytes)?;
                assert_eq!(theirs_read, len, "a value has as many bytes as its length says");
                if our_bytes != their_bytes {
                    return Ok(false);
                }
            }
            start = end;
        }
        Ok(true)
    }
}

/// The pieces that end behind the offset `at`. Pieces follow each other.
pub(super) fn pieces_from<'p, 'a>(pieces: &'p [FilePiece<'a>], at: u64) -> &'p [FilePiece<'a>] {
    pieces.get(pieces.partition_point(|piece| piece.end() <= at)..).unwrap_or_default()
}

/// Whether two lists of pieces name the same source for each byte of a range, however the bytes are divided
/// into pieces.
fn have_same_pointers(ours: &[FilePiece<'_>], theirs: &[FilePiece<'_>], start: u64, end: u64) -> bool {
    let mut at = start;
    while at < end {
        let first = |pieces| pieces_from(pieces, at).first().and_then(|piece| piece.clip(at, end));
        let (Some(a), Some(b)) = (first(ours), first(theirs)) else { return false };
        // As far as both first pieces reach, one comparison is enough.
        let upto = a.end().min(b.end());
        debug_assert!(at < upto, "each step compares at least one byte");
        if a.clip(at, upto).map(|a| a.source) != b.clip(at, upto).map(|b| b.source) {
            return false;
        }
        at = upto;
    }
    true
}
