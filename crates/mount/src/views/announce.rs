//! Commits that are announced: the kernel forgets what will change before it changes.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use fuser::INodeNo;
use warpfire_fs::{FsError, Invalidation, Transaction};
use warpfire_meta::Storage;

use super::Views;
use crate::invalidation_gate::StaleEntries;

/// How often caches are emptied before one commit. A file that is read without a pause is noted every time.
const ROUNDS_MAX: u32 = 8;

/// What the kernel may have kept and a commit changes.
struct CachedChanges {
    /// Names, by the directory that they are in.
    names: Vec<(u64, OsString)>,
    files: BTreeSet<u64>,
}

impl<E: Storage> Views<E> {
    /// Commits. On return the kernel keeps nothing of what has changed.
    pub(super) fn commit_announced(&self, transaction: Transaction<E>) -> Result<(), FsError> {
        let _one_at_a_time = self.committing.lock();
        let gate = &self.main.gate;
        gate.announce();
        // Looked at after the announcement: what the kernel learns from now on it does not keep, but for what is noted.
        let CachedChanges { names, files } = match self.cached_changes(&transaction) {
            Ok(kept) => kept,
            Err(e) => {
                gate.lock_exclusive().finish();
                return Err(e);
            }
        };
        gate.set_changed_files(files.clone());
        let mut stale = StaleEntries { files, names: true };
        for round in 1.. {
            self.invalidate_caches(&names, &stale);
            let exclusive = gate.lock_exclusive();
            stale = exclusive.take_stale();
            if stale.is_empty() || round == ROUNDS_MAX {
                let outcome = transaction.commit();
                exclusive.finish();
                self.invalidate_caches(&names, &stale);
                return outcome;
            }
        }
        unreachable!("the last round returns")
    }

    /// Names that change in directories that the kernel remembers, and all files that change.
    fn cached_changes(&self, transaction: &Transaction<E>) -> Result<CachedChanges, FsError> {
        let (mut names, mut files) = (Vec::new(), BTreeSet::new());
        transaction.visit_changed(&mut |changed| match changed {
            Invalidation::Name(dir, name) => {
                if self.main.nodes.get(dir).is_some() {
                    names.push((dir, OsStr::from_bytes(name).to_owned()));
                }
            }
            Invalidation::File(ino) => _ = files.insert(ino),
        })?;
        Ok(CachedChanges { names, files })
    }

    /// Has the kernel forget these files, and the names if they are stale.
    fn invalidate_caches(&self, names: &[(u64, OsString)], stale: &StaleEntries) {
        let notifier = self.notifier.get().expect("whoever asks for a commit has asked through the mount");
        let log_failure = |kind: &str, ino: u64, outcome: std::io::Result<()>| {
            if let Err(e) = outcome {
                // It had nothing to forget, or there is no mount any more.
                tracing::debug!(kind, ino, "the kernel does not forget: {e}");
            }
        };
        for (dir, name) in names.iter().filter(|_| stale.names) {
            log_failure("name", *dir, notifier.inval_entry(INodeNo(*dir), name));
        }
        for ino in stale.files.iter().filter(|ino| self.main.nodes.get(**ino).is_some()) {
            // From the first byte on, however many there are; attributes go with any range.
            log_failure("file", *ino, notifier.inval_inode(INodeNo(*ino), 0, 0));
        }
    }
}
