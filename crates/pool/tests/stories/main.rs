//! What the pool promises, on simulated devices.

mod failing;
mod opening;
mod reading;
mod recovery;
mod rig;
mod roots;
mod sequential;
mod wide;
