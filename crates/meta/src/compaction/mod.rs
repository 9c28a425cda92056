//! Rewriting of tables: flush, compaction and cleaning. One mechanism, the rewrite job, moves all data.
//!
//! | file | the job's input | the tables go to |
//! |---|---|---|
//! | `flush.rs` | the frozen memtable | a new run, the newest |
//! | `tiers.rs` | neighbouring runs of one size class, or all runs | one run in their place |
//! | `hidden.rs` | memory and all runs of the present, once callers write little | one run |
//! | `by_range.rs` | one key range of all runs, when space is too short for more | the oldest run |
//! | `past.rs` | runs of the past, or one of its tables with unseen versions | a run of the past |
//! | `removed.rs` | tables with keys of removed domains | the run of the table; most have no output |
//! | `clean.rs` | tables that lie in victims or name slices in them | the run of the table |
//!
//! `job.rs` has the steps of a job, `fold.rs` chooses the versions that it keeps, `retire.rs` those that go
//! to the past and those that stay there, `relocate.rs` packs and copies their bytes, `moves.rs` knows what
//! one cleaning has copied. `reclaim.rs` cleans and compacts for callers that need space. `census.rs` counts
//! the live bytes of segments in which references share bytes, and `shown.rs` finds the value of a key for
//! each of its readers; both rewrite nothing.

mod by_range;
mod census;
mod clean;
mod flush;
mod fold;
mod hidden;
mod job;
mod moves;
mod past;
mod reclaim;
mod relocate;
mod removed;
mod retire;
mod shown;
mod tiers;

pub(crate) use fold::VersionGroup;
pub(crate) use hidden::HiddenBytes;
#[cfg(test)]
pub(crate) use hidden::QUIET_LOOKS;
pub(crate) use reclaim::Reclaim;
#[cfg(test)]
pub(crate) use reclaim::WAIT;
