//! Reclaim: work for space when a caller finds none.
//!
//! With background threads the threads do this work and callers wait for it a moment. Without threads
//! (tests, the simulation, an engine that opens or closes) the caller does it.
//!
//! ```text
//!   caller: no space ──demand──▶ compaction thread: clean, compact ... until there is space, or no more gain
//!      ▲  └─ waits for a gain ◀──note_gain── each table that is installed
//!      └──── nothing to gain, or no gain for long: `NoSpace`
//! ```
//!
//! # Invariants
//! 1. The loop ends: after `STEPS_MAX` steps, or after `IDLE_STEPS_MAX` in a row without gain. Bytes that
//!    callers write beside the loop do not count against a gain (`used_and_free_bytes`,
//!    `tests::space::space_is_gained_beside_callers_that_write`). The loop does not begin again until live or
//!    free bytes, deletions or snapshots have changed (`ReclaimState`), or until a reader has gone whose pin
//!    kept segments (`has_failed`). Other commits do not count, because they gain nothing.
//! 2. With threads, a caller rewrites no table for space. It waits as long as `Patience` says: a full pool
//!    refuses at once (`tests::space::a_full_pool_refuses_at_once`). A pool with enough garbage, or with new
//!    deletions, gives its thread time (`tests::space::a_caller_waits_for_garbage_on_a_busy_machine`,
//!    `tests::space::a_caller_waits_for_deletions_on_a_busy_machine`), and waits for the readers that keep it
//!    (`tests::space::a_caller_waits_for_readers_that_keep_garbage`). A rollback that is not settled holds
//!    bytes that were deleted since: callers wait for that too (`api/tests/full_pools.rs`).
//! 3. Garbage in open segments is room, too: without another victim they are sealed, one a step
//!    (`EngineInner::clean_for_room`, `tests::space::garbage_in_open_segments_is_room`).
//! 4. A caller that waits holds no lock of the engine (assert in debug builds: the ranks of the locks).

use std::time::Duration;

use warpfire_env::sync::{Condvar, Mutex};
use warpfire_env::{PlantedBug, is_planted};
use warpfire_log::{Admit, CensusNeed, LogError, LogStore};

use crate::engine::EngineInner;
use crate::memtable::SHARDS;
use crate::schema::Schema;
use crate::store::MetaError;

/// Most steps of one loop.
const STEPS_MAX: u32 = 128;

/// Steps in a row without gain after which reclaim gives up: at least two of each kind.
const IDLE_STEPS_MAX: u32 = 6;

/// Cleanings in a row without gain after which all is freed that can be freed.
const IDLE_CLEANINGS_MAX: u32 = 3;

/// How long a caller waits for the next gain before it looks again.
pub(crate) const WAIT: Duration = Duration::from_millis(100);

/// The limits of a caller's wait.
struct Patience {
    /// Gains that it waits for: others may take what each of them frees.
    gains_max: u32,
    /// Waits of `WAIT` without a gain.
    idle_waits_max: u32,
}

/// Where the garbage that is worth cleaning does not suffice: two seconds at most.
const OF_A_FULL_POOL: Patience = Patience { gains_max: 20, idle_waits_max: 1 };

/// Where something was deleted since reclaim last came to nothing: what that freed is not garbage before it
/// is compacted. Five seconds without a gain at most.
const AFTER_DELETIONS: Patience = Patience { gains_max: 20, idle_waits_max: 50 };

/// Where rollbacks are being settled: they hold deleted bytes. Each one that is settled begins the counts
/// again.
const WHILE_SETTLING: Patience = Patience { gains_max: 2_000, idle_waits_max: 50 };

/// Where the garbage suffices: only a thread that is busy with other work, or a device that is slow, can keep
/// it from being freed. Ten seconds without a gain at most.
const WHERE_GARBAGE_SUFFICES: Patience = Patience { gains_max: 2_000, idle_waits_max: 100 };

/// Waits of `WAIT` for readers that keep emptied segments: as long as a read waits for a device that hangs.
/// No longer, because the caller may be such a reader itself.
const WAITS_FOR_READERS_MAX: u32 = 20;

