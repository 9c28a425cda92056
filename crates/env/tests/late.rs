//! Devices that do not answer: pipes without bytes to read, or without room to write.

use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::thread::park_timeout;
use std::time::Duration;

use warpfire_env::{
    AlignedBuf, Device, DeviceError, DeviceInfo, DeviceOp, MemDevice, OpKind, TimeLimit, run_batch,
    unanswered, wait_in_rings,
};

const BLOCK: usize = 4096;

/// Bytes that a pipe takes before a write to it waits.
const PIPE_BYTES: usize = 16 * BLOCK;

/// A device that answers when the other end of its pipe allows it, and only through the ring.
struct PipeDevice {
    info: DeviceInfo,
    fd: RawFd,
    /// Held, so that the descriptor stays open.
    _end: Box<dyn Send + Sync>,
}

impl PipeDevice {
    fn over(end: impl AsRawFd + Send + Sync + 'static) -> Arc<dyn Device> {
        let info = DeviceInfo { name: "pipe".to_owned(), size_bytes: 1 << 20, zones: None };
        Arc::new(PipeDevice { info, fd: end.as_raw_fd(), _end: Box::new(end) })
    }

    /// A device to read, and the end that makes it answer.
    fn silent_source() -> (Arc<dyn Device>, PipeWriter) {
        let (reader, writer) = pipe().expect("the system has pipes");
        (PipeDevice::over(reader), writer)
    }

    /// A device to write, and the end that makes it answer, behind `PIPE_BYTES` of other bytes.
    fn silent_sink() -> (Arc<dyn Device>, PipeReader) {
        let (reader, mut writer) = pipe().expect("the system has pipes");
        writer.write_all(&vec![0; PIPE_BYTES]).expect("a pipe takes so much");
        (PipeDevice::over(writer), reader)
    }
}

impl Device for PipeDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }
    fn read(&self, _: u64, _: &mut [u8]) -> Result<(), DeviceError> {
        unreachable!("the ring reads")
    }
    fn write(&self, _: u64, _: &[u8]) -> Result<(), DeviceError> {
        unreachable!("the ring writes")
    }
    fn flush(&self) -> Result<(), DeviceError> {
        unreachable!("a pipe is not flushed")
    }
    fn raw_fd(&self) -> Option<RawFd> {
        Some(self.fd)
    }
}

fn limit(devices_max: usize) -> Option<TimeLimit> {
    Some(TimeLimit { wait_max: Duration::from_millis(50), devices_max })
}

fn is_late(op: &DeviceOp<'_>) -> bool {
    matches!(&op.result, Err(DeviceError::Late { device, .. }) if device == "pipe")
}

fn wait_for_answers(device: &Arc<dyn Device>) {
    (0..1000).take_while(|_| unanswered(device) > 0).for_each(|_| park_timeout(Duration::from_millis(5)));
    assert_eq!(unanswered(device), 0);
}

#[test]
fn a_thread_that_waits_in_rings_makes_no_plain_calls() {
    let (source, mut answer) = PipeDevice::silent_source();
    answer.write_all(&[7; BLOCK]).expect("a pipe takes a block");
    let devices = [source];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            wait_in_rings();
            let mut block = AlignedBuf::zeroed(BLOCK);
            let mut ops = [DeviceOp::new(0, OpKind::Read(0, &mut block))];
            run_batch(&devices, &mut ops);
            assert_eq!(ops[0].result, Ok(()));
            assert!(block.iter().all(|byte| *byte == 7));
        });
    });
}

#[test]
fn a_read_without_an_answer_is_late_and_its_answer_touches_no_buffer() {
    let (silent, mut answer) = PipeDevice::silent_source();
    let memory: Arc<dyn Device> = Arc::new(MemDevice::new("memory", 1 << 20));
    let dir = tempfile::tempdir().expect("the test has a directory for temporary files");
    let file =
        warpfire_env::FileDevice::create(&dir.path().join("file"), 1 << 20).expect("a file can be made");
    let devices = [Arc::clone(&silent), memory, Arc::new(file)];
    devices[1].write(0, &[7; BLOCK]).expect("memory takes it");
    devices[2].write(0, &[8; BLOCK]).expect("the file takes it");
    let mut bufs: Vec<AlignedBuf> = (0..4).map(|_| AlignedBuf::zeroed(BLOCK)).collect();
    for devices_asked in [vec![0, 1, 2, 0], vec![0]] {
        let mut ops: Vec<DeviceOp<'_>> = devices_asked
            .iter()
            .zip(&mut bufs)
            .map(|(device, buf)| DeviceOp::new(*device, OpKind::Read(0, buf)).within(limit(1)))
            .collect();
        run_batch(&devices, &mut ops);
        let late: Vec<bool> = ops.iter().map(is_late).collect();
        assert_eq!(late, devices_asked.iter().map(|device| *device == 0).collect::<Vec<_>>());
        assert!(ops.iter().all(|op| is_late(op) || op.result.is_ok()));
    }
    assert_eq!((bufs[1][0], bufs[2][BLOCK - 1]), (7, 8));
    assert_eq!((unanswered(&silent), unanswered(&devices[2])), (3, 0));
    answer.write_all(&[9; 3 * BLOCK]).expect("the pipe takes it");
    wait_for_answers(&silent);
    assert!(bufs[0].iter().chain(&bufs[3][..]).all(|byte| *byte == 0), "the late answer went elsewhere");
    // The device answers again, also to a limited read.
    answer.write_all(&[6; BLOCK]).expect("the pipe takes it");
    let mut op = [DeviceOp::new(0, OpKind::Read(0, &mut bufs[0])).within(limit(1))];
    run_batch(&devices, &mut op);
    assert_eq!(op[0].result, Ok(()));
    assert!(bufs[0].iter().all(|byte| *byte == 6));
}

