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

use crate::limits::{BEHIND_MAX_BYTES, BEHIND_STRIPES_MIN, SUBMIT_MAX_BYTES};
use crate::pins::Pins;
use crate::table::Table;

/// A stripe and the bytes in it.
pub(crate) struct Flight {
    pub(crate) segment: SegmentId,
    /// Payload bytes of the segment before this stripe.
    pub(crate) base_bytes: u64,
    pub(crate) stripe: PreparedStripe,
    pub(crate) buf: StripeBuf,
}

struct Waiting {
    flight: Arc<Flight>,
    /// Whether nothing follows it in its segment.
    is_last: bool,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    payload_bytes: usize,
    driven: bool,
    launched: u64,
    landed: u64,
    failure: Option<PoolError>,
    /// Buffers to use again.
    spare: Vec<StripeBuf>,
    has_thread: bool,
    stopped: bool,
}

/// The queue of stripes.
pub(crate) struct Behind {
    queue: Mutex<Queue>,
    changed: Condvar,
    /// Stripes in the queue, for readers that look without the lock.
    in_memory: AtomicUsize,
    table: Arc<Mutex<Table>>,
    pins: Arc<Pins>,
}

impl Behind {
    pub(crate) fn new(table: Arc<Mutex<Table>>, pins: Arc<Pins>) -> Self {
        Behind {
            queue: Mutex::default(),
            changed: Condvar::new(),
            in_memory: AtomicUsize::new(0),
            table,
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
    pub(crate) fn launch(&self, flight: Flight) -> Result<(), PoolError> {
        let mut queue = self.queue.lock();
        queue.payload_bytes += flight.buf.len();
        queue.launched += 1;
        queue.waiting.push_back(Waiting { flight: Arc::new(flight), is_last: false });
        self.in_memory.fetch_add(1, Ordering::Release);
        self.changed.notify_all();
        let wanted = queue.launched;
        self.wait_until(queue, |queue| {
            let few = queue.payload_bytes <= BEHIND_MAX_BYTES || queue.waiting.len() <= BEHIND_STRIPES_MIN;
            queue.landed >= wanted || queue.has_thread && few
        })
    }

    /// Waits until all that was launched before this call has landed.
    pub(crate) fn settle(&self) -> Result<(), PoolError> {
        let queue = self.queue.lock();
        let wanted = queue.launched;
        self.wait_until(queue, |queue| queue.landed >= wanted)
    }

    fn wait_until<'q>(
        &'q self,
        mut queue: MutexGuard<'q, Queue>,
        is_enough: impl Fn(&Queue) -> bool,
    ) -> Result<(), PoolError> {
        loop {
            if let Some(failure) = &queue.failure {
                return Err(failure.clone());
            }
            if is_enough(&queue) {
                return Ok(());
            }
            if queue.driven {
                self.changed.wait(&mut queue);
            } else {
                queue = self.drive(queue);
            }
        }
    }

    /// Submits the front of the queue. Nobody else drives it.
    fn drive<'q>(&'q self, mut queue: MutexGuard<'q, Queue>) -> MutexGuard<'q, Queue> {
        queue.driven = true;
        let mut bytes = 0;
        let fits = |waiting: &&Waiting| {
            let is_first = bytes == 0;
            bytes += waiting.flight.buf.len();
            is_first || bytes <= SUBMIT_MAX_BYTES
        };
        let batch: Vec<Arc<Flight>> =
            queue.waiting.iter().take_while(fits).map(|w| w.flight.clone()).collect();
        drop(queue);
        let mut turn = Turn { behind: self, is_over: false };
        let count = batch.len();
        let result = submit(batch);
        let mut queue = self.queue.lock();
        match result {
            Ok(()) => (0..count).for_each(|_| self.land(&mut queue)),
            Err(e) => queue.failure = Some(e),
        }
        queue.driven = false;
        self.changed.notify_all();
        turn.is_over = true;
        queue
    }

    fn land(&self, queue: &mut Queue) {
        let Waiting { flight, is_last } =
            queue.waiting.pop_front().expect("only the driver takes stripes out");
        {
            let mut table = self.table.lock();
            table.grow(flight.segment, flight.stripe.rows());
            if is_last {
                table.seal(flight.segment, &self.pins);
            }
        }
        queue.landed += 1;
        queue.payload_bytes -= flight.buf.len();
        // Released after the stripe became readable from the pool: who sees it gone finds it there.
        self.in_memory.fetch_sub(1, Ordering::Release);
        let flight = Arc::into_inner(flight).expect("the driver let go of the stripes");
        let spare_max = (BEHIND_MAX_BYTES / flight.buf.len().max(1)).max(BEHIND_STRIPES_MIN);
        if queue.has_thread && queue.spare.len() < spare_max || queue.spare.is_empty() {
            queue.spare.push(flight.buf);
        }
    }

    /// Seals a segment whose last stripe was launched: now or when that lands.
    pub(crate) fn seal(&self, segment: SegmentId) {
        let mut queue = self.queue.lock();
        match queue.waiting.iter_mut().rev().find(|w| w.flight.segment == segment) {
            Some(last) => last.is_last = true,
            None => self.table.lock().seal(segment, &self.pins),
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
        for Waiting { flight, .. } in queue.waiting.iter().rev().filter(|w| w.flight.segment == slice.segment)
        {
            let from = slice.offset_bytes.max(flight.base_bytes);
            let to = end.min(flight.base_bytes + flight.buf.len() as u64);
            let place = |at: u64| usize::try_from(at - slice.offset_bytes).expect("a slice fits memory");
            if flight.base_bytes < end {
                on_devices = on_devices.min(place(from));
            }
            if from < to {
                let at = usize::try_from(from - flight.base_bytes).expect("a buffer fits memory");
                flight.buf.read(at, &mut out[place(from)..place(to)]);
            }
        }
        on_devices
    }

    fn run(&self) {
        let mut queue = self.queue.lock();
        while !queue.stopped && queue.failure.is_none() {
            if queue.driven || queue.waiting.is_empty() {
                self.changed.wait(&mut queue);
            } else {
                queue = self.drive(queue);
            }
        }
    }
}

fn submit(batch: Vec<Arc<Flight>>) -> Result<(), PoolError> {
    let stripes: Vec<_> = batch.iter().map(|flight| (&flight.stripe, &flight.buf)).collect();
    PreparedStripe::submit(&stripes)
}

/// Lets nobody wait for a driver that panicked.
///
/// It knows by its end and not by `thread::panicking`: what unwinds may have begun before the turn, in a thread that
/// closes what it holds on its way out.
struct Turn<'b> {
    behind: &'b Behind,
    is_over: bool,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            let mut queue = self.behind.queue.lock();
            queue.failure = Some(PoolError::Failed { reason: "writing stripes panicked".into() });
            queue.driven = false;
            self.behind.changed.notify_all();
        }
    }
}

/// The thread that writes stripes while the next ones fill. It ends when this is dropped.
pub(crate) struct WriterThread {
    behind: Arc<Behind>,
    handle: Option<JoinHandle<()>>,
}

impl WriterThread {
    pub(crate) fn start(behind: &Arc<Behind>) -> std::io::Result<Self> {
        let behind = Arc::clone(behind);
        let theirs = Arc::clone(&behind);
        let thread = std::thread::Builder::new().name("warpfire-writer".to_owned());
        let handle = Some(thread.spawn(move || theirs.run())?);
        behind.queue.lock().has_thread = true;
        Ok(WriterThread { behind, handle })
    }
}

impl Drop for WriterThread {
    fn drop(&mut self) {
        self.behind.queue.lock().stopped = true;
        self.behind.changed.notify_all();
        if let Some(handle) = self.handle.take()
            && handle.join().is_err()
        {
            tracing::error!("the writer thread panicked");
        }
    }
}
