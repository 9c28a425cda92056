//! The devices of an open pool, adding and removing them, and its name.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;
use warpfire_env::{Device, FileDevice, OpenError, SystemRandom};
use warpfire_log::LogStore;
use warpfire_meta::Store;
use warpfire_pool::{DeviceSetError, DeviceState, PoolError, PoolLabel};
use warpfire_units::{DeviceIndex, ZoneIndex};

use crate::devices::{DeviceContent, NewDevices, check_named_once};
use crate::error::{ADD_ANEW, ErrorKind};
use crate::{Error, Result, Warpfire};

/// Turns without success after which a device counts as one that cannot be emptied. Background work and
/// readers may hold a segment for a moment.
pub(crate) const TURNS_MAX: u32 = 8;

/// How a device is added to a pool.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct AddDevice {
    size_bytes: Option<u64>,
    force: bool,
    spare: bool,
}

impl AddDevice {
    /// A device that holds nothing. A new image file is as large as the largest device of the pool.
    #[must_use]
    pub fn new() -> Self {
        AddDevice::default()
    }

    /// The size of a new image file.
    #[must_use]
    pub fn size_bytes(self, bytes: u64) -> Self {
        AddDevice { size_bytes: Some(bytes), ..self }
    }

    /// Whether to overwrite what the device holds.
    #[must_use]
    pub fn force(self, force: bool) -> Self {
        AddDevice { force, ..self }
    }

    /// Whether the device waits as a spare: it gets no data before another device has been lost for
    /// [`spare_after`](crate::PoolOptions::spare_after). Then it takes the place of that one.
    #[must_use]
    pub fn spare(self, spare: bool) -> Self {
        AddDevice { spare, ..self }
    }
}

impl Warpfire {
    /// Names the pool, or takes its name if `label` is empty. Durable on return.
    /// [`stats`](Warpfire::stats) and the labels of the devices show the name.
    ///
    /// ```
    /// let fs = warpfire::Pool::options().in_memory()?;
    /// fs.set_label("tank")?;
    /// assert_eq!(fs.stats().label, "tank");
    /// # Ok::<(), warpfire::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidInput` if the name is longer than 64 bytes or has a control character; `ReadOnly` if the pool
    /// takes no changes.
    pub fn set_label(&self, label: &str) -> Result<()> {
        let Some(label) = PoolLabel::new(label) else {
            return Err(Error::invalid("a pool's name has at most 64 bytes and no control characters"));
        };
        Ok(self.fs().engine().log().pool().set_label(label)?)
    }

    /// Adds a device or image file to the pool while it is in use, and returns its position there. New data
    /// goes to it too; the data that is there stays where it is. An image file that does not exist is made.
    /// Durable on return. After a crash the pool has the device or not; if not, it can be added again.
    ///
    /// From now on the device is named with the others when the pool is opened.
    ///
    /// ```
    /// use warpfire::{AddDevice, Pool};
    ///
    /// let dir = tempfile::tempdir()?;
    /// let images = ["a", "b"].map(|name| dir.path().join(name));
    /// let fs = Pool::options().size_bytes(32 << 20).parity(1).create(&images)?;
    /// let free_bytes = fs.space()?.available_bytes;
    /// assert_eq!(fs.add_device(dir.path().join("c"), &AddDevice::new())?, 2);
    /// assert!(fs.space()?.available_bytes > free_bytes);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidInput` if the device belongs to the pool already, is too small, or has zones of another size;
    /// `AlreadyExists` if it holds something and `force` is not set; `InUse`; `Device` if it fails;
    /// `ReadOnly` if the pool takes no changes.
    pub fn add_device(&self, path: impl AsRef<Path>, how: &AddDevice) -> Result<u16> {
        let path = path.as_ref();
        let largest = || self.stats().devices.iter().map(|device| device.size_bytes).max().unwrap_or(0);
        let size_bytes = how.size_bytes.unwrap_or_else(largest);
        // The pool knows its own devices: one that has left it, or joined it half, is added again.
        let may_hold = |content: DeviceContent| how.force || content == DeviceContent::Pool;
        let mut new = NewDevices::prepare(&[path.to_path_buf()], size_bytes, may_hold)?;
        let device = new.devices.pop().expect("one path is one device");
        let pool = self.fs().engine().log().pool();
        let added = match how.spare {
            true => pool.add_spare(device, how.force, &SystemRandom),
            false => pool.add_device(device, how.force, &SystemRandom),
        };
        match added {
            Ok(index) => Ok(index.0),
            Err(error) => {
                new.discard();
                Err(error.into())
            }
        }
    }

