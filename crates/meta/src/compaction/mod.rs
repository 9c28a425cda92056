//! What happens to tables in the background: they are written from memtables, merged, and moved out of segments that
//! are worth cleaning. One mechanism moves all data.

mod clean;
mod flush;
mod fold;
mod job;
mod merge;
mod pieces;

pub(crate) use clean::Standing;
