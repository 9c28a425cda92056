//! The devices of a pool and the zones on them.

// Stands in for a device that the pool has closed.
mod closed_device;
// Finishes zones on devices that limit the number of those that are written and not full.
pub(crate) mod active_zones;
// Plans the bulk segments that fit into free zones.
pub(crate) mod capacity;
// Counts the operations on each device.
pub(crate) mod counters;
// Notes the zones that take no writes although their devices do.
mod dead_zones;
// Runs operations on the devices and tracks the health of each.
pub(crate) mod devices;
// Chooses the zone size of a pool and the shape of a segment.
pub(crate) mod geometry;
// Finds the room that is there after a change of the devices.
pub(crate) mod planned_space;
// Counts the zones that are kept free for the columns of lost devices.
mod spare_space;
// Finds zones that no stripe can use, and what would make them usable.
pub(crate) mod stranded;
// Discards free zones of devices.
pub(crate) mod trim;
// Tracks the free zones of one device.
mod device_zones;
// A set of zones: one bit each.
mod zone_set;
// Tracks which zones are free and chooses the next ones.
pub(crate) mod zones;
