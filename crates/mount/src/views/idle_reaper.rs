//! Aborts abandoned transactions: their process has ended, or their view was idle for too long. Unmounts
//! views that were kept for too long.

use std::time::Duration;

use warpfire_env::{Clock, SystemClock};
use warpfire_meta::Storage;

use super::Views;
use super::registry::{View, ViewEntry};
use super::view_mount::ViewMount;

/// Pause between two checks of the views. While no view is open or kept there are no checks.
const CHECK_PAUSE: Duration = Duration::from_millis(250);

impl<E: Storage> Views<E> {
    /// Aborts abandoned transactions, and ends views that nobody needs, until the mount ends.
    pub(super) fn reap_abandoned(&self) {
        let mut registry = self.registry.lock();
        while !registry.stop {
            if registry.views.is_empty() && registry.kept.is_empty() {
                self.registry_changed.wait(&mut registry);
                continue;
            }
            let abandoned: Vec<View<E>> =
                registry.views.values_mut().filter_map(|entry| self.take_abandoned(entry)).collect();
            let expired = registry.kept.take_expired(SystemClock.monotonic_nanos());
            if abandoned.is_empty() && expired.is_empty() {
                // Transactions that begin and end do not wake it: short ones would do nothing but that.
                self.stopped.wait_for(&mut registry, CHECK_PAUSE);
                continue;
            }
            // Unlocked: an abort unmounts the view, and requests to the registry must not wait for that.
            parking_lot::MutexGuard::unlocked(&mut registry, || {
                expired.into_iter().for_each(ViewMount::remove);
                for view in abandoned {
                    tracing::warn!(id = view.id, "abandoned transaction aborted");
                    self.abort_alone(view);
                }
            });
        }
    }

    fn take_abandoned(&self, entry: &mut ViewEntry<E>) -> Option<View<E>> {
        let ViewEntry::Open(view) = entry else { return None };
        let timeout = u64::try_from(self.options.transaction_timeout.as_nanos()).unwrap_or(u64::MAX);
        let abandoned = match &view.ends_with {
            Some(process) => process.has_ended(),
            None => view.idle_nanos() >= timeout,
        };
        if abandoned { entry.take() } else { None }
    }
}