#[test]
fn a_late_write_keeps_its_bytes_until_the_device_takes_them() {
    let (silent, mut answer) = PipeDevice::silent_sink();
    let devices = [Arc::clone(&silent)];
    let mut buf = AlignedBuf::zeroed(BLOCK);
    buf.fill(5);
    let mut ops = [DeviceOp::write_within(0, 0, (&buf).into(), limit(1))];
    run_batch(&devices, &mut ops);
    assert!(is_late(&ops[0]), "{:?}", ops[0].result);
    assert!(buf.is_lent());
    drop(buf);
    // Were the memory free, one of these would be the same.
    let others: Vec<AlignedBuf> = (0..64)
        .map(|_| {
            let mut other = AlignedBuf::zeroed(BLOCK);
            other.fill(1);
            other
        })
        .collect();
    let mut taken = vec![1; PIPE_BYTES + BLOCK];
    answer.read_exact(&mut taken).expect("the pipe has so much");
    assert!(taken[..PIPE_BYTES].iter().all(|byte| *byte == 0) && taken[PIPE_BYTES..].iter().all(|b| *b == 5));
    wait_for_answers(&silent);
    drop(others);
}

#[test]
fn a_batch_waits_when_more_devices_are_silent_than_it_may_stop_waiting_for() {
    let (silent, mut answer) = PipeDevice::silent_source();
    let (other, mut other_answer) = PipeDevice::silent_source();
    let devices = [Arc::clone(&silent), other];
    let mut bufs = [AlignedBuf::zeroed(BLOCK), AlignedBuf::zeroed(BLOCK)];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut ops: Vec<DeviceOp<'_>> = (0..2)
                .zip(&mut bufs)
                .map(|(device, buf)| DeviceOp::new(device, OpKind::Read(0, buf)).within(limit(1)))
                .collect();
            run_batch(&devices, &mut ops);
            assert_eq!((is_late(&ops[0]), &ops[1].result), (true, &Ok(())));
        });
        park_timeout(Duration::from_millis(300));
        assert_eq!(unanswered(&silent), 0, "the batch still waits for both");
        other_answer.write_all(&[4; BLOCK]).expect("the pipe takes it");
    });
    assert_eq!((unanswered(&silent), bufs[1][0]), (1, 4));
    answer.write_all(&[4; BLOCK]).expect("the pipe takes it");
    wait_for_answers(&silent);
}

/// A device that bounds its own calls, has no descriptor, and does not answer.
struct BoundedDevice(DeviceInfo);

impl Device for BoundedDevice {
    fn info(&self) -> &DeviceInfo {
        &self.0
    }
    fn read(&self, _: u64, _: &mut [u8]) -> Result<(), DeviceError> {
        Ok(())
    }
    fn write(&self, _: u64, _: &[u8]) -> Result<(), DeviceError> {
        Ok(())
    }
    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }
    fn run_within(&self, _: &mut OpKind<'_>, limit: Duration) -> Result<(), DeviceError> {
        Err(DeviceError::Late { device: "pipe".to_owned(), op: "read", limit })
    }
}

#[test]
fn a_device_that_is_late_beside_the_ring_counts_among_those_that_are_late() {
    let (silent, mut answer) = PipeDevice::silent_source();
    let bounded = DeviceInfo { name: "bounded".to_owned(), size_bytes: 1 << 20, zones: None };
    let devices: [Arc<dyn Device>; 2] = [Arc::new(BoundedDevice(bounded)), Arc::clone(&silent)];
    let mut bufs = [AlignedBuf::zeroed(BLOCK), AlignedBuf::zeroed(BLOCK)];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut ops: Vec<DeviceOp<'_>> = (0..2)
                .zip(&mut bufs)
                .map(|(device, buf)| DeviceOp::new(device, OpKind::Read(0, buf)).within(limit(1)))
                .collect();
            run_batch(&devices, &mut ops);
            assert_eq!((is_late(&ops[0]), &ops[1].result), (true, &Ok(())));
        });
        park_timeout(Duration::from_millis(300));
        assert_eq!(unanswered(&silent), 0, "the batch waits for the other one");
        answer.write_all(&[4; BLOCK]).expect("the pipe takes it");
    });
    assert_eq!(bufs[1][0], 4);
}
