//! The live bytes of one segment: its references, which are exact, and bounds on the bytes that they name.
//!
//! # Terms
//! A byte is *live* while a reference names it. Two references may name the same bytes: of files that share
//! them, or of versions that a snapshot keeps. So the live bytes are fewer than the referenced ones, and only
//! a *census* counts them: it reads every reference (`LogStore::begin_census`).
//!
//! # Invariants
//! 1. `references` is the sum of bytes appended and retained, less those released (assert in `drop_bytes`).
//!    Without references nothing is live. A segment is retired by this number alone, so a wrong census loses
//!    no byte.
//! 2. The live bytes are `most` at most: whatever may name a byte anew adds to it, and only a census lowers
//!    it. `live` is the least of `most`, the references and the bytes that were written
//!    (`tests::live_bytes_are_never_more_than_the_bound`).
//! 3. `least` is the smallest number that the live bytes may have, if each name that metadata has dropped
//!    since the last census was the only one of its bytes. It decides whether a census may pay, and nothing
//!    else. After an opening no earlier census is known, so `least` begins with `live`, and `is_counted` says
//!    that it is only assumed.
//! 4. A count holds for the moment at which its census began. Whatever has been added to `most` or taken from
//!    `least` since then is kept (`note_census`).

use warpfire_units::SegmentId;

use crate::store::{CensusMark, CountedSegment};

/// The counts of one segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LiveBytes {
    /// `None` from recovery until `set`.
    references: Option<u64>,
    most: u64,
    least: u64,
    /// All bytes that were taken from `least` so far.
    dropped: u64,
    is_counted: bool,
}

impl LiveBytes {
    /// A new segment: nothing refers to it.
    pub(crate) fn new() -> Self {
        LiveBytes { references: Some(0), most: 0, least: 0, dropped: 0, is_counted: true }
    }

    /// A recovered segment: its references are not counted yet.
    pub(crate) fn unknown() -> Self {
        LiveBytes { references: None, is_counted: false, ..Self::new() }
    }

    /// Sets the references after recovery, of which nobody knows how many name the same bytes.
    pub(crate) fn set(&mut self, references: u64, written_bytes: u64) {
        let live = references.min(written_bytes);
        *self = LiveBytes {
            references: Some(references),
            most: live,
            least: live,
            dropped: 0,
            is_counted: references == 0,
        };
    }

    /// Counts new bytes with one reference.
    pub(crate) fn append(&mut self, bytes: u64) {
        *self.references.as_mut().expect("the count of an open segment is known") += bytes;
        self.most += bytes;
        self.least += bytes;
    }

    /// Counts references to bytes that may have had none: a caller with an older pin may name such bytes
    /// anew.
    pub(crate) fn retain(&mut self, bytes: u64) {
        self.retain_again(bytes);
        self.most += bytes;
    }

    /// Counts references to bytes that have others.
    pub(crate) fn retain_again(&mut self, bytes: u64) {
        if let Some(references) = &mut self.references {
            *references += bytes;
        }
    }

    /// Counts names that metadata has dropped. They may have been the only ones.
    pub(crate) fn release(&mut self, bytes: u64) {
        self.drop_bytes(bytes);
        self.dropped += bytes;
        self.least = self.least.saturating_sub(bytes);
    }

    /// Counts references that callers had beside metadata, which mostly names the same bytes.
    pub(crate) fn let_go(&mut self, bytes: u64) {
        self.drop_bytes(bytes);
        self.least = self.references.map_or(self.least, |references| self.least.min(references));
    }

    fn drop_bytes(&mut self, bytes: u64) {
        if let Some(references) = &mut self.references {
            *references =
                references.checked_sub(bytes).expect("no more bytes are released than are referenced");
        }
    }

    /// Whether the references are known, and there is none.
    pub(crate) fn is_unreferenced(&self) -> bool {
        self.references == Some(0)
    }

    /// The live bytes of a segment of this length, at most. All of them while the references are unknown.
    pub(crate) fn live(&self, written_bytes: u64) -> u64 {
        self.references.map_or(written_bytes, |references| references.min(self.most).min(written_bytes))
    }

    /// The live bytes that a census may find, at least. With `doubts` nothing is assumed of a segment that
    /// was not counted since the opening.
    pub(crate) fn least(&self, written_bytes: u64, doubts: bool) -> u64 {
        if doubts && !self.is_counted { 0 } else { self.least.min(self.live(written_bytes)) }
    }

