//! Held slices: bytes that callers keep without a name in metadata.
//!
//! Cleaning moves held bytes as it moves all others, so a hold keeps bytes and never a segment. A caller
//! keeps the pointer with which it took the hold. This book says where the bytes are now. Every use of such a
//! pointer asks it: a read, a further hold, and a commit that names the bytes in metadata.
//!
//! # Terms
//! The *address* of held bytes is the pointer that callers have, their *place* is where the log has them now.
//! A *stretch* is a range of addresses in one segment with one count of holds, in one place.
//!
//! ```text
//!            first hold                cleaning of its place
//!   (free) ─────────────► at home ─────────────► moved ◄──┐
//!      ▲                     │                     │  └───┘ cleaning again
//!      └─────────────────────┴─────────────────────┘
//!                        last hold ends
//! ```
//!
//! # Invariants
//! 1. A stretch has bytes and at least one hold, and no two share an address (asserts in
//!    `Book::assert_sound`, which the tests call;
//!    `tests::any_order_of_holds_moves_and_ends_keeps_the_bytes`).
//! 2. The log has one reference to the place of each stretch. A move takes the new reference before it ends
//!    the old one, under the lock of the book (same test: nothing is left at the end).
//! 3. `away` lists exactly the stretches that have moved, by the segment of their place (`assert_sound`).
//! 4. A caller that asks for a place has a pin, taken before it asks. The bytes stay readable there while the
//!    pin lives, even if they move on, because a place loses its reference only after the book names another.
//! 5. `moved_count` is not 0 when a stretch has moved. It is stored before the old place loses its reference,
//!    so a caller that reads 0 has a pin that is older than the end of that reference.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use warpfire_env::sync::atomic::{AtomicUsize, Ordering};

use warpfire_env::sync::Mutex;
use warpfire_log::{LogError, LogStore, Slices, Stream};
use warpfire_units::{SegmentId, SlicePtr};

use crate::error::SliceError;
use crate::store::SliceHolder;

/// Bytes that a move copies at a time.
const MOVE_BYTES_MAX: u32 = 1 << 20;

/// A segment and an offset in it.
type Address = (SegmentId, u64);

#[derive(Clone, Copy, Debug)]
struct Stretch {
    len_bytes: u32,
    holds: u32,
    /// `None` at home: the place is the address.
    place: Option<Address>,
}

impl Stretch {
    fn place_of(&self, home: Address) -> Address {
        self.place.unwrap_or(home)
    }
}

/// The offset behind a slice. Damaged metadata may name one that reaches past all offsets.
fn end_of(slice: SlicePtr) -> u64 {
    slice.offset_bytes.saturating_add(slice.len_bytes.into())
}

fn slice_at((segment, offset_bytes): Address, len_bytes: u32) -> SlicePtr {
    SlicePtr { segment, offset_bytes, len_bytes }
}

#[derive(Default)]
struct Book {
    stretches: BTreeMap<Address, Stretch>,
    /// Homes of the stretches that have moved, by the segment where they are now.
    away: BTreeMap<SegmentId, BTreeSet<Address>>,
    held_bytes: u64,
}

impl Book {
    fn insert(&mut self, home: Address, stretch: Stretch) {
        if let Some((segment, _)) = stretch.place {
            self.away.entry(segment).or_default().insert(home);
        }
        self.held_bytes += u64::from(stretch.len_bytes);
        let before = self.stretches.insert(home, stretch);
        debug_assert!(before.is_none(), "each address is in one stretch");
    }

    fn remove(&mut self, home: Address) -> Stretch {
        let stretch = self.stretches.remove(&home).expect("callers name stretches of the book");
        if let Some((segment, _)) = stretch.place {
            let homes = self.away.get_mut(&segment).expect("a moved stretch is listed");
            homes.remove(&home);
            if homes.is_empty() {
                self.away.remove(&segment);
            }
        }
        self.held_bytes -= u64::from(stretch.len_bytes);
        stretch
    }

