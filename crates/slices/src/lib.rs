//! Slices: immutable bytes that metadata names by pointer, and what keeps them.
//!
//! [`SliceStore`] is the seam to the filesystem. [`LocalSlices`] implements it over a log on this machine;
//! [`PrivateSlices`] holds the slices of one transaction over another store. [`HeldSlices`] keeps bytes that
//! no metadata names, and knows where cleaning has moved them.

#![forbid(unsafe_code)]

mod error;
mod held;
mod lease;
mod local;
mod private;
mod read_ahead;
mod store;
#[cfg(test)]
mod testing;

pub use error::SliceError;
pub use held::{HeldSlices, KnownCopy, MovedOut};
pub use lease::{HoldUse, Leases, SliceHold};
pub use local::{LocalSlices, Upkeep};
pub use private::PrivateSlices;
pub use read_ahead::ReadAhead;
pub use store::{HasSlices, SliceHolder, SliceRead, SliceStore};
pub use warpfire_log::{Admit, Pin, Slices, Space, Stream};
