//! Planted bugs: known mistakes that a debug build makes on request. They show that the tests can fail.
//!
//! In a debug build the environment variable `WARPFIRE_PLANTED_BUG` names the mistake that the process makes.
//! A release build has no mistakes: there [`is_planted`] is a constant `false`.

/// A mistake that can be planted. `scripts/planted` demands that a test finds each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PlantedBug {
    /// Recovery accepts the last group without verifying its stripes.
    SkipBarrierCheck,
    /// Zones of freed segments are reset before the group that frees them is durable.
    FreeBeforeBarrier,
    /// A log segment ends without the announcement of the next one.
    LogSegmentUnannounced,
    /// Damaged segments are not cleaned first.
    DamageForgotten,
    /// A root is written before the bytes that it refers to are flushed.
    RootBeforeFlush,
    /// A root is written into the zone of the newest root, which is reset first.
    RootOverItself,
    /// A stripe of an older session counts as the stripe of this one.
    EpochUnchecked,
    /// Blocks are used without a look at their checksums.
    ChecksumsUnread,
    /// Parity is computed of the first tile of a stripe only.
    ParityOfFirstTile,
    /// Damaged columns are not rewritten.
    ResilverSkipped,
    /// A column that missed a write is not recorded.
    LostNotLogged,
    /// The old zone of a moved column is reset before its move is durable.
    OldZoneResetEarly,
    /// A column may move to a device that has another column of its segment.
    ColumnsShareDevice,
    /// No hold is taken for slices that a transaction names.
    NamedNotHeld,
    /// A sync leaves out the frozen memtable.
    SyncSkipsFrozen,
    /// Commits do not look at the read set.
    ReadsUnchecked,
    /// A file that is removed while it is open is not recorded as an orphan.
    OrphanUnrecorded,
    /// The log counts a GiB of garbage too much.
    GarbageOvercounted,
    /// A pool with room refuses every second change.
    RefusedWithRoom,
    /// A sync leaves bytes in memory that its records name.
    NeededNotWritten,
    /// A sync takes the result of the round that is running, which may have begun before its commits.
    RoundJoined,
    /// A transaction commits while plain calls run.
    CommitBesideCalls,
    /// A listing by a plain call leaves out the newest commit: serial order, but not real time.
    ListingOutdated,
    /// The zones of a retired segment are free while a pin keeps it.
    PinsUnread,
    /// The zones of a freed segment are reset while a frozen state names them.
    FrozenNotKept,
    /// A device that was written apart from the pool is taken for a part of it.
    DivergedAccepted,
    /// A device that holds an older state than it had once is used as if it had missed nothing.
    OldCopyAccepted,
    /// A segment with fewer data columns than a new one is counted as if it had as many.
    NarrowCountedAsWide,
    /// Segments get their redundancy back in the order of their ids.
    RiskOrderById,
    /// The segments of a state log that is replaced are reset before the root without them is durable.
    StateFreedBeforeRoot,
    /// A state log that lacks columns stays as it is.
    StateKeptWeak,
    /// Compaction does not know of a new persistent snapshot.
    SnapshotNotHeld,
    /// The versions of a persistent snapshot may go before the removal of its record is durable.
    SnapshotForgottenEarly,
    /// An open does not look for persistent snapshots.
    SnapshotsUnreadAtOpen,
    /// The log has no copy of a root that a change of the devices made, until the next checkpoint.
    ChangedRootNotCopied,
    /// A census does not read the memtables.
    CensusWithoutMemory,
    /// Copies of roots of parts that were written apart are taken for those of one pool.
    CopiesApartAccepted,
    /// A receiver notes a mark before it has written the bytes before the mark.
    MarkBeforeBytes,
    /// The versions that go to the past end with the newest of them, which no snapshot sees then.
    PastEndsEarly,
    /// A stripe of a column that is rewritten ends with its first piece.
    PieceTakenForWhole,
    /// A version that only bookmarks show keeps its slices.
    BookmarkHoldsBytes,
    /// A version fades as soon as a bookmark shows it, also where a snapshot shows it too.
    SnapshotFades,
    /// The versions that a released origin shows may go before the record without the origin is durable.
    OriginForgottenEarly,
    /// A released origin is forgotten while a snapshot from before the release reads on.
    OriginForgottenInUse,
    /// The versions that a rollback shows again are not held.
    RollbackNotHeld,
    /// Operands from after a rollback fold onto what it hides.
    RollbackFoldsAcross,
    /// A rollback ends with a key that was not written again.
    RollbackEndsEarly,
    /// A rollback is forgotten while versions from its time and later ones are in tables apart.
    RollbackNotJoined,
    /// An open does not look for rollbacks.
    RollbacksUnreadAtOpen,
    /// A rollback hides the records of files in use that the snapshot does not have.
    StayingFileHidden,
}

