//! The ring of a queue: registers and commits entries, and takes requests.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, RawFd};

use io_uring::{IoUring, opcode, squeue, types};
use rustix::event::PollFlags;
use rustix::io::Errno;

use super::QueueShared;
use super::memory::HEADER_BYTES;
use crate::connection::OUT_HEADER_BYTES;

/// `enum fuse_uring_cmd`.
const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;

/// The completion by which other threads wake the one that works.
const WOKEN: u64 = u64::MAX;

/// The ring of a queue. The thread that has it works.
pub(super) struct Ring {
    ring: IoUring<squeue::Entry128>,
    /// The connection to the kernel.
    device: RawFd,
    /// Entries that the kernel has.
    with_kernel: usize,
    /// Entries with requests that nobody serves yet.
    taken: VecDeque<usize>,
    /// Where the entries lie, two `struct iovec` for each. The kernel reads them while it registers.
    vectors: Vec<[usize; 4]>,
}

impl Ring {
    /// A ring for so many entries of queues of the connection `device`.
    ///
    /// # Errors
    /// Errors of io_uring.
    pub(super) fn new(device: RawFd, entries: usize) -> io::Result<Ring> {
        // One more for the wait to be woken.
        let size = u32::try_from((entries + 1).next_power_of_two()).expect("there are few entries");
        // The thread that has committed an answer takes the next request in the same call, so the kernel need
        // not interrupt it for that.
        let ring = IoUring::builder().setup_coop_taskrun().setup_taskrun_flag().build(size)?;
        Ok(Ring { ring, device, with_kernel: 0, taken: VecDeque::new(), vectors: Vec::new() })
    }

    /// The entry of the next request that was taken and that nobody serves yet.
    pub(super) fn next_request(&mut self) -> Option<usize> {
        self.taken.pop_front()
    }

    /// Whether the kernel has entries.
    pub(super) fn is_in_use(&self) -> bool {
        self.with_kernel > 0
    }

    /// Registers all entries of the queues.
    ///
    /// # Errors
    /// The kernel refuses all entries of a queue.
    #[expect(unsafe_code, reason = "the kernel is given memory of this process")]
    pub(super) fn register(&mut self, shared: &QueueShared) -> io::Result<()> {
        let memory = &shared.memory;
        self.vectors = (0..shared.entries.len())
            .map(|entry| {
                let (header, payload) = (memory.header(entry), memory.payload(entry));
                [
                    header.expose_provenance(),
                    HEADER_BYTES,
                    payload.expose_provenance(),
                    memory.payload_bytes(),
                ]
            })
            .collect();
        for entry in 0..self.vectors.len() {
            let address = self.vectors[entry].as_ptr().expose_provenance() as u64;
            let sqe = command(self.device, REGISTER, shared.entries[entry].queue, 0, Some(address));
            // SAFETY: the memory of the entry lives until the kernel has returned it, and the vectors live as
            // long as the ring.
            unsafe { self.push(&sqe.user_data(entry as u64)) };
            self.with_kernel += 1;
        }
        self.push_wake(shared);
        self.submit_all()?;
        // A registration that fails is complete at once. The first requests may be here too.
        let refused = self.take_completions(shared);
        if let Some((_, reason)) = refused.first() {
            tracing::warn!(entries = refused.len(), error = %reason, "the kernel refuses entries of queues");
        }
        let is_refused = |entry: usize| refused.iter().any(|(other, _)| *other == entry);
        let has_entry = |number: u16| {
            (0..shared.entries.len()).any(|entry| shared.entries[entry].queue == number && !is_refused(entry))
        };
        match refused.first() {
            Some((_, reason)) if !shared.numbers.iter().all(|number| has_entry(*number)) => {
                Err((*reason).into())
            }
            _ => Ok(()),
        }
    }

    /// Registers nothing in a queue that does not exist.
    #[expect(unsafe_code, reason = "the kernel is given memory of this process")]
    pub(super) fn register_in(&mut self, no_queue: u16) -> io::Result<()> {
        let nothing = [0usize; 4];
        let address = nothing.as_ptr().expose_provenance() as u64;
        let sqe = command(self.device, REGISTER, no_queue, 0, Some(address));
        // SAFETY: the kernel refuses the number of the queue before it reads the address, which is valid.
        unsafe { self.push(&sqe.user_data(WOKEN)) };
        self.submit_all()
    }

    /// Sends all commands so far, also if the kernel is short of memory for a moment.
    fn submit_all(&mut self) -> io::Result<()> {
        while !self.ring.submission().is_empty() {
            self.submit()?;
        }
        Ok(())
    }

    /// # Safety
    /// What the command names stays valid until the kernel has completed it.
    #[expect(unsafe_code, reason = "the kernel is given memory of this process")]
    unsafe fn push(&mut self, command: &squeue::Entry128) {
        // SAFETY: the caller vouches for it.
        let pushed = unsafe { self.ring.submission().push(command) };
        pushed.expect("the ring has room for all entries and for the wait to be woken");
    }

    /// Waits for other threads to wake this one, beside its requests. The kernel may complete that after the
    /// ring has been closed, so it is given no memory.
    #[expect(unsafe_code, reason = "the kernel is given memory of this process")]
    fn push_wake(&mut self, shared: &QueueShared) {
        let fd = types::Fd(shared.wake.as_raw_fd());
        let poll = opcode::PollAdd::new(fd, u32::from(PollFlags::IN.bits())).build().user_data(WOKEN);
        // SAFETY: the command names no memory.
        unsafe { self.push(&squeue::Entry128::from(poll)) };
    }

