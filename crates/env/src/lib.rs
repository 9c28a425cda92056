//! The world as traits: devices, clock and randomness.
//!
//! All that can make one run differ from another comes through these traits, so that the simulator can
//! control it. This crate has the real implementations, `warpfire-sim-env` the simulated ones.

#![deny(unsafe_code)]

mod background_work;
mod batch;
mod buf;
mod clock;
mod device;
mod file;
mod interval_task;
mod machine_memory;
mod memory;
mod planted_bug;
mod ranked_lock;
pub mod sync;
mod thread_priority;
mod zone_map;

pub use background_work::{BackgroundWork, begin_background_work, is_background_work};
pub use batch::{DeviceOp, OpKind, PIECE_BYTES_MAX, TimeLimit, run_batch, unanswered, wait_in_rings};
pub use buf::{AlignedBuf, LendableBytes};
pub use clock::{Clock, Random, SystemClock, SystemRandom, Timestamp};
pub use device::{Device, DeviceError, DeviceInfo, ZoneInfo, ZoneReport};
pub use file::{DriveHealth, FileDevice, OpenError};
pub use interval_task::{ChangeSignal, IntervalTask};
pub use machine_memory::{MachineMemory, return_freed_memory};
pub use memory::MemDevice;
pub use planted_bug::{PlantedBug, is_planted};
pub use ranked_lock::{
    LockPlace, RankedMutex, RankedMutexGuard, RankedRawMutex, RankedRawRwLock, RankedReadGuard,
    RankedReentrantMutex, RankedReentrantMutexGuard, RankedRwLock, RankedWriteGuard, rank,
};
pub use thread_priority::lower_thread_priority;
pub use zone_map::ZoneMap;