    /// Removes a device from the pool while it is in use: moves its data to the other devices, then forgets
    /// it and closes it. `index` is its position. The device may be missing; its data is then reconstructed.
    /// Returns `false` if `progress` ended the work: the device stays then, with the data that was not moved.
    ///
    /// `progress` is called with the segments that still have data on the device, again and again while they
    /// become fewer.
    ///
    /// A crash leaves the device leaving: its data goes on to move, and another call removes it.
    ///
    /// ```
    /// use std::ops::ControlFlow;
    /// use warpfire::Pool;
    ///
    /// let dir = tempfile::tempdir()?;
    /// let images = ["a", "b", "c"].map(|name| dir.path().join(name));
    /// let fs = Pool::options().size_bytes(32 << 20).parity(1).create(&images)?;
    /// fs.write("/kept", vec![7; 1 << 20])?;
    /// assert!(fs.remove_device(0, |_| ControlFlow::Continue(()))?);
    /// assert_eq!(fs.read("/kept")?, vec![7; 1 << 20]);
    /// fs.close()?;
    /// let fs = Pool::options().open(&images[1..])?;
    /// assert_eq!(fs.read("/kept")?, vec![7; 1 << 20]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidInput` if there is no such device, or if fewer than data and parity devices would stay;
    /// `NoSpace` if the other devices have no room for its data: the device stays; `ReadOnly`.
    pub fn remove_device(
        &self,
        index: u16,
        mut progress: impl FnMut(u64) -> ControlFlow<()>,
    ) -> Result<bool> {
        let device = DeviceIndex(index);
        let engine = self.fs().engine();
        let log = engine.log();
        log.pool().set_leaving(device, true)?;
        let emptied = self.empty_zones(device, ZoneIndex(0), &mut progress);
        if !matches!(emptied, Ok(true)) {
            log.pool().set_leaving(device, false)?;
            return emptied;
        }
        log.pool().remove_device(device)?;
        Ok(true)
    }