    /// Sends the commands so far, if there are any.
    pub(super) fn submit(&mut self) -> io::Result<()> {
        if self.ring.submission().is_empty() {
            return Ok(());
        }
        self.ring.submit().map(drop).or_else(may_be_tried_again)
    }

    /// Whether a request waits.
    pub(super) fn has_request(&mut self) -> bool {
        !self.taken.is_empty() || !self.ring.completion().is_empty() || self.ring.submission().taskrun()
    }

    /// Sends the commands so far, waits for requests and takes them.
    pub(super) fn wait(&mut self, shared: &QueueShared) -> io::Result<()> {
        self.ring.submit_and_wait(1).map(drop).or_else(may_be_tried_again)?;
        for (entry, reason) in self.take_completions(shared) {
            if reason == Errno::NOMEM {
                // The kernel has not seen the command. The answer is in the entry still.
                self.push_commit(shared, entry);
            } else {
                // The kernel returns the entries of a connection that has ended.
                tracing::debug!(entry, error = %reason, "the kernel has returned an entry of a queue");
            }
        }
        Ok(())
    }

    /// Takes requests. Returns the entries that the kernel returns without one, each with its reason.
    fn take_completions(&mut self, shared: &QueueShared) -> Vec<(usize, Errno)> {
        let mut returned = Vec::new();
        let mut is_woken = false;
        for done in self.ring.completion() {
            if done.user_data() == WOKEN {
                is_woken = true;
                continue;
            }
            self.with_kernel -= 1;
            let entry = usize::try_from(done.user_data()).expect("the number of an entry");
            if done.result() >= 0 {
                self.taken.push_back(entry);
            } else {
                returned.push((entry, Errno::from_raw_os_error(-done.result())));
            }
        }
        if is_woken {
            // Sets the counter to 0. Another thread may count again before the next wait, which then ends.
            let _ = rustix::io::read(&shared.wake, &mut [0; 8]);
            self.push_wake(shared);
        }
        returned
    }

    /// Commits the answers of other threads with the next call.
    pub(super) fn commit_answered(&mut self, shared: &QueueShared) {
        let mut answered = std::mem::take(&mut *shared.answered.lock());
        answered.drain(..).for_each(|entry| self.commit(shared, entry));
    }

    /// Commits the answer in an entry with the next call.
    #[expect(unsafe_code, reason = "memory that the kernel writes")]
    pub(super) fn commit(&mut self, shared: &QueueShared, entry: usize) {
        let slot = &shared.entries[entry];
        let mut answer = slot.answer.lock();
        if answer.payload_is_used {
            shared.write_payload(entry, &answer.held, &[]);
            answer.held.clear();
        }
        let len = u32::try_from(answer.len).expect("an answer is at most as long as a payload");
        let mut out_header = [0; OUT_HEADER_BYTES];
        let out_len = len + u32::try_from(OUT_HEADER_BYTES).expect("16 bytes");
        out_header[..4].copy_from_slice(&out_len.to_ne_bytes());
        out_header[4..8].copy_from_slice(&answer.error.to_ne_bytes());
        out_header[8..].copy_from_slice(&answer.unique.to_ne_bytes());
        // SAFETY: the call has returned and the reply was sent, so nobody else uses the entry.
        unsafe { shared.memory.write_answer(entry, out_header, len) };
        drop(answer);
        self.push_commit(shared, entry);
    }

    #[expect(unsafe_code, reason = "the kernel is given memory of this process")]
    fn push_commit(&mut self, shared: &QueueShared, entry: usize) {
        let slot = &shared.entries[entry];
        let commit_number = slot.answer.lock().commit_number;
        let sqe = command(self.device, COMMIT_AND_FETCH, slot.queue, commit_number, None);
        // SAFETY: the memory of the entry lives until the kernel has returned it.
        unsafe { self.push(&sqe.user_data(entry as u64)) };
        self.with_kernel += 1;
    }
}

/// Interruptions, and a kernel that is short of memory or of room for completions for a moment.
fn may_be_tried_again(error: io::Error) -> io::Result<()> {
    let errno = Errno::from_io_error(&error);
    if matches!(errno, Some(Errno::INTR | Errno::AGAIN | Errno::BUSY | Errno::NOMEM)) {
        Ok(())
    } else {
        Err(error)
    }
}

/// A command to the kernel, about a queue of the connection `fd`.
#[expect(unsafe_code, reason = "the crate io-uring has no name for a field of commands")]
fn command(
    fd: i32,
    operation: u32,
    queue: u16,
    commit_number: u64,
    vectors: Option<u64>,
) -> squeue::Entry128 {
    let mut body = [0; 80];
    body[8..16].copy_from_slice(&commit_number.to_ne_bytes());
    body[16..18].copy_from_slice(&queue.to_ne_bytes());
    let mut sqe = opcode::UringCmd80::new(types::Fd(fd), operation).cmd(body).addr(vectors).build();
    if vectors.is_some() {
        /// Where `struct io_uring_sqe` has `len`.
        const LEN: usize = 24;
        // SAFETY: an entry is a `struct io_uring_sqe` of 128 bytes.
        unsafe { std::ptr::from_mut(&mut sqe).cast::<u8>().add(LEN).cast::<u32>().write_unaligned(2) };
    }
    sqe
}
