//! What a device gives: plain calls beside batches.
//!
//! `cargo run --release -p warpfire-env --example rates -- PATH [MIB]`. PATH is created and removed.

use std::path::Path;
use std::sync::Arc;

use warpfire_env::{
    AlignedBuf, Clock, Device, DeviceOp, FileDevice, OpKind, Random, SystemClock, SystemRandom,
};
use warpfire_env::{PIECE_BYTES_MAX, run_batch};

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

fn sequential(devices: &[Arc<dyn Device>], size: usize) -> Result<(), Failure> {
    let device = &devices[0];
    for round in ["fill", "overwrite"] {
        for len in [64 * KIB, PIECE_BYTES_MAX, MIB, 4 * MIB, 16 * MIB] {
            if round == "fill" {
                device.discard(0, size as u64)?;
            }
            let buf = AlignedBuf::zeroed(len);
            let at = |n: usize| (n * len) as u64;
            let plain = seconds(&mut || {
                (0..size / len).try_for_each(|n| device.write(at(n), &buf))?;
                Ok(device.flush()?)
            })?;
            if round == "fill" {
                device.discard(0, size as u64)?;
            }
            let batched = seconds(&mut || {
                for n in 0..size / len {
                    batch(devices, &mut [DeviceOp::new(0, OpKind::Write(at(n), &buf))])?;
                }
                Ok(device.flush()?)
            })?;
            let rate = |s: f64| size as f64 / s / 1e9;
            println!(
                "{round:9} {:6} KiB writes  plain {:5.2} GB/s  batch {:5.2} GB/s",
                len / KIB,
                rate(plain),
                rate(batched)
            );
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

fn syncs(devices: &[Arc<dyn Device>]) -> Result<(), Failure> {
    const SYNCS: usize = 2_000;
    for kib in [4, 64] {
        let buf = AlignedBuf::zeroed(kib * KIB);
        for (name, writes) in [("one write", 1usize), ("three writes", 3)] {
            let mut at = 0;
            let took = seconds(&mut || {
                for _ in 0..SYNCS {
                    let mut ops: Vec<_> = (0..writes)
                        .map(|n| DeviceOp::new(0, OpKind::Write(at + (n * buf.len()) as u64, &buf)))
                        .collect();
                    batch(devices, &mut ops)?;
                    batch(devices, &mut [DeviceOp::new(0, OpKind::Flush)])?;
                    at += (writes * buf.len()) as u64;
                }
                Ok(())
            })?;
            println!("{name} of {kib} KiB and a flush: {:.1} us", took / SYNCS as f64 * 1e6);
        }
    }
    Ok(())
}

fn main() -> Result<(), Failure> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("usage: rates PATH [MIB]")?;
    let size = args.next().map_or(Ok(1024), |n| n.parse::<usize>())? * MIB;
    let device = FileDevice::create(Path::new(&path), size as u64)?;
    println!("{path}: {} MiB, direct {}", size / MIB, device.is_direct());
    let devices: [Arc<dyn Device>; 1] = [Arc::new(device)];
    let outcome =
        sequential(&devices, size).and_then(|()| random_reads(&devices, size)).and_then(|()| syncs(&devices));
    std::fs::remove_file(&path)?;
    outcome
}
