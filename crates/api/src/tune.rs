//! The shape of an open pool, k + m, changed while it is in use.
//!
//! # Invariants
//! 1. A change that the devices or their room do not allow is refused before it is made
//!    (`Warpfire::plan_tune`). Space is kept for lost devices only out of the room that writers have: what
//!    flushes and cleaning need is left (`Warpfire::make_spare_room`).
//! 2. Data that is written after the call has the new shape. Older data gets it only if that is wished, and
//!    keeps what its own shape covers until then (`warpfire_log`, `shape`).

use rustix::io::Errno;
use warpfire_log::LogStore;
use warpfire_pool as pool;
use warpfire_pool::{MembershipError, PoolError};

use crate::error::ErrorKind;
use crate::{Error, Result, Warpfire};

/// The shape of new data in a pool, and what it wishes for older data and for free space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Tuning {
    /// Devices of a stripe that hold data.
    pub data: u16,
    /// Devices of a stripe that hold parity: so many may be lost.
    pub parity: u8,
    /// Whether older data is rewritten in this shape.
    pub convert: bool,
    /// The space of so many devices is kept free, for the data of lost devices.
    pub spare_space: u16,
}

/// A change of the shape of a pool, before it is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct TunePlan {
    /// Segments that have another shape.
    pub segments: u64,
    /// Bytes of files and tables in them.
    pub live_bytes: u64,
    /// Bytes that are written to devices to rewrite them; 0 if they stay as they are.
    pub written_bytes: u64,
    /// Bytes of files and tables that the pool can hold in the new shape.
    pub capacity_bytes: u64,
    /// About the bytes that can be written to files when all data has the new shape.
    pub available_bytes: u64,
}

/// Bytes of data by the number of devices that may be lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct DataGuarantee {
    /// How many more devices may be lost without a loss of this data; `None` if parity covers no more.
    pub losses_left: Option<u8>,
    /// Bytes of files and tables.
    pub bytes: u64,
}

impl Tuning {
    fn of_pool(&self) -> pool::Tuning {
        let Tuning { data, parity, convert: converts, spare_space } = *self;
        pool::Tuning { data, parity, converts, spare_space }
    }
}

impl Warpfire {
    /// The shape of new data, and the wishes.
    #[must_use]
    pub fn tuning(&self) -> Tuning {
        let pool::Tuning { data, parity, converts, spare_space } = self.fs().engine().log().pool().tuning();
        Tuning { data, parity, convert: converts, spare_space }
    }

    /// What [`tune`](Warpfire::tune) would do. Nothing is written.
    ///
    /// # Errors
    /// `InvalidInput` if no pool has this shape, or if the pool has too few devices for it; `NoSpace` if its
    /// data does not fit in this shape, or not beside the space to keep free.
    pub fn plan_tune(&self, tuning: &Tuning) -> Result<TunePlan> {
        let log = self.fs().engine().log();
        log.pool().check_tuning(tuning.of_pool()).map_err(|error| match error {
            PoolError::Membership(MembershipError::TooFew { staying, width }) => {
                let Tuning { data, parity, .. } = tuning;
                let message = format!("{data}+{parity} needs {width} devices, and the pool has {staying}");
                Error::invalid(message)
                    .with_hint("add devices first with 'warpfire device add', or ask for fewer")
            }
            other => other.into(),
        })?;
        let others = log.other_shapes(tuning.data, tuning.parity);
        let space = log.space();
        let capacity_bytes = log.pool().capacity_of(tuning.of_pool());
        let needed_bytes = space.live_bytes + space.log_bytes + space.reserve_bytes;
        let live_bytes = others.live_bytes;
        let parity_bytes = live_bytes * u64::from(tuning.parity) / u64::from(tuning.data);
        if tuning.convert && others.segments > 0 && capacity_bytes < needed_bytes {
            let short_mib = (needed_bytes - capacity_bytes).div_ceil(1 << 20);
            let Tuning { data, parity, .. } = tuning;
            let message =
                format!("the data of the pool does not fit as {data}+{parity}: {short_mib} MiB are missing");
            let error = Error::new(ErrorKind::NoSpace, Errno::NOSPC.raw_os_error(), message);
            return Err(error.with_hint(
                "remove files, add a device, or leave out --convert: only new data gets the shape then",
            ));
        }
        let available_bytes = self.space()?.available_bytes;
        let short_bytes = self.spare_room(tuning).saturating_sub(available_bytes);
        if short_bytes > 0 {
            return Err(self.no_spare_room(tuning, short_bytes));
        }
        Ok(TunePlan {
            segments: others.segments,
            live_bytes,
            written_bytes: if tuning.convert { live_bytes + parity_bytes } else { 0 },
            capacity_bytes,
            available_bytes: capacity_bytes.saturating_sub(needed_bytes),
        })
    }