    /// Replaces a device while the pool is in use: adds the one at `path`, moves the data of the other to it
    /// or to other devices, and removes that. `index` is the position of the one that leaves; it may be
    /// missing. The device at `path` may belong to the pool already. Returns the position of the new device,
    /// and `None` if `progress` ended the work: both devices are in the pool then.
    ///
    /// A crash leaves both devices in the pool, or one of them; another call goes on.
    ///
    /// ```
    /// use std::ops::ControlFlow;
    /// use warpfire::{AddDevice, Pool};
    ///
    /// let dir = tempfile::tempdir()?;
    /// let images = ["a", "b", "c"].map(|name| dir.path().join(name));
    /// let fs = Pool::options().size_bytes(32 << 20).parity(1).create(&images[..2])?;
    /// fs.write("/kept", vec![7; 1 << 20])?;
    /// let new = fs.replace_device(0, &images[2], &AddDevice::new(), |_| ControlFlow::Continue(()))?;
    /// assert_eq!(new, Some(2));
    /// fs.close()?;
    /// let fs = Pool::options().open(&images[1..])?;
    /// assert_eq!(fs.read("/kept")?, vec![7; 1 << 20]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`add_device`](Warpfire::add_device) and [`remove_device`](Warpfire::remove_device). If the new
    /// device has joined, it stays in the pool.
    pub fn replace_device(
        &self,
        index: u16,
        path: impl AsRef<Path>,
        how: &AddDevice,
        progress: impl FnMut(u64) -> ControlFlow<()>,
    ) -> Result<Option<u16>> {
        let path = path.as_ref();
        let devices = self.stats().devices;
        if !devices.iter().any(|device| device.index == index) {
            return Err(Error::invalid(format!("the pool has no device {index}")));
        }
        let is_it = |name: &String| check_named_once(&[PathBuf::from(name), path.to_path_buf()]).is_err();
        let member = devices.iter().find(|device| device.name.as_ref().is_some_and(is_it));
        let new = match member.map(|device| device.index) {
            Some(member) if member == index => {
                return Err(Error::invalid("a device cannot replace itself").of_device(path));
            }
            Some(spare) if self.is_spare(spare) => {
                let pool = self.fs().engine().log().pool();
                pool.use_spare(DeviceIndex(spare), None)?;
                spare
            }
            Some(member) => member,
            None => self.add_device(path, how)?,
        };
        Ok(self.remove_device(index, progress)?.then_some(new))
    }

    fn is_spare(&self, index: u16) -> bool {
        let spares = self.fs().engine().log().pool().spares();
        spares.iter().any(|(spare, _)| spare.0 == index)
    }

    /// Stops using a device, while the pool is in use and when it is opened again, until it is
    /// [taken online](Warpfire::take_online). Its data stays on it and is reconstructed from the others; new
    /// data goes to the others. The device is closed. Everything written before is durable, as after a sync.
    /// Durable on return; after a crash the device is in use or offline.
    ///
    /// A device that stays offline is rebuilt on the others, as any device that stays away
    /// ([`spare_after`](crate::PoolOptions::spare_after)).
    ///
    /// ```
    /// use warpfire::Pool;
    ///
    /// let dir = tempfile::tempdir()?;
    /// let images = ["a", "b", "c"].map(|name| dir.path().join(name));
    /// let fs = Pool::options().size_bytes(32 << 20).parity(1).create(&images)?;
    /// fs.take_offline(1)?;
    /// fs.write("/new", vec![7; 1 << 20])?;
    /// assert!(fs.take_offline(0).is_err(), "the new file is on it and on one other");
    /// assert_eq!(fs.take_online(&images[1])?, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidInput` if there is no such device, or if data would lose more than parity covers without it;
    /// `ReadOnly`.
    pub fn take_offline(&self, index: u16) -> Result<()> {
        let log = self.fs().engine().log();
        self.sync()?;
        log.pool().take_offline(DeviceIndex(index))?;
        self.settle_devices()
    }

    /// Checks that [`take_offline`](Warpfire::take_offline) would take the device. Nothing is written.
    ///
    /// # Errors
    /// As `take_offline`.
    pub fn check_spared(&self, index: u16) -> Result<()> {
        Ok(self.fs().engine().log().pool().check_spared(DeviceIndex(index))?)
    }

