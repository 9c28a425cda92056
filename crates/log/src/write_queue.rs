//! The write queue: full stripes of all streams that wait for the devices.
//!
//! A stream *pushes* a stripe when it is full or a sync needs it. One thread at a time, the *driver*, submits
//! stripes from the front: the writer thread if there is one, else a thread that waits for the queue and
//! finds no driver. A stripe is *completed* when the devices have taken it.
//!
//! # Invariants
//! 1. Stripes are submitted in the order in which they were pushed, by one driver at a time (assert in
//!    `drive`).
//! 2. A stripe leaves the queue when it is in the segment table and can be read from the pool. Until then
//!    `read` serves readers from its buffer
//!    (`tests/threads.rs: bytes_that_wait_for_the_writer_thread_read_back`).
//! 3. A segment is sealed in the segment table only when its last stripe has left the queue. So its zones are
//!    never freed while a write to them is on its way (assert in `push`: no stripe follows the last one).
//! 4. After a failure nothing more is submitted, and the waiting stripes stay readable
//!    (`tests/threads.rs: a_write_that_fails_on_the_writer_thread_latches`).
//!
//! ```text
//!   (full) ─push─▶ waiting ─drive─▶ submitted ─complete─▶ (in the segment table)
//!                                       └─ failed: stays in the queue, `failure` is set
//! ```

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;
use warpfire_env::sync::atomic::{AtomicUsize, Ordering};
use warpfire_env::sync::thread::JoinHandle;

use warpfire_env::sync::{Condvar, Mutex, MutexGuard};
use warpfire_env::{RankedMutex, begin_background_work};
use warpfire_pool::{PoolError, PreparedStripe, SegmentWriter, StripeBuf};
use warpfire_units::{SegmentId, SlicePtr};

use crate::limits::{SUBMIT_MAX_BYTES, WRITE_QUEUE_BYTES_MAX, WRITE_QUEUE_STRIPES_MIN};
use crate::lock_ranks::SEGMENT_TABLE;
use crate::pins::{Pins, Retired};
use crate::segment_table::SegmentTable;

/// A stripe and the bytes in it.
pub(crate) struct QueuedStripe {
    pub(crate) segment: SegmentId,
    /// Payload bytes of the segment before this stripe.
    pub(crate) base_bytes: u64,
    pub(crate) stripe: PreparedStripe,
    pub(crate) buf: StripeBuf,
    /// Whether its bytes come from background work: tables, and bytes that cleaning moves.
    pub(crate) is_background: bool,
}

struct QueueEntry {
    queued: Arc<QueuedStripe>,
    /// Whether it is the last stripe of its segment.
    is_last: bool,
}

#[derive(Default)]
struct QueueState {
    /// Stripes that are waiting or submitted, oldest first.
    waiting: VecDeque<QueueEntry>,
    /// Payload bytes of `waiting`.
    payload_bytes: usize,
    has_driver: bool,
    /// Stripes pushed so far, and those of them that have completed.
    pushed: u64,
    completed: u64,
    /// The first failure. It stays.
    failure: Option<PoolError>,
    /// Buffers to use again: a new one costs page faults for each of its pages.
    spare: Vec<StripeBuf>,
    has_thread: bool,
    stopped: bool,
}

/// The queue of stripes.
pub(crate) struct WriteQueue {
    queue: Mutex<QueueState>,
    /// Signalled when stripes arrive, complete or fail, and when the driver leaves.
    changed: Condvar,
    /// Stripes in the queue. Readers look at it without the lock.
    in_memory: AtomicUsize,
    segment_table: Arc<RankedMutex<SEGMENT_TABLE, SegmentTable>>,
    pins: Arc<Pins<Retired>>,
}

impl WriteQueue {
    pub(crate) fn new(
        segment_table: Arc<RankedMutex<SEGMENT_TABLE, SegmentTable>>,
        pins: Arc<Pins<Retired>>,
    ) -> Self {
        WriteQueue {
            queue: Mutex::default(),
            changed: Condvar::new(),
            in_memory: AtomicUsize::new(0),
            segment_table,
            pins,
        }
    }

    /// A buffer for the writer's next stripe.
    pub(crate) fn buffer(&self, writer: &SegmentWriter) -> StripeBuf {
        let spare = self.queue.lock().spare.pop();
        match spare {
            Some(mut buf) => {
                writer.begin(&mut buf);
                buf
            }
            None => writer.buffer(),
        }
    }

