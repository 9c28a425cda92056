//! Rewriting of tables: flush, compaction and cleaning. One mechanism, the rewrite job, moves all data.
//!
//! | file | the job's input | the tables go to |
//! |---|---|---|
//! | `flush.rs` | the frozen memtable | a new run, the newest |
//! | `tiers.rs` | neighbouring runs of one size class, or all runs | one run in their place |
//! | `by_range.rs` | one key range of all runs, when space is too short for more | the oldest run |
//! | `removed.rs` | tables with keys of removed domains | the run of the table; most have no output |
//! | `clean.rs` | tables that lie in victims or name slices in them | the run of the table |
//!
//! `job.rs` has the steps of a job, `fold.rs` chooses the versions that it keeps, `moves.rs` knows what one
//! cleaning has copied. `reclaim.rs` cleans and compacts for callers that need space. `census.rs` counts the
//! live bytes of segments in which references share bytes; it rewrites nothing.

mod by_range;
mod census;
mod clean;
mod flush;
mod fold;
mod job;
mod moves;
mod reclaim;
mod removed;
mod tiers;

pub(crate) use reclaim::Reclaim;
#[cfg(test)]
pub(crate) use reclaim::WAIT;
