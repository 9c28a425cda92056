//! The announced commit: the kernel's caches are emptied of everything that the commit changes, then it is
//! made.
//!
//! `invalidation_gate.rs` has the terms and the argument.

use std::collections::BTreeSet;
use std::sync::Arc;

use warpfire_fs::{Fs, FsError, Invalidation, PendingCommit, Transaction, YankedSlice};
use warpfire_fuse::INodeNo;
use warpfire_meta::Storage;

use super::Views;
use crate::invalidation_gate::StaleEntries;
use crate::stale_pages::{ContentBefore, Page, StalePages};

/// Most rounds of emptying caches before one commit. A file that is read without a pause is noted in every
/// round, so without a limit the commit might never be made. A program that stores into a mapping of such a
/// file loses nothing, and neither does the commit: pages that come back are merged (`stale_pages.rs`).
pub(super) const ROUNDS_MAX: u32 = 8;

/// A name, after the inode number of its directory.
pub(super) type NameInDirectory = (u64, Vec<u8>);

/// Cache entries that a commit makes stale.
#[derive(Default)]
pub(super) struct CachedChanges {
    pub(super) names: Vec<NameInDirectory>,
    /// Inode numbers of files.
    pub(super) files: BTreeSet<u64>,
    /// Whether every name is stale, beside those in `names`.
    pub(super) all_names: bool,
}

/// A range of a file as it was before a commit.
struct RangeBefore<E: Storage> {
    fs: Arc<Fs<E>>,
    content: YankedSlice,
    /// Offset of the range in the file.
    start: u64,
}

impl<E: Storage> ContentBefore for RangeBefore<E> {
    fn read_page(&self, offset: u64, page: &mut Page) -> Result<(), FsError> {
        let at = offset.checked_sub(self.start).expect("a range begins with its first page");
        let len = self.fs.read_yanked_slice(&self.content, at, page)?;
        page.iter_mut().skip(len).for_each(|byte| *byte = 0);
        Ok(())
    }
}

impl<E: Storage> Views<E> {
    /// Commits. On return the kernel's caches hold nothing that the commit has changed.
    pub(crate) fn commit_announced(&self, transaction: Transaction<E>) -> Result<(), FsError> {
        let mut commit = transaction.begin_commit()?;
        // Beside other commits too: a replay may take long.
        commit.catch_up()?;
        let _one_at_a_time = self.committing.lock();
        // Before the announcement: the caches are emptied once, and not again after a conflict.
        commit.catch_up_before_the_last_step()?;
        let gate = &self.main.gate;
        let _announcement = gate.announce();
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
        let (mut names, mut stale) = match self.collect_changes(commit) {
            Ok(collected) => collected,
            Err(e) => {
                gate.lock_exclusive().finish();
                return Err(e);
            }
        };
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
            let before = self.content_before(&stale);
            let outcome = match before.and_then(|pages| Ok((commit.finish()?, pages))) {
                Ok((true, pages)) => {
                    exclusive.finish_with(pages);
                    Ok(())
                }
                Ok((false, _)) => {
                    // Programs go on while the commit catches up with them.
                    drop(exclusive);
                    match commit.catch_up().and_then(|()| self.collect_changes(commit)) {
                        Ok(collected) => {
                            (names, stale) = collected;
                            continue;
                        }
                        Err(e) => {
                            gate.lock_exclusive().finish();
                            Err(e)
                        }
                    }
                }
                Err(e) => {
                    exclusive.finish();
                    Err(e)
                }
            };
            // After the last round the kernel may still have stale entries; they live until here.
            self.invalidate_caches(&names, &stale);
            gate.forget_stale_pages();
            return outcome;
        }
    }

    /// The content of all stale pages, as it is before the commit.
    ///
    /// # Errors
    /// Those of reading metadata and of holding bytes; then no commit may be made.
    pub(super) fn content_before(&self, stale: &StaleEntries) -> Result<StalePages, FsError> {
        let mut pages = StalePages::default();
        for (ino, sent) in &stale.pages {
            // A file that the kernel has forgotten has no pages.
            let Some(node) = self.main.nodes.get(*ino) else { continue };
            for range in sent.ranges() {
                let content = self.fs.keep_content(&node, range.start, range.end - range.start)?;
                let before = RangeBefore { fs: Arc::clone(&self.fs), content, start: range.start };
                pages.add(*ino, &range, Box::new(before));
            }
        }
        Ok(pages)
    }

    /// Collects what an announced commit changes, names and files, for a round of emptying. Entries that the
    /// kernel caches from now on are noted.
    fn collect_changes(
        &self,
        commit: &PendingCommit<E>,
    ) -> Result<(Vec<NameInDirectory>, StaleEntries), FsError> {
        let CachedChanges { names, files, .. } = self.cached_changes(commit)?;
        self.main.gate.set_changed_files(files.clone());
        Ok((names, StaleEntries { files, names: true, ..StaleEntries::default() }))
    }

    /// The changed names in directories that the kernel remembers, and all changed files.
    fn cached_changes(&self, commit: &PendingCommit<E>) -> Result<CachedChanges, FsError> {
        let (mut names, mut files) = (Vec::new(), BTreeSet::new());
        commit.visit_changed(&mut |changed| match changed {
            Invalidation::Name(dir, name) => {
                if self.main.nodes.get(dir).is_some() {
                    names.push((dir, name.to_vec()));
                }
            }
            Invalidation::File(ino) => _ = files.insert(ino),
            Invalidation::Everything => unreachable!("the changes of a transaction are known"),
        })?;
        Ok(CachedChanges { names, files, all_names: false })
    }

    /// Empties the kernel's caches of the stale files, and of all the names if a name is stale.
    pub(super) fn invalidate_caches(&self, names: &[NameInDirectory], stale: &StaleEntries) {
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
