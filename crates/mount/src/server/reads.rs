//! READ: the bytes of files.
//!
//! A read that is alone is answered by the thread that took it from the kernel. Reads beside which other
//! requests wait go to the threads of `read_threads`. There they form *batches*: a thread takes all reads
//! that have come since it was called, and the devices get them together. So the more programs read, the
//! fewer threads are woken for each read.
//!
//! ```text
//!   read_content ──alone──▶ ContentRead::answer ◀── one read, or a batch that failed ──┐
//!        └──others wait──▶ ReadBatches ──a thread takes a batch──▶ answer_batch ────────┘
//! ```
//!
//! # Invariants
//! 1. One thread is called for each batch, and it takes the oldest one (`ReadBatches`;
//!    `tests::every_read_is_in_one_batch_and_each_batch_needs_a_thread`).
//! 2. A read fails alone: if a batch fails, each of its reads is made again by itself (`answer_batch`;
//!    `bad_days::readers_of_sound_files_beside_a_damaged_one_get_their_bytes`).
//! 3. A device that does not answer holds up only reads that need it: others share no batch with them, or the
//!    batch has a time limit (`Fs::may_read_together`).
//! 4. The reads of a batch take at most `BATCH_BYTES_MAX` of memory together, as one of the longest does.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::slice;
use std::sync::Arc;

use parking_lot::Mutex;
use tracing::Span;
use tracing::span::EnteredSpan;
use warpfire_env::AlignedBuf;
use warpfire_fs::{Fs, NodeRef, ReadAt};
use warpfire_fuse::{INodeNo, ReadRequest, ReplyData, Request};
use warpfire_meta::Storage;
use warpfire_units::BLOCK_BYTES;

use super::request::{RequestScope, enter_request};
use super::{Refusal, Server};
use crate::blocking_threads::BlockingThreads;
use crate::failed_requests::FailedRequests;
use crate::invalidation_gate::{GatePass, InvalidationGate};

/// Most bytes of a batch: those of the longest read that the kernel makes.
const BATCH_BYTES_MAX: usize = 1 << 20;

thread_local! {
    /// The read buffer of a thread. Devices fill its blocks without a copy.
    static READ_BUFFER: RefCell<Option<AlignedBuf>> = const { RefCell::new(None) };
}

/// Calls `read` with a buffer of `len` bytes, which begins at the start of a block.
fn with_buffer<T>(len: usize, read: impl FnOnce(&mut [u8]) -> T) -> T {
    READ_BUFFER.with_borrow_mut(|buffer| {
        if buffer.as_ref().is_none_or(|buffer| buffer.len() < len) {
            *buffer = Some(AlignedBuf::zeroed(len));
        }
        read(buffer.as_mut().map_or(&mut [], |buffer| &mut buffer[..len]))
    })
}

impl<E: Storage> Server<E> {
    pub(super) fn read_content(&self, req: &Request, ino: INodeNo, read: ReadRequest, reply: ReplyData) {
        let span = enter_request(req, "read", ino);
        // The kernel sends the owner of a lock with a direct read, and never with one that fills its pages:
        // a mapping has pages also where the descriptor is direct.
        let fills_pages = !read.has_lock_owner;
        let node = match self.content_node(ino, !fills_pages) {
            Ok((node, had_pages)) => {
                if !had_pages {
                    self.expected_reads.note_first_read();
                }
                node
            }
            Err(Refusal(errno)) => return reply.error(errno),
        };
        let ReadRequest { offset, size, .. } = read;
        let read = ContentRead { node, ino, offset, size, fills_pages, process: req.pid() };
        let failures = &self.context.failures;
        let Some(threads) = self.context.read_threads.as_ref().filter(|threads| self.others_wait(threads))
        else {
            return read.answer(&self.fs, failures, &self.pass(), span, reply);
        };
        // The span goes on where the request does.
        let may_share = self.fs.may_read_together(size as usize);
        if self.read_batches.add(WaitingRead { read, span: span.exit(), reply }, may_share) {
            let (batches, fs) = (Arc::clone(&self.read_batches), Arc::clone(&self.fs));
            let (gate, failures) = (Arc::clone(&self.context.gate), Arc::clone(failures));
            threads.spawn(move || answer_batch(batches.take(), &fs, &failures, &gate));
        }
    }

    /// Whether other requests wait, here or for a device. Then a read must not keep them waiting. A read that
    /// is alone is answered sooner without another thread.
    fn others_wait(&self, read_threads: &BlockingThreads) -> bool {
        read_threads.have_jobs() || self.context.connection.has_request()
    }
}

/// A read request, without its reply.
struct ContentRead {
    node: NodeRef,
    ino: INodeNo,
    offset: u64,
    size: u32,
    /// Whether the kernel puts the bytes into its pages.
    fills_pages: bool,
    process: u32,
}

impl ContentRead {
    /// The bytes that it takes of a buffer: whole blocks.
    fn buffer_bytes(&self) -> usize {
        (self.size as usize).next_multiple_of(BLOCK_BYTES)
    }

    /// Notes which bytes the kernel gets, before they are read.
    fn note(&self, pass: &GatePass<'_>) {
        pass.note_data(self.ino.0, self.offset..self.offset.saturating_add(self.size.into()));
        if let (Some(stale), true) = (pass.stale_pages(), self.fills_pages) {
            stale.note_read(self.ino.0, self.offset, self.size.into());
        }
    }