    /// Makes an address the beginning of a stretch, if it lies inside one.
    fn split(&mut self, at: Address) {
        let (segment, offset) = at;
        let Some((&home, stretch)) = self.stretches.range((segment, 0)..at).next_back() else { return };
        if home.1 + u64::from(stretch.len_bytes) <= offset {
            return;
        }
        let whole = self.remove(home);
        let head = u32::try_from(offset - home.1).expect("a part of a stretch");
        let tail_place = whole.place.map(|(segment, offset)| (segment, offset + u64::from(head)));
        self.insert(home, Stretch { len_bytes: head, ..whole });
        self.insert(at, Stretch { len_bytes: whole.len_bytes - head, place: tail_place, ..whole });
    }

    /// Makes one stretch of those before and from an address on, if their holds and places follow each other.
    fn join(&mut self, at: Address) {
        let (segment, offset) = at;
        let Some(tail) = self.stretches.get(&at).copied() else { return };
        let Some((&home, &head)) = self.stretches.range((segment, 0)..at).next_back() else { return };
        let follows = match (head.place, tail.place) {
            (None, None) => true,
            (Some((a, from)), Some((b, to))) => a == b && from + u64::from(head.len_bytes) == to,
            _ => false,
        };
        let touches = home.1 + u64::from(head.len_bytes) == offset;
        if let Some(len_bytes) = head.len_bytes.checked_add(tail.len_bytes)
            && follows
            && touches
            && head.holds == tail.holds
        {
            self.remove(at);
            self.remove(home);
            self.insert(home, Stretch { len_bytes, ..head });
        }
    }

    /// The stretches that begin in a range of addresses, with their homes.
    fn beginning_in(&self, segment: SegmentId, range: Range<u64>) -> Vec<(Address, Stretch)> {
        let found = self.stretches.range((segment, range.start)..(segment, range.end));
        found.map(|(home, stretch)| (*home, *stretch)).collect()
    }

    /// The stretches with their place in a segment, with their homes.
    fn placed_in(&self, segment: SegmentId) -> Vec<(Address, Stretch)> {
        let at_home = self.stretches.range((segment, 0)..=(segment, u64::MAX));
        let at_home = at_home.filter(|(_, stretch)| stretch.place.is_none());
        let away = self.away.get(&segment).into_iter().flatten();
        let away = away.map(|home| (home, self.stretches.get(home).expect("a listed stretch is held")));
        at_home.chain(away).map(|(home, stretch)| (*home, *stretch)).collect()
    }

    #[cfg(test)]
    fn assert_sound(&self) {
        let mut end = None;
        let mut away = BTreeMap::<SegmentId, BTreeSet<Address>>::new();
        for (home, stretch) in &self.stretches {
            assert!(stretch.len_bytes > 0 && stretch.holds > 0, "{home:?} {stretch:?}");
            assert!(end.is_none_or(|end| end <= *home), "{home:?} overlaps the stretch before it");
            end = Some((home.0, home.1 + u64::from(stretch.len_bytes)));
            if let Some((segment, _)) = stretch.place {
                away.entry(segment).or_default().insert(*home);
            }
        }
        assert_eq!(away, self.away);
        assert_eq!(self.held_bytes, self.stretches.values().map(|s| u64::from(s.len_bytes)).sum::<u64>());
    }
}

/// Where the bytes of a slice are that cleaning has copied already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KnownCopy {
    /// The copy of the first bytes of the slice, at most all of them.
    Of(SlicePtr),
    /// No copy is known of this many first bytes, at least 1.
    NoneOf(u32),
}

/// The result of moving held bytes out of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MovedOut {
    /// Bytes that were moved.
    pub bytes: u64,
    /// Some held bytes cannot be read. They stay where they are.
    pub is_unrecoverable: bool,
}

/// The held slices of one log.
pub struct HeldSlices<L> {
    log: Arc<L>,
    book: Mutex<Book>,
    moved_count: AtomicUsize,
}

impl<L: LogStore> HeldSlices<L> {
    /// A book without holds.
    #[must_use]
    pub fn new(log: Arc<L>) -> Self {
        HeldSlices { log, book: Mutex::default(), moved_count: AtomicUsize::new(0) }
    }

