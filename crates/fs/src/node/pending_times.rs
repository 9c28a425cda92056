//! Times of a directory that its record may not have yet.

use warpfire_env::{LockPlace, RankedMutex, RankedMutexGuard, RankedRawMutex};
use warpfire_format::fs::{FileKind, InodeEdit, InodeTime};

use crate::lock_ranks::PENDING_TIMES;

/// The times of a directory that its record may not have yet.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PendingTimes {
    /// Whether the next sync point commits `shown`.
    pub(crate) pending: bool,
    /// The time of the last change of a name since the node was made or its times were set. Callers see it as
    /// the directory's time.
    pub(crate) shown: Option<InodeTime>,
    /// Changes of names since the node was made.
    pub(crate) count: u64,
    /// Whether a call has set the times since the node was made, which replaced the shown time.
    pub(crate) was_set: bool,
}

impl PendingTimes {
    /// The edit that brings the record up to date; `None` if it is up to date.
    pub(crate) fn edit(&self) -> Option<InodeEdit<'static>> {
        let at = self.shown.filter(|_| self.pending)?;
        Some(InodeEdit { mtime: Some(at), ctime_max: Some(at), ..InodeEdit::default() })
    }
}

/// The pending times of a node. Only directories have any, and there are many more files.
pub(crate) struct NodeTimes(Option<Box<RankedMutex<PENDING_TIMES, PendingTimes>>>);

impl NodeTimes {
    pub(super) fn of_new(kind: FileKind, place: LockPlace) -> NodeTimes {
        let new = || RankedMutex::from_raw(RankedRawMutex::of(place), PendingTimes::default());
        NodeTimes((kind == FileKind::Directory).then(|| Box::new(new())))
    }

    /// The times of now. Those of a file never change.
    pub(crate) fn get(&self) -> PendingTimes {
        self.0.as_ref().map_or_else(PendingTimes::default, |times| *times.lock())
    }

    /// The times of a directory.
    pub(crate) fn lock(&self) -> RankedMutexGuard<'_, PENDING_TIMES, PendingTimes> {
        self.0.as_ref().expect("only a directory has pending times").lock()
    }

    /// Replaces the times of a directory; a file has none.
    pub(crate) fn set(&self, times: PendingTimes) {
        if let Some(now) = &self.0 {
            *now.lock() = times;
        }
    }

    /// Forgets the times: the record has others now. A call that began to count before goes on counting.
    pub(crate) fn reset(&self) {
        if let Some(now) = &self.0 {
            let mut now = now.lock();
            *now = PendingTimes { count: now.count, ..PendingTimes::default() };
        }
    }
}
