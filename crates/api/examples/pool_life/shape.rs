//! Case 7: a pool gets another shape while it is written.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use warpfire::{Pool, UpkeepReason, Warpfire};

use super::bench_pool::{
    FILE_MIB, MIB, Outcome, images, make, now_nanos, remove, seconds_since, show, verify, wait,
};
use super::losses::{wait_for_losses, write_beside};

const DEVICES: u64 = 12;

fn to_convert(fs: &Warpfire) -> u64 {
    let work = fs.upkeep().work.into_iter();
    work.filter(|work| work.reason == UpkeepReason::Shape).map(|work| work.segments).sum()
}

fn pause(fs: &Warpfire, is_paused: bool) -> Outcome<()> {
    let mut wishes = fs.upkeep_wishes();
    wishes.is_paused = is_paused;
    Ok(fs.set_upkeep_wishes(&wishes)?)
}

/// The guarantees in words, and whether they add up: no data may lose fewer devices than 4 + 2 allows.
fn guaranteed(fs: &Warpfire) -> (bool, String) {
    let all = fs.guarantees();
    let part = |bytes: u64| format!("{:.0} MiB", bytes as f64 / MIB as f64);
    let words = all.iter().map(|g| format!("{} may lose {:?}", part(g.bytes), g.losses_left.unwrap_or(0)));
    (all.iter().all(|g| g.losses_left.is_some_and(|left| left >= 2)), words.collect::<Vec<_>>().join(", "))
}

pub fn convert(directory: &Path, mib: u64) -> Outcome<()> {
    let images = images(directory, DEVICES);
    let files = mib / FILE_MIB;
    let options = Pool::options().data(4).parity(2).size_bytes((mib * MIB / 2).max(128 * MIB));
    make(&options, &images, files)?;
    let fs = Arc::new(Pool::options().open(&images)?);
    let (mut tuning, ended) = (fs.tuning(), AtomicBool::new(false));
    (tuning.data, tuning.parity, tuning.convert) = (8, 3, true);
    let start_nanos = now_nanos();
    let written_before = fs.stats().counters().written_bytes;
    let plan = fs.plan_tune(&tuning)?;
    let beside = std::thread::scope(|scope| -> Outcome<u64> {
        let writer = scope.spawn(|| write_beside(&fs, files, mib / FILE_MIB / 4, &ended));
        fs.tune(&tuning)?;
        let all = to_convert(&fs);
        wait("the conversion has begun", || to_convert(&fs) < all || all == 0)?;
        pause(&fs, true)?;
        std::thread::park_timeout(Duration::from_secs(1));
        let paused_at = to_convert(&fs);
        std::thread::park_timeout(Duration::from_secs(1));
        let (holds, words) = guaranteed(&fs);
        show(7, holds, &format!("paused with {paused_at} of {all} segments left: {words}"));
        ended.store(true, Ordering::Relaxed);
        Ok(writer.join().expect("the writer does not panic"))
    })?;
    Arc::into_inner(fs).ok_or("the pool is still used")?.close()?;
    let fs = Pool::options().open(&images)?;
    let is_kept = fs.tuning() == tuning && fs.upkeep().is_paused;
    show(7, is_kept, "after a restart the wish and the pause are there");
    pause(&fs, false)?;
    wait("everything is converted", || to_convert(&fs) == 0)?;
    let seconds = seconds_since(start_nanos);
    wait_for_losses(&fs, 3)?;
    let (_, words) = guaranteed(&fs);
    let least = fs.stats().losses_left;
    let written = fs.stats().counters().written_bytes.saturating_sub(written_before);
    show(
        7,
        least == Some(3),
        &format!(
            "{seconds:.1} s after the wish: {words}; {:.0} MiB were planned to be written, {:.0} were written since the \
             restart",
            plan.written_bytes as f64 / MIB as f64,
            written as f64 / MIB as f64
        ),
    );
    fs.close()?;
    let fs = Pool::options().degraded(true).open(&images[3..])?;
    verify(&fs, files + beside)?;
    show(7, true, "three devices are lost: every byte is read");
    drop(fs);
    remove(&images);
    Ok(())
}