/// Part of the pool that is garbage worth cleaning when it suffices. Below it, cleaning may free little with
/// much work.
const FREEABLE_PART: u64 = 16;

/// Segments that the compaction thread frees beyond the demand, so that the next callers need not wait.
const SPARE_SEGMENTS: u64 = 2;

/// The facts that decide whether reclaim can gain anything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct ReclaimState {
    live_bytes: u64,
    free_bytes: u64,
    /// Commits that may have made bytes garbage: deletions, admitted to the reserve.
    deletions: u64,
    /// Snapshots dropped since the engine was opened.
    snapshots_released: u64,
}

/// A caller's wait for rollbacks that are being settled.
#[derive(Debug)]
struct SettlingWait {
    /// The caller may wait. It does not settle them itself.
    is_allowed: bool,
    /// Number of those that were left at the last look.
    left: usize,
    /// Gains and waits without a gain since one of them was settled.
    gains: u32,
    idle_waits: u32,
}

impl SettlingWait {
    fn new(is_allowed: bool) -> SettlingWait {
        SettlingWait { is_allowed, left: 0, gains: 0, idle_waits: 0 }
    }

    /// Whether the caller waits on. `count` says how many rollbacks are left.
    fn goes_on(&mut self, count: impl FnOnce() -> usize) -> bool {
        if !self.is_allowed {
            return false;
        }
        let left = count();
        if left < self.left {
            (self.gains, self.idle_waits) = (0, 0);
        }
        self.left = left;
        left > 0 && !self.is_over()
    }

    fn note(&mut self, has_gained: bool) {
        self.gains += u32::from(has_gained);
        self.idle_waits += u32::from(!has_gained);
    }

    fn is_over(&self) -> bool {
        self.gains >= WHILE_SETTLING.gains_max || self.idle_waits >= WHILE_SETTLING.idle_waits_max
    }

    fn has_ended_in_vain(&self) -> bool {
        self.left > 0 && self.is_over()
    }
}

impl ReclaimState {
    /// Whether as many deletions and dropped snapshots let a step gain as at another time.
    fn allows_the_same_as(&self, other: &ReclaimState) -> bool {
        (self.deletions, self.snapshots_released) == (other.deletions, other.snapshots_released)
    }
}

/// The demand of callers, and the success of the work for it.
#[derive(Debug, Default)]
pub(crate) struct Reclaim {
    state: Mutex<DemandState>,
    gained: Condvar,
}

#[derive(Debug, Default)]
struct DemandState {
    /// Free bytes beyond the reserve that callers wait for; `None`: nobody waits.
    wanted_bytes: Option<u64>,
    /// Counts the installed tables: each may have gained space.
    gains: u64,
    /// How things stood when the loop last came to nothing.
    failed_at: Option<ReclaimState>,
    /// How things stood when a caller last waited in vain for rollbacks to be settled.
    unsettled_at: Option<ReclaimState>,
}

impl Reclaim {
    /// Wakes the callers that wait: tables have been installed.
    pub(crate) fn note_gain(&self) {
        self.state.lock().gains += 1;
        self.gained.notify_all();
    }

    /// Waits for the next gain after the first `seen`, or until `limit` is over. `false`: it is over.
    pub(crate) fn wait_for_gain(&self, seen: u64, limit: Duration) -> bool {
        let mut state = self.state.lock();
        !self.gained.wait_while_for(&mut state, |state| state.gains == seen, limit).timed_out()
    }

    /// Number of gains so far.
    pub(crate) fn gains(&self) -> u64 {
        self.state.lock().gains
    }
}

impl<L: LogStore, S: Schema> EngineInner<L, S> {
    /// Asks the log to admit `bytes`, beside what `with_kept` adds. If there is no room, a flush and reclaim
    /// make it as far as they gain.
    pub(crate) fn admit(&self, bytes: u64, admit: Admit) -> Result<(), MetaError> {
        if is_planted(PlantedBug::RefusedWithRoom)
            && admit == Admit::User
            && !self.newest().0.is_multiple_of(2)
        {
            return Err(MetaError::Log(LogError::NoSpace));
        }
        // Read anew each time: flushes empty memory, and other writes claim and return reserved bytes.
        let with_kept = || self.with_kept(bytes, admit);
        let admitted = || self.log.admit(with_kept(), admit).map_err(MetaError::from);
        match admitted() {
            Err(e) if e.is_no_space() => {}
            other => return other,
        }
        if admit == Admit::User {
            self.flush_for_room(bytes)?;
        }
        let settling = SettlingWait::new(admit == Admit::User);
        self.reclaim_or_wait(with_kept(), settling, admitted)
    }