    /// Bytes that are held. Each counts once, however many holds it has.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.book.lock().held_bytes
    }

    /// Calls `visit` for the place of each stretch in these segments, and then `then`, while no hold begins,
    /// ends or moves. The log has one reference to each of these places.
    pub fn count_held<T>(
        &self,
        segments: &[SegmentId],
        visit: &mut dyn FnMut(SlicePtr),
        then: impl FnOnce() -> T,
    ) -> T {
        let book = self.book.lock();
        for (home, stretch) in segments.iter().flat_map(|segment| book.placed_in(*segment)) {
            visit(slice_at(stretch.place_of(home), stretch.len_bytes));
        }
        then()
    }

    /// Whether held bytes have moved. Without the lock: for callers that mostly need no place.
    #[must_use]
    pub fn has_moved(&self) -> bool {
        self.moved_count.load(Ordering::Acquire) > 0
    }

    /// Where the bytes of a slice are, if any of them are held and have moved; else they are where the
    /// pointer says. The caller has a pin.
    #[must_use]
    pub fn resolve(&self, slice: SlicePtr) -> Option<Slices> {
        if !self.has_moved() {
            return None;
        }
        let book = self.book.lock();
        let (start, end) = (slice.offset_bytes, end_of(slice));
        let before = book.stretches.range((slice.segment, 0)..=(slice.segment, start)).next_back();
        let first = before.map_or(start, |((_, from), _)| *from);
        let mut moved = false;
        let mut parts = Slices::new();
        let mut add = |(segment, offset_bytes): Address, len: u64| {
            let len_bytes = u32::try_from(len).expect("a part of a slice");
            match parts.last_mut() {
                Some(last) if last.segment == segment && end_of(*last) == offset_bytes => {
                    last.len_bytes += len_bytes;
                }
                _ => parts.push(SlicePtr { segment, offset_bytes, len_bytes }),
            }
        };
        let mut at = start;
        for (&(_, from), stretch) in book.stretches.range((slice.segment, first)..(slice.segment, end)) {
            let to = end.min(from + u64::from(stretch.len_bytes));
            if to <= at {
                continue;
            }
            if from > at {
                add((slice.segment, at), from - at);
                at = from;
            }
            let (segment, offset) = stretch.place_of((slice.segment, from));
            moved |= stretch.place.is_some();
            add((segment, offset + (at - from)), to - at);
            at = to;
        }
        if at < end {
            add((slice.segment, at), end - at);
        }
        debug_assert_eq!(
            parts.iter().map(|part| u64::from(part.len_bytes)).sum::<u64>(),
            u64::from(slice.len_bytes),
            "the parts are the whole slice"
        );
        moved.then_some(parts)
    }

    /// Moves the held bytes out of a segment, which cleaning empties. `known` answers for bytes that cleaning
    /// has copied already, so that held bytes and metadata go on sharing them. The caller keeps the copies
    /// referenced during the call.
    ///
    /// # Errors
    /// `NoSpace`, and `ReadOnly` once the log has latched. Bytes that were moved before stay moved.
    pub fn move_out(
        &self,
        segment: SegmentId,
        known: &mut dyn FnMut(SlicePtr) -> KnownCopy,
    ) -> Result<MovedOut, LogError> {
        let mut outcome = MovedOut::default();
        // A hold may end during the call. Its bytes stay readable, so that they do not look damaged.
        let _pin = self.log.pin();
        let placed = self.book.lock().placed_in(segment);
        for (home, stretch) in placed {
            let place = slice_at(stretch.place_of(home), stretch.len_bytes);
            let mut done = 0;
            while done < stretch.len_bytes {
                let rest = place.part(done, stretch.len_bytes - done);
                let (len, copies) = match known(rest) {
                    KnownCopy::Of(copy) => {
                        self.log.retain_again(copy.segment, u64::from(copy.len_bytes));
                        (copy.len_bytes, Some(Slices::from_buf([copy])))
                    }
                    KnownCopy::NoneOf(len) => {
                        let len = len.min(rest.len_bytes).min(MOVE_BYTES_MAX);
                        (len, self.copy(rest.part(0, len))?)
                    }
                };
                assert!(len > 0 && len <= rest.len_bytes, "each step moves some of the rest");
                match copies {
                    Some(copies) => {
                        self.rehome((home.0, home.1 + u64::from(done)), rest, &copies);
                        outcome.bytes += u64::from(len);
                    }
                    None => outcome.is_unrecoverable = true,
                }
                done += len;
            }
        }
        Ok(outcome)
    }

    /// Copies bytes to the cold stream; `None` if they cannot be read.
    fn copy(&self, from: SlicePtr) -> Result<Option<Slices>, LogError> {
        let mut bytes = vec![0; from.len_bytes as usize];
        match self.log.read(from, &mut bytes) {
            Err(LogError::Damaged(_) | LogError::BadPointer(_)) => return Ok(None),
            read => read?,
        }
        self.log.append(Stream::Cold, &bytes).map(Some)
    }

    /// Enters new places for the bytes at an address, if they are still held and still where they were
    /// copied from. Each copy comes with one reference to its bytes.
    fn rehome(&self, home: Address, from: SlicePtr, copies: &[SlicePtr]) {
        let mut book = self.book.lock();
        let mut done = 0;
        for copy in copies {
            let start = (home.0, home.1 + done);
            let end = (home.0, start.1 + u64::from(copy.len_bytes));
            book.split(start);
            book.split(end);
            // Bytes of the copy that nobody holds any more, or that have moved elsewhere.
            let mut spare = u64::from(copy.len_bytes);
            for (address, stretch) in book.beginning_in(home.0, start.1..end.1) {
                let skip = address.1 - home.1;
                if stretch.place_of(address) != (from.segment, from.offset_bytes + skip) {
                    continue;
                }
                let place = (copy.segment, copy.offset_bytes + (address.1 - start.1));
                book.remove(address);
                book.insert(address, Stretch { place: Some(place), ..stretch });
                self.moved_count.store(book.away.len(), Ordering::Release);
                spare -= u64::from(stretch.len_bytes);
                self.log.let_go(from.segment, u64::from(stretch.len_bytes));
            }
            if spare > 0 {
                self.log.release(copy.segment, spare);
            }
            book.join(start);
            book.join(end);
            done += u64::from(copy.len_bytes);
        }
    }
}

