//! The sums of each volume: inodes, bytes and reserved bytes. Every commit adds to them.

use warpfire_format::fs::{
    CounterId, Key, VolumeId, decode_counter, encode_counter, is_of_volume, number_in,
};
use warpfire_meta::{Batch, SUMS, Storage};
use warpfire_units::Seq;

use crate::error::FsError;
use crate::fs::Fs;

/// The counters of a volume, in the order of the engine's sums.
pub(super) const COUNTERS: [CounterId; SUMS] = [CounterId::Inodes, CounterId::Bytes, CounterId::Reserved];

impl<E: Storage> Fs<E> {
    /// The sums of a volume behind a door, as of a seq.
    pub(crate) fn volume_sums(&self, volume: VolumeId, at: Seq) -> Result<[i64; SUMS], FsError> {
        let (mut sums, mut value) = ([0; SUMS], Vec::new());
        for (sum, id) in sums.iter_mut().zip(COUNTERS) {
            if self.engine.get(&Key::Counter(volume, id).encode(), at, &mut value)? {
                *sum = decode_counter(&value)?;
            }
        }
        Ok(sums)
    }

    /// The sums of all volumes behind doors, as of a seq.
    pub(crate) fn sums_behind_doors(&self, at: Seq) -> Result<[i64; SUMS], FsError> {
        let mut all = [0_i64; SUMS];
        for (volume, _) in self.live_volumes_at(at)? {
            for (sum, of) in all.iter_mut().zip(self.volume_sums(volume, at)?) {
                *sum = sum.wrapping_add(of);
            }
        }
        Ok(all)
    }

    /// The sums of the volume that a new clone shows, now or at a snapshot.
    pub(super) fn sums_of_origin(&self, origin: VolumeId, at: Option<Seq>) -> Result<[i64; SUMS], FsError> {
        if origin != VolumeId::FIRST {
            return self.volume_sums(origin, at.unwrap_or(Seq::MAX));
        }
        let all = match at {
            Some(at) => self.volume_sums(VolumeId::FIRST, at)?,
            None => self.deferred.sums(),
        };
        let mut own = all;
        for (sum, behind) in own.iter_mut().zip(self.sums_behind_doors(at.unwrap_or(Seq::MAX))?) {
            *sum = sum.wrapping_sub(behind);
        }
        Ok(own)
    }

    /// The batch of a call with what it adds to the sums of its own volume, and that volume; `None` if it
    /// adds nothing there.
    ///
    /// # Errors
    /// `Gone` if the volume has been deleted.
    pub(crate) fn with_volume_sums(&self, batch: &Batch) -> Result<Option<(VolumeId, Batch)>, FsError> {
        // All changes of a call are in one volume.
        let Some(first) = batch.iter().next() else { return Ok(None) };
        if is_of_volume(first.key(), VolumeId::FIRST) {
            return Ok(None);
        }
        let volume = match Key::decode(first.key())? {
            Key::Inode(volume, _)
            | Key::Orphan(volume, _)
            | Key::Dentry(volume, ..)
            | Key::Xattr(volume, ..)
            | Key::Region(volume, ..) => volume,
            _ => return Ok(None),
        };
        self.check_live(number_in(volume, 0))?;
        if *batch.sums() == [0; SUMS] {
            return Ok(None);
        }
        let (mut with, mut operand) = (batch.clone(), Vec::new());
        for (id, added) in COUNTERS.into_iter().zip(batch.sums()) {
            if *added != 0 {
                operand.clear();
                encode_counter(&mut operand, *added);
                with.merge_naming(&Key::Counter(volume, id).encode(), &operand, []);
            }
        }
        Ok(Some((volume, with)))
    }
}
