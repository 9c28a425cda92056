//! Simulated devices, clock and randomness: the simulated twin of `warpfire-env`.
//!
//! A [`SimWorld`] is a set of [`SimDevice`]s with one clock, one seed and one trace. Each device has a
//! volatile cache: a power cut may lose any part of the unflushed writes, in any order. A device fails on
//! request ([`Fault`]), and can enforce that it is written front to back ([`DeviceKind`]).
//!
//! ```
//! use warpfire_env::Device;
//! use warpfire_sim_env::{Cut, DeviceSpec, SimWorld};
//!
//! let world = SimWorld::of(7, 1, &DeviceSpec::conventional("flash", 1 << 20));
//! let device = &world.sims()[0];
//! device.write(0, &[1; 4096])?;
//! device.flush()?;
//! device.write(4096, &[2; 4096])?;
//!
//! let after = world.cut(&Cut::LoseAll);
//! assert_eq!(after.sims()[0].peek(0, 8192), [[1; 4096], [0; 4096]].concat());
//! # Ok::<(), warpfire_env::DeviceError>(())
//! ```
//!
//! To try every crash state of a run: call [`SimWorld::record`], run, call [`SimWorld::take_recording`], walk
//! a [`Replay`], and reopen the worlds that [`Replay::cut`] makes. These can be recorded and cut again.

#![forbid(unsafe_code)]

mod clock;
pub mod contract;
mod cut;
mod device;
mod fault;
mod image;
mod medium;
mod random;
mod recording;
mod spec;
mod world;

pub use clock::SimClock;
pub use cut::{Cut, Grain, SUBSET_CHANGES_MAX, Survival, cuts};
pub use device::{Overwrite, SimCounters, SimDevice};
pub use fault::{Fault, OpClass};
pub use image::Block;
pub use medium::{Change, DiscardedBytes};
pub use random::{DistinctNumbers, SimRandom, mix};
pub use recording::{Recording, Replay};
pub use spec::{DeviceKind, DeviceSpec, DiscardBehavior};
pub use world::{Event, SimWorld};
