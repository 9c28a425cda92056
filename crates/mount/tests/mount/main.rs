//! Real mounts of a filesystem in memory.

#[cfg(test)]
mod files;
#[cfg(test)]
mod life;
#[cfg(test)]
mod world;
