//! Bad input and bad days, through the library: each ends with a typed error that says what to do, or with nothing noticed
//! but in the counters; never with a panic, with wrong bytes, or with the loss of what was synced.

mod devices;
mod faults;
mod limits;
mod redundancy;
mod rig;
mod silent;
mod slices;
mod space;
mod transactions;
