//! Reed-Solomon parity over GF(2^8).
//!
//! A [`Code`] for k data and m parity columns computes the parity of k equally long shards and rebuilds up
//! to m lost ones from any k that are left. It knows no devices, blocks or checksums: who calls it says which shards
//! are sound. The mathematics, byte for byte, is in `docs/FORMAT.md`, "Parity".
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
