//! io_uring rings, shared by all threads of the process.
//!
//! 1. A ring is idle in `RINGS`, or owned by one `Ring`, or in `abandoned`. An idle ring has nothing in
//!    flight (assert in `drop`).
//! 2. A buffer that the kernel may touch outlives its request. `Ring::run` returns when only late pieces are
//!    in flight, and `abandon_late` takes these over with their memory. The process aborts if a `Ring` is
//!    dropped with a request in flight, as by a panic (`drop`).
//! 3. At most `RINGS_MAX` rings exist (assert in `check_out`), without those in `abandoned`. A caller without
//!    a ring makes its calls one by one: with so many batches under way the devices are busy.
//! 4. A late piece is limited, and pieces of at most `TimeLimit::devices_max` devices are late (`mark_late`).
//! 5. Without a limited piece nothing here reads a clock; with one, the clock is read once for each wait.
//!
//! A ring moves between threads, so it is not set up for a single issuer.

#![expect(unsafe_code, reason = "the kernel uses buffers by address until it reports that it is done")]

use std::ops::Range;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use io_uring::squeue::Entry;
use io_uring::{IoUring, opcode, types};
use parking_lot::Mutex;
use rustix::io::Errno;

use super::TimeLimit;
use super::abandoned::{self, AbandonedRequest};
use crate::buf::AlignedBuf;
use crate::clock::{Clock, SystemClock};

/// Most pieces in flight on one ring: enough for a write of 64 MiB, or for random reads that keep a fast
/// drive busy.
const RING_ENTRIES: u32 = 64;

/// Most rings in the process. Each takes about 10 KiB in the kernel.
const RINGS_MAX: usize = 16;

/// Most bytes of scratch memory that all idle rings keep. A batch that needs more gets memory of its own.
const SCRATCH_KEPT_MAX: usize = 64 << 20;

/// A part of an operation that is one request to the kernel.
#[derive(Debug)]
pub(super) struct RingPiece {
    /// Index of the operation in its batch.
    pub op: usize,
    pub fd: RawFd,
    pub request: PieceRequest,
    pub limit: Option<TimeLimit>,
    /// The number of the request: the piece's index.
    pub user_data: u64,
    progress: PieceProgress,
}

/// How far a piece is.
///
/// ```text
///   unsent ──▶ in flight ──▶ done ◀── an answer comes in time for other pieces ──┐
///     │            └── the limit is over ──────────────▶ late ───────────────────┘
///     └── its device is late ──▶ skipped
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PieceProgress {
    Unsent,
    InFlight,
    Late,
    Skipped,
    Done,
}

/// The action of one request.
#[derive(Debug)]
pub(super) enum PieceRequest {
    Read { offset_bytes: u64, start: *mut u8, len: usize },
    Write { offset_bytes: u64, start: *const u8, len: usize },
    Flush,
}

/// Why the kernel did not complete a piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Shortfall {
    /// The kernel moved fewer bytes than requested.
    Short,
    /// The kernel returned an error.
    Failed(Errno),
    /// The device has not answered in time, or was not asked because it owes another answer.
    Late,
}

impl PieceRequest {
    fn len(&self) -> usize {
        match self {
            PieceRequest::Read { len, .. } | PieceRequest::Write { len, .. } => *len,
            PieceRequest::Flush => 0,
        }
    }
}

impl RingPiece {
    pub fn new(op: usize, fd: RawFd, request: PieceRequest, limit: Option<TimeLimit>) -> Self {
        RingPiece { op, fd, request, limit, user_data: 0, progress: PieceProgress::Unsent }
    }

    /// Whether the kernel has ended the request, by success or by failure.
    pub fn is_done(&self) -> bool {
        self.progress == PieceProgress::Done
    }

    /// The addresses that a write reads from.
    pub fn written_from(&self) -> Option<Range<usize>> {
        match self.request {
            PieceRequest::Write { start, len, .. } => Some(start.addr()..start.addr() + len),
            PieceRequest::Read { .. } | PieceRequest::Flush => None,
        }
    }

