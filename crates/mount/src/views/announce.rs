//! The announced commit: the kernel's caches are emptied of everything that the commit changes, then it is
//! made.
//!
//! `invalidation_gate.rs` has the terms and the argument.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use fuser::INodeNo;
use warpfire_fs::{FsError, Invalidation, PendingCommit, Transaction};
use warpfire_meta::Storage;

use super::Views;
use crate::invalidation_gate::StaleEntries;

/// Most rounds of emptying caches before one commit. A file that is read without a pause is noted in every
/// round, so without a limit the commit might never be made.
const ROUNDS_MAX: u32 = 8;

/// Cache entries that a commit makes stale.
struct CachedChanges {
    /// Names, each with the inode number of its directory.
    names: Vec<(u64, OsString)>,
    /// Inode numbers of files.
    files: BTreeSet<u64>,
}

impl<E: Storage> Views<E> {
    /// Commits. On return the kernel's caches hold nothing that the commit has changed.
    pub(super) fn commit_announced(&self, transaction: Transaction<E>) -> Result<(), FsError> {
        let mut commit = transaction.begin_commit()?;
        // Beside other commits too: a replay may take long.
        commit.catch_up()?;
        let _one_at_a_time = self.committing.lock();
        let gate = &self.main.gate;
        gate.announce();
        let outcome = self.finish_announced(&mut commit);
        drop(commit);
        // Removes files that lost their last name in the transaction and that nobody holds. The commit has
        // succeeded, so an error here is not its answer: the next call that reaps tries again.
        if outcome.is_ok() {
            let _ = self.fs.reap();
        }
        outcome
    }

    /// Makes the commit that is announced, and ends the announcement.
    fn finish_announced(&self, commit: &mut PendingCommit<E>) -> Result<(), FsError> {
        let gate = &self.main.gate;
        // Collected after the announcement. Entries that the kernel caches from now on are noted.
        let CachedChanges { names, files } = match self.cached_changes(commit) {
            Ok(kept) => kept,
            Err(e) => {
                gate.lock_exclusive().finish();
                return Err(e);
            }
        };
        gate.set_changed_files(files.clone());
        let mut stale = StaleEntries { files, names: true };
        let mut round = 0;
        loop {
            round += 1;
            self.invalidate_caches(&names, &stale);
            // Not held while caches are emptied: the kernel may wait for answers then (invariant 4 of the
            // gate).
            let exclusive = gate.lock_exclusive();
            stale = exclusive.take_stale();
            if !stale.is_empty() && round < ROUNDS_MAX {
                continue;
            }
            if !stale.is_empty() {
                tracing::debug!(files = stale.files.len(), "commit with cached files in use");
            }
            let mut outcome = commit.finish();
            if matches!(outcome, Ok(false)) {
                // Programs go on while the commit catches up with them.
                drop(exclusive);
                outcome = commit.catch_up().map(|()| false);
                if outcome.is_ok() {
                    continue;
                }
                gate.lock_exclusive().finish();
            } else {
                exclusive.finish();
            }
            // After the last round the kernel may still have stale entries; they live until here.
            self.invalidate_caches(&names, &stale);
            return outcome.map(drop);
        }
    }

    /// The changed names in directories that the kernel remembers, and all changed files.
    fn cached_changes(&self, commit: &PendingCommit<E>) -> Result<CachedChanges, FsError> {
        let (mut names, mut files) = (Vec::new(), BTreeSet::new());
        commit.visit_changed(&mut |changed| match changed {
            Invalidation::Name(dir, name) => {
                if self.main.nodes.get(dir).is_some() {
                    names.push((dir, OsStr::from_bytes(name).to_owned()));
                }
            }
            Invalidation::File(ino) => _ = files.insert(ino),
        })?;
        Ok(CachedChanges { names, files })
    }

    /// Empties the kernel's caches of the stale files, and of all the names if a name is stale.
    fn invalidate_caches(&self, names: &[(u64, OsString)], stale: &StaleEntries) {
        let notifier = self.notifier.get().expect("the notifier is set before the first request");
        let log_failure = |kind: &str, ino: u64, outcome: std::io::Result<()>| {
            if let Err(e) = outcome {
                // The kernel had nothing in its cache, or the mount has ended.
                tracing::debug!(kind, ino, error = %e, "nothing to invalidate");
            }
        };
        for (dir, name) in names.iter().filter(|_| stale.names) {
            log_failure("name", *dir, notifier.inval_entry(INodeNo(*dir), name));
        }
        for ino in stale.files.iter().filter(|ino| self.main.nodes.get(**ino).is_some()) {
            // Offset 0 and length 0 mean all bytes. Attributes are dropped with any range.
            log_failure("file", *ino, notifier.inval_inode(INodeNo(*ino), 0, 0));
        }
    }
}
