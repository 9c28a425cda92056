//! Documents that several commands print with `--json`. The others stand beside their commands.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use warpfire::Timestamp;

use super::time::{parse_moment, rfc3339};

/// The end of a command that changes files, also of one that failed for some of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct ChangeSummary {
    /// Files that the command has changed, made, removed, moved or linked.
    pub changed: u64,
    /// Files that it could not change. Each has an error on stderr.
    pub failed: u64,
}

/// A piece of the content of a file. The pieces come in order; together they are the content.
#[derive(Serialize)]
pub struct ContentPiece {
    /// The path.
    pub path: String,
    /// The bytes of a path that is no UTF-8, in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_bytes: Option<String>,
    /// Where the piece begins in the file, in bytes.
    pub offset: u64,
    /// The bytes of the piece, in base64.
    pub bytes: String,
}

/// A moment, as RFC 3339 in UTC with nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rfc3339(pub Timestamp);

impl Serialize for Rfc3339 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&rfc3339(self.0))
    }
}

impl<'de> Deserialize<'de> for Rfc3339 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse_moment(&text).map(|moment| Rfc3339(moment.timestamp())).map_err(D::Error::custom)
    }
}
