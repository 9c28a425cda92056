//! Bad input and bad days, through the library. Each case ends in a typed error that says what to do, or
//! shows in the counters only. None ends in a panic, in wrong bytes, or in the loss of synced data.

mod devices;
mod faults;
mod limits;
mod redundancy;
mod rig;
mod silent;
mod slices;
mod snapshots;
mod space;
mod transactions;
