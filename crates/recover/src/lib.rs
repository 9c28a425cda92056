//! Pools that have lost their roots: found by what their segments say.
//!
//! A root names the pool, its devices and its state. Each checkpoint writes a copy of its root into the
//! commit log, which is an ordinary segment. So a pool of which all roots are overwritten is found again in
//! four steps:
//!
//! ```text
//!   scan ─────────▶ newest root ─────▶ identify ─────▶ WithRoot
//!   first blocks     left on a device,  which device    each device with that root in its place, in memory;
//!   of all zones     or the newest      is which, by    `rebuild_roots` writes it
//!   and all logs     copy               its columns
//! ```
//!
//! Nothing is written before `rebuild_roots`. What opens a pool opens these devices like any others.
//!
//! All bytes here are hostile: a device may hold anything. Headers and frames are used only after they
//! decoded, which includes checksums. A false copy of a root cannot make false data: every stripe that the
//! opening reads names its pool, segment and epoch.

#![forbid(unsafe_code)]

mod found;
mod identify;
mod scan;
mod with_root;

pub use found::{FoundDevice, FoundPool, RecoverError, RootSource, find_pool};
