//! Pools as the engine makes them: clean when they are whole, and found out when they are not.

mod clean;
mod damage;
mod forged;
mod format_dump;
mod rig;
mod sense;