    /// Bytes, with those in memory, which become tables, and those that are kept for reserved bytes.
    pub(crate) fn with_kept(&self, bytes: u64, admit: Admit) -> u64 {
        let reserved_bytes = match admit {
            Admit::User | Admit::Reserved(_) => self.reserved.room(),
            Admit::Reserve | Admit::Settling => 0,
        };
        bytes.saturating_add(self.usage.in_memory_bytes()).saturating_add(reserved_bytes)
    }

    /// Makes `enough` succeed, which needs some `bytes`: by reclaim on this thread, or with threads by
    /// waiting for theirs.
    pub(crate) fn reclaim<T>(
        &self,
        bytes: u64,
        enough: impl FnMut() -> Result<T, MetaError>,
    ) -> Result<T, MetaError> {
        self.reclaim_or_wait(bytes, SettlingWait::new(false), enough)
    }

    /// As `reclaim`, which does not wait for rollbacks: whoever settles them calls it too.
    fn reclaim_or_wait<T>(
        &self,
        bytes: u64,
        mut settling: SettlingWait,
        mut enough: impl FnMut() -> Result<T, MetaError>,
    ) -> Result<T, MetaError> {
        match enough() {
            Err(e) if e.is_no_space() => {}
            other => return other,
        }
        if !self.has_threads() {
            return self.reclaim_here(enough);
        }
        let (mut gains, mut idle_waits) = (0, 0);
        loop {
            // Before `enough`: a gain between the two ends the wait at once.
            let seen = self.reclaim.gains();
            match enough() {
                Err(e) if e.is_no_space() => {}
                other => return other,
            }
            let waits_for_settling = settling.goes_on(|| self.rollbacks_to_settle());
            let may_gain = self.demand(bytes)
                || waits_for_settling
                || (idle_waits < WAITS_FOR_READERS_MAX && self.waits_for_readers(bytes));
            if !may_gain {
                break;
            }
            let has_gained = self.reclaim.wait_for_gain(seen, WAIT);
            if waits_for_settling {
                settling.note(has_gained);
                continue;
            }
            if has_gained {
                gains += 1;
            } else {
                idle_waits += 1;
            }
            let patience = if self.garbage_suffices(bytes) {
                WHERE_GARBAGE_SUFFICES
            } else if self.has_new_deletions() {
                AFTER_DELETIONS
            } else {
                OF_A_FULL_POOL
            };
            if gains >= patience.gains_max || idle_waits >= patience.idle_waits_max {
                break;
            }
        }
        if settling.has_ended_in_vain() {
            // The next caller need not wait as long while nothing changes.
            self.reclaim.state.lock().unsettled_at = Some(self.reclaim_state());
        }
        enough()
    }

    /// Number of rollbacks that may hold deleted bytes until they are settled, beside this call. 0 if a
    /// caller has waited for that in vain as things stand.
    fn rollbacks_to_settle(&self) -> usize {
        let Some(table) = self.domains.get() else { return 0 };
        let unsettled = table.unsettled_rollbacks();
        let number = unsettled + table.unneeded_rollbacks(&self.snapshots).len();
        if number == 0 || self.reclaim.state.lock().unsettled_at == Some(self.reclaim_state()) {
            return 0;
        }
        number
    }

    /// Whether something was deleted since the loop last came to nothing.
    fn has_new_deletions(&self) -> bool {
        let (now, failed_at) = (self.reclaim_state(), self.reclaim.state.lock().failed_at);
        let none = ReclaimState { deletions: 0, snapshots_released: 0, ..now };
        !now.allows_the_same_as(&failed_at.unwrap_or(none))
    }

