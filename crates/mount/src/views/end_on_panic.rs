//! A job that panics ends its transaction: its program gets `EIO`, and nothing of the view is left.
//!
//! A panic drops the view on its way out of the job: the transaction is aborted, unless its commit has been
//! made, and the drop of [`ViewDirectory`](super::view_directory::ViewDirectory) takes the mount out of the
//! tree. The announcement of a commit ends with its guard. The busy entry of the registry would remain, and
//! nobody else would end it: it would count toward the limits for ever, and the end of the mount would wait
//! for it (`tests::a_job_that_panics_ends_its_transaction`).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use warpfire_meta::Storage;

use super::Views;
use super::registry::{View, ViewEntry};

/// Held while a job begins or ends a transaction.
pub(super) struct EndOnPanic<'a, E: Storage> {
    pub(super) views: &'a Views<E>,
    pub(super) id: u64,
}

impl<E: Storage> Drop for EndOnPanic<'_, E> {
    fn drop(&mut self) {
        if !thread::panicking() {
            return;
        }
        let mut registry = self.views.registry.lock();
        // A view that is open again was put back whole.
        if matches!(registry.views.get(&self.id), Some(ViewEntry::Busy { .. })) {
            registry.views.remove(&self.id);
            tracing::error!(id = self.id, "a job of a transaction panicked; the transaction has ended");
        }
        drop(registry);
        self.views.registry_changed.notify_all();
    }
}

impl<E: Storage> Views<E> {
    /// Aborts a view that no request has asked to end. A panic ends this view and no other.
    pub(super) fn abort_alone(&self, view: View<E>) {
        let id = view.id;
        let aborted = catch_unwind(AssertUnwindSafe(|| {
            let _end = EndOnPanic { views: self, id };
            self.abort(view)
        }));
        // The guard inside has logged a panic.
        drop(aborted);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::mpsc::{RecvError, channel};

    use warpfire_env::ChangeSignal;
    use warpfire_env::{Clock, Device, MemDevice, SystemClock, SystemRandom};
    use warpfire_fs::{Fs, FsOptions, FsSchema};
    use warpfire_log::Log;
    use warpfire_meta::{Engine, EngineOptions};
    use warpfire_pool::{CreateOptions, Pool};

    use super::super::MainMount;
    use super::super::view_directory::ViewDirectory;
    use super::*;
    use crate::blocking_threads::BlockingThreads;
    use crate::invalidation_gate::InvalidationGate;
    use crate::kernel_nodes::KernelNodes;
    use crate::options::MountOptions;

    /// The views of a filesystem in memory that is not mounted.
    fn views(base: &Path) -> Arc<Views<Engine<Log, FsSchema>>> {
        let device: Arc<dyn Device> = Arc::new(MemDevice::new("memory", 64 << 20));
        let alone = CreateOptions { data: 1, parity: 0, zone_bytes: None, force: false };
        let pool = Pool::create(vec![device], &alone, &SystemRandom, SystemClock.now()).unwrap();
        let (log, recovered) = Log::create(pool).unwrap();
        let engine = Arc::new(Engine::open(log, recovered, FsSchema, EngineOptions::default()).unwrap());
        Fs::format(&*engine, &SystemClock, 0, 0).unwrap();
        let fs = Arc::new(Fs::open(engine, Arc::new(SystemClock), FsOptions::default()).unwrap());
        let main = MainMount {
            nodes: Arc::new(KernelNodes::new(fs.root().ino(), fs.root(), 1000)),
            gate: Arc::new(InvalidationGate::default()),
            changes: ChangeSignal::ignored(),
            requests: crate::cpu_latency::RequestCounter::default(),
            blocking_threads: Arc::new(BlockingThreads::start("test", 1).unwrap()),
            failures: Arc::default(),
        };
        let options = MountOptions { views_at: Some(base.join("views")), ..MountOptions::default() };
        Arc::new(Views::new(fs, main, &options).unwrap())
    }

    #[test]
    fn a_job_that_panics_ends_its_transaction() {
        let directory = tempfile::tempdir().unwrap();
        let views = views(directory.path());
        views.registry.lock().views.insert(1, ViewEntry::Busy { uid: 7 });
        let at = ViewDirectory::make(&views.base, 0).unwrap();
        let place = at.view();
        let (answers, answered) = channel();
        let panics = Box::new(move |_: &Arc<Views<_>>| {
            let _at = at;
            panic!("on purpose");
        });
        Arc::clone(&views).start_job(7, 1, panics, Box::new(move |answer| answers.send(answer).unwrap()));
        assert_eq!(answered.recv().map(drop), Err(RecvError), "the dropped reply answers EIO");
        assert_eq!(views.open_count(), 0);
        assert!(!place.exists() && !place.parent().unwrap().exists());
        // It waits for every entry.
        views.end_all();
    }
}
