//! Zones that no stripe can use, because too few other devices are as large, and devices that would make
//! them usable. Both follow from the sizes of the devices, whatever is stored on them.
//!
//! # Invariants
//! 1. With the devices that `more_devices` names no zone of the others is stranded (test
//!    `the_devices_that_are_advised_make_every_zone_usable`).

use warpfire_format::segment::FIRST_SEGMENT_ZONE;
use warpfire_units::DeviceIndex;

use crate::device::capacity::{Plan, Widths};
use crate::device::zones::KEPT_ZONES;
use crate::pool::Pool;

/// Zones that no stripe can use.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Stranded {
    /// The devices that have such zones, and how many.
    pub zones: Vec<(DeviceIndex, u64)>,
    /// The fewest bytes of further devices that would make all of them usable.
    pub cure: Option<MoreDevices>,
}

/// Devices of one size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct MoreDevices {
    /// Their number.
    pub count: u64,
    /// Zones of each, those for roots included.
    pub zones: u64,
}

/// Zones of a device that segments of user data never take.
const SET_ASIDE: u64 = FIRST_SEGMENT_ZONE.0 as u64 + KEPT_ZONES;

impl Pool {
    /// Zones that no stripe can use, whatever is removed from the pool.
    #[must_use]
    pub fn stranded(&self) -> Stranded {
        let inner = &self.inner;
        let devices = inner.devices.all_allocatable();
        let zones = inner.zones.lock();
        let usable = |d: &DeviceIndex| {
            u64::from(zones.count_on(*d)).saturating_sub(SET_ASIDE + u64::from(zones.retired_on(*d)))
        };
        let sizes: Vec<u64> = devices.iter().map(usable).collect();
        let stranded = stranded(&sizes, inner.widths(sizes.len()));
        let zones = devices.into_iter().zip(stranded).filter(|(_, zones)| *zones > 0);
        let cure = more_devices(&sizes, |count| inner.widths(count));
        Stranded {
            zones: zones.collect(),
            cure: cure.map(|more| MoreDevices { zones: more.zones + SET_ASIDE, ..more }),
        }
    }
}

/// For each device the zones that no segment of the plan can use.
fn stranded(sizes: &[u64], widths: Widths) -> Vec<u64> {
    let segments = Plan::of(sizes, widths).segments;
    sizes.iter().map(|size| size.saturating_sub(segments)).collect()
}

/// The fewest zones on further devices of one size with which no zone of the others is stranded; `None` if
/// none is stranded, or if no devices that are as large as the largest change that. `widths` is by the number
/// of devices.
fn more_devices(sizes: &[u64], widths: impl Fn(usize) -> Widths) -> Option<MoreDevices> {
    let is_cured = |count: u64, zones: u64| {
        let mut sizes = sizes.to_vec();
        let old = sizes.len();
        sizes.extend((0..count).map(|_| zones));
        stranded(&sizes, widths(sizes.len()))[..old].iter().all(|zones| *zones == 0)
    };
    if is_cured(0, 0) {
        return None;
    }
    let largest = sizes.iter().max().copied().unwrap_or_default();
    let widest = widths(sizes.len() + 1).most;
    let by_count = (1..=widest).filter(|count| is_cured(*count, largest)).map(|count| {
        // Binary search: `yes` cures, `no` does not.
        let (mut no, mut yes) = (0, largest);
        while yes - no > 1 {
            let middle = no + (yes - no) / 2;
            if is_cured(count, middle) { yes = middle } else { no = middle }
        }
        MoreDevices { count, zones: yes }
    });
    by_count.min_by_key(|more| (more.count * more.zones, more.count))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO_AND_ONE: Widths = Widths { least: 2, most: 3, parity: 1 };

    #[test]
    fn a_large_device_has_zones_that_no_stripe_can_use() {
        assert_eq!(stranded(&[100, 100, 100, 400], TWO_AND_ONE), [0, 0, 0, 250]);
        let more = more_devices(&[100, 100, 100, 400], |_| TWO_AND_ONE);
        assert_eq!(more, Some(MoreDevices { count: 1, zones: 400 }));
        assert_eq!(more_devices(&[100, 100, 100], |_| TWO_AND_ONE), None);
        // Without parity every zone is usable.
        assert_eq!(stranded(&[7, 900], Widths { least: 1, most: 1, parity: 0 }), [0, 0]);
    }

    #[test]
    fn a_pool_without_devices_that_take_writes_has_no_stranded_zones() {
        let none = Widths { least: 0, most: 0, parity: 0 };
        assert_eq!(stranded(&[], none), [0; 0]);
        assert_eq!(more_devices(&[], |_| none), None);
    }

    proptest::proptest! {
        #[test]
        fn the_devices_that_are_advised_make_every_zone_usable(
            sizes in proptest::collection::vec(0u64..200, 1..=8), parity in 0u64..3, data in 1u64..5,
        ) {
            let widths = |_| Widths { least: parity + data.div_ceil(2), most: parity + data, parity };
            let is_stranded = |sizes: &[u64], old: usize| {
                stranded(sizes, widths(sizes.len()))[..old].iter().any(|zones| *zones > 0)
            };
            let more = more_devices(&sizes, widths);
            proptest::prop_assert_eq!(more.is_some(), is_stranded(&sizes, sizes.len()), "there is a cure");
            if let Some(more) = more {
                let with = |zones| [&sizes[..], &vec![zones; more.count as usize]].concat();
                proptest::prop_assert!(!is_stranded(&with(more.zones), sizes.len()));
                proptest::prop_assert!(is_stranded(&with(more.zones - 1), sizes.len()), "no smaller ones do");
            }
        }
    }
}
