//! The chained commit: it begins the next transaction in the same view, and files that programs have open
//! there are open in it.
//!
//! ```text
//!   open ──caches emptied, requests held──▶ held ──committed, or a conflict──▶ next one begun ──▶ open
//!    ▲                                       │└─────another error──▶ aborted, the view ends
//!    └──in use too much, or being changed────┘
//! ```
//!
//! A program that makes one short transaction after the other saves the requests that find and open its files
//! (`tests/requests/`).

use std::sync::Arc;

use parking_lot::Mutex;
use rustix::io::Errno;
use warpfire_env::{Clock, SystemClock};
use warpfire_fs::FsError;
use warpfire_meta::Storage;

use super::diff::ListingSlot;
use super::registry::{LastUse, View, ViewEntry};
use super::{TransactionReport, TransactionState, Views, report_of_commit};
use crate::caller;

impl<E: Storage> Views<E> {
    /// The job of a chained COMMIT. The next transaction begins after a conflict too.
    pub(super) fn commit_and_chain(
        self: &Arc<Self>,
        view: View<E>,
        durable: bool,
    ) -> Result<TransactionReport, Errno> {
        let Some(held) = view.mount.hold(&view.gate) else { return Err(self.open_again(view)) };
        let View { id, uid, ends_with, transaction, ref mount, ref gate, .. } = view;
        let outcome = self.commit_announced(transaction);
        self.main.changes.mark();
        let next = match &outcome {
            Ok(()) | Err(FsError::Conflict { .. }) => self.fs.begin_for(caller::share_of(uid)).ok(),
            Err(_) => None,
        };
        let next_id = next.as_ref().map(|_| self.next_id());
        match (&next, next_id) {
            (Some(next), Some(next_id)) => {
                held.show(&next_id.to_string(), self.view_server(mount, next_id, next, gate));
            }
            // The view shows nothing.
            _ => drop(held),
        }
        let synced = if durable && outcome.is_ok() { self.fs.sync() } else { Ok(()) };
        tracing::debug!(id, committed = outcome.is_ok(), next_id, "view goes on");
        let report = report_of_commit(next_id.unwrap_or(0), uid, outcome, synced.is_ok());
        let View { mount, gate, .. } = view;
        let (Some(transaction), Some(next_id)) = (next, next_id) else {
            mount.remove();
            self.remove_entry(id);
            return report;
        };
        let last_use = LastUse { passes: gate.passes(), at_nanos: SystemClock.monotonic_nanos() };
        let listing = Arc::new(Mutex::new(ListingSlot::Idle(None)));
        let next = View { id: next_id, uid, ends_with, transaction, mount, gate, last_use, listing };
        let path = next.mount.path(next_id);
        let mut registry = self.registry.lock();
        let is_stopping = registry.stop;
        if is_stopping {
            drop(registry);
            // The mount ends and waits for the entry of the first one.
            self.abort(next);
            self.remove_entry(id);
        } else {
            registry.views.remove(&id);
            registry.views.insert(next_id, ViewEntry::Open(Box::new(next)));
            drop(registry);
            self.registry_changed.notify_all();
        }
        report.map(|report| match report.state {
            TransactionState::Conflict => report,
            _ => TransactionReport { path, ..report },
        })
    }

    fn next_id(&self) -> u64 {
        let mut registry = self.registry.lock();
        registry.last_id += 1;
        registry.last_id
    }
}