    fn entry(&self) -> Entry {
        let fd = types::Fd(self.fd);
        let len = u32::try_from(self.request.len()).expect("pieces are at most PIECE_BYTES_MAX");
        match self.request {
            PieceRequest::Read { offset_bytes, start, .. } => {
                opcode::Read::new(fd, start, len).offset(offset_bytes).build()
            }
            PieceRequest::Write { offset_bytes, start, .. } => {
                opcode::Write::new(fd, start, len).offset(offset_bytes).build()
            }
            PieceRequest::Flush => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
        }
    }
}

/// A ring that nobody uses, with the scratch memory of its last batch.
struct IdleRing {
    ring: IoUring,
    scratch: Option<AlignedBuf>,
}

/// The idle rings, the bytes of their scratch memory, and the number of rings that exist.
struct Rings {
    idle: Vec<IdleRing>,
    scratch_bytes: usize,
    made: usize,
}

static RINGS: Mutex<Rings> = Mutex::new(Rings { idle: Vec::new(), scratch_bytes: 0, made: 0 });
/// Whether the kernel refused io_uring to this process: no further ring is tried then.
static REFUSED: AtomicBool = AtomicBool::new(false);

/// A ring that one caller owns until it is dropped.
pub(super) struct Ring {
    ring: Option<IoUring>,
    scratch: Option<AlignedBuf>,
    /// Requests that the kernel has not completed.
    in_flight: usize,
}

impl Ring {
    /// A ring; `None` if the kernel refuses to make one, or `RINGS_MAX` rings are in use.
    pub fn check_out() -> Option<Ring> {
        if REFUSED.load(Ordering::Relaxed) {
            return None;
        }
        abandoned::take_answers();
        let mut rings = RINGS.lock();
        if let Some(IdleRing { ring, scratch }) = rings.idle.pop() {
            rings.scratch_bytes -= scratch.as_ref().map_or(0, |scratch| scratch.len());
            return Some(Ring { ring: Some(ring), scratch, in_flight: 0 });
        }
        assert!(rings.made <= RINGS_MAX, "no more rings exist than the limit");
        if rings.made == RINGS_MAX {
            return None;
        }
        match make() {
            Ok(ring) => {
                rings.made += 1;
                Some(Ring { ring: Some(ring), scratch: None, in_flight: 0 })
            }
            Err(e) => {
                let errno = Errno::from_io_error(&e);
                // Forbidden or unknown to this kernel: it stays so. Other errors, such as too little memory,
                // may pass.
                if matches!(errno, Some(Errno::PERM | Errno::NOSYS | Errno::ACCESS)) {
                    REFUSED.store(true, Ordering::Relaxed);
                }
                None
            }
        }
    }

    /// Scratch memory of at least `len` bytes, which stays with the ring. Its content is undefined.
    pub fn scratch(&mut self, len: usize) -> *mut u8 {
        if len == 0 {
            return std::ptr::null_mut();
        }
        if self.scratch.as_ref().is_none_or(|scratch| scratch.len() < len) {
            self.scratch = Some(AlignedBuf::lasting(len.next_power_of_two()));
        }
        self.scratch.as_mut().map_or(std::ptr::null_mut(), |scratch| scratch.as_mut_ptr())
    }

