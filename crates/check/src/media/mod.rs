//! Devices, roots, segments and stripes: reading bytes and verifying their checksums.

mod device;
mod roots;
mod segment;
mod slice;
mod stripe;

pub(crate) use device::Media;
pub(crate) use roots::{RootRecord, find_roots};
pub(crate) use segment::CheckedSegment;
pub(crate) use slice::SliceReader;
pub(crate) use stripe::{StripeVerifier, identity_of};
