//! Output of files and times. `warpfire_terminal` has output of results, failures, sizes and columns.

mod changes;
mod documents;
mod file_info;
mod owners;
mod time;

pub use changes::ChangeLines;
pub use documents::{ChangeSummary, ContentPiece, Rfc3339};
pub use file_info::{FileInfo, mode_letters};
pub use owners::Owners;
pub use time::{
    MomentArgument, age_or_moment, exact_moment, minute_of_day, moment, moment_of_name, parse_moment,
    rfc3339, use_utc,
};
