//! What a change of the devices of an open pool would move, and the room that would be there after it.

use warpfire_log::{LeaveWork, LogStore};
use warpfire_pool::PlannedChange;
use warpfire_units::{DeviceIndex, ZoneIndex};

use crate::{Error, Result, Warpfire};

/// A change of the devices of a pool.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DeviceChange {
    /// Devices of these sizes join, one after the other.
    Add {
        /// Bytes of each.
        sizes_bytes: Vec<u64>,
    },
    /// A device leaves, present or not.
    Remove {
        /// Its position.
        index: u16,
    },
    /// A device leaves, and another one of this size joins.
    Replace {
        /// The position of the one that leaves.
        index: u16,
        /// Bytes of the other one.
        size_bytes: u64,
    },
}

/// A change of the devices of a pool, before it is made.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct DevicePlan {
    /// Segments of which a part is rewritten as it is, on another device.
    pub moved_segments: u64,
    /// Bytes that are written for that.
    pub moved_bytes: u64,
    /// Segments of which the live data is rewritten, because most of them is garbage, or because they have
    /// more parts than devices stay.
    pub cleaned_segments: u64,
    /// Bytes that are written for that, parity included.
    pub cleaned_bytes: u64,
    /// Bytes that are read for both.
    pub read_bytes: u64,
    /// About the bytes that can be written to files after it.
    pub available_bytes: u64,
    /// About the bytes that the other devices have too few; 0 if the data has room on them.
    pub missing_bytes: u64,
}

impl DevicePlan {
    /// Bytes that are written to move data.
    #[must_use]
    pub fn written_bytes(&self) -> u64 {
        self.moved_bytes + self.cleaned_bytes
    }
}

impl Warpfire {
    /// What a change of the devices would do. Nothing is read or written.
    ///
    /// ```
    /// use warpfire::{DeviceChange, Pool};
    ///
    /// let dir = tempfile::tempdir()?;
    /// let images = ["a", "b", "c"].map(|name| dir.path().join(name));
    /// let fs = Pool::options().size_bytes(64 << 20).parity(1).create(&images)?;
    /// fs.write("/kept", vec![7; 8 << 20])?;
    /// fs.sync()?;
    /// let plan = fs.plan_devices(&DeviceChange::Remove { index: 0 })?;
    /// assert!(plan.written_bytes() < 10 << 20 && plan.missing_bytes == 0);
    /// assert!(plan.available_bytes < fs.space()?.available_bytes);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidInput` if the pool has no such device.
    pub fn plan_devices(&self, change: &DeviceChange) -> Result<DevicePlan> {
        let log = self.fs().engine().log();
        let zones = |size_bytes: &u64| log.pool().zones_in(*size_bytes);
        let joins = |zones: u32| PlannedChange::Joins { zones };
        let (leaves, joined) = match change {
            DeviceChange::Add { sizes_bytes } => (None, sizes_bytes.iter().map(zones).map(joins).collect()),
            DeviceChange::Remove { index } => (Some(*index), Vec::new()),
            DeviceChange::Replace { index, size_bytes } => (Some(*index), vec![joins(zones(size_bytes))]),
        };
        let Some(index) = leaves else { return self.planned(LeaveWork::default(), &joined) };
        if !self.stats().devices.iter().any(|device| device.index == index) {
            return Err(Error::invalid(format!("the pool has no device {index}")));
        }
        let device = DeviceIndex(index);
        let work = log.leave_work(device, ZoneIndex(0));
        let changes: Vec<PlannedChange> = joined.into_iter().chain([PlannedChange::Leaves(device)]).collect();
        self.planned(work, &changes)
    }

