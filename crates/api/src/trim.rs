//! Trim: returns the space of free zones to the filesystem or drive below.

use std::ops::ControlFlow;

use crate::{Result, Warpfire};

/// The result of a trim.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct TrimReport {
    /// Bytes of devices that hold nothing any more, and that the devices discarded.
    pub discarded_bytes: u64,
    /// Number of devices that refused a discard. They are used as before.
    pub refused_devices: usize,
}

impl Warpfire {
    /// Returns the space that the pool does not need: drops removed files, cleans segments, and discards
    /// every free zone. Image files then take less of the filesystem below, and a drive knows which of its
    /// blocks are free. Other calls may run at the same time.
    ///
    /// `progress` is called before the first zone and after each. It may wait, to bound the rate, or end the
    /// trim with `Break`; the report then has the bytes until then.
    ///
    /// Zones that an earlier trim of this session discarded, and that were not written since, are left out.
    /// Zoned devices are left out too: each zone is reset when it becomes free.
    ///
    /// An image file grows again when it is written. If the filesystem below is full by then, the pool
    /// becomes read-only.
    ///
    /// ```
    /// use std::ops::ControlFlow;
    /// use warpfire::Pool;
    ///
    /// let fs = Pool::options().in_memory()?;
    /// fs.write("/gone", vec![7; 4 << 20])?;
    /// fs.remove_file("/gone")?;
    /// assert!(fs.trim(|_| ControlFlow::Continue(()))?.discarded_bytes > 4 << 20);
    /// # Ok::<(), warpfire::Error>(())
    /// ```
    ///
    /// # Errors
    /// `ReadOnly` if the pool takes no changes. A device that refuses a discard is no error.
    pub fn trim(&self, mut progress: impl FnMut(&TrimReport) -> ControlFlow<()>) -> Result<TrimReport> {
        // Files without a name go with the sync.
        self.sync()?;
        let engine = self.fs().engine();
        engine.reclaim_all()?;
        // Without the last version of a removed clone, its origin keeps nothing for it.
        let mut has_forgotten = false;
        while self.fs().forget_volumes()? {
            has_forgotten = true;
        }
        if has_forgotten {
            engine.reclaim_all()?;
        }
        // Segments that were emptied become free at a sync.
        self.sync()?;
        if progress(&TrimReport::default()).is_break() {
            return Ok(TrimReport::default());
        }
        self.discard_free(progress)
    }

    /// Discards the zones that are free now, as the last step of [`trim`](Warpfire::trim): nothing is cleaned
    /// before. `progress` is called after each zone.
    ///
    /// # Errors
    /// As [`trim`](Warpfire::trim).
    pub fn discard_free(
        &self,
        mut progress: impl FnMut(&TrimReport) -> ControlFlow<()>,
    ) -> Result<TrimReport> {
        let report = |trimmed: warpfire_pool::Trimmed| TrimReport {
            discarded_bytes: trimmed.bytes,
            refused_devices: trimmed.refused,
        };
        Ok(report(self.fs().engine().log().trim(|so_far| progress(&report(so_far)))?))
    }
}
