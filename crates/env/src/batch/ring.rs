//! The kernel's submission rings.
//!
//! 1. A ring is either idle in the pool or owned by one `Ring`; an idle ring has nothing in flight.
//! 2. A buffer that the kernel may touch outlives its request: `Ring::run` returns only when nothing is in
//!    flight, and the process aborts rather than unwind past a request.
//! 3. At most `RINGS_MAX` rings exist. A caller who finds none makes its calls one by one: with that many batches
//!    under way the devices are busy.
//!
//! Rings are passed between threads, so they are not made for a single issuer.

#![expect(unsafe_code, reason = "the kernel uses buffers by address until it reports that it is done")]

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};

use io_uring::squeue::Entry;
use io_uring::{IoUring, opcode, types};
use parking_lot::Mutex;
use rustix::io::Errno;

/// Pieces in flight on one ring: a 16 MiB write, or the random reads that keep a fast drive busy.
const RING_ENTRIES: u32 = 64;

/// Rings in the process. Each costs the kernel about 10 KiB.
const RINGS_MAX: usize = 16;

/// A part of an operation that is one request to the kernel.
#[derive(Debug)]
pub(super) struct RingPiece {
    /// Index of the operation in its batch.
    pub op: usize,
    pub fd: RawFd,
    pub request: PieceRequest,
}

/// What one request does.
#[derive(Debug)]
pub(super) enum PieceRequest {
    Read { offset_bytes: u64, start: *mut u8, len: usize },
    Write { offset_bytes: u64, start: *const u8, len: usize },
    Flush,
}

/// Why a piece is not done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Shortfall {
    /// The kernel moved less than it was asked to.
    Short,
    /// The kernel refused or failed.
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

struct Rings {
    idle: Vec<IoUring>,
    made: usize,
}

static RINGS: Mutex<Rings> = Mutex::new(Rings { idle: Vec::new(), made: 0 });
static REFUSED: AtomicBool = AtomicBool::new(false);

/// A ring of one's own, until it is dropped.
pub(super) struct Ring {
    ring: Option<IoUring>,
}

/// Counts what the kernel has and has not given back.
struct InFlight(usize);

impl Drop for InFlight {
    fn drop(&mut self) {
        if self.0 > 0 {
            // The kernel may still write into buffers whose owners are about to be unwound.
            std::process::abort();
        }
    }
}

impl Ring {
    /// A ring, unless the machine has none to give or all are in use.
    pub fn check_out() -> Option<Ring> {
        if REFUSED.load(Ordering::Relaxed) {
            return None;
        }
        let mut rings = RINGS.lock();
        if let Some(ring) = rings.idle.pop() {
            return Some(Ring { ring: Some(ring) });
        }
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
                if matches!(errno, Some(Errno::PERM | Errno::NOSYS | Errno::ACCESS)) {
                    REFUSED.store(true, Ordering::Relaxed);
                }
                None
            }
        }
    }

    /// Runs every piece, and `while_waiting` once while the first of them are under way. Tells `fell_short` of each
    /// piece that was not done, by its index.
    ///
    /// # Safety
    /// The buffers and descriptors of the pieces are valid, and the buffers theirs alone, until this returns.
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
                // SAFETY: buffer and descriptor are valid until this function returns, and it returns when the
                // request has completed (invariant 2).
                let pushed = unsafe { ring.submission().push(&entry) };
                pushed.expect("the queue has room for all that may be in flight");
                in_flight.0 += 1;
                next += 1;
            }
            // Refill when half are done; at the end wait for all.
            let wanted = if next < pieces.len() { in_flight.0 / 2 } else { in_flight.0 };
            let wanted = if while_waiting.is_some() { 0 } else { wanted };
            match ring.submit_and_wait(wanted) {
                Ok(_) => {}
                // Interrupted, or the kernel is short of memory or of room for completions: reap and go on.
                Err(e) => assert!(
                    matches!(Errno::from_io_error(&e), Some(Errno::INTR | Errno::AGAIN | Errno::BUSY)),
                    "the kernel takes well-formed requests: {e}"
                ),
            }
            if let Some(while_waiting) = while_waiting.take() {
                while_waiting();
            }
            for done in ring.completion() {
                in_flight.0 -= 1;
                let nth = usize::try_from(done.user_data()).expect("it was an index");
                match usize::try_from(done.result()) {
                    Ok(moved) if moved == pieces[nth].request.len() => {}
                    Ok(_) => fell_short(nth, Shortfall::Short),
                    Err(_) => {
                        fell_short(nth, Shortfall::Failed(Errno::from_raw_os_error(-done.result())));
                    }
                }
            }
        }
        if let Some(while_waiting) = while_waiting {
            while_waiting();
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if let Some(ring) = self.ring.take() {
            RINGS.lock().idle.push(ring);
        }
    }
}

fn make() -> std::io::Result<IoUring> {
    // Completions are reaped by the thread that submitted, so it need not be interrupted for them.
    match IoUring::builder().setup_coop_taskrun().build(RING_ENTRIES) {
        Err(e) if Errno::from_io_error(&e) == Some(Errno::INVAL) => IoUring::new(RING_ENTRIES),
        made => made,
    }
}
