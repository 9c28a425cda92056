//! The life of a pool: it is created, opened, recovered and repaired.

// Makes a pool out of blank devices.
pub(crate) mod create;
// Finds the roots that each device holds.
pub(crate) mod find_roots;
// Tells devices apart and assembles the pool from those that are present.
pub(crate) mod open;
// Rewrites the damaged columns of a segment to fresh zones.
pub(crate) mod resilver;
// Writes the root and says where the next one goes.
pub(crate) mod roots;
// Walks the stripes of a segment that was open at a crash.
pub(crate) mod walk_open_segment;
