//! Reading everything before it is needed, while what has rotted can still be rebuilt.

use warpfire_log::LogStore;
use warpfire_meta::Store;

use crate::{Result, Warpfire};

/// What a scrub has read so far, and what became of it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct ScrubReport {
    /// Segments that were read, parity too.
    pub segments: u64,
    /// Segments that are still to be read.
    pub segments_left: u64,
    /// Bytes that were read from devices.
    pub read_bytes: u64,
    /// Segments in which something did not verify.
    pub damaged_segments: u64,
    /// Of these, the ones that are as they were: more is lost than parity covers, or there is no room to move the rest to. Known
    /// when the scrub is over.
    pub unrepaired_segments: u64,
    /// Devices that are missing or have failed, whose share nothing was read of.
    pub lost_devices: usize,
}

impl ScrubReport {
    /// Whether everything was read, and all that was damaged has all its parity again.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.unrepaired_segments == 0 && self.lost_devices == 0
    }
}

impl Warpfire {
    /// Reads everything that is kept, parity too, and writes what did not verify anew elsewhere, rebuilt from the rest of its stripe.
    /// `progress` is called after each segment. Other calls may go on meanwhile; what is written after the start is not read.
    ///
    /// ```
    /// use warpfire::Pool;
    ///
    /// let fs = Pool::options().data(2).parity(1).size_bytes(64 << 20).in_memory()?;
    /// fs.write("/kept", vec![7; 1 << 20])?;
    /// let scrub = fs.scrub(|so_far| eprintln!("{} segments to go", so_far.segments_left))?;
    /// assert!(scrub.is_whole() && scrub.read_bytes > 1 << 20);
    /// # Ok::<(), warpfire::Error>(())
    /// ```
    ///
    /// # Errors
    /// `ReadOnly` if a device fails while damage is repaired. Damage is no error: it is counted.
    pub fn scrub(&self, mut progress: impl FnMut(&ScrubReport)) -> Result<ScrubReport> {
        let engine = self.fs().engine();
        let read_before = self.stats().counters().read_bytes;
        self.sync()?;
        engine.flush()?;
        let mut scrub = ScrubReport::default();
        let mut after = None;
        while let Some(step) = engine.scrub_step(after)? {
            scrub.segments += 1;
            scrub.segments_left = step.left;
            scrub.damaged_segments += u64::from(!step.is_whole);
            scrub.read_bytes = self.stats().counters().read_bytes - read_before;
            progress(&scrub);
            after = Some(step.segment);
        }
        while !engine.log().damaged()?.is_empty() && engine.background_step()? {}
        // What was moved is durable, and what it left is free, from here on.
        self.sync()?;
        let stats = self.stats();
        scrub.unrepaired_segments = engine.log().damaged()?.len() as u64;
        scrub.damaged_segments = scrub.damaged_segments.max(scrub.unrepaired_segments);
        scrub.lost_devices = stats.lost_devices();
        scrub.read_bytes = stats.counters().read_bytes - read_before;
        Ok(scrub)
    }
}