    /// Adds a stripe. With a writer thread, waits while the queue is too long; without one, until the stripe
    /// is written.
    pub(crate) fn push(&self, queued: QueuedStripe) -> Result<(), PoolError> {
        let mut queue = self.queue.lock();
        debug_assert!(
            queue.waiting.iter().all(|w| !w.is_last || w.queued.segment != queued.segment),
            "no stripe follows the last one of its segment"
        );
        queue.payload_bytes += queued.buf.len();
        queue.pushed += 1;
        queue.waiting.push_back(QueueEntry { queued: Arc::new(queued), is_last: false });
        self.in_memory.fetch_add(1, Ordering::Release);
        self.changed.notify_all();
        let wanted = queue.pushed;
        let is_short = |queue: &QueueState| {
            queue.payload_bytes <= WRITE_QUEUE_BYTES_MAX || queue.waiting.len() <= WRITE_QUEUE_STRIPES_MIN
        };
        // The wait bounds memory: without it a fast writer would queue stripes without end.
        if queue.has_thread && !is_short(&queue) {
            tracing::trace!(
                name: "write_queue_full",
                stripes = queue.waiting.len(),
                bytes = queue.payload_bytes,
                "an append waits for the devices"
            );
        }
        self.wait_until(queue, |queue| queue.completed >= wanted || queue.has_thread && is_short(queue))
    }

    /// Waits until every stripe pushed before this call has completed.
    pub(crate) fn drain(&self) -> Result<(), PoolError> {
        let queue = self.queue.lock();
        let wanted = queue.pushed;
        self.wait_until(queue, |queue| queue.completed >= wanted)
    }

    /// Waits for a condition, and drives the queue while no other thread does.
    fn wait_until<'q>(
        &'q self,
        mut queue: MutexGuard<'q, QueueState>,
        is_enough: impl Fn(&QueueState) -> bool,
    ) -> Result<(), PoolError> {
        loop {
            if let Some(failure) = &queue.failure {
                return Err(failure.clone());
            }
            if is_enough(&queue) {
                return Ok(());
            }
            if queue.has_driver {
                self.changed.wait(&mut queue);
            } else {
                queue = self.drive(queue);
            }
        }
    }

    /// Submits the front of the queue, as its driver.
    fn drive<'q>(&'q self, mut queue: MutexGuard<'q, QueueState>) -> MutexGuard<'q, QueueState> {
        assert!(
            !queue.has_driver && queue.failure.is_none(),
            "one driver at a time, and none after a failure"
        );
        queue.has_driver = true;
        let count = submission_len(queue.waiting.iter().map(|w| w.queued.buf.len()));
        let batch: Vec<Arc<QueuedStripe>> =
            queue.waiting.iter().take(count).map(|w| w.queued.clone()).collect();
        // The devices work without the lock. The stripes stay in the queue until then, so readers find their
        // bytes, and the order of the front is safe: only a driver takes stripes out.
        drop(queue);
        let mut guard = DriverGuard { write_queue: self, is_over: false };
        // The writer thread works for programs, unless none of the stripes is theirs.
        let _in_background = batch.iter().all(|q| q.is_background).then(begin_background_work);
        let result = submit(batch);
        let mut queue = self.queue.lock();
        match result {
            Ok(()) => (0..count).for_each(|_| self.complete(&mut queue)),
            Err(e) => queue.failure = Some(e),
        }
        queue.has_driver = false;
        self.changed.notify_all();
        guard.is_over = true;
        queue
    }

    /// Takes the oldest stripe out, which the devices have taken.
    fn complete(&self, queue: &mut QueueState) {
        let QueueEntry { queued, is_last } =
            queue.waiting.pop_front().expect("only the driver takes stripes out");
        // Before `completed` counts it: a sync that waits for the stripe finds it in the table's edits.
        {
            let mut segment_table = self.segment_table.lock();
            segment_table.grow(queued.segment, queued.stripe.rows());
            if is_last {
                segment_table.seal(queued.segment, &self.pins);
            }
        }
        queue.completed += 1;
        assert!(queue.completed <= queue.pushed, "a stripe completes once");
        queue.payload_bytes -= queued.buf.len();
        debug_assert!(!queue.waiting.is_empty() || queue.payload_bytes == 0, "an empty queue holds no bytes");
        // After the stripe became readable from the pool: a reader that no longer counts it finds it there.
        self.in_memory.fetch_sub(1, Ordering::Release);
        let queued = Arc::into_inner(queued).expect("the driver has dropped its batch");
        let spare_max = (WRITE_QUEUE_BYTES_MAX / queued.buf.len().max(1)).max(WRITE_QUEUE_STRIPES_MIN);
        if queue.has_thread && queue.spare.len() < spare_max || queue.spare.is_empty() {
            queue.spare.push(queued.buf);
        }
    }

    /// Seals a segment after its last push: when its last stripe completes, or now if it has.
    pub(crate) fn seal(&self, segment: SegmentId) {
        let mut queue = self.queue.lock();
        match queue.waiting.iter_mut().rev().find(|w| w.queued.segment == segment) {
            Some(last) => {
                assert!(!last.is_last, "a segment is sealed once");
                last.is_last = true;
            }
            None => self.segment_table.lock().seal(segment, &self.pins),
        }
    }

    /// Reads the waiting part of the slice's first `out.len()` bytes: their end. Returns the number of bytes
    /// before that part, which the caller reads from the devices.
    pub(crate) fn read(&self, slice: SlicePtr, out: &mut [u8]) -> usize {
        if self.in_memory.load(Ordering::Acquire) == 0 {
            return out.len();
        }
        let queue = self.queue.lock();
        // The pointer may come from damaged metadata: then the devices refuse it.
        let end = slice.offset_bytes.saturating_add(out.len() as u64);
        let mut on_devices = out.len();
        // Stripes of a segment complete in order, so the waiting ones are its end without holes.
        for QueueEntry { queued, .. } in
            queue.waiting.iter().rev().filter(|w| w.queued.segment == slice.segment)
        {
            let from = slice.offset_bytes.max(queued.base_bytes);
            let to = end.min(queued.base_bytes + queued.buf.len() as u64);
            let place = |at: u64| usize::try_from(at - slice.offset_bytes).expect("a slice fits memory");
            if queued.base_bytes < end {
                on_devices = on_devices.min(place(from));
            }
            if from < to {
                let at = usize::try_from(from - queued.base_bytes).expect("a buffer fits memory");
                queued.buf.read(at, &mut out[place(from)..place(to)]);
            }
        }
        debug_assert!(on_devices <= out.len(), "the part on the devices is a part of the slice");
        on_devices
    }

    /// The writer thread: drives the queue until it is stopped or fails.
    fn run(&self) {
        let mut queue = self.queue.lock();
        while !queue.stopped && queue.failure.is_none() {
            if queue.has_driver || queue.waiting.is_empty() {
                self.changed.wait(&mut queue);
            } else {
                queue = self.drive(queue);
            }
        }
    }
}

