//! Output of files and times. `warpfire_terminal` has output of results, failures, sizes and columns.

mod file_info;
mod time;

pub use file_info::{FileInfo, bytes_of, mode_letters};
pub use time::{age_or_moment, exact_moment, moment, parse_moment};

/// Writes a path as JSON. Bytes that are no UTF-8 become U+FFFD: a path is any bytes, JSON is text.
pub fn path_text<S: serde::Serializer>(path: &std::path::Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&path.display())
}
