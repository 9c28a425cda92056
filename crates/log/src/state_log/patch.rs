//! The difference of two client's states, as pieces of the old one and new bytes. It is found by equal
//! blocks, as rsync does, so that its length grows with the change wherever in the state that lies.

use std::collections::HashMap;

use warpfire_format::state_frame::StatePiece;

/// Bytes that old and new have to share for a copy.
const ANCHOR_BYTES: usize = 16;

/// The pieces that make `new` of `old`. Parts of the old state that were moved to its front count as new.
pub(super) fn pieces<'a>(old: &[u8], new: &'a [u8]) -> Vec<StatePiece<'a>> {
    let anchors = old.chunks_exact(ANCHOR_BYTES).enumerate().map(|(n, block)| (block, n * ANCHOR_BYTES));
    // The last of equal blocks stays: the one that is the least likely to lie behind.
    let places: HashMap<&[u8], usize> = anchors.collect();
    let mut pieces = Vec::new();
    let (mut old_at, mut new_at) = (0, 0);
    let (mut skipped, mut copied) = (0, shared(old, new));
    loop {
        old_at += copied;
        new_at += copied;
        let next = next_match(&places, old, new, old_at, new_at);
        let added_end = next.map_or(new.len(), |(_, at)| at);
        let len = |n: usize| u32::try_from(n).expect("a state fits a root's address space");
        pieces.push(StatePiece {
            skipped: len(skipped),
            copied: len(copied),
            added: &new[new_at..added_end],
        });
        let Some((place, at)) = next else { return pieces };
        assert!(place >= old_at && at >= new_at, "copies are in order");
        skipped = place - old_at;
        (old_at, new_at) = (place, at);
        copied = shared(&old[place..], &new[at..]);
    }
}

/// The first place in `new`, from `new_at` on, with bytes that stand in `old` from `old_at` on: (old, new).
fn next_match(
    places: &HashMap<&[u8], usize>,
    old: &[u8],
    new: &[u8],
    old_at: usize,
    new_at: usize,
) -> Option<(usize, usize)> {
    let last = new.len().checked_sub(ANCHOR_BYTES).filter(|_| !places.is_empty())?;
    let found = (new_at..=last).find_map(|at| {
        let place = *places.get(&new[at..at + ANCHOR_BYTES])?;
        (place >= old_at).then_some((place, at))
    });
    // Blocks of the old state lie on a grid; the shared bytes may begin before.
    let (mut place, mut at) = found?;
    while place > old_at && at > new_at && old[place - 1] == new[at - 1] {
        place -= 1;
        at -= 1;
    }
    Some((place, at))
}

/// Bytes that two strings begin with alike.
fn shared(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use warpfire_format::state_frame::{SavedState, StateFrame};
    use warpfire_sim_env::SimRandom;
    use warpfire_units::SegmentId;

    use super::*;

    /// The length of the difference as a frame, after it was applied.
    fn patched(old: &[u8], new: &[u8]) -> usize {
        let mut frame = Vec::new();
        StateFrame::Client(pieces(old, new)).encode(&mut frame);
        let mut state = SavedState { client: old.to_vec(), ..SavedState::default() };
        state.apply(&frame, SegmentId::FIRST).unwrap();
        assert_eq!(state.client, new);
        frame.len()
    }

    #[test]
    fn a_change_costs_what_it_changes() {
        let old: Vec<u8> =
            (0..100_000u32).flat_map(|n| (n.wrapping_mul(2_654_435_761)).to_le_bytes()).collect();
        let mut new = old.clone();
        new[..4].copy_from_slice(b"head");
        new.splice(200_000..200_040, *b"a table that is new");
        new.drain(300_000..300_100);
        new.extend_from_slice(b"the end");
        let len = patched(&old, &new);
        assert!(len < 150, "{len} bytes for three small changes of 400,000");
        assert!(patched(&old, &old) < 20);
        assert!(patched(b"", &old) < old.len() + 20);
        assert!(patched(&old, b"") < 20);
    }

    #[test]
    fn any_two_states_have_a_difference() {
        let random = SimRandom::new(7);
        let draw = |len: u64| -> Vec<u8> { (0..random.below(len)).map(|_| random.below(3) as u8).collect() };
        for _ in 0..2000 {
            let (old, new) = (draw(200), draw(200));
            patched(&old, &new);
            let mut longer = old.clone();
            let at = random.below(old.len() as u64 + 1) as usize;
            longer.splice(at..at, new);
            patched(&old, &longer);
            patched(&longer, &old);
        }
    }
}