    /// The bytes that a change takes from writers, to keep them free for lost devices. The data that is there
    /// has the old shape, so that counts.
    fn spare_room(&self, tuning: &Tuning) -> u64 {
        let pool = self.fs().engine().log().pool();
        let before = pool.tuning();
        let after = pool::Tuning { spare_space: tuning.spare_space, ..before };
        pool.capacity_of(before).saturating_sub(pool.capacity_of(after))
    }

    fn no_spare_room(&self, tuning: &Tuning, short_bytes: u64) -> Error {
        let devices = match tuning.spare_space {
            1 => "a device".to_owned(),
            several => format!("{several} devices"),
        };
        let short_mib = short_bytes.div_ceil(1 << 20);
        let message = format!("the space of {devices} cannot be kept free: {short_mib} MiB are missing");
        let error = Error::new(ErrorKind::NoSpace, Errno::NOSPC.raw_os_error(), message);
        error.with_hint("remove files, add a device, or keep the space of fewer devices free")
    }

    /// Cleans until the space to keep free is free now. Segments take none of it afterwards, those of
    /// cleaning neither.
    fn make_spare_room(&self, tuning: &Tuning) -> Result<()> {
        let engine = self.fs().engine();
        let log = engine.log();
        let short_bytes = || {
            let space = log.space();
            match self.spare_room(tuning) {
                0 => 0,
                taken => (taken + space.reserve_bytes).saturating_sub(space.free_bytes),
            }
        };
        if short_bytes() == 0 {
            return Ok(());
        }
        engine.reclaim_all()?;
        // Segments that were emptied become free at a sync.
        self.sync()?;
        match short_bytes() {
            0 => Ok(()),
            short => Err(self.no_spare_room(tuning, short)),
        }
    }

    /// Changes the shape of the data that is written from now on, and the wishes for older data and for free
    /// space, while the pool is in use. With `convert` older data is rewritten in the background
    /// ([`upkeep`](Warpfire::upkeep)), after the work for lost and damaged columns; another call without it
    /// ends that. Durable on return. After a crash the pool has the shape before or the new one, and goes on.
    ///
    /// ```
    /// use warpfire::Pool;
    ///
    /// let dir = tempfile::tempdir()?;
    /// let images = ["a", "b", "c", "d"].map(|name| dir.path().join(name));
    /// let fs = Pool::options().data(3).parity(1).size_bytes(32 << 20).create(&images)?;
    /// let mut tuning = fs.tuning();
    /// (tuning.data, tuning.parity, tuning.convert) = (2, 2, true);
    /// fs.tune(&tuning)?;
    /// fs.write("/new", b"two devices may be lost")?;
    /// tuning.data = 3;
    /// assert!(fs.tune(&tuning).is_err(), "five devices are needed");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`plan_tune`](Warpfire::plan_tune); `ReadOnly`.
    pub fn tune(&self, tuning: &Tuning) -> Result<TunePlan> {
        let plan = self.plan_tune(tuning)?;
        let log = self.fs().engine().log();
        self.sync()?;
        self.make_spare_room(tuning)?;
        log.tune(tuning.of_pool())?;
        log.seal_all()?;
        self.settle_devices()?;
        Ok(plan)
    }

