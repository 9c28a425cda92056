//! Batches: many device operations at once.
//!
//! A *piece* is a part of an operation that is one request to the kernel's ring. A piece *falls short* if the
//! kernel did not complete it. A *limited* operation has a `TimeLimit`; it is *late* once the limit is over.
//!
//! 1. `run_batch` returns when every operation has ended or is late. After it the kernel touches no buffer of
//!    an operation that ended, and writes to no buffer of one that is late: a limited read in the ring goes
//!    to memory of the ring's own, and from there to its buffer.
//! 2. The result of an operation is the failure of its first piece that failed, or `Ok`.
//! 3. Operations that the ring cannot take (a device without a descriptor, an unaligned buffer, a machine
//!    without io_uring) use the device's own calls, with the same results. Few devices bound these in time.
//! 4. A batch stops waiting for at most as many devices as its limits allow (`TimeLimit::devices_max`).
//!    Those that are late in the ring and beside it count together. A device that another thread works for is
//!    waited for.
//! 5. Every operation of a batch runs once, also where no thread can be made: then this thread does more.
//!
//! ```text
//!   operation ──split──▶ pieces ──Ring::run──▶ done
//!       │                           ├── short or failed ──settle──▶ done by the device's call, or failed
//!       │                           └── late ──▶ failed; the request waits in `abandoned` for its answer
//!       └── not for the ring ──run_alone──▶ done or failed
//! ```

mod abandoned;
mod ring;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::io::Errno;
use warpfire_units::BLOCK_BYTES;

use crate::buf::LendableBytes;
use crate::device::{Device, DeviceError};
use abandoned::AbandonedRequest;
pub use abandoned::unanswered;
use ring::{PieceRequest, Ring, RingPiece, Shortfall};

/// Most bytes in a piece. A longer read or write is split into pieces of this size, which are in flight
/// together. Larger pieces gain nothing, because the kernel splits them itself. Smaller pieces cost requests;
/// on a sparse file each of them also locks the filesystem's allocator (with 256 KiB, `examples/rates.rs`
/// fills a sparse file a quarter slower).
pub const PIECE_BYTES_MAX: usize = 1024 * 1024;

/// Bytes of a write or read for which another thread pays.
const BESIDE_BYTES_MIN: usize = 64 << 10;

thread_local! {
    static WAITS_IN_RINGS: Cell<bool> = const { Cell::new(false) };
}

/// From now on this thread uses a ring for single operations too. A plain call sleeps uninterruptibly until
/// the device answers, so the kernel can do nothing on behalf of the thread until then; the wait of a ring
/// can be interrupted.
pub fn wait_in_rings() {
    WAITS_IN_RINGS.set(true);
}

/// The action of one operation. Buffers should be aligned to 4096 bytes (`AlignedBuf`); an unaligned buffer
/// costs a copy.
#[derive(Debug)]
pub enum OpKind<'a> {
    /// Fill the buffer from the offset.
    Read(u64, &'a mut [u8]),
    /// Write the buffer at the offset.
    Write(u64, &'a [u8]),
    /// Flush the device.
    Flush,
}

/// How long a batch waits for an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimeLimit {
    /// The time after which the operation is late.
    pub wait_max: Duration,
    /// For how many devices a batch may stop waiting. If more of them do not answer, it waits for all: a
    /// machine that stalls as a whole loses no device.
    pub devices_max: usize,
}

/// One operation of a batch, on one device of a set, with its result.
#[derive(Debug)]
pub struct DeviceOp<'a> {
    /// Index into the set of devices that the batch runs over.
    pub device: usize,
    kind: OpKind<'a>,
    /// How long the batch waits for it; `None`: until it ends. A write with a limit comes from
    /// `LendableBytes`, and keeps both for ever: nothing outside changes `kind` or `limit`.
    limit: Option<TimeLimit>,
    /// The result; `Ok(())` until the batch has run.
    pub result: Result<(), DeviceError>,
}

impl<'a> DeviceOp<'a> {
    /// An operation that has not run yet.
    #[must_use]
    pub fn new(device: usize, kind: OpKind<'a>) -> Self {
        DeviceOp { device, kind, limit: None, result: Ok(()) }
    }

