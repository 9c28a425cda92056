//! The contract of a device: one suite for real and simulated ones.

use std::sync::Arc;

use warpfire_env::{AlignedBuf, Device, DeviceError, DeviceOp, OpKind, run_batch};
use warpfire_units::BLOCK_BYTES;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// The least size of a device under test: two zones, or sixteen blocks.
pub const CONTRACT_SIZE_BYTES_MIN: u64 = 2 << 20;

/// Runs the whole suite. `make` returns a new blank device each time, at least [`CONTRACT_SIZE_BYTES_MIN`]
/// long, with zones, if it has any, of at least a mebibyte.
///
/// # Panics
/// At the first breach of the contract.
pub fn check_device(make: &dyn Fn() -> Arc<dyn Device>) {
    reads_back_written_bytes(&*make());
    accepts_buffers_of_any_alignment(&*make());
    refuses_misaligned_and_outside_ranges(&*make());
    takes_a_range_again_after_a_reset(&*make());
    reports_write_pointers_of_zones_only(&*make());
    runs_batches(&make());
    a_batch_returns_a_result_for_each_operation(&make());
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i / 7 % 251) as u8 ^ seed).collect()
}

fn aligned(bytes: &[u8]) -> AlignedBuf {
    let mut buf = AlignedBuf::zeroed(bytes.len());
    buf[..bytes.len()].copy_from_slice(bytes);
    buf
}

/// Bytes that the device takes front to back: a zone, or all of it.
fn run_bytes(device: &dyn Device) -> u64 {
    device.info().zones.map_or(device.info().size_bytes, |z| z.zone_bytes)
}

fn reads_back_written_bytes(device: &dyn Device) {
    let mut offset = 0;
    for (nth, blocks) in [1usize, 3, 16, 130].into_iter().enumerate() {
        let bytes = pattern(blocks * BLOCK_BYTES, nth as u8);
        device.write(offset, &aligned(&bytes)).expect("a write in range succeeds");
        let mut back = AlignedBuf::zeroed(bytes.len());
        device.read(offset, &mut back).expect("a read in range succeeds");
        assert_eq!(&back[..], &bytes[..], "{blocks} blocks at {offset}");
        device.flush().expect("a flush succeeds");
        device.read(offset, &mut back).expect("a read after a flush succeeds");
        assert_eq!(&back[..], &bytes[..], "{blocks} blocks at {offset} after a flush");
        offset += bytes.len() as u64;
    }
}

fn accepts_buffers_of_any_alignment(device: &dyn Device) {
    let bytes = pattern(3 * BLOCK_BYTES + 1, 9);
    device.write(0, &bytes[1..]).expect("an unaligned buffer is copied");
    let mut back = vec![0; 2 * BLOCK_BYTES + 3];
    device.read(BLOCK, &mut back[3..]).expect("an unaligned buffer is filled");
    assert_eq!(&back[3..], &bytes[1 + BLOCK_BYTES..]);
}

fn refuses_misaligned_and_outside_ranges(device: &dyn Device) {
    let size = device.info().size_bytes;
    assert!(size.is_multiple_of(BLOCK), "a device is whole blocks");
    let mut buf = AlignedBuf::zeroed(2 * BLOCK_BYTES);
    for (offset, len) in [
        (1, BLOCK_BYTES),
        (0, BLOCK_BYTES - 1),
        (size, BLOCK_BYTES),
        (size - BLOCK, 2 * BLOCK_BYTES),
        (u64::MAX - BLOCK + 1, BLOCK_BYTES),
    ] {
        let invalid =
            |r: Result<(), DeviceError>| assert!(matches!(r, Err(DeviceError::Invalid { .. })), "{r:?}");
        invalid(device.read(offset, &mut buf[..len]));
        invalid(device.write(offset, &buf[..len]));
        invalid(device.discard(offset, len as u64));
        invalid(device.reset_zone(offset, len as u64));
    }
}

