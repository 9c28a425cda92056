//! Pages of the kernel that a commit makes stale while programs store into them.
//!
//! A program that stores into a mapping without a pause gets its page back after each emptying of the
//! kernel's caches, so a commit may have to be made while the kernel has such a page. The kernel writes whole
//! pages back. The page then has bytes that the program stored and, around them, bytes from before the
//! commit. The *base* of a page is the content that the kernel got; bytes that differ from the base are the
//! program's.
//!
//! ```text
//!   base, from before the commit   a a a a a a a a
//!   page that is written back      a a a x a a a a     the program stored x
//!   file after the commit          b b a a a a a a
//!   merged                         b b a x a a a a     only x is written
//! ```
//!
//! # Invariants
//! 1. Each page that the kernel may have from before the commit has a base: pages are noted when they are
//!    sent, and the contents of all that were noted since the last emptying are taken while no pass exists,
//!    just before the commit (`views/announce.rs`).
//! 2. A page that the kernel fills after the commit has no base: it has no bytes from before. The kernel
//!    fills it only after it has written an earlier page at the place back and dropped it, so no older page
//!    comes after it (`tests::a_page_that_was_read_again_is_written_as_it_is`).
//! 3. The base of a page is what the kernel has, less the stores that the server has not got. So a page that
//!    was written back is its own base from then on, and a plain write changes the base: a byte that is
//!    stored again is noticed also if it gets its first value
//!    (`tests::a_byte_that_gets_its_first_value_again_is_written`,
//!    `tests::a_plain_write_changes_the_base`).
//! 4. A mapping never makes a file longer: bytes behind the end are dropped
//!    (`tests::bytes_behind_the_end_of_the_file_are_dropped`).

use std::collections::BTreeMap;
use std::ops::Range;

use warpfire_env::RankedMutex;
use warpfire_fs::FsError;

use crate::lock_ranks::STALE_FILE;

/// Size of a page, and so of a base, in bytes.
const PAGE_BYTES: usize = 4096;

const PAGE: u64 = PAGE_BYTES as u64;

/// The bytes of a page.
pub(crate) type Page = [u8; PAGE_BYTES];

/// Pages of a file: the first page of each run of pages, with the page behind its last one. Runs do not touch
/// each other.
#[derive(Default, Debug, PartialEq, Eq)]
pub(crate) struct PageSet(BTreeMap<u64, u64>);

impl PageSet {
    /// Adds the pages of a range of bytes.
    pub(crate) fn add_bytes(&mut self, range: Range<u64>) {
        let (mut start, mut end) = (range.start / PAGE, range.end.div_ceil(PAGE));
        while let Some((&first, &behind)) = self.0.range(..=end).next_back().filter(|run| *run.1 >= start) {
            self.0.remove(&first);
            (start, end) = (start.min(first), end.max(behind));
        }
        self.0.insert(start, end);
    }

    /// The runs of pages as ranges of bytes, in order.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range<u64>> {
        self.0.iter().map(|(start, end)| start * PAGE..end * PAGE)
    }
}

/// The content of a range of a file before a commit.
pub(crate) trait ContentBefore: Send + Sync {
    /// Fills `page` from an offset of the file, with zeros behind the end of the file.
    ///
    /// # Errors
    /// Those of a read.
    fn read_page(&self, offset: u64, page: &mut Page) -> Result<(), FsError>;
}

/// The stale files of one commit, by inode number, until the kernel has dropped their pages.
#[derive(Default)]
pub(crate) struct StalePages(BTreeMap<u64, RankedMutex<STALE_FILE, StaleFile>>);

/// The bases of one file.
#[derive(Default)]
struct StaleFile {
    /// The pages behind the last one of each run, with the first page and the content of the run.
    runs: BTreeMap<u64, (u64, Box<dyn ContentBefore>)>,
    /// Bases that are not the content from before the commit; `None` for a page without a base.
    changed: BTreeMap<u64, Option<Box<Page>>>,
}

impl StalePages {
    /// Adds a range of a file that the kernel may have from before the commit, as `PageSet` makes it.
    pub(crate) fn add(&mut self, ino: u64, range: &Range<u64>, before: Box<dyn ContentBefore>) {
        debug_assert!(range.start.is_multiple_of(PAGE) && range.start < range.end, "a range of whole pages");
        let file = self.0.entry(ino).or_default().get_mut();
        file.runs.insert(range.end.div_ceil(PAGE), (range.start / PAGE, before));
    }

