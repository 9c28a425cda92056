//! Batches over several devices at once.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use warpfire_env::{
    AlignedBuf, Device, DeviceError, DeviceInfo, DeviceOp, FileDevice, MemDevice, OpKind, PIECE_BYTES_MAX,
    run_batch,
};

const BLOCK: usize = 4096;

struct Set {
    _dir: tempfile::TempDir,
    devices: Vec<Arc<dyn Device>>,
}

/// Two files and a device in memory: the ring does a part of each batch, and the device's own calls the rest.
fn mixed(size_bytes: u64) -> Set {
    let dir = tempfile::tempdir().expect("the test has a directory for temporary files");
    let file = |name: &str| -> Arc<dyn Device> {
        Arc::new(FileDevice::create(&dir.path().join(name), size_bytes).expect("a new file can be made"))
    };
    let devices = vec![file("a"), Arc::new(MemDevice::new("m", size_bytes)), file("b")];
    Set { devices, _dir: dir }
}

fn filled(len: usize, seed: usize) -> AlignedBuf {
    let mut buf = AlignedBuf::zeroed(len);
    for (n, chunk) in buf.chunks_exact_mut(8).enumerate() {
        chunk.copy_from_slice(&(n.wrapping_mul(31) + seed).to_le_bytes());
    }
    buf
}

fn write_and_read_back(devices: &[Arc<dyn Device>], at: u64, seed: usize) {
    let lens = [BLOCK, 3 * PIECE_BYTES_MAX + BLOCK, PIECE_BYTES_MAX, 3 * BLOCK];
    let bufs: Vec<AlignedBuf> = lens.iter().map(|&len| filled(len, seed + len)).collect();
    let places: Vec<u64> = lens
        .iter()
        .scan(at, |end, &len| {
            *end += len as u64;
            Some(*end - len as u64)
        })
        .collect();
    let mut ops = Vec::new();
    for device in 0..devices.len() {
        ops.extend(bufs.iter().zip(&places).map(|(b, &at)| DeviceOp::new(device, OpKind::Write(at, b))));
    }
    run_batch(devices, &mut ops);
    assert!(ops.iter().all(|op| op.result == Ok(())));
    let mut flushes: Vec<_> = (0..devices.len()).map(|d| DeviceOp::new(d, OpKind::Flush)).collect();
    run_batch(devices, &mut flushes);
    assert!(flushes.iter().all(|op| op.result == Ok(())));

    for device in 0..devices.len() {
        let mut back: Vec<AlignedBuf> = lens.iter().map(|&len| AlignedBuf::zeroed(len)).collect();
        let mut ops: Vec<_> =
            back.iter_mut().zip(&places).map(|(b, &at)| DeviceOp::new(device, OpKind::Read(at, b))).collect();
        run_batch(devices, &mut ops);
        assert!(ops.iter().all(|op| op.result == Ok(())));
        for (back, buf) in back.iter().zip(&bufs) {
            assert!(back[..] == buf[..], "device {device} reads as written");
        }
    }
}

#[test]
fn a_batch_spans_files_and_memory_and_splits_long_operations() {
    write_and_read_back(&mixed(8 << 20).devices, 0, 1);
}

#[test]
fn more_threads_than_rings_run_batches_at_once() {
    const THREADS: usize = 24;
    const SHARE: u64 = 8 << 20;
    let set = mixed(THREADS as u64 * SHARE);
    std::thread::scope(|scope| {
        for n in 0..THREADS {
            let devices = &set.devices;
            scope.spawn(move || {
                for round in 0..2 {
                    write_and_read_back(devices, n as u64 * SHARE, n * 1000 + round);
                }
            });
        }
    });
}

#[test]
fn one_bad_operation_leaves_the_others_alone() {
    let set = mixed(1 << 20);
    let good = filled(BLOCK, 3);
    let mut outside = AlignedBuf::zeroed(2 * BLOCK);
    let mut ops = [
        DeviceOp::new(0, OpKind::Write(0, &good)),
        DeviceOp::new(2, OpKind::Read((1 << 20) - BLOCK as u64, &mut outside)),
        DeviceOp::new(2, OpKind::Write(8192, &good)),
    ];
    run_batch(&set.devices, &mut ops);
    assert_eq!((&ops[0].result, &ops[2].result), (&Ok(()), &Ok(())));
    assert!(matches!(ops[1].result, Err(DeviceError::Invalid { .. })));
}

#[test]
fn a_short_read_in_the_ring_is_an_error() {
    let set = mixed(8 << 20);
    let name = set.devices[0].info().name.clone();
    std::fs::OpenOptions::new().write(true).open(&name).unwrap().set_len(4 << 20).unwrap();
    let (mut inside, mut past) = (AlignedBuf::zeroed(BLOCK), AlignedBuf::zeroed(3 * PIECE_BYTES_MAX));
    let mut ops = [
        DeviceOp::new(0, OpKind::Read(0, &mut inside)),
        DeviceOp::new(0, OpKind::Read((4 << 20) - PIECE_BYTES_MAX as u64 - 4096, &mut past)),
    ];
    run_batch(&set.devices, &mut ops);
    assert_eq!(ops[0].result, Ok(()));
    assert!(matches!(&ops[1].result, Err(DeviceError::Io { device, op: "read", .. }) if *device == name));
}

