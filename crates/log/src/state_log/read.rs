//! Reads the saved state that a root leads to.

use warpfire_format::Corrupt;
use warpfire_format::log_state::LogState;
use warpfire_format::segment::{SegmentDescriptor, SegmentState};
use warpfire_format::state_frame::SavedState;
use warpfire_pool::{Pool, StripeHealth};

use crate::recover::{OUT_OF_ORDER, unreadable};
use crate::store::LogError;

/// Stripes that were durable before the root was written are missing: the root is not the newest, or more
/// devices are lost than parity covers.
const STATE_MISSING: Corrupt = Corrupt::new(266, "the state log does not hold what the root says");

/// The state log that a root leads to.
pub(crate) struct ReadState {
    /// Its segments, sealed.
    pub(super) chain: Vec<SegmentDescriptor>,
    pub(super) sequence: u64,
    pub(super) base_bytes: u64,
    pub(super) chain_bytes: u64,
    pub(super) tail: Vec<u8>,
    pub(super) client: Vec<u8>,
    pub(super) lacks_columns: bool,
}

impl ReadState {
    /// The segments of the chain.
    pub(crate) fn chain(&self) -> &[SegmentDescriptor] {
        &self.chain
    }
}

/// Reads every stripe of the state log, on every column, and applies its frames and those of the root. No
/// segment of the state log is adopted yet.
pub(crate) fn read_state(
    pool: &Pool,
    state: &LogState,
    tail: &[u8],
) -> Result<(SavedState, ReadState), LogError> {
    let mut frames = Vec::new();
    let mut lacks_columns = false;
    let mut next_sequence =
        (state.state_sequence + 1).checked_sub(state.state_stripes()).ok_or(OUT_OF_ORDER)?;
    for descriptor in &state.state_chain {
        let listed = descriptor.stripe_count();
        let mut taken = 0;
        pool.walk_open_segment(descriptor, 0, &mut |stripe| {
            // A checkpoint that did not get as far as its root leaves stripes behind the listed ones.
            if stripe.index >= listed || stripe.sequence != next_sequence {
                return;
            }
            let Some(payload) = stripe.payload else { return };
            lacks_columns |= stripe.health != StripeHealth::Intact;
            frames.extend_from_slice(payload);
            next_sequence += 1;
            taken += 1;
        })
        .map_err(unreadable)?;
        if taken != listed {
            return Err(STATE_MISSING.into());
        }
    }
    let chain_bytes = frames.len() as u64;
    let mut saved = SavedState::default();
    frames.extend_from_slice(tail);
    saved.apply(&frames, state.next_segment)?;
    let sealed = |d: &SegmentDescriptor| SegmentDescriptor { state: SegmentState::Sealed, ..d.clone() };
    let read = ReadState {
        chain: state.state_chain.iter().map(sealed).collect(),
        sequence: state.state_sequence,
        // A state of today's length: the base itself is not marked in the chain.
        base_bytes: if chain_bytes == 0 { 0 } else { saved.encode().len() as u64 },
        chain_bytes,
        tail: tail.to_vec(),
        client: saved.client.clone(),
        lacks_columns,
    };
    Ok((saved, read))
}
