//! How files and times are shown; answers, failures, sizes and tables are `warpfire_terminal`'s.

mod entry;
mod time;

pub use entry::{Entry, mode_letters};
pub use time::{exact_moment, moment};
