//! Upkeep: the watch over lost devices, and the work that is left until each segment has all its redundancy.
//!
//! # Invariants
//! 1. A device is given up once it has been lost for `spare_after`, by the monotonic clock of this session.
//!    A device that takes writes again is not lost any more (`LostDevices::given_up`).
//! 2. A pool without a device that is given up, and without segments that only wait for a checkpoint, gets no
//!    call that works (`watch`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use parking_lot::Mutex;
use warpfire_env::{Clock, SystemClock};
use warpfire_log::{Blocked, DueWork};
use warpfire_units::DeviceIndex;

use crate::open_pool::OpenPool;
use crate::upkeep_progress::{Sample, UpkeepProgress};
use crate::{Result, Warpfire};

/// How long a device stays lost until its columns are rebuilt on other devices, by default.
pub(crate) const SPARE_AFTER: Duration = Duration::from_mins(10);

/// How often an open pool looks for devices that were lost.
pub(crate) const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// How long each of these looks may write records again that a rollback shows.
pub(crate) const SETTLE_NANOS: u64 = 500_000_000;

/// How often an open pool may write a checkpoint only to leave segments behind.
const CLEAR_INTERVAL: Duration = Duration::from_mins(1);

/// The work that is left until each segment of a pool has all its redundancy.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Upkeep {
    /// Segments with columns that are to be rewritten, those with the fewest columns left to lose first.
    pub at_risk: Vec<SegmentsAtRisk>,
    /// The same segments by the reason of their work, the most urgent reason first.
    pub work: Vec<UpkeepWork>,
    /// Why nothing is done about some of these segments now.
    pub blocked: Option<String>,
    /// Whether upkeep is paused.
    pub is_paused: bool,
    /// Bytes written since upkeep had nothing left to do, and bytes to write until it has nothing left again.
    pub done_bytes: u64,
    /// Bytes to write.
    pub left_bytes: u64,
    /// The share that is done, in hundredths, while something is left.
    pub percent: Option<u8>,
    /// Bytes written in a second, over the last minute.
    pub rate_bytes: u64,
    /// The time until nothing is left, at that rate.
    pub time_left: Option<Duration>,
    /// Devices that are lost and not given up yet: their indexes, and how long they are waited for.
    pub waits_for: Vec<(u16, Duration)>,
}

/// Why segments have work to do.
pub use warpfire_log::DueReason as UpkeepReason;

/// The work of one reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct UpkeepWork {
    /// The reason.
    pub reason: UpkeepReason,
    /// Number of segments.
    pub segments: u64,
    /// Bytes of the columns to rewrite.
    pub bytes: u64,
}

/// Segments that can lose equally many columns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SegmentsAtRisk {
    /// How many more devices each of them may lose.
    pub left: usize,
    /// Their number.
    pub segments: u64,
    /// Bytes of the columns to rewrite.
    pub bytes: u64,
}

/// The devices that are lost.
pub(crate) struct LostDevices {
    spare_after_nanos: u64,
    /// When each was first found lost, in monotonic nanoseconds.
    since: Mutex<BTreeMap<DeviceIndex, u64>>,
    /// When a checkpoint last cleared what a conversion or a rebuild had left behind.
    cleared_at: Mutex<Option<u64>>,
}

impl LostDevices {
    pub fn new(spare_after: Duration) -> Self {
        let spare_after_nanos = u64::try_from(spare_after.as_nanos()).unwrap_or(u64::MAX);
        LostDevices { spare_after_nanos, since: Mutex::default(), cleared_at: Mutex::default() }
    }

    /// Takes note of the devices that are lost now, and returns those to give up.
    fn given_up(&self, lost: &BTreeSet<DeviceIndex>, now_nanos: u64) -> BTreeSet<DeviceIndex> {
        let mut since = self.since.lock();
        since.retain(|device, _| lost.contains(device));
        lost.iter().for_each(|device| _ = since.entry(*device).or_insert(now_nanos));
        let is_over = |at: &u64| now_nanos.saturating_sub(*at) >= self.spare_after_nanos;
        since.iter().filter(|(_, at)| is_over(at)).map(|(device, _)| *device).collect()
    }

    /// Whether the last checkpoint for leftovers is long ago. On a full pool one may not help.
    fn may_clear_leftovers(&self, now_nanos: u64) -> bool {
        let mut cleared_at = self.cleared_at.lock();
        let is_long_ago = |at: u64| u128::from(now_nanos.saturating_sub(at)) >= CLEAR_INTERVAL.as_nanos();
        let may = cleared_at.is_none_or(is_long_ago);
        if may {
            *cleared_at = Some(now_nanos);
        }
        may
    }

