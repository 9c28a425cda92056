//! The seam `SliceStore`: a store of immutable bytes that metadata names by pointer.
//!
//! # Terms
//! A *slice* is a range of bytes that are written once and named by a pointer. Five things keep its bytes:
//!
//! | kept by | begins with | ends with |
//! |---|---|---|
//! | the writer's reference | `SliceStore::write` | `SliceStore::release` |
//! | metadata's reference | a commit that names the slice | a durable commit that drops the name |
//! | a pin | `SliceStore::pin` | its drop; it keeps every slice that metadata named when the pin began |
//! | a hold | `SliceHolder::hold` | `SliceHolder::release_hold` |
//! | a snapshot | `Store::snapshot` | its drop; until then metadata keeps the names that it shows |

use std::sync::Arc;

use warpfire_log::{Admit, Pin, Slices, Space, Stream};
use warpfire_units::SlicePtr;

use crate::error::SliceError;

/// A slice to read, and the buffer to fill. The buffer has the length of the slice.
pub type SliceRead<'a> = (SlicePtr, &'a mut [u8]);

/// An object that keeps slices for callers that have slices without a name in metadata.
pub trait SliceHolder: Send + Sync {
    /// Holds slices until `release_hold`, even if metadata drops their names. The caller has a reference of
    /// its own, or a pin that began while metadata named them. A hold takes memory and space. It ends with
    /// the store. The bytes may move; the pointers stay good for every call on the store.
    ///
    /// # Errors
    /// `ReadOnly` if the store cannot hold more. Then the call has held none of the slices.
    fn hold(&self, slices: &[SlicePtr]) -> Result<(), SliceError>;

    /// Ends holds of these bytes. Slices that follow each other may be named as one. It cannot fail: a store
    /// that cannot end it now ends it later.
    fn release_hold(&self, slices: &[SlicePtr]);
}

/// A store of slices. On one machine a log stores them; in a cluster, storage servers do.
pub trait SliceStore: Send + Sync + 'static {
    /// Writes bytes, which become durable with the next sync of the metadata. The caller has one reference to
    /// each slice, and ends it with `release` once a commit that names the slices has succeeded or failed. A
    /// commit counts references of its own.
    ///
    /// # Errors
    /// `NoSpace` if there is no room for callers of this kind; `ReadOnly` once nothing can be written.
    fn write(&self, stream: Stream, bytes: &[u8], admit: Admit) -> Result<Slices, SliceError>;

    /// Ends the writer's references to these slices. It cannot fail: a store that cannot end them now ends
    /// them later.
    fn release(&self, slices: &[SlicePtr]);

    /// Fills each buffer with the verified bytes of its slice.
    ///
    /// # Errors
    /// `Damaged` if the bytes of a slice can be neither read nor reconstructed.
    fn read(&self, reads: &mut [SliceRead<'_>]) -> Result<(), SliceError>;

    /// Reads a short slice by the read-ahead, as `read` does for one alone. `false`: the caller reads it.
    fn read_ahead(&self, _read: &mut SliceRead<'_>) -> bool {
        false
    }

    /// Whether reads of so many bytes by different callers may be made together: none of them waits for a
    /// device that another one needs and that does not answer.
    fn may_share_batch(&self, len_bytes: usize) -> bool;

    /// Takes a pin. While it lives, every slice that metadata named when the pin was taken stays readable.
    ///
    /// # Errors
    /// `ReadOnly` if the store cannot promise that.
    fn pin(&self) -> Result<Pin, SliceError>;

    /// The object that holds slices of this store. Every store over this one returns the same object, so it
    /// also identifies the pool of a slice.
    fn holder(self: &Arc<Self>) -> Arc<dyn SliceHolder>;

    /// Bytes that holds keep. Each counts once.
    fn held_bytes(&self) -> u64;

    /// The space of the pool. Bytes that no name refers to any more count as live until compaction finds that
    /// out.
    ///
    /// # Errors
    /// `ReadOnly` if the store cannot be asked.
    fn space(&self) -> Result<Space, SliceError>;
}

/// A metadata store with a separate store for its slices. It implements `SliceStore`: it passes every call on
/// to that store.
pub trait HasSlices: Send + Sync + 'static {
    /// The store of its slices.
    type Slices: SliceStore;

    /// The store of its slices.
    fn slices(&self) -> &Arc<Self::Slices>;
}

impl<T: HasSlices> SliceStore for T {
    fn write(&self, stream: Stream, bytes: &[u8], admit: Admit) -> Result<Slices, SliceError> {
        self.slices().write(stream, bytes, admit)
    }

    fn release(&self, slices: &[SlicePtr]) {
        self.slices().release(slices);
    }

    fn read(&self, reads: &mut [SliceRead<'_>]) -> Result<(), SliceError> {
        self.slices().read(reads)
    }

    fn read_ahead(&self, read: &mut SliceRead<'_>) -> bool {
        self.slices().read_ahead(read)
    }

    fn may_share_batch(&self, len_bytes: usize) -> bool {
        self.slices().may_share_batch(len_bytes)
    }

    fn pin(&self) -> Result<Pin, SliceError> {
        self.slices().pin()
    }

    fn holder(self: &Arc<Self>) -> Arc<dyn SliceHolder> {
        self.slices().holder()
    }

    fn held_bytes(&self) -> u64 {
        self.slices().held_bytes()
    }

    fn space(&self) -> Result<Space, SliceError> {
        self.slices().space()
    }
}