    /// The plan of a change that moves this, and makes these changes of the room.
    pub(crate) fn planned(&self, work: LeaveWork, changes: &[PlannedChange]) -> Result<DevicePlan> {
        let log = self.fs().engine().log();
        // A segment that is cleaned takes as much room elsewhere as its column would: its garbage counts as
        // room already.
        let columns = work.moved_segments + work.cleaned_segments;
        let free_before = log.space().free_bytes.min(log.pool().free_bytes());
        let free_after = log.pool().free_bytes_after(changes, columns);
        let available = self.space()?.available_bytes;
        let needed = free_before.saturating_sub(free_after.unwrap_or(0));
        // At least one column has no room, whatever else there is.
        let least_missing = if free_after.is_some() { 0 } else { log.segment_bytes() };
        Ok(DevicePlan {
            moved_segments: work.moved_segments,
            moved_bytes: work.moved_bytes,
            cleaned_segments: work.cleaned_segments,
            cleaned_bytes: work.cleaned_bytes,
            read_bytes: work.read_bytes,
            available_bytes: (available + free_after.unwrap_or(0)).saturating_sub(free_before),
            missing_bytes: needed.saturating_sub(available).max(least_missing),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use warpfire_sim_env::{DeviceSpec, SimWorld};

    use crate::Pool;

    use super::*;

    const DEVICES: usize = 6;

    /// A pool of 3 + 1 on six devices. Half of its older files are gone, so that some segments are mostly
    /// garbage.
    fn pool(seed: u64) -> (SimWorld, Warpfire) {
        let world = SimWorld::of(seed, DEVICES, &DeviceSpec::append_only("flash", 64 << 20));
        let options = Pool::options().data(3).parity(1).background(false);
        let fs = options.create_on(world.devices()).expect("blank devices make a pool");
        for n in 0..60 {
            fs.write(format!("/{n}"), vec![n as u8; 1 << 20]).expect("there is room");
        }
        for n in (0..60).filter(|n| n % 5 != 0 && *n < 30) {
            fs.remove_file(format!("/{n}")).expect("it is there");
        }
        fs.sync().expect("nothing fails");
        (world, fs)
    }

    fn written_bytes(fs: &Warpfire) -> u64 {
        fs.stats().devices.iter().map(|device| device.counters.written_bytes).sum()
    }

    fn assert_near(planned: u64, found: u64, within: u64, context: &str) {
        assert!(planned.abs_diff(found) <= within, "{context}: {planned} planned, {found} found");
    }

    #[test]
    fn a_removal_writes_what_its_plan_says_and_leaves_the_room_that_it_says() {
        for is_missing in [false, true] {
            let context = if is_missing { "missing" } else { "present" };
            let (world, fs) = pool(81);
            fs.close().expect("nothing fails");
            let without = |n: usize| !is_missing || n != 2;
            let devices = world.devices().into_iter().enumerate();
            let devices = devices.filter(|(n, _)| without(*n)).map(|(_, device)| device).collect();
            let fs = Pool::options().background(false).open_on(devices).expect("one may be missing");
            let plan = fs.plan_devices(&DeviceChange::Remove { index: 2 }).expect("it is a device");
            assert!(plan.moved_segments > 0 && plan.missing_bytes == 0, "{context}: {plan:?}");
            let before = written_bytes(&fs);
            assert!(fs.remove_device(2, |_| ControlFlow::Continue(())).expect("there is room"));
            let written = written_bytes(&fs) - before;
            // Tables are rewritten where live data moves, and roots and the log are written too.
            let more = plan.written_bytes() / 5 + (8 << 20);
            assert!(
                (plan.written_bytes() * 9 / 10..plan.written_bytes() + more).contains(&written),
                "{context}: {written} bytes are written for {plan:?}"
            );
            let available = fs.space().expect("the pool knows").available_bytes;
            assert_near(plan.available_bytes, available, 8 << 20, context);
        }
    }

    #[test]
    fn the_room_after_a_device_has_joined_or_another_size_is_planned() {
        let (_, fs) = pool(82);
        let available = || fs.space().expect("the pool knows").available_bytes;
        let segment_bytes = fs.fs().engine().log().segment_bytes();
        let plan = fs.plan_devices(&DeviceChange::Add { sizes_bytes: vec![64 << 20] }).expect("planned");
        assert_eq!((plan.written_bytes(), plan.missing_bytes), (0, 0));
        let before = available();
        let joining = SimWorld::of(83, 1, &DeviceSpec::append_only("flash", 64 << 20)).devices().remove(0);
        let pool = fs.fs().engine().log().pool().clone();
        pool.add_device(joining, false, &warpfire_env::SystemRandom).expect("it joins");
        assert!(plan.available_bytes > before);
        assert_near(plan.available_bytes, available(), segment_bytes, "one more");
        let replace = DeviceChange::Replace { index: 0, size_bytes: 64 << 20 };
        let plan = fs.plan_devices(&replace).expect("planned");
        assert_near(plan.available_bytes, available(), 2 * segment_bytes, "one in the place of another");
        assert!(fs.plan_devices(&DeviceChange::Remove { index: 9 }).is_err(), "there is no such device");
    }

    #[test]
    fn a_removal_that_the_others_have_no_room_for_says_how_much_is_missing() {
        let (_, fs) = pool(84);
        let mut n = 100;
        while fs.space().expect("the pool knows").available_bytes > 4 << 20 {
            fs.write(format!("/{n}"), vec![7; 1 << 20]).expect("there is room");
            n += 1;
        }
        let plan = fs.plan_devices(&DeviceChange::Remove { index: 1 }).expect("it is a device");
        assert!(plan.missing_bytes > 0 && plan.available_bytes == 0, "{plan:?}");
    }
}
