//! Measures a device: plain calls beside batches.
//!
//! `cargo run --release -p warpfire-env --example rates -- PATH [MIB]` creates the files PATH.0 to PATH.2 and
//! removes them at the end.

use std::path::Path;
use std::sync::Arc;

use warpfire_env::run_batch;
use warpfire_env::{
    AlignedBuf, Clock, Device, DeviceOp, FileDevice, OpKind, Random, SystemClock, SystemRandom,
};

type Failure = Box<dyn std::error::Error>;

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

fn seconds(work: &mut dyn FnMut() -> Result<(), Failure>) -> Result<f64, Failure> {
    let begin = SystemClock.monotonic_nanos();
    work()?;
    Ok((SystemClock.monotonic_nanos() - begin) as f64 / 1e9)
}

fn batch(devices: &[Arc<dyn Device>], ops: &mut [DeviceOp<'_>]) -> Result<(), Failure> {
    run_batch(devices, ops);
    ops.iter().try_for_each(|op| op.result.clone()).map_err(Into::into)
}

/// Sequential writes: medians of rounds. Rounds of plain calls and of batches alternate, so that other work
/// on the machine slows both equally.
fn sequential(devices: &[Arc<dyn Device>], size: usize) -> Result<(), Failure> {
    const ROUNDS: usize = 5;
    let device = &devices[0];
    for (name, blank) in [("fill", true), ("overwrite", false)] {
        let single = [64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB].map(|len| (len, 1));
        for (len, together) in single.into_iter().chain([(16 * KIB, 16), (64 * KIB, 8), (64 * KIB, 32)]) {
            let buf = AlignedBuf::zeroed(len);
            let at = |n: usize| (n * len) as u64;
            let write = |n: usize| DeviceOp::new(0, OpKind::Write(at(n), &buf));
            let mut rates = [Vec::new(), Vec::new()];
            for round in 0..2 * ROUNDS {
                if blank {
                    device.discard(0, size as u64)?;
                    device.flush()?;
                }
                let took = seconds(&mut || {
                    for first in (0..size / len).step_by(together) {
                        let some = first..first + together;
                        match round % 2 {
                            0 => some.into_iter().try_for_each(|n| device.write(at(n), &buf))?,
                            _ => batch(devices, &mut some.map(write).collect::<Vec<_>>())?,
                        }
                    }
                    Ok(device.flush()?)
                })?;
                rates[round % 2].push(size as f64 / took / 1e9);
            }
            let [plain, batched] = rates.map(|mut r| {
                r.sort_by(f64::total_cmp);
                r[ROUNDS / 2]
            });
            let kib = len / KIB;
            println!("{name:9} {together:2} x {kib:5} KiB: plain {plain:5.2} GB/s, batch {batched:5.2} GB/s");
        }
    }
    Ok(())
}

fn random_reads(devices: &[Arc<dyn Device>], size: usize) -> Result<(), Failure> {
    const READS: usize = 20_000;
    let mut bufs: Vec<AlignedBuf> = (0..64).map(|_| AlignedBuf::zeroed(4 * KIB)).collect();
    let place = || SystemRandom.next_u64() % (size as u64 / 4096) * 4096;
    for depth in [1, 2, 8, 32, 64] {
        let took = seconds(&mut || {
            for _ in 0..READS / depth {
                let mut ops: Vec<_> =
                    bufs[..depth].iter_mut().map(|b| DeviceOp::new(0, OpKind::Read(place(), b))).collect();
                batch(devices, &mut ops)?;
            }
            Ok(())
        })?;
        println!("random 4 KiB reads, {depth:2} in a batch: {:7.0} a second", READS as f64 / took);
    }
    Ok(())
}

/// One write to each of some devices, then a flush of each: the device work of a synced commit to mirrors.
fn syncs(devices: &[Arc<dyn Device>], size: usize) -> Result<(), Failure> {
    const SYNCS: usize = 1_000;
    for (kib, mirrors) in [(4, 1usize), (64, 1), (4, 2), (4, 3), (64, 3)] {
        let buf = AlignedBuf::zeroed(kib * KIB);
        for batched in [false, true] {
            let mut at = 0;
            let took = seconds(&mut || {
                for _ in 0..SYNCS {
                    if batched {
                        let write = |d| DeviceOp::new(d, OpKind::Write(at, &buf));
                        batch(devices, &mut (0..mirrors).map(write).collect::<Vec<_>>())?;
                        let flush = |d| DeviceOp::new(d, OpKind::Flush);
                        batch(devices, &mut (0..mirrors).map(flush).collect::<Vec<_>>())?;
                    } else {
                        devices[..mirrors].iter().try_for_each(|d| d.write(at, &buf))?;
                        devices[..mirrors].iter().try_for_each(|d| d.flush())?;
                    }
                    at = (at + buf.len() as u64) % size as u64;
                }
                Ok(())
            })?;
            let us = took / SYNCS as f64 * 1e6;
            let way = if batched { "batch" } else { "plain" };
            println!("sync of {kib:2} KiB to {mirrors} devices, {way}: {us:6.1} us");
        }
    }
    Ok(())
}

fn main() -> Result<(), Failure> {
    const MIRRORS: usize = 3;
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("usage: rates PATH [MIB]")?;
    let size = args.next().map_or(Ok(256), |n| n.parse::<usize>())?.next_multiple_of(16) * MIB;
    let paths: Vec<String> = (0..MIRRORS).map(|n| format!("{path}.{n}")).collect();
    let mut devices: Vec<Arc<dyn Device>> = Vec::new();
    for path in &paths {
        let device = FileDevice::create(Path::new(path), size as u64)?;
        println!("{path}: {} MiB, direct {}", size / MIB, device.is_direct());
        let zeros = AlignedBuf::zeroed(16 * MIB);
        (0..size / zeros.len()).try_for_each(|n| device.write((n * zeros.len()) as u64, &zeros))?;
        devices.push(Arc::new(device));
    }
    let outcome = syncs(&devices, size)
        .and_then(|()| random_reads(&devices, size))
        .and_then(|()| sequential(&devices, size));
    paths.iter().try_for_each(std::fs::remove_file)?;
    outcome
}
