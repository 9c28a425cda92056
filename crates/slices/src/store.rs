//! The seam: a store of immutable bytes that metadata names by pointer.
//!
//! # Terms
//! A *slice* is a run of bytes, written once, that a pointer names. Five things keep its bytes:
//!
//! | what | taken by | ended by |
//! |---|---|---|
//! | the writer's reference | `SliceStore::write` | `SliceStore::release` |
//! | metadata's reference | a commit that names the slice | a durable commit that drops the name |
//! | a pin | `SliceStore::pin` | its drop; it keeps whatever metadata named when it was taken |
//! | a hold | `SliceHolder::hold` | `SliceHolder::release_hold` |
//! | a snapshot of the metadata | `Store::snapshot` | its drop: metadata keeps the old names until then |

use std::sync::Arc;

use warpfire_log::{Admit, Pin, Slices, Space, Stream};
use warpfire_units::SlicePtr;

use crate::error::SliceError;

/// A slice to read and the buffer to fill, which has the slice's length.
pub type SliceRead<'a> = (SlicePtr, &'a mut [u8]);

/// Keeps slices that no metadata has to name.
pub trait SliceHolder: Send + Sync {
    /// Keeps bytes until `release_hold`, whatever becomes of the metadata that named them. The caller has had a pin
    /// since metadata named them. A hold takes memory and space; it does not outlive the store.
    ///
    /// # Errors
    /// `ReadOnly` if the store cannot keep more. Nothing is held then.
    fn hold(&self, slices: &[SlicePtr]) -> Result<(), SliceError>;

    /// Ends a `hold` of the same slices. It cannot fail: a store that cannot do it now does it later.
    fn release_hold(&self, slices: &[SlicePtr]);
}

/// Immutable byte ranges. On one machine a log holds them; in a cluster, storage servers do.
pub trait SliceStore: Send + Sync + 'static {
    /// Writes bytes; durable after the next sync of the metadata. The caller holds one reference to them and
    /// returns it with `release` once a commit has named them or has failed. A commit counts references of
    /// its own.
    ///
    /// # Errors
    /// `NoSpace` if callers of this kind get no more room; `ReadOnly`.
    fn write(&self, stream: Stream, bytes: &[u8], who: Admit) -> Result<Slices, SliceError>;

    /// Returns the reference that `write` gave. It cannot fail: a store that cannot do it now does it later.
    fn release(&self, slices: &[SlicePtr]);

    /// Fills each buffer with its slice's bytes, verified.
    ///
    /// # Errors
    /// `Damaged` if the bytes of a slice cannot be read or rebuilt.
    fn read(&self, reads: &mut [SliceRead<'_>]) -> Result<(), SliceError>;

    /// While the pin lives, no slice goes away that metadata named when it was taken.
    ///
    /// # Errors
    /// `ReadOnly` if the store cannot promise that.
    fn pin(&self) -> Result<Pin, SliceError>;

    /// Where bytes are held: the same object for every store over this one, so it also says which pool a
    /// slice is of.
    fn holder(self: &Arc<Self>) -> Arc<dyn SliceHolder>;

    /// The space of the pool. Bytes of a deleted name count as live until compaction finds that nothing names
    /// them.
    ///
    /// # Errors
    /// `ReadOnly` if the store cannot be asked.
    fn space(&self) -> Result<Space, SliceError>;
}

/// A metadata store that has its slices in a store of their own. It is a `SliceStore` by passing every call
/// on.
pub trait HasSlices: Send + Sync + 'static {
    /// The store of its slices.
    type Slices: SliceStore;

    /// The store of its slices.
    fn slices(&self) -> &Arc<Self::Slices>;
}

impl<T: HasSlices> SliceStore for T {
    fn write(&self, stream: Stream, bytes: &[u8], who: Admit) -> Result<Slices, SliceError> {
        self.slices().write(stream, bytes, who)
    }

    fn release(&self, slices: &[SlicePtr]) {
        self.slices().release(slices);
    }

    fn read(&self, reads: &mut [SliceRead<'_>]) -> Result<(), SliceError> {
        self.slices().read(reads)
    }

    fn pin(&self) -> Result<Pin, SliceError> {
        self.slices().pin()
    }

    fn holder(self: &Arc<Self>) -> Arc<dyn SliceHolder> {
        self.slices().holder()
    }

    fn space(&self) -> Result<Space, SliceError> {
        self.slices().space()
    }
}