fn takes_a_range_again_after_a_reset(device: &dyn Device) {
    let run = run_bytes(device);
    let first = aligned(&pattern(2 * BLOCK_BYTES, 1));
    let second = aligned(&pattern(2 * BLOCK_BYTES, 2));
    device.write(0, &first).expect("an empty zone takes a write at its start");
    device.discard(0, BLOCK).expect("a discard succeeds or is ignored");
    device.reset_zone(0, run).expect("a reset succeeds");
    device.write(0, &second).expect("a zone that was reset takes a write at its start");
    let mut back = AlignedBuf::zeroed(second.len());
    device.read(0, &mut back).expect("a read succeeds");
    assert_eq!(&back[..], &second[..]);
}

fn reports_write_pointers_of_zones_only(device: &dyn Device) {
    device.write(0, &AlignedBuf::zeroed(3 * BLOCK_BYTES)).expect("a write succeeds");
    let report = device.zone_report(0).expect("a report succeeds");
    match device.info().zones {
        None => assert_eq!(report, None),
        Some(zones) => {
            assert_eq!(report.expect("zones are reported").written_bytes, 3 * BLOCK);
            let next = device.zone_report(zones.zone_bytes).expect("a report succeeds");
            assert_eq!(next.expect("zones are reported").written_bytes, 0);
            let away = device.write(BLOCK, &AlignedBuf::zeroed(BLOCK_BYTES));
            assert!(matches!(away, Err(DeviceError::Zone { .. })), "{away:?}");
        }
    }
}

fn runs_batches(device: &Arc<dyn Device>) {
    let devices = [device.clone()];
    let written: Vec<AlignedBuf> =
        [1usize, 64, 100, 1].iter().map(|&n| aligned(&pattern(n * BLOCK_BYTES, n as u8))).collect();
    let mut offsets = Vec::new();
    let mut end = 0;
    for buf in &written {
        offsets.push(end);
        end += buf.len() as u64;
    }
    // A zoned device takes one write at a time, so its batches are of one write.
    let at_once = if device.info().zones.is_some() { 1 } else { written.len() };
    let all: Vec<(u64, &AlignedBuf)> = offsets.iter().copied().zip(&written).collect();
    for some in all.chunks(at_once) {
        let mut ops: Vec<DeviceOp<'_>> =
            some.iter().map(|(at, buf)| DeviceOp::new(0, OpKind::Write(*at, buf))).collect();
        run_batch(&devices, &mut ops);
        for op in &ops {
            assert_eq!(op.result, Ok(()));
        }
    }
    let mut flush = [DeviceOp::new(0, OpKind::Flush)];
    run_batch(&devices, &mut flush);
    assert_eq!(flush[0].result, Ok(()));

    let mut back: Vec<AlignedBuf> = written.iter().map(|b| AlignedBuf::zeroed(b.len())).collect();
    let mut unaligned = vec![0; BLOCK_BYTES + 1];
    let mut ops: Vec<DeviceOp<'_>> = offsets
        .iter()
        .zip(&mut back)
        .map(|(at, buf)| DeviceOp::new(0, OpKind::Read(*at, buf)))
        .chain([DeviceOp::new(0, OpKind::Read(0, &mut unaligned[1..]))])
        .collect();
    run_batch(&devices, &mut ops);
    assert!(ops.iter().all(|op| op.result.is_ok()), "{ops:?}");
    for (back, written) in back.iter().zip(&written) {
        assert_eq!(&back[..], &written[..]);
    }
    assert_eq!(&unaligned[1..], &written[0][..]);
}

fn a_batch_returns_a_result_for_each_operation(device: &Arc<dyn Device>) {
    let devices = [device.clone()];
    let size = device.info().size_bytes;
    let mut inside = AlignedBuf::zeroed(BLOCK_BYTES);
    let mut outside = AlignedBuf::zeroed(BLOCK_BYTES);
    let mut ops = [
        DeviceOp::new(0, OpKind::Read(0, &mut inside)),
        DeviceOp::new(0, OpKind::Read(size, &mut outside)),
        DeviceOp::new(0, OpKind::Flush),
    ];
    run_batch(&devices, &mut ops);
    assert_eq!(ops[0].result, Ok(()));
    assert!(matches!(ops[1].result, Err(DeviceError::Invalid { .. })), "{:?}", ops[1].result);
    assert_eq!(ops[2].result, Ok(()));
    run_batch(&devices, &mut []);
}
