//! The registry: the open views of a mount, and those that begin or end.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use warpfire_env::{Clock, SystemClock};
use warpfire_fs::Transaction;
use warpfire_meta::Storage;

use super::diff::SharedListingSlot;
use super::process::Process;
use super::shares::SessionCounts;
use super::view_mount::{KeptMounts, ViewMount, ViewSession};
use super::{Requester, TransactionReport, TransactionState};
use crate::invalidation_gate::InvalidationGate;

/// The views of a mount, by the ids of their transactions.
pub(super) struct ViewRegistry<E: Storage> {
    pub(super) views: BTreeMap<u64, ViewEntry<E>>,
    /// Each mount of a view with a live connection to the kernel, by the id of its first transaction. It
    /// outlives an aborted transaction while a program has files open in the view.
    pub(super) sessions: BTreeMap<u64, ViewSession>,
    pub(super) kept: KeptMounts<ViewMount<E>>,
    pub(super) last_id: u64,
    pub(super) stop: bool,
}

/// A view, or the place of one.
pub(super) enum ViewEntry<E: Storage> {
    Open(Box<View<E>>),
    /// A job begins or ends it, or it has just ended.
    Busy {
        uid: u32,
    },
}

/// A mount that shows one open transaction.
pub(super) struct View<E: Storage> {
    pub(super) id: u64,
    pub(super) uid: u32,
    pub(super) ends_with: Option<Process>,
    pub(super) transaction: Transaction<E>,
    pub(super) mount: ViewMount<E>,
    pub(super) gate: Arc<InvalidationGate>,
    pub(super) last_use: LastUse,
    pub(super) listing: SharedListingSlot<E>,
}

/// The last check at which a view turned out to have been used.
#[derive(Clone, Copy)]
pub(super) struct LastUse {
    /// Passes of the view's gate up to that check.
    pub(super) passes: u64,
    pub(super) at_nanos: u64,
}

impl<E: Storage> View<E> {
    /// Nanoseconds since a request to the view was last noticed.
    pub(super) fn idle_nanos(&mut self) -> u64 {
        let passes = self.gate.passes();
        let now = SystemClock.monotonic_nanos();
        if passes != self.last_use.passes {
            self.last_use = LastUse { passes, at_nanos: now };
        }
        debug_assert!(now >= self.last_use.at_nanos, "a monotonic clock does not run backward");
        now - self.last_use.at_nanos
    }

    pub(super) fn report(&mut self) -> TransactionReport {
        let idle = Duration::from_nanos(self.idle_nanos());
        TransactionReport {
            pid: self.ends_with.as_ref().map(|process| process.pid),
            idle_seconds: u32::try_from(idle.as_secs()).unwrap_or(u32::MAX),
            path: self.mount.path(self.id),
            ..report_without_view(self.id, self.uid, TransactionState::Open)
        }
    }
}

/// A report of a transaction that has no view.
pub(super) fn report_without_view(id: u64, uid: u32, state: TransactionState) -> TransactionReport {
    let (call, path) = (String::new(), PathBuf::new());
    TransactionReport { id, state, uid, pid: None, idle_seconds: 0, call, path }
}

impl<E: Storage> ViewRegistry<E> {
    /// Takes an open view out of the registry, to end it.
    ///
    /// # Errors
    /// `ENOENT` if there is none, or if the requester may not see it; `EBUSY` if a job begins or ends it.
    pub(super) fn take(&mut self, id: u64, requester: Requester) -> Result<View<E>, Errno> {
        let entry =
            self.views.get_mut(&id).filter(|entry| entry.is_visible_to(requester)).ok_or(Errno::NOENT)?;
        entry.take().ok_or(Errno::BUSY)
    }

    /// The open transactions and sessions, of a user and in all.
    pub(super) fn counts(&self, uid: u32) -> SessionCounts {
        let left = || self.sessions.values().filter(|session| session.is_left());
        SessionCounts {
            open: self.views.len(),
            open_of_user: self.views.values().filter(|entry| entry.uid() == uid).count(),
            left: left().count(),
            left_of_user: left().filter(|session| session.uid == uid).count(),
        }
    }
}

impl<E: Storage> ViewEntry<E> {
    pub(super) fn uid(&self) -> u32 {
        match self {
            ViewEntry::Open(view) => view.uid,
            ViewEntry::Busy { uid } => *uid,
        }
    }

    /// Whether the requester is the user that began the transaction, or root.
    pub(super) fn is_visible_to(&self, requester: Requester) -> bool {
        requester.uid == 0 || requester.uid == self.uid()
    }

    pub(super) fn take(&mut self) -> Option<View<E>> {
        let uid = self.uid();
        match std::mem::replace(self, ViewEntry::Busy { uid }) {
            ViewEntry::Open(view) => Some(*view),
            ViewEntry::Busy { .. } => None,
        }
    }

    pub(super) fn report(&mut self, id: u64) -> TransactionReport {
        match self {
            ViewEntry::Open(view) => view.report(),
            ViewEntry::Busy { uid } => report_without_view(id, *uid, TransactionState::Ending),
        }
    }
}
