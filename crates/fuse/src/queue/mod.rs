//! Queues: requests come and answers go by io_uring, on the processor of the program that asks.
//!
//! The kernel has a queue for each processor. A server registers *entries*, pieces of its memory, in each
//! ([FUSE over io_uring](https://docs.kernel.org/filesystems/fuse-io-uring.html)). A request goes into an
//! entry of the queue of the processor that it is made on. One call commits the answers of entries and waits
//! for the next requests, where `/dev/fuse` takes two calls for each request.
//!
//! ```text
//!   entry: registered ──▶ with the kernel ──a request──▶ served ──▶ answered ──committed──┐
//!                              ▲                                                          │
//!                              └──────────────────────────────────────────────────────────┘
//! ```
//! The kernel still sends FORGET and INTERRUPT by `/dev/fuse`, and takes notifications there.
//!
//! # Invariants
//! 1. An answer is committed when the call of the filesystem has returned *and* the reply was sent, whichever
//!    comes last: until the call returns it may use the bytes of the request, which lie where those of the
//!    answer go (`QueueEntry::progress`).
//! 2. The thread of a queue commits its answers and takes its requests. Other threads hand it the entries
//!    that they have answered and wake it: the kernel gives up the requests of a thread that ends.
//! 3. The kernel holds back all requests until each of its queues has an entry, or until a registration
//!    fails. Once each queue has an entry it sends requests by them, even if others were refused: so a
//!    thread serves its queues if each has an entry. Otherwise the kernel sends all requests by `/dev/fuse`.
//!    A server that has announced queues and cannot register entries makes one registration that fails
//!    (`refuse`).
//! 4. A queue ends when the connection has ended (`end`) and the kernel has returned all its entries.

mod memory;
mod relief;
mod ring;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::fs;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use parking_lot::{Mutex, MutexGuard};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use self::memory::{EntryMemory, FIXED_FIELDS_BYTES_MAX};
use self::relief::Relief;
use self::ring::Ring;
use crate::fields::Fields;
use crate::request::Request;

/// Entries of all queues together, unless that are fewer than the least for each queue. Each can take a
/// request of the largest size, so they bound the memory of a server.
const ENTRIES_OF_ALL: usize = 64;

/// Requests of a processor that a server can have at once, at least and at most; the others wait in the
/// kernel.
const ENTRIES_MIN: usize = 4;
const ENTRIES_MAX: usize = 16;

/// Processors of the largest machine that queues are used on: the kernel wants an entry for each processor
/// that the machine may ever have.
const PROCESSORS_MAX: usize = 256;

/// Where the kernel says which processors the machine may ever have.
const POSSIBLE_PROCESSORS: &str = "/sys/devices/system/cpu/possible";

/// The call of the filesystem has returned.
const RETURNED: u8 = 1;
/// The reply was sent.
const ANSWERED: u8 = 2;

thread_local! {
    /// On the thread of a queue: whether other requests waited when this one was taken.
    static OTHERS_WAIT: Cell<Option<bool>> = const { Cell::new(None) };
}

/// On the thread of a queue, whether other requests waited when the one that it serves was taken; `None` on
/// other threads.
#[must_use]
pub fn other_requests_wait() -> Option<bool> {
    OTHERS_WAIT.get()
}

/// An entry of a queue.
struct QueueEntry {
    /// The kernel's number of the queue.
    queue: u16,
    /// `RETURNED` and `ANSWERED`.
    progress: AtomicU8,
    answer: Mutex<EntryAnswer>,
}

/// The answer in an entry, and where its request was.
#[derive(Default)]
struct EntryAnswer {
    commit_number: u64,
    /// Whether the request has bytes in the payload.
    payload_is_used: bool,
    unique: u64,
    error: i32,
    len: usize,
    /// The answer, if the request had bytes in the payload.
    held: Vec<u8>,
}

/// The part of a queue that replies use.
pub(crate) struct QueueShared {
    memory: EntryMemory,
    /// The kernel's numbers of the queues.
    numbers: Vec<u16>,
    entries: Vec<QueueEntry>,
    /// Entries that other threads have answered.
    answered: Mutex<Vec<usize>>,
    /// Whether the connection has ended. An entry that is returned with an error does not say so.
    has_ended: AtomicBool,
    wake: OwnedFd,
}

/// The place of an answer to a request that came by a queue.
pub(crate) struct QueueReply {
    queue: Arc<QueueShared>,
    entry: usize,
}

impl QueueReply {
    /// Takes an answer: fields, then bytes.
    pub(crate) fn send(&self, unique: u64, error: i32, fields: &[u8], data: &[u8]) {
        let entry = &self.queue.entries[self.entry];
        let mut answer = entry.answer.lock();
        answer.unique = unique;
        answer.error = error;
        answer.len = fields.len() + data.len();
        if answer.payload_is_used {
            answer.held.clear();
            answer.held.extend_from_slice(fields);
            answer.held.extend_from_slice(data);
        } else {
            self.queue.write_payload(self.entry, fields, data);
        }
        drop(answer);
        if entry.progress.fetch_or(ANSWERED, Ordering::AcqRel) & RETURNED != 0 {
            self.queue.hand_over(self.entry);
        }
    }
}

