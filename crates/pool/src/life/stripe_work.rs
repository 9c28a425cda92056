//! Work on a segment that takes long, stripe by stripe: what each stripe has cost, and whether it goes on.

use std::ops::ControlFlow;

use warpfire_units::BLOCK_BYTES;

use crate::segment::stripe_index::StripePlace;

/// Bytes of columns that were read and written for one stripe, headers left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StripeWork {
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
}

/// Called after each stripe of a work that takes long. It may wait, and `Break` ends the work.
pub type AfterStripe<'a> = dyn FnMut(StripeWork) -> ControlFlow<()> + 'a;

impl StripeWork {
    /// The reads and writes of so many columns.
    pub(crate) fn of(place: &StripePlace, read_columns: usize, written_columns: usize) -> StripeWork {
        let column_bytes = u64::from(place.rows) * BLOCK_BYTES as u64;
        let bytes = |columns: usize| columns as u64 * column_bytes;
        StripeWork { read_bytes: bytes(read_columns), written_bytes: bytes(written_columns) }
    }
}
