//! Case 1: a lost device of a 4+2 pool on eight image files is rebuilt. The bytes that are read and written
//! are compared with the bytes that were lost. The raw rate is that of a plain read of the same images, one
//! after the other, after their pages were dropped. Then the pool is made again and rebuilt: so a cache below
//! the disk has seen as little of the bytes in one case as in the other.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Advice, SeekFrom, fadvise, seek};
use warpfire::{Pool, Warpfire};

use super::bench_pool::{
    FILE_MIB, MIB, Outcome, images, make, now_nanos, remove, seconds_since, show, verify, wait,
};

const DEVICES: u64 = 8;
const DATA: u16 = 4;
const PARITY: u8 = 2;

/// With less data, a cache below the disk may hold the bytes just written: the raw rate is that of memory.
const MIB_JUDGED: u64 = 4096;

/// MiB a second at which images are read from their beginnings to their ends. Holes are skipped.
fn raw_rate(images: &[PathBuf]) -> Outcome<f64> {
    let (mut buf, mut bytes, mut seconds) = (vec![0; 1 << 20], 0, 0.0);
    for image in images {
        let mut file = File::open(image)?;
        file.sync_all()?;
        fadvise(&file, 0, None, Advice::DontNeed)?;
        let started = now_nanos();
        let mut end = 0;
        // A hole costs no device a read.
        while let Ok(start) = seek(&file, SeekFrom::Data(end)) {
            end = seek(&file, SeekFrom::Hole(start))?;
            file.seek(io::SeekFrom::Start(start))?;
            let mut left = end - start;
            while left > 0 {
                let most = buf.len().min(usize::try_from(left)?);
                file.read_exact(&mut buf[..most])?;
                left -= most as u64;
            }
            bytes += end - start;
        }
        seconds += seconds_since(started);
    }
    Ok(bytes as f64 / MIB as f64 / seconds)
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
    let raw = raw_rate(&images[1..])?;
    remove(&images);
    make(&options, &images, files)?;
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
    let text = format!(
        "{rate:.0} MiB/s read in {seconds:.2} s; raw {raw:.0} MiB/s: {:.2} of it (bound: 0.6)",
        rate / raw
    );
    if mib < MIB_JUDGED {
        println!("1         {text}, but too little data to be judged");
    } else {
        show(1, rate >= 0.6 * raw, &text);
    }
    verify(&fs, files)?;
    fs.close()?;
    remove(&images);
    Ok(())
}