    /// Whether the loop has come to nothing only because readers keep the segments that it has emptied. They
    /// go soon: a pin lives as long as one read.
    fn waits_for_readers(&self, bytes: u64) -> bool {
        self.log.has_retired() && self.garbage_suffices(bytes)
    }

    /// Whether cleaning can free so many bytes beyond the reserve, as far as the counts say, and has a good
    /// part of the pool to choose from.
    fn garbage_suffices(&self, bytes: u64) -> bool {
        let space = self.log.space();
        let kept_bytes = space.stuck_bytes + space.log_bytes;
        let freeable_bytes = space.garbage_bytes.saturating_sub(kept_bytes);
        freeable_bytes >= space.total_bytes / FREEABLE_PART
            && space.free_bytes + freeable_bytes >= space.reserve_bytes.saturating_add(bytes)
    }

    /// Asks the compaction thread for free bytes. `false`: it has found out already that it can gain
    /// none.
    fn demand(&self, bytes: u64) -> bool {
        if self.has_failed(self.reclaim_state()) {
            return false;
        }
        let mut state = self.reclaim.state.lock();
        state.wanted_bytes = Some(state.wanted_bytes.unwrap_or(0).max(bytes));
        drop(state);
        self.wake_background();
        true
    }

    /// Whether the loop has come to nothing as things stand now. A reader may have kept the segments that it
    /// has emptied: when the reader has gone, a sync frees them.
    fn has_failed(&self, now: ReclaimState) -> bool {
        let failed_at = self.reclaim.state.lock().failed_at;
        failed_at == Some(now) && !self.log.has_unpinned()
    }

    /// Reclaims what callers have asked for since the last call. `true` if the demand is met; `false` if
    /// there is none, or not enough to gain.
    pub(crate) fn reclaim_step(&self) -> Result<bool, MetaError> {
        let Some(bytes) = self.reclaim.state.lock().wanted_bytes.take() else { return Ok(false) };
        let wanted_bytes = bytes + SPARE_SEGMENTS * self.log.segment_bytes();
        let reclaimed = self.reclaim_here(|| {
            let wanted_bytes = wanted_bytes + self.log.space().reserve_bytes;
            if self.is_stopping() { Ok(()) } else { self.check_free(wanted_bytes) }
        });
        // Also after a failure, which ends the wait of callers that would wait in vain.
        self.reclaim.note_gain();
        match reclaimed {
            Err(e) if e.is_no_space() => Ok(false),
            other => other.map(|()| true),
        }
    }

    /// Works for space until `enough` succeeds or nothing more can be gained. Cleaning alone might for ever
    /// move bytes that deletes have hidden, so cleaning and compaction alternate.
    pub(crate) fn reclaim_here<T>(
        &self,
        mut enough: impl FnMut() -> Result<T, MetaError>,
    ) -> Result<T, MetaError> {
        match enough() {
            Err(e) if e.is_no_space() => {}
            other => return other,
        }
        // One loop at a time. Flushes go on beside it: commits must not wait for a whole loop.
        let _compacting = self.compacting.lock();
        let mut best = self.used_and_free_bytes();
        let mut idle = 0;
        // How things stood before the first of the idle steps. A snapshot that is dropped after them may
        // let the same steps gain.
        let mut idle_since = self.reclaim_state();
        // Inside the reserve, cleaning first would spend the last space on moving deleted bytes.
        let mut drops = self.is_short_of_space();
        for step_number in 1..=STEPS_MAX {
            match enough() {
                Err(e) if e.is_no_space() => {}
                other => return other,
            }
            let now = self.reclaim_state();
            if self.has_failed(now) {
                break;
            }
            if step_number == 1 {
                let space = self.log.space();
                tracing::info!(
                    name: "reclaim_begun",
                    live_bytes = space.live_bytes,
                    free_bytes = space.free_bytes,
                    "a caller needs space: the engine cleans and compacts"
                );
            }
            let step = if drops { self.drop_deleted() } else { self.count_and_clean() };
            let did = match step {
                Err(e) if !e.is_no_space() => return Err(e),
                step => step.unwrap_or(false),
            };
            // Measured after failed steps too: a step that ran out of space may have gained some before.
            let (used, free) = self.used_and_free_bytes();
            let gained = used < best.0 || free > best.1 || !now.allows_the_same_as(&idle_since);
            if gained {
                idle_since = now;
            }
            idle = if gained { 0 } else { idle + 1 };
            best = (used.min(best.0), free.max(best.1));
            if idle >= IDLE_STEPS_MAX {
                // The next caller need not repeat all this while nothing has changed.
                let ReclaimState { live_bytes, free_bytes, .. } = self.reclaim_state();
                let failed_at = ReclaimState { live_bytes, free_bytes, ..idle_since };
                self.reclaim.state.lock().failed_at = Some(failed_at);
            }
            // Two of three steps clean: a compaction of everything writes far more.
            drops = if did { step_number % 3 == 2 } else { !drops };
        }
        enough()
    }