    /// Runs every piece. Calls `while_waiting` once, while the first pieces are in flight, and `fell_short`
    /// with the index of each piece that the kernel did not complete. `while_waiting` returns how many
    /// devices are late that have no piece. On return only late pieces are in
    /// flight; `abandon_late` must follow.
    ///
    /// # Safety
    /// The buffers and descriptors of the pieces stay valid until their requests have completed, and nothing
    /// else writes the buffers, or reads those of reads.
    pub unsafe fn run(
        &mut self,
        pieces: &mut [RingPiece],
        mut while_waiting: Option<impl FnOnce() -> usize>,
        mut fell_short: impl FnMut(usize, Shortfall),
    ) {
        let ring = self.ring.as_mut().expect("a ring is present until it is dropped");
        let mut limit = pieces.iter().filter_map(|piece| piece.limit).map(|limit| limit.wait_max).min();
        // Older kernels cannot wait for a time. They wait until the devices answer.
        limit = limit.filter(|_| ring.params().is_feature_ext_arg());
        let mut asked_nanos = 0;
        let (mut late, mut late_elsewhere) = (0, 0);
        let mut next = 0;
        while next < pieces.len() || self.in_flight > late {
            let sent = self.in_flight;
            while next < pieces.len() {
                let is_skipped = late > 0 && (late == RING_ENTRIES as usize || is_owed(pieces, next));
                let piece = &mut pieces[next];
                if is_skipped && piece.limit.is_some() {
                    piece.progress = PieceProgress::Skipped;
                    next += 1;
                    continue;
                }
                if self.in_flight == RING_ENTRIES as usize {
                    break;
                }
                piece.user_data = next as u64;
                next += 1;
                let entry = piece.entry().user_data(piece.user_data);
                // SAFETY: buffer and descriptor are valid until the request has completed (invariant 2).
                let pushed = unsafe { ring.submission().push(&entry) };
                pushed.expect("the queue has room for as many entries as may be in flight");
                piece.progress = PieceProgress::InFlight;
                self.in_flight += 1;
            }
            if limit.is_some() && self.in_flight > sent {
                asked_nanos = SystemClock.monotonic_nanos();
            }
            // Waits until half are done and then refills; waits for all at the end. Does not wait at all
            // before `while_waiting` has run.
            let awaited = self.in_flight - late;
            let wanted = if next < pieces.len() { (awaited / 2).max(1) } else { awaited };
            let wanted = if while_waiting.is_some() { 0 } else { wanted };
            let waited = match limit {
                Some(limit) if wanted > 0 => {
                    let time = types::Timespec::from(limit);
                    ring.submitter().submit_with_args(wanted, &types::SubmitArgs::new().timespec(&time))
                }
                _ => ring.submit_and_wait(wanted),
            };
            match waited {
                Ok(_) => {}
                // The time is over, or interrupted, or the kernel is short of memory or of room for
                // completions: take completions, then submit again.
                Err(e) => assert!(
                    matches!(
                        Errno::from_io_error(&e),
                        Some(Errno::TIME | Errno::INTR | Errno::AGAIN | Errno::BUSY | Errno::NOMEM)
                    ),
                    "the kernel accepts well-formed requests: {e}"
                ),
            }
            if let Some(while_waiting) = while_waiting.take() {
                late_elsewhere = while_waiting();
            }
            let mut answers = 0;
            for done in ring.completion() {
                self.in_flight -= 1;
                answers += 1;
                let nth = usize::try_from(done.user_data()).expect("the user data is an index");
                let piece = &mut pieces[nth];
                late -= usize::from(piece.progress == PieceProgress::Late);
                piece.progress = PieceProgress::Done;
                match usize::try_from(done.result()) {
                    Ok(moved) if moved == piece.request.len() => {}
                    Ok(_) => fell_short(nth, Shortfall::Short),
                    Err(_) => {
                        fell_short(nth, Shortfall::Failed(Errno::from_raw_os_error(-done.result())));
                    }
                }
            }
            if limit.is_some() && answers < wanted && ring.submission().is_empty() {
                let waited_nanos = SystemClock.monotonic_nanos().saturating_sub(asked_nanos);
                limit = mark_late(pieces, Duration::from_nanos(waited_nanos), late_elsewhere);
                late = pieces.iter().filter(|piece| piece.progress == PieceProgress::Late).count();
            }
            assert!(late <= self.in_flight, "a late piece is in flight");
        }
        // Without any piece the loop did not run.
        if let Some(while_waiting) = while_waiting {
            while_waiting();
        }
        assert_eq!(self.in_flight, late, "the kernel has completed every request that is not late");
        for (nth, piece) in pieces.iter().enumerate() {
            if matches!(piece.progress, PieceProgress::Late | PieceProgress::Skipped) {
                fell_short(nth, Shortfall::Late);
            }
        }
    }

