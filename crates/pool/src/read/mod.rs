//! Reading: every block is verified. A block that does not verify is reconstructed from its stripe.

// Caches the checksum tables of stripes that were read or written.
pub(crate) mod checksums;
// Reads slices for callers, many at once.
pub(crate) mod read_slices;
// Reads and verifies rows of one stripe on several columns.
pub(crate) mod read_stripe;
// Computes lost blocks of a stripe from the columns that verify.
pub(crate) mod reconstruct;
