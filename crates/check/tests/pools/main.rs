//! Checks of pools that the engine made: whole ones are clean, and damage is found.

mod bundles;
mod by_file;
mod clean;
mod damage;
mod forged;
mod format_dump;
mod rig;
mod sense;
mod snapshots;
mod volumes;