#[test]
fn many_more_pieces_than_a_ring_holds() {
    let set = mixed(64 << 20);
    let block = filled(BLOCK, 1);
    let mut ops: Vec<_> =
        (0..1000u64).map(|n| DeviceOp::new(0, OpKind::Write(n * 7 * BLOCK as u64, &block))).collect();
    run_batch(&set.devices, &mut ops);
    assert!(ops.iter().all(|op| op.result == Ok(())));
    let mut back = AlignedBuf::zeroed(BLOCK);
    set.devices[0].read(999 * 7 * BLOCK as u64, &mut back).unwrap();
    assert!(back[..] == block[..]);
}

const NO_PANIC: &str = "no thread panics with the lock";

/// Writes that wait for each other.
struct Meeting {
    expected: usize,
    arrived: Mutex<usize>,
    all: Condvar,
}

/// A drive without a descriptor, as a zoned one. Each of its long writes waits for those of the others.
struct SlowDrive {
    info: DeviceInfo,
    meeting: Arc<Meeting>,
    /// Where the writes began, in their order.
    writes: Mutex<Vec<u64>>,
}

impl Device for SlowDrive {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }
    fn read(&self, _: u64, _: &mut [u8]) -> Result<(), DeviceError> {
        Ok(())
    }
    fn write(&self, at: u64, buf: &[u8]) -> Result<(), DeviceError> {
        self.writes.lock().expect(NO_PANIC).push(at);
        if buf.len() > BLOCK {
            let mut arrived = self.meeting.arrived.lock().expect(NO_PANIC);
            *arrived += 1;
            self.meeting.all.notify_all();
            let wait = Duration::from_secs(60);
            let waits = |arrived: &mut usize| *arrived < self.meeting.expected;
            let (arrived, _) = self.meeting.all.wait_timeout_while(arrived, wait, waits).expect(NO_PANIC);
            assert_eq!(*arrived, self.meeting.expected, "the others write at the same time");
        }
        Ok(())
    }
    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }
    fn works_beside_others(&self) -> bool {
        true
    }
}

/// In the process that this starts, no thread can be made: none has the memory for its stack.
#[test]
fn without_threads_every_operation_of_every_drive_still_runs() {
    const IN_IT: &str = "WARPFIRE_TEST_WITHOUT_THREADS";
    if std::env::var_os(IN_IT).is_none() {
        let name = "without_threads_every_operation_of_every_drive_still_runs";
        let mut test = std::process::Command::new(std::env::current_exe().expect("the test is a program"));
        let test = test.args(["--exact", name, "--test-threads=1"]);
        let test = test.env(IN_IT, "1").env("RUST_MIN_STACK", (1_u64 << 47).to_string());
        let ended = test.output().expect("it is started");
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stdout));
        return;
    }
    assert!(std::thread::Builder::new().spawn(|| ()).is_err(), "a thread is made");
    let drive = |n: usize| SlowDrive {
        info: DeviceInfo { name: format!("drive {n}"), size_bytes: 1 << 20, zones: None },
        meeting: Arc::new(Meeting { expected: 1, arrived: Mutex::new(0), all: Condvar::new() }),
        writes: Mutex::default(),
    };
    let drives: Vec<Arc<SlowDrive>> = (0..4).map(|n| Arc::new(drive(n))).collect();
    let devices: Vec<Arc<dyn Device>> = drives.iter().map(|d| Arc::clone(d) as Arc<dyn Device>).collect();
    let long = filled(128 << 10, 2);
    let mut ops: Vec<_> = (0..4).map(|d| DeviceOp::new(d, OpKind::Write(0, &long))).collect();
    run_batch(&devices, &mut ops);
    assert!(ops.iter().all(|op| op.result == Ok(())));
    for drive in &drives {
        assert_eq!(*drive.writes.lock().expect(NO_PANIC), [0], "once");
    }
}

/// A zoned drive takes the writes to a zone one at a time and in order. Several drives work at once.
#[test]
fn drives_without_a_descriptor_work_at_the_same_time_and_each_in_order() {
    const DRIVES: usize = 5;
    let meeting = Meeting { expected: DRIVES, arrived: Mutex::new(0), all: Condvar::new() };
    let meeting = Arc::new(meeting);
    let drive = |n: usize| SlowDrive {
        info: DeviceInfo { name: format!("drive {n}"), size_bytes: 1 << 20, zones: None },
        meeting: Arc::clone(&meeting),
        writes: Mutex::default(),
    };
    let drives: Vec<Arc<SlowDrive>> = (0..DRIVES).map(|n| Arc::new(drive(n))).collect();
    let mut devices: Vec<Arc<dyn Device>> = drives.iter().map(|d| Arc::clone(d) as Arc<dyn Device>).collect();
    let mixed = mixed(1 << 20);
    devices.extend(mixed.devices.iter().cloned());
    let (short, long) = (filled(BLOCK, 1), filled(128 << 10, 2));
    let parts = [(0, &short), (4096, &long), (4096 + (128 << 10), &short)];
    let mut ops = Vec::new();
    for (at, buf) in parts {
        ops.extend((0..devices.len()).map(|d| DeviceOp::new(d, OpKind::Write(at, buf))));
    }
    run_batch(&devices, &mut ops);
    assert!(ops.iter().all(|op| op.result == Ok(())));
    for drive in &drives {
        assert_eq!(*drive.writes.lock().unwrap(), parts.map(|(at, _)| at));
    }
    for device in &mixed.devices {
        let mut back = AlignedBuf::zeroed(128 << 10);
        device.read(4096, &mut back).unwrap();
        assert!(back[..] == long[..]);
    }
}