    /// Uses a device of the pool again that is offline or missing, has failed, or was gone, while the pool is
    /// in use. Returns its position. The device keeps what it holds, and gets what it has missed in the
    /// background ([`missed_by`](Warpfire::missed_by)). Nothing happens if it is online already. Durable on
    /// return.
    ///
    /// # Errors
    /// `InvalidInput` or `NotAPool` if it is not the device that left: it belongs to another pool or to none,
    /// was removed from the pool, was written elsewhere, or is an old copy; `InUse`; `NotFound`; `Device`;
    /// `ReadOnly`.
    pub fn take_online(&self, path: impl AsRef<Path>) -> Result<u16> {
        let path = path.as_ref();
        let pool = self.fs().engine().log().pool();
        let is_it = |name: &String| check_named_once(&[PathBuf::from(name), path.to_path_buf()]).is_err();
        let known = pool.status().devices.into_iter().find(|device| device.name.as_ref().is_some_and(is_it));
        if let Some(online) = known.as_ref().filter(|device| device.state == DeviceState::Present) {
            return Ok(online.index.0);
        }
        let failed = || pool.failed_device(known.as_ref()?.index);
        let device: Arc<dyn Device> = match FileDevice::open(path) {
            Ok(device) => Arc::new(device),
            // The pool itself has it open.
            Err(error @ OpenError::InUse { .. }) => failed().ok_or(error)?,
            Err(error) => return Err(error.into()),
        };
        let index = pool.take_online(device).map_err(|error| match error {
            PoolError::Devices(
                refused @ (DeviceSetError::Diverged { .. } | DeviceSetError::Shrunk { .. }),
            ) => Error::from(refused).with_hint(ADD_ANEW).of_device(path),
            PoolError::Devices(refused) => Error::from(refused)
                .with_hint("'warpfire device add' makes it a new device of the pool")
                .of_device(path),
            other => Error::from(other).of_device(path),
        })?;
        self.settle_devices()?;
        Ok(index.0)
    }

    pub(crate) fn settle_devices(&self) -> Result<()> {
        self.shared.open_pool.settle_devices()
    }

    /// The segments of which a device lacks a part, and the bytes that it gets to have it again. It gets them
    /// in the background while it is online.
    #[must_use]
    pub fn missed_by(&self, index: u16) -> (u64, u64) {
        self.fs().engine().log().missed_by(DeviceIndex(index))
    }

    /// Works until each segment has all the redundancy that the devices allow, which happens in the
    /// background otherwise. Returns the segments for which that is not possible now. `progress` is called
    /// with the segments that are left, and may end the work.
    ///
    /// # Errors
    /// `ReadOnly`; `Device` or `Damaged` if devices fail beyond parity.
    pub fn regain_redundancy(&self, mut progress: impl FnMut(u64) -> ControlFlow<()>) -> Result<u64> {
        let engine = self.fs().engine();
        let log = engine.log();
        self.sync()?;
        // Ends: after some turns that leave as many segments as before nothing more can be done.
        let (mut fewest, mut turns) = (usize::MAX, 0);
        loop {
            let left = log.weak_segments();
            turns = if left < fewest { 0 } else { turns + 1 };
            fewest = fewest.min(left);
            if left == 0 || turns >= TURNS_MAX || progress(left as u64).is_break() {
                break;
            }
            engine.background_step()?;
        }
        engine.checkpoint()?;
        self.sync()?;
        Ok(log.weak_segments() as u64)
    }

    /// Moves all columns in this zone of a device and behind it, which are vacated. Returns whether
    /// `progress` let it.
    pub(crate) fn empty_zones(
        &self,
        device: DeviceIndex,
        first: ZoneIndex,
        progress: &mut impl FnMut(u64) -> ControlFlow<()>,
    ) -> Result<bool> {
        let engine = self.fs().engine();
        let log = engine.log();
        self.sync()?;
        // Ends: after some turns that leave as many segments on the device the work ends with an error, the
        // second time that happens.
        let (mut fewest, mut turns, mut reclaimed) = (u64::MAX, 0, false);
        loop {
            while log.has_due_work() {
                if progress(log.segments_behind(device, first)).is_break() {
                    return Ok(false);
                }
                match engine.background_step() {
                    Ok(true) => {}
                    Ok(false) => break,
                    // What cannot move now may move after the checkpoint, or says below why it does not.
                    Err(e) if e.is_no_space() => break,
                    Err(e) => return Err(e.into()),
                }
            }
            // The log segments and those without live bytes go with a checkpoint.
            log.renew_log()?;
            engine.checkpoint()?;
            self.sync()?;
            let left = log.segments_behind(device, first);
            if left == 0 {
                // No root but the newest is read, and it names no column on the device.
                engine.checkpoint()?;
                return Ok(log.segments_behind(device, first) == 0);
            }
            turns = if left < fewest { 0 } else { turns + 1 };
            if turns >= TURNS_MAX && !reclaimed {
                // Bytes of removed files may take the room that is missing.
                engine.reclaim_all()?;
                self.sync()?;
                (turns, reclaimed) = (0, true);
            }
            if turns >= TURNS_MAX {
                let reason = self.upkeep().blocked.unwrap_or_else(|| format!("{left} segments do not move"));
                let message = format!("the device cannot be emptied: {reason}");
                return Err(Error::new(ErrorKind::NoSpace, Errno::NOSPC.raw_os_error(), message));
            }
            fewest = fewest.min(left);
        }
    }
}

