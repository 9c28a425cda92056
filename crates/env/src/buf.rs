//! Buffers that devices accept without a copy.
//!
//! 1. `start` is valid for `len` initialised bytes; a mapping is whole huge pages (assert in `map_huge`).
//! 2. Address and length are multiples of the block size.
//! 3. The memory is freed once, in `drop`, with the layout or the length with which it was requested.
//! 4. Memory is *lent* while the kernel may still write from it to a device that does not answer. A buffer
//!    that is dropped with a part of it lent waits in `LOANS` and is freed after the last `end_loan` (test
//!    `memory_that_is_lent_outlives_its_buffer`).

#![expect(unsafe_code, reason = "the buffer owns memory that it allocates or maps itself")]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use warpfire_units::BLOCK_BYTES;

/// Bytes in a huge page.
const HUGE_BYTES: usize = 2 << 20;

/// Fewest bytes of a buffer in huge pages. A shorter buffer would waste more of a huge page than it uses.
const HUGE_WORTH_BYTES: usize = HUGE_BYTES / 2;

/// A buffer, zeroed at first. Its address and length are multiples of the block size, as `O_DIRECT` requires.
#[derive(Debug)]
pub struct AlignedBuf {
    start: NonNull<u8>,
    len: usize,
    /// The source of the memory; `drop` returns it there.
    origin: BufMemory,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum BufMemory {
    Heap,
    /// A mapping of whole huge pages; the buffer is its first `len` bytes.
    Mapped,
}

impl AlignedBuf {
    /// A zeroed buffer of `len_bytes`, rounded up to whole blocks, at least one.
    #[must_use]
    pub fn zeroed(len_bytes: usize) -> Self {
        let len = len_bytes.next_multiple_of(BLOCK_BYTES).max(BLOCK_BYTES);
        let layout = Self::layout(len);
        // SAFETY: the layout's size is at least one block, so not zero.
        let raw = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(raw) else { handle_alloc_error(layout) };
        AlignedBuf { start, len, origin: BufMemory::Heap }
    }

    /// As `zeroed`, for a buffer that is used again and again. A long buffer lies in huge pages if the system
    /// has any. A device then gets one piece of memory for each 2 MiB instead of 512: direct I/O writes a
    /// file a third faster.
    #[must_use]
    pub fn lasting(len_bytes: usize) -> Self {
        let len = len_bytes.next_multiple_of(BLOCK_BYTES).max(BLOCK_BYTES);
        let mapped = if len < HUGE_WORTH_BYTES { None } else { map_huge(len.next_multiple_of(HUGE_BYTES)) };
        // Without a mapping the heap serves as well, only slower.
        match mapped {
            Some(start) => AlignedBuf { start, len, origin: BufMemory::Mapped },
            None => Self::zeroed(len),
        }
    }

    /// Whether a device that does not answer may still be sent bytes of this buffer. Its owner must not
    /// change it then, and takes another one.
    #[must_use]
    pub fn is_lent(&self) -> bool {
        // Every loan of this memory was made while its owner had lent it to a batch, so the owner sees it.
        LOAN_COUNT.load(Ordering::Acquire) > 0 && LOANS.lock().has_lent(&self.addresses())
    }

    /// A part of the buffer, for a write that may be late.
    ///
    /// # Panics
    /// If the range ends past the buffer.
    #[must_use]
    pub fn lendable(&self, range: Range<usize>) -> LendableBytes<'_> {
        LendableBytes(&self[range])
    }

    fn addresses(&self) -> Range<usize> {
        let start = self.start.addr().get();
        start..start + self.len
    }

    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len, BLOCK_BYTES).expect("buffer lengths are far below isize::MAX")
    }
}

/// Bytes of an [`AlignedBuf`]. Their memory can be lent.
#[derive(Clone, Copy, Debug)]
pub struct LendableBytes<'a>(&'a [u8]);

impl<'a> LendableBytes<'a> {
    /// The bytes.
    #[must_use]
    pub fn bytes(self) -> &'a [u8] {
        self.0
    }
}