    /// Bytes of data by the number of devices that may still be lost, the fewest first.
    #[must_use]
    pub fn guarantees(&self) -> Vec<DataGuarantee> {
        let guarantees = self.fs().engine().log().guarantees().into_iter();
        guarantees.map(|g| DataGuarantee { losses_left: g.left, bytes: g.live_bytes }).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use warpfire_meta::Store;
    use warpfire_sim_env::{Cut, DeviceSpec, Fault, SimWorld};

    use crate::test_pools::open_without as open;
    use crate::{Pool, test_pools};

    use super::*;

    const DEVICES: usize = 5;
    /// Files of the pools in which space must not be the reason to clean, and of those that are cut.
    const MANY: usize = 32;
    const FEW: usize = 6;

    fn content(n: usize) -> Vec<u8> {
        (0..(90 << 10) * (n % 9 + 4)).map(|at| (at / 4096 * 7 + at + n) as u8).collect()
    }

    fn assert_files(fs: &Warpfire, files: usize, context: &str) {
        test_pools::assert_files(fs, files, content, context);
    }

    /// A pool of 3 + 1 on five devices, with files in tables.
    fn pool(seed: u64, files: usize) -> SimWorld {
        let world = SimWorld::of(seed, DEVICES, &DeviceSpec::append_only("flash", 32 << 20));
        let options = Pool::options().data(3).parity(1).background(false);
        let fs = options.create_on(world.devices()).expect("blank devices make a pool");
        for n in 0..files {
            fs.write(format!("/{n}"), content(n)).expect("there is room");
        }
        fs.close().expect("nothing fails");
        world
    }

    fn to(data: u16, parity: u8, convert: bool) -> Tuning {
        Tuning { data, parity, convert, spare_space: 0 }
    }

    /// Background work until there is none.
    fn work(fs: &Warpfire) {
        let engine = fs.fs().engine();
        for _ in 0..200 {
            if !engine.background_step().expect("nothing fails") {
                break;
            }
        }
        engine.checkpoint().expect("nothing fails");
        fs.sync().expect("nothing fails");
    }

    fn shape_work(fs: &Warpfire) -> u64 {
        let work = fs.upkeep().work;
        work.iter().filter(|w| w.reason == crate::UpkeepReason::Shape).map(|w| w.segments).sum()
    }

    fn least(fs: &Warpfire) -> Option<u8> {
        fs.guarantees().first().expect("the pool holds data").losses_left
    }

    #[test]
    fn new_data_has_the_new_shape_at_once_and_older_data_when_it_is_wished() {
        let world = pool(61, MANY);
        let fs = open(&world, &[], "first");
        let plan = fs.tune(&to(2, 2, false)).expect("five devices are enough");
        assert!(plan.segments > 0 && plan.written_bytes == 0, "{plan:?}");
        fs.write("/new", vec![7; 1 << 20]).expect("there is room");
        fs.sync().expect("nothing fails");
        let both: BTreeSet<Option<u8>> = fs.guarantees().iter().map(|g| g.losses_left).collect();
        assert_eq!(both, BTreeSet::from([Some(1), Some(2)]), "each segment keeps its own shape");
        assert_eq!((shape_work(&fs), fs.stats().damaged_segments), (0, 0), "nothing is wished for the older");
        work(&fs);
        assert_eq!(least(&fs), Some(1), "nothing was rewritten");

        let plan = fs.tune(&to(2, 2, true)).expect("there is room");
        assert!(plan.written_bytes >= 2 * plan.live_bytes, "{plan:?}");
        assert!(shape_work(&fs) > 0);
        work(&fs);
        assert_eq!((shape_work(&fs), least(&fs), fs.stats().losses_left), (0, Some(2), Some(2)));
        fs.close().expect("nothing fails");
        for one in 0..DEVICES {
            for other in 0..one {
                let context = format!("without {one} and {other}");
                let fs = open(&world.fork(), &[one, other], &context);
                assert_files(&fs, MANY, &context);
            }
        }
    }

    #[test]
    fn an_idle_pool_says_what_it_covers_soon_after_a_conversion() {
        let world = pool(60, MANY);
        let fs = open(&world, &[], "first");
        fs.tune(&to(2, 2, true)).expect("there is room");
        let engine = fs.fs().engine();
        while engine.background_step().expect("nothing fails") {}
        assert_eq!((shape_work(&fs), least(&fs)), (0, Some(2)), "all live data has the new shape");
        // Nothing is written or synced any more.
        let watch = |now_nanos| {
            let watched = fs.shared.lost_devices.watch(&fs.shared.open_pool, false, now_nanos);
            watched.expect("nothing fails");
        };
        assert_eq!(fs.stats().losses_left, Some(1), "the old segments are empty, and still there");
        watch(1);
        assert_eq!(fs.stats().losses_left, Some(2));
        let written = || fs.stats().devices.iter().map(|d| d.counters.written_bytes).sum::<u64>();
        let before = written();
        (2..9).for_each(watch);
        assert_eq!(written(), before, "an idle pool is left alone");
    }

    /// Each file has its bytes, or is an error. Returns the number of errors.
    fn errors_in_files(fs: &Warpfire, context: &str) -> usize {
        let read = (0..FEW).map(|n| (n, fs.read(format!("/{n}"))));
        read.filter(|(n, read)| match read {
            Ok(bytes) => {
                assert!(*bytes == content(*n), "{context}: file {n} has other bytes");
                false
            }
            Err(_) => true,
        })
        .count()
    }

    /// m was raised, and the older data still has the parity from before.
    #[test]
    fn a_pool_that_misses_more_than_its_older_data_covers_is_written_on_request_only() {
        let world = pool(69, FEW);
        let fs = open(&world, &[], "raised");
        fs.tune(&to(2, 2, false)).expect("five devices are enough");
        fs.write("/new", vec![7; 1 << 20]).expect("there is room");
        fs.close().expect("nothing fails");
        let (mut refusals, mut written) = (0, 0);
        for (one, other) in (0..DEVICES).flat_map(|one| (0..one).map(move |other| (one, other))) {
            let context = format!("without {one} and {other}");
            let world = world.fork();
            let some = || {
                let devices = world.devices().into_iter().enumerate();
                devices
                    .filter(|(n, _)| *n != one && *n != other)
                    .map(|(_, device)| device)
                    .collect::<Vec<_>>()
            };
            let options = || Pool::options().background(false);
            let refused = match options().open_on(some()) {
                Ok(fs) => {
                    assert_eq!(errors_in_files(&fs, &context), 0, "{context}: no older data needs them");
                    continue;
                }
                Err(refused) => refused,
            };
            refusals += 1;
            let said = refused.to_string();
            assert!(
                said.contains("2 devices are missing, and some data cannot be read"),
                "{context}: {said}"
            );
            let Ok(fs) = options().read_only(true).open_on(some()) else {
                continue;
            };
            assert_eq!(fs.stats().losses_left, None, "{context}");
            let errors = errors_in_files(&fs, &context);
            fs.close().expect("nothing was written");
            let fs = options().degraded(true).open_on(some()).expect("it was asked for");
            assert_eq!(errors_in_files(&fs, &context), errors, "{context}");
            fs.write("/more", b"written without them").expect("there is room");
            fs.close().expect("nothing fails");
            let fs = open(&world, &[], &context);
            assert_files(&fs, FEW, &context);
            assert_eq!(fs.read("/more").expect("it was synced"), b"written without them");
            written += usize::from(errors > 0);
        }
        assert!(refusals > 0 && written > 0, "{refusals} pairs are refused, {written} written all the same");
    }

    #[test]
    fn a_conversion_is_paused_goes_on_after_a_crash_and_is_cancelled() {
        let world = pool(62, MANY);
        let fs = open(&world, &[], "first");
        fs.tune(&to(2, 2, true)).expect("there is room");
        let mut wishes = fs.upkeep_wishes();
        wishes.is_paused = true;
        fs.set_upkeep_wishes(&wishes).expect("nothing fails");
        let assert_paused = |fs: &Warpfire| {
            work(fs);
            let moved_bytes = fs.fs().engine().log().upkeep_limit().moved_bytes();
            // Some segments are cleaned for their space.
            assert!(moved_bytes == 0 && shape_work(fs) > 3, "{moved_bytes} bytes are converted");
        };
        assert_paused(&fs);
        let crashed = world.cut(&Cut::LoseAll);
        drop(fs);
        let fs = open(&crashed, &[], "after the crash");
        assert_eq!(fs.tuning(), to(2, 2, true));
        assert_paused(&fs);
        // Another call takes the wish back.
        fs.tune(&to(2, 2, false)).expect("nothing fails");
        wishes.is_paused = false;
        fs.set_upkeep_wishes(&wishes).expect("nothing fails");
        work(&fs);
        assert_eq!((shape_work(&fs), least(&fs)), (0, Some(1)));
        fs.tune(&to(2, 2, true)).expect("nothing fails");
        work(&fs);
        assert_eq!((shape_work(&fs), least(&fs)), (0, Some(2)));
        assert_files(&fs, MANY, "converted");
    }

    #[test]
    fn a_shape_that_devices_or_room_do_not_allow_is_refused_and_changes_nothing() {
        let world = pool(63, FEW);
        let fs = open(&world, &[], "first");
        let before = fs.tuning();
        for wrong in [to(4, 2, false), to(0, 1, false), to(1, 9, false)] {
            let refused = fs.tune(&wrong).expect_err("the devices do not allow it");
            assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{refused}");
        }
        let mut n = 0;
        while fs.write(format!("/more{n}"), vec![n as u8; 1 << 20]).is_ok() {
            n += 1;
        }
        let refused = fs.tune(&to(1, 4, true)).expect_err("the data does not fit");
        assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
        assert_eq!(fs.tuning(), before);
        fs.tune(&to(1, 4, false)).expect("new data may have the shape");
        assert_can_be_emptied(&fs, n, "another shape");
    }

    /// Removes files of a full pool and writes one of the same size.
    fn assert_can_be_emptied(fs: &Warpfire, files: usize, context: &str) {
        for n in 0..files / 2 {
            let removed = fs.remove_file(format!("/more{n}")).and_then(|()| fs.sync());
            removed.unwrap_or_else(|e| panic!("{context}: {n}: {e}"));
        }
        fs.write("/again", vec![7; 1 << 20]).unwrap_or_else(|e| panic!("{context}: {e}"));
    }

    #[test]
    fn space_that_the_room_does_not_allow_to_keep_free_is_refused_and_a_full_pool_can_be_emptied() {
        let kept = |fs: &Warpfire| Tuning { spare_space: 1, ..fs.tuning() };
        for more in [1, 2] {
            let world = pool(67, FEW);
            let fs = open(&world, &[], "first");
            let before = fs.tuning();
            let mut n = 0;
            while fs.write(format!("/more{n}"), vec![n as u8; 1 << 20]).is_ok() {
                n += 1;
            }
            let wish = Tuning { spare_space: more, ..before };
            for refused in [fs.plan_tune(&wish), fs.tune(&wish)] {
                let refused = refused.expect_err("the pool is full");
                assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
                assert!(refused.hint().is_some_and(|hint| hint.contains("add a device")), "{refused}");
            }
            assert_eq!(fs.tuning(), before);
            assert_can_be_emptied(&fs, n, "the wish is refused");
            fs.tune(&kept(&fs)).expect("half of the files are gone");
            for at in n / 2..n {
                let removed = fs.remove_file(format!("/more{at}")).and_then(|()| fs.sync());
                removed.unwrap_or_else(|e| panic!("a wish that was taken: {at}: {e}"));
            }
            fs.close().expect("nothing fails");
        }
    }

    #[test]
    fn space_to_keep_free_is_cleaned_before_it_is_kept() {
        let world = pool(68, FEW);
        let fs = open(&world, &[], "first");
        let mut n = 0;
        while fs.write(format!("/more{n}"), vec![n as u8; 256 << 10]).is_ok() {
            n += 1;
        }
        // Garbage in all segments; none is free.
        for at in (0..n).filter(|at| at % 4 != 0) {
            fs.remove_file(format!("/more{at}")).expect("it is there");
        }
        fs.sync().expect("nothing fails");
        fs.tune(&Tuning { spare_space: 1, ..fs.tuning() }).expect("most of the pool is garbage");
        for at in (0..n).step_by(4) {
            assert_eq!(fs.read(format!("/more{at}")).expect("it is there"), vec![at as u8; 256 << 10]);
        }
        fs.write("/again", vec![7; 4 << 20]).and_then(|()| fs.sync()).expect("there is room");
        fs.remove_file("/again").and_then(|()| fs.sync()).expect("there is room");
    }

    #[test]
    fn the_power_fails_at_each_moment_of_a_conversion() {
        let mut world = pool(64, FEW);
        let fs = open(&world, &[], "before");
        world.record();
        let convert = |fs: &Warpfire| {
            fs.tune(&to(2, 2, true)).expect("there is room");
            work(fs);
        };
        convert(&fs);
        let recording = world.take_recording().expect("it was begun");
        let mut counting = recording.replay();
        let mut boundaries = usize::from(counting.at_boundary());
        while counting.advance().is_some() {
            boundaries += usize::from(counting.at_boundary());
        }
        let (mut replay, mut at, mut found) = (recording.replay(), 0, BTreeSet::new());
        while replay.advance().is_some() {
            at += usize::from(replay.at_boundary());
            let is_chosen = at < 40 || at + 20 > boundaries || at.is_multiple_of(boundaries / 60 + 1);
            if !replay.at_boundary() || !is_chosen {
                continue;
            }
            for cut in [Cut::LoseAll, Cut::KeepAll, Cut::Seeded(at as u64)] {
                let context = format!("event {}, {cut:?}", replay.point());
                let crashed = replay.cut(&cut);
                let fs = open(&crashed, &[], &context);
                assert_files(&fs, FEW, &context);
                found.insert(fs.tuning().parity);
                convert(&fs);
                let state = (shape_work(&fs), least(&fs), fs.stats().damaged_segments);
                assert_eq!(state, (0, Some(2), 0), "{context}");
                fs.close().unwrap_or_else(|e| panic!("{context}: {e}"));
                assert!(crashed.sims().iter().all(|sim| sim.overwrites().is_empty()), "{context}");
                let lost = [at % DEVICES, (at + 1 + at / DEVICES % (DEVICES - 1)) % DEVICES];
                let without = open(&crashed, &lost, &context);
                assert_files(&without, FEW, &format!("{context}, without {lost:?}"));
            }
        }
        assert_eq!(found, BTreeSet::from([1, 2]), "before the change and after it");
    }

    #[test]
    fn a_device_is_lost_during_a_conversion_and_all_data_gets_its_redundancy() {
        let world = pool(65, FEW);
        let fs = open(&world, &[], "first");
        fs.tune(&to(2, 2, true)).expect("there is room");
        world.sims()[4].inject(Fault::Vanish { after: 3 });
        work(&fs);
        assert_files(&fs, FEW, "one is lost");
        assert_eq!((shape_work(&fs), least(&fs)), (0, Some(2)), "four devices are enough");
        drop(fs);
        let devices = world.devices().into_iter().take(4).collect();
        let fs = Pool::options().background(false).open_on(devices).expect("one device is missing");
        assert_files(&fs, FEW, "opened again");
    }

    #[test]
    fn a_rebuild_takes_the_space_that_is_kept_and_not_that_of_writers() {
        let world = SimWorld::of(66, DEVICES, &DeviceSpec::append_only("flash", 32 << 20));
        let options =
            Pool::options().data(2).parity(1).background(false).spare_after(std::time::Duration::ZERO);
        let fs = options.create_on(world.devices()).expect("blank devices make a pool");
        let available = || fs.space().expect("nothing fails").available_bytes;
        let all_bytes = available();
        let kept = Tuning { spare_space: 1, ..fs.tuning() };
        let plan = fs.tune(&kept).expect("five devices are enough");
        let off_bytes = plan.available_bytes.abs_diff(available());
        assert!(off_bytes < 1 << 20, "{plan:?}: {} are available", available());
        let rest = available() as f64 / all_bytes as f64;
        // Each of the others keeps a quarter of a device; the reserve stays as it is.
        assert!((0.60..0.75).contains(&rest), "{rest} of the old space");
        // The pool is full for writers.
        let mut files = 0;
        while fs.write(format!("/{files}"), vec![files as u8; 1 << 20]).is_ok() {
            files += 1;
        }
        fs.sync().expect("nothing fails");
        let before = available();
        world.sims()[2].inject(Fault::Vanish { after: 0 });
        fs.remove_file("/0").and_then(|()| fs.sync()).expect("parity covers one device");
        // The pool meets the loss when it uses the device.
        let read = |n: u64| fs.read(format!("/{n}")).expect("parity covers one device");
        (1..files).for_each(|n| assert_eq!(read(n), vec![n as u8; 1 << 20]));
        assert_eq!(fs.stats().lost_devices(), 1);
        fs.shared.lost_devices.watch(&fs.shared.open_pool, false, 1).expect("nothing fails");
        fs.shared.lost_devices.watch(&fs.shared.open_pool, false, 2).expect("nothing fails");
        let left = fs.regain_redundancy(|_| std::ops::ControlFlow::Continue(())).expect("the others work");
        assert_eq!((left, fs.stats().losses_left), (0, Some(1)), "{:?}", fs.upkeep());
        // As long as nothing was removed, a rebuild gives writers no room.
        assert!(available() <= before + (8 << 20), "{before} before, {} after", available());
        world.sims()[4].inject(Fault::Vanish { after: 0 });
        for n in 1..files {
            assert_eq!(fs.read(format!("/{n}")).expect("the first was rebuilt"), vec![n as u8; 1 << 20]);
        }
    }
}
