//! Segments and the stripes in them: memory layout, writing, and reading headers ahead of a walk.

// Makes a new segment from free zones.
pub(crate) mod allocate;
// Reads the header blocks of an open segment in large pieces.
pub(crate) mod header_readahead;
// A segment in memory: its columns, its code and its stripes.
pub(crate) mod pool_segment;
// Maps a stripe number or a payload row to its place in the zones.
pub(crate) mod stripe_index;
// The buffer that collects the payload of one stripe and computes its checksums and parity.
pub(crate) mod stripe_buf;
// Appends stripes to an open segment.
pub(crate) mod writer;
