//! Output of files and times. `warpfire_terminal` has output of results, failures, sizes and columns.

mod file_info;
mod time;

pub use file_info::{FileInfo, mode_letters};
pub use time::{exact_moment, moment};
