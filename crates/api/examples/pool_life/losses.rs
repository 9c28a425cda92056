//! Devices that are lost, one or more, and one that comes back.

use std::num::NonZeroU64;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use warpfire::{Pool, UpkeepWishes, Warpfire};

use super::bench_pool::{
    FILE_MIB, MIB, Outcome, content, images, make, now_nanos, plugged, remove, seconds_since, show, verify,
    wait,
};

/// In case 2 the second device is lost so long after the first, which is rebuilt at a rate that takes three
/// times as long.
const APART: Duration = Duration::from_secs(10);

/// Segments to rebuild that may lose so many devices.
fn at_risk(fs: &Warpfire, left: usize) -> u64 {
    fs.upkeep().at_risk.iter().filter(|risk| risk.left == left).map(|risk| risk.segments).sum()
}

fn is_rebuilt(fs: &Warpfire, losses: usize) -> bool {
    fs.stats().lost_devices() == losses && fs.upkeep().at_risk.is_empty() && fs.upkeep().waits_for.is_empty()
}

/// Reads something of every segment, so that the pool meets the losses.
fn meet(fs: &Warpfire, files: u64) -> Outcome<()> {
    fs.write("/meets", b"the loss")?;
    fs.sync()?;
    (0..files).step_by(8).try_for_each(|file| fs.read(format!("/{file}")).map(drop))?;
    Ok(())
}

/// Waits until so many devices may be lost. Segments that were emptied, and segments of the commit log, count
/// until the pool has freed them, with the syncs of later changes.
pub fn wait_for_losses(fs: &Warpfire, losses: u8) -> Outcome<f64> {
    wait("as many devices may be lost as the shape allows", || {
        let synced = fs.write("/later", b"a change").and_then(|()| fs.sync());
        synced.is_err() || fs.stats().losses_left == Some(losses)
    })
}

/// Case 2: no segment with one loss is touched while one with two is left, and a third device may be lost
/// once none is left. Of nine devices six are left then, as many as 4 + 2 needs.
pub fn two_and_a_third(directory: &Path, mib: u64) -> Outcome<()> {
    let images = images(directory, 9);
    let files = mib / FILE_MIB;
    let options = Pool::options().data(4).parity(2).size_bytes((mib * MIB).max(256 * MIB)).zone_bytes(MIB);
    make(&options, &images, files)?;
    let (fs, plugs) = plugged(&images)?;
    let rate_bytes = NonZeroU64::new(mib * MIB / (3 * APART.as_secs()));
    fs.set_upkeep_wishes(&UpkeepWishes { rate_bytes, ..UpkeepWishes::default() })?;
    plugs[0].pull();
    meet(&fs, files)?;
    wait("one loss is known", || fs.stats().lost_devices() == 1 && at_risk(&fs, 1) > 0)?;
    let of_one = at_risk(&fs, 1);
    std::thread::park_timeout(APART);
    let left_of_one = at_risk(&fs, 1);
    plugs[1].pull();
    meet(&fs, files)?;
    wait("two losses are known", || fs.stats().lost_devices() == 2 && at_risk(&fs, 0) > 0)?;
    fs.set_upkeep_wishes(&UpkeepWishes::default())?;
    let (mut twice, mut once, mut touched) = (at_risk(&fs, 0), at_risk(&fs, 1), 0);
    let of_two = twice;
    while twice > 0 {
        let now = at_risk(&fs, 1);
        let twice_now = at_risk(&fs, 0);
        // A segment with two losses that gets one column back has one loss: the others must not become fewer.
        if twice_now > 0 && now < once {
            touched += once - now;
        }
        (once, twice) = (now, twice_now);
        std::thread::park_timeout(Duration::from_millis(1));
    }
    show(
        2,
        touched == 0,
        &format!(
            "{left_of_one} of {of_one} segments with one loss are left when the second device is lost, {} s \
             later; {of_two} segments with two losses; {touched} with one were touched before",
            APART.as_secs()
        ),
    );
    wait("no segment has two losses", || fs.stats().losses_left.is_some_and(|left| left > 0))?;
    plugs[2].pull();
    meet(&fs, files)?;
    verify(&fs, files)?;
    show(2, true, "a third device is lost: every byte is read");
    let seconds = wait("everything is rebuilt", || is_rebuilt(&fs, 3))?;
    verify(&fs, files)?;
    let more = wait_for_losses(&fs, 2)?;
    let left = fs.stats().losses_left;
    let text = format!("rebuilt {seconds:.1} s later; after {more:.1} s more {left:?} may be lost");
    show(2, left == Some(2), &text);
    drop(fs);
    remove(&images);
    Ok(())
}

/// What it took to rebuild a lost device of a pool.
struct Rebuilt {
    /// From the first look at the pool on, without the wait for the loss to be known.
    seconds: f64,
    read_mib: f64,
    /// Of the segments with a lost column.
    affected_mib: f64,
}