    /// The devices that are not given up yet, and how long they are waited for.
    fn waits_for(&self, now_nanos: u64) -> Vec<(u16, Duration)> {
        let since = self.since.lock();
        let left = |at: u64| self.spare_after_nanos.saturating_sub(now_nanos.saturating_sub(at));
        let waits = since.iter().map(|(device, at)| (device.0, Duration::from_nanos(left(*at))));
        waits.filter(|(_, left)| !left.is_zero()).collect()
    }

    /// Gives up the devices that have been lost for too long, and starts the work that follows from that.
    pub fn watch(&self, open_pool: &OpenPool, is_paused: bool, now_nanos: u64) -> Result<()> {
        let engine = open_pool.fs.engine();
        let given_up = self.given_up(&open_pool.lost_devices(), now_nanos);
        let is_idle = given_up.is_empty();
        if !is_paused {
            use_spares(open_pool, &given_up)?;
        }
        engine.log().vacate(given_up);
        // What a conversion or a rebuild has left behind goes, so that the pool says what it covers now.
        if !open_pool.is_read_only()
            && engine.log().is_held_back_by_leftovers()
            && self.may_clear_leftovers(now_nanos)
        {
            engine.checkpoint()?;
            open_pool.fs.sync()?;
        }
        if is_idle || is_paused {
            return Ok(());
        }
        if engine.log().has_due_work() {
            engine.wake();
        }
        // What the log still holds goes to tables, and the checkpoint behind it leaves the old log segments.
        if engine.log().is_log_at_risk() {
            engine.checkpoint()?;
        }
        Ok(())
    }
}

/// Lets spares take the places of devices that are given up: of those that are to be rebuilt and do not leave
/// yet. Of the spares that are large enough the smallest is taken, or else the largest.
fn use_spares(open_pool: &OpenPool, given_up: &BTreeSet<DeviceIndex>) -> Result<()> {
    let log = open_pool.fs.engine().log();
    let pool = log.pool();
    if given_up.is_empty() || pool.spares().is_empty() {
        return Ok(());
    }
    let devices = pool.status().devices;
    let has_place = |index: &DeviceIndex| {
        let device = devices.iter().find(|device| device.index == *index);
        device.filter(|device| !device.is_leaving && !device.is_spare).map(|device| device.zones)
    };
    for lost in given_up.iter().filter(|lost| log.segments_on(**lost) > 0) {
        let Some(zones) = has_place(lost) else { continue };
        let fitness = |(_, of_spare): &(DeviceIndex, u32)| match *of_spare >= zones {
            true => (0, *of_spare),
            false => (1, u32::MAX - *of_spare),
        };
        let Some((spare, _)) = pool.spares().into_iter().min_by_key(fitness) else { break };
        pool.use_spare(spare, Some(*lost))?;
    }
    Ok(())
}

/// Takes note of what upkeep has written since the last call.
pub(crate) fn note_progress(pace: &UpkeepProgress, open_pool: &OpenPool, now_nanos: u64) {
    let log = open_pool.fs.engine().log();
    let written_bytes = log.upkeep_limit().written_bytes();
    // The bytes that are done count from the moment at which nothing is left.
    if pace.tick(Sample { now_nanos, written_bytes }) {
        pace.progress(written_bytes, left_bytes(&log.due_work()));
    }
}

fn left_bytes(due: &DueWork) -> u64 {
    due.reasons.iter().map(|work| work.due_bytes).sum()
}

