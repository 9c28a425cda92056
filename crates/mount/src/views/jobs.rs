//! Requests to begin and end transactions, and the threads that do it.

use std::sync::Arc;

use rustix::io::Errno;
use warpfire_meta::Storage;

use super::diff::DiffRequest;
use super::end_on_panic::EndOnPanic;
use super::registry::ViewEntry;
use super::wire::{TransactionReport, TransactionRequest};
use super::{DiffCallback, ReportCallback, Requester, TransactionControl, Views};

impl<E: Storage> TransactionControl for Views<E> {
    fn ask(self: Arc<Self>, requester: Requester, request: TransactionRequest, answer: ReportCallback) {
        let mut registry = self.registry.lock();
        let job: Result<(u64, JobPlace, TransactionJob<E>), Errno> = match request {
            TransactionRequest::Begin { .. } if self.options.read_only => Err(Errno::ROFS),
            TransactionRequest::Begin { .. } if registry.stop => Err(Errno::SHUTDOWN),
            TransactionRequest::Begin { ends_with_process } => {
                registry.counts(requester.uid).admit(requester.uid).map(|()| {
                    registry.last_id += 1;
                    let id = registry.last_id;
                    // The entry counts toward the limits while the job is still in the queue.
                    registry.views.insert(id, ViewEntry::Busy { uid: requester.uid });
                    // A transaction in a mount that is there begins within microseconds, and waits for
                    // nothing but the gate of the filesystem.
                    let kept = registry.kept.take(requester);
                    let place = if kept.is_some() { JobPlace::Here } else { JobPlace::OtherThread };
                    let job =
                        move |views: &Arc<Views<E>>| views.begin(id, requester, ends_with_process, kept);
                    (id, place, Box::new(job) as TransactionJob<E>)
                })
            }
            TransactionRequest::Commit { id, durable, chained } => {
                let taken = registry.take(id, requester);
                taken.map(|view| {
                    let job = move |views: &Arc<Views<E>>| match chained {
                        true => views.commit_and_chain(view, durable),
                        false => views.commit(view, durable),
                    };
                    (id, JobPlace::OtherThread, Box::new(job) as TransactionJob<E>)
                })
            }
            TransactionRequest::Abort { id } => {
                let taken = registry.take(id, requester);
                taken.map(|view| {
                    let job = move |views: &Arc<Views<E>>| Ok(views.abort(view));
                    (id, JobPlace::OtherThread, Box::new(job) as TransactionJob<E>)
                })
            }
            TransactionRequest::Status { id } => {
                let entry = registry.views.get_mut(&id).filter(|entry| entry.is_visible_to(requester));
                return answer(entry.map(|entry| entry.report(id)).ok_or(Errno::NOENT));
            }
            TransactionRequest::Next { after } => {
                let mut later = registry.views.range_mut(after.saturating_add(1)..);
                let next = later.find(|(_, entry)| entry.is_visible_to(requester));
                return answer(next.map(|(id, entry)| entry.report(*id)).ok_or(Errno::NOENT));
            }
        };
        // Unlocked before the job starts, because the job locks the registry.
        drop(registry);
        match job {
            Ok((id, JobPlace::Here, job)) => self.run_job(id, job, answer),
            Ok((id, JobPlace::OtherThread, job)) => self.start_job(requester.uid, id, job, answer),
            Err(errno) => answer(Err(errno)),
        }
    }

    fn list(self: Arc<Self>, requester: Requester, request: DiffRequest, answer: DiffCallback) {
        let call = match self.take_listing(requester, request) {
            Ok(call) => call,
            Err(errno) => return answer(Err(errno)),
        };
        match &*self.listers.lock() {
            Some(listers) => listers.spawn(move || answer(call.list())),
            None => answer(Err(Errno::SHUTDOWN)),
        }
    }
}

/// Where a job runs: on the serving thread, or on one for jobs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum JobPlace {
    Here,
    OtherThread,
}

pub(super) type TransactionJob<E> =
    Box<dyn FnOnce(&Arc<Views<E>>) -> Result<TransactionReport, Errno> + Send>;

impl<E: Storage> Views<E> {
    /// Runs a job of a user, about one transaction, on another thread and answers with its result.
    pub(super) fn start_job(
        self: Arc<Self>,
        uid: u32,
        id: u64,
        job: TransactionJob<E>,
        answer: ReportCallback,
    ) {
        let views = Arc::clone(&self);
        let job = Box::new(move || views.run_job(id, job, answer));
        if let Some(job) = self.job_shares.start_or_keep(uid, job) {
            self.spawn_job(uid, job);
        }
    }

    /// Runs a job about one transaction and answers with its result.
    fn run_job(self: &Arc<Self>, id: u64, job: TransactionJob<E>, answer: ReportCallback) {
        // A panic drops it before `answer`: the transaction ends first, then the program gets `EIO`. In one
        // expression with the job, `answer` would be moved out of the closure and dropped first.
        let answer = answer;
        let _end = EndOnPanic { views: self, id };
        let outcome = job(self);
        answer(outcome);
    }

    /// Runs a job, then hands over the next one of the same user. That one goes to the end of the queue, so
    /// that the jobs of others come first.
    fn spawn_job(self: Arc<Self>, uid: u32, job: Box<dyn FnOnce() + Send>) {
        let views = Arc::clone(&self);
        let run = move || {
            let ending = JobEnd { views, uid };
            job();
            // Also after a panic.
            drop(ending);
        };
        self.spawn(run);
    }

    /// Runs something about a transaction on a thread for jobs. The transaction has an entry in the registry.
    pub(super) fn spawn(&self, run: impl FnOnce() + Send + 'static) {
        let jobs = self.jobs.lock();
        let jobs =
            jobs.as_ref().expect("`end_all` waits for the entry of every job before it takes the threads");
        jobs.spawn(run);
    }
}

/// Its drop ends a job of a user.
struct JobEnd<E: Storage> {
    views: Arc<Views<E>>,
    uid: u32,
}

impl<E: Storage> Drop for JobEnd<E> {
    fn drop(&mut self) {
        if let Some(next) = self.views.job_shares.end(self.uid) {
            Arc::clone(&self.views).spawn_job(self.uid, next);
        }
    }
}
