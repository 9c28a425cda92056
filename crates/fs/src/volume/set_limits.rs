//! Calls that set the limits of volumes and read them, and the claims of transactions.

use std::collections::BTreeMap;

use warpfire_format::fs::{
    DoorVolume, Key, KeyKind, LIMIT_MAX, VolumeId, VolumeLimits, decode_counter, is_of_kind,
};
use warpfire_meta::{Admit, Batch, BatchOp, SUMS, SnapshotStore, Storage};
use warpfire_units::Seq;

use super::sums::COUNTERS;
use super::{Claim, VolumeInfo, VolumeUse};
use crate::error::FsError;
use crate::fs::Fs;
use crate::node::{NodeRef, check_name};

/// What becomes of a limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum NewLimit {
    /// It stays.
    #[default]
    Same,
    /// There is none.
    None,
    /// So many, at most [`LIMIT_MAX`].
    Max(u64),
}

impl NewLimit {
    fn applied(self, before: Option<u64>) -> Result<Option<u64>, FsError> {
        match self {
            NewLimit::Same => Ok(before),
            NewLimit::None => Ok(None),
            NewLimit::Max(limit) if limit <= LIMIT_MAX => Ok(Some(limit)),
            NewLimit::Max(_) => Err(FsError::Invalid("a limit is below 2^63")),
        }
    }
}

/// A change of the limits of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LimitChange {
    /// That of bytes of files without holes, reserved bytes included. Shared bytes count once for each file,
    /// and snapshots do not count.
    pub bytes: NewLimit,
    /// That of inodes, the root of the volume included.
    pub files: NewLimit,
}

impl<E: Storage> Fs<E> {
    /// Reads the limits of all volumes, for the open of a filesystem.
    pub(crate) fn read_volume_limits(&self) -> Result<(), FsError> {
        for (volume, record) in self.live_volumes()? {
            if record.limits.is_some() {
                let sums = self.volume_sums(volume, Seq::MAX)?;
                self.limited_volumes.set(volume, record.limits, VolumeUse::of(&sums));
            }
        }
        Ok(())
    }

    /// Claims what the changes of a transaction add to each volume: they have the additions to its counters.
    pub(crate) fn claim_for_transaction(&self, changes: &Batch) -> Result<Vec<Claim<'_>>, FsError> {
        let mut added: BTreeMap<VolumeId, [i64; SUMS]> = BTreeMap::new();
        for op in changes.iter() {
            let BatchOp::Merge(key, operand) = op else { continue };
            // A transaction may have changed millions of names: only the keys of counters are decoded.
            if is_of_kind(key, KeyKind::Counter)
                && let Ok(Key::Counter(volume, id)) = Key::decode(key)
                && let Some(sum) = COUNTERS.iter().position(|counter| *counter == id)
            {
                let added = &mut added.entry(volume).or_default()[sum];
                *added = added.wrapping_add(decode_counter(operand)?);
            }
        }
        let mut claims = Vec::new();
        for (volume, sums) in added {
            claims.extend(self.limited_volumes.claim(volume, VolumeUse::of(&sums))?);
        }
        Ok(claims)
    }
}

impl<E: Storage + SnapshotStore> Fs<E> {
    /// Changes the limits of the volume behind a door. They hold from then on, and are durable after the next
    /// sync. A volume may have more than a limit already: that stays, and nothing is added.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` if the name is no door, or for a limit above [`LIMIT_MAX`]; `ReadOnly`.
    pub fn limit_volume(
        &self,
        dir: &NodeRef,
        name: &[u8],
        change: LimitChange,
    ) -> Result<VolumeInfo, FsError> {
        check_name(name)?;
        let _exclusive = self.call_gate.enter_exclusive();
        let (volume, record) = self.volume_behind(dir, name)?;
        let limits = VolumeLimits {
            bytes: change.bytes.applied(record.limits.bytes)?,
            files: change.files.applied(record.limits.files)?,
        };
        let record = DoorVolume { limits, ..record };
        let (mut batch, mut value) = (Batch::new(), Vec::new());
        record.encode(&mut value);
        batch.put(&Key::Volume(volume).encode(), &value);
        // While no call runs, so the sums in the store are those of all calls before.
        let sums = self.volume_sums(volume, Seq::MAX)?;
        let info = self.volume_info(volume, &record, Seq::MAX)?;
        // Also in a full pool: a limit takes no more room than a deletion does.
        self.commit(&batch, Admit::Reserve)?;
        self.limited_volumes.set(volume, limits, VolumeUse::of(&sums));
        Ok(info)
    }
}
