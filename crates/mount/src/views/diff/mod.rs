//! The changes that a commit of a transaction would make, listed page by page.
//!
//! A *listing* is the state between two pages. Its position `at` is the number of changes that it has sent.
//!
//! # Invariants
//! 1. A view has at most one listing, and at most one call at a time uses it: a second call finds
//!    `ListingSlot::Busy`. So the listing threads never have more jobs than there are transactions.
//! 2. A call continues the listing only at the position where the last page ended. A call with position 0
//!    begins a new listing; any other position is refused with `ESTALE` (`take_listing`).

mod wire;

use std::sync::Arc;

use parking_lot::Mutex;
use rustix::io::Errno;
use warpfire_fs::{Diff, FsError, PathChange, TxFs};
use warpfire_meta::Storage;

use super::registry::ViewEntry;
use super::{Requester, Views, errno_of};

use wire::DiffPage;
pub(crate) use wire::{DIFF, DiffBlock, DiffRequest, decode};
pub use wire::{decode_change, encode_change};

/// A listing and its position.
pub(super) struct DiffListing<E: Storage> {
    diff: Diff<E>,
    /// The change that did not fit into the last page.
    pending_change: Option<PathChange>,
    /// How many changes have been sent.
    at: u64,
}

/// The listing of a view, if it has one and no call uses it.
pub(super) enum ListingSlot<E: Storage> {
    Idle(Option<Box<DiffListing<E>>>),
    /// A call uses it.
    Busy,
}

/// The slot, shared by a view and the call that uses its listing.
pub(super) type SharedListingSlot<E> = Arc<Mutex<ListingSlot<E>>>;

/// A call that uses the listing of a view.
pub(super) struct DiffCall<E: Storage> {
    id: u64,
    begin: Option<Arc<TxFs<E>>>,
    listing: Option<Box<DiffListing<E>>>,
    slot: SharedListingSlot<E>,
}

impl<E: Storage> Views<E> {
    /// Takes the listing of a view for a call.
    ///
    /// # Errors
    /// `ENOENT` if there is no such transaction, `EBUSY` if it is beginning or ending or if another call uses
    /// the listing, `ESTALE` if the listing is at another position.
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
                // A refused call leaves the listing as it was.
                *slot = ListingSlot::Idle(listing);
                return Err(Errno::STALE);
            }
        };
        Ok(DiffCall { id: request.id, begin, listing, slot: Arc::clone(&view.listing) })
    }
}

impl<E: Storage> DiffCall<E> {
    /// Lists changes and returns the listing to its slot.
    pub(super) fn list(mut self) -> Result<Box<DiffBlock>, Errno> {
        let listed = self.fill();
        // An empty page is the end, and a listing that has failed cannot be continued: both are dropped.
        let unfinished = self.listing.take().filter(|_| listed.as_ref().is_ok_and(|(count, _)| *count > 0));
        *self.slot.lock() = ListingSlot::Idle(unfinished);
        match listed {
            Ok((_, block)) => Ok(block),
            Err(FsError::Ended) => Err(Errno::NOENT),
            Err(e) => Err(errno_of(&e)),
        }
    }

    /// Lists as many changes as fit: their number, and the answer.
    fn fill(&mut self) -> Result<(u32, Box<DiffBlock>), FsError> {
        if let Some(inside) = self.begin.take() {
            self.listing =
                Some(Box::new(DiffListing { diff: Diff::of(inside)?, pending_change: None, at: 0 }));
        }
        let listing = self.listing.as_mut().expect("a call begins a listing or continues one");
        let mut page = DiffPage::new();
        while let Some(change) = listing.pending_change.take().map(Ok).or_else(|| listing.diff.next()) {
            let change = change?;
            if !page.add(&change) {
                debug_assert!(page.count() > 0, "an empty page has room for every change");
                listing.pending_change = Some(change);
                break;
            }
        }
        listing.at += u64::from(page.count());
        Ok((page.count(), page.finish(self.id, listing.at)))
    }
}
