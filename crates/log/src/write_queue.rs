//! Stripes on their way to the devices.
//!
//! Full stripes of all streams are *launched* into one queue. Who finds nobody at it drives it: the writer thread,
//! if there is one, else whoever launched.
//!
//! # Invariants
//! 1. Stripes are submitted in the order in which they were launched, by one driver at a time.
//! 2. A stripe leaves the queue when it is in the table and can be read from the pool. Until then readers are
//!    served from its buffer.
//! 3. A segment is sealed in the table only when its last stripe has left the queue. So its zones are not given back
//!    while they are still to be written.
//! 4. After a failure nothing is submitted any more, and what waits stays readable.
//!
//! ```text
//!   launched ──front of the queue──▶ submitted ──ok──▶ landed        (failed: stays in the queue)
//! ```

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex, MutexGuard};
use warpfire_pool::{PoolError, PreparedStripe, SegmentWriter, StripeBuf};
use warpfire_units::{SegmentId, SlicePtr};

use crate::limits::{SUBMIT_MAX_BYTES, WRITE_QUEUE_BYTES_MAX, WRITE_QUEUE_STRIPES_MIN};
use crate::pins::Pins;
use crate::segment_table::SegmentTable;

/// A stripe and the bytes in it.
pub(crate) struct QueuedStripe {
    pub(crate) segment: SegmentId,
    /// Payload bytes of the segment before this stripe.
    pub(crate) base_bytes: u64,
    pub(crate) stripe: PreparedStripe,
    pub(crate) buf: StripeBuf,
}

struct QueueEntry {
    queued: Arc<QueuedStripe>,
    /// Whether nothing follows it in its segment.
    is_last: bool,
}

#[derive(Default)]
struct QueueState {
    waiting: VecDeque<QueueEntry>,
    payload_bytes: usize,
    has_driver: bool,
    pushed: u64,
    completed: u64,
    failure: Option<PoolError>,
    /// Buffers to use again.
    spare: Vec<StripeBuf>,
    has_thread: bool,
    stopped: bool,
}

/// The queue of stripes.
pub(crate) struct WriteQueue {
    queue: Mutex<QueueState>,
    changed: Condvar,
    /// Stripes in the queue, for readers that look without the lock.
    in_memory: AtomicUsize,
    segment_table: Arc<Mutex<SegmentTable>>,
    pins: Arc<Pins>,
}

impl WriteQueue {
    pub(crate) fn new(segment_table: Arc<Mutex<SegmentTable>>, pins: Arc<Pins>) -> Self {
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

    /// Sends a stripe on its way, and waits while too many are.
    pub(crate) fn push(&self, queued: QueuedStripe) -> Result<(), PoolError> {
        let mut queue = self.queue.lock();
        queue.payload_bytes += queued.buf.len();
        queue.pushed += 1;
        queue.waiting.push_back(QueueEntry { queued: Arc::new(queued), is_last: false });
        self.in_memory.fetch_add(1, Ordering::Release);
        self.changed.notify_all();
        let wanted = queue.pushed;
        self.wait_until(queue, |queue| {
            let few = queue.payload_bytes <= WRITE_QUEUE_BYTES_MAX
                || queue.waiting.len() <= WRITE_QUEUE_STRIPES_MIN;
            queue.completed >= wanted || queue.has_thread && few
        })
    }

    /// Waits until all that was launched before this call has landed.
    pub(crate) fn drain(&self) -> Result<(), PoolError> {
        let queue = self.queue.lock();
        let wanted = queue.pushed;
        self.wait_until(queue, |queue| queue.completed >= wanted)
    }

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

    /// Submits the front of the queue. Nobody else drives it.
    fn drive<'q>(&'q self, mut queue: MutexGuard<'q, QueueState>) -> MutexGuard<'q, QueueState> {
        queue.has_driver = true;
        let mut bytes = 0;
        let fits = |waiting: &&QueueEntry| {
            let is_first = bytes == 0;
            bytes += waiting.queued.buf.len();
            is_first || bytes <= SUBMIT_MAX_BYTES
        };
        let batch: Vec<Arc<QueuedStripe>> =
            queue.waiting.iter().take_while(fits).map(|w| w.queued.clone()).collect();
        drop(queue);
        let mut guard = DriverGuard { write_queue: self, is_over: false };
        let count = batch.len();
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

    fn complete(&self, queue: &mut QueueState) {
        let QueueEntry { queued, is_last } =
            queue.waiting.pop_front().expect("only the driver takes stripes out");
        {
            let mut segment_table = self.segment_table.lock();
            segment_table.grow(queued.segment, queued.stripe.rows());
            if is_last {
                segment_table.seal(queued.segment, &self.pins);
            }
        }
        queue.completed += 1;
        queue.payload_bytes -= queued.buf.len();
        // Released after the stripe became readable from the pool: who sees it gone finds it there.
        self.in_memory.fetch_sub(1, Ordering::Release);
        let queued = Arc::into_inner(queued).expect("the driver let go of the stripes");
        let spare_max = (WRITE_QUEUE_BYTES_MAX / queued.buf.len().max(1)).max(WRITE_QUEUE_STRIPES_MIN);
        if queue.has_thread && queue.spare.len() < spare_max || queue.spare.is_empty() {
            queue.spare.push(queued.buf);
        }
    }

    /// Seals a segment whose last stripe was launched: now or when that lands.
    pub(crate) fn seal(&self, segment: SegmentId) {
        let mut queue = self.queue.lock();
        match queue.waiting.iter_mut().rev().find(|w| w.queued.segment == segment) {
            Some(last) => last.is_last = true,
            None => self.segment_table.lock().seal(segment, &self.pins),
        }
    }

    /// Reads what of the slice's first `out.len()` bytes is still on its way, and says how many bytes before
    /// it are on the devices.
    pub(crate) fn read(&self, slice: SlicePtr, out: &mut [u8]) -> usize {
        if self.in_memory.load(Ordering::Acquire) == 0 {
            return out.len();
        }
        let queue = self.queue.lock();
        let end = slice.offset_bytes + out.len() as u64;
        let mut on_devices = out.len();
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
        on_devices
    }

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

fn submit(batch: Vec<Arc<QueuedStripe>>) -> Result<(), PoolError> {
    let stripes: Vec<_> = batch.iter().map(|queued| (&queued.stripe, &queued.buf)).collect();
    PreparedStripe::submit(&stripes)
}

/// Lets nobody wait for a driver that panicked.
///
/// It knows by its end and not by `thread::panicking`: what unwinds may have begun before the turn, in a thread that
/// closes what it holds on its way out.
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

/// The thread that writes stripes while the next ones fill. It ends when this is dropped.
pub(crate) struct WriterThread {
    write_queue: Arc<WriteQueue>,
    handle: Option<JoinHandle<()>>,
}

impl WriterThread {
    pub(crate) fn start(write_queue: &Arc<WriteQueue>) -> std::io::Result<Self> {
        let write_queue = Arc::clone(write_queue);
        let theirs = Arc::clone(&write_queue);
        let thread = std::thread::Builder::new().name("warpfire-writer".to_owned());
        let handle = Some(thread.spawn(move || theirs.run())?);
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
            tracing::error!("the writer thread panicked");
        }
    }
}