impl<'a> From<&'a AlignedBuf> for LendableBytes<'a> {
    fn from(buf: &'a AlignedBuf) -> Self {
        LendableBytes(buf)
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `start` is valid for `len` initialised bytes for as long as `self` lives.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` makes this the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

/// Memory that the kernel may still write to devices, and the dropped buffers that it belongs to.
struct Loans {
    lent: Vec<Range<usize>>,
    waiting: Vec<AlignedBuf>,
}

impl Loans {
    fn has_lent(&self, addresses: &Range<usize>) -> bool {
        self.lent.iter().any(|lent| lent.start < addresses.end && addresses.start < lent.end)
    }
}

static LOANS: Mutex<Loans> = Mutex::new(Loans { lent: Vec::new(), waiting: Vec::new() });
/// Number of ranges in `LOANS.lent`, for buffers that need not lock while there are none.
static LOAN_COUNT: AtomicUsize = AtomicUsize::new(0);

/// Keeps the memory of a live buffer until `end_loan` of the same addresses.
pub(crate) fn lend(addresses: Range<usize>) {
    let mut loans = LOANS.lock();
    loans.lent.push(addresses);
    LOAN_COUNT.store(loans.lent.len(), Ordering::Release);
}

/// Ends one loan, and frees the dropped buffers that no loan keeps any more.
pub(crate) fn end_loan(addresses: Range<usize>) {
    let mut loans = LOANS.lock();
    let nth = loans.lent.iter().position(|lent| *lent == addresses).expect("a loan ends once");
    loans.lent.swap_remove(nth);
    LOAN_COUNT.store(loans.lent.len(), Ordering::Release);
    let (kept, freed): (Vec<_>, Vec<_>) =
        std::mem::take(&mut loans.waiting).into_iter().partition(|buf| loans.has_lent(&buf.addresses()));
    loans.waiting = kept;
    // Dropping a buffer locks the loans.
    drop(loans);
    drop(freed);
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        if LOAN_COUNT.load(Ordering::Acquire) > 0 {
            let mut loans = LOANS.lock();
            if loans.has_lent(&self.addresses()) {
                loans.waiting.push(AlignedBuf { ..*self });
                return;
            }
        }
        match self.origin {
            // SAFETY: allocated in `zeroed` with this same layout, and freed once.
            BufMemory::Heap => unsafe { dealloc(self.start.as_ptr(), Self::layout(self.len)) },
            // SAFETY: mapped in `lasting` with this many huge pages, and unmapped once.
            BufMemory::Mapped => unsafe { unmap(self.start.as_ptr(), self.len.next_multiple_of(HUGE_BYTES)) },
        }
    }
}

/// A zeroed mapping of `len` bytes that begins at a huge page boundary; `None` if the system refuses it.
fn map_huge(len: usize) -> Option<NonNull<u8>> {
    assert!(len.is_multiple_of(HUGE_BYTES), "a mapping is whole huge pages");
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let private = MapFlags::PRIVATE;
    // One huge page more than needed, because the kernel aligns a mapping to small pages only. The parts
    // before the first boundary and after the end are unmapped below. SAFETY: a new mapping at an address
    // that the kernel chooses touches no memory in use.
    let raw = unsafe { mmap_anonymous(std::ptr::null_mut(), len + HUGE_BYTES, access, private) }.ok()?;
    let raw = raw.cast::<u8>();
    let before = raw.addr().next_multiple_of(HUGE_BYTES) - raw.addr();
    let start = raw.wrapping_add(before);
    // SAFETY: both ends belong to the mapping made above, lie outside the part that is kept, and nothing
    // refers to them.
    unsafe {
        unmap(raw, before);
        unmap(start.wrapping_add(len), HUGE_BYTES - before);
    }
    // SAFETY: the advice changes no content. A system that does not know it uses small pages, which work as
    // well.
    let _advised = unsafe { madvise(start.cast(), len, Advice::LinuxHugepage) };
    debug_assert!(start.addr().is_multiple_of(HUGE_BYTES), "the mapping begins at a huge page");
    NonNull::new(start)
}

/// Unmaps a part of a mapping.
///
/// # Safety
/// The range is whole pages of a mapping made by `map_huge`, and nothing refers to it.
unsafe fn unmap(start: *mut u8, len: usize) {
    if len > 0 {
        // A kernel that is short of memory for its list of mappings may refuse. The address space of the part
        // is lost then, and nothing else. SAFETY: the caller's promise.
        let _refused = unsafe { munmap(start.cast(), len) };
    }
}

// SAFETY: the buffer owns its memory, as a Box<[u8]> does; another thread may own it as well.
unsafe impl Send for AlignedBuf {}
// SAFETY: shared references only read.
unsafe impl Sync for AlignedBuf {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lasting_buffers_are_zeroed_aligned_and_as_long_as_asked() {
        for len in [0, 1, BLOCK_BYTES, HUGE_WORTH_BYTES - 1, HUGE_WORTH_BYTES, HUGE_BYTES, 3 * HUGE_BYTES + 1]
        {
            let mut bufs: Vec<AlignedBuf> = (0..3).map(|_| AlignedBuf::lasting(len)).collect();
            for buf in &mut bufs {
                assert_eq!(buf.len(), len.next_multiple_of(BLOCK_BYTES).max(BLOCK_BYTES));
                assert!(buf.as_ptr().addr().is_multiple_of(BLOCK_BYTES));
                assert!(buf.iter().all(|byte| *byte == 0), "{len}");
                buf.fill(0xa5);
            }
            assert!(
                bufs.iter().all(|buf| buf.iter().all(|byte| *byte == 0xa5)),
                "{len}: no buffer overlaps another"
            );
        }
    }

    #[test]
    fn memory_that_is_lent_outlives_its_buffer() {
        let mut buf = AlignedBuf::zeroed(3 * BLOCK_BYTES);
        buf.fill(7);
        let whole = buf.addresses();
        let part = whole.start + BLOCK_BYTES..whole.start + 2 * BLOCK_BYTES;
        assert!(!buf.is_lent());
        lend(part.clone());
        lend(part.clone());
        assert!(buf.is_lent());
        assert!(!AlignedBuf::zeroed(BLOCK_BYTES).is_lent());
        drop(buf);
        let waits = || LOANS.lock().waiting.iter().any(|buf| buf.addresses() == whole && buf[0] == 7);
        assert!(waits());
        end_loan(part.clone());
        assert!(waits(), "another request still uses it");
        end_loan(part);
        assert!(!waits());
    }

    #[test]
    fn long_lasting_buffers_begin_at_a_huge_page() {
        let buf = AlignedBuf::lasting(HUGE_WORTH_BYTES);
        assert!(buf.origin == BufMemory::Heap || buf.as_ptr().addr().is_multiple_of(HUGE_BYTES));
    }
}
