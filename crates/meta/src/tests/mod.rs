//! The engine against its naive twin, against crashes and against threads.

mod model;
