//! The life of a pool: it is created, opened, recovered and repaired.

// Whether the devices that were opened are enough for each segment.
mod covered;
// Makes a pool out of blank devices.
pub(crate) mod create;
// Keeps a state of the devices readable while the pool goes on.
pub(crate) mod frozen;
// Finds the roots that each device holds.
pub(crate) mod find_roots;
// Finds data of a pool on a device without roots.
mod find_stripes;
// Compares roots: the newest one, and those that were written separately.
pub(crate) mod history;
// Changes which devices belong to the pool.
mod membership;
// Looks for data of a later session than that of every root.
mod newer_session;
// Identifies the devices and assembles the pool from those that are present.
pub(crate) mod open;
// Reads the stripes of columns that move, while those before them are written.
mod read_ahead;
// Rewrites the damaged columns of a segment to fresh zones.
pub(crate) mod resilver;
// Writes the stripes of a column to its new zone, piece by piece.
mod rewrite_column;
// Writes roots, and tracks the place of the next one on each device.
pub(crate) mod roots;
// Finds out which devices belong together, without opening their pool.
pub(crate) mod scan;
// The pieces of a work that takes long: what they cost, and how it goes on.
pub(crate) mod piece_work;
pub(crate) mod tune;
// Walks the stripes of a segment that was open at a crash.
pub(crate) mod walk_open_segment;