impl Warpfire {
    /// The work that is left until each segment has all its redundancy. Cheap: it reads no device.
    ///
    /// ```
    /// use warpfire::Pool;
    ///
    /// let fs = Pool::options().in_memory()?;
    /// assert!(fs.upkeep().at_risk.is_empty());
    /// # Ok::<(), warpfire::Error>(())
    /// ```
    #[must_use]
    pub fn upkeep(&self) -> Upkeep {
        let shared = &self.shared;
        let open_pool = &shared.open_pool;
        let due = open_pool.fs.engine().log().due_work();
        let at_risk = due.at_risk.iter().map(|risk| SegmentsAtRisk {
            left: risk.left,
            segments: risk.segments,
            bytes: risk.due_bytes,
        });
        let name = |index: &DeviceIndex| open_pool.device_name(*index);
        let limit = open_pool.fs.engine().log().upkeep_limit();
        let left_bytes = left_bytes(&due);
        let progress = shared.pace.progress(limit.written_bytes(), left_bytes);
        let work = due.reasons.iter().map(|work| UpkeepWork {
            reason: work.reason,
            segments: work.segments,
            bytes: work.due_bytes,
        });
        let is_paused = limit.is_paused();
        Upkeep {
            at_risk: at_risk.collect(),
            work: work.collect(),
            is_paused,
            done_bytes: progress.done_bytes,
            left_bytes,
            percent: progress.percent(),
            rate_bytes: progress.rate_bytes,
            time_left: progress.time_left().filter(|_| !is_paused),
            blocked: due.blocked.map(|blocked| match blocked {
                Blocked::Space { bytes } => {
                    format!("needs {} MiB more free space", bytes.div_ceil(1 << 20))
                }
                Blocked::Device { used, .. } => {
                    let used: Vec<String> = used.iter().map(name).collect();
                    format!("needs a free zone on a device other than {}", used.join(", "))
                }
            }),
            waits_for: shared.lost_devices.waits_for(SystemClock.monotonic_nanos()),
        }
    }
}

#[cfg(test)]
mod tests {
    use warpfire_sim_env::{DeviceSpec, Fault, SimWorld};

    use crate::Pool;

    use super::*;

    #[test]
    fn a_lost_device_is_rebuilt_without_a_call_and_another_one_may_be_lost() {
        let world = SimWorld::of(9, 5, &DeviceSpec::conventional("flash", 32 << 20));
        let options = Pool::options().data(2).parity(1).spare_after(Duration::ZERO);
        let fs = options.create_on(world.devices()).expect("blank devices make a pool");
        let content =
            |n: usize| -> Vec<u8> { (0..1 << 20).map(|at| (at / 4096 * 7 + at + n) as u8).collect() };
        let paths: Vec<String> = (0..12).map(|n| format!("/{n}")).collect();
        for (n, path) in paths.iter().enumerate() {
            fs.write(path, content(n)).expect("there is room");
        }
        fs.sync().expect("nothing fails");
        world.sims()[1].inject(Fault::Vanish { after: 0 });
        // The pool meets the loss when it uses the device, and some of the files have bytes there.
        for path in &paths {
            fs.read(path).expect("parity covers one device");
        }
        let losses = || (fs.stats().lost_devices(), fs.stats().losses_left);
        assert_eq!(losses(), (1, Some(0)), "a read has met the loss");
        let is_whole = || {
            let log = fs.filesystem().engine().log();
            fs.upkeep().at_risk.is_empty() && fs.stats().damaged_segments == 0 && !log.is_log_at_risk()
        };
        // The watch looks once a second: before that nothing is given up, and nothing is due.
        let vacated = || fs.shared.lost_devices.since.lock().len() == 1;
        let given_up = || vacated() && fs.upkeep().waits_for.is_empty();
        for _ in 0..600 {
            std::thread::park_timeout(WATCH_INTERVAL / 10);
            if given_up() && is_whole() {
                break;
            }
        }
        assert!(given_up() && is_whole(), "{:?}", fs.upkeep());
        fs.sync().expect("nothing fails");
        assert_eq!(losses(), (1, Some(1)), "as many as at first may be lost again");
        world.sims()[3].inject(Fault::Vanish { after: 0 });
        for (n, path) in paths.iter().enumerate() {
            assert!(fs.read(path).expect("the first device was rebuilt") == content(n), "{path}");
        }
    }

    #[test]
    fn a_close_does_not_wait_for_a_step_that_waits_and_leaves_its_segments_as_they_were() {
        let world = SimWorld::of(29, 5, &DeviceSpec::conventional("flash", 32 << 20));
        let options = Pool::options().data(2).parity(1).spare_after(Duration::ZERO);
        let fs = options.create_on(world.devices()).expect("blank devices make a pool");
        (0..12).for_each(|n| fs.write(format!("/{n}"), vec![n; 1 << 20]).expect("there is room"));
        let rate_bytes = std::num::NonZeroU64::new(1000);
        fs.set_upkeep_wishes(&crate::UpkeepWishes { rate_bytes, ..fs.upkeep_wishes() })
            .expect("nothing fails");
        world.sims()[1].inject(Fault::Vanish { after: 0 });
        (0..12).for_each(|n| _ = fs.read(format!("/{n}")).expect("parity covers one device"));
        let limit = || fs.filesystem().engine().log().upkeep_limit();
        let begun = (0..600).any(|_| {
            std::thread::park_timeout(WATCH_INTERVAL / 10);
            limit().moved_bytes() > 0
        });
        assert!(begun, "a step waits after its first stripe: {:?}", fs.upkeep());
        let due = fs.upkeep().at_risk;
        let start_nanos = SystemClock.monotonic_nanos();
        fs.close().expect("parity covers one device");
        let closed = Duration::from_nanos(SystemClock.monotonic_nanos() - start_nanos);
        // The stripe alone would wait for minutes.
        assert!(closed < Duration::from_secs(20), "{closed:?}");
        let options = Pool::options().background(false).degraded(true);
        let fs = options.open_on(world.devices()).expect("parity covers one device");
        fs.filesystem().engine().log().vacate(devices(&[1]));
        let bytes = |at_risk: &[SegmentsAtRisk]| at_risk.iter().map(|risk| risk.bytes).sum::<u64>();
        let left = fs.upkeep().at_risk;
        assert!(bytes(&left) >= bytes(&due), "{due:?} became {left:?}: nothing was rewritten or cleaned");
    }

