//! Room that is kept for bytes that files have reserved and not written yet.
//!
//! # Terms
//! A write of reserved bytes *claims* them: it takes them out of the room that is kept, so that its own bytes
//! fit there. Its commit ends the reservation, or the caller returns the claim.
//!
//! # Invariants
//! 1. The sum is the running sum [`RESERVED`](crate::RESERVED) over all commits, without the bytes that
//!    writes in progress have claimed (`EngineInner::commit`; `tests::reserved`).
//! 2. A commit that adds to the sum adds before it asks for room, and takes it back if it fails. So two of
//!    them never share the same free bytes (`tests::reserved`).
//! 3. New user bytes are admitted only beside the room of the sum. Deletions are admitted without it: they
//!    make room.

use warpfire_env::sync::atomic::{AtomicI64, Ordering};

/// Extents, stripes and tables take less than this part of reserved bytes that are written in pieces of 512
/// bytes or more.
const OVERHEAD_PART: u64 = 32;

/// The room that reserved bytes take, with what writing them in small pieces adds.
#[must_use]
pub fn room_of_reserved(bytes: u64) -> u64 {
    bytes.saturating_add(bytes / OVERHEAD_PART)
}

/// The sum of reserved bytes of one store.
#[derive(Debug, Default)]
pub(crate) struct ReservedBytes {
    bytes: AtomicI64,
}

impl ReservedBytes {
    pub(crate) fn add(&self, bytes: i64) {
        if bytes != 0 {
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// The room that is kept free for them.
    pub(crate) fn room(&self) -> u64 {
        // Damaged counters may add up to less than nothing: then nothing is kept.
        room_of_reserved(self.bytes.load(Ordering::Relaxed).max(0).cast_unsigned())
    }
}
