//! How files and times are shown; answers, failures, sizes and tables are `warpfire_terminal`'s.

mod file_info;
mod time;

pub use file_info::{FileInfo, mode_letters};
pub use time::{exact_moment, moment};
