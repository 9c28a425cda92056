//! What a transaction would change, for who asks page by page.
//!
//! # Invariants
//! 1. A view has one listing at most, and one call at a time goes on with it: whose turn it is, `ListingSlot` says. So there are no more jobs for the threads
//!    that list than transactions.
//! 2. A listing goes on where its last answer ended; `at` says where that is. Who asks for anything else begins anew.

mod wire;

use std::sync::Arc;

use parking_lot::Mutex;
use rustix::io::Errno;
use warpfire_fs::{Diff, FsError, PathChange, TxFs};
use warpfire_meta::Storage;

use super::{Requester, ViewEntry, Views, errno_of};

use wire::DiffPage;
pub(crate) use wire::{DIFF, DiffBlock, DiffRequest, decode};

/// A listing and where it is.
pub(super) struct DiffListing<E: Storage> {
    diff: Diff<E>,
    /// What the last answer had no room for.
    pending_change: Option<PathChange>,
    /// How many changes have been told.
    at: u64,
}

/// Whose turn a view's listing is.
pub(super) enum ListingSlot<E: Storage> {
    Idle(Option<Box<DiffListing<E>>>),
    /// A call goes on with it.
    Busy,
}

/// A view's listing, and whose turn it is.
pub(super) type SharedListingSlot<E> = Arc<Mutex<ListingSlot<E>>>;

/// A call that has the turn.
pub(super) struct DiffCall<E: Storage> {
    id: u64,
    begin: Option<Arc<TxFs<E>>>,
    listing: Option<Box<DiffListing<E>>>,
    slot: SharedListingSlot<E>,
}

impl<E: Storage> Views<E> {
    /// Takes the turn for a call.
    pub(super) fn take_listing(
        &self,
        requester: Requester,
        request: DiffRequest,
    ) -> Result<DiffCall<E>, Errno> {
        let mut registry = self.registry.lock();
        let entry = registry.views.get_mut(&request.id).filter(|entry| entry.is_visible_to(requester));
        let view = match entry.ok_or(Errno::NOENT)? {
            ViewEntry::Open(view) => view,
            ViewEntry::Busy { .. } => return Err(Errno::BUSY),
        };
        let mut slot = view.listing.lock();
        let (begin, listing) = match std::mem::replace(&mut *slot, ListingSlot::Busy) {
            ListingSlot::Busy => return Err(Errno::BUSY),
            ListingSlot::Idle(_) if request.at == 0 => (Some(Arc::clone(view.transaction.files())), None),
            ListingSlot::Idle(Some(listing)) if listing.at == request.at => (None, Some(listing)),
            ListingSlot::Idle(listing) => {
                *slot = ListingSlot::Idle(listing);
                return Err(Errno::STALE);
            }
        };
        Ok(DiffCall { id: request.id, begin, listing, slot: Arc::clone(&view.listing) })
    }
}

impl<E: Storage> DiffCall<E> {
    /// Lists changes and gives the turn back.
    pub(super) fn list(mut self) -> Result<Box<DiffBlock>, Errno> {
        let listed = self.fill();
        let unfinished = self.listing.take().filter(|_| listed.as_ref().is_ok_and(|(count, _)| *count > 0));
        *self.slot.lock() = ListingSlot::Idle(unfinished);
        match listed {
            Ok((_, block)) => Ok(block),
            Err(FsError::Ended) => Err(Errno::NOENT),
            Err(e) => Err(errno_of(&e)),
        }
    }

    /// Lists as many changes as there is room for: how many, and the answer.
    fn fill(&mut self) -> Result<(u32, Box<DiffBlock>), FsError> {
        if let Some(inside) = self.begin.take() {
            self.listing =
                Some(Box::new(DiffListing { diff: Diff::of(inside)?, pending_change: None, at: 0 }));
        }
        let listing = self.listing.as_mut().expect("a call begins a listing or goes on with one");
        let mut page = DiffPage::new();
        while let Some(change) = listing.pending_change.take().map(Ok).or_else(|| listing.diff.next()) {
            let change = change?;
            if !page.add(&change) {
                listing.pending_change = Some(change);
                break;
            }
        }
        listing.at += u64::from(page.count());
        Ok((page.count(), page.finish(self.id, listing.at)))
    }
}
