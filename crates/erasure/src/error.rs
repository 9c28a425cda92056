//! The errors of requests to a code.

use warpfire_units::{COLUMNS_MAX, PARITY_MAX};

/// Why a code could not be made, or shards could not be reconstructed. No buffer was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ErasureError {
    /// No code has this shape: at least 1 data column, at most [`PARITY_MAX`] parity columns and
    /// [`COLUMNS_MAX`] in all.
    #[error(
        "no code has {data} data and {parity} parity columns (at most {PARITY_MAX} parity, {COLUMNS_MAX} in all)"
    )]
    Shape {
        /// Requested data columns.
        data: usize,
        /// Requested parity columns.
        parity: usize,
    },
    /// More shards are lost than parity covers. The bytes are lost unless more shards are found.
    #[error("{present} shards are left and {needed} are needed")]
    TooManyLost {
        /// Number of shards in the request.
        present: usize,
        /// Number of shards that are needed: that of the data columns.
        needed: usize,
    },
    /// The code has no such shard.
    #[error("shard {index} is not one of the code's {shards}")]
    NoSuchShard {
        /// The shard number in the request.
        index: usize,
        /// Number of shards of the code, data and parity.
        shards: usize,
    },
    /// A shard is in the request twice: as present, as wanted, or as both.
    #[error("shard {index} is named twice")]
    NamedTwice {
        /// Its number.
        index: usize,
    },
    /// A shard is not as long as the first one. All shards of a stripe have the same length.
    #[error("shard {index} is {found_bytes} bytes long and the first one {expected_bytes}")]
    Length {
        /// Its number.
        index: usize,
        /// Length of the first shard in the request.
        expected_bytes: usize,
        /// Length of this shard.
        found_bytes: usize,
    },
    /// This processor lacks the instructions of the requested kernel.
    #[error("this processor cannot run the {name} kernel")]
    KernelUnavailable {
        /// The kernel's name.
        name: &'static str,
    },
}
