//! Options, progress and errors of a check.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use warpfire_env::{Clock, SystemClock};
use warpfire_format::root::Unsupported;

/// Options of a check.
#[derive(Clone)]
pub struct CheckOptions {
    /// Read and verify every block of every stripe. Otherwise the check verifies headers, the commit log,
    /// tables and names, and of file data only that pointers name written bytes.
    pub data: bool,
    /// If there is a list, read the contents of segments with these numbers only, and of the others headers,
    /// as without `data`.
    pub only: Option<BTreeSet<u64>>,
    /// Memory for facts about names and inodes, in bytes. If they do not fit, the check makes more passes
    /// over the map.
    pub max_memory_bytes: u64,
    /// Count the bytes that tables and values name each once, for [`Totals::distinct_bytes`]. That takes
    /// memory for each piece of them, beside `max_memory_bytes`.
    ///
    /// [`Totals::distinct_bytes`]: crate::Totals::distinct_bytes
    pub counts_distinct: bool,
    /// The clock for the rates in the report.
    pub clock: Arc<dyn Clock>,
    /// Called from time to time with the progress of the check. `Break` ends the check:
    /// [`CheckError::Stopped`].
    pub progress: Option<Arc<dyn Fn(CheckProgress) -> ControlFlow<()> + Send + Sync>>,
}

impl Default for CheckOptions {
    fn default() -> Self {
        CheckOptions {
            data: true,
            only: None,
            max_memory_bytes: 512 << 20,
            counts_distinct: false,
            clock: Arc::new(SystemClock),
            progress: None,
        }
    }
}

impl fmt::Debug for CheckOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CheckOptions")
            .field("data", &self.data)
            .field("only", &self.only)
            .field("max_memory_bytes", &self.max_memory_bytes)
            .finish_non_exhaustive()
    }
}

/// A stage of the check.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckPhase {
    /// Roots and the commit log.
    Log,
    /// Stripes. Progress counts the bytes that are read of them, parity and headers too.
    Stripes,
    /// Tables and names. Progress counts key versions.
    Names,
}

impl CheckPhase {
    /// The subject of the stage, in words.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            CheckPhase::Log => "commit log",
            CheckPhase::Stripes => "stripes",
            CheckPhase::Names => "names",
        }
    }
}

/// The progress of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CheckProgress {
    /// The current stage.
    pub phase: CheckPhase,
    /// Finished part of the stage.
    pub done: u64,
    /// Size of the stage.
    pub total: u64,
}

/// Why a pool cannot be checked at all. `fsck(8)` calls this an operational error and exits with code 8.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CheckError {
    /// The list of devices is empty.
    #[error("no devices were given")]
    NoDevices,
    /// No device holds a valid root: the devices are not a pool, or their first two zones are destroyed.
    #[error("none of the devices holds a pool: {0}")]
    NoPool(String),
    /// Another version of warpfire made the pool.
    #[error("the pool {0}")]
    OtherVersion(Unsupported),
    /// The payload of the newest root does not decode.
    #[error("the pool's newest root is unusable: {0}")]
    NoState(String),
    /// The structure to inspect does not exist.
    #[error("there is no {0}")]
    NotFound(String),
    /// Facts that must be in memory together need more than the allowed memory.
    #[error("checking needs more than the {allowed_bytes} bytes of memory that it may use")]
    Memory {
        /// Allowed memory, in bytes.
        allowed_bytes: u64,
    },
    /// The progress function has ended the check.
    #[error("the check was stopped")]
    Stopped,
}