impl QueueShared {
    #[expect(unsafe_code, reason = "memory that the kernel writes")]
    fn write_payload(&self, entry: usize, fields: &[u8], data: &[u8]) {
        // SAFETY: the entry is this process's until its answer is committed, which its only reply and the
        // thread of the queue do one after the other. The request has no bytes in the payload, or its call
        // has returned.
        unsafe {
            self.memory.write_payload(entry, 0, fields);
            self.memory.write_payload(entry, fields.len(), data);
        }
    }

    fn wake(&self) {
        // It fails only if the counter is at its limit: then the thread is to wake up already.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

/// The queues of a connection. The threads of each element serve the queues of one processor, or of several
/// if there are more processors than threads.
pub(crate) struct Queues(pub(crate) Vec<Queue>);

/// Queues that share threads, of which one works.
pub(crate) struct Queue {
    shared: Arc<QueueShared>,
    /// The thread that has it works.
    ring: Mutex<Ring>,
    relief: Relief,
    /// The processor of the programs that ask, if it is a single one.
    processor: Option<usize>,
}

impl Queues {
    /// Makes what `threads` working threads need to serve queues with payloads of `payload_bytes`.
    ///
    /// # Errors
    /// `Unsupported` if the machine has too many processors; errors of io_uring.
    pub(crate) fn prepare(device: RawFd, threads: usize, payload_bytes: usize) -> io::Result<Queues> {
        let unsupported =
            || io::Error::new(io::ErrorKind::Unsupported, "the machine has too many processors");
        let possible = fs::read_to_string(POSSIBLE_PROCESSORS)?;
        let processors = processors_in(&possible)
            .filter(|processors| *processors <= PROCESSORS_MAX)
            .ok_or_else(unsupported)?;
        let threads = threads.clamp(1, processors);
        let entries = (ENTRIES_OF_ALL / processors).clamp(ENTRIES_MIN, ENTRIES_MAX);
        let queues = (0..threads).map(|thread| {
            let numbers: Vec<usize> = (thread..processors).step_by(threads).collect();
            Queue::new(device, &numbers, entries, payload_bytes)
        });
        Ok(Queues(queues.collect::<io::Result<_>>()?))
    }
}

/// The number of processors in a list that begins with processor 0 and has no gap: `0-7`.
fn processors_in(list: &str) -> Option<usize> {
    let list = list.trim();
    if list == "0" {
        return Some(1);
    }
    let last: usize = list.strip_prefix("0-")?.parse().ok()?;
    last.checked_add(1)
}

impl Queue {
    fn new(device: RawFd, numbers: &[usize], entries: usize, payload_bytes: usize) -> io::Result<Queue> {
        let number_of = |number: &usize| u16::try_from(*number).expect("there are few processors");
        let entry = |number: &usize| QueueEntry {
            queue: number_of(number),
            progress: AtomicU8::new(0),
            answer: Mutex::default(),
        };
        let entries: Vec<QueueEntry> =
            numbers.iter().flat_map(|number| (0..entries).map(|_| entry(number))).collect();
        let ring = Ring::new(device, entries.len())?;
        let shared = QueueShared {
            memory: EntryMemory::new(entries.len(), payload_bytes)?,
            numbers: numbers.iter().map(number_of).collect(),
            entries,
            answered: Mutex::default(),
            has_ended: AtomicBool::new(false),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        };
        Ok(Queue {
            shared: Arc::new(shared),
            ring: Mutex::new(ring),
            relief: Relief::default(),
            processor: Some(numbers).filter(|numbers| numbers.len() == 1).map(|numbers| numbers[0]),
        })
    }

    /// Registers all entries. The thread that calls it works first.
    ///
    /// # Errors
    /// The kernel refuses all entries of a queue. Then it sends all requests by `/dev/fuse`.
    pub(crate) fn register(&self) -> io::Result<()> {
        self.ring.lock().register(&self.shared)
    }

    /// Makes a registration that fails, so that the kernel sends all requests by `/dev/fuse` and holds none
    /// back (invariant 3).
    pub(crate) fn refuse(&self) {
        let no_queue = u16::MAX;
        if let Err(e) = self.ring.lock().register_in(no_queue) {
            tracing::error!(error = %e, "the kernel waits for queues; unmount the pool and mount it again");
        }
    }

    /// The connection has ended: the threads end soon.
    pub(crate) fn end(&self) {
        self.shared.has_ended.store(true, Ordering::Release);
        self.shared.wake();
    }

    /// Serves requests until the connection has ended. The first thread works at once; another one
    /// `stands_by`. `start_another` starts one of those, and returns whether it could. `call` calls the
    /// filesystem for one request.
    ///
    /// # Errors
    /// Errors of io_uring.
    pub(crate) fn serve(
        &self,
        stands_by: bool,
        start_another: &dyn Fn() -> bool,
        call: &dyn Fn(QueueReply, Request, &mut Fields<'_>),
    ) -> io::Result<()> {
        /// Ends the other threads too, also after a panic.
        struct EndOnDrop<'a>(&'a Relief);
        impl Drop for EndOnDrop<'_> {
            fn drop(&mut self) {
                self.0.end();
            }
        }
        let _end = EndOnDrop(&self.relief);
        self.pin();
        let served = self.take_turns(stands_by, start_another, call);
        OTHERS_WAIT.set(None);
        served
    }

    fn take_turns(
        &self,
        stands_by: bool,
        start_another: &dyn Fn() -> bool,
        call: &dyn Fn(QueueReply, Request, &mut Fields<'_>),
    ) -> io::Result<()> {
        // If each entry holds up a thread, there is nothing left to serve.
        let call_another = || self.relief.call_another(self.shared.entries.len(), start_another);
        let mut ring = if stands_by { self.relieve(true) } else { Some(self.ring.lock()) };
        if ring.is_some() {
            call_another();
        }
        while let Some(mut working) = ring {
            working.commit_answered(&self.shared);
            let Some(entry) = working.next_request() else {
                if !working.is_in_use() && self.shared.has_ended.load(Ordering::Acquire) {
                    return Ok(());
                }
                working.wait(&self.shared)?;
                ring = Some(working);
                continue;
            };
            // Programs whose answers are ready do not wait for this request.
            working.submit()?;
            OTHERS_WAIT.set(Some(working.has_request()));
            drop(working);
            let is_answered = self.relief.watch(|| self.shared.serve(entry, call));
            ring = match self.ring.try_lock() {
                Some(mut working) => {
                    if is_answered {
                        working.commit(&self.shared, entry);
                    }
                    Some(working)
                }
                // Another thread works now.
                None => {
                    if is_answered {
                        self.shared.hand_over(entry);
                    }
                    let ring = self.relieve(false);
                    if ring.is_some() {
                        call_another();
                    }
                    ring
                }
            };
        }
        Ok(())
    }

    /// Stands by until the thread that works is held up, and takes its place; `None` if the queue has ended.
    /// `is_counted` says whether this thread was started to stand by.
    fn relieve(&self, mut is_counted: bool) -> Option<MutexGuard<'_, Ring>> {
        while self.relief.stand_by(is_counted) {
            is_counted = false;
            // Otherwise the other thread has just come back.
            if let Some(ring) = self.ring.try_lock() {
                return Some(ring);
            }
        }
        None
    }

    /// Moves this thread to the processor of its queue. A thread that may not go there serves where it is.
    fn pin(&self) {
        let Some(processor) = self.processor else { return };
        let mut set = rustix::thread::CpuSet::new();
        set.set(processor);
        if let Err(e) = rustix::thread::sched_setaffinity(None, &set) {
            tracing::debug!(processor, error = %e, "a queue is served on another processor");
        }
    }
}

impl QueueShared {
    /// Calls the filesystem for the request in an entry. Returns whether it was answered already; otherwise
    /// the thread that answers it hands the entry over.
    #[expect(unsafe_code, reason = "memory that the kernel writes")]
    fn serve(self: &Arc<Self>, entry: usize, call: &dyn Fn(QueueReply, Request, &mut Fields<'_>)) -> bool {
        let slot = &self.entries[entry];
        // SAFETY: the kernel has given the entry to this process, and its request has no reply yet.
        let header = unsafe { self.memory.request_header(entry) };
        slot.progress.store(0, Ordering::Relaxed);
        {
            let mut answer = slot.answer.lock();
            answer.commit_number = header.commit_number;
            answer.payload_is_used = header.payload_len > 0;
        }
        let reply = QueueReply { queue: Arc::clone(self), entry };
        let request = Request::decode_header(&mut Fields::new(&header.in_header));
        let request = request.expect("a header of 40 bytes has all fields");
        let fixed = (request.len as usize).checked_sub(header.in_header.len() + header.payload_len);
        match fixed {
            Some(fixed)
                if fixed <= FIXED_FIELDS_BYTES_MAX && header.payload_len <= self.memory.payload_bytes() =>
            {
                // SAFETY: the entry is this process's. The answer overwrites its payload after the call has
                // returned, or at once if the request has nothing in it.
                let (fields, payload) = unsafe { self.memory.request(entry, fixed, header.payload_len) };
                call(reply, request, &mut Fields::in_two(fields, payload));
            }
            _ => {
                tracing::error!(bytes = request.len, "the kernel sent a request that is longer than it says");
                reply.send(request.unique(), -Errno::IO.raw_os_error(), &[], &[]);
            }
        }
        slot.progress.fetch_or(RETURNED, Ordering::AcqRel) & ANSWERED != 0
    }

    /// Gives an entry with an answer to the thread that works.
    fn hand_over(&self, entry: usize) {
        self.answered.lock().push(entry);
        self.wake();
    }
}