#[cfg(test)]
mod tests {
    use warpfire_sim_env::{Cut, DeviceSpec, DistinctNumbers, Fault, SimWorld};

    use crate::test_pools::open_without as open;
    use crate::{Pool, test_pools};

    use super::*;

    const DEVICE_BYTES: u64 = 32 << 20;
    /// The device that is replaced, and the one that takes its place.
    const OLD: usize = 1;
    const NEW: usize = 3;

    fn content(n: usize) -> Vec<u8> {
        (0..(90 << 10) * (n + 1)).map(|at| (at / 4096 * 7 + at + n) as u8).collect()
    }

    fn assert_files(fs: &Warpfire, context: &str) {
        test_pools::assert_files(fs, 6, content, context);
    }

    /// A pool of three devices with files, and a blank device beside it.
    fn pool_and_blank(seed: u64) -> SimWorld {
        let mut world = SimWorld::of(seed, 3, &DeviceSpec::append_only("flash", DEVICE_BYTES));
        let options = Pool::options().data(2).parity(1).background(false);
        let fs = options.create_on(world.devices()).expect("blank devices make a pool");
        for n in 0..6 {
            fs.write(format!("/{n}"), content(n)).expect("there is room");
        }
        fs.close().expect("nothing fails");
        world.add(DeviceSpec::append_only("new", DEVICE_BYTES));
        world
    }

    fn has(fs: &Warpfire, device: usize) -> bool {
        fs.stats().devices.iter().any(|d| usize::from(d.index) == device)
    }

    /// What `device replace` does, which goes on with what an earlier call has done.
    fn replace(fs: &Warpfire, world: &SimWorld) -> Result<()> {
        if !has(fs, NEW) {
            let new = Arc::clone(&world.devices()[NEW]);
            fs.fs().engine().log().pool().add_device(new, false, &DistinctNumbers)?;
        }
        if has(fs, OLD) {
            let index = OLD as u16;
            let new = fs.replace_device(index, "new", &AddDevice::new(), |_| ControlFlow::Continue(()))?;
            assert_eq!(new, Some(NEW as u16));
        }
        Ok(())
    }

    fn assert_replaced(fs: Warpfire, world: &SimWorld, context: &str) {
        assert!(has(&fs, NEW) && !has(&fs, OLD), "{context}: {:?}", fs.stats().devices);
        assert_eq!((fs.stats().losses_left, fs.stats().damaged_segments), (Some(1), 0), "{context}");
        assert_files(&fs, context);
        fs.close().unwrap_or_else(|e| panic!("{context}: {e}"));
        assert!(world.sims().iter().all(|sim| sim.overwrites().is_empty()), "{context}");
        for lost in [0, 2, NEW] {
            let context = format!("{context}, without {lost}");
            assert_files(&open(&world.fork(), &[OLD, lost], &context), &context);
        }
    }

