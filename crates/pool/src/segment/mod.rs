//! Segments and the stripes in them: memory layout, writing, and reading headers ahead of a walk.

// Makes a new segment from free zones.
pub(crate) mod allocate;
// Reads the header blocks of an open segment in large pieces.
pub(crate) mod header_readahead;
// A segment in memory: its columns, its code and its stripes.
pub(crate) mod pool_segment;
// Finds the place of a stripe or of a payload row by binary search over run-length coded stripes.
pub(crate) mod stripe_index;
// The buffer in which one stripe fills, and is checksummed and encoded.
pub(crate) mod stripe_buf;
// Appends stripes to an open segment.
pub(crate) mod writer;