#[cfg(any(test, debug_assertions))]
impl PlantedBug {
    const ALL: [(PlantedBug, &str); 50] = [
        (PlantedBug::SkipBarrierCheck, "skip-barrier-check"),
        (PlantedBug::FreeBeforeBarrier, "free-before-barrier"),
        (PlantedBug::LogSegmentUnannounced, "log-segment-unannounced"),
        (PlantedBug::DamageForgotten, "damage-forgotten"),
        (PlantedBug::RootBeforeFlush, "root-before-flush"),
        (PlantedBug::RootOverItself, "root-over-itself"),
        (PlantedBug::EpochUnchecked, "epoch-unchecked"),
        (PlantedBug::ChecksumsUnread, "checksums-unread"),
        (PlantedBug::ParityOfFirstTile, "parity-of-first-tile"),
        (PlantedBug::ResilverSkipped, "resilver-skipped"),
        (PlantedBug::LostNotLogged, "lost-not-logged"),
        (PlantedBug::OldZoneResetEarly, "old-zone-reset-early"),
        (PlantedBug::ColumnsShareDevice, "columns-share-device"),
        (PlantedBug::NamedNotHeld, "named-not-held"),
        (PlantedBug::SyncSkipsFrozen, "sync-skips-frozen"),
        (PlantedBug::ReadsUnchecked, "reads-unchecked"),
        (PlantedBug::OrphanUnrecorded, "orphan-unrecorded"),
        (PlantedBug::GarbageOvercounted, "garbage-overcounted"),
        (PlantedBug::RefusedWithRoom, "refused-with-room"),
        (PlantedBug::NeededNotWritten, "needed-not-written"),
        (PlantedBug::RoundJoined, "round-joined"),
        (PlantedBug::CommitBesideCalls, "commit-beside-calls"),
        (PlantedBug::ListingOutdated, "listing-outdated"),
        (PlantedBug::PinsUnread, "pins-unread"),
        (PlantedBug::FrozenNotKept, "frozen-not-kept"),
        (PlantedBug::DivergedAccepted, "diverged-accepted"),
        (PlantedBug::OldCopyAccepted, "old-copy-accepted"),
        (PlantedBug::NarrowCountedAsWide, "narrow-counted-as-wide"),
        (PlantedBug::RiskOrderById, "risk-order-by-id"),
        (PlantedBug::StateFreedBeforeRoot, "state-freed-before-root"),
        (PlantedBug::StateKeptWeak, "state-kept-weak"),
        (PlantedBug::SnapshotNotHeld, "snapshot-not-held"),
        (PlantedBug::SnapshotForgottenEarly, "snapshot-forgotten-early"),
        (PlantedBug::SnapshotsUnreadAtOpen, "snapshots-unread-at-open"),
        (PlantedBug::ChangedRootNotCopied, "changed-root-not-copied"),
        (PlantedBug::CensusWithoutMemory, "census-without-memory"),
        (PlantedBug::CopiesApartAccepted, "copies-apart-accepted"),
        (PlantedBug::MarkBeforeBytes, "mark-before-bytes"),
        (PlantedBug::PastEndsEarly, "past-ends-early"),
        (PlantedBug::PieceTakenForWhole, "piece-taken-for-whole"),
        (PlantedBug::BookmarkHoldsBytes, "bookmark-holds-bytes"),
        (PlantedBug::SnapshotFades, "snapshot-fades"),
        (PlantedBug::OriginForgottenEarly, "origin-forgotten-early"),
        (PlantedBug::OriginForgottenInUse, "origin-forgotten-in-use"),
        (PlantedBug::RollbackNotHeld, "rollback-not-held"),
        (PlantedBug::RollbackFoldsAcross, "rollback-folds-across"),
        (PlantedBug::RollbackEndsEarly, "rollback-ends-early"),
        (PlantedBug::RollbackNotJoined, "rollback-not-joined"),
        (PlantedBug::RollbacksUnreadAtOpen, "rollbacks-unread-at-open"),
        (PlantedBug::StayingFileHidden, "staying-file-hidden"),
    ];

    fn named(name: &str) -> Option<PlantedBug> {
        PlantedBug::ALL.iter().find(|(_, known)| *known == name).map(|(bug, _)| *bug)
    }
}

/// Whether this process makes a mistake on purpose.
///
/// # Panics
/// In a debug build, if `WARPFIRE_PLANTED_BUG` names no mistake.
#[cfg(debug_assertions)]
#[must_use]
pub fn is_planted(bug: PlantedBug) -> bool {
    static CHOSEN: std::sync::LazyLock<Option<PlantedBug>> = std::sync::LazyLock::new(|| {
        let name = std::env::var("WARPFIRE_PLANTED_BUG").ok()?;
        Some(PlantedBug::named(&name).expect("WARPFIRE_PLANTED_BUG names a planted bug"))
    });
    *CHOSEN == Some(bug)
}

/// Whether this process makes a mistake on purpose: never, in a release build.
#[cfg(not(debug_assertions))]
#[must_use]
#[inline(always)]
pub const fn is_planted(_bug: PlantedBug) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_planted_bug_has_one_name() {
        for (bug, name) in PlantedBug::ALL {
            assert_eq!(PlantedBug::named(name), Some(bug));
        }
        assert_eq!(PlantedBug::named("none"), None);
    }
}
