//! io_uring rings, shared by all threads of the process.
//!
//! 1. A ring is either idle in `RINGS` or owned by one `Ring`. An idle ring has nothing in flight (assert in
//!    `drop`).
//! 2. A buffer that the kernel may touch outlives its request: `Ring::run` returns only when nothing is in
//!    flight (assert in `run`), and the process aborts if a panic would unwind past a request (`InFlight`).
//! 3. At most `RINGS_MAX` rings exist (assert in `check_out`). A caller without a ring makes its calls one by
//!    one: with so many batches under way the devices are busy.
//!
//! A ring moves between threads, so it is not set up for a single issuer.

#![expect(unsafe_code, reason = "the kernel uses buffers by address until it reports that it is done")]

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};

use io_uring::squeue::Entry;
use io_uring::{IoUring, opcode, types};
use parking_lot::Mutex;
use rustix::io::Errno;

/// Most pieces in flight on one ring: enough for a write of 64 MiB, or for random reads that keep a fast
/// drive busy.
const RING_ENTRIES: u32 = 64;

/// Most rings in the process. Each takes about 10 KiB in the kernel.
const RINGS_MAX: usize = 16;

/// A part of an operation that is one request to the kernel.
#[derive(Debug)]
pub(super) struct RingPiece {
    /// Index of the operation in its batch.
    pub op: usize,
    pub fd: RawFd,
    pub request: PieceRequest,
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

/// The idle rings, and the number of rings that exist.
struct Rings {
    idle: Vec<IoUring>,
    made: usize,
}

static RINGS: Mutex<Rings> = Mutex::new(Rings { idle: Vec::new(), made: 0 });
/// Whether the kernel refused io_uring to this process: no further ring is tried then.
static REFUSED: AtomicBool = AtomicBool::new(false);

/// A ring that one caller owns until it is dropped.
pub(super) struct Ring {
    ring: Option<IoUring>,
}

/// The number of requests that the kernel has not completed.
struct InFlight(usize);

impl Drop for InFlight {
    fn drop(&mut self) {
        if self.0 > 0 {
            // A panic unwinds, and the kernel may still write into buffers that are about to be freed.
            std::process::abort();
        }
    }
}

impl Ring {
    /// A ring; `None` if the kernel refuses to make one, or `RINGS_MAX` rings are in use.
    pub fn check_out() -> Option<Ring> {
        if REFUSED.load(Ordering::Relaxed) {
            return None;
        }
        let mut rings = RINGS.lock();
        if let Some(ring) = rings.idle.pop() {
            return Some(Ring { ring: Some(ring) });
        }
        assert!(rings.made <= RINGS_MAX, "no more rings exist than the limit");
        if rings.made == RINGS_MAX {
            return None;
        }
        match make() {
            Ok(ring) => {
                rings.made += 1;
                Some(Ring { ring: Some(ring) })
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

    /// Runs every piece. Calls `while_waiting` once, while the first pieces are in flight, and `fell_short`
    /// with the index of each piece that the kernel did not complete.
    ///
    /// # Safety
    /// The buffers and descriptors of the pieces stay valid until this returns, and nothing else uses the
    /// buffers.
    pub unsafe fn run(
        &mut self,
        pieces: &[RingPiece],
        mut while_waiting: Option<impl FnOnce()>,
        mut fell_short: impl FnMut(usize, Shortfall),
    ) {
        let ring = self.ring.as_mut().expect("a ring is present until it is dropped");
        let mut in_flight = InFlight(0);
        let mut next = 0;
        while next < pieces.len() || in_flight.0 > 0 {
            while let Some(piece) = pieces.get(next)
                && in_flight.0 < RING_ENTRIES as usize
            {
                let entry = piece.entry().user_data(next as u64);
                // SAFETY: buffer and descriptor are valid until this function returns, and it returns when
                // the request has completed (invariant 2).
                let pushed = unsafe { ring.submission().push(&entry) };
                pushed.expect("the queue has room for as many entries as may be in flight");
                in_flight.0 += 1;
                next += 1;
            }
            // Waits until half are done and then refills; waits for all at the end. Does not wait at all
            // before `while_waiting` has run.
            let wanted = if next < pieces.len() { in_flight.0 / 2 } else { in_flight.0 };
            let wanted = if while_waiting.is_some() { 0 } else { wanted };
            match ring.submit_and_wait(wanted) {
                Ok(_) => {}
                // Interrupted, or the kernel is short of memory or of room for completions: take completions,
                // then submit again.
                Err(e) => assert!(
                    matches!(
                        Errno::from_io_error(&e),
                        Some(Errno::INTR | Errno::AGAIN | Errno::BUSY | Errno::NOMEM)
                    ),
                    "the kernel accepts well-formed requests: {e}"
                ),
            }
            if let Some(while_waiting) = while_waiting.take() {
                while_waiting();
            }
            for done in ring.completion() {
                in_flight.0 -= 1;
                let nth = usize::try_from(done.user_data()).expect("the user data is an index");
                match usize::try_from(done.result()) {
                    Ok(moved) if moved == pieces[nth].request.len() => {}
                    Ok(_) => fell_short(nth, Shortfall::Short),
                    Err(_) => {
                        fell_short(nth, Shortfall::Failed(Errno::from_raw_os_error(-done.result())));
                    }
                }
            }
        }
        // Without any piece the loop did not run.
        if let Some(while_waiting) = while_waiting {
            while_waiting();
        }
        assert_eq!(in_flight.0, 0, "the kernel has completed every request");
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if let Some(mut ring) = self.ring.take() {
            debug_assert!(ring.submission().is_empty(), "an idle ring has nothing to submit");
            RINGS.lock().idle.push(ring);
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
