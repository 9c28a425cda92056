//! What a transaction would change, for who asks page by page.
//!
//! # Invariants
//! 1. A view has one listing at most, and one call at a time goes on with it: whose turn it is, `Turn` says. So there are no more jobs for the threads
//!    that list than transactions.
//! 2. A listing goes on where its last answer ended; `at` says where that is. Who asks for anything else begins anew.

mod wire;

use std::sync::Arc;

use parking_lot::Mutex;
use rustix::io::Errno;
use warpfire_fs::{Change, Diff, FsError, TxFs};
use warpfire_meta::{SliceStore, Store};

use super::{Asker, Entry, Views, errno_of};

use wire::Page;
pub(crate) use wire::{Block, DIFF, Request, decode};

/// A listing and where it is.
pub(super) struct Listing<E: Store + SliceStore> {
    diff: Diff<E>,
    /// What the last answer had no room for.
    waiting: Option<Change>,
    /// How many changes have been told.
    at: u64,
}

/// Whose turn a view's listing is.
pub(super) enum Turn<E: Store + SliceStore> {
    Free(Option<Box<Listing<E>>>),
    /// A call goes on with it.
    Taken,
}

/// A view's listing, and whose turn it is.
pub(super) type Listings<E> = Arc<Mutex<Turn<E>>>;

/// A call that has the turn.
pub(super) struct Call<E: Store + SliceStore> {
    id: u64,
    begin: Option<Arc<TxFs<E>>>,
    listing: Option<Box<Listing<E>>>,
    back: Listings<E>,
}

impl<E: Store + SliceStore> Views<E> {
    /// Takes the turn for a call.
    pub(super) fn take_listing(&self, asker: Asker, request: Request) -> Result<Call<E>, Errno> {
        let mut registry = self.registry.lock();
        let entry = registry.views.get_mut(&request.id).filter(|entry| entry.is_of(asker));
        let view = match entry.ok_or(Errno::NOENT)? {
            Entry::Open(view) => view,
            Entry::Taken { .. } => return Err(Errno::BUSY),
        };
        let mut turn = view.listing.lock();
        let (begin, listing) = match std::mem::replace(&mut *turn, Turn::Taken) {
            Turn::Taken => return Err(Errno::BUSY),
            Turn::Free(_) if request.at == 0 => (Some(Arc::clone(view.transaction.files())), None),
            Turn::Free(Some(listing)) if listing.at == request.at => (None, Some(listing)),
            Turn::Free(listing) => {
                *turn = Turn::Free(listing);
                return Err(Errno::STALE);
            }
        };
        Ok(Call { id: request.id, begin, listing, back: Arc::clone(&view.listing) })
    }
}

impl<E: Store + SliceStore> Call<E> {
    /// Lists changes and gives the turn back.
    pub(super) fn list(mut self) -> Result<Box<Block>, Errno> {
        let listed = self.fill();
        let unfinished = self.listing.take().filter(|_| listed.as_ref().is_ok_and(|(count, _)| *count > 0));
        *self.back.lock() = Turn::Free(unfinished);
        match listed {
            Ok((_, block)) => Ok(block),
            Err(FsError::Ended) => Err(Errno::NOENT),
            Err(e) => Err(errno_of(&e)),
        }
    }

    /// Lists as many changes as there is room for: how many, and the answer.
    fn fill(&mut self) -> Result<(u32, Box<Block>), FsError> {
        if let Some(inside) = self.begin.take() {
            self.listing = Some(Box::new(Listing { diff: Diff::of(inside)?, waiting: None, at: 0 }));
        }
        let listing = self.listing.as_mut().expect("a call begins a listing or goes on with one");
        let mut page = Page::new();
        while let Some(change) = listing.waiting.take().map(Ok).or_else(|| listing.diff.next()) {
            let change = change?;
            if !page.add(&change) {
                listing.waiting = Some(change);
                break;
            }
        }
        listing.at += u64::from(page.count());
        Ok((page.count(), page.finish(self.id, listing.at)))
    }
}