    /// A write that has not run yet, with a time limit. Its buffer keeps the memory for a device that is
    /// late; the owner looks at `AlignedBuf::is_lent` before it changes the bytes.
    #[must_use]
    pub fn write_within(device: usize, at: u64, bytes: LendableBytes<'a>, limit: Option<TimeLimit>) -> Self {
        DeviceOp { limit, ..DeviceOp::new(device, OpKind::Write(at, bytes.bytes())) }
    }

    /// The same operation with a time limit.
    ///
    /// # Panics
    /// If it is a write: `write_within` makes one.
    #[must_use]
    pub fn within(mut self, limit: Option<TimeLimit>) -> Self {
        assert!(!matches!(self.kind, OpKind::Write(..)), "the memory of a limited write can be lent");
        self.limit = limit;
        self
    }

    /// The action.
    #[must_use]
    pub fn kind(&self) -> &OpKind<'a> {
        &self.kind
    }

    fn name(&self) -> &'static str {
        match self.kind {
            OpKind::Read(..) => "read",
            OpKind::Write(..) => "write",
            OpKind::Flush => "flush",
        }
    }

    /// Whether it takes so long that another thread for it pays.
    fn is_long(&self) -> bool {
        match &self.kind {
            OpKind::Read(_, buf) => buf.len() >= BESIDE_BYTES_MIN,
            OpKind::Write(_, buf) => buf.len() >= BESIDE_BYTES_MIN,
            OpKind::Flush => true,
        }
    }

    fn late(&self, device: &dyn Device, limit: TimeLimit) -> DeviceError {
        let device = device.info().name.clone();
        DeviceError::Late { device, op: self.name(), limit: limit.wait_max }
    }

    /// `late`: the devices that this batch does not wait for any more.
    fn run_alone(&mut self, device: &dyn Device, late: &mut Vec<usize>) {
        if let Some(limit) = self.limit
            && late.contains(&self.device)
        {
            self.result = Err(self.late(device, limit));
            return;
        }
        let Some(limit) = self.limit.filter(|limit| late.len() < limit.devices_max) else {
            return self.run_unlimited(device);
        };
        self.result = device.run_within(&mut self.kind, limit.wait_max);
        if matches!(self.result, Err(DeviceError::Late { .. })) {
            late.push(self.device);
        }
    }

    fn run_unlimited(&mut self, device: &dyn Device) {
        self.result = match &mut self.kind {
            OpKind::Read(at, buf) => device.read(*at, buf),
            OpKind::Write(at, buf) => device.write(*at, buf),
            OpKind::Flush => device.flush(),
        };
    }

    /// The length of its read, if the ring reads it into scratch memory.
    fn scratch_len(&self) -> usize {
        match (&self.kind, self.limit) {
            (OpKind::Read(_, buf), Some(_)) => buf.len(),
            _ => 0,
        }
    }

    /// The result of a piece that fell short in the ring. If the piece may still succeed, the device's own
    /// call does it again.
    fn settle(
        &mut self,
        request: &PieceRequest,
        shortfall: Shortfall,
        device: &dyn Device,
    ) -> Result<(), DeviceError> {
        if let (Shortfall::Late, Some(limit)) = (shortfall, self.limit) {
            return Err(self.late(device, limit));
        }
        // These codes mean that the ring could not do the piece now, or not in this form. All others are
        // failures of the device.
        let verdict = |op, offset_bytes, len: usize| match shortfall {
            Shortfall::Short
            | Shortfall::Late
            | Shortfall::Failed(Errno::AGAIN | Errno::INTR | Errno::INVAL) => Ok(()),
            Shortfall::Failed(errno) => {
                Err(DeviceError::from_errno(device.info(), op, offset_bytes, len as u64, errno))
            }
        };
        match (&mut self.kind, request) {
            (OpKind::Read(at, buf), PieceRequest::Read { offset_bytes, len, .. }) => {
                verdict("read", *offset_bytes, *len)?;
                let skip = within(*offset_bytes - *at);
                device.read(*offset_bytes, &mut buf[skip..skip + len])
            }
            (OpKind::Write(at, buf), PieceRequest::Write { offset_bytes, len, .. }) => {
                verdict("write", *offset_bytes, *len)?;
                let skip = within(*offset_bytes - *at);
                device.write(*offset_bytes, &buf[skip..skip + len])
            }
            // A failed flush is never repeated: the kernel reports a lost write once, and a second flush
            // would succeed although writes were lost.
            (OpKind::Flush, PieceRequest::Flush) => {
                let Shortfall::Failed(errno) = shortfall else { return Ok(()) };
                Err(DeviceError::from_errno(device.info(), "flush", 0, 0, errno))
            }
            (kind, request) => unreachable!("{request:?} is not a piece of {kind:?}"),
        }
    }

    /// Appends the operation's pieces to `pieces` if the ring can take them. Returns whether it did. A
    /// limited read goes to the front of `scratch`.
    fn split(
        &mut self,
        op: usize,
        device: &dyn Device,
        scratch: &mut *mut u8,
        pieces: &mut Vec<RingPiece>,
    ) -> bool {
        let limit = self.limit;
        let scratch_len = self.scratch_len();
        let Some(fd) = device.raw_fd() else { return false };
        let (at, start, len, read) = match &mut self.kind {
            OpKind::Read(at, buf) => (*at, buf.as_mut_ptr(), buf.len(), true),
            OpKind::Write(at, buf) => (*at, buf.as_ptr().cast_mut(), buf.len(), false),
            OpKind::Flush => {
                pieces.push(RingPiece::new(op, fd, PieceRequest::Flush, limit));
                return true;
            }
        };
        // The device's own call handles these: it copies an unaligned buffer, and refuses a bad range.
        let aligned = start.addr().is_multiple_of(BLOCK_BYTES);
        if !aligned || len == 0 || device.info().check_range(at, len as u64).is_err() {
            return false;
        }
        // Unlike its buffer, scratch memory can stay with the ring if the device does not answer.
        let start = if scratch_len > 0 { *scratch } else { start };
        *scratch = scratch.wrapping_add(scratch_len);
        pieces.extend((0..len).step_by(PIECE_BYTES_MAX).map(|skip| {
            let len = (len - skip).min(PIECE_BYTES_MAX);
            let (offset_bytes, start) = (at + skip as u64, start.wrapping_add(skip));
            let request = if read {
                PieceRequest::Read { offset_bytes, start, len }
            } else {
                PieceRequest::Write { offset_bytes, start, len }
            };
            RingPiece::new(op, fd, request, limit)
        }));
        true
    }
}