    #[test]
    fn a_spare_takes_the_place_of_a_device_that_stays_lost_and_another_one_may_be_lost() {
        let mut world = SimWorld::of(19, 3, &DeviceSpec::conventional("flash", 32 << 20));
        let options = Pool::options().data(2).parity(1).background(false);
        let fs = options.create_on(world.devices()).expect("blank devices make a pool");
        let sizes = [48 << 20, 32 << 20];
        for (n, size) in sizes.iter().enumerate() {
            let name: &'static str = ["large", "fitting"][n];
            let device = world.add(DeviceSpec::conventional(name, *size));
            let pool = fs.fs().engine().log().pool();
            pool.add_spare(device, false, &warpfire_sim_env::DistinctNumbers).expect("a blank device");
        }
        let content =
            |n: usize| -> Vec<u8> { (0..1 << 20).map(|at| (at / 4096 * 7 + at + n) as u8).collect() };
        for n in 0..12 {
            fs.write(format!("/{n}"), content(n)).expect("there is room");
        }
        fs.sync().expect("nothing fails");
        world.sims()[1].inject(Fault::Vanish { after: 0 });
        fs.write("/more", content(99)).and_then(|()| fs.sync()).expect("parity covers one device");
        let spares = || fs.stats().devices.iter().map(|device| device.is_spare).collect::<Vec<_>>();
        let watch = |lost: &LostDevices, now_nanos| {
            lost.watch(&fs.shared.open_pool, false, now_nanos).expect("nothing fails");
        };
        let lost = LostDevices::new(Duration::from_nanos(100));
        watch(&lost, 1000);
        assert_eq!(spares(), [false, false, false, true, true], "it may come back");
        watch(&lost, 1100);
        assert_eq!(spares(), [false, false, false, true, false], "the smallest that is large enough");
        // Another session of the server, and the work is not done: no other spare is taken.
        watch(&LostDevices::new(Duration::ZERO), 1200);
        assert_eq!(spares(), [false, false, false, true, false]);
        watch(&lost, 1300);
        fs.regain_redundancy(|_| std::ops::ControlFlow::Continue(())).expect("the others work");
        assert_eq!((fs.stats().losses_left, fs.upkeep().at_risk.len()), (Some(1), 0));
        world.sims()[0].inject(Fault::Vanish { after: 0 });
        for n in 0..12 {
            assert!(fs.read(format!("/{n}")).expect("the first device was rebuilt") == content(n), "{n}");
        }
    }

    fn devices(numbers: &[u16]) -> BTreeSet<DeviceIndex> {
        numbers.iter().map(|number| DeviceIndex(*number)).collect()
    }

    #[test]
    fn a_device_is_given_up_when_it_has_been_lost_for_long_enough_and_not_after_it_was_back() {
        let lost = LostDevices::new(Duration::from_nanos(100));
        assert_eq!(lost.given_up(&devices(&[3]), 1000), devices(&[]));
        assert_eq!(lost.given_up(&devices(&[3, 4]), 1050), devices(&[]));
        assert_eq!(lost.waits_for(1060), [(3, Duration::from_nanos(40)), (4, Duration::from_nanos(90))]);
        assert_eq!(lost.given_up(&devices(&[3, 4]), 1100), devices(&[3]));
        assert_eq!(lost.given_up(&devices(&[4]), 1149), devices(&[]), "3 is back");
        assert_eq!(lost.given_up(&devices(&[3, 4]), 1151), devices(&[4]));
        assert_eq!(LostDevices::new(Duration::ZERO).given_up(&devices(&[1]), 5), devices(&[1]));
    }
}