impl<L: LogStore> SliceHolder for HeldSlices<L> {
    fn hold(&self, slices: &[SlicePtr]) -> Result<(), SliceError> {
        let mut book = self.book.lock();
        for slice in slices {
            let (segment, end) = (slice.segment, end_of(*slice));
            book.split((segment, slice.offset_bytes));
            book.split((segment, end));
            let mut at = slice.offset_bytes;
            let known = book.beginning_in(segment, at..end);
            // A last step without a stretch holds the addresses behind the last one.
            for next in known.into_iter().map(Some).chain([None]) {
                let from = next.map_or(end, |((_, from), _)| from);
                if at < from {
                    let len_bytes = u32::try_from(from - at).expect("a part of a slice");
                    self.log.retain(slice_at((segment, at), len_bytes));
                    book.insert((segment, at), Stretch { len_bytes, holds: 1, place: None });
                    at = from;
                }
                if let Some((home, stretch)) = next {
                    let held = book.stretches.get_mut(&home).expect("a stretch of the book");
                    held.holds = held.holds.checked_add(1).expect("fewer holds than memory has room for");
                    at += u64::from(stretch.len_bytes);
                }
            }
            book.join((segment, slice.offset_bytes));
            book.join((segment, end));
        }
        Ok(())
    }

    fn release_hold(&self, slices: &[SlicePtr]) {
        let mut book = self.book.lock();
        for slice in slices {
            let (segment, end) = (slice.segment, end_of(*slice));
            book.split((segment, slice.offset_bytes));
            book.split((segment, end));
            let mut ended = 0;
            for (home, stretch) in book.beginning_in(segment, slice.offset_bytes..end) {
                ended += u64::from(stretch.len_bytes);
                book.remove(home);
                match stretch.holds.checked_sub(1) {
                    None | Some(0) => {
                        self.log.let_go(stretch.place_of(home).0, u64::from(stretch.len_bytes));
                    }
                    Some(holds) => book.insert(home, Stretch { holds, ..stretch }),
                }
            }
            assert_eq!(ended, u64::from(slice.len_bytes), "a hold that ends was begun");
            self.moved_count.store(book.away.len(), Ordering::Release);
            book.join((segment, slice.offset_bytes));
            book.join((segment, end));
        }
    }
}

