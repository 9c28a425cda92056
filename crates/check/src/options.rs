//! What a caller chooses, and what stops a check.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;
use warpfire_env::{Clock, SystemClock};

/// How to check.
#[derive(Clone)]
pub struct CheckOptions {
    /// Read and verify every block of every stripe. Without it, headers, the commit log, tables and names are
    /// checked, and of file data only that it is where its pointers say.
    pub data: bool,
    /// Memory for facts about names and inodes, in bytes. What does not fit makes further passes over the map.
    pub max_memory_bytes: u64,
    /// Time, for the rates in the report.
    pub clock: Arc<dyn Clock>,
    /// Called now and then with how far the check is.
    pub progress: Option<Arc<dyn Fn(CheckProgress) + Send + Sync>>,
}

impl Default for CheckOptions {
    fn default() -> Self {
        CheckOptions { data: true, max_memory_bytes: 512 << 20, clock: Arc::new(SystemClock), progress: None }
    }
}

impl fmt::Debug for CheckOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CheckOptions")
            .field("data", &self.data)
            .field("max_memory_bytes", &self.max_memory_bytes)
            .finish_non_exhaustive()
    }
}

/// What is being checked.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckPhase {
    /// Roots and the commit log.
    Log,
    /// Stripes; counted in stripes.
    Stripes,
    /// Tables and names; counted in versions.
    Names,
}

/// How far a check is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct CheckProgress {
    /// What is being checked.
    pub phase: CheckPhase,
    /// How much of it is done.
    pub done: u64,
    /// How much there is.
    pub total: u64,
}

/// Why a pool could not be checked at all. `fsck(8)` calls it an operational error: exit code 8.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CheckError {
    /// There is nothing to check.
    #[error("no devices were given")]
    NoDevices,
    /// None of the devices holds a root that verifies: it is not a pool, or its first two zones are destroyed.
    #[error("none of the devices holds a pool: {0}")]
    NoPool(String),
    /// The newest root's payload does not say where anything is.
    #[error("the pool's newest root is unusable: {0}")]
    NoState(String),
    /// What was to be inspected does not exist.
    #[error("there is no {0}")]
    NotFound(String),
    /// The facts that must be held at once do not fit the memory that was allowed.
    #[error("checking needs more than the {allowed_bytes} bytes of memory that it may use")]
    Memory {
        /// What was allowed.
        allowed_bytes: u64,
    },
}
