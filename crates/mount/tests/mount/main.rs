//! Real mounts of a filesystem in memory.

#[cfg(test)]
mod bad_days;
#[cfg(test)]
mod files;
#[cfg(test)]
mod fixture;
#[cfg(test)]
mod life;
#[cfg(test)]
mod slices;
#[cfg(test)]
mod views;