    /// Reads and answers, under a pass of the mount's gate.
    fn answer<E: Storage>(
        &self,
        fs: &Arc<Fs<E>>,
        failures: &FailedRequests,
        pass: &GatePass<'_>,
        span: EnteredSpan,
        reply: ReplyData,
    ) {
        let ContentRead { ino, offset, size, .. } = *self;
        let bytes = offset..offset.saturating_add(size.into());
        let _request = RequestScope::new(fs, failures, "read", ino, Some(offset), self.process, span)
            .of_content(&self.node, bytes);
        self.note(pass);
        with_buffer(size as usize, |into| match fs.read(&self.node, offset, into).map_err(Refusal::from) {
            Ok(len) => reply.data(&into[..len]),
            Err(Refusal(errno)) => reply.error(errno),
        });
    }
}

/// A read that waits for a thread.
pub(super) struct WaitingRead {
    read: ContentRead,
    span: Span,
    reply: ReplyData,
}

/// Reads that one thread makes together.
struct ReadBatch<R> {
    reads: Vec<R>,
    bytes: usize,
}

/// Batches that wait for a thread, the oldest first. Reads join the last one while it has room.
pub(super) struct ReadBatches<R = WaitingRead>(Mutex<VecDeque<ReadBatch<R>>>);

impl<R> Default for ReadBatches<R> {
    fn default() -> Self {
        ReadBatches(Mutex::default())
    }
}

impl ReadBatches {
    /// Adds a read, to a batch of its own if it may not share one. Returns whether it begins a batch, for
    /// which the caller calls a thread.
    fn add(&self, read: WaitingRead, may_share: bool) -> bool {
        let bytes = if may_share { read.read.buffer_bytes() } else { BATCH_BYTES_MAX };
        self.add_bytes(read, bytes)
    }
}

impl<R> ReadBatches<R> {
    fn add_bytes(&self, read: R, bytes: usize) -> bool {
        let mut batches = self.0.lock();
        if let Some(last) = batches.back_mut()
            && last.bytes + bytes <= BATCH_BYTES_MAX
        {
            last.reads.push(read);
            last.bytes += bytes;
            return false;
        }
        batches.push_back(ReadBatch { reads: vec![read], bytes });
        true
    }

    /// Takes the oldest batch, for a thread that was called.
    fn take(&self) -> ReadBatch<R> {
        self.0.lock().pop_front().expect("one thread is called for each batch")
    }
}

/// Reads and answers a batch. Events of the engine carry no span of a request then, unless a read fails.
fn answer_batch<E: Storage>(
    batch: ReadBatch<WaitingRead>,
    fs: &Arc<Fs<E>>,
    failures: &FailedRequests,
    gate: &InvalidationGate,
) {
    let ReadBatch { reads: waiting, bytes } = batch;
    let pass = gate.pass();
    let alone = match waiting.len() {
        1 => waiting,
        _ => with_buffer(bytes, |buffer| read_together(waiting, buffer, fs, &pass)),
    };
    for WaitingRead { read, span, reply } in alone {
        read.answer(fs, failures, &pass, span.entered(), reply);
    }
}

/// Reads and answers together. Returns the reads if one of them fails; nobody has an answer then.
fn read_together<E: Storage>(
    waiting: Vec<WaitingRead>,
    buffer: &mut [u8],
    fs: &Fs<E>,
    pass: &GatePass<'_>,
) -> Vec<WaitingRead> {
    let mut rest = buffer;
    let mut parts = Vec::with_capacity(waiting.len());
    for WaitingRead { read, .. } in &waiting {
        read.note(pass);
        let (part, later) = rest.split_at_mut(read.buffer_bytes());
        rest = later;
        parts.push(ReadAt::new(read.offset, &mut part[..read.size as usize]));
    }
    let nodes = waiting.iter().map(|waiting| &waiting.read.node);
    let mut files: Vec<_> = nodes.zip(parts.iter_mut().map(slice::from_mut)).collect();
    if fs.read_files(&mut files).is_err() {
        return waiting;
    }
    for (WaitingRead { span, reply, .. }, ReadAt { buf, len, .. }) in waiting.into_iter().zip(parts) {
        let _request = span.entered();
        reply.data(&buf[..len]);
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_read_is_in_one_batch_and_each_batch_needs_a_thread() {
        let batches = ReadBatches::default();
        let sizes = [4096, 4096, BATCH_BYTES_MAX - 8192, 4096, BATCH_BYTES_MAX, 1 << 16];
        let called: Vec<bool> = (0..sizes.len()).map(|read| batches.add_bytes(read, sizes[read])).collect();
        assert_eq!(called, [true, false, false, true, true, true]);
        assert_eq!(batches.take().reads, [0, 1, 2]);
        assert!(!batches.add_bytes(6, 1 << 16), "it joins the last batch");
        assert_eq!(batches.take().reads, [3]);
        assert_eq!(batches.take().reads, [4]);
        assert_eq!(batches.take().reads, [5, 6]);
        assert!(batches.add_bytes(7, 4096), "no batch is left");
    }
}
