//! Case 1: a lost device of a 4+2 pool on eight image files is rebuilt. The bytes that are read and written
//! are compared with the bytes that were lost. The raw rate is that of a plain read of an image, after its
//! pages were dropped.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{Advice, fadvise};
use warpfire::{Pool, Warpfire};

use super::bench_pool::{
    FILE_MIB, MIB, Outcome, images, make, now_nanos, remove, seconds_since, show, verify, wait,
};

const DEVICES: u64 = 8;
const DATA: u16 = 4;
const PARITY: u8 = 2;

/// MiB a second at which an image is read from its beginning to its end.
fn raw_rate(image: &Path) -> Outcome<f64> {
    let mut file = File::open(image)?;
    file.sync_all()?;
    fadvise(&file, 0, None, Advice::DontNeed)?;
    let (start_nanos, mut buf, mut bytes) = (now_nanos(), vec![0; 1 << 20], 0);
    loop {
        match file.read(&mut buf)? {
            0 => return Ok(bytes as f64 / MIB as f64 / seconds_since(start_nanos)),
            read => bytes += read,
        }
    }
}

fn due_bytes(fs: &Warpfire) -> u64 {
    fs.upkeep().at_risk.iter().map(|risk| risk.bytes).sum()
}

/// Rebuilds a device, and compares the counts with their bounds.
pub fn one(directory: &Path, mib: u64) -> Outcome<()> {
    let images = images(directory, DEVICES);
    let files = mib.div_ceil(FILE_MIB);
    let options = Pool::options().data(DATA).parity(PARITY).size_bytes((mib * MIB / 2).max(128 * MIB));
    make(&options, &images, files)?;
    let raw = raw_rate(&images[1])?;
    std::fs::remove_file(&images[0])?;

    let fs = Pool::options().spare_after(Duration::ZERO).open(&images[1..])?;
    let before = fs.stats();
    wait("the loss is known", || due_bytes(&fs) > 0)?;
    let due = due_bytes(&fs);
    let seconds = wait("everything is rebuilt", || due_bytes(&fs) == 0)?;
    let after = fs.stats();
    let moved = after.devices.iter().zip(&before.devices).filter(|(device, _)| device.name.is_some());
    let moved: Vec<(u64, u64)> = moved
        .map(|(now, then)| {
            let (now, then) = (&now.counters, &then.counters);
            (now.read_bytes - then.read_bytes, now.written_bytes - then.written_bytes)
        })
        .collect();
    let read: u64 = moved.iter().map(|(read, _)| read).sum();
    let written: u64 = moved.iter().map(|(_, written)| written).sum();
    let mean = read as f64 / moved.len() as f64;
    let most = moved.iter().map(|(read, _)| *read).max().unwrap_or(0) as f64 / mean;
    let segments = due * u64::from(DATA);
    let in_mib = |bytes: u64| bytes as f64 / MIB as f64;
    let (read_part, written_part) = (read as f64 / segments as f64, written as f64 / due as f64);
    show(
        1,
        read_part <= 1.3,
        &format!(
            "{:.1} MiB read for segments with {:.1} MiB: {read_part:.2} times (bound: 1.3)",
            in_mib(read),
            in_mib(segments)
        ),
    );
    show(
        1,
        written_part <= 1.1,
        &format!(
            "{:.1} MiB written for columns of {:.1} MiB: {written_part:.2} times (bound: 1.1)",
            in_mib(written),
            in_mib(due)
        ),
    );
    show(1, most <= 1.3, &format!("the device that was read most: {most:.2} times the mean (bound: 1.3)"));
    let rate = in_mib(read) / seconds;
    show(
        1,
        rate >= 0.6 * raw,
        &format!("{rate:.0} MiB/s read in {seconds:.2} s; raw {raw:.0} MiB/s (bound: 60 % of it)"),
    );
    verify(&fs, files)?;
    fs.close()?;
    remove(&images);
    Ok(())
}
