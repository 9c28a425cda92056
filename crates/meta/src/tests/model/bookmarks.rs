//! Bookmarks in random histories.

use warpfire_log::LogStore;
use warpfire_units::Seq;

use super::{EngineAndTwin, HistoryStep};
use crate::domain::DomainRecord;
use crate::testing::{bookmark_key, bookmark_value, resolved};
use crate::{Batch, KeyRange, SeqRange, SnapshotStore, Store};

pub(in crate::tests) fn keep_bookmark(store: &impl SnapshotStore, number: u64, seq: Seq) {
    let mut batch = Batch::new();
    batch.put(&bookmark_key(number), &bookmark_value(seq));
    store.keep_bookmark(seq, &batch).unwrap();
}

pub(in crate::tests) fn drop_bookmark(store: &impl SnapshotStore, number: u64, seq: Seq) {
    let mut batch = Batch::new();
    batch.delete(&bookmark_key(number));
    store.drop_bookmark(seq, &batch).unwrap();
    store.sync(Seq::MAX).unwrap();
}

impl EngineAndTwin {
    /// Makes a bookmark of one of the persistent snapshots, if there is one.
    pub(super) fn keep_bookmark(&mut self) {
        let n = self.rng.below(self.kept.len().max(1) as u64) as usize;
        let Some(&seq) = self.kept.iter().nth(n) else { return };
        let number = self.next_bookmark;
        self.next_bookmark += 1;
        keep_bookmark(&self.engine, number, seq);
        keep_bookmark(&self.twin, number, seq);
        self.history.push(HistoryStep::KeepBookmark(number, seq));
        self.bookmarks.insert(number, seq);
    }

    /// Drops one of the bookmarks, if there is one.
    pub(super) fn drop_bookmark(&mut self) {
        let n = self.rng.below(self.bookmarks.len().max(1) as u64) as usize;
        let Some((&number, &seq)) = self.bookmarks.iter().nth(n) else { return };
        drop_bookmark(&self.engine, number, seq);
        drop_bookmark(&self.twin, number, seq);
        self.history.push(HistoryStep::DropBookmark(number, seq));
        self.bookmarks.remove(&number);
        self.synced = Seq(self.history.len() as u64);
    }

    /// Checks what a bookmark is for: whether a key has changed since, and whether it was there.
    pub(super) fn check_bookmark(&mut self) {
        let n = self.rng.below(self.bookmarks.len().max(1) as u64) as usize;
        let Some(&seq) = self.bookmarks.values().nth(n) else { return };
        let (tour, newest) = (self.engine.bookmark_at(seq).unwrap(), self.engine.snapshot());
        let commits = SeqRange { after: tour.seq(), upto: newest.seq() };
        for _ in 0..20 {
            let key = self.key();
            let past = [&key[..], &[0]].concat();
            let range = KeyRange { start: &key, end: Some(&past) };
            let is_listed = !self.engine.changed_between(range, commits, 1).unwrap().is_empty();
            let (mut value, mut then, mut now) = (Vec::new(), Vec::new(), Vec::new());
            let found = self.engine.get(&key, seq, &mut value).unwrap();
            let was = self.twin.get(&key, seq, &mut then).unwrap();
            let is = self.twin.get(&key, Seq::MAX, &mut now).unwrap();
            let stands_for_any = key.ends_with(b"zz");
            // Of a domain that is made later every key is new, and nobody reads it at the bookmark.
            let is_older = |d: &DomainRecord| d.origin.is_none_or(|origin| origin.seq < seq);
            let domain = key.first_chunk().and_then(|domain| self.domains.get(domain));
            if domain.is_none_or(is_older) {
                assert!(found == was || found && stands_for_any, "{key:?} at {seq:?}");
                assert!(is_listed || (was, then) == (is, now), "{key:?} after {seq:?}");
            }
            resolved(&value, |slice, buf| self.engine.log().read(slice, buf)).unwrap();
        }
    }
}
