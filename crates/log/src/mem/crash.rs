//! Power cuts of a `MemLog`.

use super::{MemLog, MemLogCounters, MemRecord, MemState};
use crate::store::{LogError, LogPos, RecoveredLog};

impl MemLog {
    /// The log after a power cut now that keeps the least: everything synced and nothing more. This log goes
    /// on unharmed, so that one run can be cut at many points.
    #[must_use]
    pub fn crash(&self) -> (MemLog, RecoveredLog) {
        let state = self.state.lock().clone();
        let tick = state.synced;
        recover(state, tick)
    }

    /// As `crash`, but records after the last sync may survive too, with the bytes that they need. The seed
    /// determines how many.
    #[must_use]
    pub fn crash_seeded(&self, seed: u64) -> (MemLog, RecoveredLog) {
        let state = self.state.lock().clone();
        let unsynced: Vec<u64> = state.records.iter().map(|r| r.tick).filter(|&t| t > state.synced).collect();
        let kept = usize::try_from(mix(seed) % (unsynced.len() as u64 + 1)).expect("no more than there are");
        let tick = kept.checked_sub(1).map_or(state.synced, |last| unsynced[last]);
        recover(state, tick)
    }
}

fn recover(mut state: MemState, tick: u64) -> (MemLog, RecoveredLog) {
    state.records.retain(|r| r.tick <= tick);
    let needs_all = |r: &&MemRecord| r.tick > state.synced && r.needs_all_appends;
    let appended = state.records.iter().rev().find(needs_all).map_or(0, |r| r.tick);
    let needed = if tick > state.synced { tick } else { 0 };
    state.segments.truncate_to(appended, needed);
    state.next = state.records.back().map_or(state.next_at_checkpoint, |r| LogPos(r.pos.0 + 1));
    state.tick = tick;
    state.synced = tick;
    state.syncs_until_failure = None;
    state.syncs_without_room = 0;
    state.records_without_room = 0;
    state.latched = None;
    state.counters = MemLogCounters::default();
    let records: Vec<(LogPos, Vec<u8>)> = state.records.iter().map(|r| (r.pos, r.bytes.clone())).collect();
    let recovered = RecoveredLog {
        state: state.checkpoint.clone(),
        records: Box::new(records.into_iter().map(Ok::<_, LogError>)),
    };
    (MemLog::from_state(state), recovered)
}

/// Spreads a seed's bits (the finaliser of SplitMix64), so that small seeds differ.
fn mix(seed: u64) -> u64 {
    let z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
