//! Reed-Solomon parity over GF(2^8).
//!
//! A [`Code`] for k data and m parity columns computes m parity shards from k data shards of the same length.
//! From any k of these k+m shards it reconstructs the others. It knows no devices, blocks or checksums: the
//! caller decides which shards are sound. `docs/FORMAT.md`, "Parity", specifies the mathematics.
//!
//! Shards are numbered as columns are: data 0 to k−1, then parity k to k+m−1.

#![deny(unsafe_code)]

mod cauchy;
mod code;
mod error;
mod field;
mod kernel;
mod matrix;
mod plan;
pub mod scalar;

pub use code::Code;
pub use error::ErasureError;
pub use kernel::Kernel;
