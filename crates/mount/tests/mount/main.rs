//! Real mounts of a filesystem in memory.

#[cfg(test)]
mod bad_days;
#[cfg(test)]
mod chained;
#[cfg(test)]
mod coherence;
#[cfg(test)]
mod cold_reads;
#[cfg(test)]
mod files;
#[cfg(test)]
mod fixture;
#[cfg(test)]
mod kept_views;
#[cfg(test)]
mod life;
#[cfg(test)]
mod privileges;
#[cfg(test)]
mod slices;
#[cfg(test)]
mod snapshots;
mod two_users;
#[cfg(test)]
mod views;