impl<L> std::fmt::Debug for HeldSlices<L> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HeldSlices({} bytes)", self.book.lock().held_bytes)
    }
}

#[cfg(test)]
mod tests {
    use warpfire_log::{MemLog, MemLogOptions};

    use super::*;

    const SEGMENT_BYTES: u64 = 64 << 10;

    fn log() -> Arc<MemLog> {
        Arc::new(MemLog::with_options(MemLogOptions {
            capacity_bytes: 8 << 20,
            segment_bytes: SEGMENT_BYTES,
        }))
    }

    /// Bytes that differ from all others that these tests write.
    fn content(seed: u32, len: usize) -> Vec<u8> {
        (0..len as u32)
            .flat_map(|n| (seed.wrapping_mul(0x9e37_79b9) ^ n.wrapping_mul(31)).to_le_bytes())
            .take(len)
            .collect()
    }

    /// A sealed segment: its slice fills it, and another segment is open.
    fn written(log: &MemLog, seed: u32) -> SlicePtr {
        let slice = log.append(Stream::Large, &content(seed, SEGMENT_BYTES as usize)).unwrap()[0];
        let open = log.append(Stream::Large, &[0; 4096]).unwrap()[0];
        log.release(open.segment, 4096);
        slice
    }

    fn read(held: &HeldSlices<MemLog>, slice: SlicePtr) -> Vec<u8> {
        let parts = held.resolve(slice).unwrap_or_else(|| Slices::from_buf([slice]));
        let mut bytes = Vec::new();
        for part in parts {
            let start = bytes.len();
            bytes.resize(start + part.len_bytes as usize, 0);
            held.log.read(part, &mut bytes[start..]).unwrap();
        }
        bytes
    }

    fn no_copy(slice: SlicePtr) -> KnownCopy {
        KnownCopy::NoneOf(slice.len_bytes)
    }

    #[test]
    fn held_bytes_leave_a_segment_that_is_cleaned_and_it_is_freed() {
        let log = log();
        let held = HeldSlices::new(Arc::clone(&log));
        let slice = written(&log, 1);
        let (part, other) = (slice.part(100, 5000), slice.part(3000, 10_000));
        held.hold(&[part, other]).unwrap();
        assert_eq!(held.held_bytes(), 12_900);
        log.release(slice.segment, u64::from(slice.len_bytes));
        assert!(log.victims(9).contains(&slice.segment), "a hold does not keep a segment from being cleaned");
        assert_eq!(held.move_out(slice.segment, &mut no_copy).unwrap().bytes, 12_900);
        // The move had a pin, so the segment is freed with the next sync.
        log.sync().unwrap();
        assert!(log.read(slice, &mut vec![0; slice.len_bytes as usize]).is_err(), "the segment is freed");
        let bytes = content(1, SEGMENT_BYTES as usize);
        assert_eq!(read(&held, part), bytes[100..5100]);
        assert_eq!(read(&held, slice.part(4000, 2000)), bytes[4000..6000]);
        // A hold of the same addresses from now on is one of the moved bytes.
        held.hold(&[part]).unwrap();
        held.release_hold(&[part, other]);
        assert_eq!(read(&held, part), bytes[100..5100]);
        held.release_hold(&[part]);
        assert_eq!((held.held_bytes(), log.space().live_bytes), (0, 0));
    }

