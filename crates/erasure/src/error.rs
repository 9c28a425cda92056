//! What can be wrong with a request.

use warpfire_units::{COLUMNS_MAX, PARITY_MAX};

/// Why a code could not be made or shards not be rebuilt. Nothing was written to any buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ErasureError {
    /// No code has this shape: at least 1 data column, at most [`PARITY_MAX`] parity columns and
    /// [`COLUMNS_MAX`] in all.
    #[error(
        "no code has {data} data and {parity} parity columns (at most {PARITY_MAX} parity, {COLUMNS_MAX} in all)"
    )]
    Shape {
        /// Data columns asked for.
        data: usize,
        /// Parity columns asked for.
        parity: usize,
    },
    /// More is lost than parity can give back: the bytes are gone unless more shards are found.
    #[error("{present} shards are left and {needed} are needed")]
    TooManyLost {
        /// Shards that were given.
        present: usize,
        /// Shards that are needed: the number of data columns.
        needed: usize,
    },
    /// The code has no such shard.
    #[error("shard {index} is not one of the code's {shards}")]
    NoSuchShard {
        /// The number that was given.
        index: usize,
        /// Shards of the code, data and parity.
        shards: usize,
    },
    /// A shard was named twice, among those present, among those wanted, or in both.
    #[error("shard {index} is named twice")]
    NamedTwice {
        /// Its number.
        index: usize,
    },
    /// The shards of one stripe are all of one length, and this one is not.
    #[error("shard {index} is {found_bytes} bytes long and the first one {expected_bytes}")]
    Length {
        /// Its number.
        index: usize,
        /// Length of the first shard that was given.
        expected_bytes: usize,
        /// Length of this one.
        found_bytes: usize,
    },
    /// This processor lacks the instructions of the kernel that was asked for by name.
    #[error("this processor can not run the {name} kernel")]
    KernelUnavailable {
        /// The kernel's name.
        name: &'static str,
    },
}