fn rebuild_time(directory: &Path, device_bytes: u64, files: u64) -> Outcome<Rebuilt> {
    const DATA: u16 = 4;
    let images = images(directory, 8);
    let options = Pool::options().data(DATA).parity(2).size_bytes(device_bytes);
    make(&options, &images, files)?;
    std::fs::remove_file(&images[0])?;
    let start_nanos = now_nanos();
    let fs = Pool::options().spare_after(Duration::ZERO).open(&images[1..])?;
    let opened = seconds_since(start_nanos);
    wait("the loss is known", || fs.upkeep().waits_for.is_empty() && (files == 0 || at_risk(&fs, 1) > 0))?;
    let due_nanos = now_nanos();
    let due: u64 = fs.upkeep().at_risk.iter().map(|risk| risk.bytes).sum();
    wait("everything is rebuilt", || is_rebuilt(&fs, 1))?;
    let seconds = opened + seconds_since(due_nanos);
    let in_mib = |bytes: u64| bytes as f64 / MIB as f64;
    let (read_mib, affected_mib) = (in_mib(fs.stats().counters().read_bytes), in_mib(due * u64::from(DATA)));
    verify(&fs, files)?;
    drop(fs);
    remove(&images);
    Ok(Rebuilt { seconds, read_mib, affected_mib })
}

/// Case 3: space that is not used costs no time. A segment of a pool of this size is 1 GiB, and a device has
/// a column of six in eight of them: so the figures are for the bytes of those.
pub fn sparse(directory: &Path, mib: u64) -> Outcome<()> {
    let tib_device = (1 << 40) / 8;
    let Rebuilt { seconds, read_mib, .. } = rebuild_time(directory, tib_device, 0)?;
    show(3, seconds < 1.0, &format!("1 TiB, empty: {seconds:.2} s, {read_mib:.0} MiB read (bound: 1 s)"));
    let mut rates = Vec::new();
    for live in [mib, mib / 8] {
        let Rebuilt { seconds, read_mib, affected_mib } =
            rebuild_time(directory, tib_device, live / FILE_MIB)?;
        let part = read_mib / affected_mib;
        let text = format!(
            "1 TiB with {live} MiB: {seconds:.2} s, {read_mib:.0} MiB read for segments with {affected_mib:.0} MiB: \
             {part:.2} times (bound: 1.3)"
        );
        show(3, part <= 1.3, &text);
        rates.push((seconds, seconds / affected_mib));
    }
    let more = rates[1].1 / rates[0].1;
    let text = format!("the smaller amount takes {more:.2} times as long for each MiB (bound: 1.5)");
    // Below a second the opening and the first wait weigh more than the bytes.
    if rates[1].0 < 1.0 {
        println!("3         {text}, but too short to be judged");
    } else {
        show(3, more < 1.5, &text);
    }
    Ok(())
}

/// Case 4: a device gets the columns that were open when it left, and none of the data that was written
/// without it. It is away for at least `away`, in which the files are written one by one.
pub fn away_and_back(directory: &Path, mib: u64, away: Duration) -> Outcome<()> {
    let images = images(directory, 8);
    let options = Pool::options().data(4).parity(2).size_bytes((mib * MIB).max(256 * MIB));
    make(&options, &images, 8)?;
    let fs = Pool::options().open(&images)?;
    let (ended, written) = (AtomicBool::new(false), AtomicU64::new(8));
    let pause = away.div_f64((mib / FILE_MIB).saturating_sub(12).max(1) as f64);
    let (missed_segments, missed_bytes, seconds, was_away) = std::thread::scope(|scope| -> Outcome<_> {
        let writer = scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) && written.load(Ordering::Relaxed) < mib / FILE_MIB {
                let file = written.load(Ordering::Relaxed);
                if fs.write(format!("/{file}"), content(file)).is_ok() {
                    written.fetch_add(1, Ordering::Relaxed);
                }
                std::thread::park_timeout(pause);
            }
        });
        wait("files are written", || written.load(Ordering::Relaxed) >= 10)?;
        fs.take_offline(3)?;
        let left_nanos = now_nanos();
        wait("files are written without it", || {
            written.load(Ordering::Relaxed) >= mib / FILE_MIB - 1 || writer.is_finished()
        })?;
        let was_away = seconds_since(left_nanos);
        let (segments, bytes) = fs.missed_by(3);
        let start_nanos = now_nanos();
        fs.take_online(&images[3])?;
        wait("the device has what it missed", || {
            fs.missed_by(3).0 == 0 && fs.stats().losses_left == Some(2)
        })?;
        let seconds = seconds_since(start_nanos);
        ended.store(true, Ordering::Relaxed);
        Ok((segments, bytes, seconds, was_away))
    })?;
    let files = written.load(Ordering::Relaxed);
    // Four streams, each with one open segment.
    show(
        4,
        missed_segments <= 4,
        &format!(
            "{} MiB were written without it in {was_away:.0} s; it missed a part of {missed_segments} segments, {:.1} MiB \
             (bound: 4 open segments)",
            (files - 10) * FILE_MIB,
            missed_bytes as f64 / MIB as f64
        ),
    );
    show(4, seconds < 10.0, &format!("whole {seconds:.2} s after its return (bound: 10 s)"));
    fs.close()?;
    let fs = Pool::options().degraded(true).open([0, 1, 3, 4, 6, 7].map(|n| images[n].clone()))?;
    verify(&fs, files)?;
    show(4, true, "two others are lost: every byte is read");
    drop(fs);
    remove(&images);
    Ok(())
}

/// Writes files that `verify` knows, beside the case, until it has ended.
pub fn write_beside(fs: &Warpfire, first: u64, most: u64, ended: &AtomicBool) -> u64 {
    let mut count = 0;
    while !ended.load(Ordering::Relaxed) && count < most {
        let file = first + count;
        if fs.write(format!("/{file}"), content(file)).is_err() {
            break;
        }
        count += 1;
    }
    count
}
