//! The memory of a queue's entries, which the kernel and this process write in turn.
//!
//! An entry has a header and a payload (`struct fuse_uring_req_header` and the buffer beside it):
//!
//! | bytes of the header | request | answer |
//! |---|---|---|
//! | 0..128 | `struct fuse_in_header` | `struct fuse_out_header` |
//! | 128..256 | fixed fields of the request | – |
//! | 256..264 | flags, none so far | |
//! | 264..272 | number by which the answer is committed | |
//! | 272..276 | bytes of the payload | the same |
//!
//! # Invariants
//! 1. The kernel writes an entry only while it is the kernel's: from its registration or the commit of an
//!    answer to the completion that brings a request. Between these the entry is this process's
//!    (`QueueShared`).
//! 2. The memory outlives the entries: the threads of a queue end after the kernel has returned the last one
//!    for good, and each reply has a share in the memory.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::io;
use std::ptr::NonNull;

/// Bytes of a header.
pub(super) const HEADER_BYTES: usize = 288;

/// Bytes from one header to the next.
const HEADER_STRIDE: usize = 320;

const FIXED_FIELDS: usize = 128;
const COMMIT_NUMBER: usize = 264;
const PAYLOAD_LEN: usize = 272;

/// Most bytes of the fixed fields of a request.
pub(super) const FIXED_FIELDS_BYTES_MAX: usize = 128;

const PAGE: usize = 4096;

/// The memory of some entries. Pages that were never used take none.
pub(super) struct EntryMemory {
    start: NonNull<u8>,
    layout: Layout,
    entries: usize,
    payload_bytes: usize,
}

// SAFETY: it is plain memory. The users of an entry take turns (invariant 1).
#[expect(unsafe_code, reason = "memory that the kernel writes")]
unsafe impl Send for EntryMemory {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "memory that the kernel writes")]
unsafe impl Sync for EntryMemory {}

#[expect(unsafe_code, reason = "memory that the kernel writes")]
impl EntryMemory {
    /// Memory of `entries` entries with payloads of `payload_bytes`.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub(super) fn new(entries: usize, payload_bytes: usize) -> io::Result<EntryMemory> {
        assert!(entries > 0, "a queue has entries");
        let payload_bytes = payload_bytes.next_multiple_of(PAGE);
        let headers = (entries * HEADER_STRIDE).next_multiple_of(PAGE);
        let layout = Layout::from_size_align(headers + entries * payload_bytes, PAGE)
            .expect("some megabytes for some entries");
        // SAFETY: the size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let start = NonNull::new(start).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(EntryMemory { start, layout, entries, payload_bytes })
    }

    /// Bytes of each payload.
    pub(super) fn payload_bytes(&self) -> usize {
        self.payload_bytes
    }

    pub(super) fn header(&self, entry: usize) -> *mut u8 {
        assert!(entry < self.entries, "the entry is one of this queue");
        // SAFETY: the headers come first, and this one is inside the memory.
        unsafe { self.start.as_ptr().add(entry * HEADER_STRIDE) }
    }

    pub(super) fn payload(&self, entry: usize) -> *mut u8 {
        assert!(entry < self.entries, "the entry is one of this queue");
        let headers = (self.entries * HEADER_STRIDE).next_multiple_of(PAGE);
        // SAFETY: the payloads come behind the headers, and this one is inside the memory.
        unsafe { self.start.as_ptr().add(headers + entry * self.payload_bytes) }
    }

    /// The header of a request, without its fixed fields.
    ///
    /// # Safety
    /// The entry is this process's, and nobody writes it.
    pub(super) unsafe fn request_header(&self, entry: usize) -> RequestHeader {
        let header = self.header(entry);
        // SAFETY: the ranges are inside the header, and nobody writes them.
        unsafe {
            RequestHeader {
                in_header: header.cast::<[u8; 40]>().read(),
                commit_number: u64::from_ne_bytes(header.add(COMMIT_NUMBER).cast::<[u8; 8]>().read()),
                payload_len: u32::from_ne_bytes(header.add(PAYLOAD_LEN).cast::<[u8; 4]>().read()) as usize,
            }
        }
    }

    /// The fixed fields and the payload of a request, of these lengths.
    ///
    /// # Safety
    /// The entry is this process's, and nobody writes its fixed fields, nor so many bytes of its payload,
    /// while the slices are used.
    pub(super) unsafe fn request(&self, entry: usize, fixed: usize, payload: usize) -> (&[u8], &[u8]) {
        assert!(fixed <= FIXED_FIELDS_BYTES_MAX && payload <= self.payload_bytes, "lengths were checked");
        // SAFETY: the ranges are inside the entry, and nobody writes them.
        unsafe {
            (
                std::slice::from_raw_parts(self.header(entry).add(FIXED_FIELDS), fixed),
                std::slice::from_raw_parts(self.payload(entry), payload),
            )
        }
    }

    /// Writes bytes of an answer into the payload.
    ///
    /// # Safety
    /// The entry is this process's, and nobody else uses its payload.
    pub(super) unsafe fn write_payload(&self, entry: usize, at: usize, bytes: &[u8]) {
        assert!(
            at + bytes.len() <= self.payload_bytes,
            "an answer is at most as long as the kernel asked for"
        );
        // SAFETY: the range is inside the payload, and nobody else uses it.
        unsafe { self.payload(entry).add(at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    /// Writes the header of an answer.
    ///
    /// # Safety
    /// The entry is this process's, and nobody else uses its header.
    pub(super) unsafe fn write_answer(&self, entry: usize, out_header: [u8; 16], payload_len: u32) {
        let header = self.header(entry);
        // SAFETY: the ranges are inside the header, and nobody else uses it.
        unsafe {
            header.cast::<[u8; 16]>().write(out_header);
            header.add(PAYLOAD_LEN).cast::<[u8; 4]>().write(payload_len.to_ne_bytes());
        }
    }
}

/// The parts of a request's header that have a place of their own.
pub(super) struct RequestHeader {
    pub(super) in_header: [u8; 40],
    pub(super) commit_number: u64,
    pub(super) payload_len: usize,
}

impl Drop for EntryMemory {
    #[expect(unsafe_code, reason = "memory that the kernel writes")]
    fn drop(&mut self) {
        // SAFETY: it was allocated with this layout, and the kernel has no entry any more (invariant 2).
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}
