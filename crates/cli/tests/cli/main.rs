//! The real binary on image files in temporary folders.

mod answers;
mod copy;
mod fixture;
mod mounted;
mod places;
mod refusals;
mod scrub;
mod slices;
mod transactions;
