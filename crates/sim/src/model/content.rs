//! A file's bytes in the model: a sparse file as pages by number.
//!
//! # Invariants
//! 1. No page is all zeros. A hole and written zeros read alike, and are equal here
//!    (`tests::written_zeros_are_no_different_from_a_hole`).
//! 2. Bytes past `size_bytes` are zero.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// Bytes in a page.
pub const PAGE: u64 = 4096;
const PAGE_BYTES: usize = PAGE as usize;

type ContentPage = [u8; PAGE_BYTES];

/// The bytes of one file. A copy shares its pages.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct FileContent {
    size_bytes: u64,
    pages: BTreeMap<u64, Arc<ContentPage>>,
}

impl FileContent {
    /// The file's length.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Pages that hold anything but zeros: their numbers, in order.
    pub fn pages(&self) -> impl Iterator<Item = u64> + '_ {
        self.pages.keys().copied()
    }

    /// Puts bytes at an offset; the file grows if they end past its end.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        let mut at = offset;
        let mut rest = bytes;
        while !rest.is_empty() {
            let (page, within) = (at / PAGE, usize::try_from(at % PAGE).expect("below a page"));
            let here = rest.len().min(PAGE_BYTES - within);
            let (now, later) = rest.split_at(here);
            self.change_page(page, |p| p[within..within + here].copy_from_slice(now));
            rest = later;
            at += here as u64;
        }
        if !bytes.is_empty() {
            self.size_bytes = self.size_bytes.max(at);
        }
    }

    /// Shortens the file, or lets it grow by a hole.
    pub fn truncate(&mut self, size_bytes: u64) {
        self.size_bytes = size_bytes;
        self.pages.split_off(&size_bytes.div_ceil(PAGE));
        let within = usize::try_from(size_bytes % PAGE).expect("below a page");
        if within > 0 && self.pages.contains_key(&(size_bytes / PAGE)) {
            self.change_page(size_bytes / PAGE, |p| p[within..].fill(0));
        }
    }

    /// Makes a range read as zeros; the size stays.
    pub fn zero(&mut self, offset: u64, len: u64) {
        let end = offset.saturating_add(len).min(self.size_bytes);
        if offset >= end {
            return;
        }
        let touched: Vec<u64> =
            self.pages.range(offset / PAGE..end.div_ceil(PAGE)).map(|(page, _)| *page).collect();
        for page in touched {
            let start = offset.saturating_sub(page * PAGE).min(PAGE);
            let stop = (end - page * PAGE).min(PAGE);
            let range = usize::try_from(start).expect("below a page")..usize::try_from(stop).expect("a page");
            self.change_page(page, |p| p[range].fill(0));
        }
    }

    /// Puts a hole at an offset, and moves the bytes after it back.
    pub fn insert(&mut self, offset: u64, len: u64) {
        if !offset.is_multiple_of(PAGE) || !len.is_multiple_of(PAGE) {
            return self.splice(offset, 0, len);
        }
        let moved = self.pages.split_off(&(offset / PAGE));
        self.pages.extend(moved.into_iter().map(|(page, bytes)| (page + len / PAGE, bytes)));
        self.size_bytes += len;
    }

    /// Takes a range out, and moves the bytes after it forward.
    pub fn collapse(&mut self, offset: u64, len: u64) {
        if !offset.is_multiple_of(PAGE) || !len.is_multiple_of(PAGE) {
            return self.splice(offset, len, 0);
        }
        let mut after = self.pages.split_off(&(offset / PAGE));
        let moved = after.split_off(&((offset + len) / PAGE));
        self.pages.extend(moved.into_iter().map(|(page, bytes)| (page - len / PAGE, bytes)));
        self.size_bytes -= len;
    }

    /// Replaces `gone` bytes at an offset by a hole of `hole` bytes.
    fn splice(&mut self, offset: u64, gone: u64, hole: u64) {
        let from = offset + gone;
        let size_after = self.size_bytes - gone + hole;
        let behind = self.pages.range(from / PAGE..);
        let behind: Vec<(u64, Vec<u8>)> = behind
            .map(|(page, _)| {
                let at = from.max(page * PAGE);
                (at, self.read(at, usize::try_from((page + 1) * PAGE - at).expect("a part of a page")))
            })
            .collect();
        self.truncate(offset);
        behind.iter().for_each(|(at, bytes)| self.write(at - gone + hole, bytes));
        self.truncate(size_after);
    }

    /// The bytes of a range, zeros past the end.
    #[must_use]
    pub fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let within = usize::try_from(at % PAGE).expect("below a page");
            let here = (len - done).min(PAGE_BYTES - within);
            if let Some(page) = self.pages.get(&(at / PAGE)) {
                out[done..done + here].copy_from_slice(&page[within..within + here]);
            }
            done += here;
        }
        out
    }

    /// The first byte at which two contents differ.
    #[must_use]
    pub fn first_difference(&self, other: &FileContent) -> Option<u64> {
        let mut pages: Vec<u64> = self.pages().chain(other.pages()).collect();
        pages.sort_unstable();
        pages.dedup();
        let differing = pages.into_iter().find_map(|page| {
            let (a, b) = (self.read(page * PAGE, PAGE_BYTES), other.read(page * PAGE, PAGE_BYTES));
            let within = a.iter().zip(&b).position(|(a, b)| a != b)?;
            Some(page * PAGE + within as u64)
        });
        differing.or((self.size_bytes != other.size_bytes).then(|| self.size_bytes.min(other.size_bytes)))
    }

    fn change_page(&mut self, page: u64, change: impl FnOnce(&mut ContentPage)) {
        let slot = self.pages.entry(page).or_insert_with(|| Arc::new([0; PAGE_BYTES]));
        change(Arc::make_mut(slot));
        if slot.iter().all(|&b| b == 0) {
            self.pages.remove(&page);
        }
    }
}

impl Hash for FileContent {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.size_bytes.hash(state);
        for (page, bytes) in &self.pages {
            page.hash(state);
            state.write(&bytes[..]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The content as one vector.
    fn plain(content: &FileContent) -> Vec<u8> {
        content.read(0, usize::try_from(content.size_bytes()).unwrap())
    }

    #[test]
    fn shifts_agree_with_shifts_of_a_vector() {
        let mut content = FileContent::default();
        let mut bytes: Vec<u8> = (0..20_000u32).map(|n| (n % 251) as u8 + 1).collect();
        content.write(0, &bytes);
        content.insert(4096, 8192);
        bytes.splice(4096..4096, std::iter::repeat_n(0, 8192));
        assert_eq!(plain(&content), bytes);
        content.collapse(8192, 12288);
        bytes.drain(8192..8192 + 12288);
        assert_eq!(plain(&content), bytes);
        content.collapse(7001, 4999);
        bytes.drain(7001..12000);
        content.insert(6999, 8193);
        bytes.splice(6999..6999, std::iter::repeat_n(0, 8193));
        assert_eq!(plain(&content), bytes);
        content.zero(5000, 6000);
        bytes[5000..11000].fill(0);
        assert_eq!(plain(&content), bytes);
        content.truncate(9001);
        content.truncate(12000);
        bytes.truncate(9001);
        bytes.resize(12000, 0);
        assert_eq!(plain(&content), bytes);
    }

    #[test]
    fn written_zeros_are_no_different_from_a_hole() {
        let (mut a, mut b) = (FileContent::default(), FileContent::default());
        a.write(0, &[0; 5000]);
        b.truncate(5000);
        assert_eq!(a, b);
        assert_eq!(a.first_difference(&b), None);
    }
}
