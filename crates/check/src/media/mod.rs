//! Devices, roots, segments and stripes: reading bytes and verifying their checksums.

mod device;
mod distinct;
mod roots;
mod segment;
mod slice;
mod stripe;

pub(crate) use device::Media;
pub(crate) use roots::{RootRecord, find_roots};
pub(crate) use segment::{CheckedSegment, StripePosition};
pub(crate) use slice::SliceReader;
pub(crate) use stripe::{BadRows, StripeVerdict, StripeVerifier, identity_of};