    #[test]
    fn the_power_fails_at_each_moment_of_a_replacement() {
        for is_dead in [false, true] {
            let mut world = pool_and_blank(41);
            let without: &[usize] = if is_dead { &[OLD] } else { &[] };
            let fs = open(&world, without, "before");
            world.record();
            replace(&fs, &world).expect("the devices work");
            assert_replaced(fs, &world, "without a cut");
            let recording = world.take_recording().expect("it was begun");
            let mut counting = recording.replay();
            let mut boundaries = usize::from(counting.at_boundary());
            while counting.advance().is_some() {
                boundaries += usize::from(counting.at_boundary());
            }
            let (mut replay, mut at, mut found) = (recording.replay(), 0, std::collections::BTreeSet::new());
            while replay.advance().is_some() {
                at += usize::from(replay.at_boundary());
                // As many as a test has time for, at the beginning and the end all of them.
                let is_chosen = at < 30 || at + 20 > boundaries || at.is_multiple_of(boundaries / 40 + 1);
                if !replay.at_boundary() || !is_chosen {
                    continue;
                }
                for cut in [Cut::LoseAll, Cut::KeepAll, Cut::Seeded(at as u64)] {
                    let context = format!("dead: {is_dead}, event {}, {cut:?}", replay.point());
                    let crashed = replay.cut(&cut);
                    let fs = open(&crashed, without, &context);
                    assert_files(&fs, &context);
                    found.insert((has(&fs, NEW), has(&fs, OLD)));
                    replace(&fs, &crashed).unwrap_or_else(|e| panic!("{context}: {e}"));
                    assert_replaced(fs, &crashed, &context);
                }
            }
            assert_eq!(found.len(), 3, "before the one has joined, with both, after the other has left");
        }
    }

    #[test]
    fn a_device_fails_at_any_moment_of_a_replacement() {
        for failing in [0, OLD, NEW] {
            for after in [0, 2, 5, 9, 14, 22, 35, 60, 100] {
                let context = format!("device {failing} vanishes after {after} operations");
                let world = pool_and_blank(43);
                let fs = open(&world, &[], &context);
                world.sims()[failing].inject(Fault::Vanish { after });
                let replaced = replace(&fs, &world);
                assert_files(&fs, &context);
                let is_replaced = has(&fs, NEW) && !has(&fs, OLD);
                assert_eq!(replaced.is_ok(), is_replaced, "{context}: {replaced:?}");
                drop(fs);
                // It is back, and the command ends as wished.
                world.sims()[failing].heal();
                let fs = open(&world, &[], &context);
                assert_files(&fs, &context);
                replace(&fs, &world).unwrap_or_else(|e| panic!("{context}: {e}"));
                fs.regain_redundancy(|_| ControlFlow::Continue(())).expect("the devices work");
                assert_replaced(fs, &world, &context);
            }
        }
    }

    /// A crash may leave a device leaving for which the others have no room.
    #[test]
    fn a_full_pool_that_a_device_is_leaving_can_be_emptied() {
        let world = SimWorld::of(45, 4, &DeviceSpec::append_only("flash", DEVICE_BYTES));
        let options = Pool::options().data(2).parity(1).background(false);
        let fs = options.create_on(world.devices()).expect("blank devices make a pool");
        let mut files = 0;
        while fs.write(format!("/{files}"), vec![files as u8; 1 << 20]).is_ok() {
            files += 1;
        }
        fs.sync().expect("a full pool syncs");
        let refused = fs.remove_device(0, |_| ControlFlow::Continue(())).expect_err("there is no room");
        assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
        fs.fs().engine().log().pool().set_leaving(DeviceIndex(0), true).expect("nothing fails");
        let crashed = world.cut(&Cut::LoseAll);
        drop(fs);
        let fs = open(&crashed, &[], "leaving");
        for n in 0..files {
            let removed = fs.remove_file(format!("/{n}")).and_then(|()| fs.sync());
            removed.unwrap_or_else(|e| panic!("{n} of {files}: {e}"));
        }
        assert!(fs.remove_device(0, |_| ControlFlow::Continue(())).expect("there is room"));
    }
}