    /// Notes that the kernel fills its pages of a range by a READ.
    pub(crate) fn note_read(&self, ino: u64, offset: u64, len: u64) {
        let Some(file) = self.0.get(&ino) else { return };
        let mut file = file.lock();
        for page in offset / PAGE..offset.saturating_add(len).div_ceil(PAGE) {
            if file.run_of(page).is_some() {
                file.changed.insert(page, None);
            }
        }
    }

    /// Notes that a program has written bytes, which the kernel has put into its pages too.
    ///
    /// # Errors
    /// Those of reading the bases.
    pub(crate) fn note_write(&self, ino: u64, offset: u64, data: &[u8]) -> Result<(), FsError> {
        let Some(file) = self.0.get(&ino) else { return Ok(()) };
        let mut file = file.lock();
        for part in parts_by_page(offset, data) {
            if let Some(mut base) = file.base(part.page)? {
                part.of(&mut base).copy_from_slice(part.bytes);
                file.changed.insert(part.page, Some(base));
            }
        }
        Ok(())
    }

    /// Passes the bytes of pages that a program has stored to `write`, each run with its offset. Returns
    /// whether the file is stale; if not, the pages are written as they are. `size` is the size of the file
    /// in bytes.
    ///
    /// # Errors
    /// Those of `write` and of reading the bases.
    pub(crate) fn merge<E: From<FsError>>(
        &self,
        ino: u64,
        offset: u64,
        data: &[u8],
        size: u64,
        mut write: impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<bool, E> {
        let Some(file) = self.0.get(&ino) else { return Ok(false) };
        let mut file = file.lock();
        let inside = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX).min(data.len());
        let inside = data.get(..inside).expect("clipped to its length");
        for part in parts_by_page(offset, inside) {
            let Some(mut base) = file.base(part.page)? else {
                write(part.offset(), part.bytes)?;
                continue;
            };
            let old = part.of(&mut base);
            for run in different_runs(old, part.bytes) {
                let stored = part.bytes.get(run.clone()).expect("a run is inside its part");
                write(part.offset() + run.start as u64, stored)?;
            }
            old.copy_from_slice(part.bytes);
            file.changed.insert(part.page, Some(base));
        }
        Ok(true)
    }
}

impl StaleFile {
    /// The content of the run that has a page.
    fn run_of(&self, page: u64) -> Option<&dyn ContentBefore> {
        let (_, (first, before)) = self.runs.range(page + 1..).next()?;
        (*first <= page).then_some(&**before)
    }

    /// The base of a page; `None` for a page without bytes from before the commit.
    fn base(&self, page: u64) -> Result<Option<Box<Page>>, FsError> {
        let Some(before) = self.run_of(page) else { return Ok(None) };
        if let Some(changed) = self.changed.get(&page) {
            return Ok(changed.clone());
        }
        let mut base = Box::new([0; PAGE_BYTES]);
        before.read_page(page * PAGE, &mut base)?;
        Ok(Some(base))
    }
}

/// Bytes inside one page.
struct PagePart<'a> {
    page: u64,
    /// Offset in the page.
    from: usize,
    bytes: &'a [u8],
}

impl PagePart<'_> {
    /// The offset in the file.
    fn offset(&self) -> u64 {
        self.page * PAGE + self.from as u64
    }

    /// The place of these bytes in a copy of the page.
    fn of<'p>(&self, page: &'p mut Page) -> &'p mut [u8] {
        page.get_mut(self.from..self.from + self.bytes.len()).expect("a part is inside its page")
    }
}

/// Divides bytes at the ends of pages.
fn parts_by_page(offset: u64, data: &[u8]) -> impl Iterator<Item = PagePart<'_>> {
    let mut at = offset;
    let mut rest = data;
    std::iter::from_fn(move || {
        let from = usize::try_from(at % PAGE).expect("below the size of a page");
        let (bytes, behind) = rest.split_at(rest.len().min(PAGE_BYTES - from));
        let part = PagePart { page: at / PAGE, from, bytes };
        (at, rest) = (at + bytes.len() as u64, behind);
        (!bytes.is_empty()).then_some(part)
    })
}

