//! The world as traits: devices, clock and randomness.
//!
//! Everything that could make one run differ from another comes through here, so that the simulator
//! can own it. The real implementations live in this crate; the simulated ones in `warpfire-simdev`.

mod buf;
mod clock;
mod device;

pub use buf::AlignedBuf;
pub use clock::{Clock, Random, SystemClock, SystemRandom, Timestamp};
pub use device::{Device, DeviceError, DeviceInfo, DeviceOp, OpKind, ZoneInfo, ZoneReport, run_batch};
