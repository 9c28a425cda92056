//! Devices, roots, stripes: bytes that verify, or not.

mod device;
mod roots;
mod segment;
mod slice;
mod stripe;

pub(crate) use device::Media;
pub(crate) use roots::{RootRecord, find_roots};
pub(crate) use segment::Segment;
pub(crate) use slice::SliceReader;
pub(crate) use stripe::{Shards, identity_of};
