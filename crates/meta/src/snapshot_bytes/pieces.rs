//! Stretches of segments, and which snapshots need them.
//!
//! # Invariants
//! 1. `merged` returns stretches that do not overlap, in order, and each byte has the first and the last of
//!    all that need it (`tests::merged_stretches_say_of_each_byte_what_a_naive_list_says`).
//! 2. A list holds `PIECES_MAX` stretches at most. Those behind the place where it was cut are left out, and
//!    the next round begins there.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use warpfire_units::{SegmentId, SlicePtr};

/// Stretches in memory at a time: 80 MiB.
const PIECES_MAX: usize = if cfg!(test) { 64 } else { 1 << 21 };

/// The snapshots that need some bytes: places in the list that the caller has given, from the first to the
/// last one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Needers {
    pub(super) first: u32,
    pub(super) last: u32,
}

impl Needers {
    /// Something needs the bytes that is not in the list.
    pub(crate) const OTHERS: Needers = Needers { first: u32::MAX, last: u32::MAX };

    /// The snapshot at a place of the list.
    pub(crate) fn at(place: u32) -> Needers {
        Needers { first: place, last: place }
    }

    pub(crate) fn are_listed(self) -> bool {
        self.last != u32::MAX
    }

    pub(crate) fn with(self, other: Needers) -> Needers {
        Needers { first: self.first.min(other.first), last: self.last.max(other.last) }
    }
}

/// A place in the log.
pub(crate) type LogPlace = (SegmentId, u64);

/// A stretch of a segment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct NeededPiece {
    pub(super) segment: SegmentId,
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) needers: Needers,
}

impl NeededPiece {
    pub(crate) fn new(slice: SlicePtr, needers: Needers) -> NeededPiece {
        // What damaged metadata names may end behind every segment.
        let to = slice.offset_bytes.saturating_add(u64::from(slice.len_bytes));
        NeededPiece { segment: slice.segment, from: slice.offset_bytes, to, needers }
    }
}

/// The stretches as ones that do not overlap, in order.
pub(crate) fn merged(mut pieces: Vec<NeededPiece>) -> Vec<NeededPiece> {
    pieces.sort_unstable();
    let mut sweep = Sweep::default();
    for piece in pieces.into_iter().filter(|piece| piece.from < piece.to) {
        sweep.advance(Some((piece.segment, piece.from)));
        sweep.begin(piece);
    }
    sweep.advance(None);
    sweep.out
}

/// A place that moves over stretches, and the stretches that it is in.
#[derive(Default)]
struct Sweep {
    at: Option<LogPlace>,
    ends: BinaryHeap<Reverse<(u64, Needers)>>,
    firsts: BTreeMap<u32, usize>,
    lasts: BTreeMap<u32, usize>,
    out: Vec<NeededPiece>,
}

impl Sweep {
    fn begin(&mut self, piece: NeededPiece) {
        debug_assert_eq!(self.at, Some((piece.segment, piece.from)), "the sweep is where it begins");
        self.ends.push(Reverse((piece.to, piece.needers)));
        *self.firsts.entry(piece.needers.first).or_default() += 1;
        *self.lasts.entry(piece.needers.last).or_default() += 1;
    }

    /// Moves on to a place, or to the end: what ends before it, ends.
    fn advance(&mut self, place: Option<LogPlace>) {
        while let (Some((segment, at)), Some(Reverse((end, needers)))) = (self.at, self.ends.peek().copied())
        {
            if let Some((_, offset)) = place.filter(|to| to.0 == segment && to.1 < end) {
                self.emit(segment, at, offset);
                break;
            }
            self.emit(segment, at, end);
            self.at = Some((segment, at.max(end)));
            self.ends.pop();
            subtract(&mut self.firsts, needers.first);
            subtract(&mut self.lasts, needers.last);
        }
        self.at = place;
    }

    /// Adds the bytes between two places to the result.
    fn emit(&mut self, segment: SegmentId, from: u64, to: u64) {
        let (Some(first), Some(last)) = (self.firsts.keys().next(), self.lasts.keys().next_back()) else {
            return;
        };
        let needers = Needers { first: *first, last: *last };
        if from >= to {
            return;
        }
        match self.out.last_mut() {
            Some(before) if (before.segment, before.to, before.needers) == (segment, from, needers) => {
                before.to = to;
            }
            _ => self.out.push(NeededPiece { segment, from, to, needers }),
        }
    }
}

fn subtract(counts: &mut BTreeMap<u32, usize>, number: u32) {
    let count = counts.get_mut(&number).expect("a stretch that ends has begun");
    *count -= 1;
    if *count == 0 {
        counts.remove(&number);
    }
}

/// The stretches of one round: those from a place on, as many as fit.
pub(crate) struct PieceList {
    from: Option<LogPlace>,
    until: Option<LogPlace>,
    pieces: Vec<NeededPiece>,
}

impl PieceList {
    /// An empty list, for the bytes behind a place.
    pub(crate) fn new(from: Option<LogPlace>) -> Self {
        PieceList { from, until: None, pieces: Vec::new() }
    }

    pub(crate) fn add(&mut self, slice: SlicePtr, needers: Needers) {
        let mut piece = NeededPiece::new(slice, needers);
        if let Some((segment, from)) = self.from {
            if piece.segment < segment {
                return;
            }
            if piece.segment == segment {
                piece.from = piece.from.max(from);
            }
        }
        if self.until.is_some_and(|until| (piece.segment, piece.from) >= until) || piece.from >= piece.to {
            return;
        }
        self.pieces.push(piece);
        if self.pieces.len() > PIECES_MAX {
            self.shorten();
        }
    }