/// How many stripes of these lengths, from the front, are submitted together: as many as
/// `SUBMIT_MAX_BYTES` allows, and at least one.
fn submission_len(lens_bytes: impl Iterator<Item = usize>) -> usize {
    let mut bytes = 0;
    let fits = |len_bytes: &usize| {
        let is_first = bytes == 0;
        bytes += len_bytes;
        is_first || bytes <= SUBMIT_MAX_BYTES
    };
    lens_bytes.take_while(fits).count()
}

fn submit(batch: Vec<Arc<QueuedStripe>>) -> Result<(), PoolError> {
    let stripes: Vec<_> = batch.iter().map(|queued| (&queued.stripe, &queued.buf)).collect();
    PreparedStripe::submit(&stripes)
}

/// Fails the queue if its driver panics, so that no thread waits for the driver.
///
/// The driver reports its end itself. `thread::panicking` would not do: a thread that already unwinds may
/// drive the queue, when it closes a file on its way out.
struct DriverGuard<'b> {
    write_queue: &'b WriteQueue,
    is_over: bool,
}

impl Drop for DriverGuard<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            let mut queue = self.write_queue.queue.lock();
            queue.failure = Some(PoolError::Failed { reason: "writing stripes panicked".into() });
            queue.has_driver = false;
            self.write_queue.changed.notify_all();
        }
    }
}

/// The thread that writes stripes while the next ones fill. Dropping this ends it.
pub(crate) struct WriterThread {
    write_queue: Arc<WriteQueue>,
    handle: Option<JoinHandle<()>>,
}

impl WriterThread {
    pub(crate) fn start(write_queue: &Arc<WriteQueue>) -> std::io::Result<Self> {
        let write_queue = Arc::clone(write_queue);
        let driven_queue = Arc::clone(&write_queue);
        let thread = warpfire_env::sync::thread::Builder::new().name("warpfire-writer".to_owned());
        let handle = Some(thread.spawn(move || driven_queue.run())?);
        // Not before the thread runs: without one, each push writes its own stripe.
        write_queue.queue.lock().has_thread = true;
        Ok(WriterThread { write_queue, handle })
    }
}

impl Drop for WriterThread {
    fn drop(&mut self) {
        self.write_queue.queue.lock().stopped = true;
        self.write_queue.changed.notify_all();
        if let Some(handle) = self.handle.take()
            && handle.join().is_err()
        {
            tracing::error!(name: "log_writer_thread_panicked", "the writer thread panicked");
        }
    }
}
