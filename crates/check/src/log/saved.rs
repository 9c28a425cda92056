//! Reading the state log: the frames that the root leads to, and those in the root.

use warpfire_format::log_state::LogState;
use warpfire_format::state_frame::SavedState;

use super::stripe::read_stripe;
use crate::media::{CheckedSegment, Media};
use crate::options::CheckError;

/// The saved state, and the segments of the state log. The rules are in `docs/FORMAT.md`, "State log".
pub(crate) fn read_saved(
    media: &Media,
    state: &LogState,
    tail: &[u8],
) -> Result<(SavedState, Vec<CheckedSegment>), CheckError> {
    let mut chain: Vec<CheckedSegment> = state.state_chain.iter().cloned().map(CheckedSegment::new).collect();
    let mut frames = Vec::new();
    let mut expected = state.state_sequence.saturating_add(1).saturating_sub(state.state_stripes());
    for segment in &mut chain {
        let id = segment.descriptor.id;
        if segment.clip(media.zone_blocks) {
            return Err(CheckError::NoState(format!("{id} of the state log does not fit its zones")));
        }
        for place in segment.stripes() {
            let found = read_stripe(media, &segment.descriptor, place.stripe, place.block);
            let Some(found) = found.filter(|found| found.header.sequence == expected) else {
                let stripe = place.stripe;
                return Err(CheckError::NoState(format!("{id} stripe {stripe} of the state log is lost")));
            };
            frames.extend_from_slice(&found.payload);
            expected = expected.saturating_add(1);
        }
    }
    frames.extend_from_slice(tail);
    let mut saved = SavedState::default();
    saved.apply(&frames, state.next_segment).map_err(|e| CheckError::NoState(e.to_string()))?;
    Ok((saved, chain))
}