    /// Merges the stretches, and leaves out the last ones if that does not halve their number.
    fn shorten(&mut self) {
        self.pieces = merged(std::mem::take(&mut self.pieces));
        if let Some(first_out) = self.pieces.get(PIECES_MAX / 2) {
            self.until = Some((first_out.segment, first_out.from));
            self.pieces.truncate(PIECES_MAX / 2);
        }
    }

    /// The stretches, merged, and the place where the next round begins, if there is one.
    pub(crate) fn end(self) -> (Vec<NeededPiece>, Option<LogPlace>) {
        let mut pieces = merged(self.pieces);
        if let Some((segment, offset)) = self.until {
            pieces.retain(|piece| (piece.segment, piece.from) < (segment, offset));
            if let Some(last) = pieces.last_mut().filter(|last| last.segment == segment) {
                last.to = last.to.min(offset);
            }
        }
        (pieces, self.until)
    }
}

/// The part of a slice that is in one of some merged stretches, as stretches that others need.
pub(crate) fn parts_inside(pieces: &[NeededPiece], slice: SlicePtr, add: &mut dyn FnMut(NeededPiece)) {
    let whole = NeededPiece::new(slice, Needers::OTHERS);
    let first = pieces.partition_point(|piece| (piece.segment, piece.to) <= (whole.segment, whole.from));
    for piece in &pieces[first..] {
        if (piece.segment, piece.from) >= (whole.segment, whole.to) {
            return;
        }
        add(NeededPiece { from: piece.from.max(whole.from), to: piece.to.min(whole.to), ..whole });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Rng;

    fn segment(number: u64) -> SegmentId {
        SegmentId::new(number).unwrap()
    }

    fn random_slice(rng: &mut Rng) -> SlicePtr {
        let (offset_bytes, len_bytes) = (rng.below(80), rng.below(30) as u32);
        SlicePtr { segment: segment(1 + rng.below(3)), offset_bytes, len_bytes }
    }

    fn note(bytes: &mut BTreeMap<LogPlace, Needers>, piece: &NeededPiece) {
        for offset in piece.from..piece.to {
            let of_byte = bytes.entry((piece.segment, offset)).or_insert(piece.needers);
            *of_byte = of_byte.with(piece.needers);
        }
    }

    fn random_needers(rng: &mut Rng) -> Needers {
        let first = rng.below(5) as u32;
        if rng.below(4) == 0 { Needers::OTHERS } else { Needers { first, last: first + rng.below(3) as u32 } }
    }

    #[test]
    fn merged_stretches_say_of_each_byte_what_a_naive_list_says() {
        let mut rng = Rng(3);
        for _ in 0..500 {
            let pieces: Vec<NeededPiece> = (0..rng.below(30))
                .map(|_| NeededPiece::new(random_slice(&mut rng), random_needers(&mut rng)))
                .collect();
            let mut naive = BTreeMap::new();
            pieces.iter().for_each(|piece| note(&mut naive, piece));
            let out = merged(pieces);
            assert!(out.windows(2).all(|pair| {
                (pair[0].segment, pair[0].to) <= (pair[1].segment, pair[1].from)
                    && (pair[0].needers != pair[1].needers
                        || pair[0].to != pair[1].from
                        || pair[0].segment != pair[1].segment)
            }));
            let mut found = BTreeMap::new();
            out.iter().for_each(|piece| note(&mut found, piece));
            assert_eq!(found, naive);
        }
    }

    #[test]
    fn rounds_meet_each_byte_once() {
        let mut rng = Rng(4);
        for _ in 0..50 {
            let all: Vec<(SlicePtr, Needers)> = (0..300)
                .map(|n| {
                    let offset_bytes = n * 7 % 900;
                    let len_bytes = 1 + rng.below(9) as u32;
                    let slice = SlicePtr { segment: segment(1 + n % 2), offset_bytes, len_bytes };
                    (slice, random_needers(&mut rng))
                })
                .collect();
            let mut naive = BTreeMap::new();
            all.iter().for_each(|(slice, needers)| note(&mut naive, &NeededPiece::new(*slice, *needers)));
            let (mut found, mut from, mut rounds) = (BTreeMap::new(), None, 0);
            loop {
                let mut list = PieceList::new(from);
                all.iter().for_each(|(slice, needers)| list.add(*slice, *needers));
                let (pieces, next) = list.end();
                for piece in &pieces {
                    assert!(!found.contains_key(&(piece.segment, piece.from)), "a byte is met once");
                    note(&mut found, piece);
                }
                rounds += 1;
                let Some(next) = next else { break };
                assert!(from < Some(next), "each round goes on");
                from = Some(next);
            }
            assert!(rounds > 2, "the list was cut");
            assert_eq!(found, naive);
        }
    }

    #[test]
    fn the_parts_of_a_slice_inside_of_stretches_are_found() {
        let mut rng = Rng(5);
        for _ in 0..500 {
            let pieces = merged(
                (0..rng.below(8))
                    .map(|_| NeededPiece::new(random_slice(&mut rng), Needers { first: 0, last: 0 }))
                    .collect(),
            );
            let slice = random_slice(&mut rng);
            let mut inside = Vec::new();
            parts_inside(&pieces, slice, &mut |part| inside.push(part));
            let (mut of_pieces, mut found) = (BTreeMap::new(), BTreeMap::new());
            pieces.iter().for_each(|piece| note(&mut of_pieces, piece));
            inside.iter().for_each(|piece| note(&mut found, piece));
            let range = slice.offset_bytes..slice.offset_bytes + u64::from(slice.len_bytes);
            let expected = of_pieces.into_keys().filter(|(s, at)| *s == slice.segment && range.contains(at));
            assert!(found.into_keys().eq(expected));
        }
    }
}