    /// Bytes that further names of the same bytes would take, at least.
    pub(crate) fn shared(&self, written_bytes: u64) -> u64 {
        self.references.map_or(0, |references| references - self.live(written_bytes))
    }

    /// The counts at the beginning of a census.
    pub(crate) fn mark(&self, segment: SegmentId, written_bytes: u64) -> Option<CensusMark> {
        let (most, dropped) = (self.most, self.dropped);
        let references = self.references?;
        Some(CensusMark { segment, written_bytes, references, most, dropped })
    }

    /// Takes the result of a census. References that it has not met may each name bytes of their own.
    pub(crate) fn note_census(&mut self, counted: &CountedSegment) {
        let mark = &counted.mark;
        let unmet = mark.references.saturating_sub(counted.named_bytes);
        let live = (counted.live_bytes + unmet).min(mark.written_bytes);
        assert!(self.most >= mark.most && self.dropped >= mark.dropped, "a census ends after it has begun");
        self.most = live + (self.most - mark.most);
        self.least = live.saturating_sub(self.dropped - mark.dropped);
        self.is_counted = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITTEN: u64 = 64;

    /// Names of ranges of one segment that come and go, and censuses that see all of them, or miss some.
    #[test]
    fn live_bytes_are_never_more_than_the_bound() {
        let mut state = 3u64;
        let mut draw = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let live_of = |names: &[(u64, u64)]| {
            (0..WRITTEN).filter(|at| names.iter().any(|(from, to)| (from..to).contains(&at))).count() as u64
        };
        let segment = SegmentId::FIRST;
        for _ in 0..300 {
            let mut live = LiveBytes::new();
            live.append(WRITTEN);
            let mut names = vec![(0, WRITTEN)];
            let mut begun: Option<CountedSegment> = None;
            for _ in 0..100 {
                match draw(5) {
                    0 | 1 => {
                        let from = draw(WRITTEN);
                        let name = (from, from + 1 + draw(WRITTEN - from));
                        live.retain(name.1 - name.0);
                        names.push(name);
                    }
                    2 | 3 if !names.is_empty() => {
                        let (from, to) = names.swap_remove(draw(names.len() as u64) as usize);
                        live.release(to - from);
                    }
                    _ if begun.is_none() => {
                        // Some names are out of sight.
                        let seen: Vec<_> = names.iter().copied().filter(|_| draw(4) > 0).collect();
                        let mark = live.mark(segment, WRITTEN).unwrap();
                        let named_bytes = seen.iter().map(|(from, to)| to - from).sum();
                        begun = Some(CountedSegment { mark, named_bytes, live_bytes: live_of(&seen) });
                    }
                    _ => live.note_census(&begun.take().unwrap()),
                }
                assert!(live_of(&names) <= live.live(WRITTEN), "{names:?} {live:?}");
                assert_eq!(names.is_empty(), live.live(WRITTEN) == 0, "{names:?} {live:?}");
            }
            let mark = live.mark(segment, WRITTEN).unwrap();
            let live_bytes = live_of(&names);
            live.note_census(&CountedSegment { named_bytes: mark.references, live_bytes, mark });
            assert_eq!((live.live(WRITTEN), live.least(WRITTEN, true)), (live_bytes, live_bytes));
        }
    }

    #[test]
    fn dropped_names_and_not_those_of_writers_make_a_census_worth_while() {
        let mut live = LiveBytes::new();
        live.append(WRITTEN);
        // A commit names the bytes, and their writer ends its reference.
        live.retain(WRITTEN);
        live.let_go(WRITTEN);
        assert_eq!((live.live(WRITTEN), live.least(WRITTEN, true)), (WRITTEN, WRITTEN));
        // A second file names them, and both lose the same half.
        live.retain(WRITTEN);
        live.release(WRITTEN / 2);
        live.release(WRITTEN / 2);
        assert_eq!((live.live(WRITTEN), live.least(WRITTEN, true)), (WRITTEN, 0));
        live.set(WRITTEN, WRITTEN);
        assert_eq!((live.least(WRITTEN, false), live.least(WRITTEN, true)), (WRITTEN, 0), "assumed only");
    }
}
