//! What the pool promises, on simulated devices.

#[cfg(test)]
mod reading;
#[cfg(test)]
mod rig;
