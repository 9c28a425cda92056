//! Scrub: reads the whole pool, and repairs damage while parity can still reconstruct it.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use warpfire_log::{LogStore, WorkFor};
use warpfire_meta::Store;

use crate::{Result, Warpfire};

/// The counts of a scrub, so far or at its end.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct ScrubReport {
    /// Segments that were read, parity too.
    pub segments: u64,
    /// Segments that are still to be read.
    pub segments_left: u64,
    /// Bytes of these segments on devices that are present.
    pub read_bytes: u64,
    /// Segments in which something did not verify.
    pub damaged_segments: u64,
    /// The numbers of these segments, before their repair. Files, or garbage only, may have bytes in them.
    pub damaged: Vec<u64>,
    /// Other segments with less redundancy than the devices allow: they were written, or lost a column, while
    /// devices were away.
    pub weak_segments: u64,
    /// The numbers of these segments, before they are rewritten.
    pub weak: Vec<u64>,
    /// Damaged and weak segments that could not be repaired: more is lost than parity covers, or there is no
    /// room to move the rest. Counted at the end of the scrub.
    pub unrepaired_segments: u64,
    /// The numbers of these segments.
    pub unrepaired: Vec<u64>,
    /// Devices that are missing or have failed. Nothing was read from them.
    pub lost_devices: usize,
}

impl ScrubReport {
    /// Whether all data was read from all devices, and everything has full parity.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.segments_left == 0 && self.unrepaired_segments == 0 && self.lost_devices == 0
    }
}

impl Warpfire {
    /// Reads all live segments, parity too. What does not verify is reconstructed and written elsewhere.
    /// Segments with less redundancy than the devices allow are rewritten.
    /// `progress` is called after each segment. It may wait, to bound the rate. With `Break` it ends the
    /// scrub: the report has the number of segments that are left, background work repairs the damage, and
    /// the pool does not remember the scrub. Other calls may run at the same time; the scrub does not read
    /// what they write.
    ///
    /// ```
    /// use std::ops::ControlFlow;
    /// use warpfire::Pool;
    ///
    /// let fs = Pool::options().data(2).parity(1).size_bytes(64 << 20).in_memory()?;
    /// fs.write("/kept", vec![7; 1 << 20])?;
    /// let scrub = fs.scrub(|so_far| {
    ///     eprintln!("{} segments to go", so_far.segments_left);
    ///     ControlFlow::Continue(())
    /// })?;
    /// assert!(scrub.is_whole() && scrub.read_bytes > 1 << 20);
    /// # Ok::<(), warpfire::Error>(())
    /// ```
    ///
    /// # Errors
    /// `ReadOnly` if too many devices fail during the repair. Damage is not an error: the report counts it.
    pub fn scrub(&self, progress: impl FnMut(&ScrubReport) -> ControlFlow<()>) -> Result<ScrubReport> {
        let found = self.find_damage(progress)?;
        if found.segments_left > 0 { Ok(found) } else { self.repair(found) }
    }

    /// The first half of a [`scrub`](Warpfire::scrub): reads all live segments and lists the damaged ones.
    /// Without [`background`](crate::PoolOptions::background) threads nothing is repaired before
    /// [`repair`](Warpfire::repair), so that the damage can be examined.
    ///
    /// # Errors
    /// `ReadOnly` if too many devices fail.
    pub fn find_damage(
        &self,
        mut progress: impl FnMut(&ScrubReport) -> ControlFlow<()>,
    ) -> Result<ScrubReport> {
        let engine = self.fs().engine();
        self.sync()?;
        engine.flush()?;
        let mut scrub = ScrubReport::default();
        // Background work may rewrite them while the scrub reads.
        let mut weak = engine.log().damaged()?;
        let mut after = None;
        while let Some(step) = engine.scrub_step(after, WorkFor::Caller)?.verified() {
            scrub.segments += 1;
            scrub.segments_left = step.left;
            if !step.is_whole {
                scrub.damaged.push(step.segment.get());
            }
            scrub.damaged_segments = scrub.damaged.len() as u64;
            scrub.read_bytes += step.read_bytes;
            if progress(&scrub).is_break() && scrub.segments_left > 0 {
                return Ok(scrub);
            }
            after = Some(step.segment);
        }
        // The last ones may have become free since they were counted.
        scrub.segments_left = 0;
        weak.extend(engine.log().damaged()?);
        let weak: BTreeSet<u64> = weak.iter().map(|segment| segment.get()).collect();
        scrub.weak = weak.into_iter().filter(|segment| !scrub.damaged.contains(segment)).collect();
        scrub.weak_segments = scrub.weak.len() as u64;
        Ok(scrub)
    }

    /// The second half of a [`scrub`](Warpfire::scrub): reconstructs what
    /// [`find_damage`](Warpfire::find_damage) has found, and writes it elsewhere. The pool remembers the
    /// outcome.
    ///
    /// # Errors
    /// As [`scrub`](Warpfire::scrub).
    pub fn repair(&self, found: ScrubReport) -> Result<ScrubReport> {
        let engine = self.fs().engine();
        let mut scrub = found;
        while !engine.log().damaged()?.is_empty() && engine.background_step()? {}
        // Moved data becomes durable, and the damaged segments become free, only at a sync.
        self.sync()?;
        let stats = self.stats();
        scrub.unrepaired = engine.log().damaged()?.iter().map(|segment| segment.get()).collect();
        scrub.unrepaired_segments = scrub.unrepaired.len() as u64;
        scrub.lost_devices = stats.lost_devices();
        self.shared.health.take_scrub(&scrub, &stats);
        self.shared.health.store(&self.shared.open_pool)?;
        self.sync()?;
        Ok(scrub)
    }
}

#[cfg(test)]
mod tests {
    use warpfire_sim_env::{DeviceSpec, SimWorld};

    use super::*;
    use crate::Pool;

    #[test]
    fn a_scrub_ends_whole_when_its_last_segments_become_free() {
        let world = SimWorld::of(3, 3, &DeviceSpec::conventional("flash", 64 << 20));
        let options = Pool::options().data(2).parity(1).background(false);
        let fs = options.create_on(world.devices()).expect("blank devices make a pool");
        fs.write("/kept", vec![1; 1 << 20]).expect("there is room");
        fs.fs().engine().flush().expect("tables are written");
        fs.write("/last", vec![2; 12 << 20]).expect("there is room");
        let mut is_removed = false;
        let scrub = fs.scrub(|so_far| {
            if so_far.segments == 1 {
                assert!(so_far.segments_left > 1, "there are segments to free");
                fs.remove_file("/last").expect("removed");
                fs.trim(|_| ControlFlow::Continue(())).expect("its segments are free now");
                is_removed = true;
            }
            ControlFlow::Continue(())
        });
        let scrub = scrub.expect("nothing fails");
        assert!(is_removed && scrub.is_whole() && scrub.segments < 4, "{scrub:?}");
        assert!(fs.health().last_scrub.is_some(), "the pool remembers it");
    }
}
