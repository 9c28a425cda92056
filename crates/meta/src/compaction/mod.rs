//! What happens to tables in the background: they are written from memtables, merged, and moved out of segments that
//! are worth cleaning. One mechanism moves all data.

mod by_range;
mod clean;
mod flush;
mod fold;
mod job;
mod tiers;

pub(crate) use clean::ReclaimState;