    /// Hands the late pieces over, with the ring and its scratch memory, until their answers come. `request`
    /// makes the request of a piece.
    pub fn abandon_late(mut self, pieces: &[RingPiece], request: impl Fn(&RingPiece) -> AbandonedRequest) {
        if self.in_flight == 0 {
            return;
        }
        let late = pieces.iter().filter(|piece| piece.progress == PieceProgress::Late);
        let requests: Vec<AbandonedRequest> = late.map(request).collect();
        assert_eq!(requests.len(), self.in_flight, "only late pieces are in flight");
        let ring = self.ring.take().expect("a ring is present until it is dropped");
        // It is no longer one of the rings that batches use.
        RINGS.lock().made -= 1;
        self.in_flight = 0;
        abandoned::abandon(ring, self.scratch.take(), requests);
    }
}

/// Whether a piece would go to a device that owes the answer to a late piece.
fn is_owed(pieces: &[RingPiece], nth: usize) -> bool {
    let fd = pieces[nth].fd;
    pieces[..nth].iter().any(|piece| piece.progress == PieceProgress::Late && piece.fd == fd)
}

/// Marks the limited pieces that have waited for too long, unless they belong to more devices than a batch
/// may stop waiting for; `late_elsewhere` of these have no piece. Returns how long to wait before the next
/// call; `None` if no limited piece is left.
fn mark_late(pieces: &mut [RingPiece], waited: Duration, late_elsewhere: usize) -> Option<Duration> {
    let is_over = |piece: &RingPiece| {
        piece.progress == PieceProgress::InFlight && piece.limit.is_some_and(|l| l.wait_max <= waited)
    };
    let owing = |piece: &&RingPiece| is_over(piece) || piece.progress == PieceProgress::Late;
    let mut devices: Vec<RawFd> = pieces.iter().filter(owing).map(|piece| piece.fd).collect();
    devices.sort_unstable();
    devices.dedup();
    let mut next: Option<Duration> = None;
    for piece in pieces {
        let Some(limit) = piece.limit else { continue };
        let left = match piece.progress {
            PieceProgress::InFlight if limit.wait_max > waited => limit.wait_max - waited,
            PieceProgress::InFlight if devices.len() + late_elsewhere <= limit.devices_max => {
                piece.progress = PieceProgress::Late;
                continue;
            }
            // Too many devices are silent, which is looked at again after as long a time; or not asked yet.
            PieceProgress::InFlight | PieceProgress::Unsent => limit.wait_max,
            PieceProgress::Late | PieceProgress::Skipped | PieceProgress::Done => continue,
        };
        next = Some(next.map_or(left, |next| next.min(left)));
    }
    next
}

impl Drop for Ring {
    fn drop(&mut self) {
        if self.in_flight > 0 {
            // A panic unwinds, and the kernel may still write into buffers that are about to be freed.
            std::process::abort();
        }
        if let Some(mut ring) = self.ring.take() {
            debug_assert!(ring.submission().is_empty(), "an idle ring has nothing to submit");
            let mut rings = RINGS.lock();
            let kept = rings.scratch_bytes;
            let scratch = self.scratch.take().filter(|scratch| kept + scratch.len() <= SCRATCH_KEPT_MAX);
            rings.scratch_bytes += scratch.as_ref().map_or(0, |scratch| scratch.len());
            rings.idle.push(IdleRing { ring, scratch });
        }
    }
}

fn make() -> std::io::Result<IoUring> {
    // The thread that submits also takes the completions, so the kernel need not interrupt it for them.
    match IoUring::builder().setup_coop_taskrun().build(RING_ENTRIES) {
        Err(e) if Errno::from_io_error(&e) == Some(Errno::INVAL) => IoUring::new(RING_ENTRIES),
        made => made,
    }
}