/// The ranges in which two pieces of one length differ, in order.
fn different_runs(old: &[u8], new: &[u8]) -> Vec<Range<usize>> {
    debug_assert_eq!(old.len(), new.len(), "a page is compared with its base");
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (at, _) in old.iter().zip(new).enumerate().filter(|(_, (old, new))| old != new) {
        match runs.last_mut() {
            Some(run) if run.end == at => run.end = at + 1,
            _ => runs.push(at..at + 1),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of one byte, many times.
    struct Filled(u8);

    impl ContentBefore for Filled {
        fn read_page(&self, _offset: u64, page: &mut Page) -> Result<(), FsError> {
            page.fill(self.0);
            Ok(())
        }
    }

    const STALE: u64 = 7;

    /// A file whose pages 1 and 2 are stale.
    fn stale_pages() -> StalePages {
        let mut stale = StalePages::default();
        stale.add(STALE, &(4096..12_288), Box::new(Filled(b'a')));
        stale
    }

    /// The runs that are written for a page that is written back; `None` if the file is not stale.
    fn written(stale: &StalePages, ino: u64, offset: u64, data: &[u8]) -> Option<Vec<(u64, Vec<u8>)>> {
        let mut runs = Vec::new();
        let merged = stale.merge(ino, offset, data, 20_000, |at, bytes| {
            runs.push((at, bytes.to_vec()));
            Ok::<(), FsError>(())
        });
        merged.unwrap().then_some(runs)
    }

    #[test]
    fn only_bytes_that_differ_from_the_base_are_written() {
        let stale = stale_pages();
        let mut page = vec![b'a'; 4096];
        page[100..103].fill(b'x');
        page[4095] = b'y';
        let runs = written(&stale, STALE, 4096, &page).unwrap();
        assert_eq!(runs, [(4196, b"xxx".to_vec()), (8191, b"y".to_vec())]);
        assert_eq!(written(&stale, STALE, 4096, &page), Some(vec![]), "the page is its own base now");
        assert_eq!(written(&stale, STALE + 1, 4096, &page), None);
    }

    #[test]
    fn a_byte_that_gets_its_first_value_again_is_written() {
        let stale = stale_pages();
        let page = |byte| [vec![byte], vec![b'a'; 4095]].concat();
        assert_eq!(written(&stale, STALE, 4096, &page(b'x')).unwrap(), [(4096, b"x".to_vec())]);
        assert_eq!(written(&stale, STALE, 4096, &page(b'a')).unwrap(), [(4096, b"a".to_vec())]);
    }

    #[test]
    fn a_plain_write_changes_the_base() {
        let stale = stale_pages();
        stale.note_write(STALE, 8191, b"xy").unwrap();
        assert_eq!(written(&stale, STALE, 8192, b"ya"), Some(vec![]));
        assert_eq!(
            written(&stale, STALE, 8191, b"aa").unwrap(),
            [(8191, b"a".to_vec()), (8192, b"a".to_vec())]
        );
    }

    #[test]
    fn a_page_that_was_read_again_is_written_as_it_is() {
        let stale = stale_pages();
        stale.note_read(STALE, 0, 8192);
        let pages = [[b'a'; 4096], [b'b'; 4096]].concat();
        let runs = written(&stale, STALE, 4096, &pages).unwrap();
        assert_eq!(runs, [(4096, vec![b'a'; 4096]), (8192, vec![b'b'; 4096])]);
        let again = written(&stale, STALE, 8192, &pages[..4096]).unwrap();
        assert_eq!(again, [(8192, vec![b'a'; 4096])], "the second page was sent before the commit");
    }

    #[test]
    fn pages_that_were_not_sent_are_written_as_they_are() {
        for offset in [0, 12_288] {
            let runs = written(&stale_pages(), STALE, offset, &[b'a'; 4096]).unwrap();
            assert_eq!(runs, [(offset, vec![b'a'; 4096])]);
        }
    }

    #[test]
    fn bytes_behind_the_end_of_the_file_are_dropped() {
        let runs = written(&stale_pages(), STALE, 16_384, &[b'x'; 4096]).unwrap();
        assert_eq!(runs, [(16_384, vec![b'x'; 20_000 - 16_384])]);
        assert_eq!(written(&stale_pages(), STALE, 20_480, &[b'x'; 4096]), Some(vec![]));
    }

    #[test]
    fn a_set_of_pages_joins_ranges_that_touch() {
        let mut pages = PageSet::default();
        for range in [9000..9001, 40_000..41_000, 100..200, 4096..4097, 0..1, 36_000..38_000] {
            pages.add_bytes(range);
        }
        assert_eq!(pages.ranges().collect::<Vec<_>>(), [0..12_288, 32_768..45_056]);
        pages.add_bytes(5000..50_000);
        assert_eq!(pages.ranges().next(), Some(0..53_248));
        assert_eq!(pages.ranges().count(), 1);
    }
}
