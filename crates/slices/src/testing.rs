//! A store for tests that only records which slices are held and released.

use std::sync::Arc;
use warpfire_env::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use warpfire_env::sync::Mutex;
use warpfire_log::{Admit, Pin, Slices, Space, Stream};
use warpfire_units::{SegmentId, SlicePtr};

use crate::{SliceError, SliceHolder, SliceRead, SliceStore};

/// Lists the held slices and the released ones. Its slices follow each other in one segment and have no
/// bytes.
#[derive(Default)]
pub(crate) struct Counting {
    pub(crate) held: Mutex<Vec<SlicePtr>>,
    pub(crate) released: Mutex<Vec<SlicePtr>>,
    pub(crate) refuses_holds: AtomicBool,
    next: AtomicU64,
}

impl SliceHolder for Counting {
    fn hold(&self, slices: &[SlicePtr]) -> Result<(), SliceError> {
        if self.refuses_holds.load(Ordering::Relaxed) {
            return Err(SliceError::ReadOnly("the test refuses holds".into()));
        }
        self.held.lock().extend_from_slice(slices);
        Ok(())
    }

    fn release_hold(&self, slices: &[SlicePtr]) {
        let mut held = self.held.lock();
        for slice in slices {
            // The hold itself, or holds that follow each other and were named as one.
            let mut at = slice.offset_bytes;
            let end = at + u64::from(slice.len_bytes);
            while at < end {
                let fits = |h: &SlicePtr| {
                    h.segment == slice.segment && h.offset_bytes == at && at + u64::from(h.len_bytes) <= end
                };
                let longest =
                    held.iter().enumerate().filter(|(_, h)| fits(h)).max_by_key(|(_, h)| h.len_bytes);
                let (number, _) = longest.expect("a released hold was held");
                at += u64::from(held.remove(number).len_bytes);
            }
        }
    }
}

impl SliceStore for Counting {
    fn write(&self, _stream: Stream, bytes: &[u8], _admit: Admit) -> Result<Slices, SliceError> {
        let offset_bytes = self.next.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        let len_bytes = u32::try_from(bytes.len()).expect("tests write short slices");
        Ok(Slices::from_buf([SlicePtr { segment: SegmentId::FIRST, offset_bytes, len_bytes }]))
    }

    fn release(&self, slices: &[SlicePtr]) {
        self.released.lock().extend_from_slice(slices);
    }

    fn read(&self, _reads: &mut [SliceRead<'_>]) -> Result<(), SliceError> {
        Ok(())
    }

    fn may_share_batch(&self, _len_bytes: usize) -> bool {
        true
    }

    fn pin(&self) -> Result<Pin, SliceError> {
        Ok(Pin::new(Arc::new(())))
    }

    fn holder(self: &Arc<Self>) -> Arc<dyn SliceHolder> {
        Arc::clone(self) as Arc<dyn SliceHolder>
    }

    fn held_bytes(&self) -> u64 {
        self.held.lock().iter().map(|slice| u64::from(slice.len_bytes)).sum()
    }

    fn space(&self) -> Result<Space, SliceError> {
        Ok(Space::default())
    }
}