    /// Frees all that can be freed now: drops what deletes hide, and cleans every segment that is worth
    /// it.
    pub(crate) fn reclaim_all(&self) -> Result<(), MetaError> {
        let unless_full = |did: Result<bool, MetaError>| match did {
            // Without room to write tables, cleaning goes on with those that are there.
            Err(e) if e.is_no_space() => Ok(false),
            other => other,
        };
        unless_full(self.drop_deleted())?;
        // Each call counts segments that the calls before have not counted.
        while self.census_step(CensusNeed::Room)? {}
        // One step empties a segment at least, so these steps suffice. Segments that others write at the
        // same time are left.
        let space = self.log.space();
        let steps_max = space.total_bytes / self.log.segment_bytes().max(1);
        let (mut free_bytes, mut idle) = (space.free_bytes, 0);
        for _ in 0..steps_max {
            let did = unless_full(self.clean_for_room())?;
            let free_now = self.log.space().free_bytes;
            // A step that begins new segments, of tables or of the commit log, may gain nothing by itself.
            idle = if free_now > free_bytes { 0 } else { idle + 1 };
            free_bytes = free_bytes.max(free_now);
            if !did || idle == IDLE_CLEANINGS_MAX {
                break;
            }
        }
        // The log segments before a checkpoint become free.
        self.checkpoint()
    }

    /// Cleans some segments, after a census if that may find more of them.
    fn count_and_clean(&self) -> Result<bool, MetaError> {
        if self.census_step(CensusNeed::Room)? {
            self.clean_step()?;
            return Ok(true);
        }
        self.clean_for_room()
    }

    /// Drops the versions that deletes hide: flushes memory and compacts everything. `true` if there was
    /// work.
    pub(crate) fn drop_deleted(&self) -> Result<bool, MetaError> {
        // A checkpoint first: it frees segments of the commit log, and the flush needs segments.
        self.checkpoint()?;
        let mut did = self.flush_frozen()?;
        // The flush says whether it froze something.
        let _froze = self.freeze()?;
        did |= self.flush_frozen()?;
        did |= self.compact_all()?;
        if did {
            self.checkpoint()?;
        }
        Ok(did)
    }

    /// The live bytes, those still in memory included, and the free bytes without the room that memory
    /// needs as tables: a flush that only writes tables is neither a gain nor a loss. Both are as they would
    /// be had no caller written since the engine was opened, and so they may be negative.
    fn used_and_free_bytes(&self) -> (i64, i64) {
        // Read first: bytes that a caller writes in this moment make the gain look smaller, not larger.
        let written = self.usage.written_bytes().cast_signed();
        let (space, in_memory) = (self.log.space(), self.usage.in_memory_bytes().cast_signed());
        (
            space.live_bytes.cast_signed() + in_memory - written,
            space.free_bytes.cast_signed() - in_memory + written,
        )
    }

    fn reclaim_state(&self) -> ReclaimState {
        let space = self.log.space();
        ReclaimState {
            live_bytes: space.live_bytes,
            free_bytes: space.free_bytes,
            deletions: (0..SHARDS).map(|n| self.shards.read(n).deletions).sum(),
            snapshots_released: self.snapshots.released(),
        }
    }
}
