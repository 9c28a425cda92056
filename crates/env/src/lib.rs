//! The world as traits: devices, clock and randomness.
//!
//! Everything that could make one run differ from another comes through here, so that the simulator
//! can own it. The real implementations live in this crate; the simulated ones in `warpfire-sim-env`.

#![deny(unsafe_code)]

mod batch;
mod buf;
mod clock;
mod device;
mod file;
mod memory;

pub use batch::{DeviceOp, OpKind, PIECE_BYTES_MAX, run_batch};
pub use buf::AlignedBuf;
pub use clock::{Clock, Random, SystemClock, SystemRandom, Timestamp};
pub use device::{Device, DeviceError, DeviceInfo, ZoneInfo, ZoneReport};
pub use file::{FileDevice, OpenError};
pub use memory::MemDevice;