/// Runs a batch over a set of devices and returns when every operation has ended. Each operation holds its
/// own result. The order within a batch is undefined, so a flush belongs in a later batch than its writes.
/// Only a device without a descriptor, such as a zoned one, does its operations one after the other in the
/// order of the batch. Several zoned drives work at the same time, each on a thread of its own.
///
/// # Panics
/// If an operation names a device outside the set.
#[expect(unsafe_code, reason = "it promises the ring that the buffers and descriptors outlive the call")]
pub fn run_batch(devices: &[Arc<dyn Device>], ops: &mut [DeviceOp<'_>]) {
    if !worth_a_ring(devices, ops) {
        return run_each(devices, ops);
    }
    let Some(mut ring) = Ring::check_out() else { return run_each(devices, ops) };
    let mut pieces = Vec::with_capacity(ops.len());
    let mut alone = Vec::new();
    let mut scratch = ring.scratch(ops.iter().map(DeviceOp::scratch_len).sum());
    for (n, op) in ops.iter_mut().enumerate() {
        op.result = Ok(());
        if !op.split(n, &*devices[op.device], &mut scratch, &mut pieces) {
            alone.push(n);
        }
    }
    let mut shortfalls = Vec::new();
    // Operations that the ring cannot take run on this thread, while the kernel works on the pieces.
    let run_the_rest = || {
        let ops = ops.iter_mut().enumerate().filter(|(n, _)| alone.binary_search(n).is_ok());
        run_beside(devices, ops.map(|(_, op)| op).collect())
    };
    let while_waiting = (!alone.is_empty()).then_some(run_the_rest);
    // SAFETY: `ops` borrows the buffers and `devices` holds the descriptors until this function returns; late
    // requests and their memory go to `abandoned`. Each buffer belongs either to `pieces` or, through
    // `alone`, to `run_the_rest`.
    unsafe { ring.run(&mut pieces, while_waiting, |nth, shortfall| shortfalls.push((nth, shortfall))) };
    for piece in pieces.iter().filter(|piece| piece.is_done() && piece.limit.is_some()) {
        let PieceRequest::Read { offset_bytes, start, len } = piece.request else { continue };
        let OpKind::Read(at, buf) = &mut ops[piece.op].kind else { unreachable!("pieces are of their op") };
        let skip = within(offset_bytes - *at);
        // SAFETY: a limited piece that is done was read into scratch memory, which the ring still owns, and
        // the kernel has ended its request.
        let read = unsafe { std::slice::from_raw_parts(start, len) };
        buf[skip..skip + len].copy_from_slice(read);
    }
    ring.abandon_late(&pieces, |piece| AbandonedRequest {
        user_data: piece.user_data,
        device: Arc::clone(&devices[ops[piece.op].device]),
        written_from: piece.written_from(),
    });
    // In the order of the pieces, so that an operation's result is its first failure in any order of
    // completion.
    shortfalls.sort_unstable_by_key(|&(nth, _)| nth);
    for (nth, shortfall) in shortfalls {
        let op = &mut ops[pieces[nth].op];
        if op.result.is_ok() {
            op.result = op.settle(&pieces[nth].request, shortfall, &*devices[op.device]);
        }
    }
}

fn within(skip_bytes: u64) -> usize {
    usize::try_from(skip_bytes).expect("a place in a buffer fits memory")
}

/// Whether a ring pays: a single small operation is cheaper as a plain call, which has no time limit and
/// cannot be interrupted.
fn worth_a_ring(devices: &[Arc<dyn Device>], ops: &[DeviceOp<'_>]) -> bool {
    match ops {
        [] => false,
        [one] if one.limit.is_some() || WAITS_IN_RINGS.get() => devices[one.device].raw_fd().is_some(),
        [one] => match &one.kind {
            OpKind::Read(_, buf) => buf.len() > PIECE_BYTES_MAX,
            OpKind::Write(_, buf) => buf.len() > PIECE_BYTES_MAX,
            OpKind::Flush => false,
        },
        _ => true,
    }
}

fn run_each(devices: &[Arc<dyn Device>], ops: &mut [DeviceOp<'_>]) {
    if ops.len() > 1 && ops.iter().any(|op| devices[op.device].works_beside_others()) {
        run_beside(devices, ops.iter_mut().collect());
        return;
    }
    let mut late = Vec::new();
    for op in ops {
        op.run_alone(&*devices[op.device], &mut late);
    }
}

/// Operations of one device, until a thread takes them.
type Untaken<'a, 'b> = Mutex<Option<Vec<&'a mut DeviceOp<'b>>>>;

/// Does operations by the devices' own calls: those of each device in their order, and those of devices that
/// can work beside others at the same time. Returns how many devices are late.
fn run_beside<'b>(devices: &[Arc<dyn Device>], ops: Vec<&mut DeviceOp<'b>>) -> usize {
    let is_beside = |op: &DeviceOp<'_>| devices[op.device].works_beside_others() && op.is_long();
    let busy: BTreeSet<usize> = ops.iter().filter(|op| is_beside(op)).map(|op| op.device).collect();
    let mut beside: BTreeMap<usize, Vec<&mut DeviceOp<'b>>> = BTreeMap::new();
    let mut here = Vec::new();
    for op in ops {
        if busy.contains(&op.device) { beside.entry(op.device).or_default().push(op) } else { here.push(op) }
    }
    // This thread does those of one device, so that one device needs no other thread.
    here.extend(beside.pop_first().into_iter().flat_map(|(_, ops)| ops));
    let mut late = Vec::new();
    let run_here = || {
        for op in here {
            op.run_alone(&*devices[op.device], &mut late);
        }
    };
    if beside.is_empty() {
        run_here();
        return late.len();
    }
    let untaken: Vec<Untaken<'_, 'b>> = beside.into_values().map(|ops| Mutex::new(Some(ops))).collect();
    let run_untaken = |untaken: &Untaken<'_, 'b>| {
        let taken = untaken.lock().take();
        for op in taken.into_iter().flatten() {
            op.run_unlimited(&*devices[op.device]);
        }
    };
    std::thread::scope(|scope| {
        for ops in &untaken {
            // Without the thread, this one takes them below.
            let made = std::thread::Builder::new().spawn_scoped(scope, || run_untaken(ops));
            if made.is_err() {
                break;
            }
        }
        run_here();
        untaken.iter().for_each(run_untaken);
    });
    late.len()
}
