//! The last requests on a mount that have met damage, as `warpfire status` shows them.

use std::path::Path;

use serde::{Deserialize, Serialize};
use warpfire_check::ByteRange;
use warpfire_mount::FailedRequest;
use warpfire_terminal::{grouped, shown};

use crate::output::{Rfc3339, moment};

/// A failure of requests.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ErrorReport {
    /// When it happened last, as RFC 3339 in UTC.
    pub at: Rfc3339,
    /// How often it has happened.
    pub count: u64,
    /// The first request that met it: `read`, `lookup`.
    pub operation: String,
    /// A path of the file in the pool.
    pub path: String,
    /// Its inode number.
    pub inode: u64,
    /// The offset of that request in the file.
    pub offset_bytes: Option<u64>,
    /// The process of that request; 0 if it was none that the server can see.
    pub process: u32,
    /// The name of its program.
    pub program: String,
    /// The error in words.
    pub error: String,
    /// Bytes of the file that cannot be read, as far as reads have met them; at most eight ranges.
    #[serde(default)]
    pub lost: Vec<ByteRange>,
}

impl From<&FailedRequest> for ErrorReport {
    fn from(failed: &FailedRequest) -> Self {
        ErrorReport {
            at: Rfc3339(failed.at),
            count: failed.count,
            operation: failed.operation.to_owned(),
            path: failed.path.clone(),
            inode: failed.ino,
            offset_bytes: failed.offset,
            process: failed.process,
            program: failed.program.clone(),
            error: failed.error.clone(),
            lost: failed.lost.iter().map(|lost| ByteRange { start: lost.start, end: lost.end }).collect(),
        }
    }
}

/// The failures as lines of the status, the last first.
pub fn in_words(errors: &[ErrorReport]) -> String {
    let mut text = String::new();
    for error in errors.iter().rev() {
        let label = if text.is_empty() { "errors" } else { "" };
        let path = shown(Path::new(&error.path));
        let place = match error.offset_bytes {
            Some(offset) => format!("{path} at {}", grouped(offset)),
            None => path,
        };
        let by = match (error.process, error.program.as_str()) {
            (0, _) => String::new(),
            (process, "") => format!(" by process {process}"),
            (process, program) => format!(" by {} ({process})", shown(Path::new(program))),
        };
        let times = match error.count {
            1 => "once".to_owned(),
            count => format!("{} times", grouped(count)),
        };
        let at = moment(error.at.0);
        text += &format!("{label:<13} {} of {place}{by}, {times}, last at {at}\n", error.operation);
        let lost: Vec<String> =
            error.lost.iter().map(|lost| format!("{}..{}", lost.start, lost.end)).collect();
        let lost =
            if lost.is_empty() { String::new() } else { format!("; bytes {} are lost", lost.join(", ")) };
        text += &format!("{:<13} {}{lost}\n", "", shown(Path::new(&error.error)));
    }
    text
}