    #[test]
    fn bytes_that_cleaning_has_copied_are_not_copied_again() {
        let log = log();
        let held = HeldSlices::new(Arc::clone(&log));
        let slice = written(&log, 2);
        held.hold(&[slice]).unwrap();
        let copy = log.append(Stream::Cold, &content(2, SEGMENT_BYTES as usize)[1000..9000]).unwrap()[0];
        let mut known = |wanted: SlicePtr| match wanted.offset_bytes {
            0..1000 => KnownCopy::NoneOf(1000 - wanted.offset_bytes as u32),
            at @ 1000..9000 => KnownCopy::Of(copy.part(at as u32 - 1000, 9000 - at as u32)),
            _ => KnownCopy::NoneOf(wanted.len_bytes),
        };
        let before = log.counters().appended_bytes;
        held.move_out(slice.segment, &mut known).unwrap();
        assert_eq!(log.counters().appended_bytes - before, SEGMENT_BYTES - 8000);
        assert_eq!(read(&held, slice), content(2, SEGMENT_BYTES as usize));
        log.release(slice.segment, SEGMENT_BYTES);
        log.release(copy.segment, 8000);
        assert_eq!(read(&held, slice), content(2, SEGMENT_BYTES as usize));
        held.release_hold(&[slice]);
        assert_eq!(log.space().live_bytes, 0);
    }

    #[test]
    fn a_hold_that_ends_during_a_move_leaves_nothing_behind() {
        let log = log();
        let held = HeldSlices::new(Arc::clone(&log));
        let slice = written(&log, 3);
        let (first, second) = (slice.part(0, 4000), slice.part(8000, 4000));
        held.hold(&[first, second]).unwrap();
        // The book asks before each copy, which is between its list of stretches and their new places.
        let mut known = |wanted: SlicePtr| {
            if wanted.offset_bytes == 0 {
                held.release_hold(&[slice.part(1000, 500)]);
                held.release_hold(&[second]);
            }
            no_copy(wanted)
        };
        held.move_out(slice.segment, &mut known).unwrap();
        held.book.lock().assert_sound();
        let bytes = content(3, SEGMENT_BYTES as usize);
        assert_eq!(read(&held, slice.part(0, 1000)), bytes[..1000]);
        assert_eq!(read(&held, slice.part(1500, 2500)), bytes[1500..4000]);
        held.release_hold(&[slice.part(0, 1000), slice.part(1500, 2500)]);
        log.release(slice.segment, SEGMENT_BYTES);
        assert_eq!(log.space().live_bytes, 0);
    }

    /// Holds, ends of holds and moves in any order, of ranges that overlap in any way.
    #[test]
    fn any_order_of_holds_moves_and_ends_keeps_the_bytes() {
        let mut state = 7u64;
        let mut draw = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for _ in 0..30 {
            let log = log();
            let held = HeldSlices::new(Arc::clone(&log));
            let slices: Vec<SlicePtr> = (0..4).map(|n| written(&log, n)).collect();
            let mut holds: Vec<(usize, SlicePtr)> = Vec::new();
            for _ in 0..200 {
                let number = draw(4) as usize;
                let start = draw(SEGMENT_BYTES - 1) as u32;
                let len = 1 + draw((SEGMENT_BYTES - u64::from(start)).min(9000)) as u32;
                match draw(5) {
                    0..2 => {
                        let part = slices[number].part(start, len.min(SEGMENT_BYTES as u32 - start));
                        held.hold(&[part]).unwrap();
                        holds.push((number, part));
                    }
                    2..4 if !holds.is_empty() => {
                        let (_, part) = holds.swap_remove(draw(holds.len() as u64) as usize);
                        held.release_hold(&[part]);
                    }
                    _ => {
                        let places: Vec<SegmentId> = log.victims(99);
                        if let Some(victim) = places.get(draw(1 + places.len() as u64) as usize) {
                            held.move_out(*victim, &mut no_copy).unwrap();
                        } else {
                            held.move_out(slices[number].segment, &mut no_copy).unwrap();
                        }
                    }
                }
                held.book.lock().assert_sound();
            }
            for (number, part) in &holds {
                let bytes = content(*number as u32, SEGMENT_BYTES as usize);
                let (from, to) = (part.offset_bytes as usize, end_of(*part) as usize);
                assert_eq!(read(&held, *part), bytes[from..to]);
            }
            let parts: Vec<SlicePtr> = holds.into_iter().map(|(_, part)| part).collect();
            held.release_hold(&parts);
            held.book.lock().assert_sound();
            slices.iter().for_each(|slice| log.release(slice.segment, SEGMENT_BYTES));
            assert_eq!((held.held_bytes(), log.space().live_bytes), (0, 0));
        }
    }
}
